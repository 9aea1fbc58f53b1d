/* A target that is no limit: HTTP/1.1 on one thread, with nothing in it but answers of constant text and counters.
 *
 * Usage: epoll_server [PORT [CORE]]. Listens on 127.0.0.1 (port 0, the default: any free one), on that processor if one
 * is named, prints "listening PORT" and ends when its standard input does. Keeps connections, answers pipelined
 * requests in order, and sends all answers to what one read brought with one system call.
 *
 *   /             200 "ok"                      /delay/MS     200 "ok", so many milliseconds later
 *   /json, /page  200, JSON of 90 bytes         /status/NNN   that status
 *   /cookie       200, sets a cookie; says      /login        POST: 200, a token that no other login gets
 *                 "known" if it came with one   /order        POST: 201 with `Authorization: Bearer TOKEN`, else 401
 *   /redirect     302 to /                      /counts       200, what was counted, as JSON; is not counted itself
 *
 * Counted is every request that was read to its end, also one answered with an error: by its path, and by the name that
 * an `X-Name` header or `name=` in its query gives. Whatever is no proper request is answered with 4xx or 5xx, and its
 * connection closed. Every buffer has a limit. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define HEAD_MOST 16384
#define INPUT_MOST 65536
/* Answers of one read are gathered up to FLUSH_AT; beyond it there is room for the largest one, that of /counts. */
#define FLUSH_AT 65536
#define NAMES_MOST 512
#define NAME_MOST 96
#define ANSWER_MOST (2 * NAMES_MOST * (6 * NAME_MOST + 32) + 4096)
#define BODY_MOST (1LL << 40)
#define DELAY_MOST_MS 60000
#define DRAINED_MOST (1 << 20)
#define EVENTS_MOST 512
#define BACKLOG 16384

static const char JSON[] =
    "{\"id\": 7, \"name\": \"talka\", \"tags\": [\"load\", \"tests\"], \"price\": 125.75, \"is_stocked\": true}";
_Static_assert(sizeof JSON - 1 == 90, "the documented size");

/* One connection. What it cannot take or give at once is kept in buffers of its own, so an idle one is small. */
typedef struct Connection {
    int fd;              /* -1: closed, freed after the batch of events it may still be in */
    uint32_t waits_for;  /* what epoll watches it for */
    char *input;         /* read and not yet understood */
    size_t input_size;
    char *output;        /* answered and not yet taken by the peer */
    size_t output_size, output_sent;
    int64_t body_left;   /* of the request whose head was read: to be thrown away */
    bool in_body;
    bool is_last;        /* close once all output is gone */
    bool is_refused;     /* read on and throw away: a close with input unread would take the answer from the peer */
    size_t drained;
    bool is_delayed;
    int64_t due_ns;      /* when its delayed answer is */
    size_t heap_index;
    struct Connection *next_closed;
    struct Request *request; /* whose body or delay is waited for */
} Connection;

typedef struct Request {
    const char *path; /* without its query */
    size_t path_size;
    const char *name; /* of the X-Name header or the query; NULL: none */
    size_t name_size;
    int64_t token;    /* of the Authorization header; 0: none */
    int64_t body_size;
    bool is_head, is_post, has_cookie, is_last;
    char kept[2 * (NAME_MOST + 1)]; /* path and name, once the input they pointed into is gone */
} Request;

typedef struct {
    uint64_t count;
    uint32_t size;
    char text[NAME_MOST];
} Counter;

typedef struct {
    Counter counters[NAMES_MOST]; /* open addressing; at most half of them and one more for the rest */
    size_t used;
    uint64_t others;
} Counters;

static int epoll_fd, listen_fd, timer_fd;
static bool is_listening;
static char input[INPUT_MOST], output[FLUSH_AT + ANSWER_MOST];
static size_t output_size;
static Connection *closed;
static Connection **heap; /* of the delayed, the next due first */
static size_t heap_size, heap_room;
static Counters by_path, by_name;
static uint64_t requests, connections, logins, cookies;

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static char *kept_copy(const char *data, size_t size)
{
    char *copy = malloc(size ? size : 1);
    if (copy == NULL) {
        die("malloc");
    }
    memcpy(copy, data, size);
    return copy;
}

/* Counters */

