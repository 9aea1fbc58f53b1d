/* When something is due: a heap of instants, and the arrivals of an open plan. */
#ifndef TALKA_SCHEDULE_H
#define TALKA_SCHEDULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

/* A binary heap: the earliest on top, whoever came first where two are due at once being of no importance. */
typedef struct {
    int64_t due_ns;
    void *item;
} Timer;

typedef struct {
    Timer *timers;
    size_t count;
    size_t capacity;
} Timers;

/* -1 without memory, with the exception set. */
int timers_add(Timers *timers, int64_t due_ns, void *item);

/* The item that is due first, if it is due by now; else NULL. */
void *timers_take(Timers *timers, int64_t now_ns);

void timers_free(Timers *timers);

/* Due times come from a Python iterator of integers, ascending, in nanoseconds since the plan's origin. They are taken
   a few at a time: a plan may have billions. */
#define ARRIVALS_AHEAD 32

typedef struct {
    PyObject *source; /* NULL once it has ended */
    int64_t due_ns[ARRIVALS_AHEAD];
    int next;
    int count;
} Arrivals;

/* 1 with the next due time, 0 when there is none, -1 with an exception set. */
int arrivals_peek(Arrivals *arrivals, int64_t *due_ns);

/* The one looked at is taken. */
static inline void arrivals_pop(Arrivals *arrivals)
{
    arrivals->next++;
}

#endif
