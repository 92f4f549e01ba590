/* Shared mappings that only read, of files that nobody writes at first. */
#include "programs.h"

#define PAGE 4096L
#define PAGES (SOME / PAGE + 1)

static int written(const char *name)
{
    int fd = managed(name, 0);
    MUST(fdatasync(fd) == 0 && close(fd) == 0);
    fd = open(name, O_RDONLY);
    MUST(fd >= 0);
    return fd;
}

static char *map_part(void *at, int fd, long len, int flags, long offset)
{
    char *map = mmap(at, (size_t)len, PROT_READ, MAP_SHARED | flags, fd, offset);
    MUST(map != MAP_FAILED);
    return map;
}

static char *map(int fd)
{
    return map_part(NULL, fd, SOME, 0, 0);
}

/* Whether the arena's memory is mapped at an address. */
static int is_view(const char *at)
{
    char line[5000];
    FILE *maps = fopen("/proc/self/maps", "r");
    int is = 0;
    while (fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        MUST(sscanf(line, "%lx-%lx", &from, &to) == 2);
        if ((unsigned long)at >= from && (unsigned long)at < to)
            is = strstr(line, "/dev/shm/") != NULL;
    }
    fclose(maps);
    return is;
}

static void must_be_view(const char *what, const char *at, int is)
{
    int should = is && getenv("LD_PRELOAD");
    printf("%s: %s\n", what, is_view(at) == should ? "as it should be" : is ? "not from memory" : "from memory still");
}

/* Another process that does what it is told, each step before the answer. */
static int to_other[2], from_other[2];
static pid_t other;

static void serve(void)
{
    struct { char what; char text[15]; long at; } step;
    int fd = -1;
    while (read(to_other[0], &step, sizeof step) == sizeof step) {
        int done = 0;
        switch (step.what) {
        case 'o': fd = open(path, O_RDWR), done = fd >= 0; break;
        case 'O': done = (fd = open(path, O_RDWR | O_TRUNC)) >= 0; break;
        case 'w': done = pwrite(fd, step.text, strlen(step.text), step.at) == (long)strlen(step.text); break;
        case 't': done = ftruncate(fd, step.at) == 0; break;
        case 'T': done = truncate(path, step.at) == 0; break;
        case 'p': done = fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, step.at, 10 * PAGE) == 0; break;
        case 'c': done = close(fd) == 0; break;
        }
        MUST(done);
        MUST(write(from_other[1], "", 1) == 1);
    }
    _exit(0);
}

static void begin_other(void)
{
    MUST(pipe(to_other) == 0 && pipe(from_other) == 0);
    fflush(stdout);
    other = fork();
    if (other == 0) {
        close(to_other[1]), close(from_other[0]);
        serve();
    }
    close(to_other[0]), close(from_other[1]);
}

static void tell(char what, const char *text, long at)
{
    struct { char what; char text[15]; long at; } step = {.what = what, .at = at};
    char answer;
    strcpy(step.text, text);
    MUST(write(to_other[1], &step, sizeof step) == sizeof step);
    MUST(read(from_other[0], &answer, 1) == 1);
}

