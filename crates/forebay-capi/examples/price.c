/* What a call of 4 KiB costs, in nanoseconds: through Forebay's C library and through the kernel, in memory on both sides. price.rs is the
 * same in Rust.
 *
 *     cc -O2 price.c $(pkg-config --cflags --libs forebay) -o price && ./price DIR [KEY=VALUE]...
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <forebay.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 4096, ROUNDS = 25, RUNS = 9 };

static char bytes[PAGE];
static forebay_file *file;
static int plain;

static ssize_t read_forebay(int64_t at) { return forebay_pread(file, bytes, PAGE, at); }
static ssize_t write_forebay(int64_t at) { return forebay_pwrite(file, bytes, PAGE, at); }
static ssize_t read_kernel(int64_t at) { return pread(plain, bytes, PAGE, at); }
static ssize_t write_kernel(int64_t at) { return pwrite(plain, bytes, PAGE, at); }

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

/* The median of RUNS, each over PAGES pages ROUNDS times, in an order without streams. */
static void price(const char *what, ssize_t (*call)(int64_t))
{
    double runs[RUNS];
    for (int run = 0; run < RUNS; run++) {
        double begun = now();
        for (int i = 0; i < PAGES * ROUNDS; i++)
            if (call((int64_t)(i * 1103 % PAGES) * PAGE) != PAGE)
                exit(1);
        runs[run] = (now() - begun) / (PAGES * ROUNDS);
    }
    qsort(runs, RUNS, sizeof *runs, by_size);
    printf("%-16s %6.0f ns (%.0f to %.0f)\n", what, runs[RUNS / 2], runs[0], runs[RUNS - 1]);
}

int main(int argc, char **argv)
{
    char path[4096];
    if (argc < 2)
        return 2;
    forebay_session *session = forebay_session_open("price", (const char *const *)argv + 2);
    snprintf(path, sizeof path, "%s/managed", argv[1]);
    file = session ? forebay_open(session, path, O_RDWR | O_CREAT | O_TRUNC, 0600) : NULL;
    if (!file) {
        fprintf(stderr, "price: %s\n", forebay_error());
        return 1;
    }
    snprintf(path, sizeof path, "%s/plain", argv[1]);
    plain = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    for (int64_t i = 0; i < PAGES; i++)
        if (write_forebay(i * PAGE) != PAGE || write_kernel(i * PAGE) != PAGE)
            return 1;
    price("forebay_pread", read_forebay);
    price("forebay_pwrite", write_forebay);
    price("pread", read_kernel);
    price("pwrite", write_kernel);
    return forebay_close(file) | forebay_session_close(session);
}
