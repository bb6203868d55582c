/* A stand-in for libnvidia-ml.so.1: GPUs that several processes see alike, with their limits and their faults.
 *
 * Build: cc -shared -fPIC -O1 -Wall -Wl,-soname,libnvidia-ml.so.1 -o libnvidia-ml.so.1 nvml.c -lm
 * Without that soname the loader does not take it for the real one.
 *
 * Environment (read when nvmlInitWithFlags is called):
 *   HEADROOM_STANDIN_NVML               directory of the simulated host; without it init answers 9 (driver not loaded)
 *   HEADROOM_STANDIN_NVML_UNPRIVILEGED  if set and not empty, this process may read but not write (4)
 *
 * Files in that directory (layout.py beside this file writes and edits them; see class NvmlStandIn):
 *   state.bin   `struct host` below, mapped by everybody. Take flock(LOCK_EX) on it to change more than one field.
 *               What tests may change at any time: in `host` forbid_setters, init_code, hang_until_s, missing and the
 *               events (append: fill events[event_count % EVENTS], then raise event_count); in `gpu` everything from
 *               load_pct on. Times are CLOCK_MONOTONIC seconds, which all processes share.
 *   processes/UUID/PID
 *               one text file per process that uses a GPU (UUID of the GPU or MIG device), "MIB MPS\n": memory in MiB
 *               (-1: the driver cannot tell) and 1 for an MPS client, else 0. Whoever plays a CUDA process writes it
 *               (under a name that does not begin with a digit first, then rename) and removes it. Processes that are
 *               dead or zombies are not listed, their files count for nothing, unless a third number says 1: then the
 *               PID is an imaginary one.
 *
 * Behaviour: setters need privilege (4), check ranges (2) and take clocks that are not in the table by rounding them
 * down, as drivers do. Power follows load, clock and limit; energy is its integral; a power limit pulls the clock
 * down and says so in the event reasons. Structures with a wrong version word are refused (25). A lost GPU answers 15
 * to everything. Names the binding asks for first and old drivers lack answer 13 while their bit is in `missing`.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef unsigned int u32;
typedef unsigned long long u64;
typedef void *handle_t;

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, INSUFFICIENT = 7,
       NO_DRIVER = 9, TIMEOUT = 10, NO_FUNCTION = 13, LOST = 15, VERSION_MISMATCH = 25 };
enum { GPUS = 16, MIGS = 7, CLOCKS = 320, MEMORY_CLOCKS = 8, EVENTS = 64, MAGIC = 0x4d4c5648 };

/* bits of gpu.lacks: what this product cannot do (3) */
enum { LACKS_POWER_LIMIT = 1, LACKS_CLOCK_LOCK = 2, LACKS_MEMORY_LOCK = 4, LACKS_ENERGY = 8, LACKS_GPM = 16, LACKS_ECC = 32,
       LACKS_EVENTS = 64, LACKS_UTILISATION = 128, LACKS_INSTANT_POWER = 256, LACKS_MIG = 512, LACKS_PERSISTENCE = 1024,
       LACKS_CORES = 2048, LACKS_POWER = 4096, LACKS_TEMPERATURE = 8192 };
/* bits of host.missing: what this driver's library does not have at all (13) */
enum { MISSING_TEMPERATURE_V = 1, MISSING_EVENT_REASONS = 2, MISSING_MEMORY_V2 = 4, MISSING_MPS_PROCESSES = 8,
       MISSING_GPM = 16, MISSING_CORES = 32 };

struct mig {
    u64 memory_bytes;
    char uuid[96], profile[32];
    u32 gpu_instance, compute_instance, sm_count, slices, compute_mode, spare;
};

struct gpu {
    /* what it is */
    u64 memory_bytes, reserved_bytes;
    char uuid[96], product[96];
    u32 sm_count, core_count, cc_major, cc_minor, minor, lacks;
    u32 idle_mw, tdp_mw, limit_mw_min, limit_mw_max, limit_mw_default;
    u32 clock_count, clocks[CLOCKS], memory_clock_count, memory_clocks[MEMORY_CLOCKS];
    u32 mig_mode, mig_count;
    struct mig migs[MIGS];
    /* what was set; clocks of 0 are not locked */
    u32 locked_min, locked_max, memory_locked_min, memory_locked_max, limit_mw, compute_mode, persistence, setter_calls;
    /* what tests say */
    double load_pct;         /* below 0: 80 with processes, 0 without */
    double energy_mj, energy_at_s;
    double hang_until_s;     /* calls on this GPU block until then */
    u64 throttle_reasons;    /* added to the event reasons */
    u32 throttle_mhz;        /* clock while there are such reasons; 0: half of the highest */
    u32 limit_mw_outside;    /* a limit set out-of-band; 0: none */
    u32 lost, handle_code, setter_code, read_code;
    u32 ignores_locks;       /* a lock is accepted and does nothing */
    u32 memory_unknown;      /* usedGpuMemory of every process is not available */
    u32 ecc_corrected, ecc_uncorrected, recovery_action, reads;
};

