/* An answer as users see it: a subclass of work.responses.HTTPResponse whose data stay in C until they are read. */
#ifndef TALKA_RESPONSE_H
#define TALKA_RESPONSE_H

#include "engine.h"
#include "parser.h"

/* Behind the fields of the Python base class, which stay unused. */
typedef struct {
    int64_t intended_ns;
    int64_t sent_ns;
    int64_t first_byte_ns;
    int64_t done_ns;
    int64_t connect_ns;
    int64_t tls_ns;
    int32_t status;
    int32_t accepted;
    PyObject *method;
    PyObject *url;
    PyObject *raw_headers;  /* NULL until asked for */
    PyObject *body;         /* NULL until asked for */
    PyObject *content;      /* NULL until decoded */
    Message message;
} ResponseData;

/* Set once by response_ready_types; constant from then on. */
extern PyTypeObject *ResponseType;
extern Py_ssize_t response_offset;

static inline int response_check(PyObject *object)
{
    return Py_IS_TYPE(object, ResponseType);
}

static inline ResponseData *response_data(PyObject *response)
{
    return (ResponseData *)((char *)response + response_offset);
}

/* An empty answer, its message reset. */
PyObject *response_new(void);

int response_ready_types(PyObject *module);

#endif
