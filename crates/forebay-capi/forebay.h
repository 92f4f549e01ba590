#ifndef FOREBAY_H
#define FOREBAY_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

// An open file. Used by any number of threads at once: each call is one operation at an offset of its own, as with pread and pwrite, and
// there is no position that threads could share. Closed once, by forebay_close.
typedef struct forebay_file forebay_file;

// A process's membership in a pool: memory that other hosts lend, with files in it that all its hosts see alike. Used by any number of threads at once; closed
// once, by forebay_pool_close.
typedef struct forebay_pool forebay_pool;

// An open file of a pool. Used by any number of threads at once, as a file is. Closed once, by forebay_pool_file_close.
typedef struct forebay_pool_file forebay_pool_file;

// A process's part in a session: an arena of cached bytes that several processes share. Used by any number of threads at once; closed
// once, by forebay_session_close.
typedef struct forebay_session forebay_session;

// A store in persistent memory, open in this process and in no other. Used by any number of threads at once; closed once, by forebay_store_close.
typedef struct forebay_store forebay_store;

// An open file of a store. Used by any number of threads at once, as a file is. Closed once, by forebay_store_file_close.
typedef struct forebay_store_file forebay_store_file;

// Memory of a store that a program fills, and that becomes a part of a file without a copy. Its calls are made one at a time; given back once, by
// forebay_store_window_close.
typedef struct forebay_store_window forebay_store_window;

// The bytes of a range of a file, as they were when the view was taken. Writes, truncations, the file's close and the session's change nothing of
// it. Used by any number of threads at once; given back once, by forebay_view_close.
typedef struct forebay_view forebay_view;

// Memory of the session that a program fills and gives to files. What is given costs no copy where it is whole pieces (2 MiB of the file) that
// lie in the window as they do in the file. Its calls are made one at a time; given back once, by forebay_window_close.
typedef struct forebay_window forebay_window;

// A session's counters at one moment. Bytes unless the name says otherwise. Later versions may add fields at the end, which `size` tells.
typedef struct forebay_stats {
  // Bytes of this structure: what the caller has room for, then what the library has filled in.
  size_t size;
  // Written into memory, to be flushed later.
  uint64_t scrap_bytes;
  // Written straight to the device.
  uint64_t direct_bytes;
  // Written through the kernel's cache.
  uint64_t kernel_bytes;
  // Read by callers.
  uint64_t read_bytes;
  // Read from devices: for readers and for fills.
  uint64_t device_read_bytes;
  // Of that, read ahead into memory by the keeper.
  uint64_t ahead_bytes;
  // Read ahead, in blocks that have been read since.
  uint64_t ahead_used_bytes;
  // Read ahead, in blocks that were dropped before anybody read them.
  uint64_t ahead_wasted_bytes;
  // Written to devices: flushed and direct.
  uint64_t device_write_bytes;
  // Memory that the arena holds.
  uint64_t memory_held_bytes;
  // Of that, frames that are free.
  uint64_t memory_free_bytes;
  // Owed to devices now: pages that are dirty or in flight, whole pages counted.
  uint64_t dirty_bytes;
  // Owed as the limits count it: a frame with anything dirty counts whole.
  uint64_t owed_bytes;
  // Memory in use by what owes something.
  uint64_t owed_memory_bytes;
  // Repairs after deaths of processes; a number.
  uint64_t rebuilds;
  // Words that a repair found wrong and set right; a number.
  uint64_t corruptions;
  // Nanoseconds that threads spent on changing device files.
  uint64_t change_ns;
  // Files that became managed, once for each process; a number.
  uint64_t files_managed;
  // Files left to the kernel by route or place; a number, as are the following ones.
  uint64_t files_routed;
  // Left to the kernel because of their file system.
  uint64_t files_of_file_system;
  // Left to the kernel because they cannot be opened for writing again.
  uint64_t files_not_writable;
  // Left to the kernel because another session has them.
  uint64_t files_claimed;
  // Left to the kernel for other reasons.
  uint64_t files_other;
  // How often a close has left what its file owed to the keeper.
  uint64_t closed_behind;
  // Left to the kernel because somebody reaches them past the engine.
  uint64_t files_reached;
  // Files that were gone, so that what they owed was dropped.
  uint64_t files_vanished;
  // Of the memory that the arena holds, what views hold, whole frames counted; at most half of the memory.
  uint64_t viewed_bytes;
  // Of the memory that the arena holds, huge pages that hold 2 MiB of one file, in its order: a view of them is one huge page.
  uint64_t run_bytes;
} forebay_stats;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// What the calling thread's last failed call of this library has to say: one line of English without an end of line, "" where none
// has failed. It stays as it is until another call of this library fails in this thread. `errno` is set by the same calls; its value
// means nothing after a call that has not failed.
const char *forebay_error(void);

