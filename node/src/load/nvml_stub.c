/* A library that answers like NVIDIA's, for tests. What it says is read anew at each question from the file CONTROL: lines of a word and a
 * number. It hangs while the file says so. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process_t;
typedef struct { unsigned gpu, memory; } utilization_t;
#define GIB (1ULL << 30)
#define HANDLE(i) ((void *)(long)((i) + 1))
#define INDEX(d) ((long)(d) - 1)

static long say(const char *word, long otherwise) {
    FILE *file = fopen(CONTROL, "r");
    char key[64];
    long value, found = otherwise;
    if (!file) return otherwise;
    while (fscanf(file, "%63s %ld", key, &value) == 2)
        if (!strcmp(key, word)) found = value;
    fclose(file);
    return found;
}
static long of(const char *word, long index, long otherwise) {
    char key[64];
    snprintf(key, sizeof key, "%s%ld", word, index);
    return say(key, otherwise);
}
/* A minute at most. */
static void hang(const char *word) {
    for (int i = 0; i < 1200 && say(word, 0); i++) usleep(50000);
}

int nvmlInit_v2(void) { hang("hang_init"); return (int)say("init", 0); }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "570.1"); return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = (unsigned)say("count", 2); return (int)say("count_code", 0); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = HANDLE(index); return (int)of("handle", index, 0); }
int nvmlDeviceGetUUID(void *device, char *text, unsigned size) {
    long i = INDEX(device);
    snprintf(text, size, i >= 100 ? "MIG-%ld" : "GPU-%ld", i);
    return (int)of("uuid", i, 0);
}
int nvmlDeviceGetName(void *device, char *text, unsigned size) {
    snprintf(text, size, INDEX(device) == 0 ? "Stub 24" : "Stub 8");
    return 0;
}
#ifndef NO_MEMORY
int nvmlDeviceGetMemoryInfo_v2(void *device, memory_t *memory) {
    long i = INDEX(device);
    hang("hang_memory");
    memory->total = (unsigned long long)of("total", i, i == 0 ? 24 : 8) * GIB;
    memory->used = (unsigned long long)of("used", i, 0) * GIB;
    memory->free = memory->total - memory->used;
    return (int)of("memory", i, 0);
}
#endif
int nvmlDeviceGetUtilizationRates(void *device, utilization_t *rates) {
    rates->gpu = (unsigned)of("busy", INDEX(device), 0);
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, process_t *list) {
    long pid = of("pid", INDEX(device), 0);
    if (say("no_processes", 0)) return 3;
    if (pid && (!list || *count < 1)) { *count = 1; return 7; }
    *count = pid ? 1 : 0;
    if (pid) {
        list[0].pid = (unsigned)pid;
        list[0].used = (unsigned long long)of("pid_used", INDEX(device), 1) * GIB;
        list[0].gpu_instance = list[0].compute_instance = 0xffffffff;
    }
    return 0;
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, process_t *list) { (void)device; (void)list; *count = 0; return 0; }
int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *later) {
    *now = *later = (unsigned)of("mig", INDEX(device), 0);
    return 0;
}
int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *count) { (void)device; *count = 7; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **part) {
    *part = HANDLE(100 + 10 * INDEX(device) + index);
    return index < (unsigned)of("mig_parts", INDEX(device), 0) ? 0 : 6;
}
