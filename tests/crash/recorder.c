/* Writes down, in order, everything that a program does to the files below one directory.

   Loaded into the node with LD_PRELOAD, so it stands between the program (Python and the LMDB that is linked into it)
   and the C library. Each call is carried out first and written down behind it, with the bytes that were written; a
   sync is written down twice, when it begins and when it has returned. One event is one write(2) to a file that is
   opened with O_APPEND: so events of several threads do not mix, they stand in an order that agrees with what the
   threads could know of each other, and they survive SIGKILL. tests/crash/recording.py reads them.

       RECORDER_ROOT    the directory, absolute and without symbolic links
       RECORDER_TRACE   the file, outside of it

   What changes a file and is not understood here (a shared mapping that may be written to, sendfile, a hole punched)
   ends the process: a trace with something missing would prove nothing. LMDB's lock file is left out; it is shared
   memory and means nothing behind a reboot. io_uring's syncs do not come by here: journal.uring's ring calls
   `recorder_sync_begin` and `recorder_sync_end` (recording.py sees to that). */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPENED = 1, CREATED, WRITTEN, RESIZED, SYNC_BEGINS, SYNC_ENDS, RENAMED, UNLINKED, MADE_DIRECTORY, REMOVED_DIRECTORY };

typedef struct __attribute__((packed)) {
    uint32_t bytes;   /* of the whole event */
    uint8_t kind;
    uint8_t flags;    /* WRITTEN: 1 if it is durable when the call returns (O_DSYNC) */
    uint16_t path_bytes;
    uint64_t inode;
    uint64_t number;  /* offset, size, or number of the sync */
} Event;

static char root[PATH_MAX];
static size_t root_bytes;
static int trace = -1;
static uint64_t syncs;

#define TRACKED_MAX 65536
#define NO_MORE UINT64_MAX
static uint64_t tracked[TRACKED_MAX];  /* inodes of the directory's files; 0 is a free place, NO_MORE one that was taken */
static dev_t device;                   /* on which they are */
static pthread_mutex_t tracked_lock = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static void refuse(const char *what) {
    dprintf(2, "recorder: %s is not understood; the trace would have a hole\n", what);
    abort();
}

__attribute__((constructor)) static void begin(void) {
    const char *directory = getenv("RECORDER_ROOT"), *path = getenv("RECORDER_TRACE");
    if (!directory || !path) return;
    root_bytes = strlen(directory);
    if (root_bytes >= sizeof root) refuse("so long a path");
    memcpy(root, directory, root_bytes + 1);
    trace = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (trace < 0) refuse("the trace's path");
}

static int is_below_root(const char *path) {
    if (trace < 0 || strncmp(path, root, root_bytes) || (path[root_bytes] && path[root_bytes] != '/')) return 0;
    size_t length = strlen(path);
    return length < 9 || strcmp(path + length - 9, "/lock.mdb");
}

static void note(uint8_t kind, uint8_t flags, uint64_t inode, uint64_t number, const char *path, size_t path_bytes,
                 const struct iovec *data, int count, size_t data_bytes) {
    struct iovec parts[IOV_MAX];
    Event event = {(uint32_t)(sizeof(Event) + path_bytes + data_bytes), kind, flags, (uint16_t)path_bytes, inode, number};
    int used = 0;
    parts[used++] = (struct iovec){&event, sizeof event};
    if (path_bytes) parts[used++] = (struct iovec){(void *)path, path_bytes};
    size_t left = data_bytes;
    for (int at = 0; at < count && left; at++) {
        size_t bytes = data[at].iov_len < left ? data[at].iov_len : left;
        if (!bytes) continue;
        if (used == IOV_MAX) refuse("a write of so many parts");
        parts[used++] = (struct iovec){data[at].iov_base, bytes};
        left -= bytes;
    }
    int saved = errno;
    if (syscall(SYS_writev, trace, parts, used) != (ssize_t)event.bytes) refuse("a trace that takes no more");
    errno = saved;
}

/* --- which files --- */

