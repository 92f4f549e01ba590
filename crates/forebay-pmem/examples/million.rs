//! Fills a store with names and leaves it as a crash does: `million STORE` makes 1,000 directories of 1,000 empty files each, changes the modes of some
//! and makes each change durable, so that the log has many records, and ends without closing the store.
//!
//! `bench/programs/mount-after-crash.sh` times how long it takes to mount such a store.

use std::error::Error;
use std::path::Path;

use forebay_pmem::{Changes, Creator, OpenOptions, ROOT, Store};

/// Changes that are made durable one by one: nearly half of the log of a large store. With more it would begin anew.
const SYNCS: usize = 45_000;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("million STORE")?;
    let by = |mode| Creator {
        mode,
        uid: 0,
        gid: 0,
    };
    let mut files = Vec::new();
    let store = Store::open(Path::new(&path), OpenOptions::default())?;
    for directory in 0..1000 {
        let name = directory.to_string();
        let made = store.mkdir(ROOT, name.as_bytes(), by(0o755))?;
        for file in 0..1000 {
            let made = store.create(made.inode, file.to_string().as_bytes(), by(0o644))?;
            files.push(made.inode);
        }
    }
    store.sync()?;
    let private = Changes {
        mode: Some(0o600),
        ..Changes::default()
    };
    for file in files.into_iter().step_by(20).take(SYNCS) {
        store.setattr(file, &private)?;
        store.sync()?;
    }
    // Nobody closes it: the log stays as it is.
    std::mem::forget(store);
    Ok(())
}