// The library's version, such as "0.1.0". Never NULL.
const char *forebay_version(void);

// Joins the session of this name, or starts it, and keeps it: threads of this process write out what is owed and read ahead, or stand by
// while another process does. What a session that has died has left is recovered first.
//
// `name` is NULL for the session that the configuration names ("default" where nothing is said). `options` is NULL, or texts
// "key=value" and a NULL at the end; keys and values are those of `forebay config`, stronger than the environment (FOREBAY_...), which is
// stronger than the configuration file.
//
// Returns NULL on failure. errno is EINVAL for an option that does not exist or does not fit (the text names it and what to write
// instead), ENOMEM when no memory file system will do for the arena, ENOTCONN when the session cannot be joined.
//
// The caller's part:
// Texts end with a zero byte; `options` ends with NULL.
struct forebay_session *forebay_session_open(const char *name,
                                             const char *const *options);

// As forebay_session_open, without keeping the session: this library starts no threads in this process. Some other process should keep it
// (`forebay daemon`, a program that has opened it): without one the library works all the same, and calls write out what must be.
//
// The caller's part:
// As for forebay_session_open.
struct forebay_session *forebay_session_join(const char *name,
                                             const char *const *options);

// Gives the handle back. Files that were opened by it stay open, and keep the session with them until the last is closed. NULL is no
// session, and nothing is done. Returns 0.
//
// The caller's part:
// `session` is NULL or a handle that is not closed yet, and no other thread uses it any more.
int forebay_session_close(struct forebay_session *session);

// Fills in the session's counters. `stats->size` must be set to sizeof(struct forebay_stats) before; the library fills in no more than
// that, and sets `stats->size` to what it has filled in. Walks the arena's tables: not for each request.
//
// Returns 0, or -1 with EINVAL for a size that no version of the structure has.
//
// The caller's part:
// `session` is an open handle, `stats` points to `stats->size` bytes.
int forebay_session_stats(const struct forebay_session *session,
                          struct forebay_stats *stats);

// Opens a file, and makes it where `flags` say so. `flags` are those of open(2): one of O_RDONLY, O_WRONLY and O_RDWR, with any of
// O_CREAT, O_EXCL (with O_CREAT), O_TRUNC, O_APPEND (every write goes to the end), O_CLOEXEC (always so). O_CREAT and O_TRUNC need a file that is
// open for writing. `mode` are the permissions of a file that is made, less the umask; it means nothing without O_CREAT.
//
// A file that the engine cannot manage is served by the kernel, and every function works on it: forebay_kernel_reason says why.
//
// Returns NULL on failure. errno is EINVAL for other flags, ENOTCONN when the session's tables are full, or what open(2) says.
//
// The caller's part:
// `session` is an open handle, `path` ends with a zero byte.
struct forebay_file *forebay_open(const struct forebay_session *session,
                                  const char *path,
                                  int flags,
                                  uint32_t mode);

// Closes a file: what it owes is handed to the device, so that programs outside the session see it; forebay_sync before makes it
// durable. The handle is gone whatever the answer is. NULL is no file, and nothing is done. In a forked child a parent's handle is given back without a
// word, and nothing is written.
//
// Returns 0, or -1 with an error of an earlier write that nobody has heard of yet: such bytes stay in the session's memory, and are tried again.
//
// The caller's part:
// `file` is NULL or a handle that is not closed yet, and no other thread uses it any more.
int forebay_close(struct forebay_file *file);

// Reads up to `count` bytes from `offset` on into `buffer`.
//
// Returns the number of bytes, fewer than `count` only at the file's end, 0 beyond it, and before bytes that cannot be read, of which the next read
// says so; or -1 with EBADF when the file is not open for reading, EINVAL for a negative offset or a count beyond SSIZE_MAX, or what the device says
// of the first byte.
//
// The caller's part:
// `file` is an open handle; `buffer` is valid for writes of `count` bytes.
ptrdiff_t forebay_pread(const struct forebay_file *file,
                        void *buffer,
                        size_t count,
                        int64_t offset);

// Writes `count` bytes at `offset`; at the end of the file where it was opened with O_APPEND, whatever the offset.
//
// Returns the number of bytes: all, unless an error came after some were written; or -1 with EBADF when the file is not open for writing,
// ENOSPC or EDQUOT when the space cannot be had, EINVAL for a negative offset or a count beyond SSIZE_MAX, EFBIG beyond the largest file, or what the device
// says. The bytes outlive the death of this process from here on, and a power failure once forebay_datasync has returned 0.
//
// The caller's part:
// `file` is an open handle; `buffer` is valid for reads of `count` bytes, which nobody changes meanwhile.
ptrdiff_t forebay_pwrite(const struct forebay_file *file,
                         const void *buffer,
                         size_t count,
                         int64_t offset);