static void count(Counters *counters, const char *text, size_t size)
{
    if (size > NAME_MOST) {
        counters->others++;
        return;
    }
    uint32_t hash = 2166136261u;
    for (size_t at = 0; at < size; at++) {
        hash = (hash ^ (unsigned char)text[at]) * 16777619u;
    }
    for (size_t at = hash % NAMES_MOST;; at = (at + 1) % NAMES_MOST) {
        Counter *counter = &counters->counters[at];
        if (counter->count == 0) {
            if (counters->used >= NAMES_MOST / 2) {
                counters->others++;
                return;
            }
            counters->used++;
            counter->size = (uint32_t)size;
            memcpy(counter->text, text, size);
        } else if (counter->size != size || memcmp(counter->text, text, size) != 0) {
            continue;
        }
        counter->count++;
        return;
    }
}

static size_t counters_as_json(char *to, const Counters *counters)
{
    char *at = to;
    *at++ = '{';
    for (size_t index = 0; index < NAMES_MOST; index++) {
        const Counter *counter = &counters->counters[index];
        if (counter->count == 0) {
            continue;
        }
        *at++ = '"';
        for (size_t byte = 0; byte < counter->size; byte++) {
            unsigned char letter = (unsigned char)counter->text[byte];
            if (letter < ' ' || letter > '~' || letter == '"' || letter == '\\') {
                at += sprintf(at, "\\u%04x", letter);
            } else {
                *at++ = (char)letter;
            }
        }
        at += sprintf(at, "\": %llu, ", (unsigned long long)counter->count);
    }
    at += sprintf(at, "\"(other)\": %llu}", (unsigned long long)counters->others);
    return (size_t)(at - to);
}

/* Answers go to the end of `output` */

static void put(const char *data, size_t size)
{
    memcpy(output + output_size, data, size);
    output_size += size;
}

static const char *reason_of(int status)
{
    switch (status) {
    case 200: return "OK";
    case 201: return "Created";
    case 204: return "No Content";
    case 302: return "Found";
    case 304: return "Not Modified";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 413: return "Content Too Large";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    default: return "Status";
    }
}

/* `fields`: more header lines, each with its end. */
static void answer(const Request *request, int status, const char *fields, const char *body, size_t size)
{
    bool has_body = status != 204 && status != 304;
    output_size += (size_t)sprintf(output + output_size, "HTTP/1.1 %d %s\r\n%s", status, reason_of(status), fields);
    if (has_body) {
        output_size += (size_t)sprintf(output + output_size, "Content-Length: %zu\r\n", size);
    }
    if (request->is_last) {
        put("Connection: close\r\n", 19);
    }
    put("\r\n", 2);
    if (has_body && !request->is_head) {
        put(body, size);
    }
}

#define TEXT "Content-Type: text/plain\r\n"
#define AS_JSON "Content-Type: application/json\r\n"
#define SAY(request, status, text) answer(request, status, TEXT, text, sizeof(text) - 1)

static void answer_ok(const Request *request)
{
    static const char whole[] = "HTTP/1.1 200 OK\r\n" TEXT "Content-Length: 2\r\n\r\nok";
    if (request->is_last || request->is_head) {
        SAY(request, 200, "ok");
    } else {
        put(whole, sizeof whole - 1);
    }
}

static void answer_json(const Request *request)
{
    static const char begin[] = "HTTP/1.1 200 OK\r\n" AS_JSON "Content-Length: 90\r\n\r\n";
    if (request->is_last || request->is_head) {
        answer(request, 200, AS_JSON, JSON, sizeof JSON - 1);
    } else {
        put(begin, sizeof begin - 1);
        put(JSON, sizeof JSON - 1);
    }
}

static void answer_counts(const Request *request)
{
    static char text[ANSWER_MOST];
    int size = sprintf(text, "{\"requests\": %llu, \"connections\": %llu, \"paths\": ", (unsigned long long)requests,
                       (unsigned long long)connections);
    size += (int)counters_as_json(text + size, &by_path);
    size += sprintf(text + size, ", \"names\": ");
    size += (int)counters_as_json(text + size, &by_name);
    text[size++] = '}';
    answer(request, 200, AS_JSON, text, (size_t)size);
}

