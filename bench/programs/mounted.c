/* Times plain calls in a directory: mounted DIRECTORY. Prints a name and nanoseconds per call, line by line. What is read and
   written has been written once before. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FILES 10000
#define BYTES (64L << 20)
#define ROUNDS 8

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static void must(int done, const char *what)
{
    if (!done) {
        fprintf(stderr, "%s: %s\n", what, strerror(errno));
        exit(1);
    }
}

static void tell(const char *name, double begun, long calls)
{
    printf("%s %.0f\n", name, (now() - begun) / calls);
}

static void bytes(int fd, char *memory, size_t size, const char *of)
{
    long calls = BYTES / size / (size < 65536 ? 4 : 1);
    char name[64];
    double begun = now();
    for (long i = 0; i < calls; i++)
        must(pwrite(fd, memory, size, i * size) == (ssize_t)size, "pwrite");
    snprintf(name, sizeof name, "write_%s", of);
    tell(name, begun, calls);
    begun = now();
    for (long i = 0; i < calls; i++)
        must(pread(fd, memory, size, i * size) == (ssize_t)size, "pread");
    snprintf(name, sizeof name, "read_%s", of);
    tell(name, begun, calls);
}

static void syncs(int fd, char *memory, size_t size, long calls, const char *name)
{
    double begun = now();
    for (long i = 0; i < calls; i++) {
        must(pwrite(fd, memory, size, i * size) == (ssize_t)size, "pwrite");
        must(fsync(fd) == 0, "fsync");
    }
    tell(name, begun, calls);
}

/* What a program does with bytes besides: it makes them before it writes, and uses what it has read. */
static void used(int fd, char *memory, size_t size)
{
    volatile uint64_t kept;
    double begun = now();
    for (long i = 0; i < BYTES / (long)size; i++) {
        memset(memory, i, size);
        must(pwrite(fd, memory, size, i * size) == (ssize_t)size, "pwrite");
    }
    tell("fill_and_write_2MiB", begun, BYTES / size);
    begun = now();
    for (long i = 0; i < BYTES / (long)size; i++) {
        must(pread(fd, memory, size, i * size) == (ssize_t)size, "pread");
        uint64_t sum = 0;
        for (size_t at = 0; at < size / 8; at++)
            sum += ((uint64_t *)memory)[at];
        kept = sum;
    }
    (void)kept;
    tell("read_and_sum_2MiB", begun, BYTES / size);
}

static atomic_int is_over;

static void *syncing(void *fd)
{
    while (!is_over)
        must(fsync(*(int *)fd) == 0, "fsync");
    return NULL;
}

static void beside_syncs(int fd, char *memory, size_t size)
{
    pthread_t thread;
    must(pthread_create(&thread, NULL, syncing, &fd) == 0, "pthread_create");
    double begun = now();
    long calls = BYTES / size / 4;
    for (long i = 0; i < calls; i++)
        must(pwrite(fd, memory, size, i * size) == (ssize_t)size, "pwrite");
    tell("write_4KiB_beside_fsync", begun, calls);
    is_over = 1;
    pthread_join(thread, NULL);
}

/* One of two threads, each of which has a file of its own. Both are there before the clock starts, and go over their files so often that
   its first and last moments, when one of them is alone, do not count. */
struct half {
    int fd, reads;
    char *memory;
    double took;
};

static pthread_barrier_t start;

static void once(struct half *half)
{
    for (long at = 0; at < BYTES; at += 2 << 20) {
        ssize_t done = half->reads ? pread(half->fd, half->memory, 2 << 20, at) : pwrite(half->fd, half->memory, 2 << 20, at);
        must(done == 2 << 20, "a thread");
    }
}

static void *half_of(void *given)
{
    struct half *half = given;
    pthread_barrier_wait(&start);
    double begun = now();
    for (int i = 0; i < ROUNDS; i++)
        once(half);
    half->took = now() - begun;
    return NULL;
}

