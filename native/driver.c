/* Runs the users. Everything happens in the event loop's thread. No loop here calls into Python while it stands on
   memory that Python could make go away: users live until `close`, and `close` is refused while users are being run. */
#include "driver.h"

#include "response.h"

static PyObject *text_answered, *text_rejected, *text_judged, *text_raised, *text_foreign, *text_roll, *text_ended;
static PyObject *text_new_user, *text_broken, *text_last, *text_throw, *text_close, *text_value;

static void start_due(Driver *driver);

int driver_ready_texts(void)
{
    struct {
        PyObject **text;
        const char *value;
    } texts[] = {
        {&text_answered, "answered"}, {&text_rejected, "rejected"}, {&text_judged, "judged"},
        {&text_raised, "raised"},     {&text_foreign, "foreign"},   {&text_roll, "roll"},
        {&text_ended, "ended"},       {&text_new_user, "new_user"}, {&text_broken, "broken"},
        {&text_last, "last"},         {&text_throw, "throw"},       {&text_close, "close"},
        {&text_value, "value"},
    };
    for (size_t place = 0; place < sizeof(texts) / sizeof(texts[0]); place++) {
        if (*texts[place].text == NULL) {
            *texts[place].text = PyUnicode_InternFromString(texts[place].value);
            if (*texts[place].text == NULL) {
                return -1;
            }
        }
    }
    return 0;
}

/* Exceptions. */

/* An exception is set that no user's code is to blame for: the run ends with it. */
static void broken(Driver *driver)
{
    PyObject *error = taken_exception();
    driver->is_stopping = 1;
    if (error == NULL) {
        return;
    }
    PyObject *told = PyObject_CallMethodOneArg(driver->outcomes, text_broken, error);
    if (told == NULL) {
        PyErr_WriteUnraisable(driver->outcomes);
    }
    Py_XDECREF(told);
    Py_DECREF(error);
}

/* Calls a method of outcomes with a node's number and one or two further arguments. -1 with the exception set. */
static int tell(Driver *driver, PyObject *method, int node, PyObject *what, PyObject *more)
{
    PyObject *number = PyLong_FromLong(node);
    if (number == NULL) {
        return -1;
    }
    PyObject *told = PyObject_CallMethodObjArgs(driver->outcomes, method, number, what, more, NULL);
    Py_DECREF(number);
    if (told == NULL) {
        return -1;
    }
    Py_DECREF(told);
    return 0;
}

/* A node's code raised. */
static void node_raised(User *user, PyObject *error)
{
    Driver *driver = user->driver;
    Node *node = &driver->nodes[user->node];
    if (user->is_cancelled && PyErr_GivenExceptionMatches(error, known.cancelled_error)) {
        if (node->kind != KIND_CHECK) {
            node->interrupted++;
        }
        user->is_cut = 1;
        return;
    }
    PyObject *intended = PyLong_FromLongLong(user->intended_ns);
    if (intended == NULL || tell(driver, text_raised, user->node, error, intended) < 0) {
        broken(driver);
    }
    Py_XDECREF(intended);
}

static void node_failed(User *user)
{
    PyObject *error = taken_exception();
    if (error != NULL) {
        node_raised(user, error);
        Py_DECREF(error);
    }
}

/* Windows. */

static int roll(Driver *driver, int64_t now_ns)
{
    PyObject *now = PyLong_FromLongLong(now_ns);
    if (now == NULL) {
        return -1;
    }
    /* It drains the window and tells when the next one ends. */
    PyObject *told = PyObject_CallMethodOneArg(driver->outcomes, text_roll, now);
    Py_DECREF(now);
    if (told == NULL) {
        return -1;
    }
    Py_DECREF(told);
    return 0;
}

static void iteration_starts(Driver *driver, int64_t now_ns)
{
    if (now_ns >= driver->window_ends_ns && roll(driver, now_ns) < 0) {
        broken(driver);
    }
    driver->started++;
}

