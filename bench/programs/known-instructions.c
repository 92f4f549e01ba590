/* A hundred million instructions, and a string instruction that moves a mebibyte: what the clock makes of each, in nanoseconds. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define TURNS 50000000L
#define WORDS (1L << 17)

static uint64_t from[WORDS], to[WORDS];

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

int main(void)
{
    long turns = TURNS, words = WORDS;
    uint64_t *source = from, *target = to;
    double begun = now();
    __asm__ volatile("1: dec %0\n jnz 1b" : "+r"(turns) : : "cc");
    printf("an_instruction %.4f\n", (now() - begun) / (2 * TURNS));
    /* Written before, so that no page is touched for the first time. */
    memset(from, 7, sizeof from);
    memset(to, 1, sizeof to);
    begun = now();
    __asm__ volatile("rep movsq" : "+c"(words), "+S"(source), "+D"(target) : : "memory");
    printf("a_step_of_a_string_instruction %.4f\n", (now() - begun) / WORDS);
    return 0;
}
