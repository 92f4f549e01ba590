/* What programs do to files beside reading and writing them, each a case by name: `programs CASE DIRECTORY`.
 *
 * A case says what it sees on standard output and leaves files behind. Run with the library and without, both must be the
 * same. Every case first writes enough for its file to be managed. */
#define _GNU_SOURCE
#include <aio.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SOME 300000
static char bytes[SOME];
static char path[4096], other_path[4096], directory[3000];

#define MUST(what) \
    do { \
        if (!(what)) { \
            printf("line %d: %s: %s\n", __LINE__, #what, strerror(errno)); \
            fflush(stdout); \
            _exit(1); \
        } \
    } while (0)

static unsigned long sum_of(const char *from, size_t len)
{
    unsigned long sum = 5381;
    for (size_t i = 0; i < len; i++)
        sum = sum * 33 + (unsigned char)from[i];
    return sum;
}

static void fill(int seed)
{
    for (size_t i = 0; i < SOME; i++)
        bytes[i] = (char)(i * 7 + i / 251 + seed);
}

/* A file with dirty bytes in memory, its offset behind them. */
static int managed(const char *name, int flags)
{
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC | flags, 0644);
    MUST(fd >= 0);
    fill(1);
    for (size_t done = 0; done < SOME; done += 10000)
        MUST(write(fd, bytes + done, 10000) == 10000);
    MUST(pwrite(fd, "dirty", 5, 1000) == 5);
    return fd;
}

static void show(const char *what, const char *from, long len)
{
    printf("%s: %ld bytes, %lu\n", what, len, len > 0 ? sum_of(from, (size_t)len) : 0);
}

static void show_file(const char *name)
{
    static char all[4 * SOME];
    int fd = open(name, O_RDONLY);
    long len = 0, n;
    while ((n = read(fd, all + len, sizeof all - (size_t)len)) > 0)
        len += n;
    show("file", all, len);
    close(fd);
}

/* ---- signals ---- */

static volatile sig_atomic_t ticks, failures;
static int main_fd, handler_fd;

static void on_tick(int signal)
{
    (void)signal;
    int before = errno;
    /* Both are managed; the first is being written by whoever is interrupted. */
    failures += pwrite(main_fd, "tick", 4, SOME + 4096) != 4;
    failures += pwrite(handler_fd, "tock", 4, (ticks % 64) * 4) != 4;
    ticks++;
    errno = before;
}

