/* Files that are mapped, and ways by which they are opened. */
#include "programs.h"
#include <linux/openat2.h>
#include <sys/inotify.h>
#include <sys/vfs.h>

#define PAGE 4096L

static char name[4200];

static char *map(int fd, long len, int access, int flags)
{
    char *at = mmap(NULL, (size_t)len, access, flags, fd, 0);
    MUST(at != MAP_FAILED);
    return at;
}

/* Maps that only read see what is written later, by whomever. */
void maps_that_read(void)
{
    int fd = managed(path, 0), kinds[] = {MAP_PRIVATE, MAP_SHARED};
    for (int i = 0; i < 2; i++) {
        char *at = map(fd, SOME, PROT_READ, kinds[i]);
        show("map", at, SOME);
        MUST(pwrite(fd, "first", 5, 5000) == 5);
        show("by its own", at, SOME);
        int other = open(path, O_RDWR);
        for (long done = 0; done < SOME; done += 10000)
            MUST(pwrite(other, bytes + 100 + i, 10000, done) == 10000);
        show("by another", at, SOME);
        pid_t child = fork();
        if (child == 0) {
            int third = open(path, O_WRONLY);
            _exit(pwrite(third, "third", 5, 100000) != 5 || memcmp(at + 100000, "third", 5));
        }
        int status;
        MUST(waitpid(child, &status, 0) == child);
        printf("child %d\n", status);
        show("by a child", at, SOME);
        MUST(madvise(at, SOME, MADV_WILLNEED) == 0 && msync(at, PAGE, MS_SYNC) == 0);
        MUST(madvise(at, SOME, MADV_DONTNEED) == 0);
        show("again", at, SOME);
        MUST(munmap(at, SOME) == 0);
        close(other);
    }
    show_file(path);
}

