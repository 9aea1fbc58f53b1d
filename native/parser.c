/* HTTP/1.1 answers (RFC 9112), byte by byte, so that a read may end anywhere.

   What is refused and what is let pass is what the other engine's parser refuses and lets pass (found by asking it, and
   held by fuzzing): line ends are CR LF, no folded lines, no space before the colon, one content-length at most and
   none beside a transfer-encoding. */
#include "parser.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Chunks of one byte take six on the wire; beyond this factor the server sends anything but a body. */
#define MOST_FRAMING 8

#define FIRST_HEAD_BYTES 256
#define FIRST_HEADERS 8
#define FIRST_BODY_BYTES 64
/* A server may announce a length it never sends: no more than this is set aside on its word. */
#define MOST_ANNOUNCED_BYTES (256 * 1024)

enum {
    START, /* line ends before the status line are skipped */
    PROTOCOL,
    MAJOR,
    DOT,
    MINOR,
    VERSION_END,
    STATUS_1,
    STATUS_2,
    STATUS_3,
    STATUS_END,
    REASON,
    STATUS_LF,
    LINE_START,
    NAME,
    VALUE_START,
    LENGTH_START,
    LENGTH_DIGITS,
    LENGTH_SPACE,
    VALUE,
    VALUE_LF,
    HEAD_LF,
    BODY_LENGTH,
    BODY_TO_END,
    SIZE_START,
    SIZE,
    EXTENSION_START,
    EXTENSION_NAME,
    EXTENSION_VALUE,
    EXTENSION_QUOTED,
    EXTENSION_ESCAPED,
    EXTENSION_UNQUOTED,
    SIZE_LF,
    CHUNK,
    CHUNK_CR,
    CHUNK_LF,
    COMPLETE,
    CLOSED, /* an interim answer that ends the connection: no answer may follow */
    OVER,   /* done or failed */
};

enum { /* Parser.flags, of one message */
    HAS_LENGTH = 1,
    HAS_CODING = 2,
    IS_CHUNKED = 4,
    SAYS_CLOSE = 8,
    SAYS_KEEP_ALIVE = 16,
    HAS_PENDING = 32, /* a header line is complete, unless the next line goes on with it */
};

enum { OTHER, CONTENT_LENGTH, TRANSFER_ENCODING, CONNECTION };

enum { IS_TOKEN = 1, IS_TEXT = 2 };

#define T (IS_TOKEN | IS_TEXT)
#define X IS_TEXT

/* RFC 9110: token (5.6.2), field-vchar and the white space between (5.5). */
static const uint8_t classes[256] = {
    0, 0, 0, 0, 0, 0, 0, 0, 0, X, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, /* controls */
    X, T, X, T, T, T, T, T, X, X, T, T, X, T, T, X, T, T, T, T, T, T, T, T, T, T, X, X, X, X, X, X, /*  !"#$%&'()… */
    X, T, T, T, T, T, T, T, T, T, T, T, T, T, T, T, T, T, T, T, T, T, T, T, T, T, T, X, X, X, T, T, /* @A…Z[\]^_ */
    T, T, T, T, T, T, T, T, T, T, T, T, T, T, T, T, T, T, T, T, T, T, T, T, T, T, T, X, T, X, T, 0, /* `a…z{|}~ */
    X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, /* beyond ASCII */
    X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, /* these are */
    X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, /* obs-text */
    X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, /* (5.5) */
};
#undef T
#undef X

static const char OUT_OF_MEMORY[] = "there is no memory left for the answer";
static const char BODY_TOO_LARGE[] = "the answer's body is larger than the limit";
static const char HEAD_TOO_LARGE[] = "the answer's head is larger than 65536 bytes";
static const char FRAMING_TOO_LARGE[] = "what stands between or behind its chunks is larger than 65536 bytes";
static const char MORE_THAN_THE_ANSWER[] = "the server sent more than the answer";
static const char SWITCHED[] = "the server switched to another protocol (101), which nobody asked for";

_Static_assert(MAX_HEAD_BYTES == 65536, "the sentences above name it");

/* Buffers */

