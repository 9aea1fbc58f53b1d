/* Runs the users. Everything happens in the event loop's thread. No loop here calls into Python while it stands on
   memory that Python could make go away: users live until `close`, and `close` is refused while users are being run. */
#include "driver.h"

#include "response.h"

static PyObject *text_answered, *text_judged, *text_raised, *text_failed, *text_foreign, *text_ended, *text_renewed;
static PyObject *text_new_user, *text_broken, *text_last, *text_throw, *text_close, *text_value;
static PyObject *no_arguments;

static void start_due(Driver *driver);

int driver_ready_texts(void)
{
    struct {
        PyObject **text;
        const char *value;
    } texts[] = {
        {&text_answered, "answered"}, {&text_judged, "judged"},   {&text_raised, "raised"},
        {&text_failed, "failed"},     {&text_foreign, "foreign"}, {&text_renewed, "renewed"},
        {&text_ended, "ended"},       {&text_new_user, "new_user"}, {&text_broken, "broken"},
        {&text_last, "last"},         {&text_throw, "throw"},     {&text_close, "close"},
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
    if (no_arguments == NULL) {
        no_arguments = PyTuple_New(0);
    }
    return no_arguments == NULL ? -1 : 0;
}

/* Exceptions. */

void driver_broken(Driver *driver)
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

/* What the node that ended failed with, where a call of it did: a new reference, and forgotten here. */
static PyObject *taken_failure(User *user)
{
    PyObject *failure = user->failure != NULL ? user->failure : Py_NewRef(Py_None);
    user->failure = NULL;
    return failure;
}

/* Calls a method of outcomes: (number, what, intended, failure, has answer). Its answer as a number; -1 with an
   exception set. */
static long tell_end(User *user, PyObject *method, PyObject *what)
{
    PyObject *number = PyLong_FromLong(user->node);
    PyObject *intended = PyLong_FromLongLong(user->intended_ns);
    PyObject *failure = taken_failure(user);
    PyObject *told = NULL;
    if (number != NULL && intended != NULL) {
        told = PyObject_CallMethodObjArgs(user->driver->outcomes, method, number, what, intended, failure,
                                          user->has_answer ? Py_True : Py_False, NULL);
    }
    Py_XDECREF(number);
    Py_XDECREF(intended);
    Py_DECREF(failure);
    if (told == NULL) {
        return -1;
    }
    long answer = PyLong_Check(told) ? PyLong_AsLong(told) : 0;
    Py_DECREF(told);
    return answer;
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
    switch (tell_end(user, text_raised, error)) {
    case RAISED_SKIP:
        user->passed |= (uint64_t)1 << user->node;
        break;
    case RAISED_END:
        user->is_over = 1;
        break;
    case RAISED_FAILURE:
        break;
    default:
        driver_broken(driver);
    }
}

static void node_failed(User *user)
{
    PyObject *error = taken_exception();
    if (error != NULL) {
        node_raised(user, error);
        Py_DECREF(error);
    }
}

static void iteration_starts(Driver *driver, int64_t now_ns)
{
    if (now_ns >= driver->window_ends_ns && driver_roll(driver, now_ns) < 0) {
        driver_broken(driver);
    }
    driver->started++;
}

/* One iteration. */

/* The last result of a step, for code that asks for it by the step's name. */
static int keep_last(User *user, Node *node, PyObject *result)
{
    PyObject *step = PyObject_GetAttr(user->workflow, node->name);
    if (step == NULL) {
        return -1;
    }
    int kept = PyObject_SetAttr(step, text_last, result);
    Py_DECREF(step);
    if (kept < 0) {
        return -1;
    }
    return user->driver->last == NULL ? 0 : PyDict_SetItem(user->driver->last, node->name, result);
}

/* What is measured returned. 1: what it gave is there for others; 0: it was skipped; -1 with an exception set. */
static int count_measured(User *user, Node *node, PyObject *result)
{
    int has_called = user->stepper.intended_ns == 0;
    if (result == Py_None && !has_called && node->kind == KIND_STEP) {
        node->skipped++;
        return 0;
    }
    if (user->failure != NULL) {
        return tell_end(user, text_failed, result) < 0 ? -1 : 1;
    }
    user->now_ns = engine_now();
    driver_ended_well(user->driver, node, user->intended_ns, user->now_ns);
    return 1;
}

/* The node under way gave this, whose reference is taken over. */
static void node_returned(User *user, PyObject *result)
{
    Driver *driver = user->driver;
    int number = user->node;
    Node *node = &driver->nodes[number];
    int counted = 1;
    switch (node->kind) {
    case KIND_STEP:
    case KIND_HOOK:
        counted = count_measured(user, node, result);
        break;
    case KIND_COUNTED:
        node->ok++;
        break;
    case KIND_METRIC:
        counted = tell(driver, text_answered, number, result, NULL) < 0 ? -1 : 1;
        break;
    default:
        if (result == Py_False || PyExceptionInstance_Check(result)) {
            if (tell(driver, text_judged, number, result, NULL) < 0) {
                driver_broken(driver);
            }
        } else {
            node->ok++;
        }
        Py_DECREF(result);
        return; /* nobody can wait for a verdict */
    }
    if (counted > 0 && node->keeps_last && keep_last(user, node, result) < 0) {
        counted = -1;
    }
    if (counted < 0) {
        node_failed(user);
        Py_DECREF(result);
        return;
    }
    uint64_t bit = (uint64_t)1 << number;
    if (counted == 0) {
        user->passed |= bit;
        Py_DECREF(result);
        return;
    }
    user->done |= bit;
    if (node->keeps_result) {
        Py_XSETREF(user->results[number], result);
    } else {
        Py_DECREF(result);
    }
}

/* The user could not begin: its steps have nothing to do in this iteration. */
static void give_up(User *user)
{
    Driver *driver = user->driver;
    for (int number = driver->first_layer; number < driver->first_stop && !user->is_over; number++) {
        driver->nodes[number].skipped += driver->nodes[number].kind != KIND_CHECK;
    }
}

/* The node under way is over, one way or the other. */
static void next_node(User *user)
{
    Driver *driver = user->driver;
    int number = user->node++;
    int phase = driver->nodes[number].phase;
    if (phase == PHASE_LAYER) {
        return;
    }
    if ((((user->done | user->passed) >> number) & 1) == 0) {
        if (phase == PHASE_START) {
            give_up(user);
        }
        user->node = user->end; /* what comes after it is not run */
    } else if (user->node == driver->first_layer) {
        user->has_begun = 1;
        user->due_ns = user->now_ns != 0 ? user->now_ns : engine_now();
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
    Engine *engine = user->driver->engine;
    Stepper *before = engine != NULL ? engine->stepping : NULL;
    if (engine != NULL) {
        engine->stepping = &user->stepper;
    }
    PyObject *closed = PyObject_CallMethodNoArgs(coroutine, text_close);
    if (engine != NULL) {
        engine->stepping = before;
    }
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
        driver_broken(driver);
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
    next_node(user);
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
        next_node(user);
    } else if (!node->is_async) {
        node_returned(user, result);
        next_node(user);
    } else if (PyCoro_CheckExact(result)) {
        user->coroutine = result;
    } else {
        PyErr_Format(PyExc_TypeError, "object %.200s can't be used in 'await' expression", Py_TYPE(result)->tp_name);
        Py_DECREF(result);
        node_failed(user);
        next_node(user);
    }
}

/* Whether there is anything to do for the node; else it is counted and left out. */
static int is_to_run(User *user, Node *node)
{
    uint64_t missing = node->after & ~user->done;
    if (missing == 0) {
        return 1;
    }
    if ((missing & ~user->passed) == 0) {
        if ((missing & node->needs) == 0) {
            return 1;
        }
        user->passed |= (uint64_t)1 << user->node; /* what it would take was skipped, and so is it */
    }
    node->skipped += node->kind != KIND_CHECK;
    return 0;
}

/* Runs nodes until one waits (0) or the iteration is over (1). */
static int iterate(User *user)
{
    Driver *driver = user->driver;
    while (!user->is_cut) {
        if (user->coroutine == NULL) {
            if (user->node == user->end) {
                user->is_whole = !user->is_over;
                return 1;
            }
            Node *node = &driver->nodes[user->node];
            if (user->is_over && node->opens_layer) {
                return 1;
            }
            if (!is_to_run(user, node)) {
                user->node++;
                continue;
            }
            if (node->is_due) {
                user->intended_ns = user->due_ns;
            } else {
                user->intended_ns = user->now_ns != 0 ? user->now_ns : engine_now();
            }
            user->now_ns = 0;
            user->has_answer = 0;
            Py_CLEAR(user->failure);
            user->stepper.intended_ns = user->intended_ns;
            user->stepper.expect = node->expect;
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
            driver_broken(driver);
        }
        Py_XDECREF(told);
    }
}

/* Another user of the same class, as `Workflow()` makes one where the class adds nothing to that. */
static PyObject *fresh_workflow(User *user)
{
    PyObject *workflow = PyBaseObject_Type.tp_new(Py_TYPE(user->workflow), no_arguments, NULL);
    Py_ssize_t place = 0;
    PyObject *name, *value;
    while (workflow != NULL && PyDict_Next(user->template, &place, &name, &value)) {
        if (PyObject_GenericSetAttr(workflow, name, value) < 0) {
            Py_CLEAR(workflow);
        }
    }
    return workflow;
}

/* The place of a user that has run is another user's from now on. */
static void renew(User *user)
{
    Driver *driver = user->driver;
    user->has_begun = user->has_begun && !driver->has_fresh_users;
    if (driver->renewal != RENEWAL_PYTHON && user->client != NULL && user->client->jar != Py_None) {
        Py_SETREF(user->client->jar, Py_NewRef(Py_None));
    }
    if (driver->renewal == RENEWAL_COOKIES && user->client != NULL) {
        return;
    }
    PyObject *workflow = NULL;
    if (driver->renewal != RENEWAL_PYTHON && user->client != NULL && user->template != NULL) {
        workflow = fresh_workflow(user);
    } else {
        PyObject *position = PyLong_FromLong(user->position);
        workflow = position != NULL ? PyObject_CallMethodOneArg(driver->outcomes, text_renewed, position) : NULL;
        Py_XDECREF(position);
    }
    if (workflow == NULL) {
        driver_broken(driver);
    } else {
        Py_SETREF(user->workflow, workflow);
    }
}

/* Nodes from `first` up to `end` are to be run. */
static void begin_nodes(User *user, int first, int end)
{
    user->state = STATE_ACTIVE;
    user->node = (uint16_t)first;
    user->end = (uint16_t)end;
    user->done = 0;
    user->passed = 0;
    user->has_waited = 0;
    user->is_over = 0;
    user->is_whole = 0;
    user->now_ns = 0;
}

static void begin_iteration(User *user, int64_t due_ns)
{
    Driver *driver = user->driver;
    if (driver->renewal != RENEWAL_NONE && user->is_used) {
        renew(user);
    }
    begin_nodes(user, user->has_begun ? driver->first_layer : 0,
                driver->has_fresh_users ? driver->node_count : driver->first_stop);
    user->due_ns = due_ns;
    user->is_used = 1;
    user->is_iterating = 1;
    user->has_left = 0;
}

/* Whether there are last methods for the user to run. Those of fresh users are part of their one iteration. */
static int has_to_leave(User *user)
{
    Driver *driver = user->driver;
    int has_methods = driver->first_stop < driver->node_count && !driver->has_fresh_users;
    return has_methods && user->is_used && !user->has_left && (user->has_begun || driver->first_layer == 0);
}

/* The user runs no further iteration: 1 if its last methods begin, 0 when it rests. */
static int leave(User *user)
{
    Driver *driver = user->driver;
    if (!has_to_leave(user)) {
        rests(user);
        return 0;
    }
    begin_nodes(user, driver->first_stop, driver->node_count);
    user->is_leaving = 1;
    user->has_left = 1;
    user->has_begun = 0;
    return 1;
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
    user->now_ns = 0;
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
        return leave(user);
    }
    int64_t now_ns = user->now_ns != 0 ? user->now_ns : engine_now();
    iteration_starts(driver, now_ns);
    begin_iteration(user, now_ns);
    user->began_ns = now_ns;
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
            driver_broken(driver);
            rests(user);
            return 0;
        }
        user->state = STATE_PAUSING;
        user->now_ns = 0;
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
        return leave(user);
    }
    int64_t now_ns = engine_now();
    histogram_record(&driver->start_lag, (now_ns - user->could_start_ns) / MICROSECOND);
    iteration_starts(driver, now_ns);
    begin_iteration(user, user->due_ns);
    user->began_ns = now_ns;
    return 1;
}

