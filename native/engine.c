#include "engine.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "call.h"
#include "client.h"
#include "connection.h"
#include "pause.h"

/* A pump looks for events so many times before the event loop has its turn, and no longer than this. */
#define ROUNDS_MOST 16
#define PUMP_NS 1000000LL
#define TIMER_TAG UINT64_MAX

/* Exchanges is a msgspec.Struct: its fields are reached by name. */
static const struct {
    const char *name;
    size_t offset;
} COUNTED[] = {
    {"ok", offsetof(Counts, ok)},
    {"failed", offsetof(Counts, failed)},
    {"interrupted", offsetof(Counts, interrupted)},
    {"not_sent", offsetof(Counts, not_sent)},
    {"bytes_sent", offsetof(Counts, bytes_sent)},
    {"bytes_received", offsetof(Counts, bytes_received)},
    {"connections", offsetof(Counts, connections)},
    {"reconnects", offsetof(Counts, reconnects)},
};
#define COUNTED_COUNT (sizeof COUNTED / sizeof COUNTED[0])

/* Their names as interned texts. Set once by engine_ready_types. */
static PyObject *counted_names[COUNTED_COUNT];

/* The timer */

static void arm(Engine *engine)
{
    int64_t at_ns = engine->look_ns < engine->wake_ns ? engine->look_ns : engine->wake_ns;
    if (at_ns >= engine->armed_ns || engine->timer_fd < 0) {
        return; /* It fires early enough, and is set again then. */
    }
    int64_t set_ns = at_ns > 0 ? at_ns : 1; /* 0 would stop the timer. */
    struct itimerspec when = {{0, 0}, {set_ns / 1000000000LL, set_ns % 1000000000LL}};
    timerfd_settime(engine->timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
    engine->armed_ns = at_ns;
}

void engine_wake_at(Engine *engine, int64_t at_ns)
{
    if (at_ns < engine->wake_ns) {
        engine->wake_ns = at_ns;
        if (!engine->is_pumping) { /* A pump arms the timer when it ends. */
            arm(engine);
        }
    }
}

/* Deadlines */

static Link *slot_at(Engine *engine, int64_t at_ns)
{
    return &engine->wheel[(at_ns / WHEEL_SLOT_NS) % WHEEL_SLOTS];
}

void engine_watch(Engine *engine, Connection *connection)
{
    int64_t at_ns = connection->due_ns;
    int64_t last_ns = engine_now() / WHEEL_SLOT_NS * WHEEL_SLOT_NS + (WHEEL_SLOTS - 1) * WHEEL_SLOT_NS;
    int64_t slot_ns = at_ns >= last_ns ? last_ns : (at_ns + WHEEL_SLOT_NS - 1) / WHEEL_SLOT_NS * WHEEL_SLOT_NS;
    if (connection->look_ns <= slot_ns) {
        return;
    }
    link_remove(&connection->look_link);
    link_append(slot_at(engine, slot_ns), &connection->look_link);
    connection->look_ns = slot_ns;
    if (slot_ns < engine->look_ns) {
        engine->look_ns = slot_ns;
        if (!engine->is_pumping) {
            arm(engine);
        }
    }
}

static void look_at_deadlines(Engine *engine, int64_t now_ns)
{
    int64_t from_ns = engine->look_ns;
    if (now_ns - from_ns > WHEEL_SLOTS * WHEEL_SLOT_NS) { /* Nobody pumped for a while: once round is enough. */
        from_ns = (now_ns / WHEEL_SLOT_NS - WHEEL_SLOTS + 1) * WHEEL_SLOT_NS;
    }
    engine->look_ns = ENGINE_NEVER;
    for (int64_t slot_ns = from_ns; slot_ns <= now_ns && !engine->is_closed; slot_ns += WHEEL_SLOT_NS) {
        Link due; /* Taken out first: what is called may put others into this very slot. */
        Link *slot = slot_at(engine, slot_ns);
        if (link_is_alone(slot)) {
            continue;
        }
        due = *slot;
        due.before->after = due.after->before = &due;
        link_init(slot);
        while (!link_is_alone(&due)) {
            Connection *connection = (Connection *)((char *)due.after - offsetof(Connection, look_link));
            link_remove(&connection->look_link);
            connection->look_ns = ENGINE_NEVER;
            if (connection->due_ns <= now_ns) {
                connection->due_ns = ENGINE_NEVER;
                Py_INCREF(connection);
                connection_late(connection, now_ns);
                Py_DECREF(connection);
            }
            else if (connection->due_ns != ENGINE_NEVER) {
                engine_watch(engine, connection);
            }
        }
    }
    int64_t next_ns = (now_ns / WHEEL_SLOT_NS + 1) * WHEEL_SLOT_NS;
    for (int ahead = 0; ahead < WHEEL_SLOTS; ahead++, next_ns += WHEEL_SLOT_NS) {
        if (!link_is_alone(slot_at(engine, next_ns))) {
            if (next_ns < engine->look_ns) {
                engine->look_ns = next_ns;
            }
            break;
        }
    }
}

/* Connections */

static int grow_slots(Engine *engine)
{
    uint32_t count = engine->slot_count ? engine->slot_count * 2 : 64;
    Connection **slots = PyMem_Realloc(engine->slots, count * sizeof *slots);
    if (slots == NULL) {
        return -1;
    }
    engine->slots = slots;
    uint32_t *ages = PyMem_Realloc(engine->ages, count * sizeof *ages);
    if (ages == NULL) {
        return -1;
    }
    engine->ages = ages;
    uint32_t *free_slots = PyMem_Realloc(engine->free_slots, count * sizeof *free_slots);
    if (free_slots == NULL) {
        return -1;
    }
    engine->free_slots = free_slots;
    for (uint32_t slot = count; slot-- > engine->slot_count;) {
        slots[slot] = NULL;
        ages[slot] = 0;
        free_slots[engine->free_count++] = slot;
    }
    engine->slot_count = count;
    return 0;
}

int engine_add(Engine *engine, Connection *connection)
{
    if (engine->is_closed) {
        PyErr_SetString(PyExc_RuntimeError, "the engine is closed");
        return -1;
    }
    if (engine->free_count == 0 && grow_slots(engine) < 0) {
        PyErr_NoMemory();
        return -1;
    }
    uint32_t slot = engine->free_slots[engine->free_count - 1];
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)engine->ages[slot] << 32 | slot};
    if (epoll_ctl(engine->epoll_fd, EPOLL_CTL_ADD, connection->fd, &event) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    engine->free_count--;
    engine->open_count++;
    connection->slot = slot;
    Py_INCREF(connection);
    engine->slots[slot] = connection;
    return 0;
}

