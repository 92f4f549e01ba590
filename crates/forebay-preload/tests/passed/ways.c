/* Other ways to a file's bytes than read and write, and memory that is not there. */
#include "programs.h"

void bad_memory(void)
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

void mapped(void)
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

void transferred(void)
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

void by_stdio(void)
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

/* A stream and a mapping that were there before another descriptor's writes were many. */
void earlier(void)
{
    static char back[SOME];
    FILE *file = fopen(path, "w+");
    MUST(file && fputs("early", file) >= 0 && fflush(file) == 0);
    int fd = open(path, O_RDWR);
    for (size_t done = 0; done < SOME; done += 10000)
        MUST(write(fd, bytes + done, 10000) == 10000);
    MUST(pwrite(fd, "late", 4, 200000) == 4);
    MUST(fseek(file, 199990, SEEK_SET) == 0);
    show("fread", back, (long)fread(back, 1, 100, file));
    MUST(fseek(file, 100, SEEK_SET) == 0 && fputs("by stdio", file) >= 0 && fclose(file) == 0);
    MUST(pread(fd, back, 100, 50) == 100);
    show("pread", back, 100);
    /* Nobody has the file open from here on. */
    MUST(close(fd) == 0);
    int mapped = open(other_path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    MUST(mapped >= 0 && write(mapped, bytes, 40000) == 40000);
    char *map = mmap(NULL, SOME, PROT_READ | PROT_WRITE, MAP_SHARED, mapped, 0);
    MUST(map != MAP_FAILED && close(mapped) == 0);
    fd = open(other_path, O_RDWR);
    for (size_t done = 0; done < SOME; done += 10000)
        MUST(write(fd, bytes + done, 10000) == 10000);
    show("map", map, SOME);
    memcpy(map + 100, "by the map", 10);
    MUST(pread(fd, back, 100, 50) == 100);
    show("pread", back, 100);
    show_file(path);
    show_file(other_path);
    /* So it may be managed. */
    managed(path, 0);
    show_file(path);
}

void asynchronous(void)
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

void raw_calls(void)
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

/* The kernel's asynchronous I/O, by number. */
void kernel_aio(void)
{
    int fd = managed(path, 0);
    static char back[3000];
    aio_context_t context = 0;
    MUST(syscall(SYS_io_setup, 8, &context) == 0);
    struct iocb in = {.aio_fildes = (unsigned)fd, .aio_lio_opcode = IOCB_CMD_PREAD, .aio_buf = (uintptr_t)back,
                      .aio_nbytes = sizeof back, .aio_offset = 500}, *list[] = {&in};
    MUST(syscall(SYS_io_submit, context, 1L, list) == 1);
    struct io_event event;
    MUST(syscall(SYS_io_getevents, context, 1L, 1L, &event, NULL) == 1);
    show("pread", back, (long)event.res);
    int second = managed(other_path, 0);
    struct iocb out = {.aio_fildes = (unsigned)second, .aio_lio_opcode = IOCB_CMD_PWRITE,
                       .aio_buf = (uintptr_t)"by the kernel", .aio_nbytes = 13, .aio_offset = 1500};
    list[0] = &out;
    MUST(syscall(SYS_io_submit, context, 1L, list) == 1);
    MUST(syscall(SYS_io_getevents, context, 1L, 1L, &event, NULL) == 1);
    MUST(pread(second, back, 100, 1450) == 100);
    show("pwrite", back, 100);
    char name[4100];
    snprintf(name, sizeof name, "%s/third", directory);
    int third = managed(name, 0);
    long params[15] = {0};
    int ring = (int)syscall(SYS_io_uring_setup, 4, params);
    MUST(ring >= 0 || errno == ENOSYS || errno == EPERM);
    MUST(write(third, bytes, SOME) == SOME);
    show_file(name);
    show_file(other_path);
}
