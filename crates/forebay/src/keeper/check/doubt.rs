//! Whether an arena can be believed, asked before anything in it is set right.
//!
//! A rebuild goes by the headers. Trees, owner words and charges say part of the same once more, and a death explains
//! that they disagree only where its lock is still on the header. Anywhere else a word was damaged, and nobody can tell
//! which, so that nothing of such an arena may be written to a file. What is said in one place only, as a file's size or
//! which bytes of a page are in memory, cannot be doubted.

use crate::frame::header::{Look, State};
use crate::frame::page::Ragged;
use crate::frame::slots;
use crate::ids::HeaderId;
use crate::memory::arena::Arena;
use crate::memory::files::LIVE;
use crate::memory::regions::Owner;
use crate::sync::{AtomicU32, Ordering, planted};

/// The first thing that no death explains in an arena in which nobody is at work any more. A rebuild that has begun and
/// not ended makes everything anew that could be compared: then nothing is doubted.
pub fn doubt(arena: &Arena) -> Option<String> {
    let superblock = arena.superblock();
    if superblock.gate.load(Ordering::Acquire) != 0 || planted!(TrustWords) {
        return None;
    }
    let backed = superblock.headers_backed.load(Ordering::Acquire);
    (0..backed.min(arena.counts().headers))
        .map(HeaderId)
        .find_map(|id| {
            let why = doubt_header(arena, id, &arena.header(id)?.look())?;
            Some(format!("header {}: {why}", id.0))
        })
}

fn doubt_header(arena: &Arena, id: HeaderId, look: &Look) -> Option<&'static str> {
    let linked = matches!(look.state, State::Linked | State::Superseded(_));
    if !linked || look.holder.is_some() {
        return None;
    }
    let Some(identity) = look.identity else {
        return Some("linked to nothing");
    };
    let entry = arena.file(identity.file);
    let Some(entry) = entry.filter(|entry| entry.state.load(Ordering::Acquire) == LIVE) else {
        return Some("of no file");
    };
    if slots::lookup(arena, entry, identity.block) != Some(id) {
        return Some("its block is not known for its own");
    }
    if look.charged != look.charge_due() {
        return Some("its charge is off");
    }
    if !owns_its_memory(arena, id, look) {
        return Some("its memory is not its own");
    }
    let homes = if look.frame.is_some() {
        u64::MAX
    } else {
        look.small_pages()
    };
    if (look.valid | look.owed()) & !homes != 0 {
        return Some("it has bytes without memory");
    }
    let runs = look.ragged_words();
    if runs & look.valid != 0 {
        return Some("whole pages have runs");
    }
    if runs & !look.owed() != 0 {
        return Some("runs owe nothing");
    }
    None
}

fn owns_its_memory(arena: &Arena, id: HeaderId, look: &Look) -> bool {
    let agrees = |word: Option<&AtomicU32>| {
        let owner = word.map(|word| Owner::unpack(word.load(Ordering::Acquire)));
        matches!(owner, Some(Owner::Linked(header)) if header == id)
    };
    if let Some(frame) = look.frame {
        return agrees(arena.frame_owner(frame));
    }
    look.pages.iter().all(|word| {
        let map = match word.ragged() {
            Ragged::Map(map) => Some(map),
            _ => None,
        };
        word.is_wellformed()
            && word
                .small()
                .into_iter()
                .chain(map)
                .all(|small| agrees(arena.small_owner(small)))
    })
}