/* One iteration. */

/* A measured step returned an answer. -1 with an exception that counts as the step's own. */
static int count_answer(Driver *driver, Node *node, int number, PyObject *answer)
{
    if (!response_check(answer)) {
        return tell(driver, text_answered, number, answer, NULL);
    }
    ResponseData *data = response_data(answer);
    if (data->done_ns >= driver->window_ends_ns && roll(driver, data->done_ns) < 0) {
        return -1;
    }
    int64_t response_us = (data->done_ns - data->intended_ns) / MICROSECOND;
    histogram_record(&node->response_time, response_us);
    histogram_record(&node->service_time, (data->done_ns - data->sent_ns) / MICROSECOND);
    histogram_record(&driver->window, response_us);
    statuses_record(node->statuses, data->status);
    if (data->accepted) {
        node->ok++;
        return 0;
    }
    return tell(driver, text_rejected, number, answer, NULL);
}

/* The last result of a step, for code that asks for it by the step's name. */
static int keep_last(User *user, Node *node, PyObject *result)
{
    PyObject *step = PyDict_GetItemWithError(user->steps, node->name);
    if (step == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    if (PyObject_SetAttr(step, text_last, result) < 0) {
        return -1;
    }
    return user->driver->last == NULL ? 0 : PyDict_SetItem(user->driver->last, node->name, result);
}

/* The node under way gave this, whose reference is taken over. */
static void node_returned(User *user, PyObject *result)
{
    Driver *driver = user->driver;
    int number = user->node;
    Node *node = &driver->nodes[number];
    int failed = 0;
    switch (node->kind) {
    case KIND_MEASURED:
        failed = count_answer(driver, node, number, result);
        break;
    case KIND_COUNTED:
        node->ok++;
        break;
    case KIND_METRIC:
        failed = tell(driver, text_answered, number, result, NULL);
        break;
    default:
        if (result == Py_False || PyExceptionInstance_Check(result)) {
            if (tell(driver, text_judged, number, result, NULL) < 0) {
                broken(driver);
            }
        } else {
            node->ok++;
        }
        Py_DECREF(result);
        return; /* nobody can wait for a verdict */
    }
    if (failed == 0 && node->keeps_last) {
        failed = keep_last(user, node, result);
    }
    if (failed < 0) {
        node_failed(user);
        Py_DECREF(result);
        return;
    }
    user->done |= (uint64_t)1 << number;
    if (node->keeps_result) {
        Py_XSETREF(user->results[number], result);
    } else {
        Py_DECREF(result);
    }
}

/* The coroutine is given up: what it waits for is interrupted. */
static void close_coroutine(User *user)
{
    PyObject *coroutine = user->coroutine;
    if (coroutine == NULL) {
        return;
    }
    user->coroutine = NULL;
    PyObject *closed = PyObject_CallMethodNoArgs(coroutine, text_close);
    if (closed == NULL) {
        PyErr_WriteUnraisable(coroutine); /* it raised, or awaited something, on its way out */
    }
    Py_XDECREF(closed);
    Py_DECREF(coroutine);
}

/* It awaits what only a Task can wait for; `yielded` is taken over. */
static void foreign_await(User *user, PyObject *yielded)
{
    Driver *driver = user->driver;
    PyObject *error = PyObject_CallMethodObjArgs(driver->outcomes, text_foreign, user->coroutine, yielded, NULL);
    Py_XDECREF(yielded);
    close_coroutine(user);
    if (error == NULL) {
        broken(driver);
        return;
    }
    node_raised(user, error);
    Py_DECREF(error);
}

/* What a coroutine did when something was sent or thrown into it. 1 when it waits for an answer. */
static int coroutine_did(User *user, PySendResult status, PyObject *result)
{
    if (status == PYGEN_NEXT) {
        if (result == user->driver->engine->marker) {
            Py_DECREF(result);
            user->has_waited = 1;
            return 1;
        }
        foreign_await(user, result);
    } else {
        Py_CLEAR(user->coroutine);
        if (status == PYGEN_RETURN) {
            node_returned(user, result);
        } else {
            node_failed(user);
        }
    }
    user->node++;
    return 0;
}

/* Calls the node's function. What is awaited is left in `coroutine`. */
static void call_node(User *user, Node *node)
{
    Driver *driver = user->driver;
    PyObject *stack[MAX_ARGUMENTS + 2];
    PyObject **arguments = stack + 1; /* the slot before belongs to the callee */
    int count = 0;
    arguments[count++] = user->workflow;
    for (int place = 0; place < node->value_count; place++) {
        arguments[count++] = node->values[place];
    }
    for (int place = 0; place < node->input_count; place++) {
        /* There is one: the node waits for every node it is given results of. */
        arguments[count++] = user->results[node->inputs[place]];
    }
    driver->engine->stepping = &user->stepper;
    PyObject *result =
        PyObject_Vectorcall(node->function, arguments, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, node->names);
    driver->engine->stepping = NULL;
    if (result == NULL) {
        node_failed(user);
        user->node++;
    } else if (!node->is_async) {
        node_returned(user, result);
        user->node++;
    } else if (PyCoro_CheckExact(result)) {
        user->coroutine = result;
    } else {
        PyErr_Format(PyExc_TypeError, "object %.200s can't be used in 'await' expression", Py_TYPE(result)->tp_name);
        Py_DECREF(result);
        node_failed(user);
        user->node++;
    }
}

/* Runs nodes until one waits (0) or the iteration is over (1). */
static int iterate(User *user)
{
    Driver *driver = user->driver;
    while (!user->is_cut) {
        if (user->coroutine == NULL) {
            if (user->node == driver->node_count) {
                user->is_whole = 1;
                return 1;
            }
            Node *node = &driver->nodes[user->node];
            if (node->opens_layer && driver->is_stopping) {
                return 1;
            }
            if ((user->done & node->after) != node->after) {
                user->node++; /* what it waits for failed in this iteration */
                continue;
            }
            if (node->kind != KIND_CHECK) { /* what a check asks for belongs to the step before it */
                user->intended_ns = node->layer == 0 ? user->due_ns : engine_now();
                user->stepper.intended_ns = user->intended_ns;
                user->stepper.expect = node->expect;
            }
            call_node(user, node);
            if (user->coroutine == NULL) {
                continue;
            }
        }
        PyObject *result = NULL;
        driver->engine->stepping = &user->stepper;
        PySendResult status = PyIter_Send(user->coroutine, Py_None, &result);
        driver->engine->stepping = NULL;
        if (coroutine_did(user, status, result)) {
            return 0;
        }
    }
    return 1;
}

/* One user, iteration after iteration. */

static void rests(User *user)
{
    Driver *driver = user->driver;
    user->state = STATE_RESTING;
    driver->under_way--;
    if (driver->under_way == 0 && (!driver->is_open || driver->is_stopping)) {
        PyObject *told = PyObject_CallMethodNoArgs(driver->outcomes, text_ended);
        if (told == NULL) {
            broken(driver);
        }
        Py_XDECREF(told);
    }
}

static void begin_iteration(User *user, int64_t due_ns)
{
    user->state = STATE_ACTIVE;
    user->due_ns = due_ns;
    user->node = 0;
    user->done = 0;
    user->has_waited = 0;
    user->is_whole = 0;
}

static void forget_results(User *user)
{
    if (user->results != NULL) {
        for (int number = 0; number < user->driver->node_count; number++) {
            Py_CLEAR(user->results[number]);
        }
    }
}

/* At the next pump, so that the event loop has its turn first. */
static void be_ready(User *user)
{
    Driver *driver = user->driver;
    user->state = STATE_READY;
    user->next_ready = NULL;
    if (driver->ready_first == NULL) {
        driver->ready_first = user;
    } else {
        driver->ready_last->next_ready = user;
    }
    driver->ready_last = user;
}

static int take_iteration(User *user)
{
    Driver *driver = user->driver;
    if (driver->iterations_left >= 0) {
        if (driver->iterations_left == 0) {
            return 0;
        }
        driver->iterations_left--;
    } else if (user->iterations_left >= 0) {
        if (user->iterations_left == 0) {
            return 0;
        }
        user->iterations_left--;
    }
    return 1;
}

/* Closed model: 1 when another iteration began. */
static int begin_closed(User *user)
{
    Driver *driver = user->driver;
    if (user->position >= driver->wanted || driver->is_stopping || !take_iteration(user)) {
        rests(user);
        return 0;
    }
    int64_t now_ns = engine_now();
    iteration_starts(driver, now_ns);
    begin_iteration(user, now_ns);
    return 1;
}

/* How long the user pauses. -1 with an exception set. */
static int64_t drawn_pause(Driver *driver)
{
    PyObject *drawn = PyObject_CallNoArgs(driver->think);
    if (drawn == NULL) {
        return -1;
    }
    long long length_ns = PyLong_AsLongLong(drawn);
    Py_DECREF(drawn);
    if (length_ns < 0) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "a pause of less than nothing");
        }
        return -1;
    }
    return length_ns;
}

