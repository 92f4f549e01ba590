//! Names: looking up, making, linking, removing, renaming, listing.

use super::{bytes, orphans};
use crate::directory::{self, COOKIE_FIRST, Found};
use crate::errno::{Errno, Result};
use crate::layout::BLOCK;
use crate::layout::inode::{Inode, TYPES};
use crate::state::State;
use crate::types::{Attributes, Creator, Entry, LINKS_MAX, NAME_MAX, OnExisting, ROOT};

/// Longest target of a symbolic link.
const TARGET_MAX: usize = 4095;

/// What `stat` tells of an inode.
pub fn attributes(number: u64, inode: &Inode) -> Attributes {
    let size = if inode.is_directory() {
        inode.blocks * BLOCK as u64
    } else {
        inode.size
    };
    Attributes {
        inode: number,
        generation: inode.generation,
        mode: inode.mode,
        links: inode.links,
        uid: inode.uid,
        gid: inode.gid,
        device: inode.device,
        size,
        blocks: inode.blocks * (BLOCK as u64 / 512),
        accessed: inode.accessed,
        modified: inode.modified,
        changed: inode.changed,
        born: inode.born,
    }
}

fn directory(state: &State, number: u64) -> Result<Inode> {
    let inode = state.inode(number)?;
    if inode.is_directory() {
        Ok(inode)
    } else {
        Err(Errno::ENOTDIR)
    }
}

