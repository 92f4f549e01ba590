//! The keeper's end of a hand-over: a file's descriptors become its own.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::device::{DeviceFile, RealFile};
use crate::ids::FileId;
use crate::member::reopen::path_of;
use crate::member::shared::Shared;
use crate::sync::Ordering;

/// Keeps a file's descriptors, if they are what they should be. Whether it has some now, these or others.
pub fn take_over(shared: &Shared, file: FileId, fds: Vec<OwnedFd>) -> bool {
    let Ok([direct, buffered]) = <[OwnedFd; 2]>::try_from(fds) else {
        // There were no numbers for these.
        return shared.has_device(file);
    };
    let Ok(device) = RealFile::from_descriptors(direct, buffered) else {
        return false;
    };
    let same = is_of_entry(shared, file, &device);
    if same {
        let entry = shared.arena.file_unchecked(file);
        shared.share_claim(&device, &path_of(entry));
        let device = shared.keep_device(file, Arc::new(device));
        if let (Some(guard), Some((_, fd))) = (shared.guard(), device.descriptors()) {
            guard.watch_taken(file, fd);
        }
    }
    same
}

/// What a client says is checked: the descriptors must be of the inode that the entry describes.
pub fn is_of_entry(shared: &Shared, file: FileId, device: &RealFile) -> bool {
    let entry = shared.arena.file_unchecked(file);
    let caps = device.caps();
    entry.device.load(Ordering::Acquire) == caps.device
        && entry.inode.load(Ordering::Acquire) == caps.inode
}