/* What was written to a private map stays as it is, and in it. */
void maps_of_ones_own(void)
{
    int fd = managed(path, 0);
    char *at = map(fd, SOME, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    memcpy(at + 2 * PAGE, "mine", 4);
    MUST(pwrite(fd, "theirs", 6, 2 * PAGE + 10) == 6 && pwrite(fd, "theirs", 6, 9 * PAGE) == 6);
    show("private", at, SOME);
    show_file(path);
    MUST(munmap(at, SOME) == 0);
}

/* Maps move, grow, are cut and replaced; the file is written between. */
void maps_that_change(void)
{
    int fd = managed(path, 0);
    MUST(ftruncate(fd, 80 * PAGE) == 0);
    char *at = map(fd, 20 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED);
    memcpy(at + 100, "moved", 5);
    at = mremap(at, 20 * PAGE, 70 * PAGE, MREMAP_MAYMOVE);
    MUST(at != MAP_FAILED);
    memcpy(at + 60 * PAGE, "grown", 5);
    MUST(munmap(at + 10 * PAGE, 5 * PAGE) == 0);
    MUST(mmap(at + 30 * PAGE, (size_t)PAGE, PROT_READ, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == at + 30 * PAGE);
    memcpy(at + 40 * PAGE, "parts", 5);
    MUST(pwrite(fd, "by a call", 9, 3 * PAGE) == 9);
    show("head", at, 10 * PAGE);
    show("tail", at + 31 * PAGE, 39 * PAGE);
    char *twice = mremap(at, 0, 10 * PAGE, MREMAP_MAYMOVE);
    MUST(twice != MAP_FAILED && munmap(at, 70 * PAGE) == 0);
    memcpy(twice + 200, "twice", 5);
    show("twice", twice, 10 * PAGE);
    MUST(munmap(twice, 10 * PAGE) == 0);
    close(fd);
    fd = open(path, O_RDWR);
    MUST(write(fd, bytes, SOME / 2) == SOME / 2 && write(fd, bytes, 100) == 100);
    show_file(path);
}

/* What `maps_made_in_a_fork` maps once its process forks. */
static char *made;

static void make(void)
{
    if (made)
        return;
    int fd = open(path, O_RDWR);
    made = map(fd, SOME, PROT_READ | PROT_WRITE, MAP_SHARED);
    close(fd);
}

/* A handler maps a file after the library has seen the fork come. The child is the last to have the map, and another program writes the file. */
void maps_made_in_a_fork(void)
{
    int to[2], from[2], go[2], status;
    char c = 0;
    close(managed(path, 0));
    MUST(pthread_atfork(make, NULL, NULL) == 0);
    MUST(pipe2(to, O_CLOEXEC) == 0 && pipe2(from, O_CLOEXEC) == 0 && pipe2(go, O_CLOEXEC) == 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        close(go[1]), close(to[1]);
        MUST(read(go[0], &c, 1) == 1);
        int is_old = memcmp(made + 70000, "another", 7) != 0;
        memcpy(made + 70100, "stored", 6);
        MUST(munmap(made, SOME) == 0);
        _exit(is_old);
    }
    MUST(munmap(made, SOME) == 0);
    pid_t other = fork();
    if (other == 0) {
        dup2(to[0], 0), dup2(from[1], 1);
        execl("/proc/self/exe", "programs", "maps-other-side", directory, (char *)NULL);
        _exit(9);
    }
    MUST(read(from[0], &c, 1) == 1 && c == 'w' && write(go[1], "x", 1) == 1);
    MUST(waitpid(child, &status, 0) == child);
    printf("child %d\n", status);
    MUST(write(to[1], "x", 1) == 1 && read(from[0], &c, 1) == 1 && c == 'c');
    close(to[1]);
    MUST(waitpid(other, &status, 0) == other);
    printf("other %d\n", status);
    show_file(path);
}

static sigjmp_buf out;
/* Where a signal says that there is nothing. */
static volatile uintptr_t nothing;

static void jump(int signal, siginfo_t *info, void *context)
{
    (void)context;
    nothing = (uintptr_t)info->si_addr;
    siglongjmp(out, signal);
}

/* Whether a page of a map can be looked at, and what the program hears where not. */
static void look(const char *what, volatile const char *at)
{
    int signal = sigsetjmp(out, 1);
    if (signal == 0)
        printf("%s: %d\n", what, *at);
    else
        printf("%s: signal %d, %s\n", what, signal, nothing == (uintptr_t)at ? "there" : "elsewhere");
}

/* What is behind a file's end, in the page that holds it and in those that come after. */
static void look_behind(char *at, long end)
{
    long last = (end + PAGE - 1) / PAGE * PAGE;
    show("before the end", at, end);
    show("in the last page", at + end, last - end);
    for (long i = end; i < last; i++)
        MUST(at[i] == 0);
    look("the last page", at + last - 1);
    look("the next one", at + last);
    look("a later one", at + SOME - 1);
    /* The kernel's answers, also where the engine is to take the bytes. */
    int other = managed(other_path, 0);
    ssize_t done = pwrite(other, at + last, 100, 0);
    printf("written from there: %ld, %s\n", (long)done, strerror(errno));
    done = pread(other, at + last, 100, 0);
    printf("read into there: %ld, %s\n", (long)done, strerror(errno));
    close(other);
    show_file(other_path);
}

/* The other program of `maps_whose_file_is_cut`: it has the file open while its parent looks. */
void maps_other_side(void)
{
    char c = 0;
    int fd = open(path, O_RDWR);
    fill(2);
    for (long done = 0; done < 200000; done += 10000)
        MUST(pwrite(fd, bytes + done, 10000, done) == 10000);
    MUST(pwrite(fd, "another", 7, 70000) == 7);
    MUST(write(1, "w", 1) == 1 && read(0, &c, 1) == 1);
    MUST(ftruncate(fd, 80000) == 0 && pwrite(fd, "end", 3, 79990) == 3);
    MUST(write(1, "c", 1) == 1 && read(0, &c, 1) == 0);
}

/* Another program writes into a file that is mapped, and cuts it. */
void maps_whose_file_is_cut(void)
{
    struct sigaction action = {.sa_sigaction = jump, .sa_flags = SA_SIGINFO};
    MUST(sigaction(SIGBUS, &action, NULL) == 0);
    /* What an executed program inherits would be the kernel's for that. */
    int fd = managed(path, O_CLOEXEC), to[2], from[2], status;
    char *at = map(fd, SOME, PROT_READ | PROT_WRITE, MAP_SHARED), *own = map(fd, SOME, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    char c = 0;
    MUST(pipe2(to, O_CLOEXEC) == 0 && pipe2(from, O_CLOEXEC) == 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        dup2(to[0], 0), dup2(from[1], 1);
        execl("/proc/self/exe", "programs", "maps-other-side", directory, (char *)NULL);
        _exit(9);
    }
    close(to[0]), close(from[1]);
    MUST(read(from[0], &c, 1) == 1 && c == 'w');
    printf("%.7s, %.7s\n", at + 70000, own + 70000);
    show("by another", at, SOME);
    memcpy(own + 20 * PAGE, "mine", 4);
    memset(at + 18 * PAGE, 1, 9 * PAGE);
    MUST(write(to[1], "x", 1) == 1 && read(from[0], &c, 1) == 1 && c == 'c');
    look_behind(at, 80000);
    close(to[1]);
    MUST(waitpid(child, &status, 0) == child);
    printf("child %d\n", status);
    look("private", own + 79999);
    look("private, behind", own + 80000);
    look("private, its own", own + 20 * PAGE);
    /* Stores behind the end are in no file, and what comes later lies over them. */
    memset(at + 80000, 2, 20 * PAGE - 80000);
    show_file(path);
    MUST(ftruncate(fd, 90000) == 0);
    show("longer", at, 90000);
    show_file(path);
    MUST(ftruncate(fd, 8191) == 0);
    look_behind(at, 8191);
    MUST(munmap(at, SOME) == 0 && munmap(own, SOME) == 0 && close(fd) == 0);
    /* What was in the maps is nothing of the file's that the engine has now. */
    fd = open(path, O_RDWR);
    MUST(pwrite(fd, "far", 3, 200000) == 3);
    for (long done = 0; done < 100000; done += 10000)
        MUST(pwrite(fd, bytes, 10000, 20000 + done) == 10000);
    show_file(path);
}

static long open_how(const char *what, long flags, long resolve)
{
    struct open_how how = {.flags = (unsigned long)flags, .resolve = (unsigned long)resolve};
    if (flags & O_CREAT)
        how.mode = 0644;
    int dir = open(directory, O_PATH | O_DIRECTORY);
    long fd = syscall(SYS_openat2, dir, what, &how, sizeof how);
    printf("openat2 %s: %s\n", what, fd < 0 ? strerror(errno) : "open");
    close(dir);
    return fd;
}

void opened_in_other_ways(void)
{
    int fd = managed(path, 0);
    MUST(lseek(fd, 777, SEEK_SET) == 777);
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    int again = open(name, O_RDWR);
    printf("again at %ld\n", (long)lseek(again, 0, SEEK_CUR));
    MUST(pwrite(again, "again", 5, 10) == 5);
    int names = open(path, O_PATH);
    snprintf(name, sizeof name, "/proc/self/fd/%d", names);
    int named = open(name, O_RDWR | O_APPEND);
    MUST(write(named, "named", 5) == 5);
    printf("a name only: %ld\n", (long)read(names, name, 1));
    show_file(path);
    long how = open_how("file", O_RDWR, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS);
    MUST(pwrite((int)how, "beneath", 7, 50) == 7 && pread(fd, name, 7, 50) == 7);
    printf("%.7s\n", name);
    open_how("../file", O_RDWR, RESOLVE_BENEATH);
    open_how("file", O_RDWR | O_DIRECTORY, 0);
    open_how("none", O_RDWR, 0);
    long cut = open_how("file", O_RDWR | O_TRUNC, 0);
    printf("cut to %ld\n", (long)lseek(fd, 0, SEEK_END));
    for (int i = 0; i < 10; i++)
        MUST(write((int)cut, bytes, 20000) == 20000);
    printf("%ld\n", (long)lseek(fd, 0, SEEK_END));
    show_file(path);
}

/* A file without a name that gets one, while it is written. */
void made_without_a_name(void)
{
    int fd = open(directory, O_TMPFILE | O_RDWR, 0644);
    MUST(fd >= 0);
    fill(3);
    MUST(write(fd, bytes, SOME) == SOME);
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    MUST(linkat(AT_FDCWD, name, AT_FDCWD, other_path, AT_SYMLINK_FOLLOW) == 0);
    int other = open(other_path, O_RDWR);
    for (int i = 0; i < 10; i++)
        MUST(write(other, bytes + i, 30000) == 30000);
    MUST(pwrite(fd, "unnamed", 7, 1000) == 7 && pwrite(other, "named", 5, 2000) == 5);
    char seen[8] = "";
    MUST(pread(other, seen, 7, 1000) == 7);
    printf("%s\n", seen);
    MUST(pread(fd, seen, 5, 2000) == 5);
    printf("%s\n", seen);
    show_file(other_path);
    FILE *temporary = tmpfile();
    MUST(temporary && fwrite(bytes, 1, SOME, temporary) == SOME && fseek(temporary, 1000, SEEK_SET) == 0);
    static char back[SOME];
    show("temporary", back, (long)fread(back, 1, SOME, temporary));
    MUST(fclose(temporary) == 0);
    managed(path, 0);
}

/* Who watches a file hears of each write. */
void watched(void)
{
    int fd = managed(path, 0), queue = inotify_init1(IN_NONBLOCK);
    MUST(queue >= 0 && inotify_add_watch(queue, path, IN_MODIFY) >= 0);
    char events[4096];
    printf("nothing: %ld\n", (long)read(queue, events, sizeof events));
    for (int i = 0; i < 3; i++) {
        MUST(pwrite(fd, "change", 6, 10 * i) == 6);
        printf("changed: %ld\n", (long)read(queue, events, sizeof events));
    }
    close(fd);
    fd = open(path, O_WRONLY | O_APPEND);
    int reader = open(path, O_RDONLY);
    MUST(write(fd, bytes, 100000) == 100000 && write(fd, bytes, 100000) == 100000);
    printf("appended: %ld\n", (long)read(queue, events, sizeof events));
    close(reader);
    show_file(path);
}

/* Descriptors of other processes. */
void taken(void)
{
    int ends[2];
    MUST(pipe(ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        int fd = managed(path, 0);
        MUST(write(ends[1], &fd, sizeof fd) == sizeof fd);
        char back[6] = "";
        do
            MUST(pread(fd, back, 5, 4000) == 5);
        while (memcmp(back, "taken", 5));
        MUST(pwrite(fd, "given", 5, 5000) == 5 && write(ends[1], "x", 1) == 1);
        _exit(0);
    }
    int number, status;
    MUST(read(ends[0], &number, sizeof number) == sizeof number);
    int process = (int)syscall(SYS_pidfd_open, child, 0);
    int fd = (int)syscall(SYS_pidfd_getfd, process, number, 0);
    MUST(process >= 0 && fd >= 0);
    printf("at %ld of %ld\n", (long)lseek(fd, 0, SEEK_CUR), (long)lseek(fd, 0, SEEK_END));
    MUST(pwrite(fd, "taken", 5, 4000) == 5);
    char back[6] = "";
    MUST(read(ends[0], back, 1) == 1 && pread(fd, back, 5, 5000) == 5);
    printf("%s\n", back);
    MUST(waitpid(child, &status, 0) == child);
    printf("%d\n", status);
    show_file(path);
}
