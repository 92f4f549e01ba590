/* What a child or a relative does with a description that this process has open as well: bytes come one after the other. */
#include "programs.h"

/* Another side: writes to a descriptor that it has inherited, once it is told to. */
void write_to(int number)
{
    char told;
    MUST(read(0, &told, 1) == 1);
    MUST(write(number, "inherited", 9) == 9);
}

/* A small file that the child of a vfork hands to a program without the library at this number. It grows meanwhile. */
static void hand_over(int number)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644), ends[2], status;
    char words[20];
    snprintf(words, sizeof words, "%d", number);
    MUST(fd >= 0 && write(fd, "small", 5) == 5 && pipe(ends) == 0);
    unsetenv("LD_PRELOAD");
    fflush(stdout);
    pid_t child = vfork();
    if (child == 0) {
        if (dup2(ends[0], 0) == 0 && close(ends[1]) == 0 && dup2(fd, number) == number)
            execl("/proc/self/exe", "programs", "write-to", words, (char *)NULL);
        _exit(9);
    }
    close(ends[0]);
    fill(1);
    for (size_t done = 0; done < SOME; done += 10000)
        MUST(write(fd, bytes + done, 10000) == 10000);
    MUST(write(ends[1], "\n", 1) == 1);
    MUST(waitpid(child, &status, 0) == child);
    printf("%d, offset %ld\n", status, (long)lseek(fd, 0, SEEK_CUR));
    MUST(write(fd, "after", 5) == 5);
    show_file(path);
    close(fd);
    /* From here on a vfork is a fork. */
    managed(other_path, 0);
}

void handed_as_standard(void)
{
    hand_over(1);
}

void handed_by_number(void)
{
    hand_over(40);
}

static int ends[2];

/* A child, whose parent closes the file first. */
static int write_late(void *argument)
{
    char end;
    close(ends[1]);
    return read(ends[0], &end, 1) != 0 || write((int)(intptr_t)argument, "CHILD", 5) != 5;
}

/* Children that no fork of libc's makes. */
void closed_before_children(void)
{
    static char stack[1 << 16];
    struct clone_args structure = {.exit_signal = SIGCHLD};
    for (int way = 0; way < 5; way++) {
        int fd = managed(path, 0), terminal = -1, status;
        MUST(pipe(ends) == 0);
        fflush(stdout);
        pid_t child = -1;
        if (way == 0)
            child = clone(write_late, stack + sizeof stack, SIGCHLD, (void *)(intptr_t)fd);
        else if (way == 1)
            child = forkpty(&terminal, NULL, NULL, NULL);
        else if (way == 2)
            child = (pid_t)syscall(SYS_fork);
        else if (way == 3)
            child = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
        else
            child = (pid_t)syscall(SYS_clone3, &structure, sizeof structure);
        if (child == 0)
            _exit(write_late((void *)(intptr_t)fd));
        MUST(child > 0);
        close(fd);
        /* What it had is another file's. */
        fd = managed(other_path, 0);
        close(ends[0]), close(ends[1]);
        MUST(waitpid(child, &status, 0) == child);
        printf("way %d: %d\n", way, status);
        show_file(path);
        MUST(write(fd, "after", 5) == 5 && close(fd) == 0);
        show_file(other_path);
        close(terminal);
    }
}

/* The terminal of a child by forkpty, and what the parent gets of it. */
void at_a_terminal(void)
{
    int terminal = -1, status;
    char name[100] = "", said[100];
    struct winsize size = {.ws_row = 7, .ws_col = 9}, is = {0};
    fflush(stdout);
    managed(path, 0);
    pid_t child = forkpty(&terminal, name, NULL, &size);
    if (child == 0) {
        ioctl(0, TIOCGWINSZ, &is);
        dprintf(1, "%d %d %d", isatty(0) && isatty(2), is.ws_row, getsid(0) == getpid() && tcgetpgrp(0) == getpid());
        _exit(fcntl(3, F_GETFD) == -1 ? 5 : 6);
    }
    MUST(child > 0);
    ssize_t len = read(terminal, said, sizeof said - 1);
    said[len > 0 ? len : 0] = 0;
    MUST(waitpid(child, &status, 0) == child);
    printf("%s, %d, named %d\n", said, WEXITSTATUS(status), strncmp(name, "/dev/", 5) == 0);
    show_file(path);
}

static int take(pid_t from, int number)
{
    int process = (int)syscall(SYS_pidfd_open, from, 0), fd = (int)syscall(SYS_pidfd_getfd, process, number, 0);
    close(process);
    return fd;
}

