/* Makes a store, saves numbers to a file of it by a window, and sums them by a view: the bytes are made and read where they lie in the store.
 *
 *     cc store.c $(pkg-config --cflags --libs forebay) -o store
 *     ./store /data/store numbers 300000
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

int main(int count, char **arguments)
{
    if (count != 4) {
        fprintf(stderr, "store STORE PATH NUMBERS\n");
        return 2;
    }
    const char *place = arguments[1], *path = arguments[2];
    size_t numbers = strtoull(arguments[3], NULL, 10);
    must(forebay_store_create(place, (64 << 20) + 2 * numbers * sizeof(uint64_t)) == 0, place);
    forebay_store *store = forebay_store_open(place, O_RDWR, 1000);
    must(store != NULL, place);
    forebay_store_file *file = forebay_store_file_open(store, path, O_RDWR | O_CREAT | O_EXCL, 0644);
    must(file != NULL, path);

    /* A window may be shorter than what is asked for. */
    for (size_t done = 0; done < numbers;) {
        forebay_store_window *window = forebay_store_window_open(file, (int64_t)(done * sizeof(uint64_t)), (numbers - done) * sizeof(uint64_t));
        must(window != NULL, path);
        size_t room = (size_t)forebay_store_window_length(window) / sizeof(uint64_t);
        uint64_t *bytes = forebay_store_window_bytes(window);
        for (size_t i = 0; i < room; i++)
            bytes[i] = done + i;
        must(forebay_store_window_commit(window, room * sizeof(uint64_t)) == (ssize_t)(room * sizeof(uint64_t)), path);
        forebay_store_window_close(window);
        done += room;
    }
    must(forebay_store_sync(store) == 0, place);

    forebay_view *view = forebay_store_view_open(file, 0, SIZE_MAX);
    must(view != NULL, path);
    const uint64_t *seen = forebay_view_bytes(view);
    size_t length = (size_t)forebay_view_length(view) / sizeof(uint64_t);
    uint64_t sum = 0;
    for (size_t i = 0; i < length; i++)
        sum += seen[i];
    printf("%zu numbers, their sum %llu, %s a copy\n", length, (unsigned long long)sum, forebay_view_is_copy(view) ? "by" : "without");
    forebay_view_close(view);
    must(forebay_store_file_close(file) == 0, path);
    must(forebay_store_close(store) == 0, place);
    return 0;
}
