/* Runs virtual users whose steps await nothing but Talka's clients, without Tasks: it calls the steps of each user
   itself, sends into their coroutines when an answer is in, and counts what came of it.

   The plan is not its business: how many users are wanted, when to stop and what a failure means is decided in Python
   (engine/load/native_executor.py). Everything rare is done there too: exceptions, answers that are not accepted, metrics, checks
   that fail. What is counted here is handed over by `drain` and `drain_window`.

   driver.c runs the users, driver_counts.c counts what they do, driver_type.c is the type that Python sees. */
#ifndef TALKA_DRIVER_H
#define TALKA_DRIVER_H

#include "call.h"
#include "client.h"
#include "counters.h"
#include "engine.h"
#include "schedule.h"

#define MAX_NODES 64     /* one bit each */
#define MAX_ARGUMENTS 64 /* of one node */
#define MICROSECOND 1000
/* Arrivals wake us no more often than this: at high rates a timer for each would cost more than the requests. */
#define PUMP_GAP_NS (30 * MICROSECOND)

/* As engine/load/native_executor.py numbers them. */
enum { KIND_STEP = 0, KIND_COUNTED = 1, KIND_METRIC = 2, KIND_CHECK = 3, KIND_HOOK = 4 }; /* STEP, HOOK: measured */
enum { PHASE_START = 0, PHASE_LAYER = 1, PHASE_STOP = 2 };
enum { RAISED_FAILURE = 0, RAISED_SKIP = 1, RAISED_END = 2 };
/* What happens before an iteration to a user that has run one. */
enum { RENEWAL_NONE = 0, RENEWAL_COOKIES = 1, RENEWAL_OBJECT = 2, RENEWAL_PYTHON = 3 };

/* Calls of one method under one name that went well. The others are counted in Python. */
typedef struct {
    PyObject *name; /* None: the method's own */
    uint64_t ok;
    Histogram response_time;
    Histogram service_time;
    Statuses statuses;
} Row;

typedef struct {
    PyObject *name;
    PyObject *function;
    PyObject *names;   /* of the arguments, a tuple: prepared ones, then results; NULL without any */
    PyObject **values; /* the prepared ones */
    int value_count;
    int *inputs; /* the nodes whose results are handed over */
    int input_count;
    uint64_t after; /* a bit for every node it waits for */
    uint64_t needs; /* and for those of them whose results it takes */
    int kind;
    int phase;
    int is_async;
    int layer;
    int is_due;       /* when the iteration is; others when what comes before them is done */
    int opens_layer;
    int keeps_result; /* a later node wants it */
    int keeps_last;   /* the user's code may ask for it */
    PyObject *expect;

    uint64_t ok;
    uint64_t skipped;
    uint64_t interrupted;
    Histogram response_time; /* ready for what is measured */
    uint64_t window_count;   /* since the last `drain_window`: runs that went well, and */
    Histogram window;        /* their response times */
    Row **rows;
    int row_count;
    PyObject *row_numbers; /* a dict, by name; NULL before the first */
} Node;

enum { STATE_RESTING = 0, STATE_ACTIVE, STATE_WAITING, STATE_READY, STATE_PAUSING };

typedef struct Driver Driver;

typedef struct User {
    Stepper stepper; /* first: the engine hands it back to `resume` */
    Driver *driver;
    struct User *next_ready;
    PyObject *workflow;
    PyObject *template;  /* NULL, or the attributes that a fresh workflow begins with */
    Client *client;      /* NULL if it is not of this engine */
    PyObject *context;   /* of its own, as a Task's would be */
    PyObject *coroutine; /* of the node under way */
    PyObject **results;  /* by node; NULL when no node wants another's */
    PyObject *failure;   /* of the first call of the node under way that failed; NULL without one */
    uint64_t done;       /* a bit for every node that gave a result in this iteration */
    uint64_t passed;     /* and for every one that was skipped: what only comes after it runs */
    int64_t iterations_left; /* below 0: no limit of its own */
    int64_t due_ns;          /* of the iteration */
    int64_t intended_ns;     /* of the node under way */
    int64_t could_start_ns;
    int64_t began_ns;        /* when the iteration really began */
    int64_t now_ns;          /* when the node before ended; 0: long ago, look at the clock */
    int64_t paused_until_ns; /* inside a step; 0: it does not pause */
    int32_t position;
    uint16_t node;
    uint16_t end; /* the node it does not come to */
    uint8_t state;
    uint8_t has_waited;   /* the event loop had its turn during this iteration */
    uint8_t has_answer;   /* a call of the node under way was answered, or waited for an answer until it was too late */
    uint8_t has_begun;    /* its first methods (PHASE_START) went well */
    uint8_t has_left;     /* its last ones were run */
    uint8_t is_used;      /* it has run an iteration */
    uint8_t is_iterating;
    uint8_t is_leaving;
    uint8_t is_over;      /* a feed has no row left for this iteration */
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
    int first_layer; /* the number of its first node; those before are run when a user begins */
    int first_stop;  /* the same of those that are run when a user leaves */
    int keeps_results;
    User **users;
    Py_ssize_t user_count;
    Py_ssize_t user_capacity;
    User **idle; /* a stack, as large as users; open model */
    Py_ssize_t idle_count;
    User *ready_first; /* those that must let the event loop have its turn */
    User *ready_last;
    Timers pauses; /* between iterations */
    Timers naps;   /* inside steps */
    Arrivals arrivals;
    int64_t origin_ns;
    Py_ssize_t max_users;
    long long wanted;
    long long iterations_left; /* shared by all users; below 0: no limit */
    Py_ssize_t under_way;
    Py_ssize_t most_under_way; /* since the last window; open model */
    char has_fresh_users;
    char renewal;
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
    uint64_t interrupted;
    uint64_t busy_ns; /* from the real beginnings of iterations to their ends */
    uint64_t dropped;
    Histogram start_lag;
    int64_t window_ends_ns;

    /* Python. */
    PyObject *outcomes; /* see engine/load/native_executor.py */
    PyObject *think;    /* NULL without a pause */
    PyObject *last;     /* NULL, or the shard's last response of each step */
};

/* Interned texts; once, before the first driver. -1 with an exception set. */
int driver_ready_texts(void);
int driver_ready_count_texts(void);

/* An exception is set that no user's code is to blame for: the run ends with it. */
void driver_broken(Driver *driver);

/* Calls `outcomes.roll`, which drains the window and tells when the next one ends. -1 with an exception set. */
int driver_roll(Driver *driver, int64_t now_ns);

/* The engine's calls when a call of a user ended. */
void driver_answered(Stepper *stepper, PyObject *name, PyObject *response);
void driver_failed(Stepper *stepper, PyObject *name, PyObject *error, int64_t intended_ns);

/* A measured node ended well. */
void driver_ended_well(Driver *driver, Node *node, int64_t intended_ns, int64_t now_ns);

/* What was counted since the last time; new references. */
PyObject *driver_drained_window(Driver *driver);
PyObject *driver_drained(Driver *driver);

void driver_free_rows(Node *node);

/* Closed model and users that stay: lets a resting one run its last methods, if it has any to run. */
void driver_let_leave(User *user);

/* The engine's call when a user pauses inside a step. */
int driver_pause(Stepper *stepper, int64_t until_ns);

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