static int next_open(User *user)
{
    Driver *driver = user->driver;
    if (driver->is_stopping) {
        return leave(user);
    }
    int64_t now_ns = user->now_ns != 0 ? user->now_ns : engine_now(), due_ns = 0;
    int found = arrivals_peek(&driver->arrivals, &due_ns);
    if (found < 0) {
        driver_broken(driver);
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
            driver_broken(driver);
            close_coroutine(user);
            rests(user);
            break;
        }
        int is_over = iterate(user);
        if (PyContext_Exit(user->context) < 0) {
            driver_broken(driver);
        }
        if (!is_over) {
            user->state = STATE_WAITING;
            break;
        }
        forget_results(user);
        Py_CLEAR(user->failure);
        if (user->is_iterating) {
            driver->iterations += user->is_whole;
            driver->interrupted += user->is_cut;
            if (user->now_ns == 0) {
                user->now_ns = engine_now();
            }
            driver->busy_ns += (uint64_t)(user->now_ns - user->began_ns);
        }
        user->is_iterating = 0;
        if (user->is_cut || user->is_leaving) {
            user->is_leaving = 0;
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
        if (driver->naps.count != 0 && driver->naps.timers[0].due_ns < at_ns) {
            at_ns = driver->naps.timers[0].due_ns;
        }
        if (driver->is_open && !driver->is_backlogged && !driver->is_stopping) {
            int found = arrivals_peek(&driver->arrivals, &due_ns);
            if (found < 0) {
                driver_broken(driver);
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
    user->now_ns = 0;
    if (begin_closed(user)) {
        go(user);
    }
    if (!driver->engine->is_pumping) {
        driver_arrange(driver);
    }
}

void driver_let_leave(User *user)
{
    if (has_to_leave(user)) {
        user->driver->under_way++;
        leave(user);
        be_ready(user); /* whoever asks may be in the middle of something */
    }
}

int driver_pause(Stepper *stepper, int64_t until_ns)
{
    User *user = (User *)stepper;
    if (until_ns != 0 && timers_add(&user->driver->naps, until_ns, user) < 0) {
        return -1;
    }
    user->paused_until_ns = until_ns;
    return 0;
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
        driver_broken(driver);
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
            driver_broken(driver);
            break;
        }
        if (found == 0 || driver->origin_ns + due_ns > now_ns) {
            break;
        }
        User *user = free_user(driver);
        if (user != NULL) {
            arrivals_pop(&driver->arrivals);
            user->due_ns = user->could_start_ns = driver->origin_ns + due_ns;
            if (++driver->under_way > driver->most_under_way) {
                driver->most_under_way = driver->under_way;
            }
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
    if (driver->naps.count != 0) {
        int64_t now_ns = engine_now();
        while ((user = timers_take(&driver->naps, now_ns)) != NULL) {
            /* One that was given up is still in the heap, and means nothing. */
            if (user->paused_until_ns != 0 && user->paused_until_ns <= now_ns && user->state == STATE_WAITING) {
                user->paused_until_ns = 0;
                go(user);
            }
        }
    }
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
            if (user->is_leaving) {
                go(user);
            } else if (driver->is_open ? begin_open(user) : begin_closed(user)) {
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
        driver_broken(driver);
        return;
    }
    if (PyContext_Enter(user->context) < 0) {
        Py_DECREF(error);
        driver_broken(driver);
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
        driver_broken(driver);
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
        User *user = driver->users[position];
        close_coroutine(user);
        forget_results(user);
        Py_CLEAR(user->failure);
        driver->interrupted += user->is_iterating;
        user->is_iterating = 0;
        user->state = STATE_RESTING;
    }
    driver->under_way = 0;
    driver->ready_first = driver->ready_last = NULL;
    timers_free(&driver->pauses);
    timers_free(&driver->naps);
    Py_CLEAR(driver->arrivals.source);
    driver->arrivals.next = driver->arrivals.count = 0;
}
