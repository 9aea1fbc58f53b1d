#include "response.h"

#include <structmember.h>

/* Answers that nobody holds any more wait here for their next use, with their buffers: bounded, and small ones only. */
#define SPARE_MOST 256
#define SPARE_BUFFER_BYTES 4096

PyTypeObject *ResponseType;
Py_ssize_t response_offset;

/* Only touched with the GIL held. */
static PyObject *spare[SPARE_MOST];
static int spare_count;

static PyObject *empty_bytes;
static PyObject *name_json;

PyObject *response_new(void)
{
    PyObject *response;
    if (spare_count > 0) {
        response = spare[--spare_count];
        PyObject_Init(response, ResponseType);
    }
    else {
        response = ResponseType->tp_alloc(ResponseType, 0);
        if (response == NULL) {
            return NULL;
        }
        PyObject_GC_UnTrack(response); /* It holds texts and numbers: no cycle goes through it. */
    }
    return response;
}

static int response_clear(PyObject *response);

static void response_dealloc(PyObject *response)
{
    ResponseData *data = response_data(response);
    PyTypeObject *type = Py_TYPE(response);
    if (PyObject_GC_IsTracked(response)) {
        PyObject_GC_UnTrack(response);
    }
    response_clear(response);
    Message *message = &data->message;
    if (spare_count < SPARE_MOST && message->body_capacity <= SPARE_BUFFER_BYTES &&
        message->head_capacity <= SPARE_BUFFER_BYTES) {
        spare[spare_count++] = response;
    }
    else {
        message_free(message);
        type->tp_free(response);
    }
    Py_DECREF(type);
}

static int response_traverse(PyObject *response, visitproc visit, void *arg)
{
    ResponseData *data = response_data(response);
    Py_VISIT(Py_TYPE(response));
    Py_VISIT(data->method);
    Py_VISIT(data->url);
    Py_VISIT(data->raw_headers);
    Py_VISIT(data->body);
    Py_VISIT(data->content);
    return 0;
}

static int response_clear(PyObject *response)
{
    ResponseData *data = response_data(response);
    Py_CLEAR(data->method);
    Py_CLEAR(data->url);
    Py_CLEAR(data->raw_headers);
    Py_CLEAR(data->body);
    Py_CLEAR(data->content);
    return 0;
}

static PyObject *body_of(ResponseData *data)
{
    if (data->body == NULL) {
        Message *message = &data->message;
        Py_ssize_t length = (Py_ssize_t)message->body_length;
        data->body = length == 0 ? Py_NewRef(empty_bytes) : PyBytes_FromStringAndSize(message->body, length);
        if (data->body == NULL) {
            return NULL;
        }
        if (message->body_capacity > SPARE_BUFFER_BYTES) {
            /* A large one need not be held twice. */
            free(message->body);
            message->body = NULL;
            message->body_capacity = message->body_length = 0;
        }
    }
    return Py_NewRef(data->body);
}

static PyObject *response_get_body(PyObject *self, void *Py_UNUSED(closure))
{
    return body_of(response_data(self));
}

static PyObject *response_get_raw_headers(PyObject *self, void *Py_UNUSED(closure))
{
    ResponseData *data = response_data(self);
    if (data->raw_headers == NULL) {
        Message *message = &data->message;
        PyObject *list = PyList_New((Py_ssize_t)message->header_count);
        if (list == NULL) {
            return NULL;
        }
        for (size_t index = 0; index < message->header_count; index++) {
            Header *header = &message->headers[index];
            PyObject *pair = Py_BuildValue("(y#y#)", message->head + header->name, (Py_ssize_t)header->name_length,
                                           message->head + header->value, (Py_ssize_t)header->value_length);
            if (pair == NULL) {
                Py_DECREF(list);
                return NULL;
            }
            PyList_SET_ITEM(list, (Py_ssize_t)index, pair);
        }
        data->raw_headers = list;
    }
    return Py_NewRef(data->raw_headers);
}

/* What has no content coding is its own content; anything else is the base class's work. */
static PyObject *response_get_content(PyObject *self, void *Py_UNUSED(closure))
{
    ResponseData *data = response_data(self);
    if (data->content != NULL) {
        return Py_NewRef(data->content);
    }
    if (!data->message.has_content_encoding && data->raw_headers == NULL) {
        return body_of(data);
    }
    PyObject *property = PyDict_GetItemString(((PyTypeObject *)known.http_response)->tp_dict, "content");
    descrgetfunc get = property == NULL ? NULL : Py_TYPE(property)->tp_descr_get;
    if (get == NULL) {
        PyErr_SetString(PyExc_AttributeError, "content");
        return NULL;
    }
    return get(property, self, known.http_response);
}

static PyObject *response_get_decoded(PyObject *self, void *Py_UNUSED(closure))
{
    PyObject *content = response_data(self)->content;
    return Py_NewRef(content == NULL ? Py_None : content);
}

