/* Another library that is preloaded: it stands in for memory and for files, as allocators and tracers do. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>

static char room[64 << 20] __attribute__((aligned(64)));
static size_t used;
static unsigned calls;

/* Gives nothing back; each piece has its length before it. */
void *malloc(size_t len)
{
    len = (len + 31) & ~(size_t)15;
    size_t at = __atomic_fetch_add(&used, len, __ATOMIC_SEQ_CST);
    if (at + len > sizeof room)
        return NULL;
    *(size_t *)(room + at) = len - 16;
    return room + at + 16;
}

void free(void *at)
{
    (void)at;
}

void *calloc(size_t count, size_t len)
{
    return malloc(count * len);
}

void *realloc(void *at, size_t len)
{
    void *new = malloc(len);
    if (at && new) {
        size_t before = ((size_t *)at)[-2];
        memcpy(new, at, before < len ? before : len);
    }
    return new;
}

int posix_memalign(void **at, size_t align, size_t len)
{
    char *new = malloc(len + align);
    *at = new + (align - (size_t)new % align) % align;
    return new ? 0 : 12;
}

void *aligned_alloc(size_t align, size_t len)
{
    void *at;
    return posix_memalign(&at, align, len) ? NULL : at;
}

ssize_t write(int fd, const void *from, size_t len)
{
    ssize_t (*next)(int, const void *, size_t) = dlsym(RTLD_NEXT, "write");
    calls++;
    return next(fd, from, len);
}

int open(const char *path, int flags, ...)
{
    int (*next)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");
    va_list more;
    va_start(more, flags);
    int mode = va_arg(more, int);
    va_end(more);
    calls++;
    return next(path, flags, mode);
}

void *mmap(void *at, size_t len, int access, int flags, int fd, off_t offset)
{
    void *(*next)(void *, size_t, int, int, int, off_t) = dlsym(RTLD_NEXT, "mmap");
    calls++;
    return next(at, len, access, flags, fd, offset);
}

/* As libraries that show programs another root do: what begins with "name" lies elsewhere, for this call and not for others. */
int rename(const char *from, const char *to)
{
    int (*next)(const char *, const char *) = dlsym(RTLD_NEXT, "rename");
    int was = !strncmp(from, "name", 4), is = !strncmp(to, "name", 4);
    calls++;
    return next(was ? "elsewhere" : from, is ? "elsewhere" : to);
}
