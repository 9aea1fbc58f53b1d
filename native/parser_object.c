#define PY_SSIZE_T_CLEAN
#include "parser_object.h"

#include "parser.h"

/* No object is held, so this type has no cycles to tell the collector of. */
typedef struct {
    PyObject_HEAD
    Parser parser;
    Message message;
    int verdict;
} ParserObject;

static int parser_object_begin(ParserObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"is_head", "max_body", NULL};
    int is_head = 0;
    Py_ssize_t max_body = MAX_BODY_BYTES;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|pn:Parser", names, &is_head, &max_body))
        return -1;
    if (max_body < 0) {
        PyErr_SetString(PyExc_ValueError, "max_body must not be negative");
        return -1;
    }
    parser_begin(&self->parser, &self->message, is_head, (size_t)max_body);
    self->verdict = PARSE_MORE;
    return 0;
}

static PyObject *parser_object_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    /* tp_alloc zeroes it, which is what a Message begins as. */
    ParserObject *self = (ParserObject *)type->tp_alloc(type, 0);
    if (self != NULL && parser_object_begin(self, args, kwargs) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void parser_object_dealloc(ParserObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    message_free(&self->message);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *parser_object_restart(ParserObject *self, PyObject *args, PyObject *kwargs)
{
    if (parser_object_begin(self, args, kwargs) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *parser_object_feed(ParserObject *self, PyObject *data)
{
    Py_buffer view;
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    self->verdict = parser_feed(&self->parser, view.buf, (size_t)view.len);
    PyBuffer_Release(&view);
    return PyLong_FromLong(self->verdict);
}

static PyObject *parser_object_end(ParserObject *self, PyObject *Py_UNUSED(ignored))
{
    self->verdict = parser_end(&self->parser);
    return PyLong_FromLong(self->verdict);
}

static PyObject *parser_object_answer(ParserObject *self, void *Py_UNUSED(closure))
{
    const Message *message = &self->message;
    if (self->verdict != PARSE_DONE)
        Py_RETURN_NONE;
    PyObject *headers = PyList_New((Py_ssize_t)message->header_count);
    if (headers == NULL)
        return NULL;
    for (size_t i = 0; i < message->header_count; i++) {
        const Header *header = &message->headers[i];
        PyObject *pair =
            Py_BuildValue("(y#y#)", message->head + header->name, (Py_ssize_t)header->name_length,
                          message->head + header->value, (Py_ssize_t)header->value_length);
        if (pair == NULL) {
            Py_DECREF(headers);
            return NULL;
        }
        PyList_SET_ITEM(headers, (Py_ssize_t)i, pair);
    }
    /* y# makes None of a null pointer, and an empty body has never had a buffer. */
    return Py_BuildValue("(iNy#O)", message->status, headers, message->body_length ? message->body : "",
                         (Py_ssize_t)message->body_length, message->keep_alive ? Py_True : Py_False);
}

static PyObject *parser_object_marks(ParserObject *self, void *Py_UNUSED(closure))
{
    const Message *message = &self->message;
    return Py_BuildValue("(OOO)", message->has_set_cookie ? Py_True : Py_False,
                         message->has_location ? Py_True : Py_False,
                         message->has_content_encoding ? Py_True : Py_False);
}

static PyObject *parser_object_error(ParserObject *self, void *Py_UNUSED(closure))
{
    char text[160];
    const char *kind;
    switch (self->parser.failure) {
    case FAILED_PROTOCOL:
        kind = "protocol";
        break;
    case FAILED_RESET:
        kind = "reset";
        break;
    case FAILED_MEMORY:
        return PyErr_NoMemory();
    case FAILED_NOT:
    default:
        Py_RETURN_NONE;
    }
    size_t length = parser_explain(&self->parser, text, sizeof text);
    return Py_BuildValue("(ss#)", kind, text, (Py_ssize_t)length);
}

static PyObject *parser_object_capacity(ParserObject *self, void *Py_UNUSED(closure))
{
    const Message *message = &self->message;
    size_t bytes = message->head_capacity + message->body_capacity + message->header_capacity * sizeof(Header);
    return PyLong_FromSize_t(bytes);
}

static PyMethodDef methods[] = {
    {"begin", (PyCFunction)(void (*)(void))parser_object_restart, METH_VARARGS | METH_KEYWORDS,
     "Expect another answer, with the same buffers."},
    {"feed", (PyCFunction)parser_object_feed, METH_O, "0: more is needed. 1: the answer is complete. -1: see `error`."},
    {"end", (PyCFunction)parser_object_end, METH_NOARGS, "The server has closed its side; returns as `feed` does."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
    {"answer", (getter)parser_object_answer, NULL, "(status, headers, body, keep-alive), once it is complete", NULL},
    {"marks", (getter)parser_object_marks, NULL, "(set-cookie, location, content-encoding) are there", NULL},
    {"error", (getter)parser_object_error, NULL, "(kind, sentence), or None", NULL},
    {"capacity", (getter)parser_object_capacity, NULL, "bytes of the buffers it holds", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "The native engine's parser on its own."},
    {Py_tp_new, parser_object_new},
    {Py_tp_dealloc, parser_object_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, attributes},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "talka._native.Parser",
    .basicsize = sizeof(ParserObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};

int parser_add_types(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &spec, NULL);
    if (type == NULL)
        return -1;
    int result = PyModule_AddObjectRef(module, "Parser", type);
    Py_DECREF(type);
    return result;
}
