/* Private mappings of files that nobody writes, while their bytes are in memory. */
#include "programs.h"

#define PAGE 4096L
#define PAGES (SOME / PAGE + 1)

/* A file that has been written and closed, opened again. What is synced is written past the kernel's cache, and stays in the session's memory. */
static int written(const char *name)
{
    int fd = managed(name, 0);
    MUST(fdatasync(fd) == 0 && close(fd) == 0);
    fd = open(name, O_RDONLY);
    MUST(fd >= 0);
    return fd;
}

static char *map_at(void *at, int fd, long len, int access, int flags, long offset)
{
    char *map = mmap(at, (size_t)len, access, MAP_PRIVATE | flags, fd, offset);
    MUST(map != MAP_FAILED);
    return map;
}

static char *map(int fd, long len, int access)
{
    return map_at(NULL, fd, len, access, 0, 0);
}

/* What the whole file reads like, zeros after its end. */
static void show_all(const char *what, const char *at)
{
    show(what, at, PAGES * PAGE);
}

/* Writes so much that frames which have become free are used again. */
static void use_memory(int seed)
{
    fill(seed);
    int fd = open(other_path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    for (long done = 0; done < 90000000; done += 60000)
        MUST(write(fd, bytes + done % 200000, 60000) == 60000);
    MUST(ftruncate(fd, SOME) == 0 && close(fd) == 0);
}

/* A child's answer to whether a map still is what it was. */
static int has_changed(const char *at)
{
    fill(1);
    memcpy(bytes + 1000, "dirty", 5);
    return memcmp(at, bytes, SOME) != 0;
}

static void await(pid_t child)
{
    int status;
    MUST(waitpid(child, &status, 0) == child);
    printf("child %d\n", status);
}

void views_are_read(void)
{
    int fd = written(path);
    char *at = map(fd, SOME, PROT_READ), *again = map(fd, SOME, PROT_READ);
    show_all("map", at);
    MUST(munmap(again, SOME) == 0);
    char *part = map_at(NULL, fd, 3 * PAGE, PROT_READ, MAP_POPULATE, 63 * PAGE);
    show("across blocks", part, 3 * PAGE);
    char *end = map_at(NULL, fd, PAGE, PROT_READ | PROT_WRITE, 0, (PAGES - 1) * PAGE);
    show("the last page", end, PAGE);
    close(fd);
    show_all("closed", at);
    MUST(unlink(path) == 0);
    show_all("unlinked", at);
    use_memory(3);
    show_all("later", at);
    show("later", part, 3 * PAGE);
    MUST(madvise(at, SOME, MADV_DONTNEED) == 0 && msync(at, PAGE, MS_ASYNC) == 0);
    show_all("again", at);
}

/* Stores into a map are its own. */
void views_are_written(void)
{
    int fd = written(path);
    char *at = map(fd, SOME, PROT_READ | PROT_WRITE), *read_only = map(fd, SOME, PROT_READ);
    for (long page = 0; page < PAGES; page += 3)
        memcpy(at + page * PAGE + 100, "stored", 6);
    at[PAGES * PAGE - 1] = 1;
    show_all("stored", at);
    show_all("not stored", read_only);
    show_file(path);
    MUST(mprotect(read_only, PAGE, PROT_READ | PROT_WRITE) == 0);
    memcpy(read_only + 10, "stored", 6);
    show_all("allowed", read_only);
    MUST(madvise(at, SOME, MADV_DONTNEED) == 0);
    show_all("dropped", at);
    show_file(path);
    errno = 0;
    printf("remove: %d\n", madvise(at, SOME, MADV_REMOVE));
    show_file(path);
}

/* Maps are cut, moved, replaced. */
void views_are_cut(void)
{
    int fd = written(path);
    char *at = map(fd, SOME, PROT_READ | PROT_WRITE);
    MUST(munmap(at, 5 * PAGE) == 0 && munmap(at + 20 * PAGE, 10 * PAGE) == 0);
    show("between", at + 5 * PAGE, 15 * PAGE);
    show("after", at + 30 * PAGE, (PAGES - 30) * PAGE);
    MUST(mmap(at + 40 * PAGE, 2 * PAGE, PROT_READ, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == at + 40 * PAGE);
    show("replaced", at + 30 * PAGE, (PAGES - 30) * PAGE);
    MUST(map_at(at + 6 * PAGE, fd, 2 * PAGE, PROT_READ, MAP_FIXED, 10 * PAGE) == at + 6 * PAGE);
    show("by another part", at + 5 * PAGE, 15 * PAGE);
    char *moved = mremap(at + 30 * PAGE, 10 * PAGE, 8 * PAGE, MREMAP_MAYMOVE);
    MUST(moved == at + 30 * PAGE);
    char *room = mmap(NULL, 100 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    moved = mremap(moved, 8 * PAGE, 8 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, room + 3 * PAGE);
    MUST(moved == room + 3 * PAGE);
    use_memory(4);
    show("moved", moved, 8 * PAGE);
    show("stayed", at + 5 * PAGE, 15 * PAGE);
    show("stayed", at + 42 * PAGE, (PAGES - 42) * PAGE);
    void *refused = mmap(at + 10 * PAGE, PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED_NOREPLACE, fd, 0);
    printf("no place: %d\n", refused == MAP_FAILED && errno == EEXIST);
    MUST(munmap(at + 5 * PAGE, (PAGES - 5) * PAGE) == 0 && munmap(room, 100 * PAGE) == 0);
}

/* More maps than could be held at once, one after the other; and what is written to the file later. */
void views_come_and_go(void)
{
    int fd = written(path);
    for (int i = 0; i < 1500; i++) {
        char *at = map(fd, SOME, PROT_READ);
        MUST(at[1000] == 'd');
        if (i % 3 == 0) {
            MUST(munmap(at, PAGE) == 0 && munmap(at + 10 * PAGE, PAGE) == 0);
            MUST(munmap(at + PAGE, 9 * PAGE) == 0 && munmap(at + 11 * PAGE, (PAGES - 11) * PAGE) == 0);
        } else if (i % 3 == 1) {
            char *over = mmap(at, PAGES * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
            MUST(over == at && munmap(at, PAGES * PAGE) == 0);
        } else
            MUST(munmap(at, SOME) == 0);
    }
    show_file(path);
}

/* Children have their parent's maps, for as long as they want. */
void views_are_inherited(void)
{
    int fd = written(path), ends[2];
    MUST(pipe(ends) == 0);
    char *at = map(fd, SOME, PROT_READ | PROT_WRITE), c = 0;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        close(ends[1]);
        MUST(read(ends[0], &c, 1) == 0);
        int wrong = has_changed(at);
        memcpy(at + 50000, "child", 5);
        pid_t grandchild = fork();
        if (grandchild == 0)
            _exit(memcmp(at + 50000, "child", 5) != 0 || memcmp(at, bytes, 50000) != 0);
        int status;
        MUST(waitpid(grandchild, &status, 0) == grandchild);
        use_memory(6);
        memcpy(at + 50000, bytes, 5);
        fill(1);
        memcpy(at + 50000, bytes + 50000, 5);
        _exit(wrong * 1 + (status != 0) * 2 + has_changed(at) * 4);
    }
    /* The child is the last to have it. */
    char *later = map(fd, SOME, PROT_READ);
    MUST(munmap(at, SOME) == 0);
    close(fd);
    /* What the session has of the file goes. */
    MUST(unlink(path) == 0);
    use_memory(5);
    printf("its own: %d\n", has_changed(later));
    MUST(munmap(later, SOME) == 0);
    close(ends[0]), close(ends[1]);
    await(child);
    managed(path, 0);
}

/* A parent ends, its child goes on. */
void views_outlive_their_parent(void)
{
    int ends[2];
    MUST(pipe(ends) == 0);
    fflush(stdout);
    pid_t parent = fork();
    if (parent == 0) {
        char *at = map(written(path), SOME, PROT_READ);
        if (fork() == 0) {
            close(ends[0]);
            sleep(3);
            use_memory(7);
            char wrong = (char)has_changed(at);
            MUST(write(ends[1], &wrong, 1) == 1);
            _exit(0);
        }
        raise(SIGKILL);
    }
    close(ends[1]);
    await(parent);
    MUST(unlink(path) == 0);
    use_memory(8);
    char wrong = 9;
    MUST(read(ends[0], &wrong, 1) == 1);
    printf("wrong %d\n", wrong);
    managed(path, 0);
}

/* Who executes another program has its maps no more, and others have theirs. */
void views_end_at_exec(void)
{
    int fd = written(path);
    char *at = map(fd, SOME, PROT_READ | PROT_WRITE);
    /* Who executes with a descriptor that it has gives the file to the kernel. */
    MUST(fcntl(fd, F_SETFD, FD_CLOEXEC) == 0);
    MUST(chdir(directory) == 0);
    for (int way = 0; way < 3; way++) {
        fflush(stdout);
        pid_t child = way == 2 ? vfork() : fork();
        if (child == 0) {
            if (way < 2) {
                memset(at + 1000, way, 100000);
                char *own = map(fd, SOME, PROT_READ | PROT_WRITE);
                memset(own, way, 10000);
            }
            execlp("cksum", "cksum", "file", (char *)NULL);
            _exit(99);
        }
        await(child);
        printf("its own: %d\n", has_changed(at));
    }
    use_memory(14);
    printf("later: %d\n", has_changed(at));
    fflush(stdout);
    execlp("cksum", "cksum", "file", (char *)NULL);
    MUST(0);
}

/* More at once than a process may have, and more pieces of them: what does not go is the kernel's, and all that is mapped stays what it was. */
void views_beyond_their_limits(void)
{
    enum { MANY = 700, CUT = 250 };
    static char *at[MANY];
    int fd = written(path), wrong = 0;
    for (int i = 0; i < MANY; i++)
        at[i] = map(fd, SOME, PROT_READ);
    for (int i = 0; i < MANY; i++)
        wrong += has_changed(at[i]);
    for (int i = 0; i < MANY; i++)
        MUST(munmap(at[i], SOME) == 0);
    printf("many: %d wrong\n", wrong);
    close(fd);
    char second_path[4096];
    MUST(snprintf(second_path, sizeof second_path, "%s/second", directory) > 0);
    fd = written(second_path);
    wrong = 0;
    for (int i = 0; i < CUT; i++) {
        at[i] = map(fd, SOME, PROT_READ);
        for (long page = 1; page < PAGES; page += 2)
            MUST(munmap(at[i] + page * PAGE, PAGE) == 0);
    }
    use_memory(15);
    fill(1);
    memcpy(bytes + 1000, "dirty", 5);
    for (int i = 0; i < CUT; i++)
        for (long page = 0; page < PAGES - 1; page += 2)
            wrong += memcmp(at[i] + page * PAGE, bytes + page * PAGE, PAGE) != 0;
    for (int i = 0; i < CUT; i++)
        for (long page = 0; page < PAGES; page += 2)
            MUST(munmap(at[i] + page * PAGE, PAGE) == 0);
    printf("cut: %d wrong\n", wrong);
    show_file(path);
    show_file(second_path);
}

/* A view shows what there was; the kernel's mapping shows what there is. */
void views_are_old(void)
{
    int fd = written(path), writer = open(path, O_RDWR);
    close(writer);
    char *at = map(fd, SOME, PROT_READ);
    writer = open(path, O_RDWR);
    fill(9);
    for (long done = 0; done < SOME; done += 30000)
        MUST(pwrite(writer, bytes + done, 30000, done) == 30000);
    printf("as it should: %d\n", has_changed(at) == !getenv("LD_PRELOAD"));
    MUST(ftruncate(writer, 5000) == 0);
    if (getenv("LD_PRELOAD"))
        MUST(!has_changed(at));
    close(writer);
    show_file(path);
}

/* What is not within the file is the kernel's. */
void views_end_with_their_files(void)
{
    int fd = written(path);
    char *at = map(fd, (PAGES + 10) * PAGE, PROT_READ);
    show_all("within", at);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGBUS, _exit);
        _exit(at[PAGES * PAGE] == 0);
    }
    await(child);
    void *no = mmap(NULL, 0, PROT_READ, MAP_PRIVATE, fd, 0);
    printf("nothing: %d\n", no == MAP_FAILED && errno == EINVAL);
    no = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 5);
    printf("odd: %d\n", no == MAP_FAILED && errno == EINVAL);
}

