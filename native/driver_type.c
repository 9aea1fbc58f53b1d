#include "driver.h"

#include <stddef.h>
#include <structmember.h>

static int refuse_while_running(Driver *driver, const char *what)
{
    if (driver->running != 0) {
        PyErr_Format(PyExc_RuntimeError, "%s() was called from within a user's step", what);
        return -1;
    }
    return 0;
}

static void free_node(Node *node)
{
    Py_CLEAR(node->name);
    Py_CLEAR(node->function);
    Py_CLEAR(node->names);
    Py_CLEAR(node->expect);
    for (int place = 0; place < node->value_count; place++) {
        Py_CLEAR(node->values[place]);
    }
    node->value_count = 0;
    PyMem_Free(node->values);
    PyMem_Free(node->inputs);
    node->values = NULL;
    node->inputs = NULL;
    histogram_free(&node->response_time);
    histogram_free(&node->window);
    driver_free_rows(node);
}

/* (name, kind, phase, function, is_async, layer, numbers it waits for, ((parameter, number), …), {parameter: value}, expect,
   keeps_last) */
static int read_node(Driver *driver, int number, PyObject *given)
{
    Node *node = &driver->nodes[number];
    PyObject *name, *function, *after, *inputs, *arguments, *expect;
    int kind, phase, is_async, layer, keeps_last;
    histogram_init(&node->response_time, FINE_PRECISION);
    histogram_init(&node->window, COARSE_PRECISION);
    if (!PyTuple_Check(given)) {
        PyErr_SetString(PyExc_TypeError, "a node is a tuple");
        return -1;
    }
    if (!PyArg_ParseTuple(given, "UiiOpiO!O!O!Op", &name, &kind, &phase, &function, &is_async, &layer, &PyTuple_Type,
                          &after, &PyTuple_Type, &inputs, &PyDict_Type, &arguments, &expect, &keeps_last)) {
        return -1;
    }
    if (phase < PHASE_START || phase > PHASE_STOP || (number > 0 && driver->nodes[number - 1].phase > phase)) {
        PyErr_SetString(PyExc_ValueError, "the phases of nodes come one after the other");
        return -1;
    }
    node->name = Py_NewRef(name);
    PyUnicode_InternInPlace(&node->name);
    node->function = Py_NewRef(function);
    node->expect = expect == Py_None ? NULL : Py_NewRef(expect);
    node->kind = kind;
    node->phase = phase;
    node->is_async = is_async;
    node->keeps_last = keeps_last;
    node->layer = layer;
    Node *before = number == 0 ? NULL : &driver->nodes[number - 1];
    node->opens_layer = before == NULL || before->layer != layer || before->phase != phase;
    if (phase == PHASE_START) {
        driver->first_layer = number + 1;
        node->is_due = number == 0;
    } else if (phase == PHASE_LAYER) {
        int first = driver->first_layer;
        node->is_due = number == first || (driver->nodes[first].layer == layer);
    }
    if (phase != PHASE_STOP) {
        driver->first_stop = number + 1;
    }
    for (Py_ssize_t place = 0; place < PyTuple_GET_SIZE(after); place++) {
        long other = PyLong_AsLong(PyTuple_GET_ITEM(after, place));
        if (other < 0 || other >= number) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_ValueError, "a node waits for a later one");
            }
            return -1;
        }
        node->after |= (uint64_t)1 << other;
    }
    Py_ssize_t value_count = PyDict_GET_SIZE(arguments), input_count = PyTuple_GET_SIZE(inputs);
    Py_ssize_t count = value_count + input_count;
    if (count > MAX_ARGUMENTS) {
        PyErr_Format(PyExc_ValueError, "%U takes more than %d arguments", name, MAX_ARGUMENTS);
        return -1;
    }
    if (count != 0) {
        node->names = PyTuple_New(count);
        node->values = PyMem_Calloc((size_t)value_count + 1, sizeof(PyObject *));
        node->inputs = PyMem_Calloc((size_t)input_count + 1, sizeof(int));
        if (node->names == NULL || node->values == NULL || node->inputs == NULL) {
            PyErr_NoMemory();
            return -1;
        }
    }
    Py_ssize_t place = 0;
    PyObject *key, *value;
    while (PyDict_Next(arguments, &place, &key, &value)) {
        PyTuple_SET_ITEM(node->names, node->value_count, Py_NewRef(key));
        node->values[node->value_count++] = Py_NewRef(value);
    }
    for (Py_ssize_t input = 0; input < input_count; input++) {
        PyObject *parameter;
        int other;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(inputs, input), "Ui", &parameter, &other)) {
            return -1;
        }
        if (other < 0 || other >= number) {
            PyErr_SetString(PyExc_ValueError, "a node takes the result of a later one");
            return -1;
        }
        node->after |= (uint64_t)1 << other; /* it waits for that one too, or for one that does */
        node->needs |= (uint64_t)1 << other;
        PyTuple_SET_ITEM(node->names, value_count + input, Py_NewRef(parameter));
        node->inputs[node->input_count++] = other;
        driver->nodes[other].keeps_result = 1;
        driver->keeps_results = 1;
    }
    if (kind != KIND_STEP && kind != KIND_HOOK) {
        return 0;
    }
    return histogram_ready(&node->response_time) < 0 || histogram_ready(&node->window) < 0 ? -1 : 0;
}

