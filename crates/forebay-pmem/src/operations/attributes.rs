//! Extended attributes: one block for each file that has any.
//!
//! Bytes in use, then entries without gaps: lengths of name and value, name, value. All of a file's attributes
//! have room in one block, about 4,000 bytes, as on ext4.

use crate::errno::{Errno, Result};
use crate::layout::{Kind, PAYLOAD, get16};
use crate::state::State;
use crate::types::NAME_MAX;

const HEAD: usize = 8;
/// Bytes of an entry before its name.
const FIXED: usize = 4;
/// Largest value that the system lets through.
const VALUE_MAX: usize = 65_536;

/// Names and values.
pub type List = Vec<(Vec<u8>, Vec<u8>)>;

/// All attributes of a file.
pub fn list(state: &State, number: u64) -> Result<List> {
    let block = state.inode(number)?.attributes;
    if block == 0 {
        return Ok(List::new());
    }
    read(state, block)
}

/// The attributes in a block.
pub fn read(state: &State, block: u64) -> Result<List> {
    if !state.geometry().is_data(block) {
        return Err(Errno::EIO);
    }
    state.pages.with(block, Kind::Attributes, |bytes| {
        let used = usize::from(get16(bytes, 0));
        let mut rest = bytes[..PAYLOAD].get(HEAD..used).ok_or(Errno::EIO)?;
        let mut list = List::new();
        while !rest.is_empty() {
            let (head, after) = rest.split_at_checked(FIXED).ok_or(Errno::EIO)?;
            let (name, value) = (get16(head, 0), get16(head, 2));
            let (name, after) = after.split_at_checked(name.into()).ok_or(Errno::EIO)?;
            let (value, after) = after.split_at_checked(value.into()).ok_or(Errno::EIO)?;
            list.push((name.to_vec(), value.to_vec()));
            rest = after;
        }
        Ok(list)
    })?
}

/// Sets an attribute; `flags` as `setxattr` has them.
pub fn set(state: &mut State, number: u64, name: &[u8], value: &[u8], flags: i32) -> Result<()> {
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(Errno::ERANGE);
    }
    if value.len() > VALUE_MAX {
        return Err(Errno::E2BIG);
    }
    let mut list = list(state, number)?;
    let place = list.iter_mut().find(|(other, _)| other == name);
    match place {
        Some(_) if flags & libc::XATTR_CREATE != 0 => return Err(Errno::EEXIST),
        None if flags & libc::XATTR_REPLACE != 0 => return Err(Errno::ENODATA),
        Some((_, old)) => *old = value.to_vec(),
        None => list.push((name.to_vec(), value.to_vec())),
    }
    store(state, number, &list)
}

/// Removes an attribute.
pub fn remove(state: &mut State, number: u64, name: &[u8]) -> Result<()> {
    let mut list = list(state, number)?;
    let before = list.len();
    list.retain(|(other, _)| other != name);
    match list.len() == before {
        true => Err(Errno::ENODATA),
        false => store(state, number, &list),
    }
}

fn store(state: &mut State, number: u64, list: &List) -> Result<()> {
    let mut inode = state.inode(number)?;
    inode.changed = state.now();
    let mut bytes = vec![0; HEAD];
    for (name, value) in list {
        for length in [name.len(), value.len()] {
            let length = u16::try_from(length).map_err(|_| Errno::ENOSPC)?;
            bytes.extend_from_slice(&length.to_le_bytes());
        }
        bytes.extend_from_slice(name);
        bytes.extend_from_slice(value);
    }
    if bytes.len() > PAYLOAD {
        return Err(Errno::ENOSPC);
    }
    let used = bytes.len() as u16;
    bytes[..2].copy_from_slice(&used.to_le_bytes());
    if list.is_empty() {
        if inode.attributes != 0 {
            state.free_metadata(inode.attributes)?;
            inode.blocks = inode.blocks.checked_sub(1).ok_or(Errno::EIO)?;
        }
        inode.attributes = 0;
    } else {
        if inode.attributes == 0 {
            inode.attributes = state.take_metadata(Kind::Attributes)?;
            inode.blocks += 1;
        }
        state
            .pages
            .write(inode.attributes, Kind::Attributes, 0, &bytes)?;
    }
    state.put(number, &inode)
}