static uint64_t *place_of(uint64_t inode) {
    for (uint64_t at = inode * 0x9E3779B97F4A7C15u % TRACKED_MAX, tried = 0; tried < TRACKED_MAX; at = (at + 1) % TRACKED_MAX, tried++)
        if (tracked[at] == inode || !tracked[at]) return &tracked[at];
    refuse("so many files");
    return NULL;
}

static int is_tracked(int fd, struct stat *status) {
    if (trace < 0 || fd < 0 || fd == trace) return 0;
    int saved = errno, found = 0;
    if (fstat(fd, status) == 0 && (S_ISREG(status->st_mode) || S_ISDIR(status->st_mode))) {
        pthread_mutex_lock(&tracked_lock);
        found = status->st_dev == device && *place_of(status->st_ino) == status->st_ino;
        pthread_mutex_unlock(&tracked_lock);
    }
    errno = saved;
    return found;
}

static int opened(int fd, int flags, int was_there) {
    struct stat status;
    char link[64], path[PATH_MAX];
    if (fd < 0 || trace < 0) return fd;
    int saved = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length > 0 && fstat(fd, &status) == 0) {
        path[length] = 0;
        if (is_below_root(path)) {
            if (flags & O_TMPFILE & ~O_DIRECTORY) refuse("a file without a name");
            pthread_mutex_lock(&tracked_lock);
            if (device && device != status.st_dev) refuse("a directory on two devices");
            device = status.st_dev;
            *place_of(status.st_ino) = status.st_ino;
            pthread_mutex_unlock(&tracked_lock);
            note(was_there ? OPENED : CREATED, 0, status.st_ino, (uint64_t)status.st_size, path, (size_t)length, NULL, 0, 0);
            if (was_there && flags & O_TRUNC) note(RESIZED, 0, status.st_ino, 0, NULL, 0, NULL, 0, 0);
        } else if (is_tracked(fd, &status)) {  /* the number of a file that was deleted is used again elsewhere */
            pthread_mutex_lock(&tracked_lock);
            *place_of(status.st_ino) = NO_MORE;
            pthread_mutex_unlock(&tracked_lock);
        }
    }
    errno = saved;
    return fd;
}

static int is_there(int directory, const char *path, int flags) {
    struct stat status;
    int saved = errno;
    int found = !(flags & O_CREAT) || fstatat(directory, path, &status, 0) == 0;
    errno = saved;
    return found;
}

#define OPEN_LIKE(name) \
    int name(const char *path, int flags, ...) { \
        REAL(name); \
        va_list rest; va_start(rest, flags); mode_t mode = flags & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY)) ? va_arg(rest, mode_t) : 0; va_end(rest); \
        int was_there = is_there(AT_FDCWD, path, flags); \
        return opened(real(path, flags, mode), flags, was_there); \
    }
OPEN_LIKE(open)
OPEN_LIKE(open64)

#define OPENAT_LIKE(name) \
    int name(int directory, const char *path, int flags, ...) { \
        REAL(name); \
        va_list rest; va_start(rest, flags); mode_t mode = flags & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY)) ? va_arg(rest, mode_t) : 0; va_end(rest); \
        int was_there = is_there(directory, path, flags); \
        return opened(real(directory, path, flags, mode), flags, was_there); \
    }
OPENAT_LIKE(openat)
OPENAT_LIKE(openat64)

/* --- bytes --- */

static ssize_t written(int fd, ssize_t count, off64_t offset, const struct iovec *data, int parts) {
    struct stat status;
    if (count > 0 && is_tracked(fd, &status)) {
        int saved = errno;
        if (offset < 0) offset = lseek64(fd, 0, SEEK_CUR) - count;
        int through = (fcntl(fd, F_GETFL) & (O_DSYNC | O_SYNC)) != 0;
        note(WRITTEN, (uint8_t)through, status.st_ino, (uint64_t)offset, NULL, 0, data, parts, (size_t)count);
        errno = saved;
    }
    return count;
}