static PyObject *response_json(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    PyObject *content = response_get_content(self, NULL);
    if (content == NULL) {
        return NULL;
    }
    PyObject *result = PyObject_CallOneArg(known.decode_json, content);
    Py_DECREF(content);
    if (result == NULL && PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear(); /* The base class says what is wrong with it. */
        result = PyObject_CallMethodOneArg(known.http_response, name_json, self);
    }
    return result;
}

static int not_deleted(void)
{
    PyErr_SetString(PyExc_AttributeError, "what an answer holds can be set, not deleted");
    return -1;
}

static PyObject *response_get_int(PyObject *self, void *offset)
{
    return PyLong_FromLongLong(*(int64_t *)((char *)response_data(self) + (size_t)offset));
}

static int response_set_int(PyObject *self, PyObject *value, void *offset)
{
    if (value == NULL) {
        return not_deleted();
    }
    long long number = PyLong_AsLongLong(value);
    if (number == -1 && PyErr_Occurred()) {
        return -1;
    }
    *(int64_t *)((char *)response_data(self) + (size_t)offset) = number;
    return 0;
}

static PyObject *response_get_status(PyObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLong(response_data(self)->status);
}

static int response_set_status(PyObject *self, PyObject *value, void *Py_UNUSED(closure))
{
    if (value == NULL) {
        return not_deleted();
    }
    long status = PyLong_AsLong(value);
    if (status < 0 || status > INT32_MAX) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "a status is a number from 100 to 999");
        }
        return -1;
    }
    response_data(self)->status = (int32_t)status;
    return 0;
}

static PyObject *response_get_accepted(PyObject *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(response_data(self)->accepted);
}

static int response_set_accepted(PyObject *self, PyObject *value, void *Py_UNUSED(closure))
{
    if (value == NULL) {
        return not_deleted();
    }
    int accepted = PyObject_IsTrue(value);
    if (accepted < 0) {
        return -1;
    }
    response_data(self)->accepted = accepted;
    return 0;
}

static PyObject *response_get_object(PyObject *self, void *offset)
{
    PyObject *object = *(PyObject **)((char *)response_data(self) + (size_t)offset);
    return Py_NewRef(object == NULL ? Py_None : object);
}

static int response_set_object(PyObject *self, PyObject *value, void *offset)
{
    if (value == NULL) {
        return not_deleted();
    }
    PyObject **place = (PyObject **)((char *)response_data(self) + (size_t)offset);
    Py_XSETREF(*place, Py_NewRef(value));
    if (!PyObject_GC_IsTracked(self)) {
        PyObject_GC_Track(self); /* A user put something into it, which may lead back to it. */
    }
    return 0;
}

#define NUMBER(name) \
    {#name, response_get_int, response_set_int, NULL, (void *)offsetof(ResponseData, name)}
#define OBJECT(name, get) {#name, get, response_set_object, NULL, (void *)offsetof(ResponseData, name)}

static PyGetSetDef response_getset[] = {
    {"status", response_get_status, response_set_status, NULL, NULL},
    {"status_code", response_get_status, NULL, NULL, NULL},
    {"accepted", response_get_accepted, response_set_accepted, NULL, NULL},
    NUMBER(intended_ns),
    NUMBER(sent_ns),
    NUMBER(first_byte_ns),
    NUMBER(done_ns),
    NUMBER(connect_ns),
    NUMBER(tls_ns),
    OBJECT(method, response_get_object),
    OBJECT(url, response_get_object),
    OBJECT(raw_headers, response_get_raw_headers),
    OBJECT(body, response_get_body),
    {"content", response_get_content, NULL, NULL, NULL},
    {"_content", response_get_decoded, response_set_object, NULL, (void *)offsetof(ResponseData, content)},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef response_methods[] = {
    {"json", response_json, METH_NOARGS, "The body as JSON."},
    {NULL, NULL, 0, NULL},
};

int response_ready_types(PyObject *module)
{
    PyTypeObject *base = (PyTypeObject *)known.http_response;
    PyType_Slot slots[] = {
        {Py_tp_dealloc, response_dealloc},
        {Py_tp_traverse, response_traverse},
        {Py_tp_clear, response_clear},
        {Py_tp_getset, response_getset},
        {Py_tp_methods, response_methods},
        {0, NULL},
    };
    response_offset = (base->tp_basicsize + 15) / 16 * 16;
    PyType_Spec spec = {
        .name = "talka._native.HTTPResponse",
        .basicsize = (int)(response_offset + (Py_ssize_t)sizeof(ResponseData)),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
        .slots = slots,
    };
    empty_bytes = PyBytes_FromStringAndSize(NULL, 0);
    name_json = PyUnicode_InternFromString("json");
    ResponseType = (PyTypeObject *)PyType_FromSpecWithBases(&spec, known.http_response);
    if (empty_bytes == NULL || name_json == NULL || ResponseType == NULL) {
        return -1;
    }
    return PyModule_AddType(module, ResponseType);
}