static int next_closed(User *user)
{
    Driver *driver = user->driver;
    if (driver->think != NULL && !driver->is_stopping) {
        int64_t length_ns = drawn_pause(driver);
        if (length_ns < 0 || timers_add(&driver->pauses, engine_now() + length_ns, user) < 0) {
            broken(driver);
            rests(user);
            return 0;
        }
        user->state = STATE_PAUSING;
        return 0;
    }
    if (!user->has_waited && !driver->is_stopping) {
        be_ready(user);
        return 0;
    }
    return begin_closed(user);
}

/* Open model: the user's next arrival, already taken, begins. 1 when it did. */
static int begin_open(User *user)
{
    Driver *driver = user->driver;
    if (driver->is_stopping) {
        driver->dropped++;
        driver->idle[driver->idle_count++] = user;
        rests(user);
        return 0;
    }
    int64_t now_ns = engine_now();
    histogram_record(&driver->start_lag, (now_ns - user->could_start_ns) / MICROSECOND);
    iteration_starts(driver, now_ns);
    begin_iteration(user, user->due_ns);
    return 1;
}

static int next_open(User *user)
{
    Driver *driver = user->driver;
    int64_t now_ns = engine_now(), due_ns = 0;
    int found = 0;
    if (!driver->is_stopping) {
        found = arrivals_peek(&driver->arrivals, &due_ns);
        if (found < 0) {
            broken(driver);
        }
    }
    int is_due = found == 1 && driver->origin_ns + due_ns <= now_ns;
    if (is_due && driver->is_backlogged) {
        arrivals_pop(&driver->arrivals);
        user->due_ns = driver->origin_ns + due_ns;
        /* Waiting for a user to become free is the target's doing; what comes on top of it is ours. */
        user->could_start_ns = now_ns;
        if (!user->has_waited) {
            be_ready(user);
            return 0;
        }
        return begin_open(user);
    }
    driver->idle[driver->idle_count++] = user;
    rests(user);
    if (is_due || driver->is_backlogged) {
        start_due(driver);
    }
    return 0;
}