fn check_name(name: &[u8]) -> Result<()> {
    match name {
        b"" => Err(Errno::ENOENT),
        b"." | b".." => Err(Errno::EINVAL),
        _ if name.len() > NAME_MAX => Err(Errno::ENAMETOOLONG),
        _ if name.contains(&b'/') || name.contains(&0) => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}

/// Finds a name, "." and ".." included.
pub fn lookup(state: &State, parent: u64, name: &[u8]) -> Result<Attributes> {
    let inode = directory(state, parent)?;
    let number = match name {
        b"." => parent,
        b".." => inode.parent,
        _ => {
            check_name(name)?;
            find(state, &inode, name)?.inode
        }
    };
    Ok(attributes(number, &state.inode(number)?))
}

fn find(state: &State, parent: &Inode, name: &[u8]) -> Result<Found> {
    directory::find(state, parent, name)?.ok_or(Errno::ENOENT)
}

/// Makes a file of any type, and gives it a name.
pub fn make(
    state: &mut State,
    parent: u64,
    name: &[u8],
    by: Creator,
    device: u32,
) -> Result<Attributes> {
    let above = directory(state, parent)?;
    if name == b"." || name == b".." {
        return Err(Errno::EEXIST);
    }
    check_name(name)?;
    if directory::find(state, &above, name)?.is_some() {
        return Err(Errno::EEXIST);
    }
    let mut inode = new_inode(state, &above, by, device)?;
    let number = state.take_inode(parent)?;
    inode.links = 1;
    if inode.is_directory() {
        inode.links = 2;
        inode.parent = parent;
    }
    state.put(number, &inode)?;
    add_name(state, parent, name, (number, inode.kind()))?;
    if inode.is_directory() {
        change_links(state, parent, 1)?;
    }
    Ok(attributes(number, &inode))
}

fn new_inode(state: &State, above: &Inode, by: Creator, device: u32) -> Result<Inode> {
    let kind = by.mode & libc::S_IFMT;
    if !TYPES.contains(&kind) {
        return Err(Errno::EINVAL);
    }
    let now = state.now();
    let inherits = above.mode & libc::S_ISGID != 0;
    let bit = if inherits && kind == libc::S_IFDIR {
        libc::S_ISGID
    } else {
        0
    };
    Ok(Inode {
        mode: kind | by.mode & 0o7777 | bit,
        uid: by.uid,
        gid: if inherits { above.gid } else { by.gid },
        device,
        generation: (now.seconds as u64).wrapping_mul(1_000_000_000) + u64::from(now.nanoseconds),
        accessed: now,
        modified: now,
        changed: now,
        born: now,
        ..Inode::default()
    })
}

/// Makes a file without a name, held once by whoever asked.
pub fn make_nameless(state: &mut State, parent: u64, by: Creator) -> Result<Attributes> {
    let above = directory(state, parent)?;
    let mut inode = new_inode(state, &above, by, 0)?;
    let number = state.take_inode(parent)?;
    orphans::add(state, number, &mut inode)?;
    Ok(attributes(number, &inode))
}

/// Makes a symbolic link; the caller gives the target with the operation too.
pub fn make_link(
    state: &mut State,
    parent: u64,
    name: &[u8],
    target: &[u8],
    by: Creator,
) -> Result<Attributes> {
    match target.len() {
        0 => return Err(Errno::ENOENT),
        1..=TARGET_MAX => {}
        _ => return Err(Errno::ENAMETOOLONG),
    }
    let by = Creator {
        mode: libc::S_IFLNK | 0o777,
        ..by
    };
    let made = make(state, parent, name, by, 0)?;
    let mut inode = state.inode(made.inode)?;
    bytes::write(state, &mut inode, 0, target.len(), Some(0))?;
    inode.size = target.len() as u64;
    state.put(made.inode, &inode)?;
    Ok(attributes(made.inode, &inode))
}

/// The target of a symbolic link.
pub fn target(state: &State, number: u64) -> Result<Vec<u8>> {
    let inode = state.inode(number)?;
    if inode.kind() != libc::S_IFLNK {
        return Err(Errno::EINVAL);
    }
    if inode.size > TARGET_MAX as u64 {
        return Err(Errno::EIO);
    }
    let mut target = vec![0; inode.size as usize];
    bytes::read(state, &inode, 0, &mut target)?;
    Ok(target)
}

/// Gives a file another name.
pub fn link(state: &mut State, number: u64, parent: u64, name: &[u8]) -> Result<Attributes> {
    check_name(name)?;
    let above = directory(state, parent)?;
    let mut inode = state.inode(number)?;
    if inode.is_directory() {
        return Err(Errno::EPERM);
    }
    if inode.links >= LINKS_MAX {
        return Err(Errno::EMLINK);
    }
    if directory::find(state, &above, name)?.is_some() {
        return Err(Errno::EEXIST);
    }
    if inode.links == 0 {
        orphans::remove(state, &mut inode)?;
    }
    inode.links += 1;
    inode.changed = state.now();
    state.put(number, &inode)?;
    add_name(state, parent, name, (number, inode.kind()))?;
    Ok(attributes(number, &inode))
}

/// Removes a name of a file that is no directory.
pub fn unlink(state: &mut State, parent: u64, name: &[u8]) -> Result<()> {
    check_name(name)?;
    let above = directory(state, parent)?;
    let found = find(state, &above, name)?;
    if found.kind == libc::S_IFDIR {
        return Err(Errno::EISDIR);
    }
    remove_name(state, parent, name)?;
    orphans::drop_name(state, found.inode, 1)
}

/// Removes an empty directory.
pub fn rmdir(state: &mut State, parent: u64, name: &[u8]) -> Result<()> {
    check_name(name)?;
    let above = directory(state, parent)?;
    let found = find(state, &above, name)?;
    if directory(state, found.inode)?.entries > 0 {
        return Err(Errno::ENOTEMPTY);
    }
    remove_name(state, parent, name)?;
    change_links(state, parent, -1)?;
    orphans::drop_name(state, found.inode, 2)
}

/// Renames, as `renameat2`.
pub fn rename(
    state: &mut State,
    (parent, name): (u64, &[u8]),
    (new_parent, new_name): (u64, &[u8]),
    existing: OnExisting,
) -> Result<()> {
    check_name(name)?;
    check_name(new_name)?;
    let found = find(state, &directory(state, parent)?, name)?;
    let target = directory::find(state, &directory(state, new_parent)?, new_name)?;
    match (existing, target) {
        (OnExisting::Fail, Some(_)) => return Err(Errno::EEXIST),
        (OnExisting::Exchange, None) => return Err(Errno::ENOENT),
        _ => {}
    }
    if target.is_some_and(|target| target.inode == found.inode) {
        return Ok(());
    }
    if is_directory(&found) && is_below(state, new_parent, found.inode)? {
        return Err(Errno::EINVAL);
    }
    match target {
        Some(target) if existing == OnExisting::Exchange => {
            exchange(state, (parent, found), (new_parent, target))
        }
        Some(target) => {
            check_replaced(state, &found, &target)?;
            directory::replace(state, &target, found.inode, found.kind)?;
            touch(state, new_parent)?;
            remove_name(state, parent, name)?;
            moved(state, &found, parent, new_parent)?;
            if is_directory(&target) {
                change_links(state, new_parent, -1)?;
                return orphans::drop_name(state, target.inode, 2);
            }
            orphans::drop_name(state, target.inode, 1)
        }
        None => {
            add_name(state, new_parent, new_name, (found.inode, found.kind))?;
            remove_name(state, parent, name)?;
            moved(state, &found, parent, new_parent)
        }
    }
}

fn is_directory(found: &Found) -> bool {
    found.kind == libc::S_IFDIR
}

fn check_replaced(state: &State, found: &Found, target: &Found) -> Result<()> {
    match (is_directory(found), is_directory(target)) {
        (true, false) => Err(Errno::ENOTDIR),
        (false, true) => Err(Errno::EISDIR),
        (false, false) => Ok(()),
        (true, true) if directory(state, target.inode)?.entries > 0 => Err(Errno::ENOTEMPTY),
        (true, true) => Ok(()),
    }
}

fn exchange(state: &mut State, one: (u64, Found), other: (u64, Found)) -> Result<()> {
    if is_directory(&other.1) && is_below(state, one.0, other.1.inode)? {
        return Err(Errno::EINVAL);
    }
    directory::replace(state, &one.1, other.1.inode, other.1.kind)?;
    directory::replace(state, &other.1, one.1.inode, one.1.kind)?;
    touch(state, one.0)?;
    touch(state, other.0)?;
    moved(state, &one.1, one.0, other.0)?;
    moved(state, &other.1, other.0, one.0)
}

/// Whether a directory is `above`, or lies anywhere below it.
fn is_below(state: &State, mut number: u64, above: u64) -> Result<bool> {
    for _ in 0..state.geometry().inodes {
        if number == above {
            return Ok(true);
        }
        if number == ROOT {
            return Ok(false);
        }
        number = directory(state, number)?.parent;
    }
    Err(Errno::EIO)
}

/// The file has its name in another directory now.
fn moved(state: &mut State, found: &Found, from: u64, to: u64) -> Result<()> {
    let mut inode = state.inode(found.inode)?;
    inode.changed = state.now();
    if inode.is_directory() {
        inode.parent = to;
    }
    state.put(found.inode, &inode)?;
    if inode.is_directory() && from != to {
        change_links(state, from, -1)?;
        change_links(state, to, 1)?;
    }
    Ok(())
}

fn add_name(state: &mut State, parent: u64, name: &[u8], file: (u64, u32)) -> Result<()> {
    let mut above = directory(state, parent)?;
    if above.links == 0 {
        return Err(Errno::ENOENT);
    }
    directory::insert(state, parent, &mut above, name, file)?;
    stamp(state, &mut above);
    state.put(parent, &above)
}

fn remove_name(state: &mut State, parent: u64, name: &[u8]) -> Result<()> {
    let mut above = directory(state, parent)?;
    let found = find(state, &above, name)?;
    directory::remove(state, &mut above, &found)?;
    stamp(state, &mut above);
    state.put(parent, &above)
}

fn stamp(state: &State, inode: &mut Inode) {
    inode.modified = state.now();
    inode.changed = inode.modified;
}

fn touch(state: &mut State, number: u64) -> Result<()> {
    let mut inode = state.inode(number)?;
    stamp(state, &mut inode);
    state.put(number, &inode)
}

fn change_links(state: &mut State, number: u64, by: i32) -> Result<()> {
    let mut inode = state.inode(number)?;
    inode.links = inode.links.checked_add_signed(by).ok_or(Errno::EIO)?;
    state.put(number, &inode)
}

/// The entries after a cookie, some of them, and the cookie to go on with if there may be more.
pub fn list(state: &State, number: u64, cookie: u64) -> Result<(Vec<Entry>, Option<u64>)> {
    let inode = directory(state, number)?;
    let mut entries = Vec::new();
    let dots = [(1, ".", number), (2, "..", inode.parent)];
    for (own, name, inode) in dots.into_iter().filter(|(own, ..)| *own > cookie) {
        let kind = libc::S_IFDIR;
        entries.push(Entry {
            name: name.into(),
            inode,
            kind,
            cookie: own,
        });
    }
    // The cookie of an entry is its key and three; what comes after it begins at the next key.
    let from = (cookie + 1).saturating_sub(COOKIE_FIRST);
    let (listed, next) = directory::list(state, &inode, from)?;
    entries.extend(listed.into_iter().map(|entry| Entry {
        name: entry.name,
        inode: entry.inode,
        kind: entry.kind,
        cookie: entry.key + COOKIE_FIRST,
    }));
    Ok((entries, next.map(|next| next + COOKIE_FIRST - 1)))
}
