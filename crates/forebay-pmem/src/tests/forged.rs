//! What a program writes of its own into a store is never taken for what the store itself writes.

use std::sync::Arc;

use super::drive::{by, clock, faults, new_store, open};
use super::sim::Simulated;
use crate::layout::{BLOCK, Geometry, Kind, get64, put64};
use crate::log::{apply_pages, encoded};
use crate::medium::machine::crc32c;
use crate::medium::{Durability, LINE, Medium};
use crate::pages::{Page, PageMap};
use crate::store::Store;
use crate::types::{CreateOptions, OpenOptions, ROOT};

/// A head as a record of one line has it, whole and with its checksum.
fn forged(id: u64, number: u64) -> [u8; LINE] {
    let mut line = [0; LINE];
    line[..8].copy_from_slice(b"FPMRECRD");
    for (at, word) in [(8, id), (16, number), (24, 1)] {
        put64(&mut line, at, word);
    }
    let sum = crc32c(0, &line);
    line[40..44].copy_from_slice(&sum.to_le_bytes());
    line
}

/// An attribute lies in the log, line by line, as a program has chosen it. Records that are later than the log's end are a sign of damage.
#[test]
fn attributes_are_no_records() {
    let medium = Simulated::new(new_store(4096, &CreateOptions::default()), Durability::Dax);
    let store = open(&medium).expect("opens");
    let lines = Geometry::default_for(4096).expect("one").log_lines();
    let file = store.create(ROOT, b"mine", by(0o644)).expect("made").inode;
    let mut guess = 0;
    for _ in 0..100 {
        // The first whole line of the attributes' block is 46 bytes into the value.
        let mut value = vec![0; 3900];
        for at in (46..3900 - LINE).step_by(LINE) {
            let number = lines * (1 << 40) + guess % lines;
            guess += 7;
            value[at..at + LINE].copy_from_slice(&forged(store.id(), number));
        }
        store.setxattr(file, b"user.a", &value, 0).expect("set");
        store.sync().expect("synced");
        let copy = Simulated::new(medium.bytes(), Durability::Dax);
        let again = open(&copy).expect("a crash leaves a store that opens");
        assert_eq!(again.getxattr(file, b"user.a").as_deref(), Ok(&*value));
    }
    store.close().expect("closed");
    assert_eq!(faults(&medium), Vec::<String>::new());
    let read_only = OpenOptions {
        read_only: true,
        ..super::drive::quiet()
    };
    Store::open_medium(Arc::clone(&medium) as Arc<dyn Medium>, read_only, clock).expect("opens");
}

/// Whatever a block holds, no line of its record begins as a head, and each comes to where it belongs as it was.
#[test]
fn no_line_of_a_record_begins_as_a_head() {
    let mark = u64::from_le_bytes(*b"FPMRECRD");
    let medium = Simulated::new(vec![0; 16 * BLOCK], Durability::Dax);
    let mut bytes = Box::new([7; BLOCK]);
    for line in 0..63 {
        // What the masks of the first numbers would make marks.
        let word = mark ^ (line as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        put64(&mut *bytes, line * LINE, word);
    }
    crate::layout::label(&mut bytes, 9, Kind::Attributes);
    let page = Page {
        bytes,
        sum: None,
        lines: u64::MAX,
    };
    let pages = PageMap::from_iter([(9, page)]);
    let record = encoded(1, 77, &pages);
    let heads = record.chunks_exact(LINE).map(|line| get64(line, 0));
    assert_eq!(heads.filter(|&word| word == mark).count(), 1, "its own");
    apply_pages(&*medium, 1, &pages);
    let written = &medium.bytes()[9 * BLOCK..10 * BLOCK];
    let wanted = &pages[&9].bytes;
    assert!(written[..BLOCK - 4] == wanted[..BLOCK - 4]);
}
