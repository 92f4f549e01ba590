/* Streams of stdio over files that are managed, or become so while they are open. */
#include "programs.h"
#include <locale.h>
#include <stdio_ext.h>
#include <wchar.h>

static unsigned long state;

static unsigned next(unsigned below)
{
    state = state * 6364136223846793005UL + 1442695040888963407UL;
    return (unsigned)(state >> 33) % below;
}

/* One operation after the other on a stream, each of which says what it came to. */
static void operate(FILE *file, unsigned rounds)
{
    static char back[SOME];
    for (unsigned i = 0; i < rounds; i++) {
        unsigned what = next(16), len = next(next(8) ? 3000 : 150000);
        long got = 0;
        errno = 0;
        back[0] = 0;
        switch (what) {
        case 0 ... 3: got = (long)fwrite(bytes + next(1000), 1, len, file); break;
        case 4 ... 6: got = (long)fread(back, 1, len, file); break;
        case 7: got = fseek(file, next(400000), SEEK_SET); break;
        case 8: got = fseek(file, (long)next(20000) - 10000, SEEK_CUR); break;
        case 9: got = fseek(file, -(long)next(5000), SEEK_END); break;
        case 10: got = fprintf(file, "number %u and %.3f\n", len, len / 7.0); break;
        case 11: got = fputc((int)len & 255, file); break;
        case 12: got = fgetc(file); if (got != EOF && len % 2) got += ungetc('u', file); break;
        case 13: got = fflush(file); break;
        case 14: if (fgets(back, (int)(len % 2000) + 2, file)) got = (long)strlen(back); break;
        default: got = lseek(fileno(file), 0, SEEK_CUR) < 0; break;
        }
        printf("%u %u: %ld, at %ld, end %d, error %d, %s, %lu\n", what, len, got, ftell(file), feof(file) != 0,
               ferror(file) != 0, strerror(errno), got > 0 && got <= SOME ? sum_of(back, (size_t)got) : 0);
        if (what % 5 == 0)
            clearerr(file);
        /* Between reading and writing a stream wants to be moved. */
        MUST(fseek(file, 0, SEEK_CUR) == 0);
    }
}

void streams_operate(void)
{
    static const char *modes[] = {"w+", "r+", "a+", "w+b", "rb+", "a+e", "w+x"};
    fill(3);
    for (unsigned i = 0; i < 7; i++) {
        state = i + 1;
        if (i == 6)
            MUST(unlink(path) == 0);
        FILE *file = fopen(path, modes[i]);
        MUST(file);
        printf("%s: descriptor %d, flags %x, %x\n", modes[i], fileno(file), fcntl(fileno(file), F_GETFL),
               fcntl(fileno(file), F_GETFD));
        if (i % 3 == 2)
            MUST(setvbuf(file, NULL, i == 2 ? _IONBF : _IOLBF, 0) == 0);
        operate(file, 150);
        MUST(fclose(file) == 0);
        show_file(path);
    }
}

/* What goes one way only, and modes that are wrong. */
void streams_one_way(void)
{
    static char back[SOME];
    fill(4);
    FILE *file = fopen(path, "w");
    MUST(file && fwrite(bytes, 1, SOME, file) == SOME && fwrite(bytes, 3, 10000, file) == 10000);
    MUST(fread(back, 1, 10, file) == 0 && ferror(file) && errno == EBADF);
    printf("length %ld of %ld\n", ftell(file), (long)lseek(fileno(file), 0, SEEK_END));
    MUST(fclose(file) == 0);
    int fd = open(path, O_RDWR);
    MUST(pwrite(fd, "managed", 7, 100) == 7);
    file = fopen(path, "r");
    MUST(file && fread(back, 1, SOME, file) == SOME);
    show("read", back, SOME);
    MUST(fputc('x', file) == EOF && errno == EBADF);
    MUST(fseek(file, 90, SEEK_SET) == 0 && fgets(back, 100, file));
    show("line", back, (long)strlen(back));
    MUST(pwrite(fd, "later", 5, 250000) == 5);
    MUST(fseek(file, 249990, SEEK_SET) == 0 && fread(back, 1, 50, file) == 50);
    show("read", back, 50);
    MUST(fclose(file) == 0);
    file = fopen(path, "a");
    printf("at %ld\n", ftell(file));
    MUST(file && fputs("appended", file) >= 0 && fflush(file) == 0);
    MUST(pread(fd, back, 20, 330000) == 8 && fclose(file) == 0);
    MUST(!fopen(path, "q") && errno == EINVAL);
    MUST(!fopen(path, "wx") && errno == EEXIST);
    MUST(!fopen(directory, "r+") && errno == EISDIR);
    MUST(!fopen("/nowhere/at/all", "w") && errno == ENOENT);
    MUST(fopen("/dev/null", "w"));
    /* What is not written when the program ends. */
    FILE *left = fopen(other_path, "w");
    MUST(left && fwrite(bytes, 1, SOME, left) == SOME && fputs("the rest", left) >= 0);
    show_file(path);
}

