/* Reads one HTTP/1.1 answer, from bytes split anywhere.

   Plain C without Python: it can be fuzzed alone. Its verdict on any bytes is that of the engine written in Python
   (src/talka/engine/clients/connection.py); tests feed both with the same ones and compare.

   Use: a zeroed Message; then for each exchange parser_begin, and parser_feed for each read until it no longer says
   PARSE_MORE. When the server closes its side, parser_end. The Message may be another one each time. */
#ifndef TALKA_PARSER_H
#define TALKA_PARSER_H

#include <stddef.h>
#include <stdint.h>

#define MAX_HEAD_BYTES (64 * 1024)
#define MAX_BODY_BYTES (64 * 1024 * 1024)
#define KEPT_CAPACITY (64 * 1024) /* what message_reset leaves of a buffer that has grown */

/* One read may not be longer: offsets into the head have 32 bits, and limits are looked at between reads. */
#define MAX_FEED_BYTES (1024 * 1024)

enum { PARSE_ERROR = -1, PARSE_MORE = 0, PARSE_DONE = 1 };

/* What an error is counted as. */
typedef enum {
    FAILED_NOT = 0,
    FAILED_PROTOCOL, /* kind "protocol": what came is no answer, or one over a limit */
    FAILED_RESET,    /* kind "reset": the connection ended before the answer did */
    FAILED_MEMORY,   /* no memory left; the caller raises MemoryError or counts it as "protocol" */
} Failure;

/* Offsets into Message.head. */
typedef struct {
    uint32_t name;
    uint32_t name_length;
    uint32_t value;
    uint32_t value_length;
} Header;

typedef struct {
    int status;
    int minor; /* of the version: 0 for HTTP/1.0, 1 for HTTP/1.1 */
    uint8_t keep_alive;
    uint8_t has_set_cookie;
    uint8_t has_location;
    uint8_t has_content_encoding;

    char *head; /* names and values of the headers, one after the other; no line ends, no colons, no trailers */
    size_t head_length;
    size_t head_capacity;
    Header *headers;
    size_t header_count;
    size_t header_capacity;

    char *body; /* without the framing of chunks, before any content coding is undone */
    size_t body_length;
    size_t body_capacity;
} Message;

typedef struct {
    Message *message;
    const char *error; /* after PARSE_ERROR: a sentence that lives as long as the program */
    Failure failure;
    size_t max_body;
    uint64_t received; /* bytes of this answer; 0 = the server has said nothing yet */

    /* Private from here on. */
    uint64_t framing;   /* bytes since anything of the body came, in whole reads */
    uint64_t remaining; /* of the body or of the chunk */
    uint64_t length;    /* content-length */
    Header header;      /* the one being read */
    uint16_t status;
    uint8_t state;
    uint8_t position; /* within the name of the protocol */
    uint8_t kind;     /* which header is being read */
    uint8_t flags;
    uint8_t major;
    uint8_t minor;
    uint8_t is_head;
    uint8_t has_head;
    uint8_t in_trailers;
    uint8_t got_body; /* in the present read */
} Parser;

/* Empties it for the next answer. Capacity is kept, up to KEPT_CAPACITY a buffer. */
void message_reset(Message *message);

/* Gives the memory back and leaves it as a zeroed one. */
void message_free(Message *message);

/* The next bytes are an answer; it goes into the message, which is reset first. */
void parser_begin(Parser *parser, Message *message, int is_head, size_t max_body);

/* PARSE_MORE, PARSE_DONE or PARSE_ERROR. Bytes behind the answer's end are an error. After PARSE_DONE and PARSE_ERROR
   the parser must begin anew. */
int parser_feed(Parser *parser, const char *data, size_t length);

/* The server has closed its side: PARSE_DONE for a body that ends with the connection, else PARSE_ERROR. */
int parser_end(Parser *parser);

/* Writes the sentence of the error, with the limit where it names one. Returns its length (cut at size - 1). */
size_t parser_explain(const Parser *parser, char *text, size_t size);

#endif
