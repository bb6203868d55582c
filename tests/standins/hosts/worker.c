/* A worker process that is all but nothing: opens its device through the CUDA stand-in, lists itself with the NVML
 * stand-in, answers readiness, metrics, batch size and drain over HTTP, and ends on SIGTERM.
 *
 * Arguments are name=value: host, port, batch, start_ms, mib. The environment: STANDIN_CUDA_LIBRARY and STANDIN_NVML
 * (the roots of both), STANDIN_FAULTS (a directory; a file in it at the worker's start changes what it is: `bypass`
 * never joins MPS, `hopeless` is never ready, `deaf` ignores SIGTERM, `brief` dies after 300 ms, `stillborn` at once).
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t told_to_end;
static char listed[4096];
static const char *host = "127.0.0.1";
static int port, batch = 1, mib = 100;
static double start_s;

static void end_soon(int number) { (void)number; told_to_end = 1; }

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int fault(const char *name) {
    char path[4096];
    const char *folder = getenv("STANDIN_FAULTS");
    snprintf(path, sizeof path, "%s/%s", folder ? folder : "/nonexistent", name);
    return access(path, F_OK) == 0;
}

static int (*synchronize)(void);

static void open_device(int bypass) {
    void *held;
    if (bypass) unsetenv("CUDA_MPS_PIPE_DIRECTORY"), setenv("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent", 1);
    void *library = dlopen(getenv("STANDIN_CUDA_LIBRARY"), RTLD_NOW);
    if (!library) { fprintf(stderr, "%s\n", dlerror()); _exit(10); }
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(library, "cuInit");
    int (*retain)(void **, int) = (int (*)(void **, int))dlsym(library, "cuDevicePrimaryCtxRetain");
    synchronize = (int (*)(void))dlsym(library, "cuCtxSynchronize");
    int code = init(0);
    if (!code) code = retain(&held, 0);
    if (code) { fprintf(stderr, "CUDA error %d\n", code); exit(11); }
    const char *root = getenv("STANDIN_NVML"), *uuid = getenv("CUDA_VISIBLE_DEVICES");
    char fresh[4096];
    snprintf(listed, sizeof listed, "%s/processes/%s/%d", root, uuid, (int)getpid());
    snprintf(fresh, sizeof fresh, "%s/processes/%s/new.%d", root, uuid, (int)getpid());
    FILE *file = fopen(fresh, "w");
    if (!file) { perror(fresh); exit(12); }
    fprintf(file, "%d %d 0\n", mib, getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") != NULL && !bypass);
    fclose(file);
    rename(fresh, listed);
}

static void answer(int link, int status, const char *body) {
    char head[256];
    int length = snprintf(head, sizeof head, "HTTP/1.1 %d X\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n", status,
                          strlen(body));
    if (send(link, head, (size_t)length, MSG_NOSIGNAL) == length) send(link, body, strlen(body), MSG_NOSIGNAL);
}

static void serve(int link, int hopeless) {
    char text[8192], body[512];
    ssize_t got = 0, more;
    struct timeval wait = {.tv_sec = 1};
    setsockopt(link, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    char *end = NULL;
    while (!end && got < (ssize_t)sizeof text - 1) {
        more = recv(link, text + got, sizeof text - 1 - (size_t)got, 0);
        if (more <= 0) return;
        got += more;
        text[got] = 0;
        end = strstr(text, "\r\n\r\n");
    }
    if (!end) return;
    const char *length = strcasestr(text, "content-length:");
    long wanted = length && length < end ? strtol(length + 15, NULL, 10) : 0;
    while (got < end + 4 - text + wanted && got < (ssize_t)sizeof text - 1) {
        more = recv(link, text + got, sizeof text - 1 - (size_t)got, 0);
        if (more <= 0) return;
        got += more;
        text[got] = 0;
    }
    if (!strncmp(text, "GET /health", 11)) {
        answer(link, now_s() >= start_s && !hopeless ? 200 : 503, "{}");
    } else if (!strncmp(text, "GET /metrics", 12)) {
        snprintf(body, sizeof body, "headroom_requests_total 0\nheadroom_requests_pending 0\n");
        answer(link, 200, body);
    } else if (!strncmp(text, "POST /headroom/batch", 20)) {
        const char *found = strstr(end, "\"batch\":");
        if (found) batch = atoi(found + 8);
        snprintf(body, sizeof body, "{\"batch\": %d}", batch);
        answer(link, 200, body);
    } else {
        answer(link, strncmp(text, "POST /headroom/drain", 20) ? 404 : 200, "{}");
    }
}

int main(int count, char **arguments) {
    double dies_s = 0, begun_s = now_s();
    start_s = begun_s;
    for (int i = 1; i < count; i++) {
        char *text = strchr(arguments[i], '=');
        if (!text) return 2;
        *text++ = 0;
        if (!strcmp(arguments[i], "host")) host = text;
        else if (!strcmp(arguments[i], "port")) port = atoi(text);
        else if (!strcmp(arguments[i], "batch")) batch = atoi(text);
        else if (!strcmp(arguments[i], "start_ms")) start_s = begun_s + atof(text) / 1000;
        else if (!strcmp(arguments[i], "mib")) mib = atoi(text);
        else return 2;
    }
    struct sigaction end = {.sa_handler = fault("deaf") ? SIG_IGN : end_soon};
    sigaction(SIGTERM, &end, NULL);
    sigaction(SIGINT, &end, NULL);
    if (fault("stillborn")) return 9;
    if (fault("brief")) dies_s = begun_s + 0.3;
    int hopeless = fault("hopeless"), door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
    inet_pton(AF_INET, host, &address.sin_addr);
    setsockopt(door, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(door, (struct sockaddr *)&address, sizeof address) || listen(door, 64)) { perror("port"); return 4; }
    open_device(fault("bypass"));
    while (!told_to_end) {
        struct pollfd look = {.fd = door, .events = POLLIN};
        if (poll(&look, 1, 100) > 0) {
            int link = accept4(door, NULL, NULL, SOCK_CLOEXEC);
            if (link >= 0) { serve(link, hopeless); close(link); }
        }
        if (synchronize() != 0) { fprintf(stderr, "CUDA error: the context is lost\n"); unlink(listed); return 6; }
        if (dies_s && now_s() >= dies_s) { fprintf(stderr, "bad luck\n"); unlink(listed); return 3; }
    }
    unlink(listed);
    return 0;
}
