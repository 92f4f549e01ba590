/* Signals, and threads that are cancelled. */
#include "programs.h"

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

void handlers_write(void)
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
    MUST(ticks > 100 && failures == 0);
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
void handlers_on_small_files(void)
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
    MUST(ticks > 100 && failures == 0);
    MUST(ftruncate(main_fd, 0) == 0 && lseek(main_fd, 0, SEEK_SET) == 0);
    MUST(write(main_fd, bytes, 1000) == 1000);
    show_file(path);
    managed(other_path, 0);
    show_file(other_path);
}

static void on_end(int signal)
{
    (void)signal;
    ticks++;
}

/* For one who goes on waiting. */
static void *give_up(void *nothing)
{
    sleep(20);
    raise(SIGKILL);
    return nothing;
}

/* A signal ends the wait for a socket that nobody reads. */
void handlers_send(void)
{
    int fd = managed(path, 0), ends[2];
    while (lseek(fd, 0, SEEK_CUR) < 4000000) {
        MUST(write(fd, bytes, SOME) == SOME);
    }
    struct sigaction action = {.sa_handler = on_end};
    MUST(sigaction(SIGALRM, &action, NULL) == 0);
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    pthread_t other;
    sigset_t alarm_only;
    MUST(sigemptyset(&alarm_only) == 0 && sigaddset(&alarm_only, SIGALRM) == 0);
    MUST(pthread_sigmask(SIG_BLOCK, &alarm_only, NULL) == 0);
    MUST(pthread_create(&other, NULL, give_up, NULL) == 0);
    MUST(pthread_sigmask(SIG_UNBLOCK, &alarm_only, NULL) == 0);
    struct itimerval once = {{0, 0}, {0, 300000}};
    off_t at = 0;
    MUST(setitimer(ITIMER_REAL, &once, NULL) == 0);
    ssize_t sent = sendfile(ends[0], fd, &at, 4000000);
    MUST(sent > 0 && sent < 4000000 && at == sent && ticks == 1);
    printf("sent\n");
}

static sigjmp_buf out;

static void on_jump(int signal)
{
    (void)signal;
    ticks++;
    siglongjmp(out, 1);
}

void handlers_jump(void)
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
    MUST(ticks > 100);
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
void handlers_as_ever(void)
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

void handlers_queue(void)
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
        /* The process's own time brings the other signal: it comes while they write on. */
        while (writers[i].next < QUEUED || told == 0)
            usleep(1000);
        writers[i].stop = 1;
        MUST(pthread_join(writers[i].thread, NULL) == 0);
        printf("%d: %d, wrong %d\n", i, writers[i].next, writers[i].wrong);
    }
    every.it_interval.tv_usec = every.it_value.tv_usec = 0;
    MUST(setitimer(ITIMER_PROF, &every, NULL) == 0);
    MUST(told > 0);
    show_file(path);
}

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

void cancelled(void)
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
