/* Bytes that one call moves, flags of calls, and what is said of space. */
#include "programs.h"
#include <linux/close_range.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <stdarg.h>

static void say(const char *what, long result)
{
    int number = errno;
    printf("%s: %ld%s%s\n", what, result, result < 0 ? ", " : "", result < 0 ? strerror(number) : "");
}

static char name[4200];

static int another(int flags)
{
    static int count;
    snprintf(name, sizeof name, "%s/another-%d", directory, count++);
    return managed(name, flags);
}

void moved_by_sendfile(void)
{
    static char back[2 * SOME];
    int from = managed(path, 0), to = another(0), ends[2];
    off_t at = 500;
    say("to a file", sendfile(to, from, &at, 100000));
    printf("%ld, %ld\n", (long)at, (long)lseek(to, 0, SEEK_CUR));
    MUST(lseek(from, 290000, SEEK_SET) == 290000);
    say("to the end", sendfile(to, from, NULL, 100000));
    say("beyond", sendfile(to, from, NULL, 100000));
    printf("%ld, %ld\n", (long)lseek(from, 0, SEEK_CUR), (long)lseek(to, 0, SEEK_CUR));
    show_file(name);
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    at = 10;
    pid_t child = fork();
    if (child == 0) {
        long len = 0, n;
        close(ends[0]);
        while ((n = read(ends[1], back + len, sizeof back - (size_t)len)) > 0)
            len += n;
        show("socket", back, len);
        fflush(stdout);
        _exit(0);
    }
    say("to a socket", sendfile(ends[0], from, &at, SOME));
    close(ends[0]);
    close(ends[1]);
    MUST(waitpid(child, NULL, 0) == child);
    MUST(pipe2(ends, O_NONBLOCK) == 0);
    at = 0;
    say("to a pipe", sendfile(ends[1], from, &at, SOME) > 0);
    printf("as much %d\n", at > 0 && at == read(ends[0], back, sizeof back));
    show("pipe", back, 4096);
    int appends = open(name, O_WRONLY | O_APPEND), reads = open(name, O_RDONLY), writes = open(path, O_WRONLY);
    at = -5;
    say("negative", sendfile(to, from, &at, 10));
    at = 0;
    say("appending", sendfile(appends, from, &at, 10));
    say("not writable", sendfile(reads, from, &at, 10));
    say("not readable", sendfile(to, writes, &at, 10));
    say("no file", sendfile(99, from, &at, 10));
    say("bad memory", sendfile(to, from, (void *)8, 10));
    say("nothing", sendfile(to, from, &at, 0));
    show_file(path);
}

void moved_by_copying(void)
{
    int from = managed(path, 0), to = another(0);
    off_t in = 100, out = 5000;
    say("both given", copy_file_range(from, &in, to, &out, 200000, 0));
    printf("%ld, %ld\n", (long)in, (long)out);
    MUST(lseek(from, 1000, SEEK_SET) == 1000);
    say("one given", copy_file_range(from, NULL, to, &out, 1000000, 0));
    printf("%ld, %ld, %ld\n", (long)lseek(from, 0, SEEK_CUR), (long)lseek(to, 0, SEEK_CUR), (long)out);
    say("at the end", copy_file_range(from, NULL, to, NULL, 1000, 0));
    MUST(lseek(from, 0, SEEK_SET) == 0 && lseek(to, 700000, SEEK_SET) == 700000);
    say("none given", copy_file_range(from, NULL, to, NULL, 1000, 0));
    in = 0, out = 100000;
    say("within a file", copy_file_range(from, &in, from, &out, 50000, 0));
    in = 0, out = 10;
    say("onto itself", copy_file_range(from, &in, from, &out, 50000, 0));
    in = 290000, out = 310000;
    say("the rest onto itself", copy_file_range(from, &in, from, &out, 50000, 0));
    int appends = open(path, O_WRONLY | O_APPEND), ends[2];
    MUST(pipe(ends) == 0);
    in = out = 0;
    say("flags", copy_file_range(from, &in, to, &out, 10, 1));
    say("appending", copy_file_range(to, &in, appends, &out, 10, 0));
    say("a pipe", copy_file_range(from, &in, ends[1], NULL, 10, 0));
    in = -1;
    say("negative", copy_file_range(from, &in, to, &out, 10, 0));
    in = 0x7fffffffffffff00;
    say("far", copy_file_range(from, &in, to, &out, 1000, 0));
    say("bad memory", copy_file_range(from, (void *)8, to, &out, 1000, 0));
    show_file(path);
    show_file(name);
    /* A file that is not managed. */
    snprintf(name, sizeof name, "%s/small", directory);
    int small = open(name, O_RDWR | O_CREAT, 0644);
    MUST(small >= 0 && write(small, "small", 5) == 5);
    in = 0, out = 20;
    say("from a small one", copy_file_range(small, &in, to, &out, 10, 0));
    in = 1000, out = 3;
    say("to a small one", copy_file_range(from, &in, small, &out, 10000, 0));
    show_file(name);
}

