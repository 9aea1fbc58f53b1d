#include "connection.h"

#include <errno.h>
#include <string.h>
#include <structmember.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "response.h"

/* Pools */

Connection *pool_take(Pool *pool)
{
    if (pool->idle_count == 0) {
        return NULL;
    }
    Connection *connection = (Connection *)((char *)pool->idle.before - offsetof(Connection, idle_link));
    link_remove(&connection->idle_link);
    pool->idle_count--;
    return (Connection *)Py_NewRef((PyObject *)connection);
}

void pool_put(Pool *pool, Connection *connection)
{
    link_append(&pool->idle, &connection->idle_link);
    pool->idle_count++;
}

static PyObject *pool_new(PyTypeObject *type, PyObject *arguments, PyObject *named)
{
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(arguments, named, ":Pool", names)) {
        return NULL;
    }
    Pool *pool = (Pool *)type->tp_alloc(type, 0);
    if (pool != NULL) {
        link_init(&pool->open);
        link_init(&pool->idle);
    }
    return (PyObject *)pool;
}

static PyObject *listed(Link *head, size_t offset)
{
    PyObject *list = PyList_New(0);
    for (Link *link = head->after; list != NULL && link != head; link = link->after) {
        if (PyList_Append(list, (PyObject *)((char *)link - offset)) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

static PyObject *pool_get_open(Pool *pool, void *Py_UNUSED(closure))
{
    return listed(&pool->open, offsetof(Connection, open_link));
}

static PyObject *pool_get_idle(Pool *pool, void *Py_UNUSED(closure))
{
    return listed(&pool->idle, offsetof(Connection, idle_link));
}

static PyObject *pool_put_method(Pool *pool, PyObject *object)
{
    Connection *connection = (Connection *)object;
    if (!PyObject_TypeCheck(object, &ConnectionType) || connection->pool != pool) {
        PyErr_SetString(PyExc_TypeError, "the connection is not of this pool");
        return NULL;
    }
    if (connection->is_open && connection->call == NULL && link_is_alone(&connection->idle_link)) {
        pool_put(pool, connection);
    }
    Py_RETURN_NONE;
}

static PyMethodDef pool_methods[] = {
    {"put", (PyCFunction)pool_put_method, METH_O, "It is idle: the next call may take it."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef pool_members[] = {
    {"opening", T_INT, offsetof(Pool, opening), 0, NULL},
    {"lost", T_INT, offsetof(Pool, lost), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef pool_getset[] = {
    {"open", (getter)pool_get_open, NULL, "Idle and busy ones: a copy.", NULL},
    {"idle", (getter)pool_get_idle, NULL, "A copy.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject PoolType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "talka._native.Pool",
    .tp_basicsize = sizeof(Pool),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = pool_new,
    .tp_methods = pool_methods,
    .tp_members = pool_members,
    .tp_getset = pool_getset,
};

/* Requests */

static PyObject *typed_attribute(PyObject *object, const char *name, PyTypeObject *type)
{
    PyObject *value = PyObject_GetAttrString(object, name);
    if (value != NULL && !PyObject_TypeCheck(value, type)) {
        PyErr_Format(PyExc_TypeError, "a request's %s is a %s", name, type->tp_name);
        Py_CLEAR(value);
    }
    return value;
}

static int truth_of(PyObject *object, const char *name)
{
    PyObject *value = PyObject_GetAttrString(object, name);
    if (value == NULL) {
        return -1;
    }
    int truth = PyObject_IsTrue(value);
    Py_DECREF(value);
    return truth;
}

Request *request_from(PyObject *source)
{
    if (PyObject_TypeCheck(source, &RequestType)) {
        return (Request *)Py_NewRef(source);
    }
    Request *request = PyObject_GC_New(Request, &RequestType);
    if (request == NULL) {
        return NULL;
    }
    memset((char *)request + sizeof(PyObject), 0, sizeof *request - sizeof(PyObject));
    request->source = Py_NewRef(source);
    request->method = typed_attribute(source, "method", &PyUnicode_Type);
    request->url = request->method == NULL ? NULL : typed_attribute(source, "url", &PyUnicode_Type);
    request->payload = request->url == NULL ? NULL : typed_attribute(source, "payload", &PyBytes_Type);
    request->origin = request->payload == NULL ? NULL : typed_attribute(request->url, "origin", &PyUnicode_Type);
    if (request->origin == NULL) {
        Py_DECREF(request);
        return NULL;
    }
    if (PyUnicode_CheckExact(request->origin)) {
        PyUnicode_InternInPlace(&request->origin);
    }
    request->is_head = truth_of(source, "is_head");
    request->is_last = truth_of(source, "is_last");
    if (request->is_head < 0 || request->is_last < 0) {
        Py_DECREF(request);
        return NULL;
    }
    PyObject_GC_Track(request);
    return request;
}

static int request_traverse(Request *request, visitproc visit, void *arg)
{
    Py_VISIT(request->source);
    Py_VISIT(request->url);
    for (int index = 0; index < 6; index++) {
        Py_VISIT(request->arguments[index]);
    }
    Py_VISIT(request->next);
    return 0;
}

static int request_clear(Request *request)
{
    Py_CLEAR(request->source);
    for (int index = 0; index < 6; index++) {
        Py_CLEAR(request->arguments[index]);
    }
    Py_CLEAR(request->next);
    return 0;
}

static void request_dealloc(Request *request)
{
    if (PyObject_GC_IsTracked((PyObject *)request)) {
        PyObject_GC_UnTrack(request);
    }
    request_clear(request); /* As deep as a URL has variants, which is bounded. */
    Py_CLEAR(request->method);
    Py_CLEAR(request->url);
    Py_CLEAR(request->payload);
    Py_CLEAR(request->origin);
    PyObject_GC_Del(request);
}

PyTypeObject RequestType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "talka._native.Request",
    .tp_basicsize = sizeof(Request),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)request_dealloc,
    .tp_traverse = (traverseproc)request_traverse,
    .tp_clear = (inquiry)request_clear,
};

/* Ends of a connection */

static void leave_pool(Connection *connection)
{
    Pool *pool = connection->pool;
    if (!link_is_alone(&connection->open_link)) {
        link_remove(&connection->open_link);
        pool->open_count--;
        pool->lost++;
    }
    if (!link_is_alone(&connection->idle_link)) {
        link_remove(&connection->idle_link);
        pool->idle_count--;
    }
}

void connection_drop(Connection *connection)
{
    connection->is_open = 0;
    leave_pool(connection);
    if (connection->fd >= 0) {
        close(connection->fd); /* Leaves the epoll set with it. */
        connection->fd = -1;
        engine_remove(connection->engine, connection);
    }
    Py_CLEAR(connection->unsent);
}

/* Takes the exchange off the connection: what is done with it is the caller's affair. */
static Call *take_exchange(Connection *connection)
{
    Call *call = connection->call;
    connection->call = NULL;
    connection->due_ns = ENGINE_NEVER;
    Py_CLEAR(connection->response);
    return call;
}

void connection_abandon(Connection *connection)
{
    take_exchange(connection);
    Py_CLEAR(connection->request);
    connection_drop(connection);
}

void connection_close(Connection *connection)
{
    Call *call = connection->call;
    if (call != NULL) {
        Py_INCREF(call);
        connection_abandon(connection);
        connection->engine->counts.interrupted++;
        connection->engine->pulse++;
        call_cancelled(call);
        Py_DECREF(call);
        return;
    }
    if (connection->tls != NULL && connection->fd >= 0) {
        PyObject *farewell = tls_farewell(connection->tls);
        if (farewell != NULL) { /* Nobody waits for whether it arrives. */
            (void)!send(connection->fd, PyBytes_AS_STRING(farewell), (size_t)PyBytes_GET_SIZE(farewell),
                        MSG_NOSIGNAL | MSG_DONTWAIT);
            Py_DECREF(farewell);
        }
    }
    connection_drop(connection);
}

/* Ends of an exchange */

static void fail(Connection *connection, const char *kind, PyObject *reason)
{
    if (reason == NULL) { /* There was no memory for a sentence. */
        PyErr_Clear();
        reason = PyUnicode_FromString("no memory is left");
    }
    Engine *engine = connection->engine;
    Call *call = take_exchange(connection);
    Request *request = connection->request;
    connection->request = NULL;
    engine->pulse++;
    connection_drop(connection);
    if (call != NULL) {
        Py_INCREF(call);
        call_failed(call, request, kind, reason);
        Py_DECREF(call);
    }
    Py_XDECREF(request);
    Py_XDECREF(reason);
}

static void fail_with(Connection *connection, const char *kind, const char *sentence)
{
    fail(connection, kind, PyUnicode_FromString(sentence));
}

static void fail_errno(Connection *connection, const char *before, int number)
{
    fail(connection, "reset", PyUnicode_FromFormat("%s: %s", before, strerror(number)));
}

/* With the Python exception that is set. */
static void fail_error(Connection *connection, const char *before)
{
    PyObject *error = taken_exception();
    PyObject *told = error == NULL ? NULL : PyObject_GetAttrString(error, "strerror");
    if (told == NULL || told == Py_None) {
        PyErr_Clear();
        Py_XDECREF(told);
        told = error == NULL ? PyUnicode_FromString("closed") : Py_NewRef(error);
    }
    fail(connection, "reset", told == NULL ? NULL : PyUnicode_FromFormat("%s: %S", before, told));
    Py_XDECREF(told);
    Py_XDECREF(error);
}

static void fail_parser(Connection *connection)
{
    char sentence[512];
    parser_explain(&connection->parser, sentence, sizeof sentence);
    fail_with(connection, connection->parser.failure == FAILED_RESET ? "reset" : "protocol", sentence);
}

static void finish(Connection *connection, int64_t now_ns)
{
    Engine *engine = connection->engine;
    Call *call = connection->call;
    PyObject *response = connection->response;
    Request *request = connection->request;
    ResponseData *data = response_data(response);
    data->status = data->message.status;
    data->accepted = data->status < 400;
    data->intended_ns = 0;
    data->sent_ns = connection->sent_ns;
    data->first_byte_ns = connection->first_byte_ns;
    data->done_ns = now_ns;
    data->connect_ns = connection->connect_ns;
    data->tls_ns = connection->tls_ns;
    connection->connect_ns = connection->tls_ns = 0;
    Py_XSETREF(data->method, Py_NewRef(request->method));
    Py_XSETREF(data->url, Py_NewRef(request->url));
    connection->call = NULL;
    connection->response = NULL;
    connection->request = NULL;
    connection->due_ns = ENGINE_NEVER;
    engine->pulse++;
    /* Answered before the request was through: the rest may never be read. */
    int may_reuse = data->message.keep_alive && !request->is_last && connection->is_open && connection->unsent == NULL;
    Py_DECREF(request);
    if (!may_reuse) {
        connection_drop(connection);
    }
    Py_INCREF(call);
    call_answered(call, connection, response, may_reuse);
    Py_DECREF(call);
    Py_DECREF(response);
}

/* Writing */

static void want_to_write(Connection *connection, int wants)
{
    Engine *engine = connection->engine;
    struct epoll_event event = {
        .events = wants ? EPOLLIN | EPOLLOUT : EPOLLIN,
        .data.u64 = (uint64_t)engine->ages[connection->slot] << 32 | connection->slot,
    };
    epoll_ctl(engine->epoll_fd, EPOLL_CTL_MOD, connection->fd, &event);
}

/* Keeps what the socket does not take, behind what it did not take before: a stream may lose none of its bytes. */
static int keep_unsent(Connection *connection, PyObject *bytes, size_t from)
{
    if (connection->unsent == NULL) {
        connection->unsent = Py_NewRef(bytes);
        connection->unsent_from = from;
        want_to_write(connection, 1);
        return 0;
    }
    size_t before = (size_t)PyBytes_GET_SIZE(connection->unsent) - connection->unsent_from;
    size_t length = (size_t)PyBytes_GET_SIZE(bytes);
    PyObject *both = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(before + length));
    if (both == NULL) {
        PyErr_Clear();
        return ENOMEM;
    }
    memcpy(PyBytes_AS_STRING(both), PyBytes_AS_STRING(connection->unsent) + connection->unsent_from, before);
    memcpy(PyBytes_AS_STRING(both) + before, PyBytes_AS_STRING(bytes), length);
    Py_SETREF(connection->unsent, both);
    connection->unsent_from = 0;
    return 0;
}

/* Sends as much as goes, after what is still unsent. Returns an errno, or 0. */
static int send_bytes(Connection *connection, PyObject *bytes)
{
    if (connection->unsent != NULL) {
        return keep_unsent(connection, bytes, 0);
    }
    size_t length = (size_t)PyBytes_GET_SIZE(bytes);
    ssize_t sent = send(connection->fd, PyBytes_AS_STRING(bytes), length, MSG_NOSIGNAL);
    if (sent < 0) {
        if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
            return errno;
        }
        sent = 0;
    }
    return (size_t)sent < length ? keep_unsent(connection, bytes, (size_t)sent) : 0;
}

static void send_rest(Connection *connection)
{
    const char *data = PyBytes_AS_STRING(connection->unsent) + connection->unsent_from;
    size_t length = (size_t)PyBytes_GET_SIZE(connection->unsent) - connection->unsent_from;
    ssize_t sent = send(connection->fd, data, length, MSG_NOSIGNAL);
    if (sent < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) {
            return;
        }
        int number = errno;
        if (connection->call == NULL) {
            connection_drop(connection);
        }
        else {
            fail_errno(connection, "the connection broke before the answer was complete", number);
        }
        return;
    }
    connection->unsent_from += (size_t)sent;
    if ((size_t)sent == length) {
        Py_CLEAR(connection->unsent);
        want_to_write(connection, 0);
    }
}

int connection_send(Connection *connection, Call *call, Request *request, int64_t due_ns, int64_t total_due_ns)
{
    Engine *engine = connection->engine;
    if (connection->call != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the connection is busy");
        return -1;
    }
    if (connection->fd < 0) { /* The server was faster: it closed what had just been opened. */
        connection->call = call;
        connection->request = (Request *)Py_NewRef((PyObject *)request);
        fail_with(connection, "reset", "the server closed the connection without an answer");
        return 0;
    }
    PyObject *response = response_new();
    if (response == NULL) {
        return -1;
    }
    if (!link_is_alone(&connection->idle_link)) { /* Handed over by somebody who did not take it out. */
        link_remove(&connection->idle_link);
        connection->pool->idle_count--;
    }
    connection->response = response;
    connection->call = call;
    connection->request = (Request *)Py_NewRef((PyObject *)request);
    connection->first_byte_ns = 0;
    connection->total_due_ns = total_due_ns;
    connection->due_ns = due_ns;
    if (due_ns < connection->look_ns) {
        engine_watch(engine, connection);
    }
    parser_begin(&connection->parser, &response_data(response)->message, request->is_head, engine->max_body_bytes);
    engine->counts.bytes_sent += PyBytes_GET_SIZE(request->payload);
    connection->sent_ns = engine_now();
    int number = 0;
    if (connection->tls == NULL) {
        number = send_bytes(connection, request->payload);
    }
    else {
        PyObject *encrypted = tls_write(connection->tls, request->payload);
        if (encrypted == NULL) {
            fail_error(connection, "the connection broke while the request was written");
            return 0;
        }
        number = send_bytes(connection, encrypted);
        Py_DECREF(encrypted);
    }
    if (number != 0) {
        fail_errno(connection, "the connection broke while the request was written", number);
    }
    return 0;
}

/* Reading */

static void take_bytes(Connection *connection, const char *data, size_t length, int64_t now_ns)
{
    connection->engine->counts.bytes_received += (int64_t)length;
    if (connection->call == NULL) {
        connection_drop(connection); /* Nobody asked for these bytes. */
        return;
    }
    if (connection->first_byte_ns == 0) {
        connection->first_byte_ns = now_ns;
        connection->due_ns = connection->total_due_ns;
    }
    int verdict = parser_feed(&connection->parser, data, length);
    if (verdict == PARSE_DONE) {
        finish(connection, now_ns);
    }
    else if (verdict == PARSE_ERROR) {
        fail_parser(connection);
    }
}

static void take_end(Connection *connection, int64_t now_ns)
{
    connection->is_open = 0;
    leave_pool(connection);
    if (connection->call == NULL) {
        connection_drop(connection);
    }
    else if (parser_end(&connection->parser) == PARSE_DONE) {
        finish(connection, now_ns);
    }
    else {
        fail_parser(connection);
    }
}

static void take_encrypted(Connection *connection, size_t length, int64_t now_ns)
{
    static const char broke[] = "the connection broke before the answer was complete";
    Engine *engine = connection->engine;
    Tls *tls = connection->tls;
    int ended = 0;
    Py_ssize_t count = tls_receive(tls, engine->buffer, length);
    if (count == 0) {
        count = tls_read(tls, engine->buffer, ENGINE_BUFFER_BYTES, &ended);
    }
    if (count < 0) {
        if (connection->call == NULL) {
            PyErr_Clear();
            connection_drop(connection);
        }
        else {
            fail_error(connection, broke);
        }
        return;
    }
    PyObject *pending = tls_pending(tls);
    if (pending != NULL) {
        int number = send_bytes(connection, pending);
        Py_DECREF(pending);
        if (number != 0 && connection->call == NULL) {
            connection_drop(connection);
            return;
        }
    }
    if (ended) {
        connection->is_open = 0; /* Known before the answer is handed over: no further request may go this way. */
    }
    if (count > 0) {
        take_bytes(connection, engine->buffer, (size_t)count, now_ns);
    }
    if (connection->fd < 0) {
        return;
    }
    if (ended) {
        take_end(connection, now_ns);
    }
    else if (length == 0) { /* The wire ended, and TLS did not say so: it may have been cut. */
        if (connection->call == NULL) {
            connection_drop(connection);
        }
        else {
            fail_with(connection, "reset", "the connection broke before the answer was complete: closed");
        }
    }
}

void connection_ready(Connection *connection, uint32_t events)
{
    if (events & EPOLLOUT && connection->unsent != NULL) {
        send_rest(connection);
    }
    if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR)) || connection->fd < 0) {
        return;
    }
    Engine *engine = connection->engine;
    size_t room = connection->tls == NULL ? ENGINE_BUFFER_BYTES : ENGINE_BUFFER_BYTES - TLS_RECORD_BYTES;
    ssize_t count = recv(connection->fd, engine->buffer, room, 0);
    int number = errno;
    int64_t now_ns = engine_now();
    if (count < 0) {
        if (number == EAGAIN || number == EWOULDBLOCK || number == EINTR) {
            return;
        }
        if (connection->call == NULL) {
            connection_drop(connection);
        }
        else {
            fail_errno(connection, "the connection broke before the answer was complete", number);
        }
    }
    else if (connection->tls != NULL) {
        take_encrypted(connection, (size_t)count, now_ns);
    }
    else if (count > 0) {
        take_bytes(connection, engine->buffer, (size_t)count, now_ns);
    }
    else {
        take_end(connection, now_ns);
    }
}

