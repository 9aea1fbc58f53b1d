/* As a Call it has two drivers: a direct driver resumes its user when the time has come, a Task sleeps. */
#include "pause.h"

#include "call.h"

enum { STATE_NEW, STATE_WAITING, STATE_DONE };

typedef struct {
    PyObject_HEAD
    Engine *engine;
    int64_t length_ns;
    int state;
    Stepper *stepper;   /* who is resumed, or */
    PyObject *delegate; /* the coroutine that sleeps */
} Pause;

/* So that the end of it is an instant that can be told: decades. */
#define LENGTH_MOST_NS (INT64_MAX / 4)

/* Pauses that are over wait here for their next use. Only touched with the GIL held. */
#define SPARE_MOST 256
static Pause *spare[SPARE_MOST];
static int spare_count;

static PyTypeObject PauseType;
static PyObject *name_throw, *name_close;

PyObject *pause_new(Engine *engine, int64_t length_ns)
{
    if (length_ns < 0) {
        PyErr_SetString(PyExc_ValueError, "a pause of less than nothing");
        return NULL;
    }
    Pause *pause;
    if (spare_count > 0) {
        pause = spare[--spare_count];
        PyObject_Init((PyObject *)pause, &PauseType);
    }
    else {
        pause = PyObject_GC_New(Pause, &PauseType);
        if (pause == NULL) {
            return NULL;
        }
    }
    pause->engine = (Engine *)Py_NewRef((PyObject *)engine);
    pause->length_ns = length_ns < LENGTH_MOST_NS ? length_ns : LENGTH_MOST_NS;
    pause->state = STATE_NEW;
    pause->stepper = NULL;
    pause->delegate = NULL;
    PyObject_GC_Track(pause);
    return (PyObject *)pause;
}

static PyObject *sleeping(Pause *pause)
{
    PyObject *seconds = PyFloat_FromDouble((double)pause->length_ns / 1e9);
    if (seconds == NULL) {
        return NULL;
    }
    PyObject *coroutine = PyObject_CallOneArg(known.sleep, seconds);
    Py_DECREF(seconds);
    return coroutine;
}

static PySendResult begin(Pause *pause, PyObject **result)
{
    Engine *engine = pause->engine;
    Stepper *stepper = engine->stepping;
    if (stepper->pause(stepper, engine_now() + pause->length_ns) < 0) {
        pause->state = STATE_DONE;
        return PYGEN_ERROR;
    }
    pause->stepper = stepper;
    pause->state = STATE_WAITING;
    *result = Py_NewRef(engine->marker);
    return PYGEN_NEXT;
}

static PySendResult sleep_on(Pause *pause, PyObject *argument, PyObject **result)
{
    PyObject *delegate = Py_NewRef(pause->delegate);
    PySendResult status = PyIter_Send(delegate, argument, result);
    Py_DECREF(delegate);
    if (status != PYGEN_NEXT) {
        pause->state = STATE_DONE;
        Py_CLEAR(pause->delegate);
    }
    return status;
}

static PySendResult pause_am_send(Pause *pause, PyObject *argument, PyObject **result)
{
    *result = NULL;
    if (pause->state == STATE_NEW) {
        if (pause->engine->stepping != NULL) {
            return begin(pause, result);
        }
        pause->delegate = sleeping(pause);
        if (pause->delegate == NULL) {
            pause->state = STATE_DONE;
            return PYGEN_ERROR;
        }
        pause->state = STATE_WAITING;
        argument = Py_None;
    }
    if (pause->state == STATE_DONE) {
        PyErr_SetString(PyExc_RuntimeError, "cannot reuse already awaited pause");
        return PYGEN_ERROR;
    }
    if (pause->delegate != NULL) {
        Py_INCREF(pause);
        PySendResult status = sleep_on(pause, argument, result);
        Py_DECREF(pause);
        return status;
    }
    pause->stepper = NULL;
    pause->state = STATE_DONE;
    *result = Py_NewRef(Py_None);
    return PYGEN_RETURN;
}