/* Decimal digits and nothing else, at most `most`; else -1. */
static int64_t number_of(const char *text, size_t size, int64_t most)
{
    int64_t number = 0;
    for (size_t at = 0; at < size; at++) {
        if (text[at] < '0' || text[at] > '9') {
            return -1;
        }
        number = number * 10 + (text[at] - '0');
        if (number > most) {
            return -1;
        }
    }
    return size ? number : -1;
}

static bool is(const char *text, size_t size, const char *other)
{
    return size == strlen(other) && memcmp(text, other, size) == 0;
}

static bool is_below(const Request *request, const char *folder)
{
    size_t size = strlen(folder);
    return request->path_size > size && memcmp(request->path, folder, size) == 0;
}

static void count_request(const Request *request)
{
    requests++;
    count(&by_path, request->path, request->path_size);
    if (request->name != NULL) {
        count(&by_name, request->name, request->name_size);
    }
}

/* Whether it was answered; else the answer is due in so many nanoseconds. */
static bool answered(const Request *request, int64_t *delay_ns)
{
    const char *path = request->path;
    size_t size = request->path_size;
    char text[128];
    if (is(path, size, "/counts")) {
        answer_counts(request);
        return true;
    }
    count_request(request);
    if (size == 1) {
        answer_ok(request);
    } else if (is(path, size, "/json") || is(path, size, "/page")) {
        answer_json(request);
    } else if (is(path, size, "/cookie")) {
        if (request->has_cookie) {
            SAY(request, 200, "known");
        } else {
            sprintf(text, TEXT "Set-Cookie: visitor=%llu; Path=/\r\n", (unsigned long long)++cookies);
            answer(request, 200, text, "new", 3);
        }
    } else if (is(path, size, "/redirect")) {
        answer(request, 302, "Location: /\r\n" TEXT, "", 0);
    } else if (is(path, size, "/login") || is(path, size, "/order")) {
        if (!request->is_post) {
            answer(request, 405, "Allow: POST\r\n" TEXT, "POST alone\n", 11);
        } else if (path[1] == 'l') {
            int length = sprintf(text, "{\"token\": \"user-%llu\"}", (unsigned long long)++logins);
            answer(request, 200, AS_JSON, text, (size_t)length);
        } else if (request->token >= 1 && (uint64_t)request->token <= logins) {
            answer(request, 201, AS_JSON, "{\"ordered\": true}", 17);
        } else {
            SAY(request, 401, "/login gives the token that an order must carry: Authorization: Bearer TOKEN\n");
        }
    } else if (is_below(request, "/delay/")) {
        int64_t milliseconds = number_of(path + 7, size - 7, DELAY_MOST_MS);
        if (milliseconds >= 0) {
            *delay_ns = milliseconds * 1000000LL;
            return false;
        }
        SAY(request, 400, "/delay/MS takes 0 to 60000 milliseconds\n");
    } else if (is_below(request, "/status/")) {
        int64_t status = number_of(path + 8, size - 8, 599);
        if (status >= 200) {
            SAY(request, (int)status, "");
        } else {
            SAY(request, 400, "/status/NNN takes 200 to 599\n");
        }
    } else {
        SAY(request, 404, "no such path\n");
    }
    return true;
}

/* Requests */

static bool is_field(const char *line, size_t size, const char *name, const char **value, size_t *value_size)
{
    size_t length = strlen(name);
    if (size <= length || line[length] != ':' || strncasecmp(line, name, length) != 0) {
        return false;
    }
    const char *begin = line + length + 1, *end = line + size;
    while (begin < end && (*begin == ' ' || *begin == '\t')) {
        begin++;
    }
    while (end > begin && (end[-1] == ' ' || end[-1] == '\t')) {
        end--;
    }
    *value = begin;
    *value_size = (size_t)(end - begin);
    return true;
}