/* A descriptor that is taken is where the one is that it was taken from. */
void taken_where_it_is(void)
{
    int fd = managed(path, 0), again = take(getpid(), fd);
    printf("of this process: %ld\n", (long)lseek(again, 0, SEEK_CUR));
    MUST(write(again, "taken", 5) == 5 && write(fd, "after", 5) == 5);
    show_file(path);
    close(fd), close(again);
    fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    MUST(write(fd, "small", 5) == 5 && (again = take(getpid(), fd)) >= 0);
    fill(2);
    for (size_t done = 0; done < SOME; done += 10000)
        MUST(write(fd, bytes + done, 10000) == 10000);
    MUST(write(again, "taken", 5) == 5 && write(fd, "after", 5) == 5);
    show_file(path);
    close(fd), close(again);
}

/* The same, of a relative, which has opened the file after they were parted. `small`: it grows only after that. */
static void take_from_a_relative(int small)
{
    int numbers[2], answers[2], number, status;
    MUST(pipe(numbers) == 0 && pipe(answers) == 0);
    fflush(stdout);
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        MUST(read(numbers[0], &number, sizeof number) == sizeof number);
        int fd = take(parent, number);
        int is_there = lseek(fd, 0, SEEK_CUR) == (small ? 5 : SOME);
        MUST(small || write(fd, "taken", 5) == 5);
        MUST(write(answers[1], "x", 1) == 1 && read(numbers[0], &number, sizeof number) == sizeof number);
        MUST(!small || write(fd, "taken", 5) == 5);
        _exit(!is_there);
    }
    char byte;
    int fd = small ? open(other_path, O_RDWR | O_CREAT | O_TRUNC, 0644) : managed(other_path, 0);
    MUST(!small || write(fd, "small", 5) == 5);
    MUST(write(numbers[1], &fd, sizeof fd) == sizeof fd && read(answers[0], &byte, 1) == 1);
    for (size_t done = 0; done < SOME; done += 10000)
        MUST(write(fd, bytes + done, 10000) == 10000);
    MUST(write(numbers[1], &fd, sizeof fd) == sizeof fd && waitpid(child, &status, 0) == child);
    printf("small %d: %d\n", small, status);
    MUST(write(fd, "after", 5) == 5);
    show_file(other_path);
    close(fd);
}

void taken_from_relatives(void)
{
    /* Relatives are those who are forked by a process that has opened a file. */
    close(managed(path, 0));
    take_from_a_relative(0);
    take_from_a_relative(1);
    managed(path, 0);
}

/* Asked by the library as it starts: who has no right to raise a limit has one that was raised since. */
int getrlimit(__rlimit_resource_t resource, struct rlimit *limit)
{
    int failed = getrlimit64(resource, (struct rlimit64 *)limit);
    if (resource == RLIMIT_NOFILE && getenv("WAS_RAISED"))
        limit->rlim_cur = limit->rlim_max = 1024;
    return failed;
}

/* Descriptors of numbers that nobody could have when the program began. */
void duplicated_beyond(int is_there)
{
    if (!is_there) {
        setenv("WAS_RAISED", "1", 1);
        fflush(stdout);
        execl("/proc/self/exe", "programs", "duplicated-there", directory, (char *)NULL);
        _exit(9);
    }
    struct rlimit limit = {4096, 4096};
    MUST(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    for (int way = 0; way < 3; way++) {
        int fd = managed(path, 0), to = 2000 + way;
        if (way == 0)
            to = fcntl(fd, F_DUPFD, to);
        else
            MUST((way == 1 ? dup2(fd, to) : dup3(fd, to, O_CLOEXEC)) == to);
        printf("at %ld\n", (long)lseek(to, 0, SEEK_CUR));
        MUST(write(to, "beyond", 6) == 6 && write(fd, "after", 5) == 5);
        show_file(path);
        close(fd), close(to);
        fd = open(other_path, O_RDWR | O_CREAT | O_TRUNC, 0644);
        MUST(write(fd, "small", 5) == 5 && (way ? dup2(fd, to) : fcntl(fd, F_DUPFD, to)) == to);
        for (size_t done = 0; done < SOME; done += 10000)
            MUST(write(fd, bytes + done, 10000) == 10000);
        MUST(write(to, "beyond", 6) == 6 && write(fd, "after", 5) == 5);
        show_file(other_path);
        close(fd), close(to);
    }
}