/* Runs a user on until it waits for something or has nothing more to do. */
static void go(User *user)
{
    Driver *driver = user->driver;
    driver->running++;
    for (;;) {
        user->state = STATE_ACTIVE;
        if (PyContext_Enter(user->context) < 0) {
            broken(driver);
            close_coroutine(user);
            rests(user);
            break;
        }
        int is_over = iterate(user);
        if (PyContext_Exit(user->context) < 0) {
            broken(driver);
        }
        if (!is_over) {
            user->state = STATE_WAITING;
            break;
        }
        forget_results(user);
        if (user->is_whole) {
            driver->iterations++;
        }
        if (user->is_cut) {
            rests(user);
            break;
        }
        if (!(driver->is_open ? next_open(user) : next_closed(user))) {
            break;
        }
    }
    driver->running--;
}

/* When to be pumped again. */
void driver_arrange(Driver *driver)
{
    int64_t at_ns = ENGINE_NEVER, due_ns;
    if (driver->ready_first != NULL) {
        at_ns = engine_now();
    } else {
        if (driver->pauses.count != 0) {
            at_ns = driver->pauses.timers[0].due_ns;
        }
        if (driver->is_open && !driver->is_backlogged && !driver->is_stopping) {
            int found = arrivals_peek(&driver->arrivals, &due_ns);
            if (found < 0) {
                broken(driver);
            } else if (found) {
                int64_t arrival_ns = driver->origin_ns + due_ns;
                int64_t earliest_ns = driver->engine->pumped_ns + PUMP_GAP_NS;
                arrival_ns = arrival_ns < earliest_ns ? earliest_ns : arrival_ns;
                at_ns = arrival_ns < at_ns ? arrival_ns : at_ns;
            }
        }
    }
    if (at_ns != ENGINE_NEVER) {
        engine_wake_at(driver->engine, at_ns);
    }
}

