/* Counts what users do: the calls of each method by their names, and the runs of the methods. */
#include "driver.h"

#include "response.h"

#define ROWS_LOOKED_AT 8 /* one after the other, before the dict is asked */
#define ROWS_MOST 4096   /* Python allows far fewer; so that a mistake there is an error */

static PyObject *text_row, *text_rejected, *text_unanswered, *text_cut, *text_roll, *text_kind;

int driver_ready_count_texts(void)
{
    struct {
        PyObject **text;
        const char *value;
    } texts[] = {
        {&text_row, "row"}, {&text_rejected, "rejected"}, {&text_unanswered, "unanswered"},
        {&text_cut, "cut"}, {&text_roll, "roll"},         {&text_kind, "kind"},
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

/* Rows. */

static void free_row(Row *row)
{
    if (row != NULL) {
        Py_CLEAR(row->name);
        histogram_free(&row->response_time);
        histogram_free(&row->service_time);
        PyMem_Free(row);
    }
}

void driver_free_rows(Node *node)
{
    for (int number = 0; number < node->row_count; number++) {
        free_row(node->rows[number]);
    }
    PyMem_Free(node->rows);
    node->rows = NULL;
    node->row_count = 0;
    Py_CLEAR(node->row_numbers);
}

/* A further row. NULL with an exception set. */
static Row *add_row(Node *node, PyObject *name)
{
    Row *row = PyMem_Calloc(1, sizeof(Row));
    if (row == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    histogram_init(&row->response_time, FINE_PRECISION);
    histogram_init(&row->service_time, FINE_PRECISION);
    row->name = Py_NewRef(name);
    Row **rows = PyMem_Realloc(node->rows, ((size_t)node->row_count + 1) * sizeof(Row *));
    if (rows == NULL) {
        PyErr_NoMemory();
        free_row(row);
        return NULL;
    }
    node->rows = rows;
    if (histogram_ready(&row->response_time) < 0 || histogram_ready(&row->service_time) < 0) {
        free_row(row);
        return NULL;
    }
    rows[node->row_count++] = row;
    return row;
}

/* A name that was not seen before: Python says which row is its, below 0 if it will not have one of its own. */
static Row *new_row(Driver *driver, int number, PyObject *name)
{
    Node *node = &driver->nodes[number];
    PyObject *place = PyLong_FromLong(number);
    if (place == NULL) {
        return NULL;
    }
    PyObject *told = PyObject_CallMethodObjArgs(driver->outcomes, text_row, place, name, NULL);
    Py_DECREF(place);
    if (told == NULL) {
        return NULL;
    }
    long found = PyLong_AsLong(told);
    if (found == -1 && PyErr_Occurred()) {
        Py_DECREF(told);
        return NULL;
    }
    int is_kept = found >= 0;
    found = is_kept ? found : -1 - found;
    if (found > node->row_count || found >= ROWS_MOST) {
        Py_DECREF(told);
        PyErr_SetString(PyExc_ValueError, "there is no such row");
        return NULL;
    }
    Row *row = found < node->row_count ? node->rows[found] : add_row(node, name);
    if (row != NULL && is_kept) {
        if (node->row_numbers == NULL) {
            node->row_numbers = PyDict_New();
        }
        if (node->row_numbers == NULL || PyDict_SetItem(node->row_numbers, name, told) < 0) {
            row = NULL;
        }
    }
    Py_DECREF(told);
    return row;
}

static Row *row_of(Driver *driver, int number, PyObject *name)
{
    Node *node = &driver->nodes[number];
    for (int place = 0; place < node->row_count && place < ROWS_LOOKED_AT; place++) {
        if (node->rows[place]->name == name) {
            return node->rows[place];
        }
    }
    if (node->row_numbers != NULL) {
        PyObject *found = PyDict_GetItemWithError(node->row_numbers, name);
        if (found != NULL) {
            return node->rows[PyLong_AsLong(found)];
        }
        if (PyErr_Occurred()) {
            return NULL;
        }
    }
    return new_row(driver, number, name);
}

/* Calls. */

/* The failure of a call, as Python tells it and as it is kept if it is the node's first; taken over. */
static void note_failure(User *user, PyObject *failure)
{
    if (failure == NULL) {
        driver_broken(user->driver);
    } else if (user->failure == NULL && failure != Py_None) {
        user->failure = failure;
    } else {
        Py_DECREF(failure);
    }
}

void driver_answered(Stepper *stepper, PyObject *name, PyObject *response)
{
    User *user = (User *)stepper;
    Driver *driver = user->driver;
    ResponseData *data = response_data(response);
    name = name == NULL ? Py_None : name;
    user->has_answer = 1;
    if (data->accepted) {
        Row *row = row_of(driver, user->node, name);
        if (row == NULL) {
            driver_broken(driver);
            return;
        }
        row->ok++;
        histogram_record(&row->response_time, (data->done_ns - data->intended_ns) / MICROSECOND);
        histogram_record(&row->service_time, (data->done_ns - data->sent_ns) / MICROSECOND);
        statuses_record(&row->statuses, data->status);
        return;
    }
    PyObject *number = PyLong_FromLong(user->node);
    PyObject *failure = number == NULL ? NULL
                                       : PyObject_CallMethodObjArgs(driver->outcomes, text_rejected, number, name,
                                                                    response, NULL);
    Py_XDECREF(number);
    note_failure(user, failure);
}

static int is_timeout(PyObject *failure)
{
    PyObject *kind = PyObject_GetAttr(failure, text_kind);
    if (kind == NULL) {
        PyErr_Clear();
        return 0;
    }
    int found = PyUnicode_Check(kind) && PyUnicode_CompareWithASCIIString(kind, "timeout") == 0;
    Py_DECREF(kind);
    return found;
}

void driver_failed(Stepper *stepper, PyObject *name, PyObject *error, int64_t intended_ns)
{
    User *user = (User *)stepper;
    Driver *driver = user->driver;
    PyObject *number = PyLong_FromLong(user->node);
    PyObject *intended = PyLong_FromLongLong(intended_ns);
    name = name == NULL ? Py_None : name;
    PyObject *failure = NULL;
    if (number != NULL && intended != NULL) {
        if (PyErr_GivenExceptionMatches(error, known.exchange_failed)) {
            failure = PyObject_CallMethodObjArgs(driver->outcomes, text_unanswered, number, name, error, intended, NULL);
            user->has_answer |= failure != NULL && is_timeout(failure);
        } else {
            failure = PyObject_CallMethodObjArgs(driver->outcomes, text_cut, number, name, NULL);
        }
    }
    Py_XDECREF(number);
    Py_XDECREF(intended);
    note_failure(user, failure);
}

/* Runs of nodes. */

int driver_roll(Driver *driver, int64_t now_ns)
{
    PyObject *now = PyLong_FromLongLong(now_ns);
    if (now == NULL) {
        return -1;
    }
    PyObject *told = PyObject_CallMethodOneArg(driver->outcomes, text_roll, now);
    Py_DECREF(now);
    if (told == NULL) {
        return -1;
    }
    Py_DECREF(told);
    return 0;
}

void driver_ended_well(Driver *driver, Node *node, int64_t intended_ns, int64_t now_ns)
{
    if (now_ns >= driver->window_ends_ns && driver_roll(driver, now_ns) < 0) {
        driver_broken(driver);
    }
    int64_t response_us = (now_ns - intended_ns) / MICROSECOND;
    node->ok++;
    node->window_count++;
    histogram_record(&node->response_time, response_us);
    histogram_record(&node->window, response_us);
}

/* Draining. */

PyObject *driver_drained_window(Driver *driver)
{
    PyObject *steps = PyList_New(0);
    for (int number = 0; steps != NULL && number < driver->node_count; number++) {
        Node *node = &driver->nodes[number];
        if (node->window_count == 0) {
            continue;
        }
        PyObject *window = histogram_drain(&node->window);
        PyObject *step =
            window == NULL ? NULL : Py_BuildValue("(iKN)", number, (unsigned long long)node->window_count, window);
        if (step == NULL || PyList_Append(steps, step) < 0) {
            Py_CLEAR(steps);
        } else {
            node->window_count = 0;
        }
        Py_XDECREF(step);
    }
    if (steps == NULL) {
        return NULL;
    }
    PyObject *drained = Py_BuildValue("(KKKKKnN)", (unsigned long long)driver->started,
                                      (unsigned long long)driver->iterations, (unsigned long long)driver->interrupted,
                                      (unsigned long long)driver->busy_ns,
                                      (unsigned long long)driver->dropped, driver->under_way, steps);
    if (drained != NULL) {
        driver->started = driver->iterations = driver->interrupted = driver->busy_ns = driver->dropped = 0;
        driver->most_under_way = driver->under_way;
    }
    return drained;
}

static PyObject *drained_row(Row *row)
{
    if (row->ok == 0) {
        Py_RETURN_NONE;
    }
    PyObject *response_time = histogram_drain(&row->response_time);
    PyObject *service_time = response_time != NULL ? histogram_drain(&row->service_time) : NULL;
    PyObject *statuses = service_time != NULL ? statuses_drain(&row->statuses) : NULL;
    if (statuses == NULL) {
        Py_XDECREF(response_time);
        Py_XDECREF(service_time);
        return NULL;
    }
    PyObject *drained =
        Py_BuildValue("(KNNN)", (unsigned long long)row->ok, response_time, service_time, statuses);
    if (drained != NULL) {
        row->ok = 0;
    }
    return drained;
}

static PyObject *drained_node(Node *node)
{
    PyObject *rows = PyTuple_New(node->row_count);
    for (int number = 0; rows != NULL && number < node->row_count; number++) {
        PyObject *row = drained_row(node->rows[number]);
        if (row == NULL) {
            Py_CLEAR(rows);
        } else {
            PyTuple_SET_ITEM(rows, number, row);
        }
    }
    PyObject *response_time = NULL;
    if (rows != NULL) {
        response_time = node->response_time.count != 0 ? histogram_drain(&node->response_time) : Py_NewRef(Py_None);
    }
    if (response_time == NULL) {
        Py_XDECREF(rows);
        return NULL;
    }
    PyObject *drained =
        Py_BuildValue("(KKKNN)", (unsigned long long)node->ok, (unsigned long long)node->skipped,
                      (unsigned long long)node->interrupted, response_time, rows);
    if (drained != NULL) {
        node->ok = node->skipped = node->interrupted = 0;
    }
    return drained;
}

PyObject *driver_drained(Driver *driver)
{
    PyObject *start_lag = histogram_drain(&driver->start_lag);
    PyObject *nodes = start_lag != NULL ? PyTuple_New(driver->node_count) : NULL;
    for (int number = 0; nodes != NULL && number < driver->node_count; number++) {
        PyObject *node = drained_node(&driver->nodes[number]);
        if (node == NULL) {
            Py_CLEAR(nodes);
        } else {
            PyTuple_SET_ITEM(nodes, number, node);
        }
    }
    if (nodes == NULL) {
        Py_XDECREF(start_lag);
        return NULL;
    }
    return Py_BuildValue("(NN)", start_lag, nodes);
}
