/* Each operation, with what it gives. */
#include "check.h"
#include <poll.h>
#include <unistd.h>

static void types(tidemill_group *group, uint32_t rank, uint32_t size) {
  tidemill_buffer *buffer;
  CHECK(tidemill_buffer_new(group, TIDEMILL_F32, 100000, &buffer) == TIDEMILL_OK);
  float *floats = tidemill_buffer_data(buffer);
  CHECK(floats != NULL && (uintptr_t)floats % 4096 == 0 && floats[99999] == 0);
  for (int i = 0; i < 100000; i++) floats[i] = (float)(rank + 1);
  CHECK(tidemill_all_reduce(group, buffer, TIDEMILL_SUM, NULL, NULL) == TIDEMILL_OK);
  for (int i = 0; i < 100000; i++) CHECK(floats[i] == (float)(size * (size + 1) / 2));
  CHECK(tidemill_buffer_free(buffer) == TIDEMILL_OK);

  CHECK(tidemill_buffer_new(group, TIDEMILL_I64, 3, &buffer) == TIDEMILL_OK);
  int64_t *longs = tidemill_buffer_data(buffer);
  longs[0] = longs[1] = longs[2] = -(int64_t)rank;
  CHECK(tidemill_all_reduce(group, buffer, TIDEMILL_MIN, NULL, NULL) == TIDEMILL_OK);
  CHECK(longs[0] == -(int64_t)(size - 1) && longs[2] == longs[0]);
  longs[1] = rank;
  CHECK(tidemill_all_reduce(group, buffer, TIDEMILL_MAX, NULL, NULL) == TIDEMILL_OK);
  CHECK(longs[0] == -(int64_t)(size - 1) && longs[1] == size - 1);
  CHECK(tidemill_buffer_free(buffer) == TIDEMILL_OK);

  /* 1.5 + 1.5 + ... and -2 - 2 - ..., by their bits. */
  const uint16_t sums[2][5] = {{0, 0, 0x4200, 0, 0x4600}, {0, 0, 0xc080, 0, 0xc100}};
  const uint16_t ones[2] = {0x3e00, 0xc000};
  for (int brain = 0; brain < 2; brain++) {
    CHECK(tidemill_buffer_new(group, brain ? TIDEMILL_BF16 : TIDEMILL_F16, 7, &buffer) == TIDEMILL_OK);
    uint16_t *halves = tidemill_buffer_data(buffer);
    for (int i = 0; i < 7; i++) halves[i] = ones[brain];
    CHECK(tidemill_all_reduce(group, buffer, TIDEMILL_SUM, NULL, NULL) == TIDEMILL_OK);
    CHECK(halves[0] == sums[brain][size] && halves[6] == halves[0]);
    CHECK(tidemill_buffer_free(buffer) == TIDEMILL_OK);
  }
}

static void parts(tidemill_group *group, uint32_t rank, uint32_t size) {
  const uint32_t part = 1000;
  tidemill_buffer *buffer;
  CHECK(tidemill_buffer_new(group, TIDEMILL_I32, (size_t)part * size, &buffer) == TIDEMILL_OK);
  int32_t *values = tidemill_buffer_data(buffer);
  for (uint32_t i = 0; i < part * size; i++) values[i] = (int32_t)(rank * 10 + i / part);
  CHECK(tidemill_broadcast(group, buffer, size - 1, NULL, NULL) == TIDEMILL_OK);
  for (uint32_t i = 0; i < part * size; i++) CHECK(values[i] == (int32_t)((size - 1) * 10 + i / part));

  for (uint32_t i = 0; i < part * size; i++) values[i] = (int32_t)(i / part);
  CHECK(tidemill_reduce_scatter(group, buffer, TIDEMILL_SUM, NULL, NULL) == TIDEMILL_OK);
  for (uint32_t i = rank * part; i < (rank + 1) * part; i++) CHECK(values[i] == (int32_t)(rank * size));

  for (uint32_t i = rank * part; i < (rank + 1) * part; i++) values[i] = (int32_t)(100 + rank);
  CHECK(tidemill_all_gather(group, buffer, NULL, NULL) == TIDEMILL_OK);
  for (uint32_t i = 0; i < part * size; i++) CHECK(values[i] == (int32_t)(100 + i / part));

  for (uint32_t i = 0; i < part * size; i++) values[i] = (int32_t)(rank * 10 + i / part);
  CHECK(tidemill_all_to_all(group, buffer, NULL, NULL) == TIDEMILL_OK);
  for (uint32_t i = 0; i < part * size; i++) CHECK(values[i] == (int32_t)(i / part * 10 + rank));
  CHECK(tidemill_buffer_free(buffer) == TIDEMILL_OK);
}