static void *write_on(void *file)
{
    for (;;)
        fwrite(bytes, 1, 5000, file);
}

/* Threads that end in the middle of a stream, and some that share one. */
void streams_of_threads(void)
{
    fill(6);
    for (int i = 0; i < 20; i++) {
        FILE *file = fopen(path, "w+");
        pthread_t thread[2];
        void *end[2];
        MUST(file);
        for (int j = 0; j < 2; j++)
            MUST(pthread_create(&thread[j], NULL, write_on, file) == 0);
        usleep(2000 + 500 * (unsigned)i);
        for (int j = 0; j < 2; j++)
            MUST(pthread_cancel(thread[j]) == 0 && pthread_join(thread[j], &end[j]) == 0 && end[j] == PTHREAD_CANCELED);
        MUST(ftrylockfile(file) == 0);
        funlockfile(file);
        long len = ftell(file);
        MUST(len > 0 && fflush(file) == 0 && ftruncate(fileno(file), 100000) == 0);
        rewind(file);
        MUST(fputs("goes on", file) >= 0 && fclose(file) == 0);
        struct stat stat_of;
        MUST(stat(path, &stat_of) == 0 && stat_of.st_size == 100000);
    }
    managed(path, 0);
    show_file(path);
}

static volatile int is_held;

static void *hold(void *file)
{
    flockfile(file);
    is_held = 1;
    for (;;)
        pause();
}

/* What streams have at the program's end is written, should somebody hold them as well. */
void streams_are_left(void)
{
    fill(7);
    for (int i = 0; i < 2; i++) {
        FILE *file = fopen(i ? path : other_path, "w");
        MUST(file && fwrite(bytes, 1, SOME, file) == SOME && fflush(file) == 0 && fputs("the rest", file) >= 0);
        pthread_t thread;
        if (i)
            MUST(pthread_create(&thread, NULL, hold, file) == 0);
    }
    while (!is_held)
        usleep(100);
}

/* Streams over descriptors of the program's, as numpy makes them. */
void streams_adopt(void)
{
    static char back[SOME];
    int fd = managed(path, 0);
    FILE *file = fdopen(dup(fd), "wb");
    MUST(file && fwrite(bytes, 1, SOME, file) == SOME && fflush(file) == 0);
    printf("offset %ld\n", (long)lseek(fd, 0, SEEK_CUR));
    MUST(fclose(file) == 0 && write(fd, "after", 5) == 5);
    file = fdopen(dup(fd), "rb");
    MUST(file && fseek(file, 500, SEEK_SET) == 0 && fread(back, 8, 30000, file) == 30000);
    show("read", back, 240000);
    MUST(fclose(file) == 0);
    int reader = open(path, O_RDONLY);
    errno = 0;
    MUST(!fdopen(reader, "w") && errno == EINVAL);
    MUST((file = fdopen(reader, "r")) && fgetc(file) != EOF && fclose(file) == 0);
    MUST(read(reader, back, 1) == -1 && errno == EBADF);
    file = fdopen(fd, "a+");
    printf("flags %x\n", fcntl(fd, F_GETFL));
    MUST(file && fputs("at the end", file) >= 0 && fseek(file, 0, SEEK_SET) == 0);
    MUST(fread(back, 1, 100, file) == 100);
    show("read", back, 100);
    MUST(ftruncate(fileno(file), 1234) == 0 && fsync(fileno(file)) == 0);
    MUST(fputs("again", file) >= 0 && fclose(file) == 0);
    show_file(path);
    /* A child has the stream as well. */
    file = fopen(other_path, "w+");
    MUST(file && fwrite(bytes, 1, 200000, file) == 200000 && fflush(file) == 0);
    if (fork() == 0) {
        fputs("child", file);
        MUST(fclose(file) == 0);
        _exit(0);
    }
    int status;
    MUST(wait(&status) > 0 && status == 0);
    /* One that ends at once writes nothing of what the stream has. */
    MUST(fputs("pending", file) >= 0);
    if (fork() == 0)
        _exit(0);
    MUST(wait(&status) > 0 && status == 0);
    MUST(fputs("parent", file) >= 0 && fclose(file) == 0);
    show_file(other_path);
    /* A descriptor that is closed behind the stream's back. */
    file = fopen(other_path, "r+");
    MUST(file && fputs("lost", file) >= 0 && close(fileno(file)) == 0);
    MUST(fclose(file) == EOF && errno == EBADF);
    file = fopen(other_path, "r+");
    MUST(file && dup2(open(path, O_RDWR), fileno(file)) == fileno(file) && fputs("moved", file) >= 0);
    MUST(fclose(file) == 0);
    show_file(path);
    show_file(other_path);
}

