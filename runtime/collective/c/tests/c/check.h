/* What the programs of the tests share. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tidemill/group.h>

#define CHECK(is_so)                                                                                                              \
  do {                                                                                                                            \
    if (!(is_so)) {                                                                                                               \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #is_so, tidemill_error_text());                                      \
      exit(1);                                                                                                                    \
    }                                                                                                                             \
  } while (0)

/* Joins as `PROGRAM SOCKET GROUP RANK SIZE` says. */
static inline tidemill_group *joined(char **argv) {
  struct tidemill_join_options options = {.size = sizeof options, .service = argv[1], .deadline_ms = 60000};
  tidemill_group *group;
  uint32_t rank = (uint32_t)atoi(argv[3]), size = (uint32_t)atoi(argv[4]);
  CHECK(tidemill_group_version() == TIDEMILL_GROUP_VERSION);
  CHECK(tidemill_group_join(argv[2], rank, size, &options, &group) == TIDEMILL_OK);
  return group;
}
