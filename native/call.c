#include "call.h"

#include "client.h"
#include "connection.h"
#include "response.h"

enum {
    STATE_NEW,         /* not awaited yet: nothing has been done */
    STATE_CONNECT,     /* needs a connection */
    STATE_CONNECTING,  /* the client's coroutine opens one */
    STATE_WAITING,     /* sent */
    STATE_READY,       /* the outcome is known and not yet told */
    STATE_DONE,
};

struct Call {
    PyObject_HEAD
    Client *client;
    PyObject *url;
    PyObject *arguments[ARGUMENT_COUNT];  /* NULL where not given */
    int32_t hops;
    uint8_t method;
    uint8_t state;
    uint8_t has_arguments;  /* any of them may be given: most calls have a URL and nothing else */
    Request *request;
    Connection *connection;  /* while waiting; it borrows this call */
    PyObject *result;
    PyObject *error;
    Stepper *stepper;        /* who is resumed, or */
    PyObject *future;        /* what a Task waits for */
    PyObject *delegate;      /* the coroutine that connects, driven by the caller's own Task, or */
    PyObject *task;          /* a Task of its own under a driver */
    PyObject *limits;        /* the Timeout, when the call named one */
    PyObject *expect;
    PyObject *run;           /* the NodeRun that is told of it under a Task */
    int64_t intended_ns;
    int64_t response_ns;
    int64_t total_due_ns;
};

/* Calls that are over wait here for their next use. Only touched with the GIL held. */
#define SPARE_MOST 256
static Call *spare[SPARE_MOST];
static int spare_count;

/* Interned texts, set once by call_ready_types. */
static PyObject *name_intended, *name_expect, *name_limits, *name_connect, *name_remember, *name_redirected,
    *name_blocking, *name_set_result, *name_connected, *name_throw, *name_close, *name_cancel, *name_result,
    *name_done_callback, *name_response_ns, *name_total_ns, *name_answered, *name_failed, *name_cut;
static PyObject *zero;

Call *call_new(Client *client, int method, PyObject *url, PyObject **arguments)
{
    Call *call;
    if (spare_count > 0) {
        call = spare[--spare_count];
        PyObject_Init((PyObject *)call, &CallType);
    }
    else {
        call = PyObject_GC_New(Call, &CallType);
        if (call == NULL) {
            return NULL;
        }
        memset((char *)call + sizeof(PyObject), 0, sizeof *call - sizeof(PyObject));
    }
    call->client = (Client *)Py_NewRef((PyObject *)client);
    call->url = Py_NewRef(url);
    call->has_arguments = arguments != NULL;
    for (int index = 0; arguments != NULL && index < ARGUMENT_COUNT; index++) {
        call->arguments[index] = arguments[index];
        Py_XINCREF(arguments[index]);
    }
    call->method = (uint8_t)method;
    call->state = STATE_NEW;
    call->hops = 0;
    PyObject_GC_Track(call);
    return call;
}

/* Waking whoever waits */

/* Returns 0 if the waiting Task was cancelled in this very round of the loop. */
static int wake_task(Call *call)
{
    PyObject *future = call->future;
    if (future == NULL) {
        return 1;
    }
    call->future = NULL;
    PyObject *result = PyObject_CallMethodOneArg(future, name_set_result, Py_None);
    Py_DECREF(future);
    if (result == NULL) {
        PyErr_Clear(); /* InvalidStateError, or a loop that is closed: nobody waits any more. */
        return 0;
    }
    Py_DECREF(result);
    return 1;
}

static void forget_stepper(Call *call)
{
    if (call->stepper != NULL) {
        call->stepper->waiting = NULL;
        call->stepper = NULL;
    }
}

static void resume_stepper(Call *call)
{
    Stepper *stepper = call->stepper;
    if (stepper != NULL) {
        forget_stepper(call);
        stepper->resume(stepper);
    }
}

static void attach(Call *call, Stepper *stepper)
{
    call->stepper = stepper;
    stepper->waiting = call;
}

static void set_error(Call *call, PyObject *error)
{
    if (error == NULL) {
        error = Py_NewRef(PyExc_MemoryError);
    }
    Py_XSETREF(call->error, error);
    call->state = STATE_READY;
}

/* Starting */

