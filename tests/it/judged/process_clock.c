/* The wall clock of a process under test, loaded with LD_PRELOAD: the system's, off by the seconds
 * in the file that FERROKUBE_TEST_CLOCK names. Other clocks go on, as when a system's clock is set. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const int64_t *offset;

__attribute__((constructor)) static void map_offset(void) {
    const char *path = getenv("FERROKUBE_TEST_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *at = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    if (at == MAP_FAILED) abort();
    close(file);
    offset = at;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    long failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && clock == CLOCK_REALTIME && offset) {
        now->tv_sec += __atomic_load_n(offset, __ATOMIC_RELAXED);
    }
    return (int)failed;
}