/* Calls that wait for a descriptor, and ends that are waited for with others. */
static void events(tidemill_group *group, uint32_t rank, uint32_t size) {
  tidemill_buffer *buffer;
  tidemill_pending *pending, *second;
  int gate[2];
  CHECK(pipe(gate) == 0);
  CHECK(tidemill_buffer_new(group, TIDEMILL_I32, 1, &buffer) == TIDEMILL_OK);
  int32_t *value = tidemill_buffer_data(buffer);
  struct tidemill_call_options options = {.size = sizeof options, .flags = TIDEMILL_AFTER | TIDEMILL_READABLE, .after = gate[0]};
  CHECK(tidemill_all_reduce(group, buffer, TIDEMILL_SUM, &options, &pending) == TIDEMILL_OK);
  CHECK(tidemill_pending_wait(pending, 0) == TIDEMILL_TIMEOUT);
  CHECK(tidemill_pending_wait(pending, 20) == TIDEMILL_TIMEOUT);
  /* Written after the call, and before the operation. */
  *value = (int32_t)rank + 1;
  CHECK(write(gate[1], "x", 1) == 1);
  struct pollfd end = {.fd = tidemill_pending_fd(pending), .events = POLLIN};
  CHECK(end.fd >= 0 && poll(&end, 1, 60000) == 1);
  CHECK(tidemill_pending_wait(pending, 60000) == TIDEMILL_OK);
  CHECK(tidemill_pending_wait(pending, 0) == TIDEMILL_OK);
  CHECK(*value == (int32_t)(size * (size + 1) / 2));
  CHECK(tidemill_pending_free(pending) == TIDEMILL_OK);

  /* Two at once, the last one first. */
  CHECK(tidemill_all_reduce(group, buffer, TIDEMILL_SUM, NULL, &pending) == TIDEMILL_OK);
  CHECK(tidemill_all_reduce(group, buffer, TIDEMILL_SUM, NULL, &second) == TIDEMILL_OK);
  CHECK(tidemill_pending_fd(second) == -1);
  CHECK(tidemill_pending_wait(second, -1) == TIDEMILL_OK && tidemill_pending_wait(pending, -1) == TIDEMILL_OK);
  CHECK(*value == (int32_t)(size * size * size * (size + 1) / 2));
  CHECK(tidemill_pending_free(second) == TIDEMILL_OK && tidemill_pending_free(pending) == TIDEMILL_OK);

  /* A wrong call of all ranks is an error of the call. */
  CHECK(tidemill_broadcast(group, buffer, 1000, NULL, NULL) == TIDEMILL_WRONG);
  CHECK(tidemill_all_reduce(group, buffer, TIDEMILL_MAX, NULL, NULL) == TIDEMILL_OK);
  CHECK(tidemill_buffer_free(buffer) == TIDEMILL_OK);
}

int main(int argc, char **argv) {
  CHECK(argc == 5);
  tidemill_group *group = joined(argv);
  uint32_t rank = (uint32_t)atoi(argv[3]), size = (uint32_t)atoi(argv[4]), ranks[8] = {0};
  size_t count;
  CHECK(tidemill_group_members(group, NULL, 0, &count) == TIDEMILL_OK && count == size);
  CHECK(tidemill_group_members(group, ranks, 8, &count) == TIDEMILL_OK && count == size && ranks[size - 1] == size - 1);
  types(group, rank, size);
  parts(group, rank, size);
  events(group, rank, size);
  CHECK(tidemill_group_leave(group) == TIDEMILL_OK);
  puts("right");
  return 0;
}