static bool grow(void **buffer, size_t *capacity, size_t wanted, size_t first, size_t size)
{
    size_t larger = *capacity ? *capacity : first;
    while (larger < wanted) {
        if (larger > SIZE_MAX / 2 / size)
            return false;
        larger *= 2;
    }
    void *grown = realloc(*buffer, larger * size);
    if (grown == NULL)
        return false;
    *buffer = grown;
    *capacity = larger;
    return true;
}

static bool add_to_head(Message *message, const char *data, size_t length)
{
    size_t wanted = message->head_length + length;
    if (wanted > message->head_capacity &&
        !grow((void **)&message->head, &message->head_capacity, wanted, FIRST_HEAD_BYTES, 1))
        return false;
    memcpy(message->head + message->head_length, data, length);
    message->head_length = wanted;
    return true;
}

static bool add_header(Message *message, const Header *header)
{
    if (message->header_count == message->header_capacity &&
        !grow((void **)&message->headers, &message->header_capacity, message->header_count + 1, FIRST_HEADERS,
              sizeof(Header)))
        return false;
    message->headers[message->header_count++] = *header;
    return true;
}

static bool add_to_body(Message *message, const char *data, size_t length)
{
    size_t wanted = message->body_length + length;
    if (wanted > message->body_capacity &&
        !grow((void **)&message->body, &message->body_capacity, wanted, FIRST_BODY_BYTES, 1))
        return false;
    memcpy(message->body + message->body_length, data, length);
    message->body_length = wanted;
    return true;
}

/* One allocation of the right size instead of several doublings. Without memory now there may be some later. */
static void set_aside_body(Message *message, uint64_t announced)
{
    size_t wanted = announced < MOST_ANNOUNCED_BYTES ? (size_t)announced : MOST_ANNOUNCED_BYTES;
    if (wanted <= message->body_capacity)
        return;
    void *grown = realloc(message->body, wanted);
    if (grown != NULL) {
        message->body = grown;
        message->body_capacity = wanted;
    }
}

void message_reset(Message *message)
{
    message->status = message->minor = 0;
    message->keep_alive = message->has_set_cookie = message->has_location = message->has_content_encoding = 0;
    message->head_length = message->header_count = message->body_length = 0;
    if (message->head_capacity > KEPT_CAPACITY) {
        free(message->head);
        message->head = NULL;
        message->head_capacity = 0;
    }
    if (message->header_capacity > KEPT_CAPACITY / sizeof(Header)) {
        free(message->headers);
        message->headers = NULL;
        message->header_capacity = 0;
    }
    if (message->body_capacity > KEPT_CAPACITY) {
        free(message->body);
        message->body = NULL;
        message->body_capacity = 0;
    }
}

void message_free(Message *message)
{
    free(message->head);
    free(message->headers);
    free(message->body);
    memset(message, 0, sizeof *message);
}

/* Words in headers */

static bool equals(const char *text, size_t length, const char *lower, size_t lower_length)
{
    if (length != lower_length)
        return false;
    for (size_t i = 0; i < length; i++) {
        char c = text[i];
        if (c >= 'A' && c <= 'Z')
            c = (char)(c + ('a' - 'A'));
        if (c != lower[i])
            return false;
    }
    return true;
}

#define IS(text, length, literal) equals(text, length, literal, sizeof(literal) - 1)

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

/* The next of the words between commas, without the blanks around it; false behind the last. */
static bool next_word(const char **rest, const char *end, const char **word, size_t *length)
{
    const char *start = *rest;
    if (start == NULL)
        return false;
    const char *comma = memchr(start, ',', (size_t)(end - start));
    const char *stop = comma != NULL ? comma : end;
    *rest = comma != NULL ? comma + 1 : NULL;
    while (start < stop && is_blank(*start))
        start++;
    while (stop > start && is_blank(stop[-1]))
        stop--;
    *word = start;
    *length = (size_t)(stop - start);
    return true;
}

static const char *value_of(const Message *message, const Header *header)
{
    return message->head + header->value;
}

static bool has_name(const Message *message, const Header *header, const char *lower)
{
    return equals(message->head + header->name, header->name_length, lower, strlen(lower));
}

