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
