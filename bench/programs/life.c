/* Files that live briefly: each is made, written, perhaps synced, closed, opened again, read or mapped, and removed.
 *
 *     life COUNT WRITES BYTES STEPS
 *
 * Makes COUNT files one after the other in the current directory, each by WRITES writes of BYTES. STEPS says what happens to each
 * between its last write and its end, a letter a step: `s` fdatasync, `c` close, `o` open to read, `r` read all of it in pieces
 * of BYTES, `m` map it, look at 64 pages at random places and unmap, `p` the same with a private mapping, `u` unlink. What is read is compared. Without `u` the files
 * stay, as file-0 and so on. Prints its own seconds for each file as JSON. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common.h"

enum { PAGES_LOOKED_AT = 64 };

static size_t writes, bytes;
static char *given, *found;

/* What the file has at a place. */
static char expected(size_t at) { return given[at % bytes]; }

static void read_all(int fd) {
    for (size_t at = 0; at < writes; at++)
        if (read(fd, found, bytes) != (ssize_t)bytes || memcmp(found, given, bytes))
            fail("other bytes than were written");
}

static void look_at_pages(int fd, int kind, unsigned *seed) {
    size_t len = writes * bytes;
    char *map = mmap(NULL, len, PROT_READ, kind, fd, 0);
    if (map == MAP_FAILED)
        fail("mmap");
    for (int page = 0; page < PAGES_LOOKED_AT; page++) {
        size_t at = rand_r(seed) % len;
        if (map[at] != expected(at))
            fail("another byte than was written");
    }
    munmap(map, len);
}

static void live(size_t number, const char *steps, unsigned *seed) {
    char name[32];
    snprintf(name, sizeof name, "file-%zu", number);
    int fd = open(name, O_CREAT | O_TRUNC | O_RDWR, 0644);
    if (fd < 0)
        fail(name);
    for (size_t at = 0; at < writes; at++)
        if (write(fd, given, bytes) != (ssize_t)bytes)
            fail(name);
    for (; *steps; steps++) {
        switch (*steps) {
        case 's':
            if (fdatasync(fd))
                fail("fdatasync");
            break;
        case 'c':
            if (close(fd))
                fail("close");
            break;
        case 'o':
            if ((fd = open(name, O_RDONLY)) < 0)
                fail(name);
            break;
        case 'r':
            read_all(fd);
            break;
        case 'm':
            look_at_pages(fd, MAP_SHARED, seed);
            break;
        case 'p':
            look_at_pages(fd, MAP_PRIVATE, seed);
            break;
        case 'u':
            if (unlink(name))
                fail(name);
            break;
        default:
            exit(2);
        }
    }
}

int main(int count, char **arguments) {
    if (count != 5)
        return 2;
    size_t files = strtoull(arguments[1], NULL, 10);
    writes = strtoull(arguments[2], NULL, 10), bytes = strtoull(arguments[3], NULL, 10);
    if (files == 0 || writes == 0 || bytes == 0)
        return 2;
    given = malloc(bytes), found = malloc(bytes);
    if (!given || !found)
        fail("memory");
    for (size_t at = 0; at < bytes; at++)
        given[at] = (char)(at * 31 + at / 4096);
    memset(found, 0, bytes);
    unsigned seed = 1;
    double start = now();
    for (size_t number = 0; number < files; number++)
        live(number, arguments[4], &seed);
    printf("{\"seconds\": %.9f}\n", (now() - start) / files);
    return 0;
}
