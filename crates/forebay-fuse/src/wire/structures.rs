//! Structures that travel, by their names in `fuse.h` without `fuse_`.

use super::Field;

structures! {
    /// Before each request.
    InHeader {
        /// Bytes of the whole request, this header among them.
        len: u32,
        opcode: u32,
        /// Which request it is: the answer names it.
        unique: u64,
        /// The file that it is about.
        nodeid: u64,
        uid: u32,
        gid: u32,
        pid: u32,
        total_extlen: u16,
        padding: u16,
    }

    /// Before each answer.
    OutHeader {
        len: u32,
        /// 0, or a negative error number.
        error: i32,
        unique: u64,
    }

    InitIn {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
        flags2: u32,
        unused: [u32; 11],
    }

    InitOut {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
        max_background: u16,
        congestion_threshold: u16,
        max_write: u32,
        /// Times are multiples of so many nanoseconds.
        time_gran: u32,
        max_pages: u16,
        map_alignment: u16,
        flags2: u32,
        max_stack_depth: u32,
        request_timeout: u16,
        unused: [u16; 11],
    }

    Attr {
        ino: u64,
        size: u64,
        blocks: u64,
        atime: i64,
        mtime: i64,
        ctime: i64,
        atimensec: u32,
        mtimensec: u32,
        ctimensec: u32,
        mode: u32,
        nlink: u32,
        uid: u32,
        gid: u32,
        rdev: u32,
        blksize: u32,
        flags: u32,
    }

    AttrOut {
        attr_valid: u64,
        attr_valid_nsec: u32,
        dummy: u32,
        attr: Attr,
    }

    EntryOut {
        nodeid: u64,
        generation: u64,
        entry_valid: u64,
        attr_valid: u64,
        entry_valid_nsec: u32,
        attr_valid_nsec: u32,
        attr: Attr,
    }

    ForgetIn {
        nlookup: u64,
    }

    BatchForgetIn {
        count: u32,
        dummy: u32,
    }

    ForgetOne {
        nodeid: u64,
        nlookup: u64,
    }

    GetattrIn {
        getattr_flags: u32,
        dummy: u32,
        fh: u64,
    }

    SetattrIn {
        valid: u32,
        padding: u32,
        fh: u64,
        size: u64,
        lock_owner: u64,
        atime: i64,
        mtime: i64,
        ctime: i64,
        atimensec: u32,
        mtimensec: u32,
        ctimensec: u32,
        mode: u32,
        unused4: u32,
        uid: u32,
        gid: u32,
        unused5: u32,
    }

    MknodIn {
        mode: u32,
        rdev: u32,
        umask: u32,
        padding: u32,
    }

    MkdirIn {
        mode: u32,
        umask: u32,
    }

    RenameIn {
        newdir: u64,
    }

    Rename2In {
        newdir: u64,
        flags: u32,
        padding: u32,
    }

    LinkIn {
        oldnodeid: u64,
    }

    OpenIn {
        flags: i32,
        open_flags: u32,
    }

    OpenOut {
        fh: u64,
        open_flags: u32,
        backing_id: i32,
    }

    CreateIn {
        flags: i32,
        mode: u32,
        umask: u32,
        open_flags: u32,
    }

    CreateOut {
        entry: EntryOut,
        opened: OpenOut,
    }

    ReadIn {
        fh: u64,
        offset: u64,
        size: u32,
        read_flags: u32,
        lock_owner: u64,
        flags: i32,
        padding: u32,
    }

    WriteIn {
        fh: u64,
        offset: u64,
        size: u32,
        write_flags: u32,
        lock_owner: u64,
        flags: i32,
        padding: u32,
    }

    WriteOut {
        size: u32,
        padding: u32,
    }

    ReleaseIn {
        fh: u64,
        flags: i32,
        release_flags: u32,
        lock_owner: u64,
    }

    FlushIn {
        fh: u64,
        unused: u32,
        padding: u32,
        lock_owner: u64,
    }

    FsyncIn {
        fh: u64,
        fsync_flags: u32,
        padding: u32,
    }

    /// As the kernel sends it to those who do not ask for more (`FUSE_COMPAT_SETXATTR_IN_SIZE`).
    SetxattrIn {
        size: u32,
        flags: i32,
    }

    GetxattrIn {
        size: u32,
        padding: u32,
    }

    GetxattrOut {
        size: u32,
        padding: u32,
    }

    StatfsOut {
        blocks: u64,
        bfree: u64,
        bavail: u64,
        files: u64,
        ffree: u64,
        bsize: u32,
        namelen: u32,
        frsize: u32,
        padding: u32,
        spare: [u32; 6],
    }

    FallocateIn {
        fh: u64,
        offset: u64,
        length: u64,
        mode: i32,
        padding: u32,
    }

    LseekIn {
        fh: u64,
        offset: u64,
        whence: i32,
        padding: u32,
    }

    /// What the kernel is to forget of a file: all but pages, and these pages, if `off` is not negative.
    InvalInodeOut {
        ino: u64,
        off: i64,
        len: i64,
    }

    LseekOut {
        offset: u64,
    }

    IoctlIn {
        fh: u64,
        flags: u32,
        cmd: u32,
        arg: u64,
        in_size: u32,
        out_size: u32,
    }

    IoctlOut {
        result: i32,
        flags: u32,
        in_iovs: u32,
        out_iovs: u32,
    }

    /// The answer to `STORE_SPACE`: the kernel's part, and two numbers.
    SpaceOut {
        about: IoctlOut,
        range: [u64; 2],
    }

    /// The answer to `STORE_SYNC`: the kernel's part, and what the file is like.
    SyncedOut {
        about: IoctlOut,
        found: [u64; 5],
    }

    CopyFileRangeIn {
        fh_in: u64,
        off_in: u64,
        nodeid_out: u64,
        fh_out: u64,
        off_out: u64,
        len: u64,
        flags: u64,
    }

    /// One name of a directory; the name follows, and zeros up to the next multiple of 8 bytes.
    Dirent {
        ino: u64,
        off: u64,
        namelen: u32,
        kind: u32,
    }

    /// What a ring says of a request, and of its answer (`struct fuse_uring_ent_in_out`).
    RingEntry {
        flags: u64,
        commit_id: u64,
        payload_sz: u32,
        padding: u32,
        reserved: u64,
    }

    /// What the entry of a command says (`struct fuse_uring_cmd_req`).
    RingCommand {
        flags: u64,
        commit_id: u64,
        qid: u16,
        padding: [u16; 3],
    }
}