ssize_t write(int fd, const void *data, size_t count) {
    REAL(write);
    return written(fd, real(fd, data, count), -1, &(struct iovec){(void *)data, count}, 1);
}
ssize_t writev(int fd, const struct iovec *data, int count) {
    REAL(writev);
    return written(fd, real(fd, data, count), -1, data, count);
}
ssize_t pwrite(int fd, const void *data, size_t count, off_t offset) {
    REAL(pwrite);
    return written(fd, real(fd, data, count, offset), offset, &(struct iovec){(void *)data, count}, 1);
}
ssize_t pwrite64(int fd, const void *data, size_t count, off64_t offset) {
    REAL(pwrite64);
    return written(fd, real(fd, data, count, offset), offset, &(struct iovec){(void *)data, count}, 1);
}
ssize_t pwritev(int fd, const struct iovec *data, int count, off_t offset) {
    REAL(pwritev);
    return written(fd, real(fd, data, count, offset), offset, data, count);
}
ssize_t pwritev64(int fd, const struct iovec *data, int count, off64_t offset) {
    REAL(pwritev64);
    return written(fd, real(fd, data, count, offset), offset, data, count);
}
ssize_t pwritev2(int fd, const struct iovec *data, int count, off_t offset, int flags) {
    REAL(pwritev2);
    if (flags & ~RWF_HIPRI) refuse("a pwritev2 with flags");
    return written(fd, real(fd, data, count, offset, flags), offset, data, count);
}
ssize_t pwritev64v2(int fd, const struct iovec *data, int count, off64_t offset, int flags) {
    REAL(pwritev64v2);
    if (flags & ~RWF_HIPRI) refuse("a pwritev2 with flags");
    return written(fd, real(fd, data, count, offset, flags), offset, data, count);
}

static int resized(int fd, int result) {
    struct stat status;
    if (result == 0 && is_tracked(fd, &status))
        note(RESIZED, 0, status.st_ino, (uint64_t)status.st_size, NULL, 0, NULL, 0, 0);
    return result;
}

int ftruncate(int fd, off_t size) { REAL(ftruncate); return resized(fd, real(fd, size)); }
int ftruncate64(int fd, off64_t size) { REAL(ftruncate64); return resized(fd, real(fd, size)); }
int posix_fallocate(int fd, off_t offset, off_t count) { REAL(posix_fallocate); return resized(fd, real(fd, offset, count)); }
int posix_fallocate64(int fd, off64_t offset, off64_t count) { REAL(posix_fallocate64); return resized(fd, real(fd, offset, count)); }

#define FALLOCATE_LIKE(name, type) \
    int name(int fd, int mode, type offset, type count) { \
        REAL(name); \
        struct stat status; \
        if (mode && is_tracked(fd, &status)) refuse("fallocate with a mode"); \
        return resized(fd, real(fd, mode, offset, count)); \
    }
FALLOCATE_LIKE(fallocate, off_t)
FALLOCATE_LIKE(fallocate64, off64_t)

/* --- syncs --- */

uint64_t recorder_sync_begin(int fd) {
    struct stat status;
    if (!is_tracked(fd, &status)) return 0;
    uint64_t number = __atomic_add_fetch(&syncs, 1, __ATOMIC_SEQ_CST) << 20 | (uint64_t)getpid() % (1 << 20);
    note(SYNC_BEGINS, 0, status.st_ino, number, NULL, 0, NULL, 0, 0);
    return number;
}

void recorder_sync_end(uint64_t number) {
    if (number) note(SYNC_ENDS, 0, 0, number, NULL, 0, NULL, 0, 0);
}

#define SYNC_LIKE(name) \
    int name(int fd) { \
        REAL(name); \
        uint64_t number = recorder_sync_begin(fd); \
        int result = real(fd); \
        if (result == 0) recorder_sync_end(number); \
        return result; \
    }
SYNC_LIKE(fsync)
SYNC_LIKE(fdatasync)

/* --- names --- */