void driver_start_user(User *user)
{
    Driver *driver = user->driver;
    driver->under_way++;
    if (begin_closed(user)) {
        go(user);
    }
    if (!driver->engine->is_pumping) {
        driver_arrange(driver);
    }
}

/* The engine has an answer for the user, or knows that there will be none. */
void driver_resume(Stepper *stepper)
{
    User *user = (User *)stepper;
    Driver *driver = user->driver;
    if (user->state != STATE_WAITING || driver->is_closed) {
        return;
    }
    Py_INCREF(driver); /* what users do may let go of it */
    go(user);
    if (!driver->engine->is_pumping && !driver->is_closed) {
        driver_arrange(driver);
    }
    Py_DECREF(driver);
}

/* Arrivals. */

/* One that is idle, or a new one. NULL when there is none; then `is_stopping` tells whether there will be. */
static User *free_user(Driver *driver)
{
    if (driver->idle_count != 0) {
        return driver->idle[--driver->idle_count];
    }
    if (driver->user_count >= driver->max_users) {
        return NULL;
    }
    Py_ssize_t before = driver->user_count;
    PyObject *made = PyObject_CallMethodNoArgs(driver->outcomes, text_new_user); /* it calls add() */
    if (made == NULL) {
        broken(driver);
        return NULL;
    }
    Py_DECREF(made);
    if (driver->user_count == before) {
        driver->is_stopping = 1; /* the user's own __init__ raised, and somebody knows it */
        return NULL;
    }
    return driver->users[driver->user_count - 1];
}

/* Starts every arrival that is due, as far as users are free. */
static void start_due(Driver *driver)
{
    if (driver->is_starting) {
        return; /* a few calls further up it goes on */
    }
    driver->is_starting = 1;
    driver->is_backlogged = 0;
    int64_t now_ns = engine_now(), due_ns;
    while (!driver->is_stopping) {
        int found = arrivals_peek(&driver->arrivals, &due_ns);
        if (found < 0) {
            broken(driver);
            break;
        }
        if (found == 0 || driver->origin_ns + due_ns > now_ns) {
            break;
        }
        User *user = free_user(driver);
        if (user != NULL) {
            arrivals_pop(&driver->arrivals);
            user->due_ns = user->could_start_ns = driver->origin_ns + due_ns;
            driver->under_way++;
            if (begin_open(user)) {
                go(user);
            }
        } else if (!driver->is_stopping) {
            if (!driver->drops) {
                driver->is_backlogged = 1; /* the next user that becomes free takes it */
                break;
            }
            arrivals_pop(&driver->arrivals);
            driver->dropped++;
        }
    }
    driver->is_starting = 0;
}

