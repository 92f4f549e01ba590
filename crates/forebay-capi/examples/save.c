/* Saves numbers to a file from a window: whole pieces of 2 MiB go to the file without a copy.
 *
 *     cc save.c $(pkg-config --cflags --libs forebay) -o save && ./save TO COUNT
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <forebay.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW ((size_t)2 << 20)

static void fail(const char *what)
{
    fprintf(stderr, "save: %s: %s (%s)\n", what, forebay_error(), strerror(errno));
    exit(1);
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: save TO COUNT [KEY=VALUE]...\n");
        return 2;
    }
    uint64_t count = strtoull(argv[2], NULL, 10);
    forebay_session *session = forebay_session_open(NULL, (const char *const *)argv + 3);
    if (!session)
        fail("session");
    forebay_file *to = forebay_open(session, argv[1], O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (!to)
        fail(argv[1]);
    forebay_window *window = forebay_window_open(session, WINDOW);
    if (!window)
        fail("window");
    for (uint64_t next = 0; next < count;) {
        uint64_t *numbers = forebay_window_bytes(window);
        uint64_t most = WINDOW / sizeof *numbers;
        uint64_t here = count - next < most ? count - next : most;
        for (uint64_t i = 0; i < here; i++)
            numbers[i] = next + i;
        size_t bytes = here * sizeof *numbers;
        if (forebay_window_commit(window, to, (int64_t)(next * sizeof *numbers), 0, bytes) != (ssize_t)bytes)
            fail("commit");
        next += here;
        if (forebay_window_detach(window) < 0) /* empty memory, to be filled anew */
            fail("detach");
    }
    printf("%" PRId64 " bytes without a copy\n", forebay_window_attached(window));
    forebay_window_close(window);
    if (forebay_datasync(to) < 0 || forebay_close(to) < 0)
        fail("close");
    return forebay_session_close(session);
}
