/*
 * Groups of programs of Tidemill, for C and C++: version 2 of the interface.
 *
 * The programs of a group are its ranks. Each joins with its number, gets buffers, and calls the same operations in the same
 * order. The transport service of the machine (`tidemill net serve`) moves and combines the memory. docs/collectives-c.md has
 * complete programs.
 *
 * Status. Functions that return `int` return TIDEMILL_OK or why they failed, unless they say otherwise. After a failure,
 * tidemill_error_text() and its neighbours have the details.
 *
 * Handles. A group, a buffer and a pending operation are handles. They are no addresses of memory: do not dereference them, copy
 * them freely. A handle that is NULL, that was freed, or that is of another kind makes a function return TIDEMILL_INVALID, and
 * nothing else happens. Handles stay until they are freed: leaving a group frees neither its buffers nor its operations.
 *
 * Threads. Every function may be called by any thread at any time, also with the same handle, with one exception: one thread at
 * a time waits for a pending operation. Operations of one group have the order in which they are called, and that has to be the
 * same at all ranks: threads that call operations of one group agree on who comes first. A handle that is freed while another
 * thread uses it stays until that thread's function returns.
 *
 * Processes. A child of fork() may not use handles of its parent: it would speak for the same rank. A child keeps the connection
 * of the group open until it ends or calls one of the exec functions, so the death of its parent is noticed only then.
 *
 * Signals. No function may be called by a signal handler. Functions that wait continue after a signal.
 */
#ifndef TIDEMILL_GROUP_H
#define TIDEMILL_GROUP_H

#include <stddef.h>
#include <stdint.h>

/* The version of this interface. Version 2: `wait_ms` of joins, and `type_name` of calls. */
#define TIDEMILL_GROUP_VERSION 2

/* Status of functions. */
enum tidemill_status {
  /* It is done. */
  TIDEMILL_OK = 0,
  /* An argument is wrong: NULL, a handle of nothing, a number out of range. Nothing has happened. */
  TIDEMILL_INVALID = 1,
  /* No service answers in time. `tidemill net serve` starts one. */
  TIDEMILL_UNREACHABLE = 2,
  /* The service does not do it: ranks are missing at the deadline, the rank is taken, no memory is left. */
  TIDEMILL_REFUSED = 3,
  /* The service is gone, or the program has left the group. Leave it, and join again. */
  TIDEMILL_GONE = 4,
  /* A program, a service or a machine of the group is gone. tidemill_group_shrink() continues without it. */
  TIDEMILL_LOST = 5,
  /* The operation did not end by its deadline. The group is broken as after TIDEMILL_LOST. */
  TIDEMILL_DEADLINE = 6,
  /* The ranks call different operations, or one with elements of different types. The group is broken as after TIDEMILL_LOST. */
  TIDEMILL_DIFFERS = 7,
  /* The call is wrong, such as a broadcast of a rank that does not take part. The group works on if all ranks made the same. */
  TIDEMILL_WRONG = 8,
  /* The system has no memory or no descriptors left. */
  TIDEMILL_MEMORY = 9,
  /* The operation has not ended yet: see tidemill_pending_wait(). */
  TIDEMILL_TIMEOUT = 10,
  /* A bug of the library. Please report the text. */
  TIDEMILL_INTERNAL = 11
};

/* Types of elements. All are in the byte order of the machine. */
enum tidemill_element {
  /* float */
  TIDEMILL_F32 = 0,
  /* 16 bits, IEEE 754 */
  TIDEMILL_F16 = 1,
  /* 16 bits with the exponent of float */
  TIDEMILL_BF16 = 2,
  /* int32_t */
  TIDEMILL_I32 = 3,
  /* int64_t */
  TIDEMILL_I64 = 4
};

/* How two values become one. Sums of floats are the same bytes at all ranks; sums of integers wrap around. */
enum tidemill_reduction {
  TIDEMILL_SUM = 0,
  TIDEMILL_MIN = 1,
  TIDEMILL_MAX = 2
};

/* Which groups have paths first. */
enum tidemill_priority {
  TIDEMILL_PRIORITY_BULK = -1,
  TIDEMILL_PRIORITY_NORMAL = 0,
  TIDEMILL_PRIORITY_HIGH = 1
};

typedef struct tidemill_group tidemill_group;
typedef struct tidemill_buffer tidemill_buffer;
typedef struct tidemill_pending tidemill_pending;

/* How a program joins. Set `size` to sizeof, and members that you do not need to 0. */
struct tidemill_join_options {
  /* Bytes of this struct. */
  size_t size;
  /* The socket of the service. NULL: $TIDEMILL_NET, or the usual one of the user. */
  const char *service;
  /* Time until all ranks must have joined, in milliseconds. 0: 5min. */
  uint64_t deadline_ms;
  /* One of enum tidemill_priority. */
  int priority;
  /* Time in which the service must be there, in milliseconds, as a part of the deadline. 0: 5s. Negative: it has to be there. */
  int64_t wait_ms;
};

/* The operation begins when the descriptor `after` is readable: an eventfd, a pipe or a Unix socket. */
#define TIDEMILL_AFTER 1
/* tidemill_pending_fd() is wanted. */
#define TIDEMILL_READABLE 2

/* How an operation is called. Set `size` to sizeof, and members that you do not need to 0. */
struct tidemill_call_options {
  /* Bytes of this struct. */
  size_t size;
  /* Time until the operation must have ended, in milliseconds. 0: 5min. */
  uint64_t deadline_ms;
  /* TIDEMILL_AFTER and TIDEMILL_READABLE, combined by `|`. */
  uint32_t flags;
  /* The descriptor of TIDEMILL_AFTER. The caller keeps it, and may close it after the call. */
  int after;
  /*
   * The type of elements that are only moved, where it is none of enum tidemill_element, such as "float64": at most 24 visible
   * letters of ASCII. Ranks that name different types get TIDEMILL_DIFFERS. NULL: that of the buffer.
   */
  const char *type_name;
};

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the version of the library. It is TIDEMILL_GROUP_VERSION if library and header belong together. */
uint32_t tidemill_group_version(void);