static int limits_of(Call *call, int64_t started_ns)
{
    Engine *engine = call->client->engine;
    PyObject *timeout = call->arguments[ARGUMENT_TIMEOUT];
    if (timeout == NULL) {
        call->response_ns = engine->response_ns;
        call->total_due_ns = started_ns + engine->total_ns;
        return 0;
    }
    if (timeout != engine->last_timeout) {
        PyObject *limits = PyObject_CallMethodOneArg((PyObject *)call->client, name_limits, timeout);
        if (limits == NULL) {
            return -1;
        }
        PyObject *response = PyObject_GetAttr(limits, name_response_ns);
        PyObject *total = PyObject_GetAttr(limits, name_total_ns);
        int64_t response_ns = response == NULL ? -1 : PyLong_AsLongLong(response);
        int64_t total_ns = total == NULL ? -1 : PyLong_AsLongLong(total);
        Py_XDECREF(response);
        Py_XDECREF(total);
        if (PyErr_Occurred()) {
            Py_DECREF(limits);
            return -1;
        }
        engine->last_response_ns = response_ns;
        engine->last_total_ns = total_ns;
        Py_XSETREF(engine->last_limits, limits);
        Py_XSETREF(engine->last_timeout, Py_NewRef(timeout));
    }
    Py_XSETREF(call->limits, Py_NewRef(engine->last_limits));
    call->response_ns = engine->last_response_ns;
    call->total_due_ns = started_ns + engine->last_total_ns;
    return 0;
}

/* What the step says: when it should have started, and which answers it accepts beyond those below 400. */
static int take_step(Call *call, int64_t started_ns)
{
    Stepper *stepper = call->client->engine->stepping;
    call->intended_ns = started_ns;
    if (stepper != NULL) {
        if (stepper->intended_ns != 0) {
            call->intended_ns = stepper->intended_ns;
            stepper->intended_ns = 0;
        }
        Py_XINCREF(stepper->expect);
        Py_XSETREF(call->expect, stepper->expect);
        return 0;
    }
    PyObject *step;
    if (PyContextVar_Get(known.current_call, NULL, &step) < 0) {
        return -1;
    }
    if (step == NULL) {
        return 0;
    }
    PyObject *intended = PyObject_GetAttr(step, name_intended);
    int64_t intended_ns = intended == NULL ? -1 : PyLong_AsLongLong(intended);
    Py_XDECREF(intended);
    int result = intended_ns == -1 && PyErr_Occurred() ? -1 : 0;
    if (result == 0 && intended_ns != 0) {
        call->intended_ns = intended_ns;
        result = PyObject_SetAttr(step, name_intended, zero);
    }
    if (result == 0) {
        PyObject *expect = PyObject_GetAttr(step, name_expect);
        Py_XSETREF(call->expect, expect);
        result = expect == NULL ? -1 : 0;
    }
    Py_XSETREF(call->run, step);
    return result;
}

static int is_name_fine(Call *call)
{
    PyObject *name = call->arguments[ARGUMENT_NAME];
    if (name == NULL || PyUnicode_Check(name)) {
        return 1;
    }
    call->client->engine->counts.not_sent++;
    PyErr_Format(PyExc_TypeError, "name=%R is not a text: it is the row under which the call is counted", name);
    return 0;
}

/* Send on this connection. Takes over the reference. */
static int send_on(Call *call, Connection *connection, int64_t started_ns)
{
    int64_t due_ns = started_ns + call->response_ns;
    if (call->total_due_ns < due_ns) {
        due_ns = call->total_due_ns;
    }
    call->connection = connection;
    call->state = STATE_WAITING;
    Py_INCREF(connection); /* It may be gone when this returns. */
    int result = connection_send(connection, call, call->request, due_ns, call->total_due_ns);
    if (result < 0) {
        PyObject *error = taken_exception();
        Py_CLEAR(call->connection);
        if (connection->call == NULL) {
            connection_drop(connection);
        }
        raise_again(error);
    }
    Py_DECREF(connection);
    return result;
}

/* The request is known: send it, or say that a connection is needed. */
static int proceed(Call *call, int64_t started_ns)
{
    Connection *connection = client_idle(call->client, call->request);
    if (connection == NULL) {
        call->state = STATE_CONNECT;
        return 0;
    }
    return send_on(call, connection, started_ns);
}

