/* A program of its own, for builds with sanitizers and for other preloaded libraries: says what it sees, and leaves a file. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define LEN 300000
#define MUST(what) do { if (!(what)) { perror(#what); _exit(1); } } while (0)

static unsigned sum_of(const char *from, size_t len)
{
    unsigned sum = 5381;
    for (size_t i = 0; i < len; i++)
        sum = sum * 33 + (unsigned char)from[i];
    return sum;
}

static void *in_a_thread(void *path)
{
    int fd = open(path, O_WRONLY | O_APPEND);
    char *bytes = malloc(50000);
    memset(bytes, 't', 50000);
    MUST(fd >= 0 && write(fd, bytes, 50000) == 50000 && close(fd) == 0);
    free(bytes);
    return path;
}

int main(int argc, char **argv)
{
    MUST(argc == 3 && chdir(argv[2]) == 0);
    char *bytes = malloc(LEN), *back = calloc(1, 2 * LEN);
    for (int i = 0; i < LEN; i++)
        bytes[i] = (char)(i * 7 + i / 251);
    int fd = open("file", O_RDWR | O_CREAT | O_TRUNC, 0644);
    for (int i = 0; i < 5; i++)
        MUST(write(fd, bytes + i * 60000, 60000) == 60000);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, in_a_thread, "file") == 0 && pthread_join(thread, NULL) == 0);
    pid_t child = fork();
    if (child == 0)
        _exit(pwrite(fd, "child", 5, 1000) != 5);
    int status;
    MUST(waitpid(child, &status, 0) == child && status == 0);
    long len = pread(fd, back, 2 * LEN, 0);
    printf("%ld bytes, %u\n", len, sum_of(back, (size_t)len));
    FILE *stream = fopen("file", "a");
    for (int i = 0; i < 20000; i++)
        fprintf(stream, "line %d\n", i);
    MUST(fclose(stream) == 0);
    char *map = mmap(NULL, LEN, PROT_READ, MAP_PRIVATE, fd, 0);
    MUST(map != MAP_FAILED);
    printf("map %u\n", sum_of(map, LEN));
    MUST(munmap(map, LEN) == 0);
    MUST(dprintf(fd, "%s\n", "printed") == 8);
    printf("at %ld of %ld\n", (long)lseek(fd, 0, SEEK_CUR), (long)lseek(fd, 0, SEEK_END));
    printf("shell %d\n", system("cksum < file"));
    /* Names that nobody has, again and again: another library may take them for others. */
    char before[16] = "file", after[16];
    for (int i = 0; i < 9; i++) {
        snprintf(after, sizeof after, "name-%d", i);
        MUST(rename(before, after) == 0);
        printf("%s %d\n", after, access(after, F_OK));
        MUST(rename(after, before) == 0);
    }
    free(bytes);
    free(back);
    return close(fd);
}