static volatile int exceeded;

static void on_exceeding(int signal)
{
    (void)signal;
    exceeded++;
}

static void say_limited(const char *what, long result)
{
    say(what, result);
    printf("signals: %d\n", exceeded);
    exceeded = 0;
}

/* Up to the limit on the size of files: a copy is shortened and says so, what is sent is signalled. */
void moved_to_the_limit(void)
{
    int from = managed(path, 0), to = another(0), beside = open(name, O_RDWR), ends[2];
    struct rlimit limit = {SOME + 1000, RLIM_INFINITY};
    loff_t in = 0, out = SOME - 5000;
    signal(SIGXFSZ, on_exceeding);
    MUST(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    say_limited("up to it", copy_file_range(from, &in, to, &out, 200000, 0));
    printf("%ld, %ld\n", (long)in, (long)out);
    say_limited("at it", copy_file_range(from, &in, to, &out, 200000, 0));
    say_limited("nothing at it", copy_file_range(from, &in, to, &out, 0, 0));
    printf("%ld, %ld\n", (long)in, (long)out);
    MUST(lseek(to, SOME + 500, SEEK_SET) > 0 && lseek(from, 77, SEEK_SET) == 77);
    say_limited("at its offset", copy_file_range(from, NULL, to, NULL, 200000, 0));
    say_limited("again", copy_file_range(from, NULL, to, NULL, 200000, 0));
    printf("%ld, %ld\n", (long)lseek(from, 0, SEEK_CUR), (long)lseek(to, 0, SEEK_CUR));
    MUST(lseek(to, 0, SEEK_SET) == 0);
    say_limited("far below", copy_file_range(from, NULL, to, NULL, 2000, 0));
    in = 500, out = SOME;
    say_limited("within a file", copy_file_range(from, &in, from, &out, 2000, 0));
    MUST(lseek(beside, SOME + 600, SEEK_SET) > 0 && pipe(ends) == 0);
    say_limited("sent", sendfile(beside, from, NULL, 2000));
    MUST(write(ends[1], bytes, 2000) == 2000);
    out = SOME + 700;
    say_limited("spliced", splice(ends[0], NULL, to, &out, 2000, 0));
    printf("%ld\n", (long)out);
    show_file(path);
    show_file(name);
}

/* Flags of calls on parts. */
void moved_with_flags(void)
{
    static char back[SOME];
    int fd = managed(path, 0);
    struct iovec two[2] = {{"one", 3}, {"two", 3}}, in = {back, 50000};
    MUST(lseek(fd, 77, SEEK_SET) == 77);
    say("append", pwritev2(fd, two, 2, 10, RWF_APPEND));
    printf("%ld\n", (long)lseek(fd, 0, SEEK_CUR));
    say("append here", pwritev2(fd, two, 2, -1, RWF_APPEND));
    printf("%ld\n", (long)lseek(fd, 0, SEEK_CUR));
    say("sync", pwritev2(fd, two, 2, 20, RWF_DSYNC));
    say("sync all", pwritev2(fd, two, 2, 30, RWF_SYNC));
    say("written", sync_file_range(fd, 0, 1000, SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER));
    say("to the end", sync_file_range(fd, 1000, 0, SYNC_FILE_RANGE_WRITE));
    say("not asked for", sync_file_range(fd, 0, 1000, 0));
    say("before the file", sync_file_range(fd, -1, 10, SYNC_FILE_RANGE_WRITE));
    say("less than nothing", sync_file_range(fd, 10, -1, SYNC_FILE_RANGE_WRITE));
    say("beyond all files", sync_file_range(fd, 10, INT64_MAX, SYNC_FILE_RANGE_WRITE));
    say("other flags", sync_file_range(fd, 0, 10, 8));
    say("no descriptor", sync_file_range(99, -1, 10, 8));
    long at_once = preadv2(fd, &in, 1, 100, RWF_NOWAIT);
    printf("at once %d\n", at_once == 50000 || (at_once == -1 && errno == EAGAIN));
    say("what is there", preadv2(fd, &in, 1, 100, 0));
    show("read", back, 50000);
    say("the end", preadv2(fd, &in, 1, 400000, RWF_NOWAIT));
    MUST(lseek(fd, SOME - 10, SEEK_SET) > 0);
    say("the rest", preadv2(fd, &in, 1, -1, RWF_NOWAIT));
    printf("%ld\n", (long)lseek(fd, 0, SEEK_CUR));
    int available = 0;
    MUST(lseek(fd, 1000, SEEK_SET) == 1000 && ioctl(fd, FIONREAD, &available) == 0);
    printf("available %d\n", available);
    say("nowhere", ioctl(fd, FIONREAD, (void *)8));
    show_file(path);
}

void moved_space(void)
{
    int fd = managed(path, 0);
    say("zeros", fallocate(fd, FALLOC_FL_ZERO_RANGE, 5000, 70000));
    say("zeros beyond", fallocate(fd, FALLOC_FL_ZERO_RANGE, 290000, 50000));
    printf("%ld\n", (long)lseek(fd, 0, SEEK_END));
    say("kept", fallocate(fd, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, 339000, 50000));
    printf("%ld\n", (long)lseek(fd, 0, SEEK_END));
    say("hole", fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 131072, 65536));
    say("data", lseek(fd, 140000, SEEK_DATA));
    say("hole", lseek(fd, 100000, SEEK_HOLE));
    say("data at the end", lseek(fd, 500000, SEEK_DATA));
    show_file(path);
}