void engine_remove(Engine *engine, Connection *connection)
{
    uint32_t slot = connection->slot;
    if (slot >= engine->slot_count || engine->slots[slot] != connection) {
        return;
    }
    engine->slots[slot] = NULL;
    engine->ages[slot] = (engine->ages[slot] + 1) & 0x7fffffff; /* The highest bit is the timer's. */
    engine->free_slots[engine->free_count++] = slot;
    engine->open_count--;
    link_remove(&connection->look_link);
    connection->look_ns = connection->due_ns = ENGINE_NEVER;
    Py_DECREF(connection);
    if (engine->open_count == 0 && engine->owner != NULL) {
        PyObject *error = taken_exception();
        PyObject *result = PyObject_CallMethod(engine->owner, "on_all_gone", NULL);
        if (result == NULL) {
            PyErr_WriteUnraisable(engine->owner);
        }
        Py_XDECREF(result);
        if (error != NULL) {
            raise_again(error);
        }
    }
}

/* Counting */

int engine_pour(Engine *engine)
{
    for (size_t index = 0; index < COUNTED_COUNT; index++) {
        int64_t *count = (int64_t *)((char *)&engine->counts + COUNTED[index].offset);
        if (*count == 0) {
            continue;
        }
        PyObject *before = PyObject_GetAttr(engine->exchanges, counted_names[index]);
        if (before == NULL) {
            return -1;
        }
        long long sum = PyLong_AsLongLong(before);
        Py_DECREF(before);
        if (sum == -1 && PyErr_Occurred()) {
            return -1;
        }
        PyObject *after = PyLong_FromLongLong(sum + *count);
        if (after == NULL) {
            return -1;
        }
        int result = PyObject_SetAttr(engine->exchanges, counted_names[index], after);
        Py_DECREF(after);
        if (result < 0) {
            return -1;
        }
        *(int64_t *)((char *)&engine->total + COUNTED[index].offset) += *count;
        *count = 0;
    }
    return 0;
}