void connection_late(Connection *connection, int64_t now_ns)
{
    if (connection->call == NULL) {
        return;
    }
    char sentence[128];
    double waited_s = (double)(now_ns - connection->sent_ns) / 1e9;
    PyOS_snprintf(sentence, sizeof sentence,
                  connection->first_byte_ns ? "the answer was not complete after %.2f s" : "no answer after %.2f s",
                  waited_s);
    fail_with(connection, "timeout", sentence);
}

/* The type */

static PyObject *connection_new(PyTypeObject *type, PyObject *arguments, PyObject *named)
{
    static char *names[] = {"engine", "pool", "fd", "tls", NULL};
    Engine *engine;
    Pool *pool;
    int fd;
    PyObject *tls = Py_None;
    if (!PyArg_ParseTupleAndKeywords(arguments, named, "O!O!i|O:Connection", names, &EngineType, &engine, &PoolType,
                                     &pool, &fd, &tls)) {
        return NULL;
    }
    Connection *connection = (Connection *)type->tp_alloc(type, 0);
    if (connection == NULL) {
        return NULL;
    }
    connection->engine = (Engine *)Py_NewRef((PyObject *)engine);
    connection->pool = (Pool *)Py_NewRef((PyObject *)pool);
    connection->fd = -1; /* The caller's until all has gone well. */
    connection->due_ns = connection->look_ns = ENGINE_NEVER;
    link_init(&connection->open_link);
    link_init(&connection->idle_link);
    link_init(&connection->look_link);
    if (tls != Py_None) {
        PyObject *object, *incoming, *outgoing;
        if (!PyArg_ParseTuple(tls, "OOO", &object, &incoming, &outgoing) ||
            (connection->tls = tls_new(object, incoming, outgoing)) == NULL) {
            Py_DECREF(connection);
            return NULL;
        }
    }
    connection->fd = fd;
    if (engine_add(engine, connection) < 0) {
        connection->fd = -1;
        Py_DECREF(connection);
        return NULL;
    }
    connection->is_open = 1;
    link_append(&pool->open, &connection->open_link);
    pool->open_count++;
    engine->counts.connections++;
    if (pool->lost > 0) {
        pool->lost--;
        engine->counts.reconnects++;
    }
    return (PyObject *)connection;
}