static void tick_every(long microseconds)
{
    struct itimerval every = {{0, microseconds}, {0, microseconds}};
    MUST(setitimer(ITIMER_REAL, &every, NULL) == 0);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void handlers_write(void)
{
    main_fd = managed(path, 0);
    handler_fd = managed(other_path, 0);
    struct sigaction action = {.sa_handler = on_tick, .sa_flags = SA_RESTART}, old;
    MUST(sigaction(SIGALRM, &action, NULL) == 0);
    MUST(sigaction(SIGALRM, NULL, &old) == 0);
    printf("handler %d flags %x\n", old.sa_handler == on_tick, (unsigned)old.sa_flags & 0x10000000);
    tick_every(1000);
    double end = now() + 2;
    static char back[4096];
    for (long round = 0; now() < end; round++) {
        long at = round % 64 * 4096;
        memset(back, (int)round, sizeof back);
        MUST(pwrite(main_fd, back, sizeof back, at) == sizeof back);
        MUST(pread(main_fd, back, sizeof back, at) == sizeof back);
        for (size_t i = 0; i < sizeof back; i++)
            MUST(back[i] == (char)round);
        MUST(lseek(main_fd, 0, SEEK_CUR) == SOME);
    }
    tick_every(0);
    MUST(ticks > 500 && failures == 0);
    /* The same bytes in the end, however long it took. */
    for (int i = 0; i < 64; i++) {
        MUST(pwrite(main_fd, bytes + i * 4096, 4096, i * 4096L) == 4096);
        MUST(pwrite(handler_fd, "tock", 4, i * 4) == 4);
    }
    show_file(path);
    show_file(other_path);
}

static void on_small_tick(int signal)
{
    (void)signal;
    /* By the offset that the interrupted call moves, too. */
    failures += write(main_fd, "t", 1) != 1;
    failures += lseek(main_fd, 0, SEEK_SET) != 0;
    int fd = dup(main_fd);
    failures += fd < 0 || close(fd) != 0;
    fd = open(path, O_RDONLY);
    failures += fd < 0 || close(fd) != 0;
    ticks++;
}

/* Files that stay small are the kernel's; `managed` ones come after the handlers. */
static void handlers_on_small_files(void)
{
    main_fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    MUST(main_fd >= 0 && signal(SIGALRM, on_small_tick) == SIG_DFL);
    tick_every(300);
    double end = now() + 1.5;
    char back[100];
    while (now() < end) {
        MUST(lseek(main_fd, 0, SEEK_SET) == 0);
        MUST(write(main_fd, "main", 4) == 4);
        MUST(read(main_fd, back, sizeof back) >= 0);
        int fd = dup(main_fd);
        MUST(fd >= 0 && close(fd) == 0);
    }
    tick_every(0);
    MUST(ticks > 500 && failures == 0);
    MUST(ftruncate(main_fd, 0) == 0 && lseek(main_fd, 0, SEEK_SET) == 0);
    MUST(write(main_fd, bytes, 1000) == 1000);
    show_file(path);
    managed(other_path, 0);
    show_file(other_path);
}

static sigjmp_buf out;

static void on_jump(int signal)
{
    (void)signal;
    ticks++;
    siglongjmp(out, 1);
}

static void handlers_jump(void)
{
    int fd = managed(path, 0);
    signal(SIGALRM, on_jump);
    /* `round` and `end` live through the jumps. */
    volatile long round = 0;
    volatile double end = now() + 2;
    sigsetjmp(out, 1);
    tick_every(700);
    for (; now() < end; round++) {
        MUST(pwrite(fd, bytes, 8192, round % 30 * 8192) == 8192);
        MUST(pread(fd, bytes + 8192, 8192, round % 30 * 8192) == 8192);
    }
    tick_every(0);
    signal(SIGALRM, SIG_IGN);
    MUST(ticks > 300);
    fill(2);
    for (size_t done = 0; done < SOME; done += 10000)
        MUST(pwrite(fd, bytes + done, 10000, (off_t)done) == 10000);
    show_file(path);
}

static volatile int told, value_told, code_told;

static void on_told(int signal, siginfo_t *info, void *context)
{
    (void)context;
    told += signal == SIGUSR1;
    value_told = info->si_value.sival_int;
    code_told = info->si_code;
}

static void on_once(int signal)
{
    (void)signal;
    told += 100;
}

/* What sigaction says, and what handlers are told. */
static void handlers_as_ever(void)
{
    int fd = managed(path, 0);
    struct sigaction action = {.sa_sigaction = on_told, .sa_flags = SA_SIGINFO | SA_NODEFER}, old;
    sigaddset(&action.sa_mask, SIGUSR2);
    MUST(sigaction(SIGUSR1, &action, &old) == 0);
    printf("was default: %d\n", old.sa_handler == SIG_DFL);
    MUST(sigaction(SIGUSR1, NULL, &old) == 0);
    printf("is ours: %d, flags %x, blocks %d %d\n", old.sa_sigaction == on_told,
           (unsigned)old.sa_flags & ~0x04000000u, sigismember(&old.sa_mask, SIGUSR2),
           sigismember(&old.sa_mask, SIGUSR1));
    union sigval value = {.sival_int = 42};
    MUST(sigqueue(getpid(), SIGUSR1, value) == 0);
    printf("told %d, value %d, code %d\n", told, value_told, code_told);
    action.sa_handler = on_once;
    action.sa_flags = (int)SA_RESETHAND;
    MUST(sigaction(SIGUSR1, &action, &old) == 0);
    raise(SIGUSR1);
    MUST(sigaction(SIGUSR1, NULL, &old) == 0);
    printf("told %d, default again: %d\n", told, old.sa_handler == SIG_DFL);
    printf("signal: %d\n", signal(SIGUSR1, SIG_IGN) == SIG_DFL);
    raise(SIGUSR1);
    printf("ignored: %d\n", signal(SIGUSR1, on_once) == SIG_IGN);
    printf("number: %d\n", signal(4711, on_once) == SIG_ERR && errno == EINVAL);
    printf("kill: %d\n", signal(SIGKILL, on_once) == SIG_ERR && errno == EINVAL);
    printf("segv: %d\n", signal(SIGSEGV, on_once) == SIG_DFL);
    raise(SIGSEGV);
    printf("told %d, segv: %d\n", told, signal(SIGSEGV, SIG_DFL) == on_once);
    sysv_signal(SIGUSR1, on_once);
    raise(SIGUSR1);
    printf("told %d, default: %d\n", told, signal(SIGUSR1, SIG_DFL) == SIG_DFL);
    /* Children die of what they should die of. */
    for (int how = 0; how < 4; how++) {
        pid_t child = fork();
        if (child == 0) {
            MUST(pwrite(fd, "x", 1, 0) == 1);
            if (how == 0)
                *(volatile char *)8 = 1;
            else if (how == 1)
                raise(SIGSEGV);
            else if (how == 2)
                kill(getpid(), SIGBUS);
            else
                raise(SIGUSR1);
            _exit(7);
        }
        int status;
        MUST(waitpid(child, &status, 0) == child);
        printf("child %d: signal %d\n", how, WIFSIGNALED(status) ? WTERMSIG(status) : -1);
    }
}

/* Queued signals arrive once each and in order, at threads that write all the time. */
enum { QUEUED = 3000, WRITERS = 3 };
static struct {
    pthread_t thread;
    volatile int next, wrong, stop;
    int fd, number;
} writers[WRITERS];

static void on_queued(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    int before = errno, value = info->si_value.sival_int, i = value / QUEUED;
    writers[i].wrong += !pthread_equal(writers[i].thread, pthread_self());
    writers[i].wrong += value % QUEUED != writers[i].next++;
    writers[i].wrong += info->si_code != SI_QUEUE;
    writers[i].wrong += pwrite(writers[i].fd, &value, sizeof value, 900000 + 4 * i) != sizeof value;
    errno = before;
}

static void *write_on(void *argument)
{
    int i = (int)(intptr_t)argument;
    static char mine[WRITERS][3000];
    for (long round = 0; !writers[i].stop; round++) {
        long at = (round % 30 * WRITERS + i) * 3000;
        memset(mine[i], (int)round, sizeof mine[i]);
        errno = 77;
        writers[i].wrong += pwrite(writers[i].fd, mine[i], sizeof mine[i], at) != sizeof mine[i];
        writers[i].wrong += pread(writers[i].fd, mine[i], sizeof mine[i], at) != sizeof mine[i];
        writers[i].wrong += mine[i][round % 3000] != (char)round || errno != 77;
    }
    memset(mine[i], i, sizeof mine[i]);
    for (long round = 0; round < 30; round++)
        writers[i].wrong += pwrite(writers[i].fd, mine[i], sizeof mine[i], (round * WRITERS + i) * 3000) != sizeof mine[i];
    return NULL;
}

static void handlers_queue(void)
{
    int fd = managed(path, 0);
    struct sigaction action = {.sa_sigaction = on_queued, .sa_flags = SA_SIGINFO | SA_RESTART};
    MUST(sigaction(SIGRTMIN + 3, &action, NULL) == 0);
    /* Another one comes in between. */
    MUST(sigaction(SIGPROF, &(struct sigaction){.sa_handler = on_once, .sa_flags = SA_RESTART | SA_NODEFER}, NULL) == 0);
    struct itimerval every = {{0, 1000}, {0, 1000}};
    MUST(setitimer(ITIMER_PROF, &every, NULL) == 0);
    for (int i = 0; i < WRITERS; i++) {
        writers[i].fd = fd;
        MUST(pthread_create(&writers[i].thread, NULL, write_on, (void *)(intptr_t)i) == 0);
    }
    for (int n = 0; n < QUEUED; n++)
        for (int i = 0; i < WRITERS; i++) {
            union sigval value = {.sival_int = i * QUEUED + n};
            int failed;
            while ((failed = pthread_sigqueue(writers[i].thread, SIGRTMIN + 3, value)) == EAGAIN)
                usleep(100);
            MUST(failed == 0);
        }
    for (int i = 0; i < WRITERS; i++) {
        while (writers[i].next < QUEUED)
            usleep(1000);
        writers[i].stop = 1;
        MUST(pthread_join(writers[i].thread, NULL) == 0);
        printf("%d: %d, wrong %d\n", i, writers[i].next, writers[i].wrong);
    }
    every.it_interval.tv_usec = every.it_value.tv_usec = 0;
    MUST(setitimer(ITIMER_PROF, &every, NULL) == 0);
    MUST(told > 100);
    show_file(path);
}

/* ---- cancellation ---- */

static volatile int cancelled_fd;

static void *write_for_ever(void *argument)
{
    static char chunk[70000];
    (void)argument;
    for (long round = 0;; round++) {
        (void)!pwrite(cancelled_fd, chunk, sizeof chunk, round % 40 * 70000);
        if (round % 7 == 0)
            fdatasync(cancelled_fd);
    }
    return NULL;
}

static void *wait_for_ever(void *argument)
{
    char byte;
    (void)!read(*(int *)argument, &byte, 1);
    return NULL;
}

static void cancelled(void)
{
    cancelled_fd = managed(path, 0);
    for (int round = 0; round < 40; round++) {
        pthread_t thread;
        void *result;
        MUST(pthread_create(&thread, NULL, write_for_ever, NULL) == 0);
        usleep(2000 + (useconds_t)round * 100);
        MUST(pthread_cancel(thread) == 0);
        MUST(pthread_join(thread, &result) == 0);
        MUST(result == PTHREAD_CANCELED);
    }
    int ends[2];
    MUST(pipe(ends) == 0);
    pthread_t thread;
    void *result;
    MUST(pthread_create(&thread, NULL, wait_for_ever, &ends[0]) == 0);
    usleep(20000);
    MUST(pthread_cancel(thread) == 0);
    MUST(pthread_join(thread, &result) == 0);
    printf("waiting: %d\n", result == PTHREAD_CANCELED);
    MUST(ftruncate(cancelled_fd, 0) == 0);
    MUST(pwrite(cancelled_fd, bytes, SOME, 0) == SOME);
    show_file(path);
}

/* ---- memory that is not there ---- */

static void bad_memory(void)
{
    int fd = managed(path, 0);
    long page = 4096, len = 64 * page;
    char *memory = mmap(NULL, (size_t)len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(memory != MAP_FAILED);
    memset(memory, 'm', (size_t)len);
    MUST(mprotect(memory + 32 * page, (size_t)page, PROT_NONE) == 0);
    for (int i = 0; i < 12; i++) {
        long before[] = {0, 1, 100, 4096, 5000, 40000}, b = before[i % 6], at = i < 6 ? 2000 : 261000;
        char *from = memory + 32 * page - b;
        printf("%d: %ld", i, (long)pwrite(fd, from, 50000, at));
        printf(" %ld", (long)pread(fd, from, 50000, at));
        struct iovec parts[2] = {{bytes, 100}, {from, 6000}};
        printf(" %ld", (long)pwritev(fd, parts, 2, at + 500));
        printf(" %ld\n", (long)preadv(fd, parts, 2, at + 500));
    }
    void *volatile nowhere = NULL;
    errno = 0;
    printf("null: %ld", (long)write(fd, nowhere, 5));
    printf(", %s\n", strerror(errno));
    errno = 0;
    nowhere = (void *)0x7ffffff00000;
    MUST(lseek(fd, 0, SEEK_SET) == 0);
    printf("far: %ld", (long)read(fd, nowhere, 5));
    printf(", %s\n", strerror(errno));
    printf("offset %ld\n", (long)lseek(fd, 0, SEEK_CUR));
    int appending = open(path, O_WRONLY | O_APPEND);
    printf("append: %ld", (long)write(appending, memory + 32 * page - 10, 50));
    printf(" %ld", (long)write(appending, memory + 32 * page, 50));
    struct iovec parts[10] = {{bytes, 100}, {memory + 32 * page - 5000, 6000}, {bytes, 7}};
    printf(" %ld", (long)writev(appending, parts, 10));
    printf(" %ld", (long)writev(appending, parts + 1, 2));
    parts[0].iov_base = memory + 32 * page;
    printf(" %ld", (long)writev(appending, parts, 2));
    printf(" %ld", (long)writev(appending, (void *)(memory + 32 * page), 2));
    printf(" %ld", (long)writev(appending, parts, 5000));
    printf(" %ld", (long)preadv(fd, (void *)(memory + 33 * page - 16), 2, 0));
    printf(", %s\n", strerror(errno));
    close(appending);
    show_file(path);
}

/* ---- other programs ---- */

static void inherited(const char *how)
{
    int fd = managed(path, 0);
    char number[20];
    snprintf(number, sizeof number, "%d", fd);
    char script[100];
    snprintf(script, sizeof script, "printf inherited >&%d; exit 3", fd);
    char *arguments[] = {"sh", "-c", script, NULL};
    extern char **environ;
    int status = -1;
    if (!strcmp(how, "exec")) {
        pid_t child = fork();
        if (child == 0) {
            execl("/bin/sh", "sh", "-c", script, (char *)NULL);
            _exit(9);
        }
        MUST(waitpid(child, &status, 0) == child);
    } else if (!strcmp(how, "spawn")) {
        pid_t child;
        MUST(posix_spawn(&child, "/bin/sh", NULL, NULL, arguments, environ) == 0);
        MUST(waitpid(child, &status, 0) == child);
    } else if (!strcmp(how, "vfork")) {
        pid_t child = vfork();
        if (child == 0) {
            execve("/bin/sh", arguments, environ);
            _exit(9);
        }
        MUST(waitpid(child, &status, 0) == child);
    } else if (!strcmp(how, "system")) {
        status = system(script);
    } else {
        FILE *pipe = popen(script, "r");
        MUST(pipe);
        status = pclose(pipe);
    }
    printf("status %d, offset %ld\n", WEXITSTATUS(status), (long)lseek(fd, 0, SEEK_CUR));
    MUST(write(fd, "after", 5) == 5);
    show_file(path);
}

/* ---- the kernel's own ways ---- */

static void mapped(void)
{
    int fd = managed(path, 0);
    char *map = mmap(NULL, SOME, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    MUST(map != MAP_FAILED);
    show("map", map, SOME);
    memcpy(map + 5000, "through the map", 15);
    char back[15];
    MUST(pread(fd, back, 15, 5000) == 15);
    show("read", back, 15);
    MUST(pwrite(fd, "through the file", 16, 6000) == 16);
    show("map", map, SOME);
    MUST(munmap(map, SOME) == 0);
    int again = managed(other_path, 0);
    map = mmap(NULL, SOME, PROT_READ, MAP_PRIVATE, again, 0);
    MUST(map != MAP_FAILED);
    show("private", map, SOME);
    show_file(path);
}

static void transferred(void)
{
    int from = managed(path, 0), to = open(other_path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    off_t at = 500;
    long moved = sendfile(to, from, &at, 4000);
    printf("sendfile %ld, %ld\n", moved, (long)at);
    MUST(lseek(from, 100, SEEK_SET) == 100);
    moved = sendfile(to, from, NULL, 4000);
    printf("sendfile %ld, %ld\n", moved, (long)lseek(from, 0, SEEK_CUR));
    show_file(other_path);
    char name[4100];
    snprintf(name, sizeof name, "%s/third", directory);
    int third = managed(name, 0);
    off_t in = 0, into = 10;
    printf("copy %ld\n", (long)copy_file_range(third, &in, to, &into, 9000, 0));
    show_file(other_path);
    snprintf(name, sizeof name, "%s/fourth", directory);
    int fourth = managed(name, 0), ends[2];
    MUST(pipe(ends) == 0);
    in = 900;
    printf("splice %ld\n", (long)splice(fourth, &in, ends[1], NULL, 5000, 0));
    printf("splice %ld\n", (long)splice(ends[0], NULL, fourth, NULL, 5000, 0));
    show_file(name);
    int available = 0;
    MUST(lseek(fourth, 1000, SEEK_SET) == 1000);
    MUST(ioctl(fourth, FIONREAD, &available) == 0);
    printf("available %d, terminal %d\n", available, isatty(fourth));
}

static void by_stdio(void)
{
    int fd = managed(path, 0);
    static char back[SOME];
    FILE *file = fopen(path, "r+");
    MUST(file);
    show("fread", back, (long)fread(back, 1, SOME, file));
    MUST(fseek(file, 1234, SEEK_SET) == 0 && fputs("by stdio", file) >= 0 && fclose(file) == 0);
    MUST(pread(fd, back, 100, 1200) == 100);
    show("pread", back, 100);
    int second = managed(other_path, 0);
    int printed = dprintf(second, "number %d and %.2f\n", 5, 2.5);
    printf("dprintf %d, %ld\n", printed, (long)lseek(second, 0, SEEK_CUR));
    MUST(write(second, "after", 5) == 5);
    show_file(other_path);
    char name[4100];
    snprintf(name, sizeof name, "%s/third", directory);
    int third = managed(name, 0);
    FILE *adopted = fdopen(third, "r+");
    MUST(adopted && fputs("adopted", adopted) >= 0 && fflush(adopted) == 0);
    MUST(write(third, bytes, SOME) == SOME && write(third, bytes, SOME) == SOME);
    MUST(fputs("again", adopted) >= 0 && fclose(adopted) == 0);
    MUST(write(third, "closed", 6) == -1 && errno == EBADF);
    show_file(name);
    int next = managed(name, 0);
    printf("number again: %d\n", next == third);
    MUST(freopen(name, "a", stderr));
    fputs("appended", stderr);
    fflush(stderr);
    show_file(name);
}

static void sent(void)
{
    int fd = managed(path, 0), ends[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        /* Another process, without the library where the parent has it. */
        char number[20];
        snprintf(number, sizeof number, "%d", ends[1]);
        unsetenv("LD_PRELOAD");
        execl("/proc/self/exe", "programs", "receive", number, (char *)NULL);
        _exit(9);
    }
    char control[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec part = {"x", 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    MUST(sendmsg(ends[0], &message, 0) == 1);
    char answer[200] = {0};
    MUST(read(ends[0], answer, sizeof answer - 1) > 0);
    printf("%s, offset %ld\n", answer, (long)lseek(fd, 0, SEEK_CUR));
    MUST(waitpid(child, NULL, 0) == child);
    show_file(path);
    void *volatile nowhere = (void *)16;
    errno = 0;
    printf("bad message: %ld", (long)sendmsg(ends[0], nowhere, 0));
    printf(", %s\n", strerror(errno));
}

static void receive(int socket)
{
    int fd;
    char control[CMSG_SPACE(sizeof fd)], byte, back[1000];
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    MUST(recvmsg(socket, &message, 0) == 1);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    MUST(pread(fd, back, sizeof back, 900) == sizeof back);
    MUST(write(fd, "received", 8) == 8);
    char answer[200];
    int len = snprintf(answer, sizeof answer, "received %lu", sum_of(back, sizeof back));
    MUST(write(socket, answer, (size_t)len) == len);
}

static void count(const char *name, int whole)
{
    int fd = open(name, O_RDWR);
    for (int round = 0; round < 300; round++) {
        long counter;
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 8};
        MUST((whole ? flock(fd, LOCK_EX) : fcntl(fd, F_SETLKW, &lock)) == 0);
        MUST(pread(fd, &counter, sizeof counter, 0) == sizeof counter);
        counter++;
        MUST(pwrite(fd, &counter, sizeof counter, 0) == sizeof counter);
        lock.l_type = F_UNLCK;
        MUST((whole ? flock(fd, LOCK_UN) : fcntl(fd, F_SETLK, &lock)) == 0);
    }
}

/* Against a process without the library. */
static void locked(int whole)
{
    int fd = managed(path, O_CLOEXEC);
    long counter = 0;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 8};
    MUST((whole ? flock(fd, LOCK_EX) : fcntl(fd, F_SETLKW, &lock)) == 0);
    MUST(pwrite(fd, &counter, sizeof counter, 0) == sizeof counter);
    lock.l_type = F_UNLCK;
    MUST((whole ? flock(fd, LOCK_UN) : fcntl(fd, F_SETLK, &lock)) == 0);
    pid_t child = fork();
    if (child == 0) {
        unsetenv("LD_PRELOAD");
        execl("/proc/self/exe", "programs", whole ? "count-whole" : "count-range", path, (char *)NULL);
        _exit(9);
    }
    count(path, whole);
    int status;
    MUST(waitpid(child, &status, 0) == child && status == 0);
    MUST(pread(fd, &counter, sizeof counter, 0) == sizeof counter);
    printf("counted %ld\n", counter);
    show_file(path);
}

static void asynchronous(void)
{
    int fd = managed(path, 0);
    char back[3000];
    struct aiocb in = {.aio_fildes = fd, .aio_buf = back, .aio_nbytes = sizeof back, .aio_offset = 500};
    const struct aiocb *list[1] = {&in};
    MUST(aio_read(&in) == 0);
    while (aio_error(&in) == EINPROGRESS)
        aio_suspend(list, 1, NULL);
    show("aio_read", back, (long)aio_return(&in));
    int second = managed(other_path, 0);
    struct aiocb to = {.aio_fildes = second, .aio_buf = "by aio", .aio_nbytes = 6, .aio_offset = 2000};
    struct aiocb *both[1] = {&to};
    to.aio_lio_opcode = LIO_WRITE;
    MUST(lio_listio(LIO_WAIT, both, 1, NULL) == 0);
    MUST(pread(second, back, 100, 1950) == 100);
    show("pread", back, 100);
    show_file(other_path);
}

static void raw_calls(void)
{
    int fd = managed(path, 0);
    static char back[SOME];
    printf("pwrite %ld\n", syscall(SYS_pwrite64, fd, "raw", 3L, 700L));
    show("pread", back, syscall(SYS_pread64, fd, back, 20000L, 0L));
    MUST(syscall(SYS_lseek, fd, 10L, SEEK_SET) == 10);
    show("read", back, syscall(SYS_read, fd, back, 500L));
    struct stat stat;
    MUST(syscall(SYS_fstat, fd, &stat) == 0);
    printf("fstat %ld\n", (long)stat.st_size);
    printf("fsync %ld\n", syscall(SYS_fsync, fd));
    int second = (int)syscall(SYS_dup, fd);
    printf("write %ld\n", syscall(SYS_write, second, "dup", 3L));
    printf("offset %ld\n", syscall(SYS_lseek, fd, 0L, SEEK_CUR));
    printf("close %ld", syscall(SYS_close, fd));
    printf(", again %ld\n", syscall(SYS_close, fd));
    int ends[2];
    MUST(pipe(ends) == 0);
    printf("number again: %d\n", ends[0] == fd);
    MUST(write(ends[1], "pipe", 4) == 4 && read(ends[0], back, 10) == 4);
    MUST(syscall(SYS_openat, AT_FDCWD, path, O_RDONLY, 0) >= 0);
    printf("range %ld\n", syscall(SYS_close_range, 3L, ~0L, 0L));
    errno = 0;
    printf("closed: %d", pread(second, back, 1, 0) == -1);
    printf(", %s\n", strerror(errno));
    MUST(syscall(SYS_getpid) == getpid());
    show_file(path);
}

static void *become_nobody(void *argument)
{
    (void)argument;
    MUST(setgid(65534) == 0 && setuid(65534) == 0);
    return NULL;
}

static void other_user(void)
{
    int fd = managed(path, 0);
    if (getuid() != 0) {
        printf("not root\n");
        return;
    }
    MUST(setuid(0) == 0);
    MUST(write(fd, "root", 4) == 4);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, become_nobody, NULL) == 0);
    MUST(pthread_join(thread, NULL) == 0);
    printf("user %d\n", getuid());
    MUST(write(fd, "nobody", 6) == 6);
    static char back[SOME + 10];
    show("pread", back, (long)pread(fd, back, sizeof back, 0));
    printf("again: %d\n", open(path, O_RDWR) == -1 && errno == EACCES);
}

static void executable(void)
{
    char name[4100];
    snprintf(name, sizeof name, "%s/script", directory);
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
    MUST(fd >= 0);
    static char comment[SOME];
    memset(comment, '#', SOME);
    MUST(write(fd, "#!/bin/sh\necho executed\nexit 5\n", 31) == 31);
    for (size_t done = 0; done < SOME; done += 10000)
        MUST(write(fd, comment, 10000) == 10000);
    MUST(fchmod(fd, 0755) == 0 && close(fd) == 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        execl(name, name, (char *)NULL);
        _exit(9);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child);
    printf("status %d\n", WEXITSTATUS(status));
}

static void daemons(void)
{
    int fd = managed(path, 0), ends[2];
    MUST(pipe(ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        MUST(daemon(0, 0) == 0);
        MUST(getppid() != getpid() && getsid(0) == getpid());
        MUST(write(fd, bytes, 100000) == 100000);
        char where[100] = {0};
        MUST(getcwd(where, sizeof where));
        MUST(write(1, "unheard", 7) == 7);
        MUST(write(ends[1], where, strlen(where)) > 0);
        _exit(0);
    }
    close(ends[1]);
    char said[100] = {0};
    MUST(read(ends[0], said, sizeof said) > 0 && read(ends[0], bytes, 1) == 0);
    MUST(waitpid(child, NULL, 0) == child);
    printf("in %s, offset %ld\n", said, (long)lseek(fd, 0, SEEK_CUR));
    MUST(write(fd, "after", 5) == 5);
    show_file(path);
}

int main(int argc, char **argv)
{
    MUST(argc == 3);
    const char *what = argv[1];
    if (!strcmp(what, "receive")) {
        receive(atoi(argv[2]));
        return 0;
    }
    if (!strncmp(what, "count-", 6)) {
        count(argv[2], !strcmp(what, "count-whole"));
        return 0;
    }
    snprintf(directory, sizeof directory, "%s", argv[2]);
    snprintf(path, sizeof path, "%s/file", directory);
    snprintf(other_path, sizeof other_path, "%s/other", directory);
    if (!strcmp(what, "handlers-write"))
        handlers_write();
    else if (!strcmp(what, "handlers-jump"))
        handlers_jump();
    else if (!strcmp(what, "handlers-as-ever"))
        handlers_as_ever();
    else if (!strcmp(what, "handlers-small"))
        handlers_on_small_files();
    else if (!strcmp(what, "handlers-queue"))
        handlers_queue();
    else if (!strcmp(what, "cancelled"))
        cancelled();
    else if (!strcmp(what, "bad-memory"))
        bad_memory();
    else if (!strncmp(what, "inherited-", 10))
        inherited(what + 10);
    else if (!strcmp(what, "mapped"))
        mapped();
    else if (!strcmp(what, "transferred"))
        transferred();
    else if (!strcmp(what, "stdio"))
        by_stdio();
    else if (!strcmp(what, "sent"))
        sent();
    else if (!strncmp(what, "locked-", 7))
        locked(!strcmp(what, "locked-whole"));
    else if (!strcmp(what, "asynchronous"))
        asynchronous();
    else if (!strcmp(what, "raw-calls"))
        raw_calls();
    else if (!strcmp(what, "other-user"))
        other_user();
    else if (!strcmp(what, "daemon"))
        daemons();
    else if (!strcmp(what, "executable"))
        executable();
    else
        MUST(!"a case");
    fflush(stdout);
    return 0;
}
