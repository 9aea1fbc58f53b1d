/* A call in progress: what client.http.get(...) returns, and the drivers' side of it. */
#ifndef TALKA_CALL_H
#define TALKA_CALL_H

#include "engine.h"

typedef struct Call Call;
typedef struct Client Client;
typedef struct Request Request;

/* One virtual user that is stepped by a driver in C. Embed it at the start of the user's own struct.
 *
 * How a step runs:
 *     stepper->intended_ns, stepper->expect set;
 *     engine->stepping = stepper; status = PyIter_Send(coroutine, Py_None, &result); engine->stepping = NULL;
 *     PYGEN_NEXT with result == engine->marker: a Call waits for this stepper; resume() will be called once;
 *     PYGEN_NEXT with anything else: a foreign await;
 *     PYGEN_RETURN, PYGEN_ERROR: the step is over.
 * resume() is called from within a pump, from a callback of the event loop (a new connection stands), or from within
 * client.close(); never from within PyIter_Send. It has the GIL and no exception set, and shall leave none.
 * A coroutine that is given up must be closed (its close() interrupts the exchange and forgets the stepper) before the
 * stepper's memory goes. */
struct Stepper {
    void (*resume)(Stepper *stepper);
    /* A call of the step ended: with a response, or else with an error. They leave no exception set. */
    void (*answered)(Stepper *stepper, PyObject *name, PyObject *response);
    void (*failed)(Stepper *stepper, PyObject *name, PyObject *error, int64_t intended_ns);
    /* Resume at this instant; 0 takes that back. -1 with an exception set. */
    int (*pause)(Stepper *stepper, int64_t until_ns);
    int64_t intended_ns;  /* Taken by the first call of the step, which sets it to 0. */
    PyObject *expect;     /* Borrowed: a container of accepted statuses, or NULL. Must live until the step is over. */
    Call *waiting;        /* The Call that waits, or NULL. Kept by the Call: read only for drivers. */
};

extern PyTypeObject CallType;

static inline int call_check(PyObject *object)
{
    return Py_IS_TYPE(object, &CallType);
}

/* Raises what throw() was given: an exception, or a class with what it is made of. Always NULL. */
PyObject *raised_by_throw(PyObject *const *given, Py_ssize_t count);

/* A call that waits to be awaited. `arguments` are those of the request, as client.c orders them. */
Call *call_new(Client *client, int method, PyObject *url, PyObject **arguments);

/* What a connection says of the exchange of a call, once each. */
void call_answered(Call *call, Connection *connection, PyObject *response, int may_reuse);
void call_failed(Call *call, Request *request, const char *kind, PyObject *text);
void call_cancelled(Call *call);

int call_ready_types(PyObject *module);

#endif
