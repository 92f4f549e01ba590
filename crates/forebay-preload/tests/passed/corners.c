/* Blocked faults, threads that are cancelled at any instruction, faults that are sent, and small files that others inherit. */
#include "programs.h"

static void bad_pointers(int fd)
{
    void *volatile nowhere = (void *)16;
    char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(page != MAP_FAILED && mprotect(page + 4096, 4096, PROT_NONE) == 0);
    errno = 0;
    printf("write %ld", (long)pwrite(fd, nowhere, 100, 0));
    printf(" %s", strerror(errno));
    errno = 0;
    printf(", read %ld", (long)pread(fd, nowhere, 100, 0));
    printf(" %s", strerror(errno));
    printf(", part %ld", (long)pwrite(fd, page, 8192, 0));
    struct iovec *volatile parts = (void *)(page + 4096);
    errno = 0;
    printf(", parts %ld", (long)preadv(fd, parts, 2, 0));
    printf(" %s\n", strerror(errno));
}

static void *in_a_thread(void *fd)
{
    bad_pointers(*(int *)fd);
    return NULL;
}

static volatile int heard;

static void on_fault(int signal)
{
    heard = signal;
}

static int handler_fd;

static void on_signal(int signal)
{
    (void)signal;
    bad_pointers(handler_fd);
}

/* A bad pointer is an error also where the signal of a fault is blocked. */
void blocked_faults(void)
{
    int fd = managed(path, 0);
    bad_pointers(fd);
    sigset_t all, before, now;
    sigfillset(&all);
    MUST(pthread_sigmask(SIG_BLOCK, &all, &before) == 0);
    bad_pointers(fd);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, in_a_thread, &fd) == 0 && pthread_join(thread, NULL) == 0);
    pid_t child = fork();
    if (child == 0) {
        bad_pointers(fd);
        fflush(stdout);
        _exit(0);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child && status == 0);
    MUST(pthread_sigmask(SIG_SETMASK, NULL, &now) == 0);
    printf("still blocked: %d %d\n", sigismember(&now, SIGSEGV), sigismember(&now, SIGBUS));
    /* What is sent waits. */
    MUST(signal(SIGSEGV, on_fault) != SIG_ERR);
    MUST(raise(SIGSEGV) == 0);
    for (int round = 0; round < 10; round++)
        MUST(pwrite(fd, bytes, 1000, round * 1000) == 1000);
    printf("heard %d\n", heard);
    MUST(sigprocmask(SIG_SETMASK, &before, NULL) == 0);
    printf("heard %d\n", heard);
    MUST(signal(SIGSEGV, SIG_DFL) != SIG_ERR);
    /* Blocked while a handler runs, and by the oldest of calls. */
    handler_fd = fd;
    struct sigaction action = {.sa_handler = on_signal};
    sigfillset(&action.sa_mask);
    MUST(sigaction(SIGUSR1, &action, NULL) == 0 && raise(SIGUSR1) == 0);
    bad_pointers(fd);
    MUST(sighold(SIGSEGV) == 0);
    bad_pointers(fd);
    MUST(sigrelse(SIGSEGV) == 0);
    bad_pointers(fd);
    show_file(path);
}

static volatile int shared_fd;

static void *write_at_any_time(void *argument)
{
    static char chunk[3000];
    int before;
    MUST(pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &before) == 0);
    if (argument)
        MUST(lseek(shared_fd, 0, SEEK_SET) == 0);
    for (long round = 0;; round++) {
        if (argument)
            (void)!write(shared_fd, chunk, sizeof chunk);
        else
            (void)!pwrite(shared_fd, chunk, sizeof chunk, round % 90 * 3000);
    }
    return NULL;
}

/* Whatever instruction it was at: nobody waits for what the thread had. */
void cancelled_at_any_time(void)
{
    shared_fd = managed(path, 0);
    for (int round = 0; round < 300; round++) {
        pthread_t thread;
        void *result;
        MUST(pthread_create(&thread, NULL, write_at_any_time, round % 2 ? path : NULL) == 0);
        usleep(200 + (useconds_t)round * 7);
        MUST(pthread_cancel(thread) == 0);
        MUST(pthread_join(thread, &result) == 0);
        MUST(result == PTHREAD_CANCELED);
    }
    MUST(ftruncate(shared_fd, 0) == 0);
    MUST(pwrite(shared_fd, bytes, SOME, 0) == SOME);
    MUST(lseek(shared_fd, 0, SEEK_SET) == 0);
    MUST(write(shared_fd, "end", 3) == 3);
    close(shared_fd);
    show_file(path);
}

