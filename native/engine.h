/* The engine: one epoll descriptor inside the event loop, the sockets on it, their deadlines, and one timer.
 *
 * One thread, with the GIL held throughout. Everything here is called from the event loop's thread only.
 */
#ifndef TALKA_ENGINE_H
#define TALKA_ENGINE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

/* Must equal INTERFACE in engine/load/native.py: a binary of another age is not used. */
#define TALKA_INTERFACE 2

#define ENGINE_NEVER INT64_MAX

typedef struct Engine Engine;
typedef struct Stepper Stepper;
typedef struct Connection Connection;

/* What became of the exchanges since the last pouring. The fields are those of stats.tally.Exchanges. */
typedef struct {
    int64_t ok;
    int64_t failed;
    int64_t interrupted;
    int64_t not_sent;
    int64_t bytes_sent;
    int64_t bytes_received;
    int64_t connections;
    int64_t reconnects;
} Counts;

/* A node of an intrusive list. An item that is in no list points to itself. */
typedef struct Link {
    struct Link *before;
    struct Link *after;
} Link;

/* Deadlines are kept in a ring of lists, one for each slot of 10 ms. An item stays in its slot while its owner moves
 * the deadline on, and is put into a later one when its own comes round: an answer in time costs one assignment.
 * What is due beyond the ring waits in its last slot. */
#define WHEEL_SLOTS 1024
#define WHEEL_SLOT_NS 10000000LL

#define ENGINE_EVENTS 256
#define ENGINE_BUFFER_BYTES (256 * 1024)

typedef void (*engine_hook)(Engine *engine, void *argument);

struct Engine {
    PyObject_HEAD
    /* What a driver uses. */
    Stepper *stepping;       /* Set by a driver around each PyIter_Send of a step's coroutine; NULL under a Task. */
    PyObject *marker;        /* What a waiting Call yields to a driver. Anything else is a foreign await. */
    engine_hook on_pump;     /* Called at the start and at the end of each pump; may be NULL. */
    void *on_pump_argument;
    Counts counts;           /* Not yet poured. */
    Counts total;            /* Poured: counts + total is what happened since the start. */
    int64_t pulse;           /* Exchanges that ended. */
    int is_pumping;
    int is_closed;
    int64_t pumped_ns;       /* When the present (or last) pump began. */

    /* The rest is the engine's own. */
    int epoll_fd;
    int timer_fd;
    int64_t armed_ns;        /* What the timer is set to. */
    int64_t wake_ns;         /* Asked for by engine_wake_at. */
    int64_t look_ns;         /* The earliest slot of the wheel that holds anything; may be too early. */
    Link wheel[WHEEL_SLOTS];
    Connection **slots;      /* Open connections by their number; each is a strong reference. */
    uint32_t *ages;          /* How often a number was given away: an event may be older than its connection. */
    uint32_t *free_slots;
    uint32_t slot_count;
    uint32_t free_count;
    uint32_t open_count;
    char *buffer;            /* One receive buffer for all connections. */
    size_t max_body_bytes;
    int64_t response_ns;     /* Of `limits`. */
    int64_t total_ns;
    PyObject *owner;         /* The NativeHTTPEngine of Python; a cycle, cut by close(). */
    PyObject *exchanges;     /* The Exchanges that counts are poured into. */
    PyObject *loop;
    PyObject *create_future; /* Bound methods of the loop. */
    PyObject *create_task;
    PyObject *requests[7];   /* By method: a dict of URL to the first of its Requests. See client.c. */
    size_t kept_bytes;       /* In them. */
    PyObject *limits;        /* The Timeout that holds where a call names none. */
    PyObject *last_timeout;  /* The timeout= seen last, the Timeout it is, and what that means. */
    PyObject *last_limits;
    int64_t last_response_ns;
    int64_t last_total_ns;
    PyObject *trace;         /* A callable, or NULL. */
    int64_t rounds;          /* Looks for events, for tests and tuning. */
    int64_t events;
};

/* What the module takes from Python when it is imported. Set once by module.c, constant from then on. */
typedef struct {
    PyObject *exchange_failed;  /* engine.calls.ExchangeFailed */
    PyObject *current_call;     /* engine.calls.current_call, a context variable */
    PyObject *cancelled_error;  /* asyncio.CancelledError */
    PyObject *sleep;            /* asyncio.sleep */
    PyObject *http_response;    /* work.responses.HTTPResponse */
    PyObject *decode_json;      /* msgspec.json.decode */
    PyObject *prepared;         /* engine.clients.requests.PREPARED, a tuple of types */
    PyObject *want_read;        /* ssl.SSLWantReadError, or NULL until the first TLS connection */
} Known;

extern Known known;

/* Takes the exception that is set, whole, away from the thread: a new reference, or NULL if there is none. */
static inline PyObject *taken_exception(void)
{
#if PY_VERSION_HEX >= 0x030c0000
    return PyErr_GetRaisedException();
#else
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (type == NULL) {
        return NULL;
    }
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != NULL) {
        PyException_SetTraceback(value, traceback);
        Py_DECREF(traceback);
    }
    Py_DECREF(type);
    return value;
#endif
}

/* Raises it again. Takes over the reference. */
static inline void raise_again(PyObject *error)
{
    PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_DECREF(error);
}

static inline void link_init(Link *link)
{
    link->before = link->after = link;
}

static inline int link_is_alone(const Link *link)
{
    return link->after == link;
}

static inline void link_remove(Link *link)
{
    link->before->after = link->after;
    link->after->before = link->before;
    link_init(link);
}

/* Puts it at the end of the list. */
static inline void link_append(Link *head, Link *link)
{
    link->before = head->before;
    link->after = head;
    head->before->after = link;
    head->before = link;
}

extern PyTypeObject EngineType;

static inline int64_t engine_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* Be pumped at this instant of CLOCK_MONOTONIC, or soon after; of several wishes the earliest wins. One wish is spent
 * by the first pump at or after its instant: ask again from there. Safe from within a pump. */
void engine_wake_at(Engine *engine, int64_t at_ns);

/* Move the counts into the Python object. Returns -1 with an exception set. Also Engine.pour() in Python. */
int engine_pour(Engine *engine);

/* `engine` as handed over from Python: an Engine, or an object whose attribute `core` is one. Borrowed from it. */
Engine *engine_from(PyObject *object);

/* The connection gets a number, a place in the epoll set and a strong reference. -1 with an exception set. */
int engine_add(Engine *engine, Connection *connection);

/* Takes the connection's number and reference away; the caller holds another one. */
void engine_remove(Engine *engine, Connection *connection);

/* Look at the connection when its `due_ns` has come. Needed only when that is before its `look_ns`. */
void engine_watch(Engine *engine, Connection *connection);

int engine_ready_types(PyObject *module);

#endif
