/* A libcupti that runs nothing: one subscriber, records laid out as those of CUPTI 13.0, delivered when asked for. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int status;
typedef void (*api_callback)(void *, int, uint32_t, const void *);
static uint32_t version = 130001, enabled_calls, kinds;
static api_callback callback;
static void *holder;
static int subscribed, fail_at;
static void (*request)(uint8_t **, size_t *, size_t *);
static void (*complete)(void *, uint32_t, uint8_t *, size_t, size_t);
static uint8_t *buffer;
static size_t room, used, lost;

/* For tests. */
void fake_cupti_version(uint32_t number) { version = number; }
void fake_cupti_fail(int which) { fail_at = which; }
int fake_cupti_state(int which) { return which == 0 ? subscribed : which == 1 ? (int)enabled_calls : (int)kinds; }
/* The C API's call with a correlation id, then a kernel's record. */
void fake_cupti_call(int domain, uint32_t id, uint32_t correlation) {
  char data[72] = {0};
  memcpy(data + 64, &correlation, 4);
  if (callback) callback(holder, domain, id, data);
  int32_t site = 1;
  memcpy(data, &site, 4);
  if (callback) callback(holder, domain, id, data);
}
status cuptiActivityFlushAll(uint32_t flag);
void fake_cupti_kernel(const char *name, uint32_t correlation, uint64_t start, uint64_t end, uint32_t graph) {
  if (!(kinds & (1u << 10))) { lost++; return; }
  if (!buffer) {
    size_t most = 0;
    request(&buffer, &room, &most);
    used = 0;
  }
  char record[216] = {0};
  int32_t kind = 10;
  memcpy(record, &kind, 4), memcpy(record + 16, &start, 8), memcpy(record + 24, &end, 8), memcpy(record + 92, &correlation, 4);
  memcpy(record + 104, &name, 8), memcpy(record + 156, &graph, 4);
  memcpy(buffer + used, record, sizeof record);
  used += sizeof record;
  if (used + sizeof record > room) cuptiActivityFlushAll(0);
}

status cuptiGetVersion(uint32_t *out) { *out = version; return 0; }
status cuptiSubscribe(void **out, api_callback call, void *data) {
  if (subscribed) return 39;
  if (fail_at == 1) return 35;
  subscribed = 1, callback = call, holder = data, *out = &subscribed;
  return 0;
}
status cuptiUnsubscribe(void *who) { (void)who; subscribed = 0, callback = 0, enabled_calls = 0; return 0; }
status cuptiEnableCallback(uint32_t on, void *who, int domain, uint32_t id) { (void)who, (void)domain, (void)id; enabled_calls += on; return fail_at == 2 ? 7 : 0; }
status cuptiActivityRegisterCallbacks(void (*asked)(uint8_t **, size_t *, size_t *), void (*done)(void *, uint32_t, uint8_t *, size_t, size_t)) {
  request = asked, complete = done;
  return fail_at == 3 ? 7 : 0;
}
status cuptiActivityEnable(int kind) { kinds |= 1u << kind; return 0; }
status cuptiActivityDisable(int kind) { kinds &= ~(1u << kind); return 0; }
status cuptiActivityFlushAll(uint32_t flag) {
  (void)flag;
  uint8_t *full = buffer;
  buffer = 0;
  if (full) complete(0, 0, full, room, used);
  return 0;
}
status cuptiActivityGetNextRecord(uint8_t *from, size_t valid, void **record) {
  uint8_t *next = *record ? (uint8_t *)*record + 216 : from;
  if (next + 216 > from + valid) return 12;
  *record = next;
  return 0;
}
status cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *out) { (void)context, (void)stream; *out = lost, lost = 0; return 0; }