/* Parts of a file that are taken out and put in. */
void moved_parts(void)
{
    int fd = managed(path, 0);
    say("taken out", fallocate(fd, FALLOC_FL_COLLAPSE_RANGE, 65536, 131072));
    say("put in", fallocate(fd, FALLOC_FL_INSERT_RANGE, 32768, 65536));
    say("not whole", fallocate(fd, FALLOC_FL_COLLAPSE_RANGE, 5, 131072));
    printf("%ld\n", (long)lseek(fd, 0, SEEK_CUR));
    MUST(pwrite(fd, "after", 5, 65530) == 5);
    show_file(path);
}

/* A descriptor table that becomes the caller's own. */
void unshared(void)
{
    int fd = managed(path, 0), other = another(0);
    MUST(close_range(other, other, CLOSE_RANGE_UNSHARE) == 0);
    MUST(write(other, "x", 1) == -1 && errno == EBADF);
    MUST(close_range(other + 1, ~0U, CLOSE_RANGE_UNSHARE) == 0);
    MUST(pwrite(fd, "still here", 10, 0) == 10);
    say("write", write(fd, bytes, SOME));
    MUST(fsync(fd) == 0);
    say("again", write(managed(other_path, 0), bytes, 1000));
    MUST(close_range(3, ~0U, CLOSE_RANGE_UNSHARE) == 0);
    MUST(write(fd, "x", 1) == -1 && errno == EBADF);
    show_file(path);
    show_file(other_path);
}

