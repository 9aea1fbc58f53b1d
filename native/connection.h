/* One HTTP/1.1 connection: writes a request, reads its answer, and says when both happened.
 *
 * A connection carries one exchange at a time and never repeats one. It is alive (has a descriptor and a number in the
 * engine) until connection_drop or connection_close; what remains is an empty shell for those who still hold it.
 */
#ifndef TALKA_CONNECTION_H
#define TALKA_CONNECTION_H

#include "call.h"
#include "parser.h"
#include "tls.h"

/* The connections of one virtual user to one origin. The lists borrow: the engine holds what is open. */
typedef struct {
    PyObject_HEAD
    Link open;       /* idle and busy ones, by `open_link` */
    Link idle;       /* by `idle_link`; the last is taken first */
    int open_count;
    int idle_count;
    int opening;
    int lost;        /* closed and not yet replaced: the next to be opened are reconnects */
} Pool;

/* A request, ready for the wire. Made of the Request of engine/clients/requests.py. */
struct Request {
    PyObject_HEAD
    PyObject *source;         /* that one */
    PyObject *method;
    PyObject *url;
    PyObject *payload;        /* bytes */
    PyObject *origin;         /* interned, so that equal ones are the same */
    int is_head;
    int is_last;
    PyObject *arguments[6];   /* prepared ones it was made of, or NULL each */
    struct Request *next;     /* of the same method and URL, with other arguments */
};

struct Connection {
    PyObject_HEAD
    Engine *engine;
    Pool *pool;
    int fd;
    uint32_t slot;
    Link open_link;
    Link idle_link;
    Link look_link;
    int64_t due_ns;          /* when it is too late; moved on without telling the wheel */
    int64_t look_ns;         /* when the wheel looks next */
    int64_t total_due_ns;
    int64_t sent_ns;
    int64_t first_byte_ns;
    int64_t connect_ns;      /* what opening took; the first answer takes them away */
    int64_t tls_ns;
    Call *call;              /* borrowed: whose exchange this is; NULL when idle */
    Request *request;
    PyObject *response;      /* being filled */
    PyObject *unsent;        /* bytes that the socket did not take yet, or NULL */
    size_t unsent_from;
    Tls *tls;                /* NULL on plain connections */
    uint8_t is_open;
    Parser parser;
};

extern PyTypeObject PoolType;
extern PyTypeObject RequestType;
extern PyTypeObject ConnectionType;

/* Start an exchange for the call. When it ends, now or later, call_answered or call_failed is called. Returns -1 with
 * an exception set when it could not begin at all. */
int connection_send(Connection *connection, Call *call, Request *request, int64_t due_ns, int64_t total_due_ns);

/* From the engine. */
void connection_ready(Connection *connection, uint32_t events);
void connection_late(Connection *connection, int64_t now_ns);

/* Cut it. An exchange under way must have been taken care of. */
void connection_drop(Connection *connection);

/* Let go of it politely. An exchange under way is interrupted: counted so, and its call cancelled. */
void connection_close(Connection *connection);

/* The exchange is nobody's any more: forget the call and cut the connection. */
void connection_abandon(Connection *connection);

/* The idle connection used last, taken out; a new reference or NULL. */
Connection *pool_take(Pool *pool);
void pool_put(Pool *pool, Connection *connection);

Request *request_from(PyObject *source);

int connection_ready_types(PyObject *module);

#endif