/* Streams that become others: of wide characters, or of other files. */
void streams_turn(void)
{
    static wchar_t line[1000];
    static char back[SOME];
    MUST(setlocale(LC_ALL, "C.UTF-8"));
    int fd = managed(path, 0);
    FILE *file = fopen(other_path, "w");
    MUST(file && fwide(file, 0) == 0 && fputws(L"gr\u00fc\u00df dich\n", file) >= 0);
    MUST(fwide(file, 0) > 0 && fwprintf(file, L"%d %ls\n", 5, L"\u20ac") > 0 && fclose(file) == 0);
    show_file(other_path);
    file = fopen(other_path, "r+");
    setvbuf(file, NULL, _IONBF, 0);
    MUST(file && fgetws(line, 1000, file));
    printf("%ls, wide %d", line, fwide(file, -1) > 0);
    MUST(fgetwc(file) == L'5' && ungetwc(L'\u00e4', file) == L'\u00e4' && fgetwc(file) == L'\u00e4');
    MUST(fseek(file, 0, SEEK_END) == 0 && fputwc(L'\u00f6', file) == L'\u00f6' && fclose(file) == 0);
    show_file(other_path);
    /* What has had bytes stays one of bytes. */
    file = fopen(other_path, "a+");
    MUST(file && fputs("bytes", file) >= 0 && fwide(file, 1) < 0 && fputwc(L'x', file) == WEOF && fclose(file) == 0);
    show_file(other_path);
    file = fopen(other_path, "r+");
    MUST(file && fwide(file, -1) < 0 && fgetwc(file) == WEOF && fclose(file) == 0);
    file = fopen(path, "r+,ccs=UTF-8");
    MUST(file && fwide(file, 0) > 0 && fputwc(L'\u00e9', file) == L'\u00e9' && fclose(file) == 0);
    MUST(pread(fd, back, 10, 0) == 10);
    show("read", back, 10);
    char name[4100];
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%s/turned-%d", directory, i);
        file = fopen(name, "w+");
        MUST(file && fwrite(bytes, 1, 200000, file) == 200000 && fputs("unwritten", file) >= 0);
        int number = fileno(file);
        if (i == 2) {
            MUST(freopen(NULL, "r", file) == file && fread(back, 1, SOME, file) == 200009);
            show("reopened", back, 200009);
        } else {
            MUST(freopen(i ? path : other_path, i ? "r+" : "a", file) == file);
            if (i)
                MUST(fgetws(line, 10, file) || fgetc(file) != EOF);
            MUST(fseek(file, 0, SEEK_END) == 0 && (i || fputs("reopened", file) >= 0));
        }
        printf("number again %d\n", fileno(file) == number);
        MUST(fclose(file) == 0);
        show_file(name);
    }
    file = fopen(path, "r+");
    MUST(file && !freopen("/nowhere/at/all", "r", file) && errno == ENOENT);
    show_file(path);
    show_file(other_path);
}

enum { WRITERS = 4, BYTES_EACH = 50000 };

static FILE *shared;

static void *write_single_bytes(void *byte)
{
    for (int i = 0; i < BYTES_EACH; i++)
        MUST(fputc((int)(intptr_t)byte, shared) != EOF);
    return NULL;
}

static void write_by_threads(void)
{
    static char back[WRITERS * BYTES_EACH + 1];
    long counts[WRITERS] = {0};
    pthread_t threads[WRITERS];
    rewind(shared);
    for (intptr_t i = 0; i < WRITERS; i++)
        MUST(pthread_create(&threads[i], NULL, write_single_bytes, (void *)i) == 0);
    for (int i = 0; i < WRITERS; i++)
        MUST(pthread_join(threads[i], NULL) == 0);
    rewind(shared);
    size_t got = fread(back, 1, sizeof back, shared);
    for (size_t i = 0; i < got; i++)
        counts[(int)back[i]]++;
    printf("%zu bytes: %ld, %ld, %ld, %ld\n", got, counts[0], counts[1], counts[2], counts[3]);
}

/* Whether calls for single bytes lock it (_IO_FLAGS2_NEED_LOCK). */
static void show_lock(const char *what, FILE *file)
{
    printf("%s: locks %d\n", what, (file->_flags2 & 0x80) != 0);
}

