/* A policy that does what its options say, right or wrong. Built by tests.rs in several ways (-D). */
#include "tidemill_policy.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef VERSION
#define VERSION TIDEMILL_POLICY_ABI_VERSION
#endif
#ifndef RELEASE
#define RELEASE 1
#endif
#ifndef NAME
#define NAME "fixture"
#endif

/* The same numbers as in abi.rs. */
#if UINTPTR_MAX == UINT64_MAX
_Static_assert(sizeof(struct tidemill_policy_frame) == 136, "frame");
_Static_assert(sizeof(struct tidemill_policy_decision) == 32, "decision");
_Static_assert(sizeof(struct tidemill_policy) == 64, "table");
#endif

struct instance {
  char options[256];
  uint8_t frames;
};

/* Columns that were taken and never given back before the next one. */
static struct ArrowArray taken;

static int asked(const struct instance *self, const char *what) { return strstr(self->options, what) != NULL; }

static void *make(const char *options, size_t len, struct tidemill_policy_error *error) {
  struct instance *self = calloc(1, sizeof *self);
  memcpy(self->options, options, len < 255 ? len : 255);
  if (asked(self, "refuse")) {
    snprintf(error->text, error->capacity, "write\nsomething \xff else than %s", self->options);
    free(self);
    return NULL;
  }
  return self;
}

static size_t columns(void *instance, char *names, size_t capacity) {
  struct instance *self = instance;
  if (asked(self, "too many columns")) return 1 << 20;
  if (asked(self, "half a column")) {
    if (capacity >= 3) memcpy(names, "cam", 3);
    return 3;
  }
  const char *name = asked(self, "reads other") ? "cam" : asked(self, "reads") ? "camera" : NULL;
  if (name == NULL) return 0;
  size_t needed = strlen(name) + 1;
  if (capacity >= needed) memcpy(names, name, needed);
  return needed;
}

static int32_t look(void *instance, const struct tidemill_policy_frame *frame,
                    struct tidemill_policy_decision *decision, struct tidemill_policy_error *error) {
  struct instance *self = instance;
  self->frames++;
  if (asked(self, "tell")) {
    snprintf(error->text, error->capacity, "release %d saw %d frames", RELEASE, self->frames);
    return 1;
  }
  if (asked(self, "facts")) {
    snprintf(error->text, error->capacity, "%.*s: %.*s -> %.*s channel %d number %d epoch %d rows %d columns %d %d %d",
             (int)frame->workflow.len, frame->workflow.bytes, (int)frame->from.len, frame->from.bytes, (int)frame->to.len,
             frame->to.bytes, (int)frame->channel, (int)frame->number, (int)frame->epoch, (int)frame->rows,
             (int)frame->columns_len, frame->size == sizeof *frame, frame->now > 0 && frame->bytes > 0);
    return 1;
  }
  if (asked(self, "long error")) {
    memset(error->text, 'x', error->capacity);
    return 1;
  }
  if (asked(self, "silent error")) return -1;
  if (asked(self, "unknown verdict")) decision->verdict = 9;
  if (asked(self, "too long")) decision->verdict = TIDEMILL_POLICY_WAIT, decision->wait = UINT64_MAX;
  if (asked(self, "at once")) decision->verdict = TIDEMILL_POLICY_WAIT;
  if (asked(self, "an hour")) decision->verdict = TIDEMILL_POLICY_WAIT, decision->wait = 3600ull * 1000000000ull;
  if (asked(self, "cut")) decision->verdict = TIDEMILL_POLICY_CUT;
  if (asked(self, "wrong mark")) decision->keep[1] = 7;
  if (asked(self, "odd rows"))
    for (uint64_t row = 0; row < frame->rows; row += 2) decision->keep[row] = 0;
  if (asked(self, "reads") && frame->columns_len == 1 && strcmp(frame->schemas[0].format, "u") == 0) {
    const struct ArrowArray *column = &frame->columns[0];
    const int32_t *ends = (const int32_t *)column->buffers[1] + column->offset;
    const char *text = column->buffers[2];
    for (int64_t row = 0; row < column->length; row++)
      decision->keep[row] = ends[row + 1] > ends[row] && text[ends[row]] != 'b';
    if (asked(self, "takes")) {
      if (taken.release != NULL) taken.release(&taken);
      taken = *column;
      frame->columns[0].release = NULL;
    }
  }
  return 0;
}

static size_t state(void *instance, uint8_t *bytes, size_t capacity) {
  struct instance *self = instance;
  static size_t other = 2;
  if (asked(self, "huge state")) return SIZE_MAX;
  if (asked(self, "other state")) return other++;
  if (capacity >= 2) bytes[0] = RELEASE, bytes[1] = self->frames;
  return 2;
}

static int32_t restore(void *instance, const uint8_t *bytes, size_t len, struct tidemill_policy_error *error) {
  struct instance *self = instance;
  if (len != 2 || bytes[0] > RELEASE) {
    snprintf(error->text, error->capacity, "release %d cannot read it", RELEASE);
    return 1;
  }
  self->frames = bytes[1];
  return 0;
}

static void drop(void *instance) {
  if (taken.release != NULL) taken.release(&taken);
  taken.release = NULL;
  free(instance);
}

static const struct tidemill_policy table = {
    .abi_version = VERSION,
    .name = NAME,
    .make = make,
    .columns = columns,
#ifndef NO_LOOK
    .look = look,
#endif
    .state = state,
    .restore = restore,
    .drop = drop,
};

const struct tidemill_policy *tidemill_policy_v1(void) {
#ifdef NO_TABLE
  return NULL;
#else
  return &table;
#endif
}
