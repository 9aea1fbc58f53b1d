/* Runs virtual users whose steps await nothing but Talka's clients, without Tasks: it calls the steps of each user
   itself, sends into their coroutines when an answer is in, and counts what came of it.

   The plan is not its business: how many users are wanted, when to stop and what a failure means is decided in Python
   (engine/driven.py). Everything rare is done there too: exceptions, answers that are not accepted, metrics, checks
   that fail. What is counted here is handed over by `drain` and `drain_window`.

   driver.c runs the users, driver_type.c is the type that Python sees. */
#ifndef TALKA_DRIVER_H
#define TALKA_DRIVER_H

#include "call.h"
#include "counters.h"
#include "engine.h"
#include "schedule.h"

#define MAX_NODES 64     /* one bit each */
#define MAX_ARGUMENTS 64 /* of one node */
#define MICROSECOND 1000
/* Arrivals wake us no more often than this: at high rates a timer for each would cost more than the requests. */
#define PUMP_GAP_NS (30 * MICROSECOND)

/* As engine/driven.py numbers them. */
enum { KIND_MEASURED = 0, KIND_COUNTED = 1, KIND_METRIC = 2, KIND_CHECK = 3 };

typedef struct {
    PyObject *name;
    PyObject *function;
    PyObject *names;   /* of the arguments, a tuple: prepared ones, then results; NULL without any */
    PyObject **values; /* the prepared ones */
    int value_count;
    int *inputs; /* the nodes whose results are handed over */
    int input_count;
    uint64_t after; /* a bit for every node it waits for */
    int kind;
    int is_async;
    int layer;        /* nodes of the first are due when the iteration is */
    int opens_layer;  /* a shard that is ending starts no further layer, but ends the one it is in */
    int keeps_result; /* a later node wants it */
    int keeps_last;   /* the user's code may ask for it */
    PyObject *expect;

    uint64_t ok;
    uint64_t interrupted;
    Histogram response_time;
    Histogram service_time;
    Statuses *statuses; /* NULL for what is not measured */
} Node;

enum { STATE_RESTING = 0, STATE_ACTIVE, STATE_WAITING, STATE_READY, STATE_PAUSING };

typedef struct Driver Driver;

typedef struct User {
    Stepper stepper; /* first: the engine hands it back to `resume` */
    Driver *driver;
    struct User *next_ready;
    PyObject *workflow;
    PyObject *steps;     /* by name: where the last result of a step is kept */
    PyObject *context;   /* of its own, as a Task's would be */
    PyObject *coroutine; /* of the node under way */
    PyObject **results;  /* by node; NULL when no node wants another's */
    uint64_t done;       /* a bit for every node that gave a result in this iteration */
    int64_t iterations_left; /* below 0: no limit of its own */
    int64_t due_ns;          /* of the iteration */
    int64_t intended_ns;     /* of the node under way */
    int64_t could_start_ns;
    int32_t position;
    uint16_t node;
    uint8_t state;
    uint8_t has_waited; /* the event loop had its turn during this iteration */
    uint8_t is_whole;
    uint8_t is_cancelled;
    uint8_t is_cut; /* its cancellation came through: the iteration is over */
} User;

struct Driver {
    PyObject_HEAD
    PyObject *engine_object;
    Engine *engine; /* borrowed from engine_object */
    Node *nodes;
    int node_count;
    int keeps_results;
    User **users;
    Py_ssize_t user_count;
    Py_ssize_t user_capacity;
    User **idle; /* a stack, as large as users; open model */
    Py_ssize_t idle_count;
    User *ready_first; /* those that must let the event loop have its turn */
    User *ready_last;
    Timers pauses;
    Arrivals arrivals;
    int64_t origin_ns;
    Py_ssize_t max_users;
    long long wanted;
    long long iterations_left; /* shared by all users; below 0: no limit */
    Py_ssize_t under_way;
    char is_open;
    char drops;
    char is_backlogged; /* an arrival is due and waits for a user */
    char is_stopping;
    char is_closed;
    char is_looking;
    char is_starting;
    int running; /* how many calls deep users are being run */
    int64_t pumped_ns; /* the pump whose start was seen */

    /* Counted since the last drain. */
    uint64_t started;
    uint64_t iterations;
    uint64_t dropped;
    Histogram start_lag;
    Histogram window;
    int64_t window_ends_ns;

    /* Python. */
    PyObject *outcomes; /* see engine/driven.py */
    PyObject *think;    /* NULL without a pause */
    PyObject *last;     /* NULL, or the shard's last response of each step */
};

/* Interned texts; once, before the first driver. -1 with an exception set. */
int driver_ready_texts(void);

/* Closed model: lets a user run that rests. */
void driver_start_user(User *user);

/* Starts whatever is due by now. */
void driver_look(Driver *driver);

/* Asks the engine to be pumped when something is due. */
void driver_arrange(Driver *driver);

/* The engine's hook. */
void driver_on_pump(Engine *engine, void *argument);

/* The engine's call when a user's answer is in. */
void driver_resume(Stepper *stepper);

/* Throws a cancellation into the step under way, as a Task would. */
void driver_cancel_user(User *user);

/* Leaves the engine and gives up every coroutine. What was counted stays. */
void driver_leave(Driver *driver);

/* What `talka._native` offers of this: Driver. */
int driver_add_types(PyObject *module);

#endif
