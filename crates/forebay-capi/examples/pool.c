/* Writes a line into a file of a pool, reads it back, and prints the names that are beside it.
 *
 *     cc pool.c $(pkg-config --cflags --libs forebay) -o pool
 *     ./pool work notes "for all hosts"
 */

#include <errno.h>
#include <fcntl.h>
#include <forebay.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(int is_done, const char *what)
{
    if (is_done)
        return;
    fprintf(stderr, "%s: %s (%s)\n", what, forebay_error(), strerror(errno));
    exit(1);
}

static int print(void *context, const char *name, int is_directory)
{
    ++*(int *)context;
    printf("%s%s\n", name, is_directory ? "/" : "");
    return 0;
}

int main(int count, char **arguments)
{
    if (count != 4) {
        fprintf(stderr, "pool NAME PATH TEXT\n");
        return 2;
    }
    const char *path = arguments[2], *text = arguments[3];
    size_t length = strlen(text);
    forebay_pool *pool = forebay_pool_open(arguments[1], 10000);
    must(pool != NULL, arguments[1]);
    forebay_pool_file *file = forebay_pool_file_open(pool, path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    must(file != NULL, path);
    must(forebay_pool_pwrite(file, text, length, 0) == (ssize_t)length, path);
    must(forebay_pool_sync(file) == 0, path);
    char *back = calloc(length + 1, 1);
    must(back && forebay_pool_pread(file, back, length, 0) == (ssize_t)length, path);
    printf("%s\n", back);
    free(back);
    must(forebay_pool_file_close(file) == 0, path);
    int names = 0;
    must(forebay_pool_list(pool, "/", print, &names) == 0 && names > 0, "/");
    forebay_pool_close(pool);
    return 0;
}
