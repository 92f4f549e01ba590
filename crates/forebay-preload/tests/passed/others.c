/* Other programs, other processes, and a process that becomes another. */
#include "programs.h"

void inherited(const char *how)
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

/* A log that is opened once, that a child writes much to, and that is then moved onto a standard descriptor, here or in another child. */
void logged(const char *how)
{
    static char line[500];
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644), saved = dup(1);
    pid_t child = fork();
    MUST(fd >= 0 && child >= 0);
    if (child == 0) {
        memset(line, 'a', sizeof line);
        for (int i = 0; i < 2000; i++)
            if (write(fd, line, sizeof line) != sizeof line)
                _exit(1);
        _exit(0);
    }
    int status = -1;
    MUST(waitpid(child, &status, 0) == child && status == 0);
    if (!strcmp(how, "print-here")) {
        MUST(dup2(fd, 1) == 1 && printf("second\n") == 7 && fflush(stdout) == 0 && dup2(saved, 1) == 1);
    } else if (!strcmp(how, "put-here")) {
        MUST(close(1) == 0 && dup(fd) == 1 && puts("second") > 0 && fflush(stdout) == 0 && dup2(saved, 1) == 1);
    } else if (!strcmp(how, "vfork")) {
        child = vfork();
        if (child == 0) {
            dup2(fd, 1);
            execlp("printf", "printf", "second\n", (char *)NULL);
            _exit(9);
        }
    } else {
        child = fork();
        if (child == 0) {
            if (!strcmp(how, "fcntl")) {
                close(2);
                _exit(fcntl(fd, F_DUPFD, 2) != 2 || write(2, "second\n", 7) != 7);
            }
            dup2(fd, 1);
            if (!strcmp(how, "exec"))
                execlp("printf", "printf", "second\n", (char *)NULL);
            if (!strcmp(how, "print"))
                _exit(printf("second\n") != 7 || fflush(stdout) != 0);
            _exit(write(1, "second\n", 7) != 7);
        }
    }
    if (!strstr(how, "-here"))
        MUST(waitpid(child, &status, 0) == child && status == 0);
    printf("%s: offset %ld\n", how, (long)lseek(fd, 0, SEEK_CUR));
    MUST(write(fd, "third\n", 6) == 6);
    show_file(path);
}

static volatile int heard, shared;

static void hear(int signal)
{
    heard += signal;
}

static void limit_files(rlim_t bytes)
{
    struct rlimit limit = {bytes, RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &limit);
}

/* Children of vfork do all that a compiler's driver and Python do before they execute something; nothing of it is the
 * parent's, but its memory is. */
void vforks(void)
{
    int status, fd = open(path, O_RDWR | O_CREAT, 0644), kept = open(other_path, O_RDWR | O_CREAT, 0644);
    MUST(fd >= 0 && kept >= 0 && write(kept, "small", 5) == 5);
    signal(SIGUSR1, hear);
    extern char **environ;
    char *arguments[] = {"sh", "-c", "printf 'from the child'; kill -USR1 $$; exit 3", NULL};
    for (int round = 0; round < 3; round++) {
        pid_t child = vfork();
        if (child == 0) {
            shared++;
            signal(SIGUSR1, round == 0 ? SIG_DFL : SIG_IGN);
            limit_files(SOME / 2);
            dup2(kept, 1);
            close(kept);
            close(fd);
            MUST(open("/dev/null", O_RDWR) >= 0);
            execve("/bin/sh", arguments, environ);
            _exit(9);
        }
        MUST(waitpid(child, &status, 0) == child);
        printf("exited %d with %d, signal %d; %d shared\n", WIFEXITED(status), WEXITSTATUS(status), WTERMSIG(status), shared);
    }
    pid_t child = vfork();
    if (child == 0) {
        pid_t grandchild = vfork();
        if (grandchild == 0)
            _exit(5);
        shared = grandchild > 0 && waitpid(grandchild, &status, 0) == grandchild ? WEXITSTATUS(status) : -1;
        _exit(4);
    }
    MUST(waitpid(child, &status, 0) == child);
    printf("%d, and of the grandchild %d\n", WEXITSTATUS(status), shared);
    raise(SIGUSR1);
    printf("heard %d\n", heard);
    /* What no child has handed on is still managed once it is large enough, beyond the children's limit. */
    fill(1);
    for (size_t done = 0; done < SOME; done += 10000)
        MUST(write(fd, bytes + done, 10000) == 10000 && write(kept, bytes + done, 10000) == 10000);
    raise(SIGUSR1);
    printf("heard %d, at %ld and %ld\n", heard, (long)lseek(fd, 0, SEEK_CUR), (long)lseek(kept, 0, SEEK_CUR));
    show_file(path);
    show_file(other_path);
    /* From here on there are managed files. */
    child = vfork();
    if (child == 0) {
        close(fd);
        _exit(6);
    }
    MUST(waitpid(child, &status, 0) == child);
    printf("%d\n", WEXITSTATUS(status));
    MUST(pwrite(fd, "once more", 9, 100000) == 9);
    show_file(path);
}

void sent(void)
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

void receive(int socket)
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

void count(const char *name, int whole)
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
void locked(int whole)
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

/* Another root, and the file by its handle. */
void other_place(void)
{
    int fd = managed(path, 0);
    if (getuid() != 0) {
        printf("not root\n");
        return;
    }
    union {
        struct file_handle head;
        char room[sizeof(struct file_handle) + MAX_HANDLE_SZ];
    } handle = {.head.handle_bytes = MAX_HANDLE_SZ};
    int mount;
    MUST(name_to_handle_at(AT_FDCWD, path, &handle.head, &mount, 0) == 0);
    int base = open(directory, O_RDONLY | O_DIRECTORY), again = open_by_handle_at(base, &handle.head, O_RDONLY);
    MUST(again >= 0);
    char back[100];
    MUST(pread(again, back, sizeof back, 950) == sizeof back);
    show("by handle", back, sizeof back);
    MUST(write(fd, "before", 6) == 6);
    int second = managed(other_path, 0);
    MUST(chroot(directory) == 0 && chdir("/") == 0);
    MUST(write(second, "after", 5) == 5);
    int inside = open("/other", O_RDWR);
    MUST(inside >= 0 && pread(inside, back, sizeof back, 950) == sizeof back);
    show("in another root", back, sizeof back);
    show_file("/file");
    show_file("/other");
}

static void *become_nobody(void *argument)
{
    (void)argument;
    MUST(setgid(65534) == 0 && setuid(65534) == 0);
    return NULL;
}

void other_user(void)
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

void executable(void)
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
        printf("not executed: %s\n", strerror(errno));
        fflush(stdout);
        _exit(9);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child);
    printf("status %d\n", WEXITSTATUS(status));
}

void daemons(void)
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