/* 0 or the status that says what is wrong with it. `line` is a header line without its end. */
static int field_read(Request *request, const char *line, size_t size, bool *has_size)
{
    const char *value;
    size_t length;
    switch (line[0] | 0x20) {
    case 'a':
        if (is_field(line, size, "authorization", &value, &length) && length > 12 &&
            memcmp(value, "Bearer user-", 12) == 0) {
            request->token = number_of(value + 12, length - 12, INT32_MAX);
        }
        break;
    case 'c':
        if (is_field(line, size, "content-length", &value, &length)) {
            int64_t body_size = number_of(value, length, BODY_MOST);
            if (body_size < 0 || (*has_size && body_size != request->body_size)) {
                return 400;
            }
            request->body_size = body_size;
            *has_size = true;
        } else if (is_field(line, size, "connection", &value, &length)) {
            if (length == 5 && strncasecmp(value, "close", 5) == 0) {
                request->is_last = true;
            } else if (length == 10 && strncasecmp(value, "keep-alive", 10) == 0) {
                request->is_last = false;
            }
        } else if (is_field(line, size, "cookie", &value, &length)) {
            request->has_cookie = memmem(value, length, "visitor=", 8) != NULL;
        }
        break;
    case 't':
        if (is_field(line, size, "transfer-encoding", &value, &length)) {
            return 501; /* Bodies have a length here. */
        }
        break;
    case 'x':
        if (is_field(line, size, "x-name", &value, &length)) {
            request->name = value;
            request->name_size = length;
        }
        break;
    default:
        break;
    }
    const char *colon = memchr(line, ':', size);
    if (colon == NULL || colon == line || colon[-1] == ' ' || colon[-1] == '\t' || line[0] == ' ' || line[0] == '\t') {
        return 400;
    }
    return 0;
}

static void name_from_query(Request *request, const char *query, const char *end)
{
    for (const char *at = query; at < end;) {
        const char *stop = memchr(at, '&', (size_t)(end - at));
        stop = stop ? stop : end;
        if (stop - at > 5 && memcmp(at, "name=", 5) == 0) {
            request->name = at + 5;
            request->name_size = (size_t)(stop - request->name);
            return;
        }
        at = stop + 1;
    }
}

/* 0 or the status that says what is wrong with it. `head` ends with its last line; the empty one is left out. */
static int head_read(Request *request, const char *head, size_t size)
{
    static const char *const METHODS[] = {"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"};
    const char *end = head + size;
    const char *line_end = memmem(head, size, "\r\n", 2);
    const char *space = memchr(head, ' ', (size_t)(line_end - head));
    memset(request, 0, offsetof(Request, kept));
    if (space == NULL) {
        return 400;
    }
    bool is_known = false;
    for (size_t at = 0; at < sizeof METHODS / sizeof METHODS[0]; at++) {
        is_known = is_known || is(head, (size_t)(space - head), METHODS[at]);
    }
    if (!is_known) {
        return 501;
    }
    request->is_head = head[0] == 'H';
    request->is_post = head[0] == 'P' && head[1] == 'O';
    const char *target = space + 1;
    const char *target_end = memchr(target, ' ', (size_t)(line_end - target));
    if (target_end == NULL || target == target_end || target[0] != '/') {
        return 400;
    }
    const char *version = target_end + 1;
    if (line_end - version != 8 || memcmp(version, "HTTP/1.", 7) != 0 || (version[7] != '0' && version[7] != '1')) {
        return 400;
    }
    request->is_last = version[7] == '0';
    const char *query = memchr(target, '?', (size_t)(target_end - target));
    request->path = target;
    request->path_size = (size_t)((query ? query : target_end) - target);
    if (query) {
        name_from_query(request, query + 1, target_end);
    }
    bool has_size = false;
    for (const char *line = line_end + 2; line < end; line = line_end + 2) {
        line_end = memmem(line, (size_t)(end - line), "\r\n", 2);
        int wrong = field_read(request, line, (size_t)(line_end - line), &has_size);
        if (wrong) {
            return wrong;
        }
    }
    return 0;
}

/* Its texts must outlive the input: longer ones than are counted are cut, so that they still are too long. */
static Request *request_kept(const Request *request)
{
    Request *copy = malloc(sizeof *copy);
    if (copy == NULL) {
        die("malloc");
    }
    memcpy(copy, request, offsetof(Request, kept));
    copy->path_size = request->path_size > NAME_MOST ? NAME_MOST + 1 : request->path_size;
    copy->path = memcpy(copy->kept, request->path, copy->path_size);
    if (request->name != NULL) {
        copy->name_size = request->name_size > NAME_MOST ? NAME_MOST + 1 : request->name_size;
        copy->name = memcpy(copy->kept + copy->path_size, request->name, copy->name_size);
    }
    return copy;
}

