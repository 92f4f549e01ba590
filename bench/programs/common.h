/* What the measuring programs share: a clock, and an end with a reason. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}