static void end_other(void)
{
    int status;
    close(to_other[1]);
    MUST(waitpid(other, &status, 0) == other);
    printf("the other: %d\n", status);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Nobody writes: what is in memory is shown, and cannot be changed by it. */
void live_is_read(void)
{
    int fd = written(path);
    char *at = map(fd), *again = map(fd);
    must_be_view("map", at, 1);
    show("map", at, PAGES * PAGE);
    MUST(munmap(again, SOME) == 0);
    char *part = map_part(NULL, fd, 3 * PAGE, MAP_POPULATE, 63 * PAGE);
    show("across blocks", part, 3 * PAGE);
    char *end = map_part(NULL, fd, PAGE, 0, (PAGES - 1) * PAGE);
    must_be_view("the last page", end, 1);
    show("the last page", end, PAGE);
    errno = 0;
    printf("to be written: %d, %d\n", mprotect(at, PAGE, PROT_READ | PROT_WRITE), errno == EACCES);
    errno = 0;
    printf("remove: %d, %d\n", madvise(at, SOME, MADV_REMOVE), errno == EACCES);
    MUST(madvise(at, SOME, MADV_DONTNEED) == 0 && msync(at, PAGE, MS_SYNC) == 0);
    MUST(mprotect(at + 5 * PAGE, PAGE, PROT_NONE) == 0 && mprotect(at + 5 * PAGE, PAGE, PROT_READ) == 0);
    close(fd);
    MUST(unlink(path) == 0);
    show("unlinked", at, PAGES * PAGE);
    fd = managed(other_path, 0);
    for (int i = 0; i < 300; i++)
        MUST(pwrite(fd, bytes, SOME, 0) == SOME);
    close(fd);
    show("later", at, PAGES * PAGE);
    show("later", part, 3 * PAGE);
    MUST(munmap(at, 5 * PAGE) == 0 && munmap(at + 20 * PAGE, 10 * PAGE) == 0);
    show("cut", at + 30 * PAGE, (PAGES - 30) * PAGE);
    managed(path, 0);
}

/* Another process of the session comes to write, cut and punch. */
void live_shows_writes(void)
{
    begin_other();
    for (int round = 0; round < 12; round++) {
        int fd = written(path);
        char *at = map(fd), *part = map_part(NULL, fd, 5 * PAGE, 0, 7 * PAGE);
        MUST(mprotect(at + 3 * PAGE, PAGE, PROT_NONE) == 0);
        must_be_view("map", at, 1);
        must_be_view("part", part, 1);
        if (round % 2)
            close(fd);
        if (round % 3 == 0)
            tell('T', "", 250000);
        double begun = now();
        tell(round % 4 == 3 ? 'O' : 'o', "", 0);
        MUST(now() - begun < 20);
        must_be_view("opened", at, 0);
        if (round % 4 == 3)
            tell('t', "", 200000);
        must_be_view("opened", at + 4 * PAGE, 0);
        must_be_view("opened", part, 0);
        for (int i = 0; i < 5; i++) {
            tell('w', "written", 30000 + 4000 * i);
            printf("%.7s %.7s\n", at + 30000 + 4000 * i, part + 30000 + 4000 * i - 7 * PAGE);
        }
        tell('w', "at the end", 310000);
        tell('p', "", 40 * PAGE);
        MUST(mprotect(at + 3 * PAGE, PAGE, PROT_READ) == 0);
        show("all", at, SOME);
        tell('t', "", 10 * PAGE);
        show("cut", at, 10 * PAGE);
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            signal(SIGBUS, _exit);
            _exit(at[20 * PAGE] == 0);
        }
        int status;
        MUST(waitpid(child, &status, 0) == child);
        printf("beyond: %d\n", status);
        tell('c', "", 0);
        MUST(munmap(at, SOME) == 0 && munmap(part, 5 * PAGE) == 0);
        if (round % 2 == 0)
            close(fd);
    }
    end_other();
    show_file(path);
    managed(path, 0);
}

/* A program without the library comes. */
void live_shows_outsiders(void)
{
    int fd = written(path);
    char *at = map(fd), command[5000];
    must_be_view("map", at, 1);
    snprintf(command, sizeof command, "unset LD_PRELOAD; printf outside | dd of='%s' conv=notrunc bs=1 seek=50000 2>/dev/null", path);
    double begun = now();
    char *const arguments[] = {"sh", "-c", command, NULL};
    pid_t child;
    int status;
    MUST(posix_spawn(&child, "/bin/sh", NULL, NULL, arguments, environ) == 0);
    MUST(waitpid(child, &status, 0) == child);
    MUST(now() - begun < 20);
    printf("%d %.7s\n", status, at + 50000);
    must_be_view("written", at, 0);
    show("all", at, SOME);
    managed(other_path, 0);
}

