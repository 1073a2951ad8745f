/* A management library of one made-up card, told what to answer by FAKE_NVML: "", "nothing" (starts for nobody), "mig" (knows no
 * UUID), "plain" (a card without error correction or parts). Counts its users in fake_users. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, NO_DRIVER = 9 };
int fake_users = 0;
static int card;

static int is(const char *kind) {
    const char *told = getenv("FAKE_NVML");
    return told && strcmp(told, kind) == 0;
}
static int text(char *out, unsigned room, const char *words) {
    if (room <= strlen(words)) return INVALID;
    strcpy(out, words);
    return OK;
}
int nvmlInit_v2(void) { return is("nothing") ? NO_DRIVER : (fake_users++, OK); }
int nvmlShutdown(void) { fake_users--; return OK; }
int nvmlSystemGetDriverVersion(char *out, unsigned room) { return text(out, room, "580.159.04"); }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    if (is("mig") || strcmp(uuid, "GPU-1234")) return NOT_FOUND;
    *device = &card;
    return OK;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device) {
    if (strcmp(bus, "0000:17:00.0")) return NOT_FOUND;
    *device = &card;
    return OK;
}
int nvmlDeviceGetVbiosVersion(void *device, char *out, unsigned room) { return device == &card ? text(out, room, "96.00.A1") : INVALID; }
int nvmlDeviceGetEccMode(void *device, unsigned *now, unsigned *later) {
    if (device != &card) return INVALID;
    if (is("plain")) return NOT_SUPPORTED;
    *now = 1, *later = is("mig") ? 0 : 1;
    return OK;
}
int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *later) {
    if (device != &card) return INVALID;
    if (is("plain")) return NOT_SUPPORTED;
    *now = *later = is("mig");
    return OK;
}
int nvmlDeviceGetComputeMode(void *device, int *mode) {
    *mode = 3;
    return device == &card ? OK : INVALID;
}
int nvmlDeviceGetTotalEccErrors(void *device, int error, int counter, unsigned long long *count) {
    if (is("plain")) return NOT_SUPPORTED;
    *count = 10 * error + counter + (1ULL << 40);
    return device == &card ? OK : INVALID;
}
/* nvmlDeviceGetRemappedRows is missing, as in an old driver. */
