/* What servers do with files, in the manner of filebench's mixes, in a directory.
 *
 *     mixes DIRECTORY KIND FILES TIMES THREADS
 *
 * Each thread has FILES files of its own in that directory, which are made first, and does the mix TIMES times. KIND is one:
 *
 *     files   a file is made and written whole (128 KiB), one is appended to (16 KiB), one is read whole, one is looked at (stat), and one is removed
 *     web     ten files of 16 KiB are opened, read whole and closed, and 16 KiB are appended to the thread's log
 *     mail    a file is removed, one is made, appended to (16 KiB) and synced, one is read, appended to (16 KiB) and synced, and one is read
 *
 * Each open and close is in the time of its step. What is read is compared: each file has a letter of its own, so that another one's bytes are found, and its
 * length is known. At the end all files are compared again, and removed. Prints lines: KIND.STEP-THREADS and nanoseconds a time. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common.h"

enum { WHOLE = 128 << 10, PART = 16 << 10, LONGEST = 1 << 20, STEPS = 8 };

static size_t files, times;
static const char *kind;

struct thread {
    pthread_t thread;
    int number;
    unsigned seed;
    /* Bytes of each file, and the letter that it consists of. 0: it is not there. */
    size_t *lens;
    char *letters, *memory;
    size_t log_len;
    double took[STEPS];
};

static const char *step_names[STEPS];
static int steps;

static void name_of(const struct thread *of, size_t file, char *name) { sprintf(name, "%d-%zu", of->number, file); }

static void add(struct thread *of, int fd, size_t file, size_t len) {
    memset(of->memory, of->letters[file], len);
    if (write(fd, of->memory, len) != (ssize_t)len)
        fail("write");
    of->lens[file] += len;
}

static int open_one(const struct thread *of, size_t file, int flags) {
    char name[32];
    name_of(of, file, name);
    int fd = open(name, flags, 0644);
    if (fd < 0)
        fail(name);
    return fd;
}

static void compare(const struct thread *of, const char *found, ssize_t len, size_t file) {
    if (len != (ssize_t)of->lens[file])
        fail("another length than was written");
    if (len && (found[0] != of->letters[file] || memcmp(found, found + 1, len - 1)))
        fail("other bytes than were written");
}

static void read_fd(const struct thread *of, int fd, size_t file) {
    size_t have = 0;
    ssize_t done;
    while ((done = read(fd, of->memory + have, LONGEST - have)) > 0)
        have += done;
    if (done < 0)
        fail("read");
    compare(of, of->memory, have, file);
}

static void read_one(const struct thread *of, size_t file) {
    int fd = open_one(of, file, O_RDONLY);
    read_fd(of, fd, file);
    close(fd);
}

static void make(struct thread *of, size_t file, size_t len, int synced) {
    of->letters[file] = 'a' + rand_r(&of->seed) % 26;
    of->lens[file] = 0;
    int fd = open_one(of, file, O_CREAT | O_EXCL | O_WRONLY);
    add(of, fd, file, len);
    if (synced && fsync(fd))
        fail("fsync");
    if (close(fd))
        fail("close");
}

static void remove_one(struct thread *of, size_t file) {
    char name[32];
    name_of(of, file, name);
    if (unlink(name))
        fail(name);
    of->lens[file] = 0;
}

/* Another one than that which is being replaced. */
static size_t some(struct thread *of, size_t but) {
    size_t file = rand_r(&of->seed) % (files - 1);
    return file + (file >= but);
}

static void step(struct thread *of, int number, const char *name, double *since) {
    double time = now();
    of->took[number] += time - *since;
    step_names[number] = name;
    if (steps <= number)
        __atomic_store_n(&steps, number + 1, __ATOMIC_RELAXED);
    *since = time;
}

