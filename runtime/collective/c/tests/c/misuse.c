/* Calls that are wrong: each gives a status, and none has an effect. */
#include "check.h"
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

static tidemill_pending *waiting;

static void *waits(void *outcome) {
  /* The other thread may look at the same moment. */
  while ((*(int *)outcome = tidemill_pending_wait(waiting, -1)) == TIDEMILL_INVALID) usleep(1000);
  return NULL;
}

static void *fails(void *same) {
  /* Texts belong to threads. */
  *(int *)same = tidemill_error_text()[0] == 0 && tidemill_group_leave((tidemill_group *)77) == TIDEMILL_INVALID;
  return NULL;
}

int main(int argc, char **argv) {
  CHECK(argc == 5);
  tidemill_group *group = NULL;
  tidemill_buffer *buffer = NULL;
  tidemill_pending *pending = NULL;
  struct tidemill_join_options join = {.size = sizeof join, .service = argv[1], .deadline_ms = 60000};
  uint32_t ranks[2];
  size_t count;
  uint64_t epoch;

  CHECK(tidemill_error_text()[0] == 0 && tidemill_error_rank() == -1 && tidemill_error_host()[0] == 0);
  CHECK(tidemill_group_join(NULL, 0, 1, &join, &group) == TIDEMILL_INVALID && group == NULL);
  CHECK(strstr(tidemill_error_text(), "name of the group is NULL") != NULL);
  CHECK(tidemill_group_join(argv[2], 0, 1, &join, NULL) == TIDEMILL_INVALID);
  CHECK(tidemill_group_join("\xff", 0, 1, &join, &group) == TIDEMILL_INVALID);
  CHECK(tidemill_group_join("a/b", 0, 1, &join, &group) == TIDEMILL_REFUSED);
  CHECK(tidemill_group_join(argv[2], 1, 1, &join, &group) == TIDEMILL_REFUSED);
  CHECK(tidemill_group_join(argv[2], 0, 0, &join, &group) == TIDEMILL_REFUSED && group == NULL);
  struct tidemill_join_options wrong = join;
  wrong.size = 8;
  CHECK(tidemill_group_join(argv[2], 0, 1, &wrong, &group) == TIDEMILL_INVALID);
  CHECK(strstr(tidemill_error_text(), "sizeof") != NULL);
  wrong = join;
  wrong.priority = 7;
  CHECK(tidemill_group_join(argv[2], 0, 1, &wrong, &group) == TIDEMILL_INVALID);
  wrong = join;
  wrong.service = "/nowhere/net.sock";
  wrong.wait_ms = -1;
  CHECK(tidemill_group_join(argv[2], 0, 1, &wrong, &group) == TIDEMILL_UNREACHABLE);
  CHECK(strstr(tidemill_error_text(), "tidemill net serve --socket /nowhere/net.sock") != NULL);
  wrong.wait_ms = 30;
  CHECK(tidemill_group_join(argv[2], 0, 1, &wrong, &group) == TIDEMILL_UNREACHABLE);
  CHECK(strstr(tidemill_error_text(), "after 0.03 s") != NULL);
  wrong = join;
  wrong.deadline_ms = 1000;
  CHECK(tidemill_group_join("late", 1, 2, &wrong, &group) == TIDEMILL_REFUSED);

  /* The socket is also found by the variable. */
  CHECK(setenv("TIDEMILL_NET", argv[1], 1) == 0);
  CHECK(tidemill_group_join("other", 0, 1, NULL, &group) == TIDEMILL_OK && tidemill_group_leave(group) == TIDEMILL_OK);
  CHECK(tidemill_group_join(argv[2], 0, 1, &join, &group) == TIDEMILL_OK && group != NULL);

  CHECK(tidemill_buffer_new(NULL, TIDEMILL_F32, 1, &buffer) == TIDEMILL_INVALID);
  CHECK(tidemill_buffer_new(group, 5, 1, &buffer) == TIDEMILL_INVALID);
  CHECK(tidemill_buffer_new(group, -1, 1, &buffer) == TIDEMILL_INVALID && buffer == NULL);
  CHECK(tidemill_buffer_new(group, TIDEMILL_F32, 1, NULL) == TIDEMILL_INVALID);
  CHECK(tidemill_buffer_new(group, TIDEMILL_F32, SIZE_MAX, &buffer) == TIDEMILL_REFUSED);
  CHECK(tidemill_buffer_new(group, TIDEMILL_F32, (size_t)1 << 30 | 1, &buffer) == TIDEMILL_REFUSED);
  CHECK(tidemill_buffer_new(group, TIDEMILL_F32, 0, &buffer) == TIDEMILL_OK && tidemill_buffer_data(buffer) != NULL);
  CHECK(tidemill_all_reduce(group, buffer, TIDEMILL_SUM, NULL, NULL) == TIDEMILL_OK);
  CHECK(tidemill_buffer_free(buffer) == TIDEMILL_OK);
  CHECK(tidemill_buffer_new(group, TIDEMILL_F32, 10, &buffer) == TIDEMILL_OK);
  CHECK(tidemill_buffer_data(NULL) == NULL && tidemill_buffer_data((tidemill_buffer *)group) == NULL);
  CHECK(tidemill_group_members((tidemill_group *)buffer, ranks, 2, &count) == TIDEMILL_INVALID);
  CHECK(tidemill_group_members(group, NULL, 2, &count) == TIDEMILL_INVALID);
  CHECK(tidemill_group_members(group, ranks, 2, NULL) == TIDEMILL_INVALID);
  CHECK(tidemill_group_epoch(group, NULL) == TIDEMILL_INVALID && tidemill_group_epoch(NULL, &epoch) == TIDEMILL_INVALID);
  CHECK(tidemill_group_shrink(NULL, 0) == TIDEMILL_INVALID);

  CHECK(tidemill_all_reduce(group, NULL, TIDEMILL_SUM, NULL, &pending) == TIDEMILL_INVALID && pending == NULL);
  CHECK(tidemill_all_reduce(NULL, buffer, TIDEMILL_SUM, NULL, &pending) == TIDEMILL_INVALID);
  CHECK(tidemill_all_reduce((tidemill_group *)1, buffer, TIDEMILL_SUM, NULL, &pending) != TIDEMILL_OK);
  CHECK(tidemill_all_reduce(group, buffer, 3, NULL, &pending) == TIDEMILL_INVALID);
  CHECK(tidemill_reduce_scatter(group, buffer, -1, NULL, &pending) == TIDEMILL_INVALID);
  CHECK(tidemill_broadcast(group, buffer, 1, NULL, NULL) == TIDEMILL_WRONG);
  struct tidemill_call_options call = {.size = sizeof call, .flags = 4};
  CHECK(tidemill_all_gather(group, buffer, &call, &pending) == TIDEMILL_INVALID);
  call.flags = TIDEMILL_AFTER;
  call.after = -1;
  CHECK(tidemill_all_gather(group, buffer, &call, &pending) == TIDEMILL_INVALID);
  call.flags = 0;
  call.type_name = "a name of more than 24 letters";
  CHECK(tidemill_all_gather(group, buffer, &call, &pending) == TIDEMILL_INVALID);
  call.type_name = NULL;
  call.flags = TIDEMILL_AFTER;
  call.after = 1000000;
  CHECK(tidemill_all_gather(group, buffer, &call, &pending) == TIDEMILL_INVALID);
  call.size = 0;
  CHECK(tidemill_all_to_all(group, buffer, &call, &pending) == TIDEMILL_INVALID && pending == NULL);
  /* A descriptor that never becomes readable, until the deadline. */
  int gate[2], outcome = -1, is_same = 0;
  CHECK(pipe(gate) == 0);
  call = (struct tidemill_call_options){.size = sizeof call, .flags = TIDEMILL_AFTER, .after = gate[0]};
  CHECK(tidemill_all_gather(group, buffer, &call, &pending) == TIDEMILL_OK);
  CHECK(tidemill_pending_fd(pending) == -1 && tidemill_pending_fd(NULL) == -1);
  CHECK(tidemill_pending_wait(NULL, 0) == TIDEMILL_INVALID);
  CHECK(tidemill_pending_wait((tidemill_pending *)buffer, 0) == TIDEMILL_INVALID);
  /* Two threads wait for one operation: one of them is told so. */
  pthread_t thread;
  waiting = pending;
  CHECK(pthread_create(&thread, NULL, waits, &outcome) == 0);
  int status;
  while ((status = tidemill_pending_wait(pending, 0)) == TIDEMILL_TIMEOUT) usleep(1000);
  CHECK(status == TIDEMILL_INVALID && strstr(tidemill_error_text(), "another thread") != NULL);
  /* Its handle is freed while the thread waits, and the gate opens. */
  CHECK(tidemill_pending_free(pending) == TIDEMILL_OK);
  CHECK(tidemill_pending_free(pending) == TIDEMILL_INVALID && tidemill_pending_wait(pending, 0) == TIDEMILL_INVALID);
  CHECK(write(gate[1], "x", 1) == 1);
  CHECK(pthread_join(thread, NULL) == 0 && outcome == TIDEMILL_OK);
  CHECK(pthread_create(&thread, NULL, fails, &is_same) == 0 && pthread_join(thread, NULL) == 0 && is_same);

  CHECK(tidemill_pending_free(NULL) == TIDEMILL_OK && tidemill_buffer_free(NULL) == TIDEMILL_OK);
  CHECK(tidemill_group_leave(NULL) == TIDEMILL_OK);
  /* An operation that waits when the program leaves. */
  char byte;
  CHECK(read(gate[0], &byte, 1) == 1);
  CHECK(tidemill_all_gather(group, buffer, &call, &pending) == TIDEMILL_OK);
  CHECK(tidemill_group_leave(group) == TIDEMILL_OK && tidemill_group_leave(group) == TIDEMILL_INVALID);
  CHECK(tidemill_pending_wait(pending, -1) == TIDEMILL_GONE);
  CHECK(tidemill_all_reduce(group, buffer, TIDEMILL_SUM, NULL, NULL) == TIDEMILL_INVALID);
  /* Its memory stays until it is freed. */
  ((float *)tidemill_buffer_data(buffer))[9] = 1;
  CHECK(tidemill_buffer_free(buffer) == TIDEMILL_OK && tidemill_buffer_free(buffer) == TIDEMILL_INVALID);
  CHECK(tidemill_pending_free(pending) == TIDEMILL_OK && tidemill_buffer_data(buffer) == NULL);
  puts("survived");
  return 0;
}