// As forebay_pread, into `count` buffers one after the other. EINVAL also for a count that is negative or above 1024 (IOV_MAX), and for lengths whose sum is
// beyond SSIZE_MAX.
//
// The caller's part:
// As for forebay_pread, for each of `count` buffers, which do not overlap.
ptrdiff_t forebay_preadv(const struct forebay_file *file,
                         const struct iovec *parts,
                         int count,
                         int64_t offset);

// As forebay_pwrite, from `count` buffers one after the other; where the file was opened with O_APPEND, as one append. EINVAL as for forebay_preadv.
//
// The caller's part:
// As for forebay_pwrite, for each of `count` buffers.
ptrdiff_t forebay_pwritev(const struct forebay_file *file,
                          const struct iovec *parts,
                          int count,
                          int64_t offset);

// Writes `count` bytes at the file's end, wherever that is, whole and apart from what others append.
//
// Returns the offset, in bytes, at which they lie; or -1 with the errors of forebay_pwrite. Bytes that were written before an error stay.
//
// The caller's part:
// As for forebay_pwrite.
int64_t forebay_append(const struct forebay_file *file,
                       const void *buffer,
                       size_t count);

// Makes all bytes that were written to the file durable, and what is needed to read them, as fdatasync does.
//
// Returns 0, or -1 with the first error of a write to the device that this handle has not heard of: such bytes stay in memory and are tried again.
//
// The caller's part:
// `file` is an open handle.
int forebay_datasync(const struct forebay_file *file);

// Makes all bytes that were written to the file durable, and its metadata, as fsync does. Errors are those of forebay_datasync.
//
// The caller's part:
// `file` is an open handle.
int forebay_sync(const struct forebay_file *file);

// Hands all bytes that were written to the file to the device, so that programs outside the session see them. They are not durable by that. Errors are those of
// forebay_datasync.
//
// The caller's part:
// `file` is an open handle.
int forebay_flush(const struct forebay_file *file);

// Sets the file's length, bytes: what is beyond is gone, what is new is zeros.
//
// Returns 0, or -1 with EINVAL when the file is not open for writing or the length is negative, EFBIG beyond the largest file, or what the file
// system says.
//
// The caller's part:
// `file` is an open handle.
int forebay_truncate(const struct forebay_file *file,
                     int64_t length);

// The file's length, bytes, as the session sees it: stat(2) may tell an older one until the file is flushed. -1 with what the kernel says
// on failure.
//
// The caller's part:
// `file` is an open handle.
int64_t forebay_size(const struct forebay_file *file);

// Makes `length` bytes from `offset` on zeros, and gives their space back. The file's length does not change.
//
// Returns 0, or -1 with EINVAL for an empty or negative range, EBADF when the file is not open for writing, EOPNOTSUPP where the file system cannot.
//
// The caller's part:
// `file` is an open handle.
int forebay_punch(const struct forebay_file *file,
                  int64_t offset,
                  int64_t length);

// Says how `length` bytes from `offset` on will be read, as posix_fadvise does; a length of 0 is to the end. `advice` is one of
// POSIX_FADV_NORMAL, _SEQUENTIAL, _RANDOM, _WILLNEED, _DONTNEED and _NOREUSE.
//
// Returns 0, or -1 with EINVAL for other advice or a negative range.
//
// The caller's part:
// `file` is an open handle.
int forebay_advise(const struct forebay_file *file,
                   int64_t offset,
                   int64_t length,
                   int advice);

// Why the kernel serves this file, as a text of up to `size` bytes with the zero byte at its end; "" while the engine serves it. `reason` may be
// NULL where `size` is 0.
//
// Returns the length of the whole text, 0 while the engine serves the file; or -1.
//
// The caller's part:
// `file` is an open handle; `reason` is valid for writes of `size` bytes.
ptrdiff_t forebay_kernel_reason(const struct forebay_file *file,
                                char *reason,
                                size_t size);

// Takes a view of `count` bytes from `offset` on, cut at the file's end. What is missing in memory is read first. Where it can be it is no copy: then it
// counts as the session's memory until it is closed. At most half of that may be so, and further views are copies.
//
// Returns NULL on failure. errno is EBADF when the file is not open for reading, EINVAL for a negative offset, ENOMEM when it must be a copy and there is not
// so much memory, or what the device says.
//
// The caller's part:
// `file` is an open handle.
struct forebay_view *forebay_view_open(const struct forebay_file *file,
                                       int64_t offset,
                                       size_t count);