static int begin(Call *call)
{
    int64_t started_ns = engine_now();
    if (take_step(call, started_ns) < 0 || !is_name_fine(call) || limits_of(call, started_ns) < 0) {
        return -1;
    }
    Request *request = client_request(call->client, call->method, call->url, call->arguments);
    if (request == NULL) {
        return -1;
    }
    Py_XSETREF(call->request, request);
    return proceed(call, started_ns);
}

/* Connecting */

static PyObject *connecting(Call *call)
{
    PyObject *limits = call->limits == NULL ? call->client->engine->limits : call->limits;
    PyObject *due = PyLong_FromLongLong(call->total_due_ns);
    if (due == NULL) {
        return NULL;
    }
    PyObject *given[4] = {(PyObject *)call->client, call->request->source, limits, due};
    PyObject *coroutine = PyObject_VectorcallMethod(name_connect, given, 4, NULL);
    Py_DECREF(due);
    return coroutine;
}

/* Under a driver nobody can run the coroutine but a Task of its own. */
static int connect_in_task(Call *call)
{
    PyObject *create_task = call->client->engine->create_task;
    if (create_task == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the engine is closed");
        return -1;
    }
    PyObject *coroutine = connecting(call);
    if (coroutine == NULL) {
        return -1;
    }
    PyObject *task = PyObject_CallOneArg(create_task, coroutine);
    Py_DECREF(coroutine);
    if (task == NULL) {
        return -1;
    }
    PyObject *connected = PyObject_GetAttr((PyObject *)call, name_connected);
    PyObject *added = connected == NULL ? NULL : PyObject_CallMethodOneArg(task, name_done_callback, connected);
    Py_XDECREF(connected);
    if (added == NULL) {
        Py_DECREF(task);
        return -1;
    }
    Py_DECREF(added);
    Py_XSETREF(call->task, task);
    call->state = STATE_CONNECTING;
    return 0;
}

/* Takes over the reference. */
static int connected(Call *call, PyObject *value)
{
    if (!PyObject_TypeCheck(value, &ConnectionType)) {
        PyErr_SetString(PyExc_TypeError, "no native connection was opened");
        Py_DECREF(value);
        return -1;
    }
    return send_on(call, (Connection *)value, engine_now());
}

static PyObject *call_connected(Call *call, PyObject *task)
{
    PyObject *result = PyObject_CallMethodNoArgs(task, name_result);
    if (call->state != STATE_CONNECTING || call->task != task) {
        /* Given up just when the connection stood: nobody will use it. */
        if (result != NULL && PyObject_TypeCheck(result, &ConnectionType)) {
            call->client->engine->counts.not_sent++;
            connection_close((Connection *)result);
        }
        PyErr_Clear();
        Py_XDECREF(result);
        Py_RETURN_NONE;
    }
    Py_CLEAR(call->task);
    if (result == NULL || connected(call, result) < 0) {
        set_error(call, taken_exception());
    }
    if (call->state == STATE_READY) {
        resume_stepper(call);
    }
    Py_RETURN_NONE;
}

/* Ends of an exchange */