/* Between files and pipes. */
void moved_by_splicing(void)
{
    static char back[2 * SOME];
    int fd = managed(path, 0), to = another(0), ends[2], more[2];
    signal(SIGPIPE, SIG_IGN);
    MUST(pipe2(ends, O_NONBLOCK) == 0 && pipe2(more, O_NONBLOCK) == 0);
    loff_t at = 900, into = 7;
    say("nothing there", splice(ends[0], NULL, fd, NULL, 1000, SPLICE_F_NONBLOCK));
    say("to a pipe", splice(fd, &at, ends[1], NULL, 5000, 0));
    printf("%ld\n", (long)at);
    say("copied", tee(ends[0], more[1], 3000, 0));
    say("from a pipe", splice(ends[0], NULL, to, &into, 100000, 0));
    printf("%ld, %ld\n", (long)into, (long)lseek(to, 0, SEEK_CUR));
    MUST(lseek(to, 100, SEEK_SET) == 100);
    say("at its offset", splice(more[0], NULL, to, NULL, 2000, 0));
    say("the rest", splice(more[0], NULL, to, NULL, 2000, SPLICE_F_MOVE | SPLICE_F_MORE));
    printf("%ld\n", (long)lseek(to, 0, SEEK_CUR));
    MUST(lseek(fd, SOME - 100, SEEK_SET) > 0);
    say("the end", splice(fd, NULL, ends[1], NULL, 5000, 0));
    say("beyond", splice(fd, NULL, ends[1], NULL, 5000, 0));
    printf("%ld\n", (long)lseek(fd, 0, SEEK_CUR));
    struct iovec part = {bytes, 50000};
    say("memory", vmsplice(ends[1], &part, 1, 0));
    into = 400000;
    long moved = 0, n;
    while ((n = splice(ends[0], NULL, to, &into, 70000, SPLICE_F_NONBLOCK)) > 0)
        moved += n;
    printf("%ld, %ld\n", moved, (long)into);
    at = 0;
    moved = 0;
    while ((n = splice(fd, &at, ends[1], NULL, SOME, SPLICE_F_NONBLOCK)) > 0)
        moved += n;
    say("full", n);
    printf("as much %d\n", moved == at && moved == read(ends[0], back, sizeof back));
    show("pipe", back, 60000);
    int appends = open(name, O_WRONLY | O_APPEND), reads = open(name, O_RDONLY), writes = open(path, O_WRONLY);
    MUST(write(ends[1], "left", 4) == 4);
    say("appending", splice(ends[0], NULL, appends, NULL, 10, 0));
    say("not writable", splice(ends[0], NULL, reads, NULL, 10, 0));
    say("not readable", splice(writes, NULL, ends[1], NULL, 10, 0));
    at = 5;
    say("an offset of a pipe", splice(ends[0], &at, to, NULL, 10, 0));
    say("an offset of a pipe", splice(fd, NULL, ends[1], &at, 10, 0));
    say("two files", splice(fd, NULL, to, NULL, 10, 0));
    say("flags", splice(fd, NULL, ends[1], NULL, 10, 64));
    at = -1;
    say("negative", splice(fd, &at, ends[1], NULL, 10, 0));
    say("bad memory", splice(fd, (void *)8, ends[1], NULL, 10, 0));
    say("no file", splice(99, NULL, to, NULL, 10, 0));
    say("nothing", splice(fd, NULL, ends[1], NULL, 0, 0));
    say("what was left", splice(ends[0], NULL, to, NULL, 10, 0));
    close(ends[1]);
    say("ended", splice(ends[0], NULL, to, NULL, 10, 0));
    close(more[0]);
    at = 0;
    say("nobody reads", splice(fd, &at, more[1], NULL, 10, 0));
    show_file(path);
    show_file(name);
}

/* Room for `len` bytes in a full pipe, or so many bytes in an empty one, after a while. */
static void later(int ends[2], int makes_room, size_t len)
{
    static char some[2 * SOME];
    if (fork() != 0)
        return;
    usleep(200000);
    if (makes_room)
        MUST(read(ends[0], some, len) == (long)len);
    else
        MUST(write(ends[1], some, len) == (long)len);
    _exit(0);
}

static void fill_up(int pipe)
{
    int room = fcntl(pipe, F_GETPIPE_SZ);
    MUST(room > 0 && room <= SOME && write(pipe, bytes, (size_t)room) == room);
}

/* Pipes whose ends wait: for the first room or the first bytes, and for no more. */
void moved_through_pipes(void)
{
    static char back[2 * SOME];
    int fd = managed(path, 0), to = another(0), ends[2];
    off_t at = 0;
    loff_t from = 0;
    alarm(60);
    MUST(pipe(ends) == 0);
    int room = fcntl(ends[1], F_GETPIPE_SZ);
    printf("sent what fits: %d", sendfile(ends[1], fd, &at, 1 << 20) == room);
    printf(", %ld\n", (long)at);
    show("pipe", back, read(ends[0], back, sizeof back));
    printf("spliced what fits: %d", splice(fd, &from, ends[1], NULL, 1 << 20, 0) == room);
    printf(", %ld\n", (long)from);
    show("pipe", back, read(ends[0], back, sizeof back));
    MUST(lseek(fd, SOME - 5000, SEEK_SET) > 0);
    say("the end", sendfile(ends[1], fd, NULL, 1 << 20));
    say("beyond", sendfile(ends[1], fd, NULL, 1 << 20));
    printf("%ld\n", (long)lseek(fd, 0, SEEK_CUR));
    show("pipe", back, read(ends[0], back, sizeof back));
    fill_up(ends[1]);
    later(ends, 1, 4096);
    say("sent to a full one", sendfile(ends[1], fd, &at, 1 << 20));
    later(ends, 1, 4096);
    say("spliced to a full one", splice(fd, &from, ends[1], NULL, 1 << 20, 0));
    say("not waited for", splice(fd, &from, ends[1], NULL, 1 << 20, SPLICE_F_NONBLOCK));
    printf("%ld, %ld\n", (long)at, (long)from);
    show("pipe", back, read(ends[0], back, sizeof back));
    later(ends, 0, 3000);
    say("spliced from an empty one", splice(ends[0], NULL, to, NULL, 1 << 20, 0));
    MUST(fcntl(ends[1], F_SETPIPE_SZ, 1 << 18) == 1 << 18);
    at = 0;
    printf("sent to a large one: %d\n", sendfile(ends[1], fd, &at, 1 << 20) > 1 << 16);
    printf("as much: %d\n", at == read(ends[0], back, sizeof back));
    while (wait(NULL) > 0)
        continue;
    show_file(name);
}