/* Whether only the end of the connection can end the body: no length, and the last coding is not chunks. */
static bool ends_with_the_connection(const Parser *parser)
{
    const Message *message = parser->message;
    bool has_coding = false, is_chunked = false;
    for (size_t i = 0; i < message->header_count; i++) {
        const Header *header = &message->headers[i];
        if (!has_name(message, header, "transfer-encoding"))
            continue;
        const char *rest = value_of(message, header), *word;
        const char *end = rest + header->value_length;
        size_t length;
        while (next_word(&rest, end, &word, &length)) {
            if (length > 0) {
                has_coding = true;
                is_chunked = IS(word, length, "chunked");
            }
        }
    }
    return has_coding ? !is_chunked : !(parser->flags & HAS_LENGTH);
}

/* An answer to HEAD is judged by its head alone: what it says of a body it does not send says nothing. */
static bool head_keeps_alive(const Parser *parser)
{
    const Message *message = parser->message;
    bool says_keep_alive = false;
    for (size_t i = 0; i < message->header_count; i++) {
        const Header *header = &message->headers[i];
        if (!has_name(message, header, "connection"))
            continue;
        const char *rest = value_of(message, header), *word;
        const char *end = rest + header->value_length;
        size_t length;
        while (next_word(&rest, end, &word, &length)) {
            if (IS(word, length, "close"))
                return false;
            says_keep_alive |= IS(word, length, "keep-alive");
        }
    }
    return says_keep_alive || (parser->major == 1 && parser->minor == 1);
}

static bool keeps_alive(const Parser *parser)
{
    uint8_t flags = parser->flags;
    if (parser->major > 0 && parser->minor > 0 ? flags & SAYS_CLOSE : !(flags & SAYS_KEEP_ALIVE))
        return false;
    if (parser->status < 200 || parser->status == 204 || parser->status == 304)
        return true;
    if (flags & HAS_CODING)
        return flags & IS_CHUNKED;
    return flags & HAS_LENGTH;
}

/* Steps of the parser. They return false after `refuse`. */

static bool refuse(Parser *parser, const char *error)
{
    parser->error = error;
    parser->failure = FAILED_PROTOCOL;
    return false;
}

static bool out_of_memory(Parser *parser)
{
    parser->error = OUT_OF_MEMORY;
    parser->failure = FAILED_MEMORY;
    return false;
}

/* The name is complete. */
static bool begin_value(Parser *parser)
{
    Message *message = parser->message;
    Header *header = &parser->header;
    const char *name = message->head + header->name;
    size_t length = message->head_length - header->name;
    header->name_length = (uint32_t)length;
    header->value = (uint32_t)message->head_length;
    header->value_length = 0;
    parser->kind = OTHER;
    parser->state = VALUE_START;
    /* Most names are told apart by their length, the rest by their first letter. */
    switch (length) {
    case 8:
        if (!parser->in_trailers && IS(name, length, "location"))
            message->has_location = 1;
        break;
    case 10:
        if (IS(name, length, "connection"))
            parser->kind = CONNECTION;
        else if (!parser->in_trailers && IS(name, length, "set-cookie"))
            message->has_set_cookie = 1;
        break;
    case 14:
        if (IS(name, length, "content-length")) {
            if (parser->flags & HAS_CODING)
                return refuse(parser, "the answer is not HTTP/1.1: it has both a transfer-encoding and a length");
            parser->kind = CONTENT_LENGTH;
            parser->state = LENGTH_START;
        }
        break;
    case 16:
        if (IS(name, length, "proxy-connection"))
            parser->kind = CONNECTION;
        else if (!parser->in_trailers && IS(name, length, "content-encoding"))
            message->has_content_encoding = 1;
        break;
    case 17:
        if (IS(name, length, "transfer-encoding")) {
            if (parser->flags & HAS_LENGTH)
                return refuse(parser, "the answer is not HTTP/1.1: it has both a length and a transfer-encoding");
            parser->kind = TRANSFER_ENCODING;
            parser->flags |= HAS_CODING;
            parser->flags &= (uint8_t)~IS_CHUNKED;
        }
        break;
    }
    return true;
}