/* Events */

static void pump(Engine *engine)
{
    struct epoll_event events[ENGINE_EVENTS];
    int64_t now_ns = engine->pumped_ns;
    for (int round = 0; round < ROUNDS_MOST && !engine->is_closed; round++) {
        int count = epoll_wait(engine->epoll_fd, events, ENGINE_EVENTS, 0);
        engine->rounds++;
        if (count <= 0) {
            break;
        }
        engine->events += count;
        for (int index = 0; index < count && !engine->is_closed; index++) {
            uint64_t tag = events[index].data.u64;
            if (tag == TIMER_TAG) {
                uint64_t expired;
                if (read(engine->timer_fd, &expired, sizeof expired) > 0) {
                    engine->armed_ns = ENGINE_NEVER;
                }
                continue;
            }
            uint32_t slot = (uint32_t)tag;
            if (slot >= engine->slot_count || engine->slots[slot] == NULL || engine->ages[slot] != tag >> 32) {
                continue; /* It was closed by what came before it in this round. */
            }
            Connection *connection = engine->slots[slot];
            Py_INCREF(connection);
            connection_ready(connection, events[index].events);
            Py_DECREF(connection);
        }
        now_ns = engine_now();
        if (now_ns - engine->pumped_ns > PUMP_NS) {
            break;
        }
    }
    if (!engine->is_closed && now_ns >= engine->look_ns) {
        look_at_deadlines(engine, now_ns);
    }
    if (now_ns >= engine->wake_ns) {
        engine->wake_ns = ENGINE_NEVER; /* Spent: whoever asked for it is called by the hook. */
    }
}

