/* Reads pages of one file at random, again and again, while another thread reads a longer file once from beginning to end.
 *
 *     scan make DIRECTORY HOT SCAN
 *     scan read DIRECTORY HOT SCAN PIECE PAUSE
 *
 * HOT and SCAN: bytes of the files `hot` and `scan`, which `make` writes until they are durable. `read` reads all of the first, then as many
 * pages of it at random as it has, three times; then the scan begins, PIECE bytes at a time, and the reader goes on at random until the scan
 * is over, and rests for PAUSE microseconds after each read. Each page begins with a word that says which it is, which is looked at. Prints as JSON how many pages were read
 * beside the scan, the seconds that it took, and the bytes from devices that the kernel counted for the reading thread meanwhile. Before all it
 * writes the first word of both files once more, and syncs it: what no program of a session writes, and nothing is owed of, is the kernel's. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common.h"

enum { PAGE = 4096, MAKE = 1 << 20, ROUNDS = 3 };

static const char *directory;
static size_t hot_bytes, scan_bytes, piece;
static atomic_int over;
static double took;

static uint64_t word_of(size_t at) { return (at / PAGE + 1) * 0x9e3779b97f4a7c15u; }

static int open_file(const char *name, int how) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    int fd = open(path, how, 0644);
    if (fd < 0)
        fail(path);
    return fd;
}

static void make(const char *name, size_t len) {
    int fd = open_file(name, O_CREAT | O_TRUNC | O_RDWR);
    char *bytes = calloc(1, MAKE);
    if (!bytes)
        fail("memory");
    for (size_t at = 0; at < len; at += MAKE) {
        for (size_t page = 0; page < MAKE; page += PAGE) {
            uint64_t word = word_of(at + page);
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

static void check(const char *bytes, size_t len, size_t at) {
    for (size_t page = 0; page < len; page += PAGE) {
        uint64_t word = word_of(at + page);
        if (memcmp(bytes + page, &word, sizeof word) != 0) {
            fprintf(stderr, "wrong bytes at %zu\n", at + page);
            exit(1);
        }
    }
}

static void read_at(int fd, char *bytes, size_t len, size_t at) {
    if (pread(fd, bytes, len, at) != (ssize_t)len)
        fail("read");
    check(bytes, len, at);
}

static void *scan(void *nothing) {
    (void)nothing;
    int fd = open_file("scan", O_RDONLY);
    char *bytes = aligned_alloc(PAGE, piece);
    if (!bytes)
        fail("memory");
    double start = now();
    for (size_t at = 0; at < scan_bytes; at += piece)
        read_at(fd, bytes, piece, at);
    took = now() - start;
    atomic_store(&over, 1);
    close(fd);
    return NULL;
}

static uint64_t random_state = 88172645463325252u;

static size_t any_page(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % (hot_bytes / PAGE) * PAGE;
}

/* Bytes that this thread has read from devices, by the kernel's count. */
static unsigned long counted(void) {
    char path[64], line[128];
    unsigned long found = 0;
    snprintf(path, sizeof path, "/proc/self/task/%ld/io", syscall(SYS_gettid));
    FILE *file = fopen(path, "r");
    if (!file)
        fail(path);
    while (fgets(line, sizeof line, file))
        sscanf(line, "read_bytes: %lu", &found);
    fclose(file);
    return found;
}

int main(int count, char **arguments) {
    int makes = count == 5 && !strcmp(arguments[1], "make"), reads = count == 7 && !strcmp(arguments[1], "read");
    if (!makes && !reads)
        return 2;
    directory = arguments[2];
    hot_bytes = strtoull(arguments[3], NULL, 10), scan_bytes = strtoull(arguments[4], NULL, 10);
    if (hot_bytes == 0 || hot_bytes % MAKE != 0 || scan_bytes == 0 || scan_bytes % MAKE != 0)
        return 2;
    if (makes) {
        make("hot", hot_bytes);
        make("scan", scan_bytes);
        return 0;
    }
    piece = strtoull(arguments[5], NULL, 10);
    struct timespec pause = {0, strtol(arguments[6], NULL, 10) * 1000};
    if (piece == 0 || piece % PAGE != 0 || MAKE % piece != 0)
        return 2;
    uint64_t first = word_of(0);
    for (size_t i = 0; i < 2; i++) {
        int known = open_file(i ? "scan" : "hot", O_RDWR); // Open to the end.
        if (pwrite(known, &first, sizeof first, 0) != sizeof first || fsync(known) != 0)
            fail("write");
    }
    int fd = open_file("hot", O_RDONLY);
    char *bytes = aligned_alloc(PAGE, PAGE);
    if (!bytes)
        fail("memory");
    for (size_t at = 0; at < hot_bytes; at += PAGE)
        read_at(fd, bytes, PAGE, at);
    for (size_t done = 0; done < ROUNDS * (hot_bytes / PAGE); done++)
        read_at(fd, bytes, PAGE, any_page());
    pthread_t scanner;
    unsigned long before = counted();
    if (pthread_create(&scanner, NULL, scan, NULL) != 0)
        fail("thread");
    unsigned long read = 0;
    for (; !atomic_load_explicit(&over, memory_order_relaxed); read++) {
        read_at(fd, bytes, PAGE, any_page());
        if (pause.tv_nsec > 0)
            nanosleep(&pause, NULL);
    }
    unsigned long after = counted();
    pthread_join(scanner, NULL);
    printf("{\"reads\": %lu, \"seconds\": %.6f, \"device_bytes\": %lu}\n", read, took, after - before);
    return 0;
}