/* Maps that lie side by side move by one call, where the kernel does that. */
void views_move_together(void)
{
    char second_path[4096];
    MUST(snprintf(second_path, sizeof second_path, "%s/second", directory) > 0);
    int first = written(path), second = written(second_path);
    long len = PAGES * PAGE;
    char *room = mmap(NULL, 4 * (size_t)len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    map_at(room + PAGE, first, len, PROT_READ, MAP_FIXED, 0);
    map_at(room + PAGE + len, second, len, PROT_READ, MAP_FIXED, 0);
    char *to = room + 2 * len;
    int is_moved = mremap(room, (size_t)(2 * len), (size_t)(2 * len), MREMAP_MAYMOVE | MREMAP_FIXED, to) == to;
    close(first), close(second);
    MUST(unlink(path) == 0 && unlink(second_path) == 0);
    use_memory(10);
    if (is_moved) {
        show_all("first", to + PAGE);
        show("second", to + PAGE + len, len - PAGE);
    }
    managed(path, 0);
}

/* A pipe keeps what it was given. */
void views_are_given_to_pipes(void)
{
    static char taken[200000];
    int fd = written(path), ends[2];
    MUST(pipe(ends) == 0 && fcntl(ends[1], F_SETPIPE_SZ, 1 << 20) >= (int)sizeof taken);
    char *at = map(fd, SOME, PROT_READ);
    struct iovec parts[2] = {{at + 100, 150000}, {at, 50000}};
    printf("given %zd\n", vmsplice(ends[1], parts, 2, 0));
    close(fd);
    MUST(munmap(at, SOME) == 0 && unlink(path) == 0);
    use_memory(11);
    for (ssize_t done = 0, step; done < (ssize_t)sizeof taken; done += step)
        MUST((step = read(ends[0], taken + done, sizeof taken - (size_t)done)) > 0);
    show("taken", taken, sizeof taken);
    fd = written(path);
    at = map(fd, SOME, PROT_READ);
    while (vmsplice(ends[1], (struct iovec[]){{at, 60000}}, 1, SPLICE_F_NONBLOCK) > 0)
        ;
    printf("full: %d\n", errno == EAGAIN);
    MUST(munmap(at, SOME) == 0);
}

static int connection(int *to)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int small = 4096, large = 4 << 20, one = 1;
    int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), from = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    MUST(bind(listening, (void *)&at, len) == 0 && getsockname(listening, (void *)&at, &len) == 0 && listen(listening, 1) == 0);
    MUST(setsockopt(from, SOL_SOCKET, SO_RCVBUF, &small, sizeof small) == 0 && connect(from, (void *)&at, len) == 0);
    *to = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
    MUST(setsockopt(*to, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one) == 0);
    setsockopt(*to, SOL_SOCKET, SO_SNDBUF, &large, sizeof large);
    close(listening);
    return from;
}

