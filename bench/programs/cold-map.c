/* A file that nobody has in memory is mapped and read from its beginning to its end, in four ways:
 *
 *     cold-map FILE [ROUNDS]
 *
 * `mmap`: the kernel's own way, with its read-ahead. `populate`: the same with MADV_POPULATE_READ first. `ahead`: readahead(2) of all of it, by
 * requests of 2 MiB, and then a mapping. `faults`: memory shared by two mappings, one of them watched by userfaultfd in minor mode; a thread reads 2 MiB directly
 * from the device into the other one for each fault, and lets the reader go on (UFFDIO_CONTINUE). It needs Linux 5.14, and privilege or vm.unprivileged_userfaultfd.
 * The sides take turns (ROUNDS, 5). The kernel lets go of the file before each. Prints medians as JSON, seconds. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common.h"

#define REQUEST ((size_t)2 << 20)
#define ROUNDS_MAX 99

static int plain, direct;
static size_t len;
static volatile uint64_t expected;

static uint64_t sum(const char *bytes) {
    uint64_t all = 0;
    for (size_t at = 0; at + 8 <= len; at += 8)
        all += *(const uint64_t *)(bytes + at);
    return all;
}

static void look(const char *bytes) {
    uint64_t found = sum(bytes);
    if (expected && found != expected)
        fail("other bytes than before");
    expected = found;
}

static char *mapped(int fd) {
    char *map = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        fail("mmap");
    return map;
}

static void by_mmap(void) {
    char *map = mapped(plain);
    look(map);
    munmap(map, len);
}

static void by_populating(void) {
    char *map = mapped(plain);
    if (madvise(map, len, MADV_POPULATE_READ))
        fail("madvise");
    look(map);
    munmap(map, len);
}

static void ahead(void) {
    for (size_t at = 0; at < len; at += REQUEST)
        if (readahead(plain, at, REQUEST))
            fail("readahead");
    by_mmap();
}

struct watched {
    int uffd;
    char *shown, *filled;
};

static void *resolve(void *given) {
    struct watched *of = given;
    struct uffd_msg event;
    while (read(of->uffd, &event, sizeof event) == sizeof event) {
        size_t at = ((uintptr_t)event.arg.pagefault.address - (uintptr_t)of->shown) / REQUEST * REQUEST;
        size_t bytes = len - at < REQUEST ? len - at : REQUEST;
        if (pread(direct, of->filled + at, bytes, at) != (ssize_t)bytes)
            fail("pread");
        struct uffdio_continue go_on = {.range = {(uintptr_t)of->shown + at, bytes}};
        if (ioctl(of->uffd, UFFDIO_CONTINUE, &go_on))
            fail("UFFDIO_CONTINUE");
        if (at + bytes == len)
            return NULL;
    }
    return NULL;
}

/* Memory that has been touched before, as that of a session has. */
static int memory;

static void by_faults(void) {
    struct watched of = {.uffd = syscall(SYS_userfaultfd, O_CLOEXEC)};
    of.shown = mapped(memory);
    of.filled = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_MINOR_SHMEM};
    struct uffdio_register range = {.range = {(uintptr_t)of.shown, len}, .mode = UFFDIO_REGISTER_MODE_MINOR};
    if (of.uffd < 0 || of.filled == MAP_FAILED || ioctl(of.uffd, UFFDIO_API, &api) || ioctl(of.uffd, UFFDIO_REGISTER, &range))
        fail("userfaultfd");
    pthread_t thread;
    if (pthread_create(&thread, NULL, resolve, &of))
        fail("a thread");
    look(of.shown);
    pthread_join(thread, NULL);
    close(of.uffd);
    munmap(of.shown, len);
    munmap(of.filled, len);
}

static int by_size(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

int main(int count, char **arguments) {
    int rounds = count > 2 ? atoi(arguments[2]) : 5;
    if (count < 2 || count > 3 || rounds < 1 || rounds > ROUNDS_MAX)
        fail("usage: cold-map FILE [ROUNDS]");
    struct stat seen;
    plain = open(arguments[1], O_RDONLY);
    direct = open(arguments[1], O_RDONLY | O_DIRECT);
    if (plain < 0 || direct < 0 || fstat(plain, &seen) || seen.st_size == 0 || seen.st_size % 4096)
        fail("a file of whole pages, on a file system with O_DIRECT");
    len = seen.st_size;
    memory = memfd_create("cold-map", MFD_CLOEXEC);
    char *touched = ftruncate(memory, len) ? MAP_FAILED : mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    if (touched == MAP_FAILED)
        fail("memory");
    memset(touched, 1, len);
    munmap(touched, len);
    static const struct {
        const char *name;
        void (*run)(void);
    } sides[] = {{"mmap", by_mmap}, {"populate", by_populating}, {"ahead", ahead}, {"faults", by_faults}};
    enum { SIDES = sizeof sides / sizeof *sides };
    static double took[SIDES][ROUNDS_MAX];
    for (int round = 0; round < rounds; round++)
        for (int side = 0; side < SIDES; side++) {
            fsync(plain);
            posix_fadvise(plain, 0, 0, POSIX_FADV_DONTNEED);
            double begun = now();
            sides[side].run();
            took[side][round] = now() - begun;
        }
    printf("{");
    for (int side = 0; side < SIDES; side++) {
        qsort(took[side], rounds, sizeof(double), by_size);
        printf("%s\"%s\": %.6f", side ? ", " : "", sides[side].name, took[side][rounds / 2]);
    }
    printf("}\n");
}
