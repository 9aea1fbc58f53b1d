/* The HTTP client of one virtual user: the part that is used for every call. */
#ifndef TALKA_CLIENT_H
#define TALKA_CLIENT_H

#include "connection.h"

enum { ARGUMENT_HEADERS, ARGUMENT_PARAMS, ARGUMENT_COOKIES, ARGUMENT_AUTH, ARGUMENT_DATA, ARGUMENT_JSON,
       ARGUMENT_TIMEOUT, ARGUMENT_REDIRECTS, ARGUMENT_NAME, ARGUMENT_COUNT };

struct Client {
    PyObject_HEAD
    Engine *engine;
    PyObject *owner;      /* the engine of Python */
    PyObject *pools;      /* dict of origin to Pool */
    PyObject *jar;        /* None until the first cookie */
    PyObject *origin;     /* the origin asked last, and its pool */
    Pool *pool;
};

extern PyTypeObject ClientType;

/* The request for these arguments: kept, or made by the client's Python part and kept if it may be. A new reference,
 * or NULL with an exception set. */
Request *client_request(Client *client, int method, PyObject *url, PyObject **arguments);

/* An idle connection for the request: a new reference, or NULL without an exception. */
Connection *client_idle(Client *client, Request *request);

PyObject *client_method_name(int method);

int client_ready_types(PyObject *module);

#endif
