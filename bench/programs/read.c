/* Reads files one after the other, from beginning to end, by several threads, one file each.
 *
 *     read make DIRECTORY BYTES THREADS
 *     read read DIRECTORY BYTES THREADS PIECE WAY
 *
 * BYTES for all threads together. `make` writes the files, `read_0` and so on, until they are durable. WAY: `buffered`; `direct`, with
 * O_DIRECT. Each page begins with a word that says which it is, and `read` looks at that of every page. Prints the seconds from
 * the first read to the last, opening not included, as JSON. Before that it writes each file's first word once more, and syncs it: what no
 * program of a session writes, and nothing is owed of, is the kernel's. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "common.h"

enum { PAGE = 4096, MAKE = 1 << 20, THREADS_MAX = 16 };

static const char *directory;
static size_t bytes_each, piece;
static int flags;
static pthread_barrier_t ready;
static double begun[THREADS_MAX], ended[THREADS_MAX];

static uint64_t word_of(size_t thread, size_t at) { return (at / PAGE + 1) * 0x9e3779b97f4a7c15u + thread; }

static int open_file(size_t thread, int how) {
    char path[4096];
    snprintf(path, sizeof path, "%s/read_%zu", directory, thread);
    int fd = open(path, how, 0644);
    if (fd < 0)
        fail(path);
    return fd;
}

static void make(size_t thread) {
    int fd = open_file(thread, O_CREAT | O_TRUNC | O_RDWR);
    char *bytes = calloc(1, MAKE);
    if (!bytes)
        fail("memory");
    for (size_t at = 0; at < bytes_each; at += MAKE) {
        for (size_t page = 0; page < MAKE; page += PAGE) {
            uint64_t word = word_of(thread, at + page);
            memcpy(bytes + page, &word, sizeof word);
        }
        if (pwrite(fd, bytes, MAKE, at) != MAKE)
            fail("write");
    }
    if (fsync(fd) != 0 || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) != 0)
        fail("fsync");
    close(fd);
    free(bytes);
}

static void *reader(void *argument) {
    size_t thread = (size_t)argument;
    uint64_t first = word_of(thread, 0);
    int known = open_file(thread, O_RDWR);
    if (pwrite(known, &first, sizeof first, 0) != sizeof first || fsync(known) != 0)
        fail("write");
    int fd = open_file(thread, O_RDONLY | flags);
    char *bytes = aligned_alloc(PAGE, piece);
    if (!bytes)
        fail("memory");
    memset(bytes, 1, piece);
    pthread_barrier_wait(&ready);
    begun[thread] = now();
    for (size_t at = 0; at < bytes_each; at += piece) {
        if (pread(fd, bytes, piece, at) != (ssize_t)piece)
            fail("read");
        for (size_t page = 0; page < piece; page += PAGE) {
            uint64_t word = word_of(thread, at + page);
            if (memcmp(bytes + page, &word, sizeof word) != 0) {
                fprintf(stderr, "wrong bytes at %zu of file %zu\n", at + page, thread);
                exit(1);
            }
        }
    }
    ended[thread] = now();
    close(fd);
    close(known);
    return NULL;
}

int main(int count, char **arguments) {
    int makes = count == 5 && !strcmp(arguments[1], "make"), reads = count == 7 && !strcmp(arguments[1], "read");
    if (!makes && !reads)
        return 2;
    directory = arguments[2];
    size_t threads = strtoull(arguments[4], NULL, 10);
    if (threads < 1 || threads > THREADS_MAX)
        return 2;
    bytes_each = strtoull(arguments[3], NULL, 10) / threads;
    if (bytes_each == 0 || bytes_each % (4 * MAKE) != 0)
        return 2;
    if (makes) {
        for (size_t thread = 0; thread < threads; thread++)
            make(thread);
        return 0;
    }
    piece = strtoull(arguments[5], NULL, 10);
    flags = strcmp(arguments[6], "direct") ? 0 : O_DIRECT;
    if (piece == 0 || piece % PAGE != 0 || (4 * MAKE) % piece != 0)
        return 2;
    pthread_barrier_init(&ready, NULL, threads);
    pthread_t ids[THREADS_MAX];
    for (size_t thread = 0; thread < threads; thread++)
        if (pthread_create(&ids[thread], NULL, reader, (void *)thread) != 0)
            fail("thread");
    double first = 0, last = 0;
    for (size_t thread = 0; thread < threads; thread++) {
        pthread_join(ids[thread], NULL);
        first = first == 0 || begun[thread] < first ? begun[thread] : first;
        last = ended[thread] > last ? ended[thread] : last;
    }
    printf("{\"seconds\": %.6f}\n", last - first);
    return 0;
}