static PyObject *driver_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"engine", "nodes", "outcomes", "think", "last", "iterations_left", "fresh_users", "renewal",
                             NULL};
    PyObject *engine, *nodes, *outcomes, *think, *last;
    long long iterations_left;
    int fresh_users = 0, renewal = RENEWAL_NONE;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!OOOL|pi", names, &engine, &PyTuple_Type, &nodes, &outcomes,
                                     &think, &last, &iterations_left, &fresh_users, &renewal)) {
        return NULL;
    }
    if (renewal < RENEWAL_NONE || renewal > RENEWAL_PYTHON) {
        PyErr_SetString(PyExc_ValueError, "there is no such renewal");
        return NULL;
    }
    if (PyTuple_GET_SIZE(nodes) > MAX_NODES) {
        PyErr_Format(PyExc_ValueError, "more than %d nodes", MAX_NODES);
        return NULL;
    }
    if (last != Py_None && !PyDict_Check(last)) {
        PyErr_SetString(PyExc_TypeError, "last is a dict or None");
        return NULL;
    }
    Engine *found = engine_from(engine);
    if (found == NULL) {
        return NULL;
    }
    if (found->on_pump != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the engine has a driver already");
        return NULL;
    }
    Driver *self = (Driver *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    histogram_init(&self->start_lag, FINE_PRECISION);
    self->has_fresh_users = (char)fresh_users;
    self->renewal = (char)renewal;
    self->window_ends_ns = INT64_MAX;
    self->iterations_left = iterations_left;
    self->engine_object = Py_NewRef((PyObject *)found);
    self->engine = found;
    self->outcomes = Py_NewRef(outcomes);
    self->think = think == Py_None ? NULL : Py_NewRef(think);
    self->last = last == Py_None ? NULL : Py_NewRef(last);
    if (histogram_ready(&self->start_lag) < 0) {
        goto failed;
    }
    self->nodes = PyMem_Calloc((size_t)PyTuple_GET_SIZE(nodes) + 1, sizeof(Node));
    if (self->nodes == NULL) {
        PyErr_NoMemory();
        goto failed;
    }
    for (int number = 0; number < PyTuple_GET_SIZE(nodes); number++) {
        self->node_count = number + 1;
        if (read_node(self, number, PyTuple_GET_ITEM(nodes, number)) < 0) {
            goto failed;
        }
    }
    found->on_pump = driver_on_pump;
    found->on_pump_argument = self;
    return (PyObject *)self;
failed:
    Py_DECREF(self);
    return NULL;
}

static int driver_traverse(Driver *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->engine_object);
    Py_VISIT(self->outcomes);
    Py_VISIT(self->think);
    Py_VISIT(self->last);
    Py_VISIT(self->arrivals.source);
    for (int number = 0; number < self->node_count; number++) {
        Node *node = &self->nodes[number];
        Py_VISIT(node->function);
        Py_VISIT(node->expect);
        for (int place = 0; place < node->value_count; place++) {
            Py_VISIT(node->values[place]);
        }
    }
    for (Py_ssize_t position = 0; position < self->user_count; position++) {
        User *user = self->users[position];
        Py_VISIT(user->workflow);
        Py_VISIT(user->template);
        Py_VISIT(user->client);
        Py_VISIT(user->context);
        Py_VISIT(user->coroutine);
        Py_VISIT(user->failure);
        for (int number = 0; user->results != NULL && number < self->node_count; number++) {
            Py_VISIT(user->results[number]);
        }
    }
    return 0;
}

