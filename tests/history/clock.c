/* Puts the wall clock of a program forward or back, and leaves its monotonic clock alone.

   Loaded with LD_PRELOAD, between the program and the C library. WALL_CLOCK names a file of eight bytes, which is mapped:
   nanoseconds to be added, signed, in the machine's order. Who writes to the file makes the clock jump, at once and for
   all threads. tests/history/wall_clock.py does.

   Deadlines by the wall clock that the kernel keeps (timerfd, most timed waits) are not moved. That of cnd_timedwait is:
   librdkafka's waits for its queues take a deadline from this clock, and would last longer by what it is fast. What has
   begun to wait is not woken by a jump. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000

static const volatile int64_t *offset;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("WALL_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped == MAP_FAILED) abort();
    offset = mapped;
}

static struct timespec moved(struct timespec instant, int64_t by) {
    int64_t nanoseconds = instant.tv_sec * (int64_t)SECOND + instant.tv_nsec + by;
    return (struct timespec){.tv_sec = nanoseconds / SECOND, .tv_nsec = nanoseconds % SECOND};
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int outcome = real(clock, now);
    if (outcome == 0 && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        *now = moved(*now, *offset);
    }
    return outcome;
}

int cnd_timedwait(cnd_t *restrict condition, mtx_t *restrict mutex, const struct timespec *restrict deadline) {
    static int (*real)(cnd_t *, mtx_t *, const struct timespec *);
    if (!real) real = (int (*)(cnd_t *, mtx_t *, const struct timespec *))dlsym(RTLD_NEXT, "cnd_timedwait");
    struct timespec true_deadline = moved(*deadline, offset ? -*offset : 0);
    return real(condition, mutex, &true_deadline);
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (now) *now = precise.tv_sec;
    return precise.tv_sec;
}
