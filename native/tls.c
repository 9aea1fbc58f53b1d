#include "tls.h"

Tls *tls_new(PyObject *object, PyObject *incoming, PyObject *outgoing)
{
    if (known.want_read == NULL) {
        PyObject *ssl = PyImport_ImportModule("ssl");
        if (ssl == NULL) {
            return NULL;
        }
        known.want_read = PyObject_GetAttrString(ssl, "SSLWantReadError");
        Py_DECREF(ssl);
        if (known.want_read == NULL) {
            return NULL;
        }
    }
    Tls *tls = PyMem_Malloc(sizeof *tls);
    if (tls == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    tls->object = Py_NewRef(object);
    tls->incoming = Py_NewRef(incoming);
    tls->outgoing = Py_NewRef(outgoing);
    return tls;
}

void tls_free(Tls *tls)
{
    if (tls != NULL) {
        Py_DECREF(tls->object);
        Py_DECREF(tls->incoming);
        Py_DECREF(tls->outgoing);
        PyMem_Free(tls);
    }
}

int tls_receive(Tls *tls, const char *data, size_t length)
{
    PyObject *result;
    if (length == 0) {
        result = PyObject_CallMethod(tls->incoming, "write_eof", NULL);
    }
    else {
        PyObject *view = PyMemoryView_FromMemory((char *)data, (Py_ssize_t)length, PyBUF_READ);
        if (view == NULL) {
            return -1;
        }
        result = PyObject_CallMethod(tls->incoming, "write", "N", view);
    }
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

Py_ssize_t tls_read(Tls *tls, char *into, size_t size, int *ended)
{
    size_t length = 0;
    *ended = 0;
    while (length < size) {
        Py_ssize_t room = (Py_ssize_t)(size - length);
        PyObject *view = PyMemoryView_FromMemory(into + length, room, PyBUF_WRITE);
        if (view == NULL) {
            return -1;
        }
        PyObject *result = PyObject_CallMethod(tls->object, "read", "nN", room, view);
        if (result == NULL) {
            if (PyErr_ExceptionMatches(known.want_read)) {
                PyErr_Clear();
                break;
            }
            if (length > 0) {
                PyErr_Clear(); /* First what came; the error will be there again. */
                break;
            }
            return -1;
        }
        Py_ssize_t count = PyLong_AsSsize_t(result);
        Py_DECREF(result);
        if (count < 0) {
            return -1;
        }
        if (count == 0) {
            *ended = 1;
            break;
        }
        length += (size_t)count;
    }
    return (Py_ssize_t)length;
}

PyObject *tls_pending(Tls *tls)
{
    PyObject *bytes = PyObject_CallMethod(tls->outgoing, "read", NULL);
    if (bytes == NULL || !PyBytes_Check(bytes) || PyBytes_GET_SIZE(bytes) == 0) {
        PyErr_Clear();
        Py_XDECREF(bytes);
        return NULL;
    }
    return bytes;
}

PyObject *tls_write(Tls *tls, PyObject *payload)
{
    PyObject *result = PyObject_CallMethod(tls->object, "write", "O", payload);
    if (result == NULL) {
        return NULL;
    }
    Py_DECREF(result); /* A memory BIO takes all. */
    result = PyObject_CallMethod(tls->outgoing, "read", NULL);
    if (result != NULL && !PyBytes_Check(result)) {
        Py_DECREF(result);
        PyErr_SetString(PyExc_TypeError, "the outgoing BIO gave no bytes");
        return NULL;
    }
    return result;
}

PyObject *tls_farewell(Tls *tls)
{
    PyObject *error = taken_exception();
    PyObject *result = PyObject_CallMethod(tls->object, "unwrap", NULL);
    Py_XDECREF(result);
    PyErr_Clear(); /* It wants to read the server's farewell, for which nobody waits. */
    PyObject *bytes = tls_pending(tls);
    if (error != NULL) {
        raise_again(error);
    }
    return bytes;
}