/* The line is complete and no other goes on with it. */
static bool end_header(Parser *parser)
{
    Message *message = parser->message;
    Header *header = &parser->header;
    header->value_length = (uint32_t)(message->head_length - header->value);
    const char *value = value_of(message, header);
    const char *end = value + header->value_length;
    parser->flags &= (uint8_t)~HAS_PENDING;

    if (parser->kind == CONNECTION) {
        const char *rest = value, *word;
        size_t length;
        while (next_word(&rest, end, &word, &length)) {
            if (IS(word, length, "close"))
                parser->flags |= SAYS_CLOSE;
            else if (IS(word, length, "keep-alive"))
                parser->flags |= SAYS_KEEP_ALIVE;
        }
    } else if (parser->kind == TRANSFER_ENCODING) {
        if (value == end)
            return refuse(parser, "the answer is not HTTP/1.1: its transfer-encoding is empty");
        const char *word = end;
        while (word > value && word[-1] != ',')
            word--;
        while (word < end && is_blank(*word))
            word++;
        /* A tab behind the word is not taken for a blank here, and a comma begins another word. */
        while (end > word && end[-1] == ' ')
            end--;
        if (IS(word, (size_t)(end - word), "chunked"))
            parser->flags |= IS_CHUNKED;
    } else if (parser->kind == CONTENT_LENGTH && value == end) {
        return refuse(parser, "the answer is not HTTP/1.1: its content-length is empty");
    }

    if (parser->in_trailers)
        message->head_length = header->name; /* a trailer may not pose as a header */
    else if (!add_header(message, header))
        return out_of_memory(parser);
    return true;
}

static bool length_digit(Parser *parser, char c)
{
    uint64_t digit = (uint64_t)(c - '0');
    if (parser->length > (UINT64_MAX - digit) / 10)
        return refuse(parser, "the answer is not HTTP/1.1: its content-length has too many digits");
    parser->length = parser->length * 10 + digit;
    return true;
}

static void begin_message(Parser *parser)
{
    Message *message = parser->message;
    message->head_length = message->header_count = 0;
    message->has_set_cookie = message->has_location = message->has_content_encoding = 0;
    parser->flags = 0;
    parser->length = 0;
    parser->position = 0;
    parser->in_trailers = 0;
    parser->state = START;
}

static void complete(Parser *parser)
{
    parser->message->keep_alive = keeps_alive(parser);
    parser->state = COMPLETE;
}

/* The blank line is complete. */
static bool end_head(Parser *parser)
{
    Message *message = parser->message;
    if (parser->in_trailers) {
        complete(parser);
        return true;
    }
    if (parser->status < 100)
        return refuse(parser, "the answer is not HTTP/1.1: its status is below 100");
    if (parser->status == 101)
        return refuse(parser, SWITCHED);
    if (parser->status < 200) {
        /* The other engine's parser knows that those up to 103 have no body; both refuse to guess about the rest. */
        if (parser->status > 103 && parser->flags & (HAS_LENGTH | HAS_CODING))
            return refuse(parser, "the answer is not HTTP/1.1: an interim answer announces a body");
        bool may_go_on = keeps_alive(parser);
        begin_message(parser);
        if (!may_go_on)
            parser->state = CLOSED;
        return true;
    }
    message->status = parser->status;
    message->minor = parser->minor;
    parser->has_head = 1;
    if (parser->is_head) {
        message->keep_alive = head_keeps_alive(parser);
        parser->state = COMPLETE;
    } else if (parser->status == 204 || parser->status == 304) {
        complete(parser);
    } else if (parser->flags & IS_CHUNKED) {
        parser->state = SIZE_START;
    } else if (parser->flags & HAS_CODING || !(parser->flags & HAS_LENGTH)) {
        parser->state = BODY_TO_END;
    } else if (parser->length == 0) {
        complete(parser);
    } else {
        parser->remaining = parser->length;
        set_aside_body(message, parser->length);
        parser->state = BODY_LENGTH;
    }
    return true;
}