struct event {
    u64 type, data;
    u32 gpu, spare;
};

struct host {
    u32 magic, size, gpu_count, forbid_setters, init_code, missing;
    u64 event_count;
    double hang_until_s;
    char driver[80];
    u32 cuda, spare;
    struct event events[EVENTS];
    struct gpu gpus[GPUS];
};

static struct host *host;
static int host_fd = -1, references, unprivileged;
static char directory[3072];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void pause_ms(long ms) {
    struct timespec pause = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&pause, NULL);
}

static void lock(void) {
    pthread_mutex_lock(&mutex);
    while (flock(host_fd, LOCK_EX) != 0 && errno == EINTR) { }
}

static int unlock(int code) {
    flock(host_fd, LOCK_UN);
    pthread_mutex_unlock(&mutex);
    return code;
}

/* --- handles: 1 + 16 * GPU + (0 the GPU itself, 1.. its MIG devices) --- */

static struct gpu *gpu_of(handle_t handle) {
    uintptr_t number = (uintptr_t)handle;
    if (number < 1 || (number - 1) / 16 >= host->gpu_count) return NULL;
    struct gpu *gpu = &host->gpus[(number - 1) / 16];
    return (number - 1) % 16 <= gpu->mig_count ? gpu : NULL;
}

static struct mig *mig_of(handle_t handle) {
    uintptr_t slot = ((uintptr_t)handle - 1) % 16;
    return slot == 0 ? NULL : &gpu_of(handle)->migs[slot - 1];
}

static handle_t handle_of(u32 gpu, u32 slot) { return (handle_t)(uintptr_t)(1 + 16 * gpu + slot); }

static int host_ready(void) {
    if (references == 0) return UNINITIALIZED;
    while (host->hang_until_s > now_s()) pause_ms(5);
    return OK;
}

static int readable(handle_t handle) {
    int code = host_ready();
    if (code != OK) return code;
    struct gpu *gpu = gpu_of(handle);
    if (gpu == NULL) return INVALID;
    while (gpu->hang_until_s > now_s()) pause_ms(5);
    gpu->reads++;
    if (gpu->lost) return LOST;
    return (int)gpu->read_code;
}

static int writable(handle_t handle) {
    int code = readable(handle);
    if (code != OK) return code;
    gpu_of(handle)->setter_calls++;
    if (unprivileged || host->forbid_setters) return NO_PERMISSION;
    return (int)gpu_of(handle)->setter_code;
}

/* Macros, because every entry point begins with one of them. */
#define READ(h) do { int read_ = readable(h); if (read_ != OK) return read_; } while (0)
#define READ_WHOLE(h) do { READ(h); if (mig_of(h) != NULL) return NOT_SUPPORTED; } while (0)
#define WRITE(h) do { int write_ = writable(h); if (write_ != OK) return write_; } while (0)
#define WRITE_WHOLE(h) do { WRITE(h); if (mig_of(h) != NULL) return NOT_SUPPORTED; } while (0)
#define NEEDS(h, bit) do { if (gpu_of(h)->lacks & (bit)) return NOT_SUPPORTED; } while (0)
#define HAS(bit) do { if (references > 0 && (host->missing & (bit))) return NO_FUNCTION; } while (0)

/* --- processes --- */

struct process {
    u32 pid, mps;
    long long mib;
};

static int alive(u32 pid) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL) return 0;
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = 0;
    char *state = strrchr(text, ')');
    return state != NULL && state[1] == ' ' && state[2] != 'Z' && state[2] != 'X';
}

static u32 processes_of(const char *uuid, struct process *found, u32 room) {
    char path[4096];
    snprintf(path, sizeof path, "%s/processes/%s", directory, uuid);
    DIR *folder = opendir(path);
    if (folder == NULL) return 0;
    u32 count = 0;
    struct dirent *entry;
    while ((entry = readdir(folder)) != NULL && count < room) {
        u32 pid = (u32)strtoul(entry->d_name, NULL, 10);
        if (entry->d_name[0] < '0' || entry->d_name[0] > '9') continue;
        snprintf(path, sizeof path, "%s/processes/%s/%s", directory, uuid, entry->d_name);
        FILE *file = fopen(path, "re");
        if (file == NULL) continue;
        struct process process = {pid, 0, 0};
        u32 imaginary = 0;
        int words = fscanf(file, "%lld %u %u", &process.mib, &process.mps, &imaginary);
        fclose(file);
        if (words >= 2 && (imaginary || alive(pid))) found[count++] = process;
    }
    closedir(folder);
    return count;
}