/* The process itself comes to write, by another descriptor; and asks for less than before, and for more. */
void live_is_cut(void)
{
    int fd = written(path);
    char *at = map(fd), *all = at;
    MUST(munmap(at, 5 * PAGE) == 0 && munmap(at + 20 * PAGE, 10 * PAGE) == 0);
    MUST(mmap(at + 40 * PAGE, 2 * PAGE, PROT_READ, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == at + 40 * PAGE);
    MUST(map_part(at + 6 * PAGE, fd, 2 * PAGE, MAP_FIXED, 10 * PAGE) == at + 6 * PAGE);
    char *room = mmap(NULL, 100 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *moved = mremap(at + 30 * PAGE, 8 * PAGE, 8 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, room + 3 * PAGE);
    MUST(moved == room + 3 * PAGE);
    must_be_view("another part", at + 6 * PAGE, 1);
    must_be_view("moved", moved, 1);
    void *refused = mmap(at + 10 * PAGE, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0);
    printf("no place: %d\n", refused == MAP_FAILED && errno == EEXIST);
    char *twice = mremap(at + 10 * PAGE, 0, 5 * PAGE, MREMAP_MAYMOVE);
    MUST(twice != MAP_FAILED);
    int writer = open(path, O_RDWR);
    MUST(writer >= 0);
    for (long done = 0; done < SOME; done += 3000)
        MUST(pwrite(writer, "by itself", 9, done) == 9);
    show("stayed", at + 5 * PAGE, PAGE);
    show("another part", at + 6 * PAGE, 2 * PAGE);
    show("stayed", at + 8 * PAGE, 12 * PAGE);
    show("moved", moved, 8 * PAGE);
    show("twice", twice, 5 * PAGE);
    show("replaced", at + 40 * PAGE, 2 * PAGE);
    show("stayed", at + 42 * PAGE, (PAGES - 42) * PAGE);
    close(writer), close(fd);
    fd = written(path);
    at = map_part(NULL, fd, 10 * PAGE, 0, 0);
    at = mremap(at, 10 * PAGE, 70 * PAGE, MREMAP_MAYMOVE);
    MUST(at != MAP_FAILED);
    show("grown", at, 70 * PAGE);
    MUST(munmap(at, 70 * PAGE) == 0 && munmap(room, 100 * PAGE) == 0 && munmap(twice, 5 * PAGE) == 0 && munmap(all, SOME) == 0);
    close(fd);
    fd = written(path);
    at = map(fd);
    must_be_view("map", at, 1);
    double begun = now();
    writer = open(path, O_WRONLY | O_TRUNC);
    MUST(writer >= 0 && now() - begun < 20);
    MUST(write(writer, bytes + 5, 100000) == 100000);
    show("anew", at, 100000);
    MUST(munmap(at, SOME) == 0);
    close(writer), close(fd);
    fd = written(path);
    at = map(fd);
    must_be_view("map", at, 1);
    MUST(truncate(path, 70000) == 0 && now() - begun < 20);
    show("cut", at, 70000);
    MUST(munmap(at, SOME) == 0);
    close(fd);
    fd = written(path);
    at = map(fd);
    must_be_view("map", at, 1);
    FILE *stream = fopen(path, "r+");
    MUST(stream && fseek(stream, 50000, SEEK_SET) == 0 && fputs("by stdio", stream) >= 0 && fflush(stream) == 0);
    show("by stdio", at, SOME);
    fclose(stream);
    managed(other_path, 0);
}

/* Children have what their parent has, and see what is written. */
void live_is_inherited(void)
{
    begin_other();
    int fd = written(path), ends[2];
    char *at = map(fd), c;
    must_be_view("map", at, 1);
    MUST(pipe(ends) == 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        close(ends[1]);
        MUST(read(ends[0], &c, 1) == 0);
        _exit(memcmp(at + 70000, "later", 5) != 0);
    }
    tell('o', "", 0);
    tell('w', "later", 70000);
    printf("%.5s\n", at + 70000);
    close(ends[0]), close(ends[1]);
    int status;
    MUST(waitpid(child, &status, 0) == child);
    printf("child %d\n", status);
    end_other();
    managed(other_path, 0);
}

/* Nobody waits for who is dead, and locks stay when a mapping goes. */
void live_is_left(void)
{
    int ends[2], fd, status;
    MUST(pipe(ends) == 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        char *at = map(written(path));
        char is = (char)is_view(at);
        MUST(write(ends[1], &is, 1) == 1);
        for (;;)
            pause();
    }
    char is = 9;
    MUST(read(ends[0], &is, 1) == 1);
    printf("a view: %d\n", is == (getenv("LD_PRELOAD") != NULL));
    MUST(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
    double begun = now();
    fd = open(path, O_RDWR);
    MUST(fd >= 0 && now() - begun < 20);
    close(fd);
    fd = written(path);
    char *at = map(fd);
    must_be_view("map", at, 1);
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 10};
    MUST(fcntl(fd, F_SETLK, &lock) == 0);
    show("locked", at, SOME);
    MUST(munmap(at, SOME) == 0);
    fflush(stdout);
    if ((child = fork()) == 0) {
        fd = open(path, O_RDWR);
        lock.l_type = F_WRLCK;
        _exit(fcntl(fd, F_SETLK, &lock) == 0 ? 1 : errno == EAGAIN || errno == EACCES ? 0 : 2);
    }
    MUST(waitpid(child, &status, 0) == child);
    printf("locked still: %d\n", status);
    managed(other_path, 0);
}

/* Threads that come and go, and a main thread that ends first. */
static void *last(void *at)
{
    usleep(300000);
    show("the last thread", at, SOME);
    fflush(stdout);
    return NULL;
}

void live_ends_with_threads(void)
{
    int fd = written(path);
    for (int i = 0; i < 300; i++) {
        char *at = map(fd);
        MUST(at[1000] == 'd' && munmap(at, SOME) == 0);
    }
    char *at = map(fd);
    must_be_view("map", at, 1);
    managed(other_path, 0);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, last, at) == 0);
    pthread_exit(NULL);
}