static int connection_traverse(Connection *connection, visitproc visit, void *arg)
{
    Py_VISIT(connection->engine);
    Py_VISIT(connection->pool);
    Py_VISIT(connection->request);
    Py_VISIT(connection->response);
    if (connection->tls != NULL) {
        Py_VISIT(connection->tls->object);
        Py_VISIT(connection->tls->incoming);
        Py_VISIT(connection->tls->outgoing);
    }
    return 0;
}

static int connection_clear(Connection *connection)
{
    Py_CLEAR(connection->request);
    Py_CLEAR(connection->response);
    return 0;
}

static void connection_dealloc(Connection *connection)
{
    /* The engine holds what is open, so this one is closed, or was never opened. */
    PyObject_GC_UnTrack(connection);
    connection_clear(connection);
    if (connection->pool != NULL) {
        leave_pool(connection);
    }
    link_remove(&connection->look_link);
    Py_CLEAR(connection->unsent);
    tls_free(connection->tls);
    Py_CLEAR(connection->pool);
    Py_CLEAR(connection->engine);
    Py_TYPE(connection)->tp_free((PyObject *)connection);
}

static PyObject *connection_close_method(Connection *connection, PyObject *Py_UNUSED(ignored))
{
    Py_INCREF(connection);
    connection_close(connection);
    Py_DECREF(connection);
    if (!connection->engine->is_pumping && engine_pour(connection->engine) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *connection_get_is_open(Connection *connection, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(connection->is_open);
}

static PyObject *connection_get_is_busy(Connection *connection, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(connection->call != NULL);
}

static PyObject *connection_fileno(Connection *connection, PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromLong(connection->fd);
}

static PyMethodDef connection_methods[] = {
    {"close", (PyCFunction)connection_close_method, METH_NOARGS, "Let go of it; an exchange under way is cancelled."},
    {"fileno", (PyCFunction)connection_fileno, METH_NOARGS, "Its descriptor, or -1."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef connection_members[] = {
    {"pool", T_OBJECT, offsetof(Connection, pool), READONLY, NULL},
    {"connect_ns", T_LONGLONG, offsetof(Connection, connect_ns), 0, NULL},
    {"tls_ns", T_LONGLONG, offsetof(Connection, tls_ns), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef connection_getset[] = {
    {"is_open", (getter)connection_get_is_open, NULL, "May carry a request, now or after the present one.", NULL},
    {"is_busy", (getter)connection_get_is_busy, NULL, "An exchange is under way.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject ConnectionType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "talka._native.Connection",
    .tp_basicsize = sizeof(Connection),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = connection_new,
    .tp_dealloc = (destructor)connection_dealloc,
    .tp_traverse = (traverseproc)connection_traverse,
    .tp_clear = (inquiry)connection_clear,
    .tp_methods = connection_methods,
    .tp_members = connection_members,
    .tp_getset = connection_getset,
};

int connection_ready_types(PyObject *module)
{
    if (PyType_Ready(&RequestType) < 0 || PyModule_AddType(module, &PoolType) < 0) {
        return -1;
    }
    return PyModule_AddType(module, &ConnectionType);
}
