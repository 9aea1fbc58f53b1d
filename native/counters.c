#include "counters.h"

#include <string.h>

static size_t counters_of(const Histogram *histogram)
{
    return histogram->precision == FINE_PRECISION ? FINE_COUNTERS : COARSE_COUNTERS;
}

static void forget(Histogram *histogram)
{
    histogram->count = 0;
    histogram->total = 0;
    histogram->min = INT64_MAX;
    histogram->max = 0;
}

void histogram_init(Histogram *histogram, int precision)
{
    histogram->counts = NULL;
    histogram->precision = precision;
    forget(histogram);
}

void histogram_free(Histogram *histogram)
{
    PyMem_RawFree(histogram->counts);
    histogram->counts = NULL;
    forget(histogram);
}

int histogram_ready(Histogram *histogram)
{
    if (histogram->counts == NULL) {
        histogram->counts = PyMem_RawCalloc(counters_of(histogram), sizeof(uint64_t));
        if (histogram->counts == NULL) {
            PyErr_NoMemory();
            return -1;
        }
    }
    return 0;
}

static int put_count(PyObject *counts, uint32_t index, uint64_t times)
{
    PyObject *key = PyLong_FromUnsignedLong(index);
    PyObject *value = PyLong_FromUnsignedLongLong(times);
    int failed = key == NULL || value == NULL || PyDict_SetItem(counts, key, value) < 0;
    Py_XDECREF(key);
    Py_XDECREF(value);
    return failed ? -1 : 0;
}

PyObject *histogram_drain(Histogram *histogram)
{
    PyObject *counts = PyDict_New();
    if (counts == NULL) {
        return NULL;
    }
    uint32_t low = 0, high = 0; /* counters below and above were not touched since the last time */
    if (histogram->count != 0) {
        low = counter_index(histogram->min, histogram->precision);
        high = counter_index(histogram->max, histogram->precision);
        for (uint32_t index = low; index <= high; index++) {
            uint64_t times = histogram->counts[index];
            if (times != 0 && put_count(counts, index, times) < 0) {
                Py_DECREF(counts);
                return NULL;
            }
        }
    }
    long long min = histogram->count != 0 ? (long long)histogram->min : 0;
    PyObject *drained =
        Py_BuildValue("(NKKLL)", counts, (unsigned long long)histogram->count, (unsigned long long)histogram->total, min,
                      (long long)histogram->max);
    if (drained != NULL && histogram->count != 0) {
        memset(histogram->counts + low, 0, ((size_t)high - low + 1) * sizeof(uint64_t));
        forget(histogram);
    }
    return drained;
}

PyObject *statuses_drain(Statuses *statuses)
{
    PyObject *counts = PyDict_New();
    if (counts == NULL) {
        return NULL;
    }
    for (int place = 0; place < statuses->seen_count; place++) {
        uint16_t status = statuses->seen[place];
        if (put_count(counts, status, statuses->counts[status]) < 0) {
            Py_DECREF(counts);
            return NULL;
        }
    }
    for (int place = 0; place < statuses->seen_count; place++) {
        statuses->counts[statuses->seen[place]] = 0;
    }
    statuses->seen_count = 0;
    return counts;
}

/* DenseHistogram: the same for Python. */

typedef struct {
    PyObject_HEAD
    Histogram histogram;
} DenseHistogram;

static PyObject *dense_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"precision", NULL};
    int precision = FINE_PRECISION;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|i", names, &precision)) {
        return NULL;
    }
    if (precision != FINE_PRECISION && precision != COARSE_PRECISION) {
        PyErr_Format(PyExc_ValueError, "a precision of %d bits has no layout: 7 and 10 have", precision);
        return NULL;
    }
    DenseHistogram *self = (DenseHistogram *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    histogram_init(&self->histogram, precision);
    if (histogram_ready(&self->histogram) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void dense_dealloc(DenseHistogram *self)
{
    PyTypeObject *type = Py_TYPE(self);
    histogram_free(&self->histogram);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *dense_record(DenseHistogram *self, PyObject *argument)
{
    int overflow = 0;
    long long value = PyLong_AsLongLongAndOverflow(argument, &overflow);
    if (value == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (overflow != 0) {
        value = overflow > 0 ? HIGHEST_VALUE : 0;
    }
    histogram_record(&self->histogram, value);
    Py_RETURN_NONE;
}

static PyObject *dense_drain(DenseHistogram *self, PyObject *Py_UNUSED(ignored))
{
    return histogram_drain(&self->histogram);
}

static PyMethodDef dense_methods[] = {
    {"record", (PyCFunction)dense_record, METH_O, "Count a value."},
    {"drain", (PyCFunction)dense_drain, METH_NOARGS,
     "(counts by index, count, total, least, greatest) of what came since the last time."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot dense_slots[] = {
    {Py_tp_new, dense_new},
    {Py_tp_dealloc, dense_dealloc},
    {Py_tp_methods, dense_methods},
    {Py_tp_doc, "Counts values in the layout of talka.stats.histogram, until they are drained."},
    {0, NULL},
};

static PyType_Spec dense_spec = {
    .name = "talka._native.DenseHistogram",
    .basicsize = sizeof(DenseHistogram),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = dense_slots,
};

int counters_add_types(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &dense_spec, NULL);
    if (type == NULL) {
        return -1;
    }
    int added = PyModule_AddObjectRef(module, "DenseHistogram", type);
    Py_DECREF(type);
    return added;
}
