#include "client.h"

#include <structmember.h>

/* What is hot comes back at once, so full caches just start afresh. The limits are those of clients/http.py. */
#define REQUESTS_MOST 1024
#define KEPT_BYTES_MOST (64u * 1024 * 1024)
#define VARIANTS_MOST 32

static const char *const METHOD_TEXTS[7] = {"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"};
static const char *const ARGUMENT_TEXTS[ARGUMENT_COUNT] = {"headers", "params", "cookies", "auth",
                                                           "data",    "json",   "timeout", "redirects", "name"};

/* Interned texts, set once by client_ready_types. */
static PyObject *method_names[7];
static PyObject *argument_names[ARGUMENT_COUNT];
static PyObject *name_url;
static PyObject *name_made;

PyObject *client_method_name(int method)
{
    return method_names[method];
}

static int is_equal(Request *request, PyObject **arguments)
{
    for (int index = 0; index < 6; index++) {
        if (request->arguments[index] != arguments[index]) {
            return 0;
        }
    }
    return 1;
}

static int may_be_kept(PyObject **arguments)
{
    for (int index = 0; index < 6; index++) {
        if (arguments[index] != NULL) {
            int is_prepared = PyObject_IsInstance(arguments[index], known.prepared);
            if (is_prepared <= 0) {
                return is_prepared;
            }
        }
    }
    return 1;
}

/* Remember the request. It holds its arguments, so that no other object gets their address. */
static int keep(Engine *engine, int method, PyObject *url, PyObject **arguments, Request *request)
{
    PyObject *kept = engine->requests[method];
    if (kept == NULL) {
        return 0; /* closed */
    }
    engine->kept_bytes += (size_t)PyBytes_GET_SIZE(request->payload);
    if (engine->kept_bytes > KEPT_BYTES_MOST) {
        for (int other = 0; other < 7; other++) {
            PyDict_Clear(engine->requests[other]);
        }
        engine->kept_bytes = (size_t)PyBytes_GET_SIZE(request->payload);
    }
    if (PyDict_GET_SIZE(kept) >= REQUESTS_MOST) {
        PyDict_Clear(kept);
    }
    for (int index = 0; index < 6; index++) {
        Py_XINCREF(arguments[index]);
        Py_XSETREF(request->arguments[index], arguments[index]);
    }
    PyObject *first = PyDict_GetItemWithError(kept, url);
    if (first == NULL && PyErr_Occurred()) {
        return -1;
    }
    int variants = 0;
    for (Request *other = (Request *)first; other != NULL; other = other->next) {
        variants++;
    }
    if (variants < VARIANTS_MOST) {
        Py_XINCREF(first);
        Py_XSETREF(request->next, (Request *)first);
    }
    return PyDict_SetItem(kept, url, (PyObject *)request);
}

Request *client_request(Client *client, int method, PyObject *url, PyObject **arguments)
{
    Engine *engine = client->engine;
    int has_jar = client->jar != Py_None;
    if (!has_jar && PyUnicode_Check(url) && engine->requests[method] != NULL) {
        PyObject *first = PyDict_GetItemWithError(engine->requests[method], url);
        if (first == NULL && PyErr_Occurred()) {
            return NULL;
        }
        for (Request *request = (Request *)first; request != NULL; request = request->next) {
            if (is_equal(request, arguments)) {
                return (Request *)Py_NewRef((PyObject *)request);
            }
        }
    }
    PyObject *given[9] = {(PyObject *)client, method_names[method], url};
    for (int index = 0; index < 6; index++) {
        given[3 + index] = arguments[index] == NULL ? Py_None : arguments[index];
    }
    PyObject *made = PyObject_VectorcallMethod(name_made, given, 9, NULL);
    if (made == NULL) {
        return NULL;
    }
    Request *request = request_from(made);
    Py_DECREF(made);
    if (request == NULL || has_jar || !PyUnicode_Check(url)) {
        return request;
    }
    int kept = may_be_kept(arguments);
    if (kept < 0 || (kept > 0 && keep(engine, method, url, arguments, request) < 0)) {
        Py_CLEAR(request);
    }
    return request;
}

Connection *client_idle(Client *client, Request *request)
{
    if (client->origin == request->origin && client->pool->idle_count > 0) {
        return pool_take(client->pool);
    }
    PyObject *found = PyDict_GetItemWithError(client->pools, request->origin);
    if (found == NULL || !PyObject_TypeCheck(found, &PoolType)) {
        PyErr_Clear();
        return NULL;
    }
    Py_XSETREF(client->origin, Py_NewRef(request->origin));
    Py_INCREF(found);
    Py_XSETREF(client->pool, (Pool *)found);
    return pool_take(client->pool);
}

/* Calls */

static int argument_named(PyObject *name)
{
    for (int index = 0; index < ARGUMENT_COUNT; index++) {
        if (name == argument_names[index]) {
            return index;
        }
    }
    for (int index = 0; index < ARGUMENT_COUNT; index++) {
        if (PyUnicode_CompareWithASCIIString(name, ARGUMENT_TEXTS[index]) == 0) {
            return index;
        }
    }
    return -1;
}