// As forebay_view_open, of a file of a store: the bytes where they lie in persistent memory, where that is side by side, and a copy where it is not. Writes
// there go elsewhere until the view is closed. A store stays open until the last view of it is closed, whatever else is closed before.
//
// Returns NULL on failure. errno is EBADF when the file is not open for reading, EINVAL for a negative offset, ENOMEM when it must be a copy and there is not
// so much memory, EIO where the store is damaged.
//
// The caller's part:
// `file` is an open handle.
struct forebay_view *forebay_store_view_open(const struct forebay_store_file *file,
                                             int64_t offset,
                                             size_t count);

// The first byte of a view, which may be read only. Valid until forebay_view_close; NULL for a view without bytes, and on failure.
//
// The caller's part:
// `view` is an open handle.
const void *forebay_view_bytes(const struct forebay_view *view);

// How many bytes a view has: fewer than were asked for at the file's end only.
//
// Returns -1 on failure.
//
// The caller's part:
// `view` is an open handle.
ptrdiff_t forebay_view_length(const struct forebay_view *view);

// Returns 1 where a view is a copy, since the kernel serves the file, as much is held in views as may be, or a store has not the bytes side by side; 0 where it is not; -1 on failure.
//
// The caller's part:
// `view` is an open handle.
int forebay_view_is_copy(const struct forebay_view *view);

// Gives a view back; its bytes must not be read any more. NULL is no view, and nothing is done. In a forked child nothing is done either: its parent
// has the view.
//
// The caller's part:
// `view` is NULL or a handle that is not closed yet, and no other thread uses it or its bytes any more.
void forebay_view_close(struct forebay_view *view);

// Makes a window of `count` zeros. It counts as the session's memory, together with what views hold: at most half of that. What does not go into that
// is memory of the process's own, and to give it to a file is a copy.
//
// Returns NULL on failure. errno is EINVAL for no bytes or too many, ENOMEM when there are no such addresses.
//
// The caller's part:
// `session` is an open handle.
struct forebay_window *forebay_window_open(const struct forebay_session *session,
                                           size_t count);

// The first byte of a window, which may be read and written. Valid until forebay_window_slide and forebay_window_close. A forked child has nothing
// there, and ends with SIGSEGV if it looks.
//
// Returns NULL on failure.
//
// The caller's part:
// `window` is an open handle.
void *forebay_window_bytes(const struct forebay_window *window);

// Gives `count` bytes from the window's byte `start` on to a file at `offset`: afterwards the file has them as if forebay_pwrite had written them, and
// no later store into the window reaches it, from whatever thread. The first store into each page of what was given is slow: the system copies the
// page. forebay_window_refill and forebay_window_detach spare that.
//
// Returns how many bytes: all, unless an error came after some; -1 on failure. errno is EINVAL for bytes that the window does not have and for a
// negative offset, or what forebay_pwrite says.
//
// The caller's part:
// `window` and `file` are open handles; no other thread stores into the bytes during the call, lest it is unknown which of them the file has.
ssize_t forebay_window_commit(const struct forebay_window *window,
                              const struct forebay_file *file,
                              int64_t offset,
                              size_t start,
                              size_t count);

// Makes what was given writable again at once, with the bytes that the window shows: to change some of them and give them again. Where the session
// has no memory for it, blocks stay as they were, and the next commit of them is a copy.
//
// Returns 0, or -1 on failure.
//
// The caller's part:
// `window` is an open handle, into whose bytes no other thread stores during the call.
int forebay_window_refill(const struct forebay_window *window);

// Has zeros where blocks were given, without a copy: to fill the window anew. All else stays as it is.
//
// Returns 0, or -1 on failure.
//
// The caller's part:
// As for forebay_window_refill.
int forebay_window_detach(const struct forebay_window *window);

// Empties a window, and moves its first byte to where a byte at `offset` lies in a file's pieces: a commit at this offset is a copy only of what lies
// in pieces in part. Its bytes are zeros at other addresses then: forebay_window_bytes says where.
//
// Returns 0, or -1 on failure. errno is EINVAL for a negative offset, or what forebay_window_open says.
//
// The caller's part:
// `window` is an open handle, at whose bytes nobody looks any more.
int forebay_window_slide(const struct forebay_window *window,
                         int64_t offset);

// How many bytes have gone to files from a window without a copy.
//
// Returns -1 on failure.
//
// The caller's part:
// `window` is an open handle.
int64_t forebay_window_attached(const struct forebay_window *window);

// Gives a window back; its bytes must not be used any more, and what was given to files is theirs. NULL is no window, and nothing is done. In a forked
// child nothing is done either: its parent has the window.
//
// The caller's part:
// `window` is NULL or a handle that is not closed yet, and no other thread uses it or its bytes any more.
void forebay_window_close(struct forebay_window *window);

