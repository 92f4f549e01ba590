/* What programs do to files beside reading and writing them, each a case by name: `programs CASE DIRECTORY`.
 *
 * A case says what it sees on standard output and leaves files behind. Run with the library and without, both must be the
 * same. Every case first writes enough for its file to be managed. */
#include "programs.h"

char bytes[SOME], path[4096], other_path[4096], directory[3000];

unsigned long sum_of(const char *from, size_t len)
{
    unsigned long sum = 5381;
    for (size_t i = 0; i < len; i++)
        sum = sum * 33 + (unsigned char)from[i];
    return sum;
}

void fill(int seed)
{
    for (size_t i = 0; i < SOME; i++)
        bytes[i] = (char)(i * 7 + i / 251 + seed);
}

/* A file with dirty bytes in memory, its offset behind them. */
int managed(const char *name, int flags)
{
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC | flags, 0644);
    MUST(fd >= 0);
    fill(1);
    for (size_t done = 0; done < SOME; done += 10000)
        MUST(write(fd, bytes + done, 10000) == 10000);
    MUST(pwrite(fd, "dirty", 5, 1000) == 5);
    return fd;
}

void show(const char *what, const char *from, long len)
{
    printf("%s: %ld bytes, %lu\n", what, len, len > 0 ? sum_of(from, (size_t)len) : 0);
}

void show_file(const char *name)
{
    static char all[4 * SOME];
    int fd = open(name, O_RDONLY);
    long len = 0, n;
    while ((n = read(fd, all + len, sizeof all - (size_t)len)) > 0)
        len += n;
    show("file", all, len);
    close(fd);
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"handlers-write", handlers_write},
    {"handlers-small", handlers_on_small_files},
    {"handlers-send", handlers_send},
    {"handlers-jump", handlers_jump},
    {"handlers-as-ever", handlers_as_ever},
    {"handlers-queue", handlers_queue},
    {"cancelled", cancelled},
    {"bad-memory", bad_memory},
    {"mapped", mapped},
    {"transferred", transferred},
    {"stdio", by_stdio},
    {"earlier", earlier},
    {"sent", sent},
    {"streams-operate", streams_operate},
    {"streams-one-way", streams_one_way},
    {"streams-adopt", streams_adopt},
    {"streams-turn", streams_turn},
    {"streams-left", streams_are_left},
    {"streams-threads", streams_of_threads},
    {"streams-lock", streams_lock},
    {"streams-redirected", streams_redirected},
    {"streams-gone", streams_gone},
    {"iostreams", iostreams},
    {"moved-sendfile", moved_by_sendfile},
    {"moved-copying", moved_by_copying},
    {"moved-limit", moved_to_the_limit},
    {"moved-flags", moved_with_flags},
    {"moved-space", moved_space},
    {"moved-parts", moved_parts},
    {"moved-odd-flags", moved_with_odd_flags},
    {"space-of-holes", space_of_holes},
    {"kernel-files-wait", kernel_files_wait},
    {"moved-splice", moved_by_splicing},
    {"moved-pipes", moved_through_pipes},
    {"moved-print", moved_by_printing},
    {"moved-clone", moved_by_cloning},
    {"maps-read", maps_that_read},
    {"maps-own", maps_of_ones_own},
    {"maps-change", maps_that_change},
    {"maps-forked", maps_made_in_a_fork},
    {"maps-cut", maps_whose_file_is_cut},
    {"maps-other-side", maps_other_side},
    {"views-read", views_are_read},
    {"views-written", views_are_written},
    {"views-cut", views_are_cut},
    {"views-come-and-go", views_come_and_go},
    {"views-inherited", views_are_inherited},
    {"views-outlive", views_outlive_their_parent},
    {"views-exec", views_end_at_exec},
    {"views-many", views_beyond_their_limits},
    {"views-together", views_move_together},
    {"views-pipes", views_are_given_to_pipes},
    {"views-sent", views_are_sent},
    {"views-other-side", views_other_side},
    {"views-over-maps", views_take_the_place_of_maps},
    {"views-others", views_are_inherited_by_others},
    {"views-end", views_end_with_their_files},
    {"views-old", views_are_old},
    {"views-random", views_at_random},
    {"views-leave", views_stay_with_who_leaves},
    {"opened", opened_in_other_ways},
    {"unnamed", made_without_a_name},
    {"watched", watched},
    {"taken", taken},
    {"handed-standard", handed_as_standard},
    {"handed-number", handed_by_number},
    {"closed-first", closed_before_children},
    {"terminal", at_a_terminal},
    {"taken-there", taken_where_it_is},
    {"taken-from-relatives", taken_from_relatives},
    {"unshared", unshared},
    {"asynchronous", asynchronous},
    {"raw-calls", raw_calls},
    {"kernel-aio", kernel_aio},
    {"other-place", other_place},
    {"other-user", other_user},
    {"executable", executable},
    {"daemon", daemons},
    {"blocked-faults", blocked_faults},
    {"cancelled-any-time", cancelled_at_any_time},
    {"sent-faults", sent_faults},
    {"small-inherited", inherited_small},
};

int main(int argc, char **argv)
{
    MUST(argc == 3);
    const char *what = argv[1];
    /* The other side of a case. */
    if (!strcmp(what, "receive")) {
        receive(atoi(argv[2]));
        return 0;
    }
    if (!strcmp(what, "write-to")) {
        write_to(atoi(argv[2]));
        return 0;
    }
    if (!strncmp(what, "count-", 6)) {
        count(argv[2], !strcmp(what, "count-whole"));
        return 0;
    }
    snprintf(directory, sizeof directory, "%s", argv[2]);
    snprintf(path, sizeof path, "%s/file", directory);
    snprintf(other_path, sizeof other_path, "%s/other", directory);
    int found = 1;
    if (!strncmp(what, "confined-", 9))
        confined(what + 9);
    else if (!strncmp(what, "inherited-", 10))
        inherited(what + 10);
    else if (!strncmp(what, "logged-", 7))
        logged(what + 7);
    else if (!strcmp(what, "vforks"))
        vforks();
    else if (!strncmp(what, "duplicated-", 11))
        duplicated_beyond(!strcmp(what + 11, "there"));
    else if (!strncmp(what, "locked-", 7))
        locked(!strcmp(what, "locked-whole"));
    else
        found = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (!strcmp(what, cases[i].name)) {
            cases[i].run();
            found = 1;
        }
    MUST(found);
    fflush(stdout);
    return 0;
}
