/* Has so many files open at once in the directory where it is, and finds in each what it has written: open-files COUNT. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void must(int done, const char *what)
{
    if (!done) {
        perror(what);
        exit(1);
    }
}

int main(int count, char **words)
{
    must(count == 2, "open-files COUNT");
    int files = atoi(words[1]), *all = malloc(files * sizeof *all);
    char name[32];
    must(all != NULL, "malloc");
    for (int i = 0; i < files; i++) {
        snprintf(name, sizeof name, "open%d", i);
        all[i] = open(name, O_CREAT | O_EXCL | O_RDWR, 0644);
        must(all[i] >= 0, name);
        must(write(all[i], &i, sizeof i) == sizeof i, "write");
    }
    for (int i = 0; i < files; i++) {
        int read = -1;
        snprintf(name, sizeof name, "open%d", i);
        must(unlink(name) == 0, "unlink");
        must(pread(all[i], &read, sizeof read, 0) == sizeof read && read == i, "pread");
    }
    for (int i = 0; i < files; i++)
        must(close(all[i]) == 0, "close");
    free(all);
    return 0;
}