static long send_by(int way, int socket, char *from, size_t len)
{
    int flags = MSG_ZEROCOPY | MSG_DONTWAIT;
    struct iovec part = {from, len};
    struct mmsghdr message = {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}};
    switch (way) {
    case 0:
        return send(socket, from, len, flags);
    case 1:
        return sendto(socket, from, len, flags, NULL, 0);
    case 2:
        return sendmsg(socket, &message.msg_hdr, flags);
    case 3:
        return sendmmsg(socket, &message, 1, flags) == 1 ? message.msg_len : -1;
    default:
        return syscall(SYS_sendto, socket, from, len, flags, NULL, 0);
    }
}

/* The other program of `views_are_sent`: it has got its socket as it is. */
void views_other_side(void)
{
    int way = atoi(getenv("WAY")), fd = written(path);
    char *at = map(fd, SOME, PROT_READ);
    long sent = 0, step;
    while (sent < SOME && (step = send_by(way, 0, at + sent, SOME - (size_t)sent)) > 0)
        sent += step;
    close(fd);
    MUST(munmap(at, SOME) == 0 && unlink(path) == 0);
    use_memory(16 + way);
    MUST(write(1, &sent, sizeof sent) == sizeof sent);
}

/* What is on its way from a view is what was there when it was sent, whoever has set the socket up. */
void views_are_sent(void)
{
    static char got[SOME];
    for (int way = 0; way < 5; way++) {
        int to, from = connection(&to), ends[2];
        char name[2] = {(char)('0' + way)};
        long sent, done = 0, step;
        MUST(pipe2(ends, O_CLOEXEC) == 0 && setenv("WAY", name, 1) == 0);
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            dup2(to, 0), dup2(ends[1], 1);
            execl("/proc/self/exe", "programs", "views-other-side", directory, (char *)NULL);
            _exit(9);
        }
        close(to), close(ends[1]);
        MUST(read(ends[0], &sent, sizeof sent) == sizeof sent && sent > SOME / 3);
        while (done < sent && (step = recv(from, got + done, (size_t)(sent - done), 0)) > 0)
            done += step;
        fill(1);
        memcpy(bytes + 1000, "dirty", 5);
        printf("way %d: %d %d\n", way, done == sent, memcmp(got, bytes, (size_t)sent) == 0);
        close(from), close(ends[0]);
        await(child);
    }
}

