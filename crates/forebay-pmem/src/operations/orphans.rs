//! Files without a name: made so, or still held when their last name went.
//!
//! They form a list that begins in the root's inode, so that whoever opens the store after a crash finds and
//! frees them without looking at any other file.
//!
//! A file of the list that cannot be read ends it: others come and go in front of it, and it stays, with what lies behind it.

use crate::directory;
use crate::errno::{Errno, Result};
use crate::layout::inode::Inode;
use crate::map;
use crate::state::State;
use crate::types::ROOT;

/// Adds a file, and stores its inode.
pub fn add(state: &mut State, number: u64, inode: &mut Inode) -> Result<()> {
    let mut root = state.inode(ROOT)?;
    inode.orphan_next = root.orphan_next;
    inode.orphan_previous = 0;
    set_previous(state, inode.orphan_next, number)?;
    root.orphan_next = number;
    state.put(ROOT, &root)?;
    state.put(number, inode)
}

/// Takes a file off the list; `inode` is changed, and for the caller to store.
pub fn remove(state: &mut State, inode: &mut Inode) -> Result<()> {
    let (previous, next) = (inode.orphan_previous, inode.orphan_next);
    let before = if previous == 0 { ROOT } else { previous };
    let mut one = state.inode(before)?;
    one.orphan_next = next;
    state.put(before, &one)?;
    set_previous(state, next, previous)?;
    (inode.orphan_previous, inode.orphan_next) = (0, 0);
    Ok(())
}

/// Says what is before `next`, if there is one that can be read.
fn set_previous(state: &mut State, next: u64, previous: u64) -> Result<()> {
    match state.inode(next) {
        Ok(mut one) => {
            one.orphan_previous = previous;
            state.put(next, &one)
        }
        Err(_) => Ok(()),
    }
}

/// One name less. Without any, a file that is held becomes an orphan, and any other is freed.
pub fn drop_name(state: &mut State, number: u64, names: u32) -> Result<()> {
    let mut inode = state.inode(number)?;
    inode.links = inode.links.checked_sub(names).ok_or(Errno::EIO)?;
    inode.changed = state.now();
    if inode.links > 0 {
        state.put(number, &inode)
    } else if state.held.holds(number) {
        add(state, number, &mut inode)
    } else {
        free(state, number, &mut inode)
    }
}

/// Nobody holds this file any more.
pub fn released(state: &mut State, number: u64) -> Result<()> {
    let mut inode = state.inode(number)?;
    if inode.links > 0 {
        return Ok(());
    }
    remove(state, &mut inode)?;
    free(state, number, &mut inode)
}

/// Frees the first of the list, which the root says is `number`. `EIO` if it is no such file, or another leads
/// there: then it could be the first again and again.
pub fn free_first(state: &mut State, number: u64) -> Result<()> {
    let mut inode = state.inode(number)?;
    if number == ROOT || inode.links > 0 || inode.orphan_previous != 0 {
        return Err(Errno::EIO);
    }
    remove(state, &mut inode)?;
    free(state, number, &mut inode)
}

/// The first of the list, or 0.
pub fn first(state: &State) -> Result<u64> {
    Ok(state.inode(ROOT)?.orphan_next)
}

/// Frees an inode and all that it has.
pub fn free(state: &mut State, number: u64, inode: &mut Inode) -> Result<()> {
    if inode.is_directory() {
        directory::free(state, inode)?;
    } else if inode.has_pages() {
        map::free(state, inode, 0..u64::MAX)?;
    }
    if inode.attributes != 0 {
        state.free_metadata(inode.attributes)?;
    }
    state.free_inode(number)
}