extern int __dprintf_chk(int fd, int flag, const char *format, ...);

static int print_list(int fd, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int printed = vdprintf(fd, format, list);
    va_end(list);
    return printed;
}

/* Formatted, through a descriptor. */
void moved_by_printing(void)
{
    int fd = managed(path, 0);
    say("printed", dprintf(fd, "%d %s %.3f\n", 5, "five", 5.5));
    say("many", dprintf(fd, "%d %d %d %d %d %d %d %g %g %g %g %g %g %g %g %g %g\n", 1, 2, 3, 4, 5, 6, 7, .1, .2, .3, .4,
                        .5, .6, .7, .8, .9, 1.));
    say("checked", __dprintf_chk(fd, 1, "%s %d %d %d %d %d %g\n", "checked", 1, 2, 3, 4, 5, 6.5));
    say("a list", print_list(fd, "%5d|%-8s|%Lf\n", 7, "list", 2.5L));
    errno = ENOENT;
    say("an error", dprintf(fd, "%m\n"));
    say("a long one", dprintf(fd, "%*d and %s\n", 100000, 1, "after"));
    int before = 0;
    say("a count", dprintf(fd, "123456%n7\n", &before));
    printf("%d, %ld\n", before, (long)lseek(fd, 0, SEEK_CUR));
    say("nothing", dprintf(fd, "%s", ""));
    int reads = open(path, O_RDONLY), appends = open(path, O_WRONLY | O_APPEND);
    say("not writable", dprintf(reads, "some"));
    say("at the end", dprintf(appends, "%s\n", "the end"));
    show_file(path);
}

/* Clones share the source's bytes of then. */
void moved_by_cloning(void)
{
    int fd = managed(path, 0), to = another(0);
    int cloned = ioctl(to, FICLONE, fd);
    printf("clone %d\n", cloned);
    struct file_clone_range range = {.src_fd = fd, .src_offset = 65536, .src_length = 65536, .dest_offset = 131072};
    printf("range %d\n", ioctl(to, FICLONERANGE, &range));
    MUST(pwrite(fd, "later", 5, 70000) == 5 && pwrite(to, "other", 5, 140000) == 5);
    show_file(path);
    show_file(name);
    MUST(ioctl(to, FICLONE, 99) == -1 && errno == EBADF);
    MUST(pwrite(fd, "last", 4, 0) == 4);
    show_file(path);
}

/* Flags that are rare, or none. */
void moved_with_odd_flags(void)
{
    static char back[SOME];
    int fd = managed(path, 0), appends = open(path, O_RDWR | O_APPEND);
    struct iovec one = {"one", 3}, in = {back, 50000};
    say("not cached", pwritev2(fd, &one, 1, 100, 0x80));
    say("read so", preadv2(fd, &in, 1, 100, 0x80));
    say("not at the end", pwritev2(appends, &one, 1, 10, 0x20));
    say("at the end", pwritev2(appends, &one, 1, 10, 0));
    say("both", pwritev2(appends, &one, 1, 10, 0x20 | RWF_APPEND));
    say("whole or not", pwritev2(fd, &one, 1, 10, 0x40));
    say("none", pwritev2(fd, &one, 1, 10, 0x4000));
    say("none to read", preadv2(fd, &in, 1, 10, 0x4000));
    say("not to read", preadv2(fd, &in, 1, 10, RWF_APPEND));
    MUST(write(appends, "after", 5) == 5 && pwrite(fd, "after", 5, 20) == 5);
    show_file(path);
}
