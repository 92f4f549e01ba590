/* Makes the calls that its standard input asks for, in the files of a directory, and answers by its standard output.
 *
 *     driver DIR SESSION [KEY=VALUE]...
 *
 * A request is seven 64-bit words (function, file, handle, flags, offset, length, number of parts), the parts' lengths as 32-bit words,
 * and for writes the bytes. An answer is two words, what the function has returned and errno, and for reads the bytes. At the end of its input it
 * closes everything; an error then is its exit code.
 */
#include <errno.h>
#include <fcntl.h>
#include <forebay.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OPEN, CLOSE, PREAD, PREADV, PWRITE, PWRITEV, APPEND, TRUNCATE, SIZE, PUNCH, DATASYNC, SYNC };
enum { FILES = 16, HANDLES = 16, PARTS = 64, BYTES = 16 << 20 };

static forebay_file *files[FILES][HANDLES];
static char bytes[BYTES];

static void die(const char *what)
{
    fprintf(stderr, "driver: %s: %s\n", what, forebay_error());
    exit(3);
}

/* 0 at the end of the input. */
static int take(void *place, size_t count)
{
    size_t got = fread(place, 1, count, stdin);
    if (got != count && got != 0)
        die("half a request");
    return got == count;
}

static int64_t run(const char *dir, forebay_session *session, const int64_t *ask, const uint32_t *lens)
{
    forebay_file **file = &files[ask[1]][ask[2]];
    int64_t offset = ask[4], length = ask[5];
    struct iovec parts[PARTS];
    char path[4096], *next = bytes;
    for (int64_t i = 0; i < ask[6]; i++) {
        parts[i].iov_base = next;
        parts[i].iov_len = lens[i];
        next += lens[i];
    }
    switch (ask[0]) {
    case OPEN:
        snprintf(path, sizeof path, "%s/file-%d", dir, (int)ask[1]);
        *file = forebay_open(session, path, (int)ask[3], 0644);
        return *file ? 0 : -1;
    case CLOSE: {
        forebay_file *closed = *file;
        *file = NULL;
        return forebay_close(closed);
    }
    case PREAD:
        return forebay_pread(*file, bytes, (size_t)length, offset);
    case PREADV:
        return forebay_preadv(*file, parts, (int)ask[6], offset);
    case PWRITE:
        return forebay_pwrite(*file, bytes, (size_t)length, offset);
    case PWRITEV:
        return forebay_pwritev(*file, parts, (int)ask[6], offset);
    case APPEND:
        return forebay_append(*file, bytes, (size_t)length);
    case TRUNCATE:
        return forebay_truncate(*file, length);
    case SIZE:
        return forebay_size(*file);
    case PUNCH:
        return forebay_punch(*file, offset, length);
    case DATASYNC:
        return forebay_datasync(*file);
    case SYNC:
        return forebay_sync(*file);
    }
    die("no such function");
    return -1;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    forebay_session *session = forebay_session_open(argv[2], (const char *const *)argv + 3);
    if (!session)
        die("session");
    int64_t ask[7], answer[2];
    uint32_t lens[PARTS];
    while (take(ask, sizeof ask)) {
        int writes = ask[0] == PWRITE || ask[0] == PWRITEV || ask[0] == APPEND;
        if (ask[1] >= FILES || ask[2] >= HANDLES || ask[6] > PARTS || (writes && ask[5] > BYTES))
            die("a request that is too large");
        if (ask[6] && !take(lens, (size_t)ask[6] * sizeof *lens))
            die("no parts");
        if (writes && ask[5] && !take(bytes, (size_t)ask[5]))
            die("no bytes");
        errno = 0;
        answer[0] = run(argv[1], session, ask, lens);
        answer[1] = errno;
        fwrite(answer, sizeof answer, 1, stdout);
        if ((ask[0] == PREAD || ask[0] == PREADV) && answer[0] > 0)
            fwrite(bytes, (size_t)answer[0], 1, stdout);
        fflush(stdout);
    }
    if (forebay_session_close(session) < 0)
        die("close the session");
    for (int i = 0; i < FILES; i++)
        for (int j = 0; j < HANDLES; j++)
            if (forebay_close(files[i][j]) < 0)
                die("close");
    return 0;
}
