/* Stand-in for libcuda.so.1: becomes a client of the MPS stand-in, or runs without limits when it cannot.
 *
 * The GPUs of the "host" are the lines of the file `gpus` beside the library: UUID, SMs, MiB of memory, granularity of
 * a share in SMs, 1 where the compute mode is exclusive. A client is registered from cuInit until the process ends; a
 * process that ends without its exit handlers is seen as killed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <libgen.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { INVALID = 1, NO_MEMORY = 2, NOT_READY = 3, NO_DEVICE = 100, BAD_DEVICE = 101, NO_CONTEXT = 201, TAKEN = 46,
       TERMINATED = 810, RPC = 806, LAUNCH_FAILED = 719, SM_COUNT = 16, ALLOCATIONS = 4096 };

static struct { char uuid[96]; int sms; long memory_mib; int granularity; int exclusive; } gpu;
static int inited, visible, sms, link_fd = -1, sticky, context;
static unsigned long long limit_bytes, used_bytes;
static struct { unsigned long long at, size; } allocations[ALLOCATIONS];

__attribute__((destructor)) static void leave(void) {
    if (link_fd >= 0 && send(link_fd, "BYE\n", 4, MSG_NOSIGNAL) == 4) shutdown(link_fd, SHUT_WR);
}

static int find_gpu(const char *wanted) {
    char path[4200], line[512];
    Dl_info here;
    int index = 0, found = 0;
    if (!dladdr((void *)find_gpu, &here)) return 0;
    char *copy = strdup(here.dli_fname);
    snprintf(path, sizeof path, "%s/gpus", dirname(copy));
    free(copy);
    FILE *file = fopen(path, "r");
    while (file && !found && fgets(line, sizeof line, file)) {
        char number[16];
        if (sscanf(line, "%95s %d %ld %d %d", gpu.uuid, &gpu.sms, &gpu.memory_mib, &gpu.granularity, &gpu.exclusive) != 5)
            continue;
        snprintf(number, sizeof number, "%d", index++);
        found = !wanted || !strcmp(wanted, number) || (strlen(wanted) >= 5 && !strncmp(gpu.uuid, wanted, strlen(wanted)));
    }
    if (file) fclose(file);
    return found;
}

/* 0: no daemon there, which is no error to CUDA; 1: a client now; else an error code. */
static int join(void) {
    char line[1024];
    const char *pipe = getenv("CUDA_MPS_PIPE_DIRECTORY"), *share = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    const char *memory = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"), *seen = getenv("CUDA_VISIBLE_DEVICES");
    const char *uid = getenv("STANDIN_CUDA_UID");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(line, sizeof line, "%s/control", pipe ? pipe : "/tmp/nvidia-mps");
    if (strlen(line) >= sizeof address.sun_path) return 0;
    strcpy(address.sun_path, line);
    int link = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (link < 0 || connect(link, (struct sockaddr *)&address, sizeof address) != 0) {
        if (link >= 0) close(link);
        return 0;
    }
    int length = snprintf(line, sizeof line, "HELLO %d %d %s %s %s\n", (int)getpid(), uid ? atoi(uid) : (int)getuid(),
                          share ? share : "-", memory ? memory : "-", seen ? seen : "-");
    ssize_t got = 0;
    if (length >= (int)sizeof line || send(link, line, (size_t)length, MSG_NOSIGNAL) != length) { close(link); return RPC; }
    while (got == 0 || line[got - 1] != '\n') {
        ssize_t more = read(link, line + got, sizeof line - 1 - (size_t)got);
        if (more <= 0) { close(link); return RPC; }
        got += more;
    }
    line[got] = 0;
    int code = RPC;
    if (sscanf(line, "OK %d %llu", &sms, &limit_bytes) == 2) { link_fd = link; return 1; }
    sscanf(line, "ERR %d", &code);
    close(link);
    return code;
}

int cuInit(unsigned flags) {
    const char *seen = getenv("CUDA_VISIBLE_DEVICES");
    (void)flags;
    if (inited) return sticky;
    if (seen && !*seen) return NO_DEVICE;
    if (!find_gpu(seen)) return NO_DEVICE;
    sms = gpu.sms;
    int joined = join();
    if (joined > 1) return joined;
    visible = inited = 1;
    return 0;
}

static int trouble(void) {
    char what;
    if (!inited) return NOT_READY;
    if (!sticky && link_fd >= 0 && recv(link_fd, &what, 1, MSG_DONTWAIT) == 1)
        sticky = what == 'T' ? TERMINATED : LAUNCH_FAILED;
    return sticky;
}

int cuDriverGetVersion(int *version) { *version = 13010; return 0; }
int cuDeviceGetCount(int *count) { *count = visible; return inited ? 0 : NOT_READY; }
int cuDeviceGet(int *device, int ordinal) {
    if (!inited) return NOT_READY;
    if (ordinal != 0) return BAD_DEVICE;
    *device = 0;
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    if (!inited) return NOT_READY;
    if (device != 0) return BAD_DEVICE;
    if (attribute != SM_COUNT) return INVALID;
    *value = sms;
    return 0;
}

int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    const char *text = strchr(gpu.uuid, '-');
    int digits = 0;
    if (!inited) return NOT_READY;
    if (device != 0 || !text) return BAD_DEVICE;
    memset(uuid, 0, 16);
    for (; *text && digits < 32; text++) {
        const char *hex = "0123456789abcdef", *at = *text != '-' ? strchr(hex, *text | 32) : NULL;
        if (at) { uuid[digits / 2] |= (unsigned char)((at - hex) << (digits % 2 ? 0 : 4)); digits++; }
    }
    return 0;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    (void)device;
    *bytes = (size_t)gpu.memory_mib << 20;
    return inited ? 0 : NOT_READY;
}

int cuDevicePrimaryCtxRetain(void **held, int device) {
    if (trouble()) return sticky ? sticky : NOT_READY;
    if (device != 0) return BAD_DEVICE;
    if (gpu.exclusive && link_fd < 0) return TAKEN;
    context++;
    *held = &context;
    return 0;
}

int cuDevicePrimaryCtxRelease_v2(int device) { (void)device; if (context) context--; return 0; }
int cuCtxSetCurrent(void *held) { return held == &context || !held ? 0 : NO_CONTEXT; }
int cuCtxSynchronize(void) { return trouble(); }

int cuMemGetInfo_v2(size_t *available, size_t *total) {
    if (!context) return NO_CONTEXT;
    *total = (size_t)gpu.memory_mib << 20;
    *available = (limit_bytes ? limit_bytes : *total) - used_bytes;
    return trouble();
}

int cuMemAlloc_v2(unsigned long long *pointer, size_t bytes) {
    static unsigned long long next = 1 << 20;
    unsigned long long room = limit_bytes ? limit_bytes : (unsigned long long)gpu.memory_mib << 20;
    if (!context) return NO_CONTEXT;
    if (trouble()) return sticky;
    if (!bytes) return INVALID;
    if (used_bytes + bytes > room) return NO_MEMORY;
    for (int i = 0; i < ALLOCATIONS; i++) {
        if (allocations[i].size) continue;
        allocations[i].at = *pointer = next;
        allocations[i].size = bytes;
        next += bytes; used_bytes += bytes;
        return 0;
    }
    return NO_MEMORY;
}

int cuMemFree_v2(unsigned long long pointer) {
    for (int i = 0; i < ALLOCATIONS; i++) {
        if (!allocations[i].size || allocations[i].at != pointer) continue;
        used_bytes -= allocations[i].size;
        allocations[i].size = 0;
        return 0;
    }
    return INVALID;
}