// Joins the pool of this name, by the configuration that its servers have: `name` is NAME of NAME.toml, or a path with a slash in it. Waits up to
// `patience_ms` milliseconds for servers that are starting. Threads of this process belong to it.
//
// Returns NULL on failure. errno is EINVAL for a configuration that is not there or makes no sense (the text names it), ENOTCONN when the pool does not answer
// or does not let this process in.
//
// The caller's part:
// `name` ends with a zero byte.
struct forebay_pool *forebay_pool_open(const char *name,
                                       uint32_t patience_ms);

// Gives the handle back. Files that were opened by it stay open; the process leaves the pool when the last of them is closed. NULL is no
// pool, and nothing is done. In a forked child nothing happens to what is its parent's. Returns 0.
//
// The caller's part:
// `pool` is NULL or a handle that is not closed yet, and no other thread uses it any more.
int forebay_pool_close(struct forebay_pool *pool);

// Makes a directory, with these permissions less the umask: each client of the pool may do everything, and mounts go by them. Paths begin at the pool's
// root.
//
// Returns 0, or -1 with EEXIST when something is there, ENOENT when the directory around it is not, or an error of the pool's (docs/c.md).
//
// The caller's part:
// `pool` is an open handle, `path` ends with a zero byte.
int forebay_pool_mkdir(const struct forebay_pool *pool,
                       const char *path,
                       uint32_t mode);

// Removes a file, a symbolic link or an empty directory. A client that has the file open finds that it is gone (ESTALE).
//
// Returns 0, or -1 with ENOENT when it is not there, ENOTEMPTY when it is a directory with names, or an error of the pool's.
//
// The caller's part:
// As for forebay_pool_mkdir.
int forebay_pool_remove(const struct forebay_pool *pool,
                        const char *path);

// Gives a file or a directory another name. A file that has that name is replaced, in one step.
//
// Returns 0, or -1 with ENOENT, EXDEV for a directory that would go into another one, or an error of the pool's.
//
// The caller's part:
// `pool` is an open handle, `from` and `to` end with zero bytes.
int forebay_pool_rename(const struct forebay_pool *pool,
                        const char *from,
                        const char *to);

// Calls `visit` with each name in a directory, in no order, and with 1 if it is a directory's; the name is there for as long as the call. The list is of one
// moment. It ends early where `visit` answers something else than 0.
//
// Returns 0, or what `visit` has answered; or -1 with ENOENT, ENOTDIR, EINVAL where `visit` is NULL, or an error of the pool's.
//
// The caller's part:
// `pool` is an open handle, `path` ends with a zero byte, and `visit` returns.
int forebay_pool_list(const struct forebay_pool *pool,
                      const char *path,
                      int (*visit)(void *context, const char *name, int is_directory),
                      void *context);

// Opens a file of the pool, and makes it where `flags` say so. `flags` and `mode` are as for forebay_open, the umask as well.
//
// Returns NULL on failure. errno is EINVAL for other flags, ENOENT, EEXIST, EISDIR, or an error of the pool's.
//
// The caller's part:
// `pool` is an open handle, `path` ends with a zero byte.
struct forebay_pool_file *forebay_pool_file_open(const struct forebay_pool *pool,
                                                 const char *path,
                                                 int flags,
                                                 uint32_t mode);

// Closes a file, and syncs it first if something was written: what this process has not synced is lost with it. The handle is gone whatever the answer is. NULL
// is no file, and nothing is done, as to a parent's handle in a forked child.
//
// Returns 0, or -1 with an error of the sync's.
//
// The caller's part:
// `file` is NULL or a handle that is not closed yet, and no other thread uses it any more.
int forebay_pool_file_close(struct forebay_pool_file *file);

// Reads up to `count` bytes from `offset` on into `buffer`: what the last write that has returned before, of any host's, has put there.
//
// Returns the number of bytes, fewer than `count` only at the file's end, 0 beyond it; or -1 with EBADF when the file is not open for
// reading, EINVAL for a negative offset or a count beyond SSIZE_MAX, or an error of the pool's.
//
// The caller's part:
// `file` is an open handle; `buffer` is valid for writes of `count` bytes.
ptrdiff_t forebay_pool_pread(const struct forebay_pool_file *file,
                             void *buffer,
                             size_t count,
                             int64_t offset);

// Writes `count` bytes at `offset`, as one step; at the end of the file where it was opened with O_APPEND, whatever the offset. All hosts see them from here on;
// they outlive this host once forebay_pool_sync has returned 0.
//
// Returns `count`; or -1 with EBADF when the file is not open for writing, EINVAL for a negative offset or a count beyond SSIZE_MAX, EFBIG beyond the largest
// file, or an error of the pool's.
//
// The caller's part:
// `file` is an open handle; `buffer` is valid for reads of `count` bytes, which nobody changes meanwhile.
ptrdiff_t forebay_pool_pwrite(const struct forebay_pool_file *file,
                              const void *buffer,
                              size_t count,
                              int64_t offset);

