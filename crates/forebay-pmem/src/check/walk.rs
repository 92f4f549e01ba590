//! Inodes and what they have: maps, attributes, sizes, counts of blocks.

use super::{Checker, Seen};
use crate::layout::inode::{Inode, TYPES};
use crate::layout::{BLOCK, Kind, POINTERS, get64};
use crate::map::{UNWRITTEN, block_of, capacity};
use crate::operations::attributes;
use crate::types::{ROOT, SIZE_MAX};

/// What walking an inode's map has seen.
struct Walk {
    number: u64,
    blocks: u64,
    /// Pages from here on have no written bytes.
    pages_end: u64,
    /// The pointer after which the next page continues a stretch.
    last: u64,
    /// Whether blocks of pages are counted here: those of directories are buckets, which `names` counts.
    counts_pages: bool,
}

impl Checker<'_> {
    /// Looks at every inode in use.
    pub(super) fn inodes(&mut self) {
        let geometry = *self.state.geometry();
        let marked = self.marked(geometry.inode_bitmap, Kind::Inodes, geometry.inodes);
        if marked.first() != Some(&0) {
            self.tell(
                "inode 0, which is none, is marked as free".to_string(),
                "nothing",
            );
        }
        for number in marked.into_iter().filter(|number| *number != 0) {
            match self.state.inode(number) {
                Ok(inode) => self.inode(number, &inode),
                Err(_) => {
                    self.tell(format!("inode {number} cannot be read"), "its file");
                    self.unreadable.insert(number);
                }
            }
        }
        let root = self.seen.get(&ROOT);
        if root.is_none_or(|root| root.kind != libc::S_IFDIR || root.parent != ROOT) {
            self.tell("the root is no directory".to_string(), "all names");
        }
    }

    fn inode(&mut self, number: u64, inode: &Inode) {
        if !TYPES.contains(&inode.kind()) || inode.mode & !(libc::S_IFMT | 0o7777) != 0 {
            self.tell(
                format!(
                    "inode {number} has the mode {:o}, which is none",
                    inode.mode
                ),
                "its file",
            );
        }
        if inode.size > SIZE_MAX {
            self.tell(
                format!(
                    "inode {number} has {} bytes, more than any file may",
                    inode.size
                ),
                "its size",
            );
        }
        self.seen.insert(
            number,
            Seen {
                kind: inode.kind(),
                links: inode.links,
                parent: inode.parent,
                entries: inode.entries,
                orphan: (inode.orphan_previous, inode.orphan_next),
                names: 0,
                directories: 0,
            },
        );
        let mut walk = Walk {
            number,
            blocks: 0,
            pages_end: 0,
            last: 0,
            counts_pages: !inode.is_directory(),
        };
        self.root(inode, &mut walk);
        if inode.is_directory() {
            self.report.directories += 1;
            walk.blocks += self.buckets(number, inode);
        } else {
            self.report.files += 1;
            self.bytes(number, inode, &walk);
        }
        if inode.attributes != 0 && self.use_block(inode.attributes, number) {
            walk.blocks += 1;
            self.attributes(number, inode.attributes);
        }
        if walk.blocks != inode.blocks {
            let (has, says) = (walk.blocks, inode.blocks);
            self.tell(
                format!("inode {number} has {has} blocks and says {says}"),
                "nothing, if nothing else is told of it",
            );
        }
    }

    fn root(&mut self, inode: &Inode, walk: &mut Walk) {
        let span = capacity(inode.height) / inode.root.len() as u64;
        for (index, pointer) in inode.root.into_iter().enumerate() {
            self.pointer(pointer, inode.height, index as u64 * span, walk);
        }
    }

    fn pointer(&mut self, pointer: u64, level: u32, first: u64, walk: &mut Walk) {
        if pointer == 0 {
            return;
        }
        if level == 0 {
            self.page(pointer, first, walk);
            return;
        }
        if !self.use_block(pointer, walk.number) {
            return;
        }
        walk.blocks += 1;
        let kind = Kind::Node(level as u8);
        let Ok(bytes) = self
            .state
            .pages
            .with(pointer, kind, |bytes| Box::new(*bytes))
        else {
            let number = walk.number;
            self.tell(
                format!("block {pointer} of the map of inode {number} is damaged"),
                "its bytes below",
            );
            self.incomplete |= !walk.counts_pages;
            return;
        };
        let span = POINTERS.pow(level - 1);
        for index in 0..POINTERS {
            self.pointer(
                get64(&*bytes, index as usize * 8),
                level - 1,
                first + index * span,
                walk,
            );
        }
    }

    fn page(&mut self, pointer: u64, page: u64, walk: &mut Walk) {
        if !walk.counts_pages {
            return;
        }
        if self.use_block(block_of(pointer), walk.number) {
            walk.blocks += 1;
        }
        if pointer & UNWRITTEN == 0 {
            walk.pages_end = page + 1;
        }
        self.report.stretches += u64::from(pointer != walk.last + 1);
        walk.last = pointer;
    }

    /// Sizes, and the zeros after the end.
    fn bytes(&mut self, number: u64, inode: &Inode, walk: &Walk) {
        if walk.pages_end > inode.size.div_ceil(BLOCK as u64) {
            self.tell(format!("inode {number} has bytes after its end"), "nothing");
        }
        if !inode.has_pages() && (walk.blocks > 0 || inode.size > 0) {
            self.tell(
                format!("inode {number} has bytes, and is of a type that has none"),
                "nothing",
            );
        }
        if inode.kind() == libc::S_IFLNK && !(1..=4095).contains(&inode.size) {
            self.tell(
                format!("inode {number} is a symbolic link without a target"),
                "its target",
            );
        }
        let (page, from) = (
            inode.size / BLOCK as u64,
            (inode.size % BLOCK as u64) as usize,
        );
        // What cannot be read was told of.
        let pointer = crate::map::get(self.state, inode, page).unwrap_or(0);
        if from == 0 || pointer == 0 || pointer & UNWRITTEN != 0 {
            return;
        }
        let mut rest = vec![0; BLOCK - from];
        self.state
            .medium
            .read(pointer * BLOCK as u64 + from as u64, &mut rest);
        if rest.iter().any(|byte| *byte != 0) {
            self.tell(
                format!("inode {number} has bytes between its end and that of its page"),
                "nothing",
            );
        }
    }

    fn attributes(&mut self, number: u64, block: u64) {
        let Ok(list) = attributes::read(self.state, block) else {
            self.tell(
                format!("the attributes of inode {number} cannot be read"),
                "they",
            );
            return;
        };
        let mut names: Vec<_> = list.iter().map(|(name, _)| name).collect();
        names.sort();
        names.dedup();
        if names.len() != list.len() || list.is_empty() {
            self.tell(
                format!("the attributes of inode {number} make no sense"),
                "they",
            );
        }
    }
}