static volatile int is_over;

static void *look_at(void *map)
{
    const volatile char *at = map;
    while (!is_over)
        for (long i = 0; i < SOME; i += PAGE / 2)
            (void)at[i];
    return NULL;
}

/* A map takes the place of another one of the same file, which a thread reads meanwhile: there is always one or the other. */
void views_take_the_place_of_maps(void)
{
    /* In turn, so that each has its frames in several runs. */
    int first = open(path, O_RDWR | O_CREAT, 0644), second = open(other_path, O_RDWR | O_CREAT, 0644);
    fill(1);
    for (long done = 0; done < SOME; done += 10000)
        MUST(write(first, bytes + done, 10000) == 10000 && write(second, bytes + done, 10000) == 10000);
    MUST(fdatasync(first) == 0 && close(first) == 0 && close(second) == 0);
    int fd = open(path, O_RDONLY);
    char *at = map(fd, SOME, PROT_READ);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, look_at, at) == 0);
    for (int i = 0; i < 500; i++)
        map_at(at, fd, SOME, PROT_READ, MAP_FIXED, 0);
    is_over = 1;
    MUST(pthread_join(thread, NULL) == 0);
    show_all("in place", at);
    char *end = at + (PAGES - 1) * PAGE;
    map_at(end, fd, PAGE, PROT_READ | PROT_WRITE, MAP_FIXED, (PAGES - 1) * PAGE);
    show_all("its end", at);
    memcpy(end, "stored", 6);
    show_all("stored", at);
    MUST(munmap(at, SOME) == 0);
}