/* Connections */

static void watch(Connection *connection, uint32_t events)
{
    if (connection->waits_for != events) {
        struct epoll_event event = {.events = events, .data.ptr = connection};
        if (epoll_ctl(epoll_fd, EPOLL_CTL_MOD, connection->fd, &event) < 0) {
            die("epoll_ctl");
        }
        connection->waits_for = events;
    }
}

static void listen_again(bool wanted)
{
    if (is_listening != wanted) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &listen_fd};
        if (epoll_ctl(epoll_fd, wanted ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, listen_fd, &event) < 0) {
            die("epoll_ctl");
        }
        is_listening = wanted;
    }
}

static void heap_place(size_t index, Connection *connection)
{
    heap[index] = connection;
    connection->heap_index = index;
}

static void heap_up(size_t index, Connection *connection)
{
    for (; index > 0 && heap[(index - 1) / 2]->due_ns > connection->due_ns; index = (index - 1) / 2) {
        heap_place(index, heap[(index - 1) / 2]);
    }
    heap_place(index, connection);
}

static void heap_down(size_t index, Connection *connection)
{
    for (size_t child; (child = 2 * index + 1) < heap_size; index = child) {
        if (child + 1 < heap_size && heap[child + 1]->due_ns < heap[child]->due_ns) {
            child++;
        }
        if (heap[child]->due_ns >= connection->due_ns) {
            break;
        }
        heap_place(index, heap[child]);
    }
    heap_place(index, connection);
}

