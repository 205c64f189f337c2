/*
 * Policies of Tidemill from libraries of others, version 1 of the interface.
 *
 * A policy looks at frames of records on an edge of a dataflow that runs, before they leave the transport service of a host.
 * A library exports one function, tidemill_policy_v1, which returns a table of functions. The service loads it when a person
 * attaches the policy "library" with its path; only the user of the service or root may.
 *
 * Promises of the service:
 *   - No two calls to one instance overlap. Calls to different instances may, from different threads, so what instances share
 *     needs a lock. The thread may be another one each time.
 *   - The library stays loaded as long as one of its instances lives, and `drop` is the last call to an instance.
 *   - What it passes to a function is valid until the function returns, unless it says otherwise below.
 *   - It checks what a function returns. What makes no sense counts as a failure of the policy.
 *
 * Promises of the library:
 *   - No function throws, panics or jumps through the service. It runs in the process of the service: a crash ends the service
 *     with all its edges, which continue where they were when it is started again.
 *   - `look` returns soon, in microseconds if it can. All edges of the host wait for it. To hold a frame, it answers WAIT.
 *   - What it needs besides the C library is there on every host.
 *
 * A failure of a policy (`look` returns an error) never lets a frame pass: the connection is cut, and made again after a pause.
 *
 * A later version of the service may add members at the end of `tidemill_policy_frame` and `tidemill_policy_decision`; their
 * `size` says which there are. Everything else of version 1 stays as it is.
 */
#ifndef TIDEMILL_POLICY_H
#define TIDEMILL_POLICY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The Arrow C data interface: https://arrow.apache.org/docs/format/CDataInterface.html */
#ifndef ARROW_C_DATA_INTERFACE
#define ARROW_C_DATA_INTERFACE

#define ARROW_FLAG_DICTIONARY_ORDERED 1
#define ARROW_FLAG_NULLABLE 2
#define ARROW_FLAG_MAP_KEYS_SORTED 4

struct ArrowSchema {
  const char *format;
  const char *name;
  const char *metadata;
  int64_t flags;
  int64_t n_children;
  struct ArrowSchema **children;
  struct ArrowSchema *dictionary;
  void (*release)(struct ArrowSchema *);
  void *private_data;
};

struct ArrowArray {
  int64_t length;
  int64_t null_count;
  int64_t offset;
  int64_t n_buffers;
  int64_t n_children;
  const void **buffers;
  struct ArrowArray **children;
  struct ArrowArray *dictionary;
  void (*release)(struct ArrowArray *);
  void *private_data;
};

#endif /* ARROW_C_DATA_INTERFACE */

/* The version of this interface. */
#define TIDEMILL_POLICY_ABI_VERSION 1

/* The frame passes, with the rows that are kept. */
#define TIDEMILL_POLICY_PASS 0
/* The frame is looked at again after `wait`. Later frames of its channel stay behind it. Its rows are judged then. */
#define TIDEMILL_POLICY_WAIT 1
/* The connection is cut. It is made again, and what was not durable is sent again: such frames come once more. */
#define TIDEMILL_POLICY_CUT 2

/* A text in UTF-8, without a NUL at its end. */
struct tidemill_policy_text {
  const char *bytes;
  size_t len;
};

/* Where a function says why it failed, for people: UTF-8, up to `capacity` bytes. It ends there or at the first NUL. */
struct tidemill_policy_error {
  char *text;
  size_t capacity;
};

/* A frame that is looked at. */
struct tidemill_policy_frame {
  /* Bytes of this struct. */
  size_t size;
  /* The time, in nanoseconds: CLOCK_MONOTONIC of the host. The same for a state that another instance continues with. */
  uint64_t now;
  /* The channel of the edge: one for each pair of a sender and a receiver. */
  uint64_t channel;
  /* Another number for each frame of a connection. It stays where a frame that waited is looked at again. */
  uint64_t number;
  /* The epoch of the records. */
  uint64_t epoch;
  /* Its records. */
  uint64_t rows;
  /* Bytes that it takes on a stream. */
  uint64_t bytes;
  /* Bytes of the channel that wait because the stream to its receiver takes nothing now. */
  uint64_t waiting;
  /* The workflow of the edge, and the operators at its ends. */
  struct tidemill_policy_text workflow;
  struct tidemill_policy_text from;
  struct tidemill_policy_text to;
  /*
   * The columns that `columns` named, in that order. They are a private copy that nobody else writes; do not write to it.
   * Each has `rows` values. A function may take one, as the Arrow C data interface says: it copies the struct, sets `release`
   * of the original to NULL and calls that of its copy later, from any thread. The service releases the others.
   */
  size_t columns_len;
  struct ArrowArray *columns;
  struct ArrowSchema *schemas;
};

/* The decision about a frame. The service sets it to "pass, with all rows" before. */
struct tidemill_policy_decision {
  /* Bytes of this struct. */
  size_t size;
  /* TIDEMILL_POLICY_PASS, _WAIT or _CUT. */
  uint32_t verdict;
  /* Time for which the frame waits, in nanoseconds: at most one hour. Less than a millisecond counts as one. */
  uint64_t wait;
  /* A byte for each row of the frame: 1 (as it is set before) keeps it, 0 takes it out. Read if the verdict is PASS. */
  uint8_t *keep;
};

/* The table of a policy. It and its name are never changed or freed. Functions that are marked as optional may be NULL. */
struct tidemill_policy {
  /* TIDEMILL_POLICY_ABI_VERSION. */
  uint32_t abi_version;
  /* Its name, for people, with a NUL at its end: at most 64 bytes. A state is only given to a policy of the same name. */
  const char *name;

  /*
   * Makes an instance. `options` are what the person wrote under "options": JSON of `len` bytes, `{}` if nothing.
   * Returns NULL if they are wrong, and says what to write.
   */
  void *(*make)(const char *options, size_t len, struct tidemill_policy_error *error);

  /*
   * Optional. Names the columns that the instance reads, each followed by a NUL. Writes them if `capacity` is enough, and
   * returns the bytes that it needs: at most 65536. Asked once, after `make`. Without columns a frame is not copied, which
   * makes it much cheaper. Payload columns have the names that the workflow gives them; there are also those of every
   * record: _id, _source, _sequence, _time, _intended, _class, _change.
   */
  size_t (*columns)(void *instance, char *names, size_t capacity);

  /* Looks at a frame. Returns 0 if it decided; else it cannot judge the frame, and says why. */
  int32_t (*look)(void *instance, const struct tidemill_policy_frame *frame, struct tidemill_policy_decision *decision,
                  struct tidemill_policy_error *error);

  /*
   * Optional. Writes the state for the instance that replaces this one, if `capacity` is enough, and returns the bytes that
   * it needs: at most 16 MiB. `bytes` may be NULL where `capacity` is 0. Begin it with a version of its format: a newer
   * version of the library reads it.
   */
  size_t (*state)(void *instance, uint8_t *bytes, size_t capacity);

  /*
   * Optional. Continues with a state that `state` wrote, maybe of another version of the library. Returns 0 if it does; else
   * it says why not, this instance is dropped, and the one before stays. Without this function it begins anew.
   */
  int32_t (*restore)(void *instance, const uint8_t *bytes, size_t len, struct tidemill_policy_error *error);

  /* Frees an instance. */
  void (*drop)(void *instance);
};

/* The one function that a library exports. */
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
const struct tidemill_policy *tidemill_policy_v1(void);

#ifdef __cplusplus
}
#endif

#endif /* TIDEMILL_POLICY_H */
