/* Histograms with a counter for every index, for what is counted at every request.

   The layout is that of src/talka/stats/histogram.py. They only gather: `drain` hands over what came since the last
   time, and the sparse histograms in Python add it up. */
#ifndef TALKA_COUNTERS_H
#define TALKA_COUNTERS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#define HIGHEST_VALUE 3600000000LL /* an hour, in microseconds: values above are recorded as this one */
#define FINE_PRECISION 10
#define FINE_COUNTERS (23 << FINE_PRECISION)
#define COARSE_PRECISION 7
#define COARSE_COUNTERS (26 << COARSE_PRECISION)

typedef struct {
    uint64_t *counts; /* allocated with the first value; pages that are never touched cost nothing */
    int precision;
    uint64_t count;
    uint64_t total;
    int64_t min;
    int64_t max;
} Histogram;

void histogram_init(Histogram *histogram, int precision);
void histogram_free(Histogram *histogram);

/* Room for the counters. -1 without memory. Called once, so that recording cannot fail. */
int histogram_ready(Histogram *histogram);

/* (counts by index, count, total, least, greatest) of what came since the last time; a new reference. Empties it. */
PyObject *histogram_drain(Histogram *histogram);

static inline uint32_t counter_index(int64_t value, int precision)
{
    if (value < ((int64_t)2 << precision)) {
        return (uint32_t)value;
    }
    int bits = 64 - __builtin_clzll((unsigned long long)value) - precision - 1;
    return ((uint32_t)bits << precision) + (uint32_t)(value >> bits);
}

/* Below 0 it counts as 0. The histogram must be ready. */
static inline void histogram_record(Histogram *histogram, int64_t value)
{
    if (value < 0) {
        value = 0;
    }
    if (value > HIGHEST_VALUE) {
        value = HIGHEST_VALUE;
    }
    histogram->counts[counter_index(value, histogram->precision)]++;
    if (value > histogram->max) {
        histogram->max = value;
    }
    if (value < histogram->min) {
        histogram->min = value;
    }
    histogram->count++;
    histogram->total += (uint64_t)value;
}

#define STATUSES 1000 /* a status has three digits */

/* How often each status came, in the order in which they first came: further ones than are kept fold by that order. */
typedef struct {
    uint64_t counts[STATUSES];
    uint16_t seen[STATUSES];
    int seen_count;
} Statuses;

static inline void statuses_record(Statuses *statuses, int status)
{
    if (status < 0 || status >= STATUSES) {
        status = 0;
    }
    if (statuses->counts[status]++ == 0) {
        statuses->seen[statuses->seen_count++] = (uint16_t)status;
    }
}

/* {status: times} since the last time, first come first; a new reference. Empties it. */
PyObject *statuses_drain(Statuses *statuses);

/* What `talka._native` offers of this: DenseHistogram. */
int counters_add_types(PyObject *module);

#endif