/* Starts whatever is due by now. */
void driver_look(Driver *driver)
{
    if (driver->is_looking || driver->is_closed) {
        return;
    }
    driver->is_looking = 1;
    driver->running++;
    User *user;
    if (driver->pauses.count != 0) {
        int64_t now_ns = driver->is_stopping ? INT64_MAX : engine_now();
        while ((user = timers_take(&driver->pauses, now_ns)) != NULL) {
            if (begin_closed(user)) {
                go(user);
            }
        }
    }
    if (driver->ready_first != NULL) {
        User *next = driver->ready_first;
        driver->ready_first = driver->ready_last = NULL;
        while ((user = next) != NULL) {
            next = user->next_ready;
            if (driver->is_open ? begin_open(user) : begin_closed(user)) {
                go(user);
            }
        }
    }
    if (driver->is_open && !driver->is_backlogged) {
        start_due(driver);
    }
    driver->running--;
    driver->is_looking = 0;
}

/* Called at the start and at the end of each pump. What is wished for at the start would be done by the end. */
void driver_on_pump(Engine *engine, void *argument)
{
    Driver *driver = argument;
    Py_INCREF(driver);
    driver_look(driver);
    if (driver->pumped_ns == engine->pumped_ns && !driver->is_closed) {
        driver_arrange(driver);
    }
    driver->pumped_ns = engine->pumped_ns;
    Py_DECREF(driver);
}

/* The end. */

/* Throws a cancellation into the step under way, as a Task would. */
void driver_cancel_user(User *user)
{
    Driver *driver = user->driver;
    PyObject *error = PyObject_CallNoArgs(known.cancelled_error);
    if (error == NULL) {
        broken(driver);
        return;
    }
    if (PyContext_Enter(user->context) < 0) {
        Py_DECREF(error);
        broken(driver);
        return;
    }
    user->is_cancelled = 1;
    user->state = STATE_ACTIVE;
    driver->engine->stepping = &user->stepper;
    PyObject *result = PyObject_CallMethodOneArg(user->coroutine, text_throw, error);
    driver->engine->stepping = NULL;
    Py_DECREF(error);
    PySendResult status = PYGEN_NEXT;
    if (result == NULL) {
        status = PYGEN_ERROR;
        if (PyErr_ExceptionMatches(PyExc_StopIteration)) {
            PyObject *stop = taken_exception();
            result = PyObject_GetAttr(stop, text_value);
            status = result != NULL ? PYGEN_RETURN : PYGEN_ERROR;
            Py_DECREF(stop);
        }
    }
    int waits = coroutine_did(user, status, result);
    if (PyContext_Exit(user->context) < 0) {
        broken(driver);
    }
    if (waits) {
        user->state = STATE_WAITING; /* it caught it; a moment is left to it */
        return;
    }
    go(user);
}

void driver_leave(Driver *driver)
{
    if (driver->is_closed) {
        return;
    }
    driver->is_closed = 1;
    driver->is_stopping = 1;
    if (driver->engine != NULL && driver->engine->on_pump_argument == driver) {
        driver->engine->on_pump = NULL;
        driver->engine->on_pump_argument = NULL;
    }
    for (Py_ssize_t position = 0; position < driver->user_count; position++) {
        close_coroutine(driver->users[position]);
        forget_results(driver->users[position]);
        driver->users[position]->state = STATE_RESTING;
    }
    driver->under_way = 0;
    driver->ready_first = driver->ready_last = NULL;
    timers_free(&driver->pauses);
    Py_CLEAR(driver->arrivals.source);
    driver->arrivals.next = driver->arrivals.count = 0;
}