// Writes `count` bytes at the file's end, wherever that is, whole and apart from what any host appends.
//
// Returns the offset, in bytes, at which they lie; or -1 with the errors of forebay_pool_pwrite.
//
// The caller's part:
// As for forebay_pool_pwrite.
int64_t forebay_pool_append(const struct forebay_pool_file *file, const void *buffer, size_t count);

// What this host has written to the file is at the servers, in all copies, when this returns 0; in a pool with a home it is durable there.
//
// Returns 0, or -1 with an error of the pool's.
//
// The caller's part:
// `file` is an open handle.
int forebay_pool_sync(const struct forebay_pool_file *file);

// Sets the file's length, bytes: what is beyond is gone, what is new is zeros.
//
// Returns 0, or -1 with EINVAL when the file is not open for writing or the length is negative, EFBIG beyond the largest file, or an error of the pool's.
//
// The caller's part:
// `file` is an open handle.
int forebay_pool_truncate(const struct forebay_pool_file *file,
                          int64_t length);

// The file's length, bytes, as all hosts see it. -1 with an error of the pool's.
//
// The caller's part:
// `file` is an open handle.
int64_t forebay_pool_size(const struct forebay_pool_file *file);

// Makes a store of `size` bytes in a file, which is made where it is not there, or in a device; 0: as many bytes as are there. `forebay pmem create` has more
// options.
//
// Returns 0, or -1. errno is EEXIST when a store or other bytes are there, EINVAL when it is too small, EBUSY when the store is open, or what the system says.
//
// The caller's part:
// `path` ends with a zero byte.
int forebay_store_create(const char *path,
                         uint64_t size);

// Opens a store, after a crash too. `flags` are O_RDWR, or O_RDONLY: then nothing is changed, also not what a crash has left. What was done is durable after
// `flush_ms` milliseconds at the latest, by a thread of this process, or when it is synced; a negative number: only then.
//
// Returns NULL on failure. errno is EBUSY when another process has it open, or this one; EINVAL for other flags and where no store is, EIO when it is damaged,
// or what the system says.
//
// The caller's part:
// `path` ends with a zero byte.
struct forebay_store *forebay_store_open(const char *path,
                                         int flags,
                                         int64_t flush_ms);

// Syncs, and gives the handle back, whatever the answer is. Files and windows that were opened by it keep the store open, and the last of them to be closed
// closes it; a program that ends before may lose what was done since the last sync. NULL is no store, and nothing is done, as to a parent's handle in a
// forked child.
//
// Returns 0, or -1 with EIO when it is not known what is durable.
//
// The caller's part:
// `store` is NULL or a handle that is not closed yet, and no other thread uses it any more.
int forebay_store_close(struct forebay_store *store);

// Everything that was done in the store before is durable when this returns 0: names, bytes and sizes of all files.
//
// Returns 0, or -1 with EIO when it is not known what is durable.
//
// The caller's part:
// `store` is an open handle.
int forebay_store_sync(const struct forebay_store *store);

// Makes a directory, with these permissions, of which nothing is taken by the umask: a program that has the store open may do everything, and mounts go
// by them. Paths begin at the store's root, and so do symbolic links that begin with a slash.
//
// Returns 0, or -1 with EEXIST when something is there, ENOENT when the directory around it is not, ENOSPC when the store is full, EROFS when it is open for
// reading only.
//
// The caller's part:
// `store` is an open handle, `path` ends with a zero byte.
int forebay_store_mkdir(const struct forebay_store *store,
                        const char *path,
                        uint32_t mode);

// Removes a file, a symbolic link or an empty directory. A file that is open stays until it is closed.
//
// Returns 0, or -1 with ENOENT when it is not there, ENOTEMPTY when it is a directory with names, EBUSY for the root.
//
// The caller's part:
// As for forebay_store_mkdir.
int forebay_store_remove(const struct forebay_store *store,
                         const char *path);

// Gives a file or a directory another name. What has that name is replaced, in one step, as rename(2) does it.
//
// Returns 0, or -1 with ENOENT, or another error of rename(2).
//
// The caller's part:
// `store` is an open handle, `from` and `to` end with zero bytes.
int forebay_store_rename(const struct forebay_store *store,
                         const char *from,
                         const char *to);