/* Who leaves the session sees what is written as before. */
void live_stays_with_who_leaves(void)
{
    begin_other();
    int fd = written(path);
    char *at = map(fd);
    must_be_view("map", at, 1);
    close(fd);
    printf("elsewhere: %d\n", chroot("/there is none"));
    must_be_view("map", at, 0);
    tell('o', "", 0);
    tell('w', "later", 70000);
    show("map", at, SOME);
    end_other();
}

static unsigned long long state;

static unsigned chance(unsigned below)
{
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (unsigned)(state >> 33) % below;
}

enum { ROOM = 100, NONE = -1 };

/* Steps in any order, of this process and the other. */
void live_at_random(void)
{
    begin_other();
    int views = 0;
    for (int round = 0; round < 25; round++) {
        state = (unsigned long long)round * 91 + 3;
        /* Which page of the file is at which place. */
        int of[ROOM], is_open = 0;
        for (int i = 0; i < ROOM; i++)
            of[i] = NONE;
        char *room = mmap(NULL, ROOM * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), text[15];
        int fd = written(path);
        unsigned long sum = 0;
        for (int step = 0; step < 150; step++) {
            int page = (int)chance(ROOM), count = 1 + (int)chance(20), from = (int)chance((unsigned)PAGES - 20);
            if (page + count > ROOM)
                count = ROOM - page;
            switch (chance(step < 30 ? 4 : 9)) {
            case 0 ... 1:
                map_part(room + page * PAGE, fd, count * PAGE, MAP_FIXED, from * PAGE);
                for (int i = 0; i < count; i++)
                    of[page + i] = from + i;
                break;
            case 2:
                MUST(mmap(room + page * PAGE, count * PAGE, PROT_NONE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
                for (int i = 0; i < count; i++)
                    of[page + i] = NONE;
                break;
            case 3:
                if (of[page] != NONE) {
                    MUST(mprotect(room + page * PAGE, PAGE, PROT_NONE) == 0);
                    MUST(mprotect(room + page * PAGE, PAGE, PROT_READ) == 0);
                }
                break;
            case 4:
                if (chance(4) == 0) {
                    tell(is_open ? 'c' : 'o', "", 0);
                    is_open = !is_open;
                }
                break;
            default:
                if (is_open) {
                    snprintf(text, sizeof text, "step %d", step);
                    tell('w', text, chance(SOME - 20));
                }
            }
            for (int i = 0; i < ROOM; i++)
                if (of[i] != NONE) {
                    static char page_of[PAGE];
                    memset(page_of, 0, PAGE);
                    pread(fd, page_of, PAGE, of[i] * PAGE);
                    MUST(memcmp(room + i * PAGE, page_of, PAGE) == 0);
                    sum = sum * 31 + sum_of(room + i * PAGE, PAGE);
                }
            views += step == 20 && is_view(room + page * PAGE);
        }
        printf("round %d: %lx\n", round, sum);
        if (is_open)
            tell('c', "", 0);
        MUST(munmap(room, ROOM * PAGE) == 0 && close(fd) == 0);
    }
    printf("views: %d\n", (views > 3) == (getenv("LD_PRELOAD") != NULL));
    end_other();
    managed(other_path, 0);
}

/* What a writer has written before is seen, whenever it comes and whoever maps and unmaps the file meanwhile. */
static struct shared {
    _Atomic long published, stop, views, wrong;
} *shared;

#define PLACE (37 * PAGE + 8)

static void *look(void *unused)
{
    (void)unused;
    while (!shared->stop) {
        int fd = open(path, O_RDONLY);
        MUST(fd >= 0);
        char *at = map(fd);
        /* A mapping of the kernel's keeps the other thread from having one of memory. */
        int is = is_view(at), looks = is || !getenv("LD_PRELOAD") ? 1000 : 50;
        shared->views += is;
        for (int i = 0; i < looks; i++) {
            long before = shared->published;
            shared->wrong += *(volatile long *)(at + PLACE) < before;
            if (i % 100 == 0)
                usleep(100);
        }
        MUST(munmap(at, SOME) == 0 && close(fd) == 0);
        usleep(3000);
    }
    return NULL;
}

void live_races(void)
{
    shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    memset(bytes, 0, SOME);
    int fd = managed(path, 0);
    long n = 0;
    MUST(pwrite(fd, &n, sizeof n, PLACE) == sizeof n && fdatasync(fd) == 0 && close(fd) == 0);
    fflush(stdout);
    pid_t writer = fork();
    if (writer == 0) {
        for (n = 1; n <= 100; n++) {
            fd = open(path, O_RDWR);
            MUST(fd >= 0);
            *(long *)(bytes + PLACE) = n - 1;
            for (long done = 0; done < SOME; done += 10000)
                MUST(pwrite(fd, bytes + done, 10000, done) == 10000);
            MUST(pwrite(fd, &n, sizeof n, PLACE) == sizeof n);
            shared->published = n;
            MUST(fdatasync(fd) == 0 && close(fd) == 0);
            usleep((useconds_t)(n * 7919 % 30000));
        }
        shared->stop = 1;
        _exit(0);
    }
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        MUST(pthread_create(threads + i, NULL, look, NULL) == 0);
    for (int i = 0; i < 2; i++)
        MUST(pthread_join(threads[i], NULL) == 0);
    int status;
    MUST(waitpid(writer, &status, 0) == writer);
    printf("the writer: %d, old bytes seen: %ld, views: %d\n", status, shared->wrong, (shared->views > 0) == (getenv("LD_PRELOAD") != NULL));
    managed(other_path, 0);
    MUST(unlink(path) == 0);
}
