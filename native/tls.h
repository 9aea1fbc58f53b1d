/* TLS by Python's ssl module: an SSLObject between two memory BIOs, whose outer ends are the engine's. */
#ifndef TALKA_TLS_H
#define TALKA_TLS_H

#include "engine.h"

typedef struct {
    PyObject *object;    /* ssl.SSLObject, its handshake done */
    PyObject *incoming;  /* ssl.MemoryBIO */
    PyObject *outgoing;
} Tls;

/* A record and its frame at most: what an earlier read may have left in the incoming BIO. */
#define TLS_RECORD_BYTES (32 * 1024)

Tls *tls_new(PyObject *object, PyObject *incoming, PyObject *outgoing);
void tls_free(Tls *tls);

/* Hand over what came from the wire; length 0 for its end. -1 with an exception set. */
int tls_receive(Tls *tls, const char *data, size_t length);

/* Plain bytes, as many as there are. Returns their number, which is 0 for none yet; *ended is set when the server said
 * that there will be no more. -1 with an exception set. */
Py_ssize_t tls_read(Tls *tls, char *into, size_t size, int *ended);

/* Encrypt. Returns what must go on the wire (a new bytes object), or NULL with an exception set. */
PyObject *tls_write(Tls *tls, PyObject *payload);

/* What TLS itself has to say after reading: a new bytes object, or NULL without an exception for nothing. */
PyObject *tls_pending(Tls *tls);

/* The closing words: a new bytes object, or NULL without an exception. */
PyObject *tls_farewell(Tls *tls);

#endif
