#include "schedule.h"

int timers_add(Timers *timers, int64_t due_ns, void *item)
{
    if (timers->count == timers->capacity) {
        size_t capacity = timers->capacity != 0 ? timers->capacity * 2 : 64;
        Timer *grown = PyMem_RawRealloc(timers->timers, capacity * sizeof(Timer));
        if (grown == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        timers->timers = grown;
        timers->capacity = capacity;
    }
    size_t place = timers->count++;
    while (place != 0) {
        size_t above = (place - 1) / 2;
        if (timers->timers[above].due_ns <= due_ns) {
            break;
        }
        timers->timers[place] = timers->timers[above];
        place = above;
    }
    timers->timers[place] = (Timer){due_ns, item};
    return 0;
}

void *timers_take(Timers *timers, int64_t now_ns)
{
    if (timers->count == 0 || timers->timers[0].due_ns > now_ns) {
        return NULL;
    }
    void *item = timers->timers[0].item;
    Timer last = timers->timers[--timers->count];
    size_t place = 0;
    for (;;) {
        size_t below = 2 * place + 1;
        if (below >= timers->count) {
            break;
        }
        if (below + 1 < timers->count && timers->timers[below + 1].due_ns < timers->timers[below].due_ns) {
            below++;
        }
        if (timers->timers[below].due_ns >= last.due_ns) {
            break;
        }
        timers->timers[place] = timers->timers[below];
        place = below;
    }
    timers->timers[place] = last;
    return item;
}

void timers_free(Timers *timers)
{
    PyMem_RawFree(timers->timers);
    *timers = (Timers){NULL, 0, 0};
}

int arrivals_peek(Arrivals *arrivals, int64_t *due_ns)
{
    if (arrivals->next == arrivals->count) {
        arrivals->next = arrivals->count = 0;
        PyObject *source = arrivals->source;
        while (source != NULL && arrivals->count < ARRIVALS_AHEAD) {
            PyObject *due = PyIter_Next(source);
            if (due == NULL) {
                Py_CLEAR(arrivals->source);
                if (PyErr_Occurred()) {
                    return -1;
                }
                break;
            }
            long long instant = PyLong_AsLongLong(due);
            Py_DECREF(due);
            if (instant == -1 && PyErr_Occurred()) {
                return -1;
            }
            arrivals->due_ns[arrivals->count++] = instant;
        }
        if (arrivals->count == 0) {
            return 0;
        }
    }
    *due_ns = arrivals->due_ns[arrivals->next];
    return 1;
}
