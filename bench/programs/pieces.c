/* Writes a fresh file in pieces of one size, from memory that begins with a page.
 *
 *     pieces FILE BYTES PIECE WAY
 *
 * WAY: `leave` writes and exits; `sync` calls fsync after every piece; `uncached` does so too and asks the kernel with
 * RWF_DONTCACHE to keep nothing. Prints its own seconds and CPU seconds of writing and syncing, as JSON. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

#include "common.h"

#ifndef RWF_DONTCACHE
#define RWF_DONTCACHE 0x80
#endif

/* More than the processor's caches hold, as data that a program has. */
enum { SOURCE_BYTES = 64 << 20 };

static double seconds_of(struct timeval time) { return time.tv_sec + time.tv_usec * 1e-6; }

static double cpu_now(void) {
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return seconds_of(use.ru_utime) + seconds_of(use.ru_stime);
}

/* Pages that differ from one another, so that one in a wrong place shows. */
static char *source(size_t bytes) {
    char *made = aligned_alloc(4096, bytes);
    if (!made)
        fail("memory");
    for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
        uint64_t word = at * 0x9e3779b97f4a7c15u;
        memcpy(made + at, &word, sizeof word);
    }
    return made;
}

int main(int count, char **arguments) {
    if (count != 5)
        return 2;
    size_t bytes = strtoull(arguments[2], NULL, 10), piece = strtoull(arguments[3], NULL, 10);
    int leaves = !strcmp(arguments[4], "leave"), uncached = !strcmp(arguments[4], "uncached");
    if (piece == 0 || piece % 4096 != 0 || bytes % piece != 0)
        return 2;
    size_t from = piece > 1 << 16 ? SOURCE_BYTES : 1 << 20;
    char *data = source(from);
    int fd = open(arguments[1], O_CREAT | O_TRUNC | O_RDWR, 0644);
    if (fd < 0)
        fail(arguments[1]);
    double start = now(), cpu = cpu_now();
    for (size_t at = 0; at < bytes; at += piece) {
        struct iovec part = {data + at % from, piece};
        ssize_t wrote = uncached ? pwritev2(fd, &part, 1, at, RWF_DONTCACHE) : pwrite(fd, part.iov_base, piece, at);
        if (wrote != (ssize_t)piece)
            fail("write");
        if (!leaves && fsync(fd) != 0)
            fail("fsync");
    }
    printf("{\"seconds\": %.6f, \"cpu_seconds\": %.6f}\n", now() - start, cpu_now() - cpu);
    return 0;
}
