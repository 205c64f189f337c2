/* Rank 2 ends while the others count on it, and they continue without it. */
#include "check.h"
#include <unistd.h>

static int32_t sum(tidemill_group *group, tidemill_buffer *buffer, int *status) {
  int32_t *value = tidemill_buffer_data(buffer);
  *value = 1;
  *status = tidemill_all_reduce(group, buffer, TIDEMILL_SUM, NULL, NULL);
  return *value;
}

int main(int argc, char **argv) {
  CHECK(argc == 5);
  tidemill_group *group = joined(argv);
  tidemill_buffer *buffer;
  uint32_t ranks[3];
  size_t count;
  uint64_t before, after;
  int status;
  CHECK(tidemill_buffer_new(group, TIDEMILL_I32, 1, &buffer) == TIDEMILL_OK);
  CHECK(sum(group, buffer, &status) == 4 && status == TIDEMILL_OK);
  puts("ready");
  fflush(stdout);
  while (atoi(argv[3]) == 2) pause();

  sum(group, buffer, &status);
  CHECK(status == TIDEMILL_LOST);
  printf("%" PRId64 " %s %s\n", tidemill_error_rank(), tidemill_error_host(), tidemill_error_text());
  /* Until it continues, all calls fail in the same way. */
  sum(group, buffer, &status);
  CHECK(status == TIDEMILL_LOST && tidemill_error_rank() == 2);
  CHECK(tidemill_group_epoch(group, &before) == TIDEMILL_OK);
  CHECK(tidemill_group_shrink(group, 60000) == TIDEMILL_OK);
  CHECK(tidemill_group_epoch(group, &after) == TIDEMILL_OK && after != before);
  CHECK(tidemill_group_members(group, ranks, 3, &count) == TIDEMILL_OK && count == 3);
  CHECK(ranks[0] == 0 && ranks[1] == 1 && ranks[2] == 3);
  CHECK(sum(group, buffer, &status) == 3 && status == TIDEMILL_OK);
  CHECK(tidemill_group_leave(group) == TIDEMILL_OK && tidemill_buffer_free(buffer) == TIDEMILL_OK);
  return 0;
}
