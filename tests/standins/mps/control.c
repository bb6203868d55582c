/* Stand-in for nvidia-cuda-mps-control and, under that name, nvidia-cuda-mps-server.
 *
 * Starts the daemon (a Python program beside this one) with -d or -f; otherwise hands its arguments and its standard
 * input to the daemon of CUDA_MPS_PIPE_DIRECTORY and prints what comes back. Reads the version to show, the
 * interpreter and the daemon from the directory it lies in, so that it needs nothing of its environment.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static char home[4096];

static void find_home(void) {
    ssize_t length = readlink("/proc/self/exe", home, sizeof home - 1);
    if (length < 0) exit(70);
    home[length] = 0;
    dirname(home);
}

static void read_line(const char *name, char *into, size_t room) {
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", home, name);
    FILE *file = fopen(path, "r");
    if (!file || !fgets(into, (int)room, file)) { fprintf(stderr, "stand-in: no %s\n", path); exit(70); }
    fclose(file);
    into[strcspn(into, "\n")] = 0;
}

static int serve(int argc, char **argv) {
    /* The daemon names itself: asked for here, its pid may be that of whoever inherited this process already. */
    pid_t parent = argc > 1 ? atoi(argv[1]) : getppid();
    int survives = argc > 2 && !strcmp(argv[2], "--survive");
    if (!survives) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) return 0;
    }
    for (;;) pause();
}

static int connect_daemon(void) {
    const char *pipe = getenv("CUDA_MPS_PIPE_DIRECTORY");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int length = snprintf(address.sun_path, sizeof address.sun_path, "%s/control", pipe ? pipe : "/tmp/nvidia-mps");
    if (length >= (int)sizeof address.sun_path) return -1;
    int link = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (link >= 0 && connect(link, (struct sockaddr *)&address, sizeof address) == 0) return link;
    if (link >= 0) close(link);
    return -1;
}

static int start(int argc, char **argv, int background) {
    char python[4096], program[4200], log[4200];
    char **arguments = calloc((size_t)argc + 5, sizeof *arguments);
    if (connect_daemon() >= 0) {
        puts("An instance of this daemon is already running");
        return 1;
    }
    read_line("python", python, sizeof python);
    snprintf(program, sizeof program, "%s/daemon/nvidia-cuda-mps-control", home);
    if (background) {
        pid_t child = fork();
        if (child < 0) return 71;
        if (child > 0) return 0;
        setsid();
        const char *logs = getenv("CUDA_MPS_LOG_DIRECTORY");
        snprintf(log, sizeof log, "%s/control.log", logs ? logs : "/var/log/nvidia-mps");
        int nowhere = open("/dev/null", O_RDWR), told = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
        dup2(nowhere, 0); dup2(told >= 0 ? told : nowhere, 1); dup2(told >= 0 ? told : nowhere, 2);
    }
    arguments[0] = python; arguments[1] = "-S"; arguments[2] = "-E"; arguments[3] = program;
    for (int i = 1; i < argc; i++) arguments[3 + i] = argv[i];
    execv(python, arguments);
    return 72;
}

static void send_all(int link, const char *data, size_t length) {
    while (length > 0) {
        ssize_t sent = send(link, data, length, MSG_NOSIGNAL);
        if (sent <= 0) exit(1);
        data += sent; length -= (size_t)sent;
    }
}

static int ask(int argc, char **argv) {
    char buffer[65536], code = '1';
    ssize_t got;
    int first = 1, link = connect_daemon();
    if (link < 0) {
        puts("Cannot find MPS control daemon process");
        return 1;
    }
    send_all(link, "CLI", 4);
    for (int i = 1; i < argc; i++) send_all(link, argv[i], strlen(argv[i]) + 1);
    send_all(link, "", 1);
    while (argc == 1 && (got = read(0, buffer, sizeof buffer)) > 0) send_all(link, buffer, (size_t)got);
    shutdown(link, SHUT_WR);
    while ((got = read(link, buffer, sizeof buffer)) > 0) {
        if (first) code = buffer[0];
        fwrite(buffer + first, 1, (size_t)(got - first), stdout);
        first = 0;
    }
    return code - '0';
}

int main(int argc, char **argv) {
    char version[512];
    const char *name = strrchr(argv[0], '/');
    find_home();
    if (!strcmp(name ? name + 1 : argv[0], "nvidia-cuda-mps-server")) return serve(argc, argv);
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "-v")) {
            read_line("version", version, sizeof version);
            printf("%s\nCopyright (C) 2003 - 2025 NVIDIA Corporation.\n\n", version);
            return 0;
        }
        if (!strcmp(argv[i], "-d") || !strcmp(argv[i], "-f")) return start(argc, argv, argv[i][1] == 'd');
    }
    return ask(argc, argv);
}