enum { PROCESSES = 256 };

/* --- physics --- */

static double load_of(struct gpu *gpu) {
    if (gpu->load_pct >= 0) return fmin(gpu->load_pct, 100) / 100;
    struct process found[PROCESSES];
    u32 count = processes_of(gpu->uuid, found, PROCESSES);
    for (u32 slot = 0; slot < gpu->mig_count && count == 0; slot++)
        count = processes_of(gpu->migs[slot].uuid, found, PROCESSES);
    return count > 0 ? 0.8 : 0;
}

static u32 clock_at_most(struct gpu *gpu, u32 mhz) {
    u32 chosen = gpu->clocks[0];
    for (u32 i = 0; i < gpu->clock_count && gpu->clocks[i] <= mhz; i++) chosen = gpu->clocks[i];
    return chosen;
}

static double power_at(struct gpu *gpu, double load, u32 mhz) {
    double part = pow((double)mhz / gpu->clocks[gpu->clock_count - 1], 2.2);
    return gpu->idle_mw + (1.1 * gpu->tdp_mw - gpu->idle_mw) * load * part;
}

static u32 enforced_mw(struct gpu *gpu) {
    return gpu->limit_mw_outside && gpu->limit_mw_outside < gpu->limit_mw ? gpu->limit_mw_outside : gpu->limit_mw;
}

struct moment {
    double load, power_mw;
    u32 mhz;
    u64 reasons;
};

static struct moment moment_of(struct gpu *gpu) {
    struct moment now = {load_of(gpu), 0, 0, gpu->throttle_reasons};
    u32 highest = gpu->clocks[gpu->clock_count - 1];
    int locked = gpu->locked_max != 0 && !gpu->ignores_locks;
    now.mhz = locked ? clock_at_most(gpu, gpu->locked_max) : now.load > 0 ? highest : gpu->clocks[0];
    if (now.load <= 0) now.reasons |= 1;
    if (gpu->throttle_reasons & ~3ULL) {
        u32 held = clock_at_most(gpu, gpu->throttle_mhz ? gpu->throttle_mhz : highest / 2);
        if (held < now.mhz) now.mhz = held;
    }
    while (now.mhz > gpu->clocks[0] && power_at(gpu, now.load, now.mhz) > enforced_mw(gpu)) {
        now.mhz = clock_at_most(gpu, now.mhz - 1);
        now.reasons |= 4;
    }
    now.power_mw = fmin(power_at(gpu, now.load, now.mhz), enforced_mw(gpu));
    return now;
}

/* Under the lock, before anything changes that power depends on. */
static void settle(struct gpu *gpu) {
    double at_s = now_s();
    if (gpu->energy_at_s > 0 && at_s > gpu->energy_at_s)
        gpu->energy_mj += moment_of(gpu).power_mw * (at_s - gpu->energy_at_s);
    gpu->energy_at_s = at_s;
}

/* --- life --- */

u32 standin_layout(u32 which) {
    u32 sizes[] = {sizeof(struct host), sizeof(struct gpu), sizeof(struct mig), sizeof(struct event)};
    return which < 4 ? sizes[which] : 0;
}

int nvmlInitWithFlags(u32 flags) {
    (void)flags;
    pthread_mutex_lock(&mutex);
    int code = OK;
    if (host == NULL) {
        const char *named = getenv("HEADROOM_STANDIN_NVML");
        char path[4096];
        code = NO_DRIVER;
        if (named != NULL && strlen(named) < sizeof directory) {
            strcpy(directory, named);
            snprintf(path, sizeof path, "%s/state.bin", directory);
            host_fd = open(path, O_RDWR | O_CLOEXEC);
        }
        if (host_fd >= 0) {
            void *mapped = mmap(NULL, sizeof(struct host), PROT_READ | PROT_WRITE, MAP_SHARED, host_fd, 0);
            host = mapped == MAP_FAILED ? NULL : mapped;
        }
        if (host != NULL && host->magic == MAGIC && host->size == sizeof(struct host)) code = OK;
        const char *low = getenv("HEADROOM_STANDIN_NVML_UNPRIVILEGED");
        unprivileged = low != NULL && *low != 0;
    }
    if (code == OK) code = (int)host->init_code;
    if (code == OK) references++;
    pthread_mutex_unlock(&mutex);
    return code;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
    if (references == 0) return UNINITIALIZED;
    references--;
    return OK;
}

const char *nvmlErrorString(int code) {
    (void)code;
    return "stand-in";
}

static int put(char *out, u32 room, const char *text) {
    if (strlen(text) + 1 > room) return INSUFFICIENT;
    strcpy(out, text);
    return OK;
}

