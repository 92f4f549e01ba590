/* Writes fresh files one after the other by several threads, one file each, until everything is durable.
 *
 *     stream DIRECTORY BYTES PIECE THREADS WAY [SLICES]
 *
 * BYTES for all threads together. WAY: `buffered`; `dontcache`, with RWF_DONTCACHE; `direct`, with O_DIRECT. Prints the seconds until
 * the last write returned, until the last fsync did, and how many bytes were written in each part of a second of which there are
 * SLICES (100), as JSON. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "common.h"

#ifndef RWF_DONTCACHE
#define RWF_DONTCACHE 0x80
#endif

enum { SOURCE = 8 << 20, THREADS_MAX = 16, SLICES_MAX = 60000 };

static const char *directory, *way;
static size_t bytes_each, piece;
static char *source;
static double start, written[THREADS_MAX], durable[THREADS_MAX];
static size_t per_second = 100;
static atomic_ulong slices[SLICES_MAX];

static void *writer(void *argument) {
    size_t thread = (size_t)argument;
    char path[4096];
    snprintf(path, sizeof path, "%s/stream_%zu", directory, thread);
    int direct = !strcmp(way, "direct"), flags = strcmp(way, "dontcache") ? 0 : RWF_DONTCACHE;
    int fd = open(path, O_CREAT | O_TRUNC | O_RDWR | (direct ? O_DIRECT : 0), 0644);
    if (fd < 0)
        fail(path);
    for (size_t at = 0; at < bytes_each; at += piece) {
        struct iovec part = {source + at % SOURCE, piece};
        ssize_t wrote = flags ? pwritev2(fd, &part, 1, at, flags) : pwrite(fd, part.iov_base, piece, at);
        if (wrote != (ssize_t)piece)
            fail("write");
        size_t slice = (now() - start) * per_second;
        atomic_fetch_add_explicit(&slices[slice < SLICES_MAX ? slice : SLICES_MAX - 1], piece, memory_order_relaxed);
    }
    written[thread] = now();
    if (fsync(fd) != 0)
        fail("fsync");
    durable[thread] = now();
    close(fd);
    return NULL;
}

int main(int count, char **arguments) {
    if (count != 6 && count != 7)
        return 2;
    if (count == 7)
        per_second = strtoull(arguments[6], NULL, 10);
    directory = arguments[1], way = arguments[5];
    piece = strtoull(arguments[3], NULL, 10);
    size_t threads = strtoull(arguments[4], NULL, 10);
    if (threads < 1 || threads > THREADS_MAX || piece == 0 || SOURCE % piece != 0 || piece % 4096 != 0)
        return 2;
    bytes_each = strtoull(arguments[2], NULL, 10) / threads / piece * piece;
    source = aligned_alloc(4096, SOURCE);
    if (!source)
        fail("memory");
    for (size_t at = 0; at < SOURCE; at += 8) {
        uint64_t word = (at + 1) * 0x9e3779b97f4a7c15u;
        memcpy(source + at, &word, 8);
    }
    pthread_t ids[THREADS_MAX];
    start = now();
    for (size_t thread = 0; thread < threads; thread++)
        if (pthread_create(&ids[thread], NULL, writer, (void *)thread) != 0)
            fail("thread");
    double last = 0, safe = 0;
    for (size_t thread = 0; thread < threads; thread++) {
        pthread_join(ids[thread], NULL);
        last = written[thread] > last ? written[thread] : last;
        safe = durable[thread] > safe ? durable[thread] : safe;
    }
    printf("{\"returned\": %.6f, \"durable\": %.6f, \"curve\": [", last - start, safe - start);
    for (size_t slice = 0; slice <= (size_t)((last - start) * per_second) && slice < SLICES_MAX; slice++)
        printf("%s%lu", slice ? ", " : "", atomic_load(&slices[slice]));
    puts("]}");
    return 0;
}