void streams_lock(void)
{
    char name[4100];
    snprintf(name, sizeof name, "%s/single-bytes", directory);
    shared = fopen(name, "w+");
    MUST(shared && fwrite(bytes, 1, 200000, shared) == 200000 && fflush(shared) == 0);
    show_lock("before threads", shared);
    write_by_threads();
    show_lock("after threads", shared);
    MUST(fclose(shared) == 0 && (shared = fopen(name, "r+")));
    show_lock("opened after threads", shared);
    write_by_threads();
    fflush(stdout);
    pid_t child = fork();
    MUST(child >= 0);
    if (!child) {
        MUST(fclose(shared) == 0 && fclose(stdin) == 0 && open("/dev/null", O_RDONLY) == 0);
        MUST(shared = fopen(name, "r+"));
        show_lock("opened by a child", shared);
        write_by_threads();
        exit(0);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child && status == 0);
    MUST(fclose(shared) == 0 && unlink(name) == 0);
}

/* A managed file takes the place of what a stream of libc's own is over. */
static void redirect(const char *what, FILE *file, int wide)
{
    char name[4100];
    snprintf(name, sizeof name, "%s/%s", directory, what);
    MUST(file && (wide ? fwprintf(file, L"before\n") : fprintf(file, "before\n")) > 0 && fflush(file) == 0);
    int fd = managed(name, 0);
    MUST(dup2(fd, fileno(file)) == fileno(file));
    MUST((wide ? fwprintf(file, L"by the stream\n") : fprintf(file, "by the stream\n")) > 0 && fflush(file) == 0);
    show_file(name);
    MUST(write(fd, "by a call\n", 10) == 10);
    MUST((wide ? fwprintf(file, L"once more\n") : fprintf(file, "once more\n")) > 0 && fflush(file) == 0);
    show_file(name);
    close(fd);
}

static FILE *over_pipe(int ends[2])
{
    MUST(pipe(ends) == 0);
    return fdopen(ends[1], "w");
}

static void read_line(const char *what, FILE *file)
{
    char line[100] = "";
    printf("%s: %s", what, fgets(line, sizeof line, file));
}

static int with_a_line(const char *what)
{
    char name[4100];
    snprintf(name, sizeof name, "%s/%s", directory, what);
    int fd = managed(name, 0);
    MUST(pwrite(fd, "a line that is in memory\n", 25, 0) == 25 && lseek(fd, 0, SEEK_SET) == 0);
    return fd;
}

void streams_redirected(void)
{
    int ends[2];
    FILE *file = fopen("/dev/null", "w");
    redirect("device", file, 0);
    MUST(fclose(file) == 0);
    file = over_pipe(ends);
    redirect("pipe", file, 0);
    MUST(fclose(file) == 0 && close(ends[0]) == 0);
    file = popen("cat > /dev/null", "w");
    MUST(file);
    int kept = dup(fileno(file));
    redirect("program", file, 0);
    MUST(dup2(kept, fileno(file)) >= 0 && close(kept) == 0 && pclose(file) == 0);
    MUST((file = fopen(path, "w")) && fprintf(file, "one") == 3);
    redirect("reopened", freopen("/dev/null", "w", file), 0);
    MUST(fclose(file) == 0);
    file = fopen("/dev/null", "w");
    redirect("wide", file, 1);
    MUST(fclose(file) == 0);
    redirect("widened", file = fopen(path, "w"), 1);
    MUST(fclose(file) == 0);

    /* A stream that reads a small file. */
    int fd = open(other_path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    MUST(write(fd, "small\n", 6) == 6 && close(fd) == 0 && (file = fopen(other_path, "r")));
    fd = with_a_line("read");
    MUST(dup2(fd, fileno(file)) >= 0);
    read_line("in its place", file);
    MUST(fclose(file) == 0 && close(fd) == 0);

    /* Whose number is free for a moment. */
    MUST((file = fopen("/dev/null", "r")) && fgetc(file) == EOF);
    int number = fileno(file);
    fd = with_a_line("read-again");
    MUST(close(number) == 0 && dup(fd) == number);
    clearerr(file);
    read_line("with its number", file);
    MUST(fclose(file) == 0 && close(fd) == 0);
}

/* Numbers of streams that are closed are those of files again: nothing goes to the kernel. */
void streams_gone(void)
{
    char name[4100];
    for (int how = 0; how < 4; how++) {
        int ends[2] = {-1, -1};
        FILE *file = how == 0 ? fopen("/dev/null", "r") : how == 1 ? popen(":", "r") : how == 2 ? over_pipe(ends) : freopen("/dev/null", "w", fopen("/dev/null", "r"));
        MUST(file);
        int number = fileno(file);
        MUST((how == 1 ? pclose(file) : fclose(file)) == 0);
        close(ends[0]);
        snprintf(name, sizeof name, "%s/gone-%d", directory, how);
        int fd = managed(name, 0), other = fd == number ? dup(fd) : dup2(fd, number);
        MUST(write(other, "by a call", 9) == 9 && close(fd) == 0 && (other == fd || close(other) == 0));
        show_file(name);
    }
}
