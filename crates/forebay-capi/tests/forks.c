/* What a forked child may do: nothing with its parent's handles, everything with its own.
 *
 *     forks FILE SESSION [KEY=VALUE]...
 *
 * Beside FILE there is FILE.log, which the options leave to the kernel.
 */
#include <errno.h>
#include <fcntl.h>
#include <forebay.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MUST(what)                                                                            \
    do {                                                                                      \
        if (!(what)) {                                                                        \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #what, forebay_error()); \
            _exit(1);                                                                         \
        }                                                                                     \
    } while (0)

static const char *path, *name;
static char log_path[4096];
static const char *const *options;
static forebay_session *session;
static forebay_file *file, *log_file;
static forebay_view *view;
static forebay_window *window;
static volatile int stop;

static void refused(int64_t answer)
{
    MUST(answer == -1 && errno == ENOTCONN && strstr(forebay_error(), "parent"));
}

static void child(void)
{
    char seen[6];
    forebay_stats stats = {.size = sizeof stats};
    refused(forebay_pread(file, seen, sizeof seen, 0));
    refused(forebay_pwrite(file, "wrong!", 6, 0));
    refused(forebay_append(file, "wrong!", 6));
    refused(forebay_size(file));
    refused(forebay_truncate(file, 0));
    refused(forebay_sync(file));
    refused(forebay_session_stats(session, &stats));
    MUST(!forebay_open(session, path, O_RDONLY, 0) && errno == ENOTCONN);
    refused(forebay_view_length(view));
    forebay_view_close(view);
    refused(forebay_window_commit(window, file, 0, 0, 1));
    MUST(!forebay_window_bytes(window));
    forebay_window_close(window);
    MUST(forebay_close(file) == 0 && forebay_session_close(session) == 0);

    forebay_session *own = forebay_session_open(name, options);
    MUST(own);
    forebay_file *mine = forebay_open(own, path, O_RDWR, 0);
    MUST(mine);
    MUST(forebay_pread(mine, seen, 6, 0) == 6 && !memcmp(seen, "parent", 6));
    MUST(forebay_pwrite(mine, " child", 6, 6) == 6);
    forebay_file *log = forebay_open(own, log_path, O_WRONLY | O_APPEND, 0);
    MUST(log && forebay_kernel_reason(log, NULL, 0) > 0);
    MUST(forebay_append(log, "child\n", 6) >= 0);
    MUST(forebay_close(log) == 0 && forebay_close(mine) == 0 && forebay_session_close(own) == 0);
}

/* Keeps the parent at work in another thread while it forks. */
static void *work(void *unused)
{
    static char bytes[5000];
    for (int64_t i = 0; !stop; i++) {
        MUST(forebay_pwrite(file, bytes, sizeof bytes, 100 + i % 100 * 4000) == sizeof bytes);
        for (int j = 0; j < 5; j++)
            MUST(forebay_append(log_file, "parent\n", 7) >= 0);
    }
    return unused;
}

static void fork_and_wait(void (*body)(void))
{
    int status;
    pid_t pid = fork();
    MUST(pid >= 0);
    if (pid == 0) {
        alarm(60); /* a child that waits for ever says so */
        if (body)
            body();
        exit(0); /* with all that runs at an end in good order */
    }
    MUST(waitpid(pid, &status, 0) == pid && status == 0);
}

int main(int argc, char **argv)
{
    char seen[12];
    pthread_t thread;
    if (argc < 3)
        return 2;
    path = argv[1], name = argv[2], options = (const char *const *)argv + 3;
    session = forebay_session_open(name, options);
    MUST(session);
    file = forebay_open(session, path, O_RDWR | O_CREAT, 0644);
    MUST(file);
    MUST(forebay_pwrite(file, "parent", 6, 0) == 6);
    view = forebay_view_open(file, 0, 6);
    window = forebay_window_open(session, 1000);
    MUST(view && window && forebay_view_is_copy(view) == 0);
    snprintf(log_path, sizeof log_path, "%s.log", path);
    log_file = forebay_open(session, log_path, O_WRONLY | O_CREAT | O_APPEND, 0644);
    MUST(log_file);
    fork_and_wait(child);
    MUST(forebay_pread(file, seen, 12, 0) == 12 && !memcmp(seen, "parent child", 12));
    MUST(forebay_view_length(view) == 6 && !memcmp(forebay_view_bytes(view), "parent", 6));
    MUST(forebay_pwrite(file, "PARENT", 6, 0) == 6);
    MUST(!memcmp(forebay_view_bytes(view), "parent", 6));
    forebay_view_close(view);
    MUST(forebay_pwrite(file, "parent", 6, 0) == 6);
    view = forebay_view_open(file, 0, 6);
    MUST(view);

    MUST(pthread_create(&thread, NULL, work, NULL) == 0);
    for (int i = 0; i < 10; i++) {
        fork_and_wait(NULL);
        fork_and_wait(child);
    }
    stop = 1;
    MUST(pthread_join(thread, NULL) == 0);
    MUST(forebay_pread(file, seen, 12, 0) == 12 && !memcmp(seen, "parent child", 12));
    forebay_view_close(view);
    forebay_window_close(window);
    MUST(forebay_close(file) == 0 && forebay_close(log_file) == 0 && forebay_session_close(session) == 0);
    return 0;
}