static void set_timer(void)
{
    struct itimerspec when = {{0, 0}, {0, 0}};
    if (heap_size) {
        int64_t due_ns = heap[0]->due_ns > 0 ? heap[0]->due_ns : 1;
        when.it_value = (struct timespec){due_ns / 1000000000LL, due_ns % 1000000000LL};
    }
    timerfd_settime(timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

static void delay(Connection *connection, int64_t due_ns)
{
    if (heap_size == heap_room) {
        heap_room = heap_room ? 2 * heap_room : 256; /* Never more than there are connections. */
        heap = realloc(heap, heap_room * sizeof *heap);
        if (heap == NULL) {
            die("realloc");
        }
    }
    connection->is_delayed = true;
    connection->due_ns = due_ns;
    heap_up(heap_size++, connection);
    if (heap[0] == connection) {
        set_timer();
    }
}

static void undelay(Connection *connection)
{
    connection->is_delayed = false;
    Connection *last = heap[--heap_size];
    if (last != connection) {
        size_t index = connection->heap_index;
        heap_down(index, last);
        heap_up(last->heap_index, last);
    }
}

static void close_connection(Connection *connection)
{
    if (connection->is_delayed) {
        undelay(connection);
    }
    close(connection->fd);
    connection->fd = -1;
    free(connection->input);
    free(connection->output);
    free(connection->request);
    connection->next_closed = closed;
    closed = connection;
    connections--;
    listen_again(true); /* There is a file descriptor again. */
}

/* Adds what is in `output` from there on to what the peer has still to take. */
static void keep_output(Connection *connection, size_t from)
{
    size_t had = connection->output_size, more = output_size - from;
    connection->output = realloc(connection->output, had + more);
    if (connection->output == NULL) {
        die("realloc");
    }
    memcpy(connection->output + had, output + from, more);
    connection->output_size = had + more;
}

/* Sends what is in `output`; keeps what the peer does not take. False: the connection is closed. */
static bool flush(Connection *connection)
{
    size_t sent = 0;
    if (connection->output != NULL) { /* Only a delayed answer comes while others wait. */
        keep_output(connection, 0);
        sent = output_size;
    }
    while (sent < output_size) {
        ssize_t size = send(connection->fd, output + sent, output_size - sent, MSG_NOSIGNAL);
        if (size >= 0) {
            sent += (size_t)size;
        } else if (errno == EAGAIN) {
            keep_output(connection, sent);
            break;
        } else if (errno != EINTR) {
            output_size = 0;
            close_connection(connection);
            return false;
        }
    }
    output_size = 0;
    return true;
}

static void refuse(Connection *connection, int status)
{
    static const Request last = {.is_last = true};
    if (status == 431) {
        SAY(&last, status, "a head may have 16384 bytes\n");
    } else if (status == 501) {
        SAY(&last, status, "no such method or transfer encoding here\n");
    } else {
        SAY(&last, status, "no proper request\n");
    }
    connection->is_last = connection->is_refused = true;
}

/* Answers what is whole of `data`, and keeps the rest. False: the connection is closed. */
static bool understand(Connection *connection, const char *data, size_t size)
{
    const char *end = data + size;
    Request read, *request = NULL;
    while (connection->output == NULL && !connection->is_delayed && !connection->is_last) {
        if (connection->in_body) {
            int64_t here = end - data < connection->body_left ? end - data : connection->body_left;
            data += here;
            connection->body_left -= here;
            if (connection->body_left > 0) {
                break;
            }
            connection->in_body = false;
            request = connection->request;
        } else {
            const char *head_end = memmem(data, (size_t)(end - data), "\r\n\r\n", 4);
            if (head_end == NULL ? end - data >= HEAD_MOST : head_end - data > HEAD_MOST) {
                refuse(connection, 431);
                break;
            }
            if (head_end == NULL) {
                break;
            }
            int wrong = head_read(&read, data, (size_t)(head_end + 2 - data));
            if (wrong) {
                refuse(connection, wrong);
                break;
            }
            data = head_end + 4;
            request = &read;
            if (read.body_size > end - data) {
                connection->request = request_kept(&read);
                connection->in_body = true;
                connection->body_left = read.body_size;
                continue;
            }
            data += read.body_size;
        }
        int64_t delay_ns = 0;
        if (answered(request, &delay_ns)) {
            connection->is_last = request->is_last;
        } else {
            delay(connection, now_ns() + delay_ns);
        }
        if (connection->is_delayed && connection->request == NULL) {
            connection->request = request_kept(request);
        } else if (!connection->is_delayed) {
            free(connection->request);
            connection->request = NULL;
        }
        if (output_size >= FLUSH_AT && !flush(connection)) {
            return false;
        }
    }
    if (output_size && !flush(connection)) {
        return false;
    }
    if (connection->is_last && connection->output == NULL && !connection->is_delayed) {
        shutdown(connection->fd, SHUT_WR);
        if (!connection->is_refused) {
            close_connection(connection);
            return false;
        }
    }
    if (data < end && !connection->is_last) {
        connection->input_size = (size_t)(end - data);
        connection->input = kept_copy(data, connection->input_size);
    }
    watch(connection, connection->output ? EPOLLOUT : connection->is_delayed ? 0 : EPOLLIN);
    return true;
}

/* What was kept goes to the front of the common buffer. */
static size_t take_kept(Connection *connection)
{
    size_t size = connection->input_size;
    if (size) {
        memcpy(input, connection->input, size);
        free(connection->input);
        connection->input = NULL;
        connection->input_size = 0;
    }
    return size;
}

static void on_readable(Connection *connection)
{
    if (connection->is_refused) {
        ssize_t size = recv(connection->fd, input, sizeof input, 0);
        connection->drained += size > 0 ? (size_t)size : 0;
        if (size == 0 || (size < 0 && errno != EAGAIN && errno != EINTR) || connection->drained > DRAINED_MOST) {
            close_connection(connection);
        }
        return;
    }
    size_t kept = take_kept(connection);
    /* What is kept here is less than a head: anything else was understood before. */
    ssize_t size = recv(connection->fd, input + kept, sizeof input - kept, 0);
    if (size > 0) {
        understand(connection, input, kept + (size_t)size);
    } else if (size < 0 && (errno == EAGAIN || errno == EINTR)) {
        understand(connection, input, kept);
    } else {
        close_connection(connection);
    }
}

static void on_writable(Connection *connection)
{
    ssize_t size = send(connection->fd, connection->output + connection->output_sent,
                        connection->output_size - connection->output_sent, MSG_NOSIGNAL);
    if (size < 0) {
        if (errno != EAGAIN && errno != EINTR) {
            close_connection(connection);
        }
        return;
    }
    connection->output_sent += (size_t)size;
    if (connection->output_sent == connection->output_size) {
        free(connection->output);
        connection->output = NULL;
        connection->output_size = connection->output_sent = 0;
        understand(connection, input, take_kept(connection));
    }
}

static void on_timer(void)
{
    uint64_t times;
    if (read(timer_fd, &times, sizeof times) < 0 && errno != EAGAIN) {
        die("read");
    }
    int64_t now = now_ns();
    while (heap_size && heap[0]->due_ns <= now) {
        Connection *connection = heap[0];
        undelay(connection);
        answer_ok(connection->request);
        connection->is_last = connection->request->is_last;
        free(connection->request);
        connection->request = NULL;
        understand(connection, input, take_kept(connection));
    }
    set_timer();
}

static void on_connections(void)
{
    for (;;) {
        int fd = accept4(listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
                listen_again(false); /* Until one is closed: the others wait in the backlog. */
            }
            return;
        }
        int on = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        Connection *connection = calloc(1, sizeof *connection);
        if (connection == NULL) {
            die("calloc");
        }
        connection->fd = fd;
        connection->waits_for = EPOLLIN;
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
        if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0) {
            die("epoll_ctl");
        }
        connections++;
    }
}

