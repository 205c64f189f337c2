/* Two ranks move elements of different types, which have as many bytes, and learn it in each operation. */
#include "check.h"

static int move(int which, tidemill_group *group, tidemill_buffer *buffer, const struct tidemill_call_options *options) {
  switch (which) {
    case 0: return tidemill_broadcast(group, buffer, 0, options, NULL);
    case 1: return tidemill_all_gather(group, buffer, options, NULL);
    case 2: return tidemill_all_to_all(group, buffer, options, NULL);
    default: return tidemill_all_reduce(group, buffer, TIDEMILL_SUM, options, NULL);
  }
}

int main(int argc, char **argv) {
  CHECK(argc == 5);
  tidemill_group *group = joined(argv);
  int rank = atoi(argv[3]);
  for (int which = 0; which < 4; which++) {
    /* By the type of the buffer: 32 bytes each. */
    tidemill_buffer *buffer, *same;
    CHECK(tidemill_buffer_new(group, rank ? TIDEMILL_I64 : TIDEMILL_F32, rank ? 4 : 8, &buffer) == TIDEMILL_OK);
    CHECK(move(which, group, buffer, NULL) == TIDEMILL_DIFFERS);
    CHECK(strstr(tidemill_error_text(), "8 f32") != NULL && strstr(tidemill_error_text(), "4 i64") != NULL);
    CHECK(tidemill_group_shrink(group, 60000) == TIDEMILL_OK);
    /* By a name, for a type that buffers do not have. */
    CHECK(tidemill_buffer_new(group, TIDEMILL_I64, 4, &same) == TIDEMILL_OK);
    struct tidemill_call_options options = {.size = sizeof options, .type_name = rank ? "float64" : "uint64"};
    CHECK(move(which, group, same, &options) == TIDEMILL_DIFFERS);
    CHECK(strstr(tidemill_error_text(), "32 bytes of float64") != NULL && strstr(tidemill_error_text(), "32 bytes of uint64") != NULL);
    CHECK(tidemill_group_shrink(group, 60000) == TIDEMILL_OK);
    options.type_name = "float64";
    CHECK(move(which, group, same, &options) == TIDEMILL_OK);
    CHECK(tidemill_buffer_free(buffer) == TIDEMILL_OK && tidemill_buffer_free(same) == TIDEMILL_OK);
  }
  CHECK(tidemill_group_leave(group) == TIDEMILL_OK);
  return 0;
}