static int driver_clear(Driver *self)
{
    driver_leave(self);
    for (Py_ssize_t position = 0; position < self->user_count; position++) {
        User *user = self->users[position];
        Py_CLEAR(user->workflow);
        Py_CLEAR(user->template);
        Py_CLEAR(user->client);
        Py_CLEAR(user->context);
    }
    for (int number = 0; number < self->node_count; number++) {
        Py_CLEAR(self->nodes[number].function);
        Py_CLEAR(self->nodes[number].expect);
    }
    Py_CLEAR(self->outcomes);
    Py_CLEAR(self->think);
    Py_CLEAR(self->last);
    self->engine = NULL;
    Py_CLEAR(self->engine_object);
    return 0;
}

static void driver_dealloc(Driver *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    driver_clear(self);
    for (Py_ssize_t position = 0; position < self->user_count; position++) {
        PyMem_Free(self->users[position]->results);
        PyMem_Free(self->users[position]);
    }
    PyMem_Free(self->users);
    PyMem_Free(self->idle);
    for (int number = 0; number < self->node_count; number++) {
        free_node(&self->nodes[number]);
    }
    PyMem_Free(self->nodes);
    histogram_free(&self->start_lag);
    type->tp_free(self);
    Py_DECREF(type);
}

static int grow_users(Driver *self)
{
    if (self->user_count < self->user_capacity) {
        return 0;
    }
    Py_ssize_t capacity = self->user_capacity != 0 ? self->user_capacity * 2 : 64;
    User **users = PyMem_Realloc(self->users, (size_t)capacity * sizeof(User *));
    if (users != NULL) {
        self->users = users;
    }
    User **idle = PyMem_Realloc(self->idle, (size_t)capacity * sizeof(User *));
    if (idle != NULL) {
        self->idle = idle;
    }
    if (users == NULL || idle == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->user_capacity = capacity;
    return 0;
}

static PyObject *driver_add(Driver *self, PyObject *args)
{
    PyObject *workflow, *client, *template;
    long long iterations_left;
    if (!PyArg_ParseTuple(args, "OOOL", &workflow, &client, &template, &iterations_left)) {
        return NULL;
    }
    if (template != Py_None && !PyDict_Check(template)) {
        PyErr_SetString(PyExc_TypeError, "what a fresh user begins with is a dict or None");
        return NULL;
    }
    if (self->is_closed) {
        PyErr_SetString(PyExc_RuntimeError, "the driver is closed");
        return NULL;
    }
    if (grow_users(self) < 0) {
        return NULL;
    }
    User *user = PyMem_Calloc(1, sizeof(User));
    if (user == NULL) {
        return PyErr_NoMemory();
    }
    if (self->keeps_results) {
        user->results = PyMem_Calloc((size_t)self->node_count, sizeof(PyObject *));
        if (user->results == NULL) {
            PyMem_Free(user);
            return PyErr_NoMemory();
        }
    }
    user->context = PyContext_CopyCurrent();
    if (user->context == NULL) {
        PyMem_Free(user->results);
        PyMem_Free(user);
        return NULL;
    }
    user->stepper.resume = driver_resume;
    user->stepper.answered = driver_answered;
    user->stepper.failed = driver_failed;
    user->stepper.pause = driver_pause;
    user->driver = self;
    user->workflow = Py_NewRef(workflow);
    user->template = template == Py_None ? NULL : Py_NewRef(template);
    user->client = PyObject_TypeCheck(client, &ClientType) ? (Client *)Py_NewRef(client) : NULL;
    user->iterations_left = iterations_left;
    user->position = (int32_t)self->user_count;
    self->users[self->user_count++] = user;
    return PyLong_FromLong(user->position);
}

static PyObject *driver_start(Driver *self, PyObject *argument)
{
    Py_ssize_t position = PyLong_AsSsize_t(argument);
    if (position == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (position < 0 || position >= self->user_count || self->is_closed || self->is_open) {
        PyErr_SetString(PyExc_ValueError, "there is no such user to start");
        return NULL;
    }
    User *user = self->users[position];
    if (user->state == STATE_RESTING) {
        driver_start_user(user); /* one that has not noticed it was to leave simply stays */
    }
    Py_RETURN_NONE;
}

static PyObject *driver_open(Driver *self, PyObject *args)
{
    PyObject *arrivals;
    long long origin_ns;
    int drops;
    Py_ssize_t max_users;
    if (!PyArg_ParseTuple(args, "OLnp", &arrivals, &origin_ns, &max_users, &drops)) {
        return NULL;
    }
    PyObject *source = PyObject_GetIter(arrivals);
    if (source == NULL) {
        return NULL;
    }
    Py_XSETREF(self->arrivals.source, source);
    self->origin_ns = origin_ns;
    self->max_users = max_users;
    self->drops = (char)drops;
    self->is_open = 1;
    Py_RETURN_NONE;
}

static PyObject *driver_look_method(Driver *self, PyObject *Py_UNUSED(ignored))
{
    driver_look(self);
    if (!self->is_closed && !self->engine->is_pumping) {
        driver_arrange(self);
    }
    Py_RETURN_NONE;
}

static User *user_at(Driver *self, Py_ssize_t position)
{
    if (position < 0 || position >= self->user_count) {
        PyErr_SetString(PyExc_ValueError, "there is no such user");
        return NULL;
    }
    return self->users[position];
}

static PyObject *driver_run_of(Driver *self, PyObject *argument)
{
    Py_ssize_t position = PyLong_AsSsize_t(argument);
    User *user = position == -1 && PyErr_Occurred() ? NULL : user_at(self, position);
    if (user == NULL) {
        return NULL;
    }
    /* Whoever asks may have outlived the node that it was started by. */
    int number = user->node < self->node_count ? user->node : self->node_count - 1;
    return Py_BuildValue("(iL)", number, (long long)user->stepper.intended_ns);
}

static PyObject *driver_called(Driver *self, PyObject *args)
{
    Py_ssize_t position;
    PyObject *failure;
    int has_answer;
    if (!PyArg_ParseTuple(args, "nOp", &position, &failure, &has_answer)) {
        return NULL;
    }
    User *user = user_at(self, position);
    if (user == NULL) {
        return NULL;
    }
    user->stepper.intended_ns = 0;
    user->has_answer |= has_answer != 0;
    if (failure != Py_None && user->failure == NULL) {
        user->failure = Py_NewRef(failure);
    }
    Py_RETURN_NONE;
}

static PyObject *driver_next_due(Driver *self, PyObject *Py_UNUSED(ignored))
{
    int64_t due_ns;
    int found = arrivals_peek(&self->arrivals, &due_ns);
    if (found < 0) {
        return NULL;
    }
    if (found == 0) {
        Py_RETURN_NONE;
    }
    return PyLong_FromLongLong(due_ns);
}

static PyObject *driver_stop(Driver *self, PyObject *Py_UNUSED(ignored))
{
    self->is_stopping = 1;
    if (!self->is_closed && !self->engine->is_closed) {
        for (Py_ssize_t position = 0; position < self->user_count; position++) {
            if (self->users[position]->state == STATE_RESTING) {
                driver_let_leave(self->users[position]);
            }
        }
        engine_wake_at(self->engine, engine_now()); /* users that pause or wait for their turn end there */
    }
    Py_RETURN_NONE;
}

static PyObject *driver_interrupt(Driver *self, PyObject *Py_UNUSED(ignored))
{
    if (refuse_while_running(self, "interrupt") < 0) {
        return NULL;
    }
    if (!self->is_closed) {
        self->is_stopping = 1;
        driver_look(self);
        for (Py_ssize_t position = 0; position < self->user_count; position++) {
            if (self->users[position]->state == STATE_WAITING) {
                driver_cancel_user(self->users[position]);
            }
        }
    }
    Py_RETURN_NONE;
}

static PyObject *driver_close(Driver *self, PyObject *Py_UNUSED(ignored))
{
    if (refuse_while_running(self, "close") < 0) {
        return NULL;
    }
    driver_leave(self);
    Py_RETURN_NONE;
}

static PyObject *driver_drain_window(Driver *self, PyObject *Py_UNUSED(ignored))
{
    /* Windows tell of exchanges too: theirs must not be late by a pump. */
    if (self->engine != NULL && !self->engine->is_closed && engine_pour(self->engine) < 0) {
        return NULL;
    }
    return driver_drained_window(self);
}

static PyObject *driver_drain(Driver *self, PyObject *Py_UNUSED(ignored))
{
    return driver_drained(self);
}

static PyObject *driver_under_way(Driver *self, void *Py_UNUSED(closure))
{
    return PyLong_FromSsize_t(self->under_way);
}

static PyObject *driver_most_under_way(Driver *self, void *Py_UNUSED(closure))
{
    return PyLong_FromSsize_t(self->most_under_way);
}

static PyGetSetDef driver_getset[] = {
    {"under_way", (getter)driver_under_way, NULL, "Users that have not come to rest.", NULL},
    {"most_under_way", (getter)driver_most_under_way, NULL, "The most of them since `drain_window`; open model.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef driver_members[] = {
    {"wanted", T_LONGLONG, offsetof(Driver, wanted), 0, "Users at positions below stay, others leave."},
    {"iterations_left", T_LONGLONG, offsetof(Driver, iterations_left), 0, "For all users together; below 0: no limit."},
    {"window_ends_ns", T_LONGLONG, offsetof(Driver, window_ends_ns), 0, "When `outcomes.roll` is to be called."},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef driver_methods[] = {
    {"add", (PyCFunction)driver_add, METH_VARARGS, "A further user: (workflow, its HTTP client, what a fresh one begins with or None, iterations left)."},
    {"start", (PyCFunction)driver_start, METH_O, "Closed model: let the user at this position run."},
    {"open", (PyCFunction)driver_open, METH_VARARGS, "Open model: (due times, origin_ns, max_users, drops)."},
    {"look", (PyCFunction)driver_look_method, METH_NOARGS, "Start what is due by now."},
    {"run_of", (PyCFunction)driver_run_of, METH_O, "(the node a user is at, the intended start nobody took yet or 0)."},
    {"called", (PyCFunction)driver_called, METH_VARARGS,
     "Another client made a call for a user: (position, its failure or None, whether somebody waited for it)."},
    {"next_due", (PyCFunction)driver_next_due, METH_NOARGS, "The due time of the next arrival; None without one."},
    {"stop", (PyCFunction)driver_stop, METH_NOARGS, "Start nothing new."},
    {"interrupt", (PyCFunction)driver_interrupt, METH_NOARGS, "Cancel what is under way."},
    {"close", (PyCFunction)driver_close, METH_NOARGS, "Leave the engine; what is still under way is given up."},
    {"drain_window", (PyCFunction)driver_drain_window, METH_NOARGS,
     "(started, iterations, interrupted ones, dropped, under way, [(node, ended well, response times)]) since the last"
     " time."},
    {"drain", (PyCFunction)driver_drain, METH_NOARGS,
     "(start lag, for each node (ok, skipped, interrupted, response times, rows)) since the last time; a row is None or"
     " (ok, response times, service times, statuses)."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot driver_slots[] = {
    {Py_tp_new, driver_new},
    {Py_tp_dealloc, driver_dealloc},
    {Py_tp_traverse, driver_traverse},
    {Py_tp_clear, driver_clear},
    {Py_tp_methods, driver_methods},
    {Py_tp_members, driver_members},
    {Py_tp_getset, driver_getset},
    {Py_tp_doc, "Runs virtual users whose steps await nothing but Talka's clients."},
    {0, NULL},
};

static PyType_Spec driver_spec = {
    .name = "talka._native.Driver",
    .basicsize = sizeof(Driver),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = driver_slots,
};

int driver_add_types(PyObject *module)
{
    if (driver_ready_texts() < 0 || driver_ready_count_texts() < 0) {
        return -1;
    }
    PyObject *type = PyType_FromModuleAndSpec(module, &driver_spec, NULL);
    if (type == NULL) {
        return -1;
    }
    int added = PyModule_AddObjectRef(module, "Driver", type);
    Py_DECREF(type);
    return added;
}
