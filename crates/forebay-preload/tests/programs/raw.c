/* A program that makes some of its system calls by an instruction of its own, as Go's runtime and some libraries do. It does what it
 * is told, line by line: `raw` and a call, or the call by libc. Each answer begins with `@`. With -DGO it says that it is Go's. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef GO
__asm__(".pushsection .note.go.buildid,\"a\",@note\n"
        ".long 4, 4, 4\n.ascii \"Go\\0\\0\"\n.ascii \"test\"\n.popsection\n");
#endif

enum { MEMBER_BYTES = 300000, TEXT_MAX = 1 << 20 };

static int fd = -1;
static char text[TEXT_MAX];

static long raw(long number, long a, long b, long c, long d) {
    register long r10 __asm__("r10") = d;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
    return result;
}

/* The file is mapped, and the descriptor closed. */
static long map(long number) {
    long at = number;
    fd = raw(SYS_openat, AT_FDCWD, (long)text, O_RDWR | O_CREAT, 0644);
    if (fd >= 0) {
        register long r10 __asm__("r10") = MAP_SHARED;
        register long r8 __asm__("r8") = fd;
        register long r9 __asm__("r9") = 0;
        __asm__ volatile("syscall" : "=a"(at) : "a"((long)SYS_mmap), "D"(0L), "S"(4096L), "d"((long)PROT_READ), "r"(r10), "r"(r8), "r"(r9)
                         : "rcx", "r11", "memory");
    }
    raw(SYS_close, fd, 0, 0, 0);
    return at;
}

/* One command; its result. */
static long obey(char *line) {
    char word[16];
    long number = 0, at = 0;
    int is_raw = strncmp(line, "raw ", 4) == 0;
    if (sscanf(line + 4 * is_raw, "%15s", word) != 1) return -1;
    char *rest = strchr(line + 4 * is_raw, ' ');
    rest = rest ? rest + 1 : "";
    strcpy(text, rest);
    if (!strcmp(word, "open")) {
        fd = is_raw ? raw(SYS_openat, AT_FDCWD, (long)text, O_RDWR | O_CREAT, 0644) : open(text, O_RDWR | O_CREAT, 0644);
        return fd < 0 ? fd : 0;
    }
    if (!strcmp(word, "stream")) return fopen(text, "r") ? 0 : -1;
    /* The loader opens it, by code of its own. */
    if (!strncmp(word, "load", 4)) {
        void *library = strcmp(word, "load") ? dlmopen(LM_ID_NEWLM, text, RTLD_NOW) : dlopen(text, RTLD_NOW);
        int (*answer)(void) = library ? (int (*)(void))dlsym(library, "answer") : NULL;
        return answer ? answer() : -1;
    }
    if (!strcmp(word, "map")) return map(0) < 0 ? -1 : 0;
    if (!strcmp(word, "write")) return is_raw ? raw(SYS_write, fd, (long)text, strlen(text), 0) : write(fd, text, strlen(text));
    if (!strcmp(word, "fill")) {
        number = atol(text);
        memset(text, 'x', number);
        return write(fd, text, number);
    }
    /* What a file holds. */
    if (!strcmp(word, "copy")) {
        int from = open(text, O_RDONLY);
        while ((number = read(from, text, 10000)) > 0 && write(fd, text, number) == number) at += number;
        return number || close(from) ? -1 : at;
    }
    if (!strcmp(word, "sync")) return is_raw ? raw(SYS_fsync, fd, 0, 0, 0) : fsync(fd);
    if (!strcmp(word, "end")) return is_raw ? raw(SYS_lseek, fd, 0, SEEK_END, 0) : lseek(fd, 0, SEEK_END);
    if (!strcmp(word, "read") && sscanf(rest, "%ld %ld", &number, &at) == 2) {
        long got = is_raw ? raw(SYS_pread64, fd, (long)text, number, at) : pread(fd, text, number, at);
        if (got < 0) return got;
        text[got] = 0;
        printf("@%s\n", text);
        fflush(stdout);
        return -1000;
    }
    return -1001;
}

static void answer(char *line) {
    long result = obey(line);
    if (result != -1000) {
        printf("@%ld\n", result);
        fflush(stdout);
    }
}

static void *in_thread(void *line) {
    answer(line);
    return NULL;
}

int main(void) {
    static char line[4096];
    pthread_t thread;
    int own = open("own", O_RDWR | O_CREAT, 0644);
    memset(text, 'o', MEMBER_BYTES);
    /* From here on the process is a member of the session. */
    if (write(own, text, MEMBER_BYTES) != MEMBER_BYTES) return 1;
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (!strncmp(line, "thread ", 7)) {
            pthread_create(&thread, NULL, in_thread, line + 7);
            pthread_join(thread, NULL);
        } else if (!strncmp(line, "child ", 6)) {
            fflush(stdout);
            if (!fork()) {
                obey(line + 6);
                _exit(0);
            }
            wait(NULL);
            puts("@0");
            fflush(stdout);
        } else {
            answer(line);
        }
    }
    return 0;
}
