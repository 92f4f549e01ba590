/* Copies a file through Forebay, appends a line, and reads what it has written.
 *
 *     cc copy.c $(pkg-config --cflags --libs forebay) -o copy && ./copy FROM TO
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <forebay.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(const char *what)
{
    fprintf(stderr, "copy: %s: %s (%s)\n", what, forebay_error(), strerror(errno));
    exit(1);
}

static void copy(forebay_file *from, forebay_file *to)
{
    static char bytes[256 * 1024];
    int64_t at = 0;
    for (;;) {
        ssize_t got = forebay_pread(from, bytes, sizeof bytes, at);
        if (got < 0)
            fail("read");
        if (got == 0)
            return;
        /* Whole, unless an error comes in the middle, which the next call tells. */
        for (ssize_t done = 0; done < got;) {
            ssize_t put = forebay_pwrite(to, bytes + done, (size_t)(got - done), at + done);
            if (put < 0)
                fail("write");
            done += put;
        }
        at += got;
    }
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: copy FROM TO [KEY=VALUE]...\n");
        return 2;
    }
    forebay_session *session = forebay_session_open(NULL, (const char *const *)argv + 3);
    if (!session)
        fail("session");
    forebay_file *from = forebay_open(session, argv[1], O_RDONLY, 0);
    if (!from)
        fail(argv[1]);
    forebay_file *to = forebay_open(session, argv[2], O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (!to)
        fail(argv[2]);
    copy(from, to);

    char line[] = "copied by forebay\n";
    int64_t end = forebay_append(to, line, sizeof line - 1);
    if (end < 0 || end != forebay_size(from))
        fail("append");
    char first[7] = "", second[16] = "";
    struct iovec parts[] = {{first, sizeof first}, {second, 10}};
    if (forebay_preadv(to, parts, 2, end) != 17)
        fail("read back");
    printf("%.7s%s\n", first, second);

    if (forebay_datasync(to) < 0) /* durable from here on */
        fail("sync");
    forebay_stats stats = {.size = sizeof stats};
    if (forebay_session_stats(session, &stats) < 0)
        fail("statistics");
    char reason[200];
    if (forebay_kernel_reason(to, reason, sizeof reason) > 0)
        printf("served by the kernel: %s\n", reason);
    else if (stats.scrap_bytes + stats.direct_bytes < (uint64_t)end)
        fail("fewer bytes were counted than written");
    if (forebay_close(from) < 0 || forebay_close(to) < 0)
        fail("close");
    return forebay_session_close(session);
}
