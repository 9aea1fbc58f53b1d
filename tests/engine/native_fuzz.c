/* Feeds the native engine's parser with a corpus, to be built with the sanitizers: see test_response_fuzz.py.

   The corpus is what `python -m tests.engine.response_fuzz --corpus FILE` writes; the verdicts are printed as that
   program prints them. Every read lies in a block of its own size, so that one byte too far is seen. */
#include "parser.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must_read(void *into, size_t length, FILE *file)
{
    if (fread(into, 1, length, file) != length) {
        fprintf(stderr, "the corpus is cut short\n");
        exit(2);
    }
}

static uint32_t number(FILE *file)
{
    uint8_t bytes[4];
    must_read(bytes, sizeof bytes, file);
    return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

int main(int argc, char **argv)
{
    static const char *names[] = {"answer", "protocol", "reset", "waiting"};
    long counts[4] = {0};
    Message message;
    Parser parser;
    FILE *file = argc == 2 ? fopen(argv[1], "rb") : NULL;
    if (file == NULL) {
        fprintf(stderr, "usage: native_fuzz CORPUS\n");
        return 2;
    }
    memset(&message, 0, sizeof message);
    for (long cases = 0;; cases++) {
        int is_head = fgetc(file);
        if (is_head == EOF)
            break;
        int closes = fgetc(file);
        size_t max_body = number(file);
        uint32_t reads = number(file);
        int verdict = PARSE_MORE;
        if (cases % 1000 == 0)
            message_free(&message); /* so that first allocations are met at every state, too */
        parser_begin(&parser, &message, is_head, max_body);
        for (uint32_t i = 0; i < reads; i++) {
            uint32_t length = number(file);
            char *data = malloc(length);
            if (data == NULL)
                return 2;
            must_read(data, length, file);
            if (verdict == PARSE_MORE)
                verdict = parser_feed(&parser, data, length);
            free(data);
        }
        if (verdict == PARSE_MORE && closes)
            verdict = parser_end(&parser);
        if (verdict == PARSE_ERROR) {
            char text[160];
            if (parser_explain(&parser, text, sizeof text) != strlen(text) || text[0] == '\0')
                return 3;
            counts[parser.failure == FAILED_PROTOCOL ? 1 : 2]++;
        } else if (verdict == PARSE_DONE) {
            /* Every byte of the answer is there to be read. */
            volatile char seen = 0;
            for (size_t i = 0; i < message.header_count; i++) {
                const Header *header = &message.headers[i];
                for (uint32_t j = 0; j < header->name_length; j++)
                    seen ^= message.head[header->name + j];
                for (uint32_t j = 0; j < header->value_length; j++)
                    seen ^= message.head[header->value + j];
            }
            for (size_t i = 0; i < message.body_length; i++)
                seen ^= message.body[i];
            counts[0]++;
        } else {
            counts[3]++;
        }
    }
    message_free(&message);
    fclose(file);
    for (int i = 0; i < 4; i++)
        printf("%s %ld\n", names[i], counts[i]);
    return 0;
}