static PyObject *engine_pump(Engine *engine, PyObject *Py_UNUSED(ignored))
{
    if (engine->is_closed || engine->is_pumping) {
        Py_RETURN_NONE;
    }
    Py_INCREF(engine);
    engine->is_pumping = 1;
    engine->pumped_ns = engine_now();
    if (engine->on_pump != NULL) {
        engine->on_pump(engine, engine->on_pump_argument);
    }
    pump(engine);
    if (engine->on_pump != NULL && !engine->is_closed) {
        engine->on_pump(engine, engine->on_pump_argument);
    }
    engine->is_pumping = 0;
    arm(engine);
    int result = engine_pour(engine);
    Py_DECREF(engine);
    if (result < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *engine_pour_method(Engine *engine, PyObject *Py_UNUSED(ignored))
{
    if (engine_pour(engine) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *engine_fileno(Engine *engine, PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromLong(engine->epoll_fd);
}

static PyObject *engine_wake_at_method(Engine *engine, PyObject *at)
{
    long long at_ns = PyLong_AsLongLong(at);
    if (at_ns == -1 && PyErr_Occurred()) {
        return NULL;
    }
    engine_wake_at(engine, at_ns);
    Py_RETURN_NONE;
}

/* Ends */

static void cut_all(Engine *engine)
{
    for (uint32_t slot = 0; slot < engine->slot_count; slot++) {
        Connection *connection = engine->slots[slot];
        if (connection != NULL) {
            Py_INCREF(connection);
            connection_close(connection);
            Py_DECREF(connection);
        }
    }
}

static PyObject *engine_close(Engine *engine, PyObject *Py_UNUSED(ignored))
{
    if (!engine->is_closed) {
        cut_all(engine);
        engine->is_closed = 1;
        close(engine->timer_fd);
        close(engine->epoll_fd);
        engine->timer_fd = engine->epoll_fd = -1;
    }
    if (engine_pour(engine) < 0) {
        return NULL;
    }
    Py_CLEAR(engine->owner);
    Py_CLEAR(engine->loop);
    Py_CLEAR(engine->create_future);
    Py_CLEAR(engine->create_task);
    Py_CLEAR(engine->trace);
    for (int method = 0; method < 7; method++) {
        Py_CLEAR(engine->requests[method]);
    }
    Py_RETURN_NONE;
}

static PyObject *engine_connections(Engine *engine, void *Py_UNUSED(closure))
{
    PyObject *found = PySet_New(NULL);
    for (uint32_t slot = 0; found != NULL && slot < engine->slot_count; slot++) {
        if (engine->slots[slot] != NULL && PySet_Add(found, (PyObject *)engine->slots[slot]) < 0) {
            Py_CLEAR(found);
        }
    }
    return found;
}

static PyObject *engine_get_pulse(Engine *engine, void *Py_UNUSED(closure))
{
    return PyLong_FromLongLong(engine->pulse);
}

static int engine_set_pulse(Engine *engine, PyObject *value, void *Py_UNUSED(closure))
{
    long long pulse = value == NULL ? -1 : PyLong_AsLongLong(value);
    if (pulse == -1) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "pulse is a number");
        }
        return -1;
    }
    engine->pulse = pulse;
    return 0;
}

static PyObject *engine_get_rounds(Engine *engine, void *Py_UNUSED(closure))
{
    return Py_BuildValue("(LL)", (long long)engine->rounds, (long long)engine->events);
}

static PyObject *engine_new(PyTypeObject *type, PyObject *arguments, PyObject *named)
{
    static char *names[] = {"owner", "loop", "exchanges", "limits", "max_body_bytes", "trace", NULL};
    PyObject *owner, *loop, *exchanges, *limits, *trace;
    Py_ssize_t max_body_bytes;
    if (!PyArg_ParseTupleAndKeywords(arguments, named, "OOOOnO:Engine", names, &owner, &loop, &exchanges, &limits,
                                     &max_body_bytes, &trace)) {
        return NULL;
    }
    if (max_body_bytes < 0) {
        PyErr_SetString(PyExc_ValueError, "max_body_bytes is below 0");
        return NULL;
    }
    Engine *engine = (Engine *)type->tp_alloc(type, 0);
    if (engine == NULL) {
        return NULL;
    }
    engine->epoll_fd = engine->timer_fd = -1;
    engine->armed_ns = engine->wake_ns = engine->look_ns = ENGINE_NEVER;
    for (int slot = 0; slot < WHEEL_SLOTS; slot++) {
        link_init(&engine->wheel[slot]);
    }
    engine->max_body_bytes = (size_t)max_body_bytes;
    engine->owner = Py_NewRef(owner);
    engine->loop = Py_NewRef(loop);
    engine->exchanges = Py_NewRef(exchanges);
    engine->limits = Py_NewRef(limits);
    engine->trace = trace == Py_None ? NULL : Py_NewRef(trace);
    engine->marker = PyObject_CallNoArgs((PyObject *)&PyBaseObject_Type);
    engine->create_future = PyObject_GetAttrString(loop, "create_future");
    engine->create_task = PyObject_GetAttrString(loop, "create_task");
    engine->buffer = PyMem_Malloc(ENGINE_BUFFER_BYTES);
    if (engine->marker == NULL || engine->create_future == NULL || engine->create_task == NULL) {
        Py_DECREF(engine);
        return NULL;
    }
    if (engine->buffer == NULL) {
        Py_DECREF(engine);
        return PyErr_NoMemory();
    }
    for (int method = 0; method < 7; method++) {
        engine->requests[method] = PyDict_New();
        if (engine->requests[method] == NULL) {
            Py_DECREF(engine);
            return NULL;
        }
    }
    PyObject *response_ns = PyObject_GetAttrString(limits, "response_ns");
    PyObject *total_ns = PyObject_GetAttrString(limits, "total_ns");
    engine->response_ns = response_ns == NULL ? -1 : PyLong_AsLongLong(response_ns);
    engine->total_ns = total_ns == NULL ? -1 : PyLong_AsLongLong(total_ns);
    Py_XDECREF(response_ns);
    Py_XDECREF(total_ns);
    if (PyErr_Occurred()) {
        Py_DECREF(engine);
        return NULL;
    }
    engine->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    engine->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = TIMER_TAG};
    if (engine->epoll_fd < 0 || engine->timer_fd < 0 ||
        epoll_ctl(engine->epoll_fd, EPOLL_CTL_ADD, engine->timer_fd, &event) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        Py_DECREF(engine);
        return NULL;
    }
    return (PyObject *)engine;
}

