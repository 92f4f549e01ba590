/* Checkpoints as PF3DIO writes them: six patterns, one file for each process.
 *
 *     checkpoint DIRECTORY PATTERN ELEMENTS PROCESSES
 *
 * After the published benchmark (LLNL, PF3DIO): 14 arrays of floats and 10 of complex floats, ELEMENTS each (there 3,000,000), and
 * 4 doubles after each array. `dir` and `smdir` write arrays, without and with the doubles; `pdb` and `scpdb` put a header before
 * them and a table behind, and write the header again; `multi` and `smulti` (arrays of a tenth) write all of it through a
 * buffer of 16 KiB, as the benchmark's interpreter does with small variables, and only half of the processes write at a time.
 * There is no MPI here: processes begin together and the time is that of the last.
 *
 * Prints the seconds from the first open to the last close, and to the last fsync after that, as JSON. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common.h"

enum { FLOATS = 14, COMPLEX = 10, DOUBLES = 4, HEADER = 128, TABLE = 2500, BUFFER = 16 << 10, PROCESSES_MAX = 64 };

static struct {
    int fd;
    off_t at;
    int buffered;
    size_t held;
    char buffer[BUFFER];
} out;

static void write_all(const char *from, size_t len) {
    while (len > 0) {
        ssize_t wrote = pwrite(out.fd, from, len, out.at);
        if (wrote <= 0)
            fail("write");
        out.at += wrote, from += wrote, len -= wrote;
    }
}

static void flush(void) {
    write_all(out.buffer, out.held);
    out.held = 0;
}

static void save(const void *bytes, size_t len) {
    const char *from = bytes;
    if (!out.buffered) {
        write_all(from, len);
        return;
    }
    while (len > 0) {
        size_t part = BUFFER - out.held < len ? BUFFER - out.held : len;
        memcpy(out.buffer + out.held, from, part);
        out.held += part, from += part, len -= part;
        if (out.held == BUFFER)
            flush();
    }
}

static void checkpoint(const char *path, const char *pattern, const char *arrays, size_t elements) {
    int scalars = !strcmp(pattern, "smdir") || !strcmp(pattern, "scpdb") || strstr(pattern, "multi");
    int framed = !strstr(pattern, "dir");
    double scalar = 1.1;
    char header[HEADER] = "<PDB-like>", table[TABLE] = "table";
    out.buffered = strstr(pattern, "multi") != NULL;
    out.fd = open(path, O_CREAT | O_TRUNC | O_RDWR, 0644);
    if (out.fd < 0)
        fail(path);
    if (framed)
        save(header, HEADER);
    for (int array = 0; array < FLOATS + COMPLEX; array++) {
        save(arrays, elements * (array < FLOATS ? sizeof(float) : 2 * sizeof(float)));
        for (int j = 0; scalars && j < DOUBLES; j++, scalar += 1)
            save(&scalar, sizeof scalar);
    }
    if (framed)
        save(table, TABLE);
    flush();
    if (framed && pwrite(out.fd, header, HEADER, 0) != HEADER)
        fail("header");
    if (close(out.fd) != 0)
        fail("close");
}

int main(int count, char **arguments) {
    if (count != 5)
        return 2;
    const char *directory = arguments[1], *pattern = arguments[2];
    size_t elements = strtoull(arguments[3], NULL, 10);
    int processes = atoi(arguments[4]), gates[PROCESSES_MAX][2];
    if (elements < 10 || processes < 1 || processes > PROCESSES_MAX)
        return 2;
    if (!strcmp(pattern, "smulti"))
        elements /= 10;
    int groups = strstr(pattern, "multi") && processes > 1 ? processes / 2 : processes;
    double *closed = mmap(NULL, sizeof(double) * PROCESSES_MAX, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char *arrays = aligned_alloc(4096, (elements * 8 + 4095) / 4096 * 4096);
    if (closed == MAP_FAILED || !arrays)
        fail("memory");
    for (size_t at = 0; at + 8 <= elements * 8; at += 8) {
        uint64_t word = (at + 1) * 0x9e3779b97f4a7c15u;
        memcpy(arrays + at, &word, 8);
    }
    for (int rank = 0; rank < processes; rank++)
        if (pipe(gates[rank]) != 0)
            fail("pipe");
    for (int rank = 0; rank < processes; rank++) {
        pid_t child = fork();
        if (child < 0)
            fail("fork");
        if (child > 0)
            continue;
        char path[4096], word;
        snprintf(path, sizeof path, "%s/%s_%d", directory, pattern, rank);
        // Each process has memory of its own, as MPI's have.
        for (size_t at = 0; at < elements * 8; at += 4096)
            arrays[at] = rank + 1;
        if (read(gates[rank][0], &word, 1) != 1)
            fail("gate");
        checkpoint(path, pattern, arrays, elements);
        closed[rank] = now();
        if (rank + groups < processes && write(gates[rank + groups][1], "", 1) != 1)
            fail("gate");
        _exit(0);
    }
    double start = now(), last = start;
    for (int rank = 0; rank < groups; rank++)
        if (write(gates[rank][1], "", 1) != 1)
            fail("gate");
    for (int rank = 0; rank < processes; rank++) {
        int status;
        if (wait(&status) < 0 || status != 0)
            return 1;
    }
    for (int rank = 0; rank < processes; rank++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s_%d", directory, pattern, rank);
        last = closed[rank] > last ? closed[rank] : last;
        int fd = open(path, O_RDONLY);
        if (fd < 0 || fsync(fd) != 0)
            fail(path);
        close(fd);
    }
    printf("{\"closed\": %.6f, \"durable\": %.6f}\n", last - start, now() - start);
    return 0;
}