static int trace(Engine *engine, PyObject *outcome, PyObject *payload)
{
    if (engine->trace == NULL) {
        return 0;
    }
    PyObject *result = PyObject_CallFunctionObjArgs(engine->trace, outcome, payload, NULL);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

void call_cancelled(Call *call)
{
    Py_CLEAR(call->connection);
    wake_task(call);
    set_error(call, PyObject_CallNoArgs(known.cancelled_error));
    PyErr_Clear();
    resume_stepper(call);
}

void call_failed(Call *call, Request *request, const char *kind, PyObject *text)
{
    Engine *engine = call->client->engine;
    Py_CLEAR(call->connection);
    if (!wake_task(call)) {
        engine->counts.interrupted++;
        set_error(call, PyObject_CallNoArgs(known.cancelled_error));
        PyErr_Clear();
        return;
    }
    engine->counts.failed++;
    PyObject *sentence = text == NULL ? NULL : PyUnicode_FromFormat("%U %U: %U", request->method, request->url, text);
    PyObject *error = sentence == NULL ? NULL : PyObject_CallFunction(known.exchange_failed, "sO", kind, sentence);
    Py_XDECREF(sentence);
    if (error == NULL || trace(engine, error, request->payload) < 0) {
        Py_XDECREF(error);
        error = taken_exception();
    }
    set_error(call, error);
    resume_stepper(call);
}

static int remember_cookies(Call *call, Message *message)
{
    for (size_t index = 0; index < message->header_count; index++) {
        Header *header = &message->headers[index];
        if (header->name_length != 10 || PyOS_strnicmp(message->head + header->name, "set-cookie", 10) != 0) {
            continue;
        }
        PyObject *value = PyBytes_FromStringAndSize(message->head + header->value, (Py_ssize_t)header->value_length);
        if (value == NULL) {
            return -1;
        }
        PyObject *given[3] = {(PyObject *)call->client, value, call->request->url};
        PyObject *result = PyObject_VectorcallMethod(name_remember, given, 3, NULL);
        Py_DECREF(value);
        if (result == NULL) {
            return -1;
        }
        Py_DECREF(result);
    }
    return 0;
}

static int is_redirect(int status)
{
    return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

/* Ask the client where it goes on: 1 for on, 0 for nowhere, -1 with an exception set. */
static int follow(Call *call, PyObject *response)
{
    PyObject *given[12] = {(PyObject *)call->client, call->request->source, response, call->url};
    for (int index = 0; index < 6; index++) {
        given[4 + index] = call->arguments[index] == NULL ? Py_None : call->arguments[index];
    }
    PyObject *redirects = call->arguments[ARGUMENT_REDIRECTS];
    given[10] = redirects == NULL ? Py_None : redirects;
    given[11] = PyLong_FromLong(call->hops);
    if (given[11] == NULL) {
        return -1;
    }
    PyObject *next = PyObject_VectorcallMethod(name_redirected, given, 12, NULL);
    Py_DECREF(given[11]);
    if (next == NULL) {
        return -1;
    }
    if (next == Py_None) {
        Py_DECREF(next);
        return 0;
    }
    PyObject *source, *headers, *cookies, *auth, *data, *json;
    if (!PyArg_ParseTuple(next, "OOOOOO", &source, &headers, &cookies, &auth, &data, &json)) {
        Py_DECREF(next);
        return -1;
    }
    PyObject *later[6] = {headers, NULL, cookies, auth, data, json};
    call->has_arguments = 1;
    for (int index = 0; index < 6; index++) {
        PyObject *value = later[index] == Py_None ? NULL : later[index];
        Py_XINCREF(value);
        Py_XSETREF(call->arguments[index], value);
    }
    Request *request = request_from(source);
    Py_DECREF(next);
    if (request == NULL) {
        return -1;
    }
    Py_XSETREF(call->request, request);
    call->hops++;
    return 1;
}

static int judge(Call *call, PyObject *response)
{
    Engine *engine = call->client->engine;
    ResponseData *data = response_data(response);
    data->intended_ns = call->intended_ns;
    if (data->status < 400) {
        engine->counts.ok++;
    }
    else {
        int is_expected = 0;
        if (call->expect != NULL) {
            PyObject *status = PyLong_FromLong(data->status);
            is_expected = status == NULL ? -1 : PySequence_Contains(call->expect, status);
            Py_XDECREF(status);
        }
        data->accepted = is_expected > 0;
        if (is_expected > 0) {
            engine->counts.ok++;
        }
        else {
            engine->counts.failed++;
        }
        if (is_expected < 0) {
            return -1;
        }
    }
    if (data->message.has_set_cookie && remember_cookies(call, &data->message) < 0) {
        return -1;
    }
    if (engine->trace != NULL && trace(engine, response, call->request->payload) < 0) {
        return -1;
    }
    if (is_redirect(data->status) && data->message.has_location) {
        int goes_on = follow(call, response);
        if (goes_on != 0) {
            return goes_on < 0 ? -1 : proceed(call, engine_now());
        }
    }
    call->result = Py_NewRef(response);
    call->state = STATE_READY;
    return 0;
}

void call_answered(Call *call, Connection *connection, PyObject *response, int may_reuse)
{
    if (!wake_task(call)) { /* Cancelled in this very round, and its task knows. */
        call->client->engine->counts.interrupted++;
        Py_CLEAR(call->connection);
        connection_drop(connection);
        set_error(call, PyObject_CallNoArgs(known.cancelled_error));
        PyErr_Clear();
        return;
    }
    if (may_reuse) {
        pool_put(connection->pool, connection);
    }
    Py_CLEAR(call->connection);
    if (judge(call, response) < 0) {
        set_error(call, taken_exception());
    }
    if (call->state == STATE_CONNECT && call->stepper != NULL && connect_in_task(call) < 0) {
        set_error(call, taken_exception());
    }
    if (call->state == STATE_READY) {
        resume_stepper(call);
    }
}

/* Telling whoever made the call what came of it */

static PyObject *name_of(Call *call)
{
    PyObject *name = call->arguments[ARGUMENT_NAME];
    return name == NULL ? Py_None : name;
}

/* -1 with an exception set. */
static int tell_answered(Call *call, PyObject *response)
{
    Stepper *stepper = call->client->engine->stepping;
    if (stepper != NULL) {
        stepper->answered(stepper, call->arguments[ARGUMENT_NAME], response);
        return 0;
    }
    if (call->run == NULL) {
        return 0;
    }
    PyObject *told = PyObject_CallMethodObjArgs(call->run, name_answered, name_of(call), response, NULL);
    Py_XDECREF(told);
    return told == NULL ? -1 : 0;
}

static PyObject *told_failed(Call *call, PyObject *error)
{
    PyObject *intended = PyLong_FromLongLong(call->intended_ns);
    if (intended == NULL) {
        return NULL;
    }
    PyObject *told = PyObject_CallMethodObjArgs(call->run, name_failed, name_of(call), error, intended, NULL);
    Py_DECREF(intended);
    return told;
}

/* The call ends with this error: it got no answer, it was interrupted, or it could not even begin. */
static void tell_failed(Call *call, PyObject *error)
{
    int is_failure = PyErr_GivenExceptionMatches(error, known.exchange_failed);
    if (!is_failure && !PyErr_GivenExceptionMatches(error, known.cancelled_error) &&
        !PyErr_GivenExceptionMatches(error, PyExc_GeneratorExit)) {
        return;
    }
    Stepper *stepper = call->client->engine->stepping != NULL ? call->client->engine->stepping : call->stepper;
    if (stepper != NULL) {
        stepper->failed(stepper, call->arguments[ARGUMENT_NAME], error, call->intended_ns);
        return;
    }
    if (call->run == NULL) {
        return;
    }
    PyObject *told = is_failure ? told_failed(call, error)
                                : PyObject_CallMethodOneArg(call->run, name_cut, name_of(call));
    if (told == NULL) {
        PyErr_WriteUnraisable(call->run);
    }
    Py_XDECREF(told);
}

/* The same for the exception that is set, which stays set. */
static void tell_raised(Call *call)
{
    PyObject *error = taken_exception();
    if (error != NULL) {
        tell_failed(call, error);
        raise_again(error);
    }
}

/* Awaiting */

/* The outcome is told, or the call given up: nothing of it is needed any more. */
static void release(Call *call)
{
    call->state = STATE_DONE;
    Py_CLEAR(call->request);
    Py_CLEAR(call->limits);
    Py_CLEAR(call->expect);
    Py_CLEAR(call->run);
}

static PySendResult wait(Call *call, PyObject **result)
{
    Engine *engine = call->client->engine;
    if (engine->stepping != NULL) {
        attach(call, engine->stepping);
        *result = Py_NewRef(engine->marker);
        return PYGEN_NEXT;
    }
    if (call->future != NULL || call->stepper != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "this call is being awaited already");
        return PYGEN_ERROR;
    }
    if (engine->create_future == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the engine is closed");
        return PYGEN_ERROR;
    }
    PyObject *future = PyObject_CallNoArgs(engine->create_future);
    if (future == NULL) {
        return PYGEN_ERROR;
    }
    /* What a Future's own iterator does before it yields the future to its Task. */
    if (PyObject_SetAttr(future, name_blocking, Py_True) < 0) {
        Py_DECREF(future);
        return PYGEN_ERROR;
    }
    call->future = Py_NewRef(future);
    *result = future;
    return PYGEN_NEXT;
}

/* Drives the coroutine that connects. 1: it is through; 0: *result is to be yielded; -1: an exception is set. */
static int drive(Call *call, PyObject *argument, PyObject **result)
{
    PyObject *value = NULL;
    PyObject *delegate = Py_NewRef(call->delegate);
    PySendResult status = PyIter_Send(delegate, argument, &value);
    Py_DECREF(delegate);
    if (status == PYGEN_NEXT) {
        *result = value;
        return 0;
    }
    Py_CLEAR(call->delegate);
    if (status == PYGEN_ERROR) {
        return -1;
    }
    return connected(call, value) < 0 ? -1 : 1;
}

static PySendResult advance(Call *call, PyObject *argument, PyObject **result)
{
    *result = NULL;
    for (;;) {
        int status = 0;
        switch (call->state) {
        case STATE_NEW:
            status = begin(call);
            break;
        case STATE_CONNECT:
            if (call->client->engine->stepping != NULL) {
                status = connect_in_task(call);
                break;
            }
            call->delegate = connecting(call);
            argument = Py_None;
            call->state = STATE_CONNECTING;
            status = call->delegate == NULL ? -1 : 0;
            break;
        case STATE_CONNECTING:
            if (call->delegate == NULL) {
                return wait(call, result);
            }
            status = drive(call, argument, result);
            if (status == 0) {
                return PYGEN_NEXT;
            }
            break;
        case STATE_WAITING: {
            PySendResult waiting = wait(call, result);
            return waiting;
        }
        case STATE_READY: {
            PyObject *error = call->error;
            *result = call->result;
            call->error = call->result = NULL;
            if (error == NULL) {
                int told = tell_answered(call, *result);
                release(call);
                if (told < 0) {
                    Py_CLEAR(*result);
                    return PYGEN_ERROR;
                }
                return PYGEN_RETURN;
            }
            Py_CLEAR(*result);
            if (PyExceptionInstance_Check(error)) {
                tell_failed(call, error);
                release(call);
                raise_again(error);
            }
            else {
                release(call);
                Py_DECREF(error);
                PyErr_NoMemory();
            }
            return PYGEN_ERROR;
        }
        default:
            PyErr_SetString(PyExc_RuntimeError, "cannot reuse already awaited call");
            return PYGEN_ERROR;
        }
        if (status < 0) {
            tell_raised(call);
            release(call);
            return PYGEN_ERROR;
        }
    }
}

static PySendResult call_am_send(Call *call, PyObject *argument, PyObject **result)
{
    Py_INCREF(call);
    PySendResult status = advance(call, argument, result);
    Py_DECREF(call);
    return status;
}

/* As an iterator has it: what is returned travels in a StopIteration. */
static PyObject *as_iterator(PySendResult status, PyObject *result)
{
    if (status != PYGEN_RETURN) {
        return result;
    }
    PyErr_SetObject(PyExc_StopIteration, result);
    Py_DECREF(result);
    return NULL;
}

static PyObject *call_iternext(Call *call)
{
    PyObject *result;
    PySendResult status = call_am_send(call, Py_None, &result);
    return as_iterator(status, result);
}

static PyObject *call_send(Call *call, PyObject *argument)
{
    PyObject *result;
    PySendResult status = call_am_send(call, argument, &result);
    return as_iterator(status, result);
}

/* Giving up */

/* Whatever is under way ends here. The exchange counts as interrupted, unless it had ended just before: it was counted
 * then as it ended. */
static void give_up(Call *call)
{
    Connection *connection = call->connection;
    if (call->state != STATE_NEW && call->state != STATE_DONE) {
        PyObject *error = taken_exception();
        PyObject *given_up = PyObject_CallNoArgs(PyExc_GeneratorExit);
        if (given_up != NULL) {
            tell_failed(call, given_up);
            Py_DECREF(given_up);
        }
        PyErr_Clear();
        if (error != NULL) {
            raise_again(error);
        }
    }
    forget_stepper(call);
    Py_CLEAR(call->future);
    if (call->state == STATE_WAITING && connection != NULL) {
        call->connection = NULL;
        if (connection->call == call) {
            connection->engine->counts.interrupted++;
            connection_abandon(connection);
        }
        Py_DECREF(connection);
    }
    PyObject *task = call->task;
    call->task = NULL;
    Py_CLEAR(call->result);
    Py_CLEAR(call->error);
    release(call);
    if (task != NULL) {
        PyObject *error = taken_exception();
        PyObject *result = PyObject_CallMethodNoArgs(task, name_cancel);
        if (result == NULL) {
            PyErr_Clear(); /* The loop is closed: the task has ended with it. */
        }
        Py_XDECREF(result);
        Py_DECREF(task);
        if (error != NULL) {
            raise_again(error);
        }
    }
}

static int pour_now(Call *call)
{
    Engine *engine = call->client->engine;
    return engine->is_pumping || engine->exchanges == NULL ? 0 : engine_pour(engine);
}

PyObject *raised_by_throw(PyObject *const *given, Py_ssize_t count)
{
    PyObject *type = given[0];
    PyObject *value = count > 1 && given[1] != Py_None ? given[1] : NULL;
    PyObject *traceback = count > 2 && given[2] != Py_None ? given[2] : NULL;
    PyObject *error;
    if (PyExceptionInstance_Check(type)) {
        error = Py_NewRef(type);
    }
    else if (!PyExceptionClass_Check(type)) {
        PyErr_SetString(PyExc_TypeError, "exceptions must be classes or instances deriving from BaseException");
        return NULL;
    }
    else if (value != NULL && PyObject_TypeCheck(value, (PyTypeObject *)type)) {
        error = Py_NewRef(value);
    }
    else {
        error = value == NULL ? PyObject_CallNoArgs(type) : PyObject_CallOneArg(type, value);
        if (error == NULL) {
            return NULL;
        }
        if (!PyExceptionInstance_Check(error)) {
            Py_DECREF(error);
            PyErr_SetString(PyExc_TypeError, "calling an exception class must make an exception");
            return NULL;
        }
    }
    if (traceback != NULL && PyTraceBack_Check(traceback)) {
        PyException_SetTraceback(error, traceback);
    }
    raise_again(error);
    return NULL;
}

static PyObject *call_throw(Call *call, PyObject *const *given, Py_ssize_t count)
{
    if (count < 1 || count > 3) {
        PyErr_SetString(PyExc_TypeError, "throw takes one to three arguments");
        return NULL;
    }
    if (call->state == STATE_CONNECTING && call->delegate != NULL) {
        PyObject *delegate = Py_NewRef(call->delegate);
        PyObject *method = PyObject_GetAttr(delegate, name_throw);
        PyObject *value = method == NULL ? NULL : PyObject_Vectorcall(method, given, (size_t)count, NULL);
        Py_XDECREF(method);
        Py_DECREF(delegate);
        if (value != NULL) {
            return value; /* It has more to wait for. */
        }
        Py_CLEAR(call->delegate);
        if (!PyErr_ExceptionMatches(PyExc_StopIteration)) {
            tell_raised(call);
            release(call);
            return NULL;
        }
        PyObject *stop = taken_exception();
        value = PyObject_GetAttrString(stop, "value");
        Py_DECREF(stop);
        if (value == NULL || connected(call, value) < 0) {
            release(call);
            return NULL;
        }
        return call_send(call, Py_None);
    }
    Py_INCREF(call);
    give_up(call);
    if (pour_now(call) < 0) {
        PyErr_Clear();
    }
    Py_DECREF(call);
    return raised_by_throw(given, count);
}

static PyObject *call_close(Call *call, PyObject *Py_UNUSED(ignored))
{
    if (call->state == STATE_CONNECTING && call->delegate != NULL) {
        PyObject *delegate = call->delegate;
        call->delegate = NULL;
        PyErr_SetNone(PyExc_GeneratorExit);
        tell_raised(call);
        PyErr_Clear();
        release(call);
        PyObject *result = PyObject_CallMethodNoArgs(delegate, name_close);
        Py_DECREF(delegate);
        return result;
    }
    Py_INCREF(call);
    give_up(call);
    int result = pour_now(call);
    Py_DECREF(call);
    if (result < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* The type */

static int call_traverse(Call *call, visitproc visit, void *arg)
{
    Py_VISIT(call->client);
    Py_VISIT(call->url);
    for (int index = 0; index < ARGUMENT_COUNT; index++) {
        Py_VISIT(call->arguments[index]);
    }
    Py_VISIT(call->request);
    Py_VISIT(call->connection);
    Py_VISIT(call->result);
    Py_VISIT(call->error);
    Py_VISIT(call->future);
    Py_VISIT(call->delegate);
    Py_VISIT(call->task);
    Py_VISIT(call->limits);
    Py_VISIT(call->expect);
    Py_VISIT(call->run);
    return 0;
}

static int call_clear(Call *call)
{
    for (int index = 0; call->has_arguments && index < ARGUMENT_COUNT; index++) {
        Py_CLEAR(call->arguments[index]);
    }
    Py_CLEAR(call->result);
    Py_CLEAR(call->error);
    Py_CLEAR(call->future);
    Py_CLEAR(call->delegate);
    Py_CLEAR(call->task);
    return 0;
}

static void call_finalize(Call *call)
{
    PyObject *error = taken_exception();
    if (call->state == STATE_NEW) {
        if (PyErr_WarnFormat(PyExc_RuntimeWarning, 1, "a call of %S was never awaited", call->url) < 0) {
            PyErr_WriteUnraisable((PyObject *)call->client);
        }
        call->state = STATE_DONE;
    }
    else if (call->state != STATE_DONE) {
        give_up(call);
        if (pour_now(call) < 0) {
            PyErr_Clear();
        }
    }
    if (error != NULL) {
        raise_again(error);
    }
}

static void call_dealloc(Call *call)
{
    if (call->state != STATE_DONE && PyObject_CallFinalizerFromDealloc((PyObject *)call) < 0) {
        return;
    }
    PyObject_GC_UnTrack(call);
    call_clear(call);
    Py_CLEAR(call->connection);
    Py_CLEAR(call->request);
    Py_CLEAR(call->limits);
    Py_CLEAR(call->expect);
    Py_CLEAR(call->run);
    Py_CLEAR(call->url);
    Py_CLEAR(call->client);
    if (spare_count < SPARE_MOST && !PyObject_GC_IsFinalized((PyObject *)call)) {
        spare[spare_count++] = call;
    }
    else {
        PyObject_GC_Del(call);
    }
}

static PyObject *call_repr(Call *call)
{
    static const char *const told[] = {"new", "connecting", "connecting", "waiting", "answered", "done"};
    return PyUnicode_FromFormat("<call %U %S %s>", client_method_name(call->method), call->url, told[call->state]);
}

static PyAsyncMethods call_async = {
    .am_await = PyObject_SelfIter,
    .am_send = (sendfunc)call_am_send,
};

static PyMethodDef call_methods[] = {
    {"send", (PyCFunction)call_send, METH_O, "As a coroutine's."},
    {"throw", (PyCFunction)(void (*)(void))call_throw, METH_FASTCALL, "As a coroutine's."},
    {"close", (PyCFunction)call_close, METH_NOARGS, "As a coroutine's: what is under way is interrupted."},
    {"_connected", (PyCFunction)call_connected, METH_O, "A connection stands, or none will."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject CallType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "talka._native.Call",
    .tp_basicsize = sizeof(Call),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)call_dealloc,
    .tp_finalize = (destructor)call_finalize,
    .tp_traverse = (traverseproc)call_traverse,
    .tp_clear = (inquiry)call_clear,
    .tp_as_async = &call_async,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = (iternextfunc)call_iternext,
    .tp_methods = call_methods,
    .tp_repr = (reprfunc)call_repr,
};

int call_ready_types(PyObject *module)
{
    const struct {
        PyObject **place;
        const char *text;
    } names[] = {
        {&name_intended, "intended_ns"},
        {&name_expect, "expect"},
        {&name_limits, "_limits"},
        {&name_connect, "_connect"},
        {&name_remember, "_remember"},
        {&name_redirected, "_redirected"},
        {&name_blocking, "_asyncio_future_blocking"},
        {&name_set_result, "set_result"},
        {&name_connected, "_connected"},
        {&name_throw, "throw"},
        {&name_close, "close"},
        {&name_cancel, "cancel"},
        {&name_result, "result"},
        {&name_done_callback, "add_done_callback"},
        {&name_response_ns, "response_ns"},
        {&name_total_ns, "total_ns"},
        {&name_answered, "answered"},
        {&name_failed, "failed"},
        {&name_cut, "cut"},
    };
    for (size_t index = 0; index < sizeof names / sizeof names[0]; index++) {
        *names[index].place = PyUnicode_InternFromString(names[index].text);
        if (*names[index].place == NULL) {
            return -1;
        }
    }
    zero = PyLong_FromLong(0);
    if (zero == NULL) {
        return -1;
    }
    return PyModule_AddType(module, &CallType);
}