static int hexadecimal(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

static bool size_digit(Parser *parser, int digit)
{
    if (parser->remaining > UINT64_MAX >> 4)
        return refuse(parser, "the answer is not HTTP/1.1: the size of a chunk has too many digits");
    parser->remaining = parser->remaining << 4 | (uint64_t)digit;
    return true;
}

static const char *skip(const char *at, const char *end, int kind)
{
    while (at < end && classes[(uint8_t)*at] & kind)
        at++;
    return at;
}

#define REFUSE(sentence) return refuse(parser, "the answer is not HTTP/1.1: " sentence)

/* Goes through the bytes until they or the answer end. Returns false when they are refused. */
static bool walk(Parser *parser, const char *at, const char *end)
{
    static const char protocols[3][6] = {"HTTP/", "RTSP/", "ICE/"}; /* the other engine takes them all */
    Message *message = parser->message;
    const char *from;

    while (at < end) {
        char c = *at;
        switch (parser->state) {
        case START:
            /* Nearly every answer begins with these nine bytes, in one read. */
            if (end - at >= 9 && memcmp(at, "HTTP/1.1 ", 9) == 0) {
                parser->major = parser->minor = 1;
                parser->state = STATUS_1;
                at += 9;
                continue;
            }
            if (c == '\r' || c == '\n')
                break;
            if (c != 'H' && c != 'R' && c != 'I')
                REFUSE("it does not begin with the name of the protocol");
            parser->kind = c == 'H' ? 0 : c == 'R' ? 1 : 2;
            parser->position = 1;
            parser->state = PROTOCOL;
            break;
        case PROTOCOL:
            if (c != protocols[parser->kind][parser->position])
                REFUSE("it does not begin with the name of the protocol");
            if (protocols[parser->kind][++parser->position] == '\0')
                parser->state = MAJOR;
            break;
        case MAJOR:
            if (c < '0' || c > '9')
                REFUSE("its version is not a number");
            parser->major = (uint8_t)(c - '0');
            parser->state = DOT;
            break;
        case DOT:
            if (c != '.')
                REFUSE("its version has no dot");
            parser->state = MINOR;
            break;
        case MINOR:
            if (c < '0' || c > '9')
                REFUSE("its version is not a number");
            parser->minor = (uint8_t)(c - '0');
            switch (parser->major * 10 + parser->minor) {
            case 9:
            case 10:
            case 11:
            case 20:
                break;
            default:
                REFUSE("nobody knows its version");
            }
            parser->state = VERSION_END;
            break;
        case VERSION_END:
            if (c != ' ')
                REFUSE("no space follows its version");
            parser->state = STATUS_1;
            break;
        case STATUS_1:
        case STATUS_2:
        case STATUS_3:
            if (c < '0' || c > '9')
                REFUSE("its status is not a number of three digits");
            if (parser->state == STATUS_1)
                parser->status = 0;
            parser->status = (uint16_t)(parser->status * 10 + (c - '0'));
            parser->state++;
            break;
        case STATUS_END:
            if (c == ' ')
                parser->state = REASON;
            else if (c == '\r')
                parser->state = STATUS_LF;
            else
                REFUSE("neither a space nor a line end follows its status");
            break;
        case REASON:
            while (at < end && *at != '\r' && *at != '\n')
                at++;
            if (at == end)
                return true;
            if (*at == '\n')
                REFUSE("its first line does not end with CR LF");
            parser->state = STATUS_LF;
            break;
        case STATUS_LF:
            if (c != '\n')
                REFUSE("its first line does not end with CR LF");
            parser->state = LINE_START;
            break;

        case LINE_START:
            if (parser->flags & HAS_PENDING) {
                if (is_blank(c))
                    REFUSE("a header goes on in a second line");
                if (!end_header(parser))
                    return false;
            }
            if (c == '\r') {
                parser->state = HEAD_LF;
                break;
            }
            if (!(classes[(uint8_t)c] & IS_TOKEN))
                REFUSE("a header begins with a byte no name has");
            parser->header.name = (uint32_t)message->head_length;
            parser->state = NAME;
            continue;
        case NAME:
            from = at;
            at = skip(at, end, IS_TOKEN);
            if (!add_to_head(message, from, (size_t)(at - from)))
                return out_of_memory(parser);
            if (at == end)
                return true;
            if (*at != ':')
                REFUSE("a header's name has a byte no name has");
            if (!begin_value(parser))
                return false;
            break;
        case VALUE_START:
            if (is_blank(c))
                break;
            parser->state = VALUE;
            continue;
        case VALUE:
            from = at;
            at = skip(at, end, IS_TEXT);
            if (!add_to_head(message, from, (size_t)(at - from)))
                return out_of_memory(parser);
            if (at == end)
                return true;
            if (*at != '\r')
                REFUSE("a header's value has a byte no value has");
            parser->state = VALUE_LF;
            break;
        case LENGTH_START:
            if (is_blank(c))
                break;
            if (c == '\r') {
                parser->state = VALUE_LF;
                break;
            }
            if (parser->flags & HAS_LENGTH)
                REFUSE("it has two lengths");
            if (c < '0' || c > '9')
                REFUSE("its content-length is not a number");
            parser->flags |= HAS_LENGTH;
            parser->state = LENGTH_DIGITS;
            continue;
        case LENGTH_DIGITS:
        case LENGTH_SPACE:
            if (c == '\r') {
                parser->state = VALUE_LF;
                break;
            }
            if (is_blank(c))
                parser->state = LENGTH_SPACE;
            else if (c < '0' || c > '9' || parser->state == LENGTH_SPACE)
                REFUSE("its content-length is not a number");
            else if (!length_digit(parser, c))
                return false;
            if (!add_to_head(message, at, 1))
                return out_of_memory(parser);
            break;
        case VALUE_LF:
            if (c != '\n')
                REFUSE("a header does not end with CR LF");
            parser->flags |= HAS_PENDING;
            parser->state = LINE_START;
            break;
        case HEAD_LF:
            if (c != '\n')
                REFUSE("its head does not end with CR LF");
            if (!end_head(parser))
                return false;
            break;

        case BODY_LENGTH:
        case CHUNK: {
            size_t length = (size_t)(end - at);
            if (length > parser->remaining)
                length = (size_t)parser->remaining;
            if (!add_to_body(message, at, length))
                return out_of_memory(parser);
            parser->got_body = 1;
            parser->remaining -= length;
            at += length;
            if (parser->remaining > 0)
                return true;
            if (parser->state == CHUNK)
                parser->state = CHUNK_CR;
            else
                complete(parser);
            continue;
        }
        case BODY_TO_END:
            parser->got_body = 1;
            if (!add_to_body(message, at, (size_t)(end - at)))
                return out_of_memory(parser);
            return true;

        case SIZE_START:
        case SIZE: {
            int digit = hexadecimal(c);
            if (digit >= 0) {
                if (parser->state == SIZE_START)
                    parser->remaining = 0;
                if (!size_digit(parser, digit))
                    return false;
                parser->state = SIZE;
            } else if (parser->state == SIZE && c == ';') {
                parser->state = EXTENSION_START;
            } else if (parser->state == SIZE && c == '\r') {
                parser->state = SIZE_LF;
            } else {
                REFUSE("the size of a chunk is not a number");
            }
            break;
        }
        case EXTENSION_START:
            if (c == '\r')
                REFUSE("a chunk's extension is empty");
            parser->state = EXTENSION_NAME;
            continue;
        case EXTENSION_NAME:
        case EXTENSION_VALUE:
            if (c == '\r')
                parser->state = SIZE_LF;
            else if (c == ';')
                parser->state = EXTENSION_START;
            else if (c == '=' && parser->state == EXTENSION_NAME)
                parser->state = EXTENSION_VALUE;
            else if (c == '"' && parser->state == EXTENSION_VALUE)
                parser->state = EXTENSION_QUOTED;
            else if (!(classes[(uint8_t)c] & IS_TOKEN))
                REFUSE("a chunk's extension has a byte it may not have");
            break;
        case EXTENSION_QUOTED:
            if (c == '"')
                parser->state = EXTENSION_UNQUOTED;
            else if (c == '\\')
                parser->state = EXTENSION_ESCAPED;
            else if (!(classes[(uint8_t)c] & IS_TEXT))
                REFUSE("a chunk's extension has a byte it may not have");
            break;
        case EXTENSION_ESCAPED:
            if (!(classes[(uint8_t)c] & IS_TEXT))
                REFUSE("a chunk's extension has a byte it may not have");
            parser->state = EXTENSION_QUOTED;
            break;
        case EXTENSION_UNQUOTED:
            if (c == '\r')
                parser->state = SIZE_LF;
            else if (c == ';')
                parser->state = EXTENSION_START;
            else
                REFUSE("a chunk's extension goes on behind its quotes");
            break;
        case SIZE_LF:
            if (c != '\n')
                REFUSE("the size of a chunk does not end with CR LF");
            if (parser->remaining > 0) {
                parser->state = CHUNK;
            } else {
                parser->in_trailers = 1;
                parser->state = LINE_START;
            }
            break;
        case CHUNK_CR:
            if (c != '\r')
                REFUSE("a chunk is longer than its size says");
            parser->state = CHUNK_LF;
            break;
        case CHUNK_LF:
            if (c != '\n')
                REFUSE("a chunk does not end with CR LF");
            parser->state = SIZE_START;
            break;

        case COMPLETE:
            if (parser->is_head)
                return refuse(parser, "the server sent a body in answer to HEAD");
            if (c != '\r' && c != '\n')
                return refuse(parser, MORE_THAN_THE_ANSWER);
            break;
        case CLOSED:
            if (c != '\r' && c != '\n')
                REFUSE("it comes after one that closes the connection");
            break;
        default:
            REFUSE("it is over already"); /* the caller's mistake; better an error than a loop */
        }
        at++;
    }
    return true;
}

/* What the whole answer must keep to. */
static bool within_limits(Parser *parser)
{
    const Message *message = parser->message;
    /* What lines must have besides names and values is counted as four bytes: a colon, a space, CR and LF. */
    if (parser->received > MAX_HEAD_BYTES && message->head_length + 4 * message->header_count > MAX_HEAD_BYTES)
        return refuse(parser, HEAD_TOO_LARGE);
    if (message->body_length > parser->max_body)
        return refuse(parser, BODY_TOO_LARGE);
    return true;
}

/* Limits between reads: an endless answer must not fill the memory. */
static bool may_go_on(Parser *parser, size_t length)
{
    const Message *message = parser->message;
    if (parser->got_body) {
        parser->framing = 0;
        if (message->body_length > parser->max_body)
            return refuse(parser, BODY_TOO_LARGE);
    } else {
        parser->framing += length;
        if (parser->framing > MAX_HEAD_BYTES)
            return refuse(parser, parser->has_head ? FRAMING_TOO_LARGE : HEAD_TOO_LARGE);
    }
    if (parser->received > MOST_FRAMING * (uint64_t)parser->max_body + MAX_HEAD_BYTES)
        return refuse(parser, BODY_TOO_LARGE);
    return true;
}

static int failed(Parser *parser)
{
    parser->state = OVER;
    return PARSE_ERROR;
}

void parser_begin(Parser *parser, Message *message, int is_head, size_t max_body)
{
    memset(parser, 0, sizeof *parser);
    parser->message = message;
    parser->is_head = is_head != 0;
    parser->max_body = max_body;
    message_reset(message);
}

int parser_feed(Parser *parser, const char *data, size_t length)
{
    parser->got_body = 0;
    parser->received += length;
    if (length > MAX_FEED_BYTES) {
        refuse(parser, "a read was longer than a read may be");
        return failed(parser);
    }
    if (!walk(parser, data, data + length)) {
        if (parser->status == 101 && parser->failure == FAILED_PROTOCOL)
            parser->error = SWITCHED; /* says more than what is wrong with its head */
        return failed(parser);
    }
    if (parser->state == COMPLETE) {
        if (!within_limits(parser))
            return failed(parser);
        parser->state = OVER;
        return PARSE_DONE;
    }
    return may_go_on(parser, length) ? PARSE_MORE : failed(parser);
}

int parser_end(Parser *parser)
{
    if (parser->state == BODY_TO_END && ends_with_the_connection(parser)) {
        parser->message->keep_alive = 0;
        if (!within_limits(parser))
            return failed(parser);
        parser->state = OVER;
        return PARSE_DONE;
    }
    parser->failure = FAILED_RESET;
    parser->error = parser->received ? "the server closed the connection in the middle of its answer"
                                     : "the server closed the connection without an answer";
    return failed(parser);
}

size_t parser_explain(const Parser *parser, char *text, size_t size)
{
    int length;
    if (size == 0)
        return 0;
    if (parser->error == BODY_TOO_LARGE)
        length = snprintf(text, size, "the answer's body is larger than %zu bytes", parser->max_body);
    else
        length = snprintf(text, size, "%s", parser->error != NULL ? parser->error : "");
    if (length < 0)
        return 0;
    return (size_t)length < size ? (size_t)length : size - 1;
}