// Calls `visit` with each name in a directory, as forebay_pool_list does.
//
// Returns 0, or what `visit` has answered; or -1 with ENOENT, ENOTDIR, EINVAL where `visit` is NULL.
//
// The caller's part:
// `store` is an open handle, `path` ends with a zero byte, and `visit` returns.
int forebay_store_list(const struct forebay_store *store,
                       const char *path,
                       int (*visit)(void *context, const char *name, int is_directory),
                       void *context);

// Opens a file of the store, and makes it where `flags` say so. `flags` and `mode` are as for forebay_open; nothing is taken from `mode` by the umask.
//
// Returns NULL on failure. errno is EINVAL for other flags, ENOENT, EEXIST, EISDIR, ELOOP, ENXIO for what is no regular file, ENOSPC, or EROFS.
//
// The caller's part:
// `store` is an open handle, `path` ends with a zero byte.
struct forebay_store_file *forebay_store_file_open(const struct forebay_store *store,
                                                   const char *path,
                                                   int flags,
                                                   uint32_t mode);

// Closes a file, and the store with it if nobody else has that any more: only then anything is synced. The handle is gone whatever the answer is. NULL is no
// file, and nothing is done, as to a parent's handle in a forked child.
//
// Returns 0, or -1 with an error of forebay_store_close.
//
// The caller's part:
// `file` is NULL or a handle that is not closed yet, and no other thread uses it any more.
int forebay_store_file_close(struct forebay_store_file *file);

// Reads up to `count` bytes from `offset` on into `buffer`.
//
// Returns the number of bytes, fewer than `count` only at the file's end, 0 beyond it; or -1 with EBADF when the file is not open for reading, EINVAL for a
// negative offset or a count beyond SSIZE_MAX, EIO where the store is damaged.
//
// The caller's part:
// `file` is an open handle; `buffer` is valid for writes of `count` bytes.
ptrdiff_t forebay_store_pread(const struct forebay_store_file *file,
                              void *buffer,
                              size_t count,
                              int64_t offset);

// Writes `count` bytes at `offset`; at the end of the file where it was opened with O_APPEND, whatever the offset. Each aligned 2 MiB of the file are
// written as a whole or not at all, also after a crash.
//
// Returns the number of bytes: all, unless the store became full after some; or -1 with EBADF when the file is not open for writing, ENOSPC when the store
// is full, EROFS when it is open for reading only, EINVAL for a negative offset or a count beyond SSIZE_MAX, EFBIG beyond the largest file, EIO when it is not
// known what is durable.
//
// The caller's part:
// `file` is an open handle; `buffer` is valid for reads of `count` bytes, which nobody changes meanwhile.
ptrdiff_t forebay_store_pwrite(const struct forebay_store_file *file,
                               const void *buffer,
                               size_t count,
                               int64_t offset);

// Writes `count` bytes at the file's end, wherever that is, whole and apart from what others append.
//
// Returns the offset, in bytes, at which they lie; or -1 with the errors of forebay_store_pwrite. Bytes that were written before an error stay.
//
// The caller's part:
// As for forebay_store_pwrite.
int64_t forebay_store_append(const struct forebay_store_file *file,
                             const void *buffer,
                             size_t count);

// As forebay_store_sync, of the store that the file is in.
//
// Returns 0, or -1 with EIO when it is not known what is durable.
//
// The caller's part:
// `file` is an open handle.
int forebay_store_file_sync(const struct forebay_store_file *file);

// Sets the file's length, bytes: what is beyond is gone, what is new is zeros.
//
// Returns 0, or -1 with EINVAL when the file is not open for writing or the length is negative, EFBIG beyond the largest file, or an error of
// forebay_store_pwrite.
//
// The caller's part:
// `file` is an open handle.
int forebay_store_truncate(const struct forebay_store_file *file,
                           int64_t length);

// Makes `length` bytes from `offset` on zeros, and gives their space back. The file's length does not change.
//
// Returns 0, or -1 with EINVAL for an empty or negative range, EBADF when the file is not open for writing.
//
// The caller's part:
// `file` is an open handle.
int forebay_store_punch(const struct forebay_store_file *file, int64_t offset, int64_t length);

// The file's length, bytes. -1 on failure.
//
// The caller's part:
// `file` is an open handle.
int64_t forebay_store_size(const struct forebay_store_file *file);

// Makes a window of `count` zeros. It counts as the session's memory, together with what views hold: at most half of that. What does not go into that
// is memory of the process's own, and to give it to a file is a copy.
//
// Returns NULL on failure. errno is EINVAL for no bytes or too many, ENOMEM when there are no such addresses.
//
// The caller's part:
// `session` is an open handle.
struct forebay_window *forebay_window_open(const struct forebay_session *session,
                                           size_t count);

// The first byte of a window, which may be read and written. Valid until forebay_window_slide and forebay_window_close. A forked child has nothing
// there, and ends with SIGSEGV if it looks.
//
// Returns NULL on failure.
//
// The caller's part:
// `window` is an open handle.
void *forebay_window_bytes(const struct forebay_window *window);