static void file_server(struct thread *of, size_t time) {
    size_t old = time % files, other = some(of, old);
    struct stat found;
    char name[32];
    double since = now();
    remove_one(of, old);
    step(of, 0, "remove", &since);
    make(of, old, WHOLE, 0);
    step(of, 1, "make", &since);
    if (of->lens[other] + PART <= LONGEST) {
        int fd = open_one(of, other, O_WRONLY | O_APPEND);
        add(of, fd, other, PART);
        close(fd);
    }
    step(of, 2, "append", &since);
    read_one(of, some(of, old));
    step(of, 3, "read", &since);
    other = some(of, old);
    name_of(of, other, name);
    if (stat(name, &found))
        fail(name);
    step(of, 4, "stat", &since);
    if ((size_t)found.st_size != of->lens[other])
        fail("another length than was written");
}

static void web_server(struct thread *of, int log) {
    double since = now();
    for (int i = 0; i < 10; i++)
        read_one(of, some(of, files));
    step(of, 0, "read10", &since);
    memset(of->memory, 'l', PART);
    if (write(log, of->memory, PART) != PART)
        fail("log");
    of->log_len += PART;
    step(of, 1, "log", &since);
}

static void mail_server(struct thread *of, size_t time) {
    size_t old = time % files, other = some(of, old);
    double since = now();
    remove_one(of, old);
    step(of, 0, "remove", &since);
    make(of, old, PART, 1);
    step(of, 1, "make", &since);
    int fd = open_one(of, other, O_RDWR);
    read_fd(of, fd, other);
    if (of->lens[other] + PART <= LONGEST)
        add(of, fd, other, PART);
    if (fsync(fd) || close(fd))
        fail("fsync");
    step(of, 2, "append", &since);
    read_one(of, some(of, old));
    step(of, 3, "read", &since);
}

static void *all_of(void *given) {
    struct thread *of = given;
    char name[32];
    sprintf(name, "%d-log", of->number);
    int log = *kind == 'w' ? open(name, O_CREAT | O_EXCL | O_WRONLY | O_APPEND, 0644) : -1;
    for (size_t time = 0; time < times; time++) {
        switch (*kind) {
        case 'f':
            file_server(of, time);
            break;
        case 'w':
            web_server(of, log);
            break;
        default:
            mail_server(of, time);
        }
    }
    if (log >= 0) {
        close(log);
        struct stat found;
        if (stat(name, &found) || (size_t)found.st_size != of->log_len || unlink(name))
            fail(name);
    }
    return NULL;
}

int main(int count, char **words) {
    if (count != 6 || !strchr("fwm", *words[2]) || chdir(words[1]))
        return 2;
    kind = words[2], files = strtoull(words[3], NULL, 10), times = strtoull(words[4], NULL, 10);
    int threads = atoi(words[5]);
    if (files < 2 || times == 0 || threads < 1)
        return 2;
    struct thread *all = calloc(threads, sizeof *all);
    for (int number = 0; number < threads; number++) {
        struct thread *of = &all[number];
        of->number = number, of->seed = number + 1;
        of->lens = calloc(files, sizeof *of->lens), of->letters = calloc(files, 1), of->memory = malloc(LONGEST);
        for (size_t file = 0; file < files; file++)
            make(of, file, *kind == 'f' ? WHOLE : PART, 0);
    }
    sync();
    double begun = now();
    for (int number = 0; number < threads; number++)
        if (pthread_create(&all[number].thread, NULL, all_of, &all[number]))
            fail("thread");
    for (int number = 0; number < threads; number++)
        pthread_join(all[number].thread, NULL);
    printf("%s.all-%d %.0f\n", kind, threads, (now() - begun) * 1e9 / times / threads);
    for (int number = 0; number < steps; number++) {
        double took = 0;
        for (int thread = 0; thread < threads; thread++)
            took += all[thread].took[number];
        printf("%s.%s-%d %.0f\n", kind, step_names[number], threads, took * 1e9 / times / threads);
    }
    for (int number = 0; number < threads; number++)
        for (size_t file = 0; file < files; file++) {
            read_one(&all[number], file);
            remove_one(&all[number], file);
        }
    return 0;
}
