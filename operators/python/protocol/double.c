/* A step in C that speaks the protocol of docs/python-protocol.md, version 1: the second implementation, without a library.
   It doubles the first column, which is int64, and drops the records where it is empty. Its state is the sum of all values;
   `advance` gives one record with it. Usage: double CONTROL REQUESTS RESULTS, the numbers of inherited descriptors. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { HELLO = 1, BATCH, ADVANCE, SNAPSHOT, RESTORE, END, READY = 16, RESULT, FAILED, STATE, DONE };
enum { INT64 = 2, FIRST = 4096 };

/* All numbers are little-endian, as on the machines that share this memory. */
struct head { uint32_t length, kind; uint64_t number; };
struct place { uint64_t offset, length; };
struct column { uint32_t type, element; uint64_t rows, nulls; struct place validity, first, second; };
struct call { uint64_t rows; struct place part; uint32_t columns, zero; };
struct answer { uint64_t rows, processor_time; uint32_t columns, flags, freed, rejected; struct place origins; };

static int control, requests, results;

static int receive(void *data, size_t length)
{
    for (size_t done = 0; done < length;) {
        ssize_t got = read(control, (char *)data + done, length - done);
        if (got <= 0)
            return 0;
        done += got;
    }
    return 1;
}

static void send_message(uint32_t kind, uint64_t number, const void *body, uint32_t length)
{
    struct head head = { length, kind, number };
    if (write(control, &head, sizeof head) != sizeof head || write(control, body, length) != length)
        exit(1);
}

static void *load(struct place place)
{
    char *data = malloc(place.length + 1);
    if (!data || pread(requests, data, place.length, place.offset) != (ssize_t)place.length)
        exit(1);
    return data;
}

static struct place store(uint64_t *at, const void *data, uint64_t length)
{
    struct place place = { *at, length };
    if (pwrite(results, data, length, *at) != (ssize_t)length)
        exit(1);
    *at += (length + 63) / 64 * 64; /* buffers begin at multiples of 64 */
    return place;
}

/* Answers with one column of values; without origins the rows belong to no row of the input. */
static void answer(uint64_t number, const int64_t *values, const uint32_t *origins, uint64_t rows)
{
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    struct { struct answer answer; struct column column; } body = { 0 };
    uint64_t at = FIRST;
    body.answer.rows = rows;
    body.answer.processor_time = time.tv_sec * 1000000000ull + time.tv_nsec;
    body.answer.columns = 1;
    if (origins)
        body.answer.origins = store(&at, origins, rows * sizeof *origins);
    body.column.type = INT64;
    body.column.rows = rows;
    body.column.first = store(&at, values, rows * sizeof *values);
    send_message(RESULT, number, &body, sizeof body);
}

int main(int count, char **arguments)
{
    if (count != 4)
        return 2;
    control = atoi(arguments[1]), requests = atoi(arguments[2]), results = atoi(arguments[3]);
    int64_t sum = 0;
    struct head head;
    while (receive(&head, sizeof head) && head.kind != END) {
        char *body = malloc(head.length + 1);
        if (!body || !receive(body, head.length))
            return 1;
        body[head.length] = 0;
        if (head.kind == HELLO) {
            const char *ready = strstr(body, "\"version\":1,")
                ? "{\"version\": 1, \"language\": \"\", \"form\": \"record\", \"has_state\": true, \"has_advance\": true}"
                : "{\"version\": 1, \"error\": {\"message\": \"only version 1 is spoken here\"}}";
            send_message(READY, head.number, ready, strlen(ready));
        } else if (head.kind == BATCH) {
            struct call call;
            struct column column;
            memcpy(&call, body, sizeof call);
            memcpy(&column, body + sizeof call, sizeof column);
            int64_t *values = load(column.first), *doubled = calloc(call.rows + 1, sizeof *doubled);
            uint8_t *valid = column.nulls ? load(column.validity) : NULL;
            uint32_t *origins = calloc(call.rows + 1, sizeof *origins);
            uint64_t rows = 0;
            for (uint64_t row = 0; row < call.rows; row++) {
                if (valid && !(valid[row / 8] >> row % 8 & 1))
                    continue;
                if (pwrite(results, &row, sizeof row, 0) != sizeof row) /* the row at work */
                    return 1;
                if (values[row] == 13) { /* a record that is rejected as a whole batch */
                    const char *failed = "{\"reason\": \"python_error\", \"detail\": \"thirteen\"}";
                    send_message(FAILED, head.number, failed, strlen(failed));
                    rows = UINT64_MAX;
                    break;
                }
                sum += values[row];
                origins[rows] = row;
                doubled[rows++] = 2 * values[row];
            }
            if (rows != UINT64_MAX)
                answer(head.number, doubled, origins, rows);
            free(values), free(doubled), free(valid), free(origins);
        } else if (head.kind == ADVANCE) {
            answer(head.number, &sum, NULL, 1);
        } else if (head.kind == SNAPSHOT) {
            uint64_t at = FIRST;
            struct place place = store(&at, &sum, sizeof sum);
            send_message(STATE, head.number, &place, sizeof place);
        } else if (head.kind == RESTORE) {
            struct place place;
            memcpy(&place, body, sizeof place);
            int64_t *state = load(place);
            sum = *state;
            free(state);
            send_message(DONE, head.number, "", 0);
        }
        free(body);
    }
    return 0;
}