/* Where a call's path leads, into `found`; its length, or 0 if that is none of ours. */
static size_t absolute(int directory, const char *path, char *found) {
    char base[PATH_MAX] = "", link[64];
    if (trace < 0) return 0;
    if (path[0] != '/') {
        snprintf(link, sizeof link, directory == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", directory);
        ssize_t length = readlink(link, base, sizeof base - 2);
        if (length <= 0) return 0;
        base[length] = '/';
        base[length + 1] = 0;
    }
    if (strlen(base) + strlen(path) >= PATH_MAX) refuse("so long a path");
    strcpy(found, base);
    strcat(found, path);
    return is_below_root(found) ? strlen(found) : 0;
}

static int named(uint8_t kind, int result, int directory, const char *path) {
    char found[PATH_MAX];
    int saved = errno;
    size_t length = result == 0 ? absolute(directory, path, found) : 0;
    if (length) note(kind, 0, 0, 0, found, length, NULL, 0, 0);
    errno = saved;
    return result;
}

static int renamed(int result, int from, const char *source, int to, const char *target) {
    char both[2 * PATH_MAX];
    int saved = errno;
    if (result == 0) {
        size_t first = absolute(from, source, both), second = absolute(to, target, both + first + 1);
        if (!first != !second) refuse("a file that is moved into the directory or out of it");
        if (first) note(RENAMED, 0, 0, 0, both, first + 1 + second, NULL, 0, 0);
    }
    errno = saved;
    return result;
}

int rename(const char *source, const char *target) {
    REAL(rename);
    return renamed(real(source, target), AT_FDCWD, source, AT_FDCWD, target);
}
int renameat(int from, const char *source, int to, const char *target) {
    REAL(renameat);
    return renamed(real(from, source, to, target), from, source, to, target);
}
int unlink(const char *path) { REAL(unlink); return named(UNLINKED, real(path), AT_FDCWD, path); }
int unlinkat(int directory, const char *path, int flags) {
    REAL(unlinkat);
    return named(flags & AT_REMOVEDIR ? REMOVED_DIRECTORY : UNLINKED, real(directory, path, flags), directory, path);
}
int mkdir(const char *path, mode_t mode) { REAL(mkdir); return named(MADE_DIRECTORY, real(path, mode), AT_FDCWD, path); }
int mkdirat(int directory, const char *path, mode_t mode) {
    REAL(mkdirat);
    return named(MADE_DIRECTORY, real(directory, path, mode), directory, path);
}
int rmdir(const char *path) { REAL(rmdir); return named(REMOVED_DIRECTORY, real(path), AT_FDCWD, path); }

static int linked(int result, int directory, const char *path) {
    char found[PATH_MAX];
    if (result == 0 && absolute(directory, path, found)) refuse("a link");
    return result;
}

int link(const char *source, const char *target) { REAL(link); return linked(real(source, target), AT_FDCWD, target); }
int linkat(int from, const char *source, int to, const char *target, int flags) {
    REAL(linkat);
    return linked(real(from, source, to, target, flags), to, target);
}
int symlink(const char *source, const char *target) { REAL(symlink); return linked(real(source, target), AT_FDCWD, target); }

/* --- what would be missing --- */

#define MMAP_LIKE(name, type) \
    void *name(void *address, size_t bytes, int protection, int flags, int fd, type offset) { \
        REAL(name); \
        struct stat status; \
        if (protection & PROT_WRITE && (flags & MAP_TYPE) != MAP_PRIVATE && is_tracked(fd, &status)) refuse("a mapping that may be written to"); \
        return real(address, bytes, protection, flags, fd, offset); \
    }
MMAP_LIKE(mmap, off_t)
MMAP_LIKE(mmap64, off64_t)

ssize_t sendfile64(int to, int from, off64_t *offset, size_t count) {
    REAL(sendfile64);
    struct stat status;
    if (is_tracked(to, &status)) refuse("sendfile");
    return real(to, from, offset, count);
}
ssize_t copy_file_range(int from, off64_t *from_at, int to, off64_t *to_at, size_t count, unsigned flags) {
    REAL(copy_file_range);
    struct stat status;
    if (is_tracked(to, &status)) refuse("copy_file_range");
    return real(from, from_at, to, to_at, count, flags);
}
int truncate64(const char *path, off64_t size) {
    REAL(truncate64);
    char found[PATH_MAX];
    if (absolute(AT_FDCWD, path, found)) refuse("truncate");
    return real(path, size);
}