static int engine_traverse(Engine *engine, visitproc visit, void *arg)
{
    Py_VISIT(engine->owner);
    Py_VISIT(engine->loop);
    Py_VISIT(engine->create_future);
    Py_VISIT(engine->create_task);
    Py_VISIT(engine->exchanges);
    Py_VISIT(engine->limits);
    Py_VISIT(engine->last_timeout);
    Py_VISIT(engine->last_limits);
    Py_VISIT(engine->trace);
    for (int method = 0; method < 7; method++) {
        Py_VISIT(engine->requests[method]);
    }
    for (uint32_t slot = 0; slot < engine->slot_count; slot++) {
        Py_VISIT(engine->slots[slot]);
    }
    return 0;
}

static int engine_clear(Engine *engine)
{
    Py_CLEAR(engine->owner); /* First: nobody is told of the connections that go now. */
    cut_all(engine);
    engine->is_closed = 1;
    if (engine->timer_fd >= 0) {
        close(engine->timer_fd);
    }
    if (engine->epoll_fd >= 0) {
        close(engine->epoll_fd);
    }
    engine->timer_fd = engine->epoll_fd = -1;
    Py_CLEAR(engine->loop);
    Py_CLEAR(engine->create_future);
    Py_CLEAR(engine->create_task);
    Py_CLEAR(engine->exchanges);
    Py_CLEAR(engine->limits);
    Py_CLEAR(engine->last_timeout);
    Py_CLEAR(engine->last_limits);
    Py_CLEAR(engine->trace);
    for (int method = 0; method < 7; method++) {
        Py_CLEAR(engine->requests[method]);
    }
    return 0;
}

static void engine_dealloc(Engine *engine)
{
    PyObject_GC_UnTrack(engine);
    engine_clear(engine);
    Py_CLEAR(engine->marker);
    PyMem_Free(engine->slots);
    PyMem_Free(engine->ages);
    PyMem_Free(engine->free_slots);
    PyMem_Free(engine->buffer);
    Py_TYPE(engine)->tp_free((PyObject *)engine);
}

Engine *engine_from(PyObject *object)
{
    if (PyObject_TypeCheck(object, &EngineType)) {
        return (Engine *)object;
    }
    PyObject *core = PyObject_GetAttrString(object, "core");
    if (core == NULL) {
        return NULL;
    }
    Py_DECREF(core); /* The object keeps it. */
    if (!PyObject_TypeCheck(core, &EngineType)) {
        PyErr_SetString(PyExc_TypeError, "the engine is not a native one");
        return NULL;
    }
    return (Engine *)core;
}

static PyObject *engine_pause(Engine *engine, PyObject *argument)
{
    long long length_ns = PyLong_AsLongLong(argument);
    if (length_ns == -1 && PyErr_Occurred()) {
        return NULL;
    }
    return pause_new(engine, length_ns);
}

static PyMethodDef engine_methods[] = {
    {"fileno", (PyCFunction)engine_fileno, METH_NOARGS, "The descriptor that becomes readable when a pump is due."},
    {"pump", (PyCFunction)engine_pump, METH_NOARGS, "Handle what has happened."},
    {"pour", (PyCFunction)engine_pour_method, METH_NOARGS, "Bring the Exchanges up to date."},
    {"wake_at", (PyCFunction)engine_wake_at_method, METH_O, "Be pumped at this instant."},
    {"pause", (PyCFunction)engine_pause, METH_O, "What waits for so many nanoseconds when it is awaited."},
    {"close", (PyCFunction)engine_close, METH_NOARGS, "Close every connection and the engine itself."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef engine_getset[] = {
    {"connections", (getter)engine_connections, NULL, "The open ones.", NULL},
    {"pulse", (getter)engine_get_pulse, (setter)engine_set_pulse, "Exchanges that ended.", NULL},
    {"rounds", (getter)engine_get_rounds, NULL, "Looks for events, and events found.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject EngineType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "talka._native.Engine",
    .tp_basicsize = sizeof(Engine),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = engine_new,
    .tp_dealloc = (destructor)engine_dealloc,
    .tp_traverse = (traverseproc)engine_traverse,
    .tp_clear = (inquiry)engine_clear,
    .tp_methods = engine_methods,
    .tp_getset = engine_getset,
};

int engine_ready_types(PyObject *module)
{
    for (size_t index = 0; index < COUNTED_COUNT; index++) {
        counted_names[index] = PyUnicode_InternFromString(COUNTED[index].name);
        if (counted_names[index] == NULL) {
            return -1;
        }
    }
    return PyModule_AddType(module, &EngineType);
}