/* As an iterator has it: what is returned travels in a StopIteration. */
static PyObject *as_iterator(PySendResult status, PyObject *result)
{
    if (status != PYGEN_RETURN) {
        return result;
    }
    Py_DECREF(result);
    PyErr_SetNone(PyExc_StopIteration);
    return NULL;
}

static PyObject *pause_send(Pause *pause, PyObject *argument)
{
    PyObject *result;
    PySendResult status = pause_am_send(pause, argument, &result);
    return as_iterator(status, result);
}

static PyObject *pause_iternext(Pause *pause)
{
    return pause_send(pause, Py_None);
}

/* Nobody waits any more. */
static void give_up(Pause *pause)
{
    if (pause->stepper != NULL) {
        pause->stepper->pause(pause->stepper, 0);
        pause->stepper = NULL;
    }
    pause->state = STATE_DONE;
}

static PyObject *pause_throw(Pause *pause, PyObject *const *given, Py_ssize_t count)
{
    if (count < 1 || count > 3) {
        PyErr_SetString(PyExc_TypeError, "throw takes one to three arguments");
        return NULL;
    }
    if (pause->delegate != NULL) {
        PyObject *delegate = Py_NewRef(pause->delegate);
        PyObject *method = PyObject_GetAttr(delegate, name_throw);
        PyObject *value = method == NULL ? NULL : PyObject_Vectorcall(method, given, (size_t)count, NULL);
        Py_XDECREF(method);
        Py_DECREF(delegate);
        if (value == NULL) {
            pause->state = STATE_DONE;
            Py_CLEAR(pause->delegate);
        }
        return value;
    }
    Py_INCREF(pause);
    give_up(pause);
    Py_DECREF(pause);
    return raised_by_throw(given, count);
}

static PyObject *pause_close(Pause *pause, PyObject *Py_UNUSED(ignored))
{
    PyObject *delegate = pause->delegate;
    pause->delegate = NULL;
    give_up(pause);
    if (delegate == NULL) {
        Py_RETURN_NONE;
    }
    PyObject *closed = PyObject_CallMethodNoArgs(delegate, name_close);
    Py_DECREF(delegate);
    return closed;
}

/* The type */

static int pause_traverse(Pause *pause, visitproc visit, void *arg)
{
    Py_VISIT(pause->engine);
    Py_VISIT(pause->delegate);
    return 0;
}

static int pause_clear(Pause *pause)
{
    Py_CLEAR(pause->delegate);
    return 0;
}

static void pause_dealloc(Pause *pause)
{
    PyObject_GC_UnTrack(pause);
    if (pause->stepper != NULL) {
        give_up(pause);
    }
    pause_clear(pause);
    Py_CLEAR(pause->engine);
    if (spare_count < SPARE_MOST) {
        spare[spare_count++] = pause;
    }
    else {
        PyObject_GC_Del(pause);
    }
}

static PyAsyncMethods pause_async = {
    .am_await = PyObject_SelfIter,
    .am_send = (sendfunc)pause_am_send,
};

static PyMethodDef pause_methods[] = {
    {"send", (PyCFunction)pause_send, METH_O, "As a coroutine's."},
    {"throw", (PyCFunction)(void (*)(void))pause_throw, METH_FASTCALL, "As a coroutine's."},
    {"close", (PyCFunction)pause_close, METH_NOARGS, "As a coroutine's."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject PauseType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "talka._native.Pause",
    .tp_basicsize = sizeof(Pause),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)pause_dealloc,
    .tp_traverse = (traverseproc)pause_traverse,
    .tp_clear = (inquiry)pause_clear,
    .tp_as_async = &pause_async,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = (iternextfunc)pause_iternext,
    .tp_methods = pause_methods,
};

int pause_ready_types(PyObject *module)
{
    name_throw = PyUnicode_InternFromString("throw");
    name_close = PyUnicode_InternFromString("close");
    if (name_throw == NULL || name_close == NULL) {
        return -1;
    }
    return PyModule_AddType(module, &PauseType);
}
