/* Processes that say what they may call from now on. */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include "programs.h"

/* Everything but these is answered by `others`. */
static void allow_little(unsigned others, int by_number)
{
    static const int allowed[] = {SYS_read, SYS_write, SYS_pread64, SYS_pwrite64, SYS_lseek, SYS_close, SYS_exit_group, SYS_execve,
                                  SYS_fork, SYS_clone, SYS_wait4, SYS_set_robust_list, SYS_rseq};
    enum { COUNT = sizeof allowed / sizeof *allowed };
    struct sock_filter filter[COUNT + 3];
    filter[0] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int i = 0; i < COUNT; i++)
        filter[i + 1] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)allowed[i], COUNT - i, 0);
    filter[COUNT + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, others);
    filter[COUNT + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {COUNT + 3, filter};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    if (by_number)
        MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0);
    else
        MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

/* Not by stdio, which asks for memory. */
static void say(const char *what)
{
    MUST(write(1, what, strlen(what)) == (ssize_t)strlen(what));
}

void confined(const char *how)
{
    static char back[SOME + 100], more[SOME];
    /* Programs ask whether there may be a filter, and go on. */
    MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL) == -1 && errno == EFAULT);
    int fd = managed(path, 0), other = managed(other_path, 0);
    MUST(write(other, "more", 4) == 4 && close(other) == 0);
    fflush(stdout);
    if (!strcmp(how, "strict"))
        MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0);
    else
        allow_little(!strcmp(how, "kills") ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ERRNO | EPERM, !strcmp(how, "number"));
    memset(more, 'm', sizeof more);
    MUST(write(fd, more, sizeof more) == sizeof more);
    if (!strcmp(how, "strict")) {
        say("confined\n");
        syscall(SYS_exit, 0);
    }
    MUST(lseek(fd, 0, SEEK_SET) == 0);
    say(read(fd, back, sizeof back) == sizeof back && memcmp(back + SOME, more, 100) == 0 ? "all there\n" : "not there\n");
    MUST(pwrite(fd, "end", 3, 3 * SOME) == 3);
    if (!strcmp(how, "answers"))
        say(open(path, O_RDWR) == -1 && errno == EPERM ? "may not open\n" : "may open\n");
    MUST(close(fd) == 0);
    _exit(0);
}