int nvmlSystemGetDriverVersion(char *out, u32 room) {
    int code = host_ready();
    return code != OK ? code : put(out, room, host->driver);
}

int nvmlSystemGetNVMLVersion(char *out, u32 room) { return nvmlSystemGetDriverVersion(out, room); }

int nvmlSystemGetCudaDriverVersion_v2(int *out) {
    int code = host_ready();
    if (code == OK) *out = (int)host->cuda;
    return code;
}

/* --- devices --- */

int nvmlDeviceGetCount_v2(u32 *out) {
    int code = host_ready();
    if (code == OK) *out = host->gpu_count;
    return code;
}

static int hand_out(u32 gpu, u32 slot, handle_t *out) {
    if (host->gpus[gpu].lost) return LOST;
    if (host->gpus[gpu].handle_code) return (int)host->gpus[gpu].handle_code;
    *out = handle_of(gpu, slot);
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(u32 index, handle_t *out) {
    int code = host_ready();
    if (code != OK) return code;
    return index < host->gpu_count ? hand_out(index, 0, out) : INVALID;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, handle_t *out) {
    int code = host_ready();
    if (code != OK) return code;
    for (u32 i = 0; i < host->gpu_count; i++) {
        if (strcmp(host->gpus[i].uuid, uuid) == 0) return hand_out(i, 0, out);
        for (u32 slot = 0; slot < host->gpus[i].mig_count; slot++)
            if (strcmp(host->gpus[i].migs[slot].uuid, uuid) == 0) return hand_out(i, slot + 1, out);
    }
    return NOT_FOUND;
}

int nvmlDeviceGetName(handle_t h, char *out, u32 room) {
    READ(h);
    char text[160];
    snprintf(text, sizeof text, mig_of(h) ? "%s MIG %s" : "%s", gpu_of(h)->product, mig_of(h) ? mig_of(h)->profile : "");
    return put(out, room, text);
}

int nvmlDeviceGetUUID(handle_t h, char *out, u32 room) {
    READ(h);
    return put(out, room, mig_of(h) ? mig_of(h)->uuid : gpu_of(h)->uuid);
}

int nvmlDeviceGetIndex(handle_t h, u32 *out) {
    READ(h);
    *out = (u32)(gpu_of(h) - host->gpus);
    return OK;
}

int nvmlDeviceGetMinorNumber(handle_t h, u32 *out) {
    READ_WHOLE(h);
    *out = gpu_of(h)->minor;
    return OK;
}

struct pci {
    char legacy[16];
    u32 domain, bus, device, id, subsystem;
    char bus_id[32];
};

int nvmlDeviceGetPciInfo_v3(handle_t h, struct pci *out) {
    READ_WHOLE(h);
    memset(out, 0, sizeof *out);
    out->bus = 0x10 + gpu_of(h)->minor;
    snprintf(out->legacy, sizeof out->legacy, "0000:%02X:00.0", out->bus);
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", out->bus);
    return OK;
}

int nvmlDeviceGetCudaComputeCapability(handle_t h, int *major, int *minor) {
    READ(h);
    *major = (int)gpu_of(h)->cc_major;
    *minor = (int)gpu_of(h)->cc_minor;
    return OK;
}

int nvmlDeviceGetNumGpuCores(handle_t h, u32 *out) {
    HAS(MISSING_CORES);
    READ_WHOLE(h);
    NEEDS(h, LACKS_CORES);
    *out = gpu_of(h)->core_count;
    return OK;
}

struct attributes {
    u32 sm_count, copy, decoder, encoder, jpeg, ofa, slices, compute_slices;
    u64 memory_mib;
};

int nvmlDeviceGetAttributes_v2(handle_t h, struct attributes *out) {
    READ(h);
    struct mig *mig = mig_of(h);
    if (mig == NULL) return NOT_SUPPORTED;
    memset(out, 0, sizeof *out);
    out->sm_count = mig->sm_count;
    out->slices = out->compute_slices = mig->slices;
    out->memory_mib = mig->memory_bytes >> 20;
    return OK;
}

/* --- MIG --- */

int nvmlDeviceGetMigMode(handle_t h, u32 *current, u32 *pending) {
    READ(h);
    NEEDS(h, LACKS_MIG);
    *current = *pending = gpu_of(h)->mig_mode;
    return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(handle_t h, u32 *out) {
    READ_WHOLE(h);
    *out = gpu_of(h)->lacks & LACKS_MIG ? 0 : MIGS;
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(handle_t h, u32 index, handle_t *out) {
    READ_WHOLE(h);
    if (index >= gpu_of(h)->mig_count) return NOT_FOUND;
    *out = handle_of((u32)(gpu_of(h) - host->gpus), index + 1);
    return OK;
}

int nvmlDeviceIsMigDeviceHandle(handle_t h, u32 *out) {
    READ(h);
    *out = mig_of(h) != NULL;
    return OK;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle_t h, handle_t *out) {
    READ(h);
    if (mig_of(h) == NULL) return INVALID;
    *out = handle_of((u32)(gpu_of(h) - host->gpus), 0);
    return OK;
}

int nvmlDeviceGetGpuInstanceId(handle_t h, u32 *out) {
    READ(h);
    if (mig_of(h) == NULL) return INVALID;
    *out = mig_of(h)->gpu_instance;
    return OK;
}

int nvmlDeviceGetComputeInstanceId(handle_t h, u32 *out) {
    READ(h);
    if (mig_of(h) == NULL) return INVALID;
    *out = mig_of(h)->compute_instance;
    return OK;
}

/* --- memory and processes --- */

struct memory1 {
    u64 total, free, used;
};

struct memory2 {
    u32 version;
    u64 total, reserved, free, used;
};

static void memory_of(handle_t h, struct memory2 *out) {
    struct process found[PROCESSES];
    struct mig *mig = mig_of(h);
    u32 count = processes_of(mig ? mig->uuid : gpu_of(h)->uuid, found, PROCESSES);
    out->total = mig ? mig->memory_bytes : gpu_of(h)->memory_bytes;
    out->reserved = mig ? 0 : gpu_of(h)->reserved_bytes;
    out->used = 0;
    for (u32 i = 0; i < count; i++) out->used += found[i].mib > 0 ? (u64)found[i].mib << 20 : 0;
    if (out->used > out->total - out->reserved) out->used = out->total - out->reserved;
    out->free = out->total - out->reserved - out->used;
}

int nvmlDeviceGetMemoryInfo(handle_t h, struct memory1 *out) {
    READ(h);
    struct memory2 found;
    memory_of(h, &found);
    *out = (struct memory1){found.total, found.free, found.used + found.reserved};
    return OK;
}

int nvmlDeviceGetMemoryInfo_v2(handle_t h, struct memory2 *out) {
    HAS(MISSING_MEMORY_V2);
    READ(h);
    if (out->version != (sizeof *out | 2u << 24)) return VERSION_MISMATCH;
    memory_of(h, out);
    return OK;
}

struct process_info {
    u32 pid;
    u64 memory_bytes;
    u32 gpu_instance, compute_instance;
};

static int list(handle_t h, u32 *count, struct process_info *out, u32 mps) {
    struct process found[PROCESSES];
    struct mig *mig = mig_of(h);
    u32 all = processes_of(mig ? mig->uuid : gpu_of(h)->uuid, found, PROCESSES), wanted = 0;
    for (u32 i = 0; i < all; i++) {
        if (found[i].mps != mps) continue;
        if (out != NULL && wanted < *count) {
            int unknown = found[i].mib < 0 || gpu_of(h)->memory_unknown;
            out[wanted] = (struct process_info){found[i].pid, unknown ? ~0ULL : (u64)found[i].mib << 20,
                                                mig ? mig->gpu_instance : ~0u, mig ? mig->compute_instance : ~0u};
        }
        wanted++;
    }
    u32 room = *count;
    *count = wanted;
    if (out == NULL) return wanted == 0 ? OK : INSUFFICIENT;
    return wanted <= room ? OK : INSUFFICIENT;
}

int nvmlDeviceGetComputeRunningProcesses_v3(handle_t h, u32 *count, struct process_info *out) {
    READ(h);
    return list(h, count, out, 0);
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(handle_t h, u32 *count, struct process_info *out) {
    HAS(MISSING_MPS_PROCESSES);
    READ(h);
    return list(h, count, out, 1);
}

int nvmlDeviceGetProcessUtilization(handle_t h, void *out, u32 *count, u64 since_us) {
    READ_WHOLE(h);
    (void)out, (void)since_us;
    *count = 0;
    return OK; /* which the binding turns into an exception without a class */
}

/* --- reads --- */

struct utilisation {
    u32 gpu, memory;
};

int nvmlDeviceGetUtilizationRates(handle_t h, struct utilisation *out) {
    READ_WHOLE(h);
    NEEDS(h, LACKS_UTILISATION);
    if (gpu_of(h)->mig_mode) return NOT_SUPPORTED;
    double load = load_of(gpu_of(h));
    *out = (struct utilisation){(u32)(100 * load + 0.5), (u32)(40 * load + 0.5)};
    return OK;
}

int nvmlDeviceGetPowerUsage(handle_t h, u32 *out) {
    READ_WHOLE(h);
    NEEDS(h, LACKS_POWER);
    *out = (u32)moment_of(gpu_of(h)).power_mw;
    return OK;
}

int nvmlDeviceGetPowerManagementLimit(handle_t h, u32 *out) {
    READ_WHOLE(h);
    NEEDS(h, LACKS_POWER_LIMIT);
    *out = gpu_of(h)->limit_mw;
    return OK;
}

int nvmlDeviceGetPowerManagementDefaultLimit(handle_t h, u32 *out) {
    READ_WHOLE(h);
    NEEDS(h, LACKS_POWER_LIMIT);
    *out = gpu_of(h)->limit_mw_default;
    return OK;
}

int nvmlDeviceGetEnforcedPowerLimit(handle_t h, u32 *out) {
    READ_WHOLE(h);
    *out = enforced_mw(gpu_of(h));
    return OK;
}

int nvmlDeviceGetPowerManagementLimitConstraints(handle_t h, u32 *low, u32 *high) {
    READ_WHOLE(h);
    NEEDS(h, LACKS_POWER_LIMIT);
    *low = gpu_of(h)->limit_mw_min;
    *high = gpu_of(h)->limit_mw_max;
    return OK;
}

static u64 energy_mj(struct gpu *gpu) {
    lock();
    settle(gpu);
    u64 found = (u64)gpu->energy_mj;
    unlock(OK);
    return found;
}

int nvmlDeviceGetTotalEnergyConsumption(handle_t h, u64 *out) {
    READ_WHOLE(h);
    NEEDS(h, LACKS_ENERGY);
    *out = energy_mj(gpu_of(h));
    return OK;
}

struct temperature {
    u32 version, sensor;
    int degrees;
};

static int degrees_of(struct gpu *gpu) { return (int)(35 + 45 * load_of(gpu)); }

int nvmlDeviceGetTemperature(handle_t h, int sensor, u32 *out) {
    READ_WHOLE(h);
    NEEDS(h, LACKS_TEMPERATURE);
    if (sensor != 0) return INVALID;
    *out = (u32)degrees_of(gpu_of(h));
    return OK;
}

int nvmlDeviceGetTemperatureV(handle_t h, struct temperature *out) {
    HAS(MISSING_TEMPERATURE_V);
    READ_WHOLE(h);
    NEEDS(h, LACKS_TEMPERATURE);
    if (out->version != (sizeof *out | 1u << 24)) return VERSION_MISMATCH;
    if (out->sensor != 0) return INVALID;
    out->degrees = degrees_of(gpu_of(h));
    return OK;
}

static u32 memory_clock(struct gpu *gpu) {
    return gpu->memory_locked_max && !gpu->ignores_locks ? gpu->memory_locked_max
                                                          : gpu->memory_clocks[gpu->memory_clock_count - 1];
}

int nvmlDeviceGetClockInfo(handle_t h, int type, u32 *out) {
    READ_WHOLE(h);
    if (type < 0 || type > 3) return INVALID;
    *out = type == 2 ? memory_clock(gpu_of(h)) : moment_of(gpu_of(h)).mhz;
    return OK;
}

int nvmlDeviceGetMaxClockInfo(handle_t h, int type, u32 *out) {
    READ_WHOLE(h);
    struct gpu *gpu = gpu_of(h);
    *out = type == 2 ? gpu->memory_clocks[gpu->memory_clock_count - 1] : gpu->clocks[gpu->clock_count - 1];
    return OK;
}

static int hand_down(const u32 *rising, u32 have, u32 *count, u32 *out) {
    u32 room = *count;
    *count = have;
    if (out == NULL || room < have) return INSUFFICIENT;
    for (u32 i = 0; i < have; i++) out[i] = rising[have - 1 - i]; /* drivers list the highest first */
    return OK;
}

int nvmlDeviceGetSupportedMemoryClocks(handle_t h, u32 *count, u32 *out) {
    READ_WHOLE(h);
    NEEDS(h, LACKS_CLOCK_LOCK);
    return hand_down(gpu_of(h)->memory_clocks, gpu_of(h)->memory_clock_count, count, out);
}

int nvmlDeviceGetSupportedGraphicsClocks(handle_t h, u32 memory_mhz, u32 *count, u32 *out) {
    READ_WHOLE(h);
    NEEDS(h, LACKS_CLOCK_LOCK);
    struct gpu *gpu = gpu_of(h);
    for (u32 i = 0; i < gpu->memory_clock_count; i++) {
        if (gpu->memory_clocks[i] != memory_mhz) continue;
        int idle_clock = i == 0 && gpu->memory_clock_count > 1; /* the lowest memory clock goes with few SM clocks */
        return hand_down(gpu->clocks, idle_clock ? (gpu->clock_count + 3) / 4 : gpu->clock_count, count, out);
    }
    return INVALID;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(handle_t h, u64 *out) {
    READ_WHOLE(h);
    *out = moment_of(gpu_of(h)).reasons;
    return OK;
}

int nvmlDeviceGetCurrentClocksEventReasons(handle_t h, u64 *out) {
    HAS(MISSING_EVENT_REASONS);
    return nvmlDeviceGetCurrentClocksThrottleReasons(h, out);
}

int nvmlDeviceGetComputeMode(handle_t h, int *out) {
    READ(h);
    *out = (int)(mig_of(h) ? mig_of(h)->compute_mode : gpu_of(h)->compute_mode);
    return OK;
}

int nvmlDeviceGetPersistenceMode(handle_t h, int *out) {
    READ_WHOLE(h);
    NEEDS(h, LACKS_PERSISTENCE);
    *out = (int)gpu_of(h)->persistence;
    return OK;
}

int nvmlDeviceGetTotalEccErrors(handle_t h, int uncorrected, int counter, u64 *out) {
    READ_WHOLE(h);
    NEEDS(h, LACKS_ECC);
    (void)counter;
    *out = uncorrected ? gpu_of(h)->ecc_uncorrected : gpu_of(h)->ecc_corrected;
    return OK;
}

struct field {
    u32 id, scope;
    int64_t at_us, latency_us;
    u32 type;
    int code;
    union { u32 word; u64 number; } value;
};

static void read_field(struct gpu *gpu, struct field *field) {
    field->code = NOT_SUPPORTED;
    if ((field->id == 185 || field->id == 186) && field->scope == 0 && !(gpu->lacks & (LACKS_INSTANT_POWER | LACKS_POWER)))
        field->code = OK, field->type = 1, field->value.word = (u32)moment_of(gpu).power_mw;
    if (field->id == 83 && !(gpu->lacks & LACKS_ENERGY))
        field->code = OK, field->type = 3, field->value.number = energy_mj(gpu);
    if (field->id == 230) field->code = OK, field->type = 1, field->value.word = gpu->recovery_action;
}

int nvmlDeviceGetFieldValues(handle_t h, int count, struct field *fields) {
    READ_WHOLE(h);
    for (int i = 0; i < count; i++) read_field(gpu_of(h), &fields[i]);
    return OK;
}

/* --- writes --- */

int nvmlDeviceSetPowerManagementLimit(handle_t h, u32 limit_mw) {
    WRITE_WHOLE(h);
    NEEDS(h, LACKS_POWER_LIMIT);
    struct gpu *gpu = gpu_of(h);
    if (limit_mw < gpu->limit_mw_min || limit_mw > gpu->limit_mw_max) return INVALID;
    lock();
    settle(gpu);
    gpu->limit_mw = limit_mw;
    return unlock(OK);
}

/* What the binding makes of this one is success, whatever it answers; so nothing may rely on it. */
int nvmlDeviceSetPowerManagementLimit_v2(handle_t h, void *value) {
    (void)value;
    WRITE_WHOLE(h);
    return NOT_SUPPORTED;
}

int nvmlDeviceSetGpuLockedClocks(handle_t h, u32 low, u32 high) {
    WRITE_WHOLE(h);
    NEEDS(h, LACKS_CLOCK_LOCK);
    struct gpu *gpu = gpu_of(h);
    int low_symbolic = low >= 0xffffff00u, high_symbolic = high >= 0xffffff00u;
    if (low_symbolic != high_symbolic || (!low_symbolic && low > high)) return INVALID;
    if (low_symbolic) low = high = gpu->clocks[gpu->clock_count - 1];
    if (low < gpu->clocks[0] || high > gpu->clocks[gpu->clock_count - 1]) return INVALID;
    lock();
    settle(gpu);
    gpu->locked_min = clock_at_most(gpu, low);
    gpu->locked_max = clock_at_most(gpu, high);
    return unlock(OK);
}

int nvmlDeviceResetGpuLockedClocks(handle_t h) {
    WRITE_WHOLE(h);
    NEEDS(h, LACKS_CLOCK_LOCK);
    lock();
    settle(gpu_of(h));
    gpu_of(h)->locked_min = gpu_of(h)->locked_max = 0;
    return unlock(OK);
}

int nvmlDeviceSetMemoryLockedClocks(handle_t h, u32 low, u32 high) {
    WRITE_WHOLE(h);
    NEEDS(h, LACKS_MEMORY_LOCK);
    struct gpu *gpu = gpu_of(h);
    if (low > high || low < gpu->memory_clocks[0] || high > gpu->memory_clocks[gpu->memory_clock_count - 1]) return INVALID;
    lock();
    gpu->memory_locked_min = low;
    gpu->memory_locked_max = high;
    return unlock(OK);
}

int nvmlDeviceResetMemoryLockedClocks(handle_t h) {
    WRITE_WHOLE(h);
    NEEDS(h, LACKS_MEMORY_LOCK);
    lock();
    gpu_of(h)->memory_locked_min = gpu_of(h)->memory_locked_max = 0;
    return unlock(OK);
}

int nvmlDeviceSetComputeMode(handle_t h, int mode) {
    WRITE(h);
    if (mode != 0 && mode != 2 && mode != 3) return INVALID;
    struct gpu *gpu = gpu_of(h);
    if (gpu->mig_mode && mig_of(h) == NULL) return NOT_SUPPORTED;
    lock();
    *(mig_of(h) ? &mig_of(h)->compute_mode : &gpu->compute_mode) = (u32)mode;
    return unlock(OK);
}

int nvmlDeviceSetPersistenceMode(handle_t h, int on) {
    WRITE_WHOLE(h);
    NEEDS(h, LACKS_PERSISTENCE);
    if (on != 0 && on != 1) return INVALID;
    gpu_of(h)->persistence = (u32)on;
    return OK;
}

/* --- events --- */

struct event_set {
    u64 seen, masks[GPUS];
};

struct event_data {
    handle_t device;
    u64 type, data;
    u32 gpu_instance, compute_instance;
};

int nvmlEventSetCreate(struct event_set **out) {
    int code = host_ready();
    if (code != OK) return code;
    *out = calloc(1, sizeof **out);
    (*out)->seen = host->event_count;
    return OK;
}

int nvmlDeviceRegisterEvents(handle_t h, u64 mask, struct event_set *set) {
    READ_WHOLE(h);
    NEEDS(h, LACKS_EVENTS);
    set->masks[gpu_of(h) - host->gpus] |= mask;
    return OK;
}

int nvmlDeviceGetSupportedEventTypes(handle_t h, u64 *out) {
    READ_WHOLE(h);
    NEEDS(h, LACKS_EVENTS);
    *out = 0xC40B;
    return OK;
}

int nvmlEventSetWait_v2(struct event_set *set, struct event_data *out, u32 timeout_ms) {
    if (references == 0) return UNINITIALIZED;
    double until_s = now_s() + timeout_ms / 1000.0;
    for (;;) {
        while (set->seen < host->event_count) {
            struct event found = host->events[set->seen++ % EVENTS];
            if (found.gpu >= host->gpu_count || !(set->masks[found.gpu] & found.type)) continue;
            *out = (struct event_data){handle_of(found.gpu, 0), found.type, found.data, ~0u, ~0u};
            return OK;
        }
        if (now_s() >= until_s) return TIMEOUT;
        pause_ms(50);
    }
}

int nvmlEventSetFree(struct event_set *set) {
    free(set);
    return OK;
}

/* --- GPM --- */

struct gpm_support {
    u32 version, supported;
};

struct gpm_sample {
    double at_s, load;
};

struct gpm_metric {
    u32 id;
    int code;
    double value;
    char *names[3];
};

struct gpm_get {
    u32 version, count;
    struct gpm_sample *first, *second;
    struct gpm_metric metrics[];
};

int nvmlGpmQueryDeviceSupport(handle_t h, struct gpm_support *out) {
    HAS(MISSING_GPM);
    READ(h);
    if (out->version != 1) return VERSION_MISMATCH;
    out->supported = !(gpu_of(h)->lacks & LACKS_GPM);
    return OK;
}

int nvmlGpmSampleAlloc(struct gpm_sample **out) {
    HAS(MISSING_GPM);
    *out = calloc(1, sizeof **out);
    return OK;
}

int nvmlGpmSampleFree(struct gpm_sample *sample) {
    free(sample);
    return OK;
}

int nvmlGpmSampleGet(handle_t h, struct gpm_sample *out) {
    HAS(MISSING_GPM);
    READ_WHOLE(h);
    NEEDS(h, LACKS_GPM);
    *out = (struct gpm_sample){now_s(), load_of(gpu_of(h))};
    return OK;
}

int nvmlGpmMigSampleGet(handle_t h, u32 gpu_instance, struct gpm_sample *out) {
    (void)gpu_instance;
    return nvmlGpmSampleGet(h, out);
}

int nvmlGpmMetricsGet(struct gpm_get *get) {
    HAS(MISSING_GPM);
    if (references == 0) return UNINITIALIZED;
    if (get->version != 1) return VERSION_MISMATCH;
    if (get->second->at_s - get->first->at_s < 0.1) return INVALID;
    for (u32 i = 0; i < get->count; i++) {
        struct gpm_metric *metric = &get->metrics[i];
        metric->code = metric->id >= 1 && metric->id <= 3 ? OK : NOT_SUPPORTED;
        metric->value = 50 * (get->first->load + get->second->load) * (metric->id == 1 ? 1 : 0.7);
    }
    return OK;
}