/*
 * Returns why the last function that failed in this thread did, for people: UTF-8, one line. Empty: none has failed. It stays
 * until another function fails in this thread, or the thread ends. Do not free it.
 */
const char *tidemill_error_text(void);

/* Returns the rank that caused that failure. -1: it was not caused by one, or it is unknown. */
int64_t tidemill_error_rank(void);

/* Returns the name of the machine of the cause. Empty: unknown. It stays as long as tidemill_error_text(). */
const char *tidemill_error_host(void);

/*
 * Joins the group `name` as rank `rank` of `size`, and returns when all ranks have joined. Names have letters, digits, `-`, `_`
 * and `.`. Groups of different users are different ones. `options` may be NULL.
 */
int tidemill_group_join(const char *name, uint32_t rank, uint32_t size, const struct tidemill_join_options *options,
                        tidemill_group **group);

/*
 * Writes how many ranks take part to `count`, and the first `capacity` of them to `ranks`, ascending. Parts of operations count
 * by the position here. `ranks` may be NULL if `capacity` is 0.
 */
int tidemill_group_members(tidemill_group *group, uint32_t *ranks, size_t capacity, size_t *count);

/* Writes a number that is another one after each tidemill_group_shrink(). */
int tidemill_group_epoch(tidemill_group *group, uint64_t *epoch);

/*
 * Continues with the ranks that are left, after one was lost: returns when all of them have called this, at most after
 * `deadline_ms` (0: 5min). Ranks keep their numbers. A program that joined in the place of a lost rank takes part, too.
 */
int tidemill_group_shrink(tidemill_group *group, uint64_t deadline_ms);

/*
 * Leaves the group, and frees its handle. What it has sent for operations that have ended here still arrives; operations that have not ended fail at the others. A program
 * that ends leaves its groups. Does nothing for NULL.
 */
int tidemill_group_leave(tidemill_group *group);

/*
 * Gets a buffer of `length` elements, all zero, at most 4 GiB. `element`: one of enum tidemill_element. Elements lie one after
 * the other, from tidemill_buffer_data() on.
 */
int tidemill_buffer_new(tidemill_group *group, int element, size_t length, tidemill_buffer **buffer);

/*
 * Returns where the elements of a buffer are, at the beginning of a page; NULL: the handle is of no buffer. The memory is that
 * of the service: operations need no copy of it. It stays until the buffer is freed, also when the group or the service is gone.
 *
 * From the call of an operation to its end, the service reads and writes the buffer: it copies what is there at any time
 * meanwhile. A program that writes a buffer meanwhile gets a wrong result, and one that reads it may see parts of the result.
 * The end is known when tidemill_pending_wait() returns TIDEMILL_OK or a failure of the operation.
 */
void *tidemill_buffer_data(tidemill_buffer *buffer);

/* Frees a buffer. Operations that use it continue. Does nothing for NULL. */
int tidemill_buffer_free(tidemill_buffer *buffer);

/*
 * The operations. Each returns when it is called, and puts its handle into `pending`. If `pending` is NULL, it returns when it
 * has ended, with its outcome. `options` may be NULL.
 *
 * Part p of n of a buffer: its elements p * length / n to (p + 1) * length / n (integers, rounded down).
 */

/* All ranks get the buffer of the rank `root`. */
int tidemill_broadcast(tidemill_group *group, tidemill_buffer *buffer, uint32_t root, const struct tidemill_call_options *options,
                       tidemill_pending **pending);

/* All ranks get the combination of all buffers. `reduction`: one of enum tidemill_reduction. */
int tidemill_all_reduce(tidemill_group *group, tidemill_buffer *buffer, int reduction,
                        const struct tidemill_call_options *options, tidemill_pending **pending);

/* The member at position p gets part p of the combination. The rest of its buffer is undefined afterwards. */
int tidemill_reduce_scatter(tidemill_group *group, tidemill_buffer *buffer, int reduction,
                            const struct tidemill_call_options *options, tidemill_pending **pending);

/* All ranks get part p of the buffer of the member at position p. */
int tidemill_all_gather(tidemill_group *group, tidemill_buffer *buffer, const struct tidemill_call_options *options,
                        tidemill_pending **pending);

/* Part q of the member at position p becomes part p of the member at position q. The members' number divides the length. */
int tidemill_all_to_all(tidemill_group *group, tidemill_buffer *buffer, const struct tidemill_call_options *options,
                        tidemill_pending **pending);

/*
 * Waits until an operation has ended, at most for `timeout_ms` (0: it only looks; negative: without a limit). Returns its
 * outcome, or TIDEMILL_TIMEOUT: it continues, and may be waited for again. May be called again after the end.
 */
int tidemill_pending_wait(tidemill_pending *pending, int64_t timeout_ms);

/*
 * Returns a descriptor that becomes readable when the operation has ended, for poll() and its like. Call tidemill_pending_wait()
 * then. -1: it was called without TIDEMILL_READABLE. Do not close it or read it; it is closed with the handle.
 */
int tidemill_pending_fd(tidemill_pending *pending);

/* Frees the handle of an operation, which continues. Does nothing for NULL. */
int tidemill_pending_free(tidemill_pending *pending);

#ifdef __cplusplus
}
#endif

#endif /* TIDEMILL_GROUP_H */