static void by_two(int fd, char *memory)
{
    int second = open("second", O_CREAT | O_TRUNC | O_RDWR, 0644);
    struct half halves[2] = {{fd, 0, memory, 0}, {second, 0, malloc(2 << 20), 0}};
    must(second >= 0 && halves[1].memory, "second");
    memset(halves[1].memory, 'x', 2 << 20);
    once(&halves[1]);
    must(fsync(second) == 0, "fsync");
    must(pthread_barrier_init(&start, NULL, 2) == 0, "pthread_barrier_init");
    for (int reads = 0; reads < 2; reads++) {
        pthread_t threads[2];
        for (int i = 0; i < 2; i++) {
            halves[i].reads = reads;
            must(pthread_create(&threads[i], NULL, half_of, &halves[i]) == 0, "pthread_create");
        }
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        double longer = halves[0].took > halves[1].took ? halves[0].took : halves[1].took;
        printf("%s %.0f\n", reads ? "read_2MiB_two_threads" : "write_2MiB_two_threads", longer / (2 * ROUNDS * (BYTES >> 21)));
    }
    free(halves[1].memory);
    close(second);
    unlink("second");
}

static void tell_of(const char *call, const char *of, double begun)
{
    char name[64];
    snprintf(name, sizeof name, "%s%s", call, of);
    tell(name, begun, FILES);
}

/* Files of so many bytes; `of` ends the names of their rows. */
static void names(char *memory, size_t size, const char *of)
{
    char name[32], other[32];
    struct stat st;
    double begun = now();
    for (int i = 0; i < FILES; i++) {
        snprintf(name, sizeof name, "d/file%d", i);
        int fd = open(name, O_CREAT | O_EXCL | O_WRONLY, 0644);
        must(fd >= 0, "open");
        must(size == 0 || write(fd, memory, size) == (ssize_t)size, "write");
        close(fd);
    }
    tell_of("create", of, begun);
    begun = now();
    for (int i = 0; i < FILES; i++) {
        snprintf(name, sizeof name, "d/file%d", i);
        must(stat(name, &st) == 0 && st.st_size == (off_t)size, "stat");
    }
    tell_of("stat", of, begun);
    begun = now();
    for (int i = 0; i < FILES; i++) {
        snprintf(name, sizeof name, "d/file%d", i);
        snprintf(other, sizeof other, "d/other%d", i);
        must(rename(name, other) == 0, "rename");
    }
    tell_of("rename", of, begun);
    begun = now();
    for (int i = 0; i < FILES; i++) {
        snprintf(other, sizeof other, "d/other%d", i);
        must(unlink(other) == 0, "unlink");
    }
    tell_of("unlink", of, begun);
}

int main(int count, char **words)
{
    must(count == 2 && chdir(words[1]) == 0, "mounted DIRECTORY");
    char *memory = malloc(2 << 20);
    must(memory != NULL, "malloc");
    memset(memory, 'x', 2 << 20);
    int fd = open("file", O_CREAT | O_TRUNC | O_RDWR, 0644);
    must(fd >= 0, "open");
    for (long at = 0; at < BYTES; at += 2 << 20)
        must(pwrite(fd, memory, 2 << 20, at) == 2 << 20, "pwrite");
    must(fsync(fd) == 0, "fsync");
    bytes(fd, memory, 4 << 10, "4KiB");
    bytes(fd, memory, 64 << 10, "64KiB");
    bytes(fd, memory, 2 << 20, "2MiB");
    must(fsync(fd) == 0, "fsync");
    syncs(fd, memory, 4 << 10, 200, "write_4KiB_fsync");
    syncs(fd, memory, 1 << 20, 20, "write_1MiB_fsync");
    used(fd, memory, 2 << 20);
    beside_syncs(fd, memory, 4 << 10);
    by_two(fd, memory);
    close(fd);
    unlink("file");
    must(mkdir("d", 0755) == 0, "mkdir");
    names(memory, 0, "");
    names(memory, 4 << 10, "_of_4KiB");
    rmdir("d");
    free(memory);
    return 0;
}
