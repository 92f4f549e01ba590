/* What calls cost on descriptors that are not managed: nanoseconds of one call, the best of ten batches, as JSON.
 *
 *     calls FILE CALLS
 *
 * FILE is a file that nobody manages. Run it with and without the library, in turn. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { BATCHES = 10, PIECE = 64 };

static int zero, null, file, to_pipe, from_pipe;
static char bytes[PIECE];

static void done(int as_expected) {
    if (!as_expected) {
        perror("calls");
        exit(1);
    }
}

static void pread_of_zero(void) { done(pread(zero, bytes, PIECE, 0) == PIECE); }
static void write_to_null(void) { done(write(null, bytes, PIECE) == PIECE); }
static void to_and_fro(void) {
    done(write(to_pipe, bytes, 1) == 1);
    done(read(from_pipe, bytes, 1) == 1);
}
static void seek(void) { done(lseek(file, PIECE, SEEK_SET) == PIECE); }
static void ask(void) {
    struct stat stat;
    done(fstat(file, &stat) == 0);
}
static void pread_of_file(void) { done(pread(file, bytes, PIECE, 0) == PIECE); }
static void open_and_close(void) {
    int fd = open("/dev/null", O_RDONLY);
    done(fd >= 0 && close(fd) == 0);
}

static const struct {
    const char *name;
    void (*call)(void);
    int calls;
} kinds[] = {
    {"pread of /dev/zero", pread_of_zero, 1}, {"write to /dev/null", write_to_null, 1},
    {"a byte through a pipe", to_and_fro, 2}, {"lseek", seek, 1},
    {"fstat", ask, 1},                        {"pread of a file elsewhere", pread_of_file, 1},
    {"open and close", open_and_close, 2},
};

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e9 + now.tv_nsec;
}

int main(int count, char **arguments) {
    if (count != 3)
        return 2;
    int ends[2];
    long calls = atol(arguments[2]) / BATCHES;
    zero = open("/dev/zero", O_RDONLY);
    null = open("/dev/null", O_WRONLY);
    file = open(arguments[1], O_RDONLY);
    done(calls > 0 && zero >= 0 && null >= 0 && file >= 0 && pipe(ends) == 0);
    from_pipe = ends[0];
    to_pipe = ends[1];
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
        double best = 1e18;
        for (int batch = 0; batch < BATCHES; batch++) {
            double start = now_ns();
            for (long call = 0; call < calls; call++)
                kinds[kind].call();
            double each = (now_ns() - start) / (calls * kinds[kind].calls);
            if (each < best)
                best = each;
        }
        printf("%s\"%s\": %.2f", kind ? ", " : "{", kinds[kind].name, best);
    }
    puts("}");
    return 0;
}
