//! Where each field lies, as a C compiler lays out `fuse.h`: sizes and offsets here are by hand.

use super::*;

/// Whether a field of all ones is these bytes and no others, and is read from them again.
macro_rules! laid_out {
    ($($name:ident $size:literal { $($($field:ident).+ $at:literal + $len:literal),* $(,)? })*) => {$(
        assert_eq!($name::SIZE, $size, stringify!($name));
        $({
            let mut one = $name::default();
            one.$($field).+ = one.$($field).+.wrapping_sub(1);
            let bytes = one.bytes();
            for (at, byte) in bytes.iter().enumerate() {
                let expected = if ($at..$at + $len).contains(&at) { 0xff } else { 0 };
                assert_eq!(*byte, expected, "{} at {at}", stringify!($name $($field).+));
            }
            assert_eq!($name::parse(&bytes), Some(one));
        })*
        assert_eq!($name::parse(&[0; $size - 1]), None);
        assert_eq!($name::parse(&[0; $size + 1]), Some($name::default()));
    )*};
}

#[test]
fn headers_and_introductions() {
    laid_out! {
        InHeader 40 { len 0+4, opcode 4+4, unique 8+8, nodeid 16+8, uid 24+4, gid 28+4, pid 32+4, total_extlen 36+2, padding 38+2 }
        OutHeader 16 { len 0+4, error 4+4, unique 8+8 }
        InitIn 64 { major 0+4, minor 4+4, max_readahead 8+4, flags 12+4, flags2 16+4 }
        InitOut 64 {
            major 0+4, minor 4+4, max_readahead 8+4, flags 12+4, max_background 16+2, congestion_threshold 18+2, max_write 20+4,
            time_gran 24+4, max_pages 28+2, map_alignment 30+2, flags2 32+4, max_stack_depth 36+4, request_timeout 40+2,
        }
    }
}

#[test]
fn what_is_told_of_files() {
    laid_out! {
        Attr 88 {
            ino 0+8, size 8+8, blocks 16+8, atime 24+8, mtime 32+8, ctime 40+8, atimensec 48+4, mtimensec 52+4, ctimensec 56+4,
            mode 60+4, nlink 64+4, uid 68+4, gid 72+4, rdev 76+4, blksize 80+4, flags 84+4,
        }
        AttrOut 104 { attr_valid 0+8, attr_valid_nsec 8+4, dummy 12+4, attr.ino 16+8, attr.flags 100+4 }
        EntryOut 128 {
            nodeid 0+8, generation 8+8, entry_valid 16+8, attr_valid 24+8, entry_valid_nsec 32+4, attr_valid_nsec 36+4, attr.ino 40+8,
            attr.mode 100+4, attr.flags 124+4,
        }
        OpenOut 16 { fh 0+8, open_flags 8+4, backing_id 12+4 }
        CreateOut 144 { entry.nodeid 0+8, entry.attr.flags 124+4, opened.fh 128+8, opened.open_flags 136+4 }
        WriteOut 8 { size 0+4, padding 4+4 }
        GetxattrOut 8 { size 0+4, padding 4+4 }
        StatfsOut 80 {
            blocks 0+8, bfree 8+8, bavail 16+8, files 24+8, ffree 32+8, bsize 40+4, namelen 44+4, frsize 48+4, padding 52+4,
        }
        InvalInodeOut 24 { ino 0+8, off 8+8, len 16+8 }
        LseekOut 8 { offset 0+8 }
        IoctlOut 16 { result 0+4, flags 4+4, in_iovs 8+4, out_iovs 12+4 }
        SpaceOut 32 { about.result 0+4, about.out_iovs 12+4 }
        SyncedOut 56 { about.result 0+4, about.out_iovs 12+4 }
        RingEntry 32 { flags 0+8, commit_id 8+8, payload_sz 16+4, padding 20+4, reserved 24+8 }
        RingCommand 24 { flags 0+8, commit_id 8+8, qid 16+2 }
        Dirent 24 { ino 0+8, off 8+8, namelen 16+4, kind 20+4 }
    }
    let space = SpaceOut {
        range: [1, 2],
        ..SpaceOut::default()
    };
    let numbers = [1_u64.to_ne_bytes(), 2_u64.to_ne_bytes()];
    assert_eq!(space.bytes()[16..], *numbers.as_flattened());
    let synced = SyncedOut {
        found: [1, 2, 3, 4, 5],
        ..SyncedOut::default()
    };
    let numbers = [1_u64, 2, 3, 4, 5].map(u64::to_ne_bytes);
    assert_eq!(synced.bytes()[16..], *numbers.as_flattened());
}

#[test]
fn what_operations_say_of_themselves() {
    laid_out! {
        ForgetIn 8 { nlookup 0+8 }
        BatchForgetIn 8 { count 0+4, dummy 4+4 }
        ForgetOne 16 { nodeid 0+8, nlookup 8+8 }
        GetattrIn 16 { getattr_flags 0+4, dummy 4+4, fh 8+8 }
        SetattrIn 88 {
            valid 0+4, padding 4+4, fh 8+8, size 16+8, lock_owner 24+8, atime 32+8, mtime 40+8, ctime 48+8, atimensec 56+4,
            mtimensec 60+4, ctimensec 64+4, mode 68+4, unused4 72+4, uid 76+4, gid 80+4, unused5 84+4,
        }
        MknodIn 16 { mode 0+4, rdev 4+4, umask 8+4, padding 12+4 }
        MkdirIn 8 { mode 0+4, umask 4+4 }
        RenameIn 8 { newdir 0+8 }
        Rename2In 16 { newdir 0+8, flags 8+4, padding 12+4 }
        LinkIn 8 { oldnodeid 0+8 }
        OpenIn 8 { flags 0+4, open_flags 4+4 }
        CreateIn 16 { flags 0+4, mode 4+4, umask 8+4, open_flags 12+4 }
        ReadIn 40 { fh 0+8, offset 8+8, size 16+4, read_flags 20+4, lock_owner 24+8, flags 32+4, padding 36+4 }
        WriteIn 40 { fh 0+8, offset 8+8, size 16+4, write_flags 20+4, lock_owner 24+8, flags 32+4, padding 36+4 }
        ReleaseIn 24 { fh 0+8, flags 8+4, release_flags 12+4, lock_owner 16+8 }
        FlushIn 24 { fh 0+8, unused 8+4, padding 12+4, lock_owner 16+8 }
        FsyncIn 16 { fh 0+8, fsync_flags 8+4, padding 12+4 }
        SetxattrIn 8 { size 0+4, flags 4+4 }
        GetxattrIn 8 { size 0+4, padding 4+4 }
        FallocateIn 32 { fh 0+8, offset 8+8, length 16+8, mode 24+4, padding 28+4 }
        LseekIn 24 { fh 0+8, offset 8+8, whence 16+4, padding 20+4 }
        IoctlIn 32 { fh 0+8, flags 8+4, cmd 12+4, arg 16+8, in_size 24+4, out_size 28+4 }
        CopyFileRangeIn 56 { fh_in 0+8, off_in 8+8, nodeid_out 16+8, fh_out 24+8, off_out 32+8, len 40+8, flags 48+8 }
    }
}

#[test]
fn an_array_is_its_numbers_one_after_the_other() {
    let two = <[u16; 2]>::from_wire(&[1, 0, 0, 2].map(u8::to_ne_bytes).concat());
    assert_eq!(two.map(u16::to_ne_bytes), [[1, 0], [0, 2]]);
}