/* A child at a terminal of its own has its parent's maps, and so has one that no function of libc makes. */
void views_are_inherited_by_others(void)
{
    for (int way = 0; way < 2; way++) {
        int fd = written(path), ends[2], terminal = -1;
        MUST(pipe(ends) == 0);
        char *at = map(fd, SOME, PROT_READ), c = 0;
        fflush(stdout);
        pid_t child = way ? (pid_t)syscall(SYS_fork) : forkpty(&terminal, NULL, NULL, NULL);
        if (child == 0) {
            close(ends[1]);
            MUST(read(ends[0], &c, 1) == 0);
            _exit(has_changed(at));
        }
        close(fd), close(ends[0]);
        MUST(munmap(at, SOME) == 0 && unlink(path) == 0);
        use_memory(12 + way);
        close(ends[1]);
        await(child);
        close(terminal);
    }
    managed(path, 0);
}

/* Who leaves the session keeps what is mapped, in memory of its own. */
void views_stay_with_who_leaves(void)
{
    int fd = written(path);
    char *at = map(fd, SOME, PROT_READ | PROT_WRITE), *none = map(fd, SOME, PROT_NONE);
    memcpy(at + 200000, "stored", 6);
    MUST(mprotect(at, 3 * PAGE, PROT_READ) == 0 && munmap(at + 5 * PAGE, PAGE) == 0);
    close(fd);
    /* Whether it can be done or not. */
    printf("elsewhere: %d\n", chroot("/there is none"));
    static char maps[1 << 20];
    int list = open("/proc/self/maps", O_RDONLY);
    for (long len = 0, n; (n = read(list, maps + len, sizeof maps - 1 - (size_t)len)) > 0; len += n)
        ;
    printf("shared memory: %d\n", strstr(maps, "/dev/shm/") != NULL);
    use_memory(2);
    show("map", at, 5 * PAGE);
    show("map", at + 6 * PAGE, (PAGES - 6) * PAGE);
    MUST(mprotect(none, SOME, PROT_READ) == 0);
    show_all("allowed later", none);
    MUST(munmap(at, SOME) == 0);
}