static sigjmp_buf out;
static volatile int jumps;

static void jump_out(int signal)
{
    (void)signal;
    jumps++;
    siglongjmp(out, 1);
}

static pthread_t jumper;
static volatile int ready, enough;

static void *send_faults(void *argument)
{
    (void)argument;
    while (!ready)
        usleep(20);
    for (int round = 0; round < 2000; round++) {
        int seen = jumps;
        MUST(pthread_kill(jumper, SIGSEGV) == 0);
        while (jumps == seen)
            usleep(20);
    }
    enough = 1;
    return NULL;
}

/* Signals of faults that are none, with a handler that jumps out. */
void sent_faults(void)
{
    int fd = managed(path, 0);
    MUST(signal(SIGSEGV, jump_out) != SIG_ERR);
    jumper = pthread_self();
    pthread_t sender;
    MUST(pthread_create(&sender, NULL, send_faults, NULL) == 0);
    if (sigsetjmp(out, 1) == 0)
        ready = 1;
    while (!enough) {
        MUST(pwrite(fd, bytes, 5000, 5000) == 5000);
        MUST(lseek(fd, 0, SEEK_SET) == 0);
        MUST(write(fd, bytes, 5000) == 5000);
    }
    MUST(pthread_join(sender, NULL) == 0);
    printf("jumped %d\n", jumps);
    MUST(pwrite(fd, bytes, SOME, 0) == SOME);
    close(fd);
    show_file(path);
}

/* A small file that a program without the library writes to as well. */
void inherited_small(void)
{
    managed(other_path, 0);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644), ends[2];
    MUST(fd >= 0 && write(fd, "small", 5) == 5 && pipe(ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        char script[100];
        snprintf(script, sizeof script, "read x; printf inherited >&%d", fd);
        MUST(dup2(ends[0], 0) == 0 && close(ends[1]) == 0);
        unsetenv("LD_PRELOAD");
        execl("/bin/sh", "sh", "-c", script, (char *)NULL);
        _exit(9);
    }
    close(ends[0]);
    for (size_t done = 0; done < SOME; done += 10000)
        MUST(write(fd, bytes + done, 10000) == 10000);
    MUST(write(ends[1], "\n", 1) == 1);
    int status;
    MUST(waitpid(child, &status, 0) == child && status == 0);
    printf("offset %ld\n", (long)lseek(fd, 0, SEEK_CUR));
    MUST(write(fd, "after", 5) == 5);
    show_file(path);
}

/* The space of a file with holes, while bytes of it are in memory alone: as little as it has. */
void space_of_holes(void)
{
    int fd = managed(path, 0);
    struct stat stat;
    MUST(ftruncate(fd, 1L << 34) == 0);
    for (int i = 1; i < 4; i++)
        MUST(pwrite(fd, bytes, 4096, (long)i << 30) == 4096);
    MUST(fstat(fd, &stat) == 0);
    /* In sectors; some may be reserved beside. */
    printf("size %ld, little space: %d, some: %d\n", (long)stat.st_size, stat.st_blocks < 64 << 11, stat.st_blocks > 0);
    fprintf(stderr, "%ld sectors\n", (long)stat.st_blocks);
    MUST(ftruncate(fd, SOME) == 0);
    close(fd);
    show_file(path);
}

static sigjmp_buf over;

static void jumps_over(int signal)
{
    (void)signal;
    siglongjmp(over, 1);
}

/* A handler runs while a read of a file of the kernel's waits, though such a file says that it is a plain one. */
void kernel_files_wait(void)
{
    close(managed(path, 0));
    int fd = open("/proc/kmsg", O_RDONLY);
    if (fd >= 0) {
        signal(SIGALRM, jumps_over);
        if (sigsetjmp(over, 1) == 0) {
            alarm(1);
            while (read(fd, bytes, SOME) > 0)
                continue;
        }
        close(fd);
    }
    printf("over\n");
}