static PyObject *client_call(Client *client, int method, PyObject *const *given, Py_ssize_t count, PyObject *names)
{
    PyObject *url = count > 0 ? given[0] : NULL;
    PyObject *arguments[ARGUMENT_COUNT] = {NULL};
    if (count > 1) {
        return PyErr_Format(PyExc_TypeError, "a call takes the URL by position and all else by name, not %zd positions",
                            count);
    }
    for (Py_ssize_t index = 0; names != NULL && index < PyTuple_GET_SIZE(names); index++) {
        PyObject *name = PyTuple_GET_ITEM(names, index);
        PyObject *value = given[count + index];
        int place = argument_named(name);
        if (place >= 0) {
            arguments[place] = value == Py_None ? NULL : value;
        }
        else if (url == NULL && PyUnicode_CompareWithASCIIString(name, "url") == 0) {
            url = value;
        }
        else {
            return PyErr_Format(PyExc_TypeError, "a call got an unexpected keyword argument '%U'", name);
        }
    }
    if (url == NULL) {
        PyErr_SetString(PyExc_TypeError, "a call needs a URL");
        return NULL;
    }
    return (PyObject *)call_new(client, method, url, names == NULL ? NULL : arguments);
}

#define METHOD(name, number)                                                                              \
    static PyObject *client_##name(Client *client, PyObject *const *given, Py_ssize_t count, PyObject *names) \
    {                                                                                                     \
        return client_call(client, number, given, count, names);                                          \
    }

METHOD(get, 0)
METHOD(post, 1)
METHOD(put, 2)
METHOD(patch, 3)
METHOD(delete, 4)
METHOD(head, 5)
METHOD(options, 6)

#define METHOD_ENTRY(name) \
    {#name, (PyCFunction)(void (*)(void))client_##name, METH_FASTCALL | METH_KEYWORDS, NULL}

static PyMethodDef client_methods[] = {
    METHOD_ENTRY(get),    METHOD_ENTRY(post), METHOD_ENTRY(put),     METHOD_ENTRY(patch),
    METHOD_ENTRY(delete), METHOD_ENTRY(head), METHOD_ENTRY(options), {NULL, NULL, 0, NULL},
};

/* The type */

static PyObject *client_new(PyTypeObject *type, PyObject *arguments, PyObject *named)
{
    static char *names[] = {"engine", NULL};
    PyObject *owner;
    if (!PyArg_ParseTupleAndKeywords(arguments, named, "O:Client", names, &owner)) {
        return NULL;
    }
    Engine *engine = engine_from(owner);
    if (engine == NULL) {
        return NULL;
    }
    Client *client = (Client *)type->tp_alloc(type, 0);
    if (client == NULL) {
        return NULL;
    }
    client->engine = (Engine *)Py_NewRef((PyObject *)engine);
    client->owner = Py_NewRef(owner);
    client->jar = Py_NewRef(Py_None);
    client->pools = PyDict_New();
    if (client->pools == NULL) {
        Py_CLEAR(client);
    }
    return (PyObject *)client;
}

static int client_traverse(Client *client, visitproc visit, void *arg)
{
    Py_VISIT(client->engine);
    Py_VISIT(client->owner);
    Py_VISIT(client->pools);
    Py_VISIT(client->jar);
    Py_VISIT(client->pool);
    return 0;
}

static int client_clear(Client *client)
{
    /* What a call in progress may still look at stays whole. */
    PyObject *jar = client->jar;
    client->jar = Py_NewRef(Py_None);
    Py_XDECREF(jar);
    if (client->pools != NULL) {
        PyDict_Clear(client->pools);
    }
    Py_CLEAR(client->owner);
    return 0;
}

static void client_dealloc(Client *client)
{
    PyObject_GC_UnTrack(client);
    Py_CLEAR(client->owner);
    Py_CLEAR(client->pools);
    Py_CLEAR(client->jar);
    Py_CLEAR(client->origin);
    Py_CLEAR(client->pool);
    Py_CLEAR(client->engine);
    Py_TYPE(client)->tp_free((PyObject *)client);
}

static PyMemberDef client_members[] = {
    {"_engine", T_OBJECT, offsetof(Client, owner), READONLY, NULL},
    {"_pools", T_OBJECT, offsetof(Client, pools), READONLY, NULL},
    {"_jar", T_OBJECT, offsetof(Client, jar), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject ClientType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "talka._native.Client",
    .tp_basicsize = sizeof(Client),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .tp_new = client_new,
    .tp_dealloc = (destructor)client_dealloc,
    .tp_traverse = (traverseproc)client_traverse,
    .tp_clear = (inquiry)client_clear,
    .tp_methods = client_methods,
    .tp_members = client_members,
};

int client_ready_types(PyObject *module)
{
    for (int index = 0; index < 7; index++) {
        method_names[index] = PyUnicode_InternFromString(METHOD_TEXTS[index]);
        if (method_names[index] == NULL) {
            return -1;
        }
    }
    for (int index = 0; index < ARGUMENT_COUNT; index++) {
        argument_names[index] = PyUnicode_InternFromString(ARGUMENT_TEXTS[index]);
        if (argument_names[index] == NULL) {
            return -1;
        }
    }
    name_url = PyUnicode_InternFromString("url");
    name_made = PyUnicode_InternFromString("_made");
    if (name_url == NULL || name_made == NULL) {
        return -1;
    }
    return PyModule_AddType(module, &ClientType);
}