enum { ROOM = 200, NONE = 0, READ = 1, WRITE = 2, LOST = 3 };

static unsigned long long state;

static unsigned chance(unsigned below)
{
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (unsigned)(state >> 33) % below;
}

static unsigned long sum_of_room(const char *room, const char *is)
{
    unsigned long sum = 0;
    for (int page = 0; page < ROOM; page++)
        if (is[page] == READ || is[page] == WRITE)
            sum = sum * 31 + sum_of(room + page * PAGE, PAGE);
    return sum;
}

/* Addresses that stand for nothing, and are nobody else's. */
static void reserve(char *room, int page, int count, char *is)
{
    MUST(mmap(room + page * PAGE, count * PAGE, PROT_NONE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
    memset(is + page, NONE, (size_t)count);
}

static void one_step(int fd, char *room, char *is)
{
    int page = (int)chance(ROOM), count = 1 + (int)chance(30);
    if (page + count > ROOM)
        count = ROOM - page;
    int mapped = is[page] == READ || is[page] == WRITE;
    switch (chance(10)) {
    case 0 ... 2:
        for (int i = 0; i < count; i++)
            if (is[page + i] == LOST)
                return;
        {
            int access = chance(2) ? PROT_READ : PROT_READ | PROT_WRITE;
            long from = chance((unsigned)(PAGES - count + 1));
            map_at(room + page * PAGE, fd, count * PAGE, access, MAP_FIXED | (chance(4) ? 0 : MAP_POPULATE), from * PAGE);
            memset(is + page, access & PROT_WRITE ? WRITE : READ, (size_t)count);
        }
        break;
    case 3:
        for (int i = 0; i < count; i++)
            if (is[page + i] == LOST)
                return;
        reserve(room, page, count, is);
        break;
    case 4 ... 5:
        if (is[page] == WRITE)
            memset(room + page * PAGE + chance(4000), (int)chance(256), chance(90));
        break;
    case 6:
        if (mapped) {
            is[page] = chance(2) ? READ : WRITE;
            MUST(mprotect(room + page * PAGE, PAGE, is[page] == READ ? PROT_READ : PROT_READ | PROT_WRITE) == 0);
        }
        break;
    case 7:
        if (mapped)
            MUST(madvise(room + page * PAGE, PAGE, MADV_DONTNEED) == 0);
        break;
    default: {
        int to = (int)chance(ROOM);
        if (!mapped || to == page || is[to] == LOST)
            break;
        MUST(mremap(room + page * PAGE, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, room + to * PAGE) == room + to * PAGE);
        is[to] = is[page];
        void *again = mmap(room + page * PAGE, PAGE, PROT_NONE, MAP_FIXED_NOREPLACE | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        /* Else somebody has asked for memory, and got this. */
        is[page] = again == MAP_FAILED ? LOST : NONE;
    }
    }
}

/* Steps in any order, with children now and then. */
void views_at_random(void)
{
    for (int round = 0; round < 8; round++) {
        state = (unsigned long long)round * 77 + 5;
        static char is[ROOM];
        char *room = mmap(NULL, ROOM * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memset(is, NONE, ROOM);
        int fd = written(path);
        for (int step = 0; step < 600; step++) {
            one_step(fd, room, is);
            if (chance(120) == 0) {
                pid_t child = fork();
                if (child == 0) {
                    for (int i = 0; i < 30; i++)
                        one_step(fd, room, is);
                    use_memory(2);
                    _exit((int)(sum_of_room(room, is) & 127));
                }
                if (chance(2))
                    await(child);
                else {
                    int page = (int)chance(ROOM / 2);
                    if (!memchr(is + page, LOST, ROOM / 2))
                        reserve(room, page, ROOM / 2, is);
                    await(child);
                }
            }
            if (step % 50 == 0)
                printf("%lx\n", sum_of_room(room, is));
        }
        MUST(close(fd) == 0 && unlink(path) == 0);
        use_memory(round);
        printf("round %d: %lx\n", round, sum_of_room(room, is));
        for (int page = 0; page < ROOM; page++)
            if (is[page] != LOST)
                MUST(munmap(room + page * PAGE, PAGE) == 0);
    }
    managed(path, 0);
}