// Gives `count` bytes from the window's byte `start` on to a file at `offset`: afterwards the file has them as if forebay_pwrite had written them, and
// no later store into the window reaches it, from whatever thread. The first store into each page of what was given is slow: the system copies the
// page. forebay_window_refill and forebay_window_detach spare that.
//
// Returns how many bytes: all, unless an error came after some; -1 on failure. errno is EINVAL for bytes that the window does not have and for a
// negative offset, or what forebay_pwrite says.
//
// The caller's part:
// `window` and `file` are open handles; no other thread stores into the bytes during the call, lest it is unknown which of them the file has.
ssize_t forebay_window_commit(const struct forebay_window *window,
                              const struct forebay_file *file,
                              int64_t offset,
                              size_t start,
                              size_t count);

// Makes what was given writable again at once, with the bytes that the window shows: to change some of them and give them again. Where the session
// has no memory for it, blocks stay as they were, and the next commit of them is a copy.
//
// Returns 0, or -1 on failure.
//
// The caller's part:
// `window` is an open handle, into whose bytes no other thread stores during the call.
int forebay_window_refill(const struct forebay_window *window);

// Has zeros where blocks were given, without a copy: to fill the window anew. All else stays as it is.
//
// Returns 0, or -1 on failure.
//
// The caller's part:
// As for forebay_window_refill.
int forebay_window_detach(const struct forebay_window *window);

// Empties a window, and moves its first byte to where a byte at `offset` lies in a file's pieces: a commit at this offset is a copy only of what lies
// in pieces in part. Its bytes are zeros at other addresses then: forebay_window_bytes says where.
//
// Returns 0, or -1 on failure. errno is EINVAL for a negative offset, or what forebay_window_open says.
//
// The caller's part:
// `window` is an open handle, at whose bytes nobody looks any more.
int forebay_window_slide(const struct forebay_window *window,
                         int64_t offset);

// How many bytes have gone to files from a window without a copy.
//
// Returns -1 on failure.
//
// The caller's part:
// `window` is an open handle.
int64_t forebay_window_attached(const struct forebay_window *window);

// Gives a window back; its bytes must not be used any more, and what was given to files is theirs. NULL is no window, and nothing is done. In a forked
// child nothing is done either: its parent has the window.
//
// The caller's part:
// `window` is NULL or a handle that is not closed yet, and no other thread uses it or its bytes any more.
void forebay_window_close(struct forebay_window *window);

// Makes a window for up to `count` bytes of a file from `offset` on: as many as the store has side by side, which forebay_store_window_length says. Its bytes
// are whatever lay there before, of removed files too. The file has nothing of them before the commit. A window keeps the store open, and its file there.
//
// Returns NULL on failure. errno is EINVAL for no bytes, a negative offset and files that were opened with O_APPEND, or what forebay_store_pwrite says.
//
// The caller's part:
// `file` is an open handle.
struct forebay_store_window *forebay_store_window_open(const struct forebay_store_file *file,
                                                       int64_t offset,
                                                       size_t count);

// The first byte of a window, which may be read and written until forebay_store_window_commit and forebay_store_window_close. NULL for a window without
// bytes, and on failure. A forked child has nothing there, and ends with SIGSEGV if it looks.
//
// The caller's part:
// `window` is an open handle.
void *forebay_store_window_bytes(const struct forebay_store_window *window);

// How many bytes a window has: fewer than were asked for where the store has no more side by side, none after a commit.
//
// Returns -1 on failure.
//
// The caller's part:
// `window` is an open handle.
ptrdiff_t forebay_store_window_length(const struct forebay_store_window *window);

// Gives the first `count` bytes to the file, where the window was made for, without a copy: as forebay_store_pwrite writes them. The window is empty then,
// and its memory the file's: a store to its former address would change what the file has, or another one by then, and what views show.
//
// Returns how many bytes: all, unless an error came after some: then the window has the others, at the address that forebay_store_window_bytes says, and
// they may be committed again. -1 on failure, with EINVAL for more bytes than there are, or what forebay_store_pwrite says.
//
// The caller's part:
// `window` is an open handle; nobody stores into its bytes during the call or after it.
ptrdiff_t forebay_store_window_commit(const struct forebay_store_window *window,
                                      size_t count);

// Gives a window back; what was not committed is nowhere. NULL is no window, and nothing is done. In a forked child nothing is done either: its parent has
// the window.
//
// The caller's part:
// `window` is NULL or a handle that is not closed yet, and no other thread uses it or its bytes any more.
void forebay_store_window_close(struct forebay_store_window *window);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FOREBAY_H */