static bool input_ended(void)
{
    char ignored[256];
    return read(STDIN_FILENO, ignored, sizeof ignored) <= 0;
}

/* Start */

static int listening_on(uint16_t port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0 ||
        bind(fd, (struct sockaddr *)&address, size) < 0 || listen(fd, BACKLOG) < 0 ||
        getsockname(fd, (struct sockaddr *)&address, &size) < 0) {
        die("cannot listen on 127.0.0.1");
    }
    printf("listening %d\n", ntohs(address.sin_port));
    fflush(stdout);
    return fd;
}

static void watch_also(int fd, void *pointer)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = pointer};
    /* A file as standard input never ends here, and cannot be watched. */
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0 && errno != EPERM) {
        die("epoll_ctl");
    }
}

int main(int count_of, char **arguments)
{
    int64_t port = count_of > 1 ? number_of(arguments[1], strlen(arguments[1]), 65535) : 0;
    int64_t core = count_of > 2 ? number_of(arguments[2], strlen(arguments[2]), CPU_SETSIZE - 1) : 0;
    if (count_of > 3 || port < 0 || core < 0) {
        fprintf(stderr, "usage: epoll_server [PORT [CORE]]\n");
        return 2;
    }
    if (count_of > 2) {
        cpu_set_t cores;
        CPU_ZERO(&cores);
        CPU_SET((size_t)core, &cores);
        if (sched_setaffinity(0, sizeof cores, &cores) < 0) {
            die("cannot run on that processor");
        }
    }
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    signal(SIGPIPE, SIG_IGN);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (epoll_fd < 0 || timer_fd < 0) {
        die("epoll");
    }
    static int standard_input;
    watch_also(timer_fd, &timer_fd);
    watch_also(STDIN_FILENO, &standard_input);
    listen_fd = listening_on((uint16_t)port);
    listen_again(true);
    for (;;) {
        struct epoll_event events[EVENTS_MOST];
        int found = epoll_wait(epoll_fd, events, EVENTS_MOST, -1);
        if (found < 0 && errno != EINTR) {
            die("epoll_wait");
        }
        for (int at = 0; at < found; at++) {
            void *pointer = events[at].data.ptr;
            if (pointer == &listen_fd) {
                on_connections();
            } else if (pointer == &timer_fd) {
                on_timer();
            } else if (pointer == &standard_input) {
                if (input_ended()) {
                    return 0;
                }
            } else {
                Connection *connection = pointer;
                if (connection->fd < 0) {
                    continue; /* Closed by an earlier event of this batch. */
                }
                if (events[at].events & (EPOLLERR | EPOLLHUP) && !(connection->waits_for & EPOLLIN)) {
                    close_connection(connection);
                } else if (connection->waits_for & EPOLLOUT) {
                    on_writable(connection);
                } else if (connection->waits_for & EPOLLIN) {
                    on_readable(connection);
                }
            }
        }
        while (closed != NULL) {
            Connection *connection = closed;
            closed = closed->next_closed;
            free(connection);
        }
    }
}
