/* A library to preload: calls on files below one folder fail, come short, or kill the process, when a test says so. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { NONE, FAIL, KILL, SHORT, INTERRUPT };

static char folder[4096], wanted[32];
static int mode, number;
static long at, calls, fired;

/* What happens to the at-th call of that kind: FAIL (with errno `error`), KILL; or to all of them: SHORT, INTERRUPT. */
void faults_set(const char *path, const char *call, long nth, int what, int error) {
    snprintf(folder, sizeof folder, "%s", path);
    snprintf(wanted, sizeof wanted, "%s", call);
    at = nth, number = error, calls = fired = 0, mode = what;
}

long faults_fired(void) { mode = NONE; return fired; }

static int hit(const char *call, const char *path) {
    if (mode == NONE || !path || strncmp(path, folder, strlen(folder))) return NONE;
    if (strcmp(wanted, "any") && strcmp(wanted, call)) return NONE;
    long turn = calls++;
    if (mode == SHORT) { fired++; return SHORT; }
    if (mode == INTERRUPT) {
        if (turn % 2) return NONE;
        fired++, errno = EINTR;
        return FAIL;
    }
    if (turn != at) return NONE;
    fired++;
    if (mode == KILL) kill(getpid(), SIGKILL);
    errno = number;
    return FAIL;
}

static int hit_fd(const char *call, int fd) {
    char name[64], path[4096];
    if (mode == NONE) return NONE;
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(name, path, sizeof path - 1);
    if (size < 0) return NONE;
    path[size] = 0;
    return hit(call, path);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define HALF(result, size) ((result) == SHORT && (size) > 1 ? (size) / 2 : (size))

#define BYTES(name, call, type, ...) \
    ssize_t name(int fd, type buffer, size_t size) { \
        int result = hit_fd(call, fd); \
        return result == FAIL ? -1 : REAL(name)(fd, buffer, HALF(result, size)); \
    }
BYTES(read, "read", void *)
BYTES(write, "write", const void *)

#define PLACED(name, offset_type) \
    ssize_t name(int fd, void *buffer, size_t size, offset_type offset) { \
        int result = hit_fd("read", fd); \
        return result == FAIL ? -1 : REAL(name)(fd, buffer, HALF(result, size), offset); \
    }
PLACED(pread, off_t)
PLACED(pread64, off64_t)

static ssize_t first_half(int fd, const struct iovec *parts, off64_t offset) {
    size_t size = parts[0].iov_len;
    return REAL(pread64)(fd, parts[0].iov_base, size > 1 ? size / 2 : size, offset);
}

#define VECTOR(name, offset_type) \
    ssize_t name(int fd, const struct iovec *parts, int count, offset_type offset) { \
        int result = hit_fd("read", fd); \
        if (result == FAIL) return -1; \
        return result == SHORT ? first_half(fd, parts, offset) : REAL(name)(fd, parts, count, offset); \
    }
VECTOR(preadv, off_t)
VECTOR(preadv64, off64_t)

#define VECTOR2(name, offset_type) \
    ssize_t name(int fd, const struct iovec *parts, int count, offset_type offset, int flags) { \
        int result = hit_fd("read", fd); \
        if (result == FAIL) return -1; \
        return result == SHORT ? first_half(fd, parts, offset) : REAL(name)(fd, parts, count, offset, flags); \
    }
VECTOR2(preadv2, off_t)
VECTOR2(preadv64v2, off64_t)

int fsync(int fd) { return hit_fd("fsync", fd) == FAIL ? -1 : REAL(fsync)(fd); }
int rename(const char *from, const char *to) { return hit("rename", to) == FAIL ? -1 : REAL(rename)(from, to); }
int renameat(int a, const char *from, int b, const char *to) {
    return hit("rename", to) == FAIL ? -1 : REAL(renameat)(a, from, b, to);
}
int link(const char *from, const char *to) { return hit("link", to) == FAIL ? -1 : REAL(link)(from, to); }
int linkat(int a, const char *from, int b, const char *to, int flags) {
    return hit("link", to) == FAIL ? -1 : REAL(linkat)(a, from, b, to, flags);
}
int mkdir(const char *path, mode_t bits) { return hit("mkdir", path) == FAIL ? -1 : REAL(mkdir)(path, bits); }
int unlink(const char *path) { return hit("unlink", path) == FAIL ? -1 : REAL(unlink)(path); }

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        va_list rest; \
        va_start(rest, flags); \
        mode_t bits = va_arg(rest, int); \
        va_end(rest); \
        return hit("open", path) == FAIL ? -1 : REAL(name)(path, flags, bits); \
    }
OPEN(open)
OPEN(open64)
