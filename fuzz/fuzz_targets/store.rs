//! Damaged stores: whatever is in one, checking it, opening it, reading all of it and writing into it end, with an error or without.
//!
//! An input is a list of changes to a small store: which block, where in it, eight bytes, and whether the block's checksum is made right again, so
//! that what lies behind the checksums is reached.

#![no_main]

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use forebay_pmem::layout::superblock::Superblock;
use forebay_pmem::layout::{self, BLOCK};
use forebay_pmem::{CreateOptions, Creator, OpenOptions, ROOT, Store, check, create_with};

/// Bytes of a change in an input.
const CHANGE: usize = 13;
/// Names that are made, and asked for afterwards.
const NAMES: [&str; 4] = ["one", "two", "directory", "a link"];

/// A file without a name, by a path that leads to it, and what a store in it holds at first.
struct Place {
    file: File,
    path: PathBuf,
    bytes: Vec<u8>,
    id: u64,
}

fn place() -> &'static Place {
    static PLACE: OnceLock<Place> = OnceLock::new();
    PLACE.get_or_init(|| {
        let named = Path::new("/dev/shm").join(format!("forebay-fuzz-{}", std::process::id()));
        let options = CreateOptions {
            size: Some(240 * BLOCK as u64),
            log_blocks: Some(24),
            inodes: Some(120),
            ..CreateOptions::default()
        };
        create_with(&named, &options).expect("a store");
        fill(&named);
        let file = File::options()
            .read(true)
            .write(true)
            .open(&named)
            .expect("its file");
        std::fs::remove_file(&named).expect("its name goes");
        let bytes = {
            let mut bytes = vec![0; file.metadata().expect("its length").len() as usize];
            file.read_exact_at(&mut bytes, 0).expect("its bytes");
            bytes
        };
        let block: &[u8; BLOCK] = bytes[..BLOCK].try_into().expect("a block");
        let id = Superblock::decode(block).expect("its first block").id;
        Place {
            path: format!("/proc/self/fd/{}", file.as_raw_fd()).into(),
            file,
            bytes,
            id,
        }
    })
}

const fn by(mode: u32) -> Creator {
    Creator {
        uid: 0,
        gid: 0,
        mode,
    }
}

fn fill(path: &Path) {
    let store = Store::open(path, OpenOptions::default()).expect("opens");
    let directory = store.mkdir(ROOT, b"directory", by(0o755)).expect("made");
    for (at, name) in NAMES[..2].iter().enumerate() {
        let file = store
            .create(ROOT, name.as_bytes(), by(0o644))
            .expect("made");
        let bytes = vec![at as u8 + 1; 5000 + 75_000 * at];
        store.write(file.inode, 0, &bytes).expect("written");
        store.setxattr(file.inode, b"user.x", b"y", 0).expect("set");
        store.link(file.inode, directory.inode, b"also").ok();
    }
    store
        .symlink(ROOT, b"a link", b"one", by(0o777))
        .expect("made");
    store.close().expect("closed");
}

/// Everything that can be asked of a store, whatever it answers.
fn use_it(store: &Store) {
    // Damage may lead in a circle, as `.` and `..` do.
    let (mut found, mut seen) = (vec![ROOT], BTreeSet::new());
    let mut memory = [0; 9000];
    while let Some(inode) = found.pop() {
        if !seen.insert(inode) {
            continue;
        }
        let _ = store.read(inode, 0, &mut memory);
        let _ = store.readlink(inode);
        let _ = store.listxattr(inode);
        let _ = store.getattr(inode);
        let _ = store.readdir(inode, 0, &mut |entry| {
            found.push(entry.inode);
            true
        });
    }
    for name in NAMES {
        if let Ok(is) = store.create(ROOT, name.as_bytes(), by(0o644)) {
            let _ = store.write(is.inode, 0, &memory);
        }
        let _ = (
            store.unlink(ROOT, name.as_bytes()),
            store.rmdir(ROOT, name.as_bytes()),
        );
    }
    let _ = store.sync();
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let place = place();
    let mut bytes = place.bytes.clone();
    let blocks = bytes.len() / BLOCK;
    for change in data.chunks_exact(CHANGE) {
        let block = usize::from(u16::from_le_bytes([change[0], change[1]])) % blocks;
        let at = usize::from(u16::from_le_bytes([change[2], change[3]])) % (BLOCK - 8);
        let part = &mut bytes[block * BLOCK..][..BLOCK];
        part[at..at + 8].copy_from_slice(&change[4..12]);
        if change[12] & 1 != 0 {
            layout::seal(place.id, part.try_into().expect("a block"));
        }
    }
    place.file.write_all_at(&bytes, 0).expect("written");
    let _ = check(&place.path);
    let options = OpenOptions {
        flush_interval: None,
        ..OpenOptions::default()
    };
    if let Ok(store) = Store::open(&place.path, options) {
        use_it(&store);
        let _ = store.close();
    }
});
