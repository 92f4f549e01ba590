/* What all cases share. */
#define _GNU_SOURCE
#include <aio.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/sched.h>
#include <netinet/in.h>
#include <pthread.h>
#include <pty.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SOME 300000
extern char bytes[SOME], path[4096], other_path[4096], directory[3000];

#define MUST(what) \
    do { \
        if (!(what)) { \
            printf("line %d: %s: %s\n", __LINE__, #what, strerror(errno)); \
            fflush(stdout); \
            _exit(1); \
        } \
    } while (0)

unsigned long sum_of(const char *from, size_t len);
void fill(int seed);
/* A file with dirty bytes in memory, its offset behind them. */
int managed(const char *name, int flags);
void show(const char *what, const char *from, long len);
void show_file(const char *name);

void streams_operate(void);
void streams_one_way(void);
void streams_adopt(void);
void streams_turn(void);
void streams_are_left(void);
void streams_of_threads(void);
void streams_lock(void);
void streams_redirected(void);
void streams_gone(void);
void iostreams(void);
void moved_by_sendfile(void);
void moved_by_copying(void);
void moved_to_the_limit(void);
void moved_with_flags(void);
void moved_space(void);
void moved_parts(void);
void moved_with_odd_flags(void);
void space_of_holes(void);
void kernel_files_wait(void);
void moved_by_splicing(void);
void moved_through_pipes(void);
void moved_by_printing(void);
void moved_by_cloning(void);
void maps_that_read(void);
void maps_of_ones_own(void);
void maps_that_change(void);
void maps_made_in_a_fork(void);
void maps_whose_file_is_cut(void);
void maps_other_side(void);
void views_are_read(void);
void views_are_written(void);
void views_are_cut(void);
void views_come_and_go(void);
void views_are_inherited(void);
void views_outlive_their_parent(void);
void views_end_at_exec(void);
void views_beyond_their_limits(void);
void views_move_together(void);
void views_are_given_to_pipes(void);
void views_are_sent(void);
void views_other_side(void);
void views_take_the_place_of_maps(void);
void views_are_inherited_by_others(void);
void views_end_with_their_files(void);
void views_are_old(void);
void views_at_random(void);
void views_stay_with_who_leaves(void);
void opened_in_other_ways(void);
void made_without_a_name(void);
void watched(void);
void taken(void);
void handed_as_standard(void);
void handed_by_number(void);
void closed_before_children(void);
void at_a_terminal(void);
void taken_where_it_is(void);
void taken_from_relatives(void);
void duplicated_beyond(int is_there);
void write_to(int number);
void unshared(void);
void handlers_write(void);
void handlers_on_small_files(void);
void handlers_send(void);
void handlers_jump(void);
void handlers_as_ever(void);
void handlers_queue(void);
void cancelled(void);
void bad_memory(void);
void mapped(void);
void transferred(void);
void by_stdio(void);
void earlier(void);
void sent(void);
void asynchronous(void);
void raw_calls(void);
void kernel_aio(void);
void other_place(void);
void other_user(void);
void executable(void);
void daemons(void);
void blocked_faults(void);
void cancelled_at_any_time(void);
void sent_faults(void);
void inherited_small(void);
void inherited(const char *how);
void logged(const char *how);
void confined(const char *how);
void vforks(void);
void receive(int socket);
void count(const char *name, int whole);
void locked(int whole);
