//! The slot tree of a file: one slot for each block, so that one compare-and-swap decides which header describes it.
//!
//! A radix tree of nodes with 64 slots; a leaf's slots lead to headers, an inner node's to nodes. There is no lock:
//! slots are won by compare-and-swap, trees only grow (at the root) until the file is dropped, and
//! a thread that follows a slot checks the header's identity. This is the user-space form of WSBuffer's SXArray (3.5) with
//! its delayed structure updates taken to the end. Nodes also carry hints of which slots have something owed, as
//! the kernel's XArray tags do; they are exact in leaves but for deaths.
//!
//! A reader may follow a tree only inside an operation on the file: nodes are freed with the file stopped.

pub mod visit;

use crate::ids::{BlockIndex, HeaderId, NodeId, ThreadId};
use crate::memory::arena::Arena;
use crate::memory::files::FileEntry;
use crate::memory::threads::Me;
use crate::sync::{AtomicU32, AtomicU64, Ordering, planted};

/// Slots of a node.
const SLOTS: usize = 64;
const SLOT_BITS: u32 = 6;
/// Levels above a leaf that 32 bits of block index can need.
const LEVEL_MAX: u32 = 5;

/// A node, 320 bytes.
#[repr(C, align(64))]
pub struct Node {
    slots: [AtomicU32; SLOTS],
    /// Slots under which something is owed to the device.
    owed: AtomicU64,
    /// 0 free, 2 linked, else held by thread `word >> 3`.
    state: AtomicU32,
    unused: AtomicU32,
}

const _: () = assert!(size_of::<Node>() == 320);
const NODE_LINKED: u32 = 2;

/// Why a header could not be installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Another header describes the block.
    Taken(HeaderId),
    /// No node could be had.
    NoNodes,
}

#[derive(Clone, Copy)]
struct Root {
    node: NodeId,
    level: u32,
}

impl Root {
    fn pack(self) -> u64 {
        (u64::from(self.level) << 32) | (u64::from(self.node.0) + 1)
    }

    fn of(word: u64) -> Option<Self> {
        let node = (word as u32).checked_sub(1)?;
        Some(Root {
            node: NodeId(node),
            level: ((word >> 32) as u32).min(LEVEL_MAX),
        })
    }

    /// Whether the tree under this root reaches the block.
    fn reaches(self, block: BlockIndex) -> bool {
        u64::from(block.0) < 1 << (SLOT_BITS * (self.level + 1))
    }
}

#[inline]
fn slot_index(block: BlockIndex, level: u32) -> usize {
    ((u64::from(block.0) >> (SLOT_BITS * level)) as usize) % SLOTS
}

/// The header that the slot of `block` leads to. A hint: check its identity.
#[inline]
pub fn lookup(arena: &Arena, file: &FileEntry, block: BlockIndex) -> Option<HeaderId> {
    let slot = &leaf(arena, file, block)?.slots[slot_index(block, 0)];
    slot.load(Ordering::Acquire).checked_sub(1).map(HeaderId)
}

#[inline]
fn leaf<'a>(arena: &'a Arena, file: &FileEntry, block: BlockIndex) -> Option<&'a Node> {
    let root = Root::of(file.root.load(Ordering::Acquire))?;
    if !root.reaches(block) {
        return None;
    }
    let mut node = arena.node(root.node)?;
    for level in (1..=root.level).rev() {
        let next = node.slots[slot_index(block, level)].load(Ordering::Acquire);
        node = arena.node(NodeId(next.checked_sub(1)?))?;
    }
    Some(node)
}

/// Wins the slot of `block` for a held header.
pub fn install(
    me: Me<'_>,
    file: &FileEntry,
    block: BlockIndex,
    header: HeaderId,
) -> Result<(), Refused> {
    let leaf = grow_to(me, file, block).ok_or(Refused::NoNodes)?;
    let slot = &leaf.slots[slot_index(block, 0)];
    match slot.compare_exchange(0, header.0 + 1, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Ok(()),
        Err(other) => Err(Refused::Taken(HeaderId(other - 1))),
    }
}

/// Empties the slot of `block` if it leads to `header`.
pub fn remove(arena: &Arena, file: &FileEntry, block: BlockIndex, header: HeaderId) {
    if let Some(leaf) = leaf(arena, file, block) {
        let slot = &leaf.slots[slot_index(block, 0)];
        let _ = slot.compare_exchange(header.0 + 1, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Finds or makes the leaf for `block`.
fn grow_to<'a>(me: Me<'a>, file: &FileEntry, block: BlockIndex) -> Option<&'a Node> {
    let arena = me.arena;
    let root = tall_root(me, file, block)?;
    let mut node = arena.node(root.node)?;
    for level in (1..=root.level).rev() {
        let slot = &node.slots[slot_index(block, level)];
        let next = match slot.load(Ordering::Acquire).checked_sub(1) {
            Some(next) => NodeId(next),
            None => add_child(me, slot)?,
        };
        node = arena.node(next)?;
    }
    Some(node)
}

fn add_child(me: Me<'_>, slot: &AtomicU32) -> Option<NodeId> {
    let id = take_node(me)?;
    let node = me.arena.node(id)?;
    match slot.compare_exchange(0, id.0 + 1, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            node.state.store(NODE_LINKED, Ordering::Release);
            Some(id)
        }
        Err(other) => {
            free_node(me.arena, id);
            Some(NodeId(other - 1))
        }
    }
}

/// A root that reaches `block`; makes the tree taller where needed.
fn tall_root(me: Me<'_>, file: &FileEntry, block: BlockIndex) -> Option<Root> {
    loop {
        let word = file.root.load(Ordering::Acquire);
        let old = Root::of(word);
        if let Some(root) = old.filter(|root| root.reaches(block)) {
            return Some(root);
        }
        let id = take_node(me)?;
        let node = me.arena.node(id)?;
        let mut root = Root {
            node: id,
            level: old.map_or(0, |old| old.level + 1),
        };
        if let Some(old) = old {
            node.slots[0].store(old.node.0 + 1, Ordering::Relaxed);
            node.owed
                .store(u64::from(!planted!(BareRoot)), Ordering::Relaxed);
        } else {
            while !root.reaches(block) {
                root.level += 1;
            }
        }
        match file
            .root
            .compare_exchange(word, root.pack(), Ordering::AcqRel, Ordering::Relaxed)
        {
            Ok(_) => node.state.store(NODE_LINKED, Ordering::Release),
            Err(_) => free_node(me.arena, id),
        }
    }
}

fn take_node(me: Me<'_>) -> Option<NodeId> {
    let arena = me.arena;
    let held = 1 | (me.id.0 << 3);
    let claim = |i: u32| {
        arena.node(NodeId(i)).is_some_and(|n| {
            n.state
                .compare_exchange(0, held, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        })
    };
    let backed = arena.superblock().nodes_backed.load(Ordering::Acquire);
    let free = arena.node_hints().first(backed);
    let id = NodeId(free.take(me.id.index(), claim)?);
    let node = arena.node(id)?;
    #[cfg(feature = "sim")]
    let _quiet = crate::sim::explore::quiet();
    node.slots
        .iter()
        .for_each(|slot| slot.store(0, Ordering::Relaxed));
    node.owed.store(0, Ordering::Relaxed);
    Some(id)
}

fn free_node(arena: &Arena, id: NodeId) {
    if let Some(node) = arena.node(id) {
        node.state.store(0, Ordering::Release);
        arena.node_hints().set(id.0);
    }
}

/// Says that something under the block's slot is owed. Under the header's lock.
pub fn mark_owed(arena: &Arena, file: &FileEntry, block: BlockIndex) {
    loop {
        let word = file.root.load(Ordering::Acquire);
        let Some(root) = Root::of(word) else { return };
        let mut node = arena.node(root.node);
        // From the root down: a scan that sees a mark above and none below clears the mark above, and
        // then looks below once more (`next_owed`), so marking below last would race with it.
        for level in (0..=root.level).rev() {
            let Some(here) = node else { return };
            let bit = 1 << slot_index(block, level);
            if here.owed.load(Ordering::Acquire) & bit == 0 {
                here.owed.fetch_or(bit, Ordering::AcqRel);
            }
            let below = here.slots[slot_index(block, level)].load(Ordering::Acquire);
            node = below
                .checked_sub(1)
                .and_then(|next| arena.node(NodeId(next)));
        }
        if file.root.load(Ordering::Acquire) == word {
            return;
        }
    }
}

/// Says that nothing of the block is owed any more. Under the header's lock.
pub fn clear_owed(arena: &Arena, file: &FileEntry, block: BlockIndex) {
    if let Some(leaf) = leaf(arena, file, block) {
        leaf.owed
            .fetch_and(!(1 << slot_index(block, 0)), Ordering::AcqRel);
    }
}

/// The first block at or after `from` with something owed, and its header.
pub fn next_owed(arena: &Arena, file: &FileEntry, from: u64) -> Option<(BlockIndex, HeaderId)> {
    next(arena, file, from, |node| node.owed.load(Ordering::Acquire))
}

/// The first block at or after `from` that has a header.
pub fn next_linked(arena: &Arena, file: &FileEntry, from: u64) -> Option<(BlockIndex, HeaderId)> {
    next(arena, file, from, |_| u64::MAX)
}

fn next(
    arena: &Arena,
    file: &FileEntry,
    from: u64,
    of_interest: impl Fn(&Node) -> u64,
) -> Option<(BlockIndex, HeaderId)> {
    let root = Root::of(file.root.load(Ordering::Acquire))?;
    let mut at = from;
    while at <= u64::from(u32::MAX) && root.reaches(BlockIndex(at as u32)) {
        match descend(arena, root, at, &of_interest) {
            Ok(found) => return Some(found),
            Err(next) => at = next,
        }
    }
    None
}

/// Follows the tree towards block `at`; either finds it, or says where to look next.
fn descend(
    arena: &Arena,
    root: Root,
    at: u64,
    of_interest: &impl Fn(&Node) -> u64,
) -> Result<(BlockIndex, HeaderId), u64> {
    let mut node = arena.node(root.node);
    let mut level = root.level;
    loop {
        let width = 1u64 << (SLOT_BITS * level);
        let slot = ((at / width) % SLOTS as u64) as u32;
        let beyond = (at / (width * SLOTS as u64) + 1) * width * SLOTS as u64;
        let Some(here) = node else { return Err(beyond) };
        let rest = of_interest(here) & (u64::MAX << slot);
        if rest == 0 {
            return Err(beyond);
        }
        let first = rest.trailing_zeros();
        if first > slot {
            return Err(
                (at / (width * SLOTS as u64)) * width * SLOTS as u64 + u64::from(first) * width
            );
        }
        let below = here.slots[slot as usize]
            .load(Ordering::Acquire)
            .checked_sub(1);
        let past = (at / width + 1) * width;
        match (below, level) {
            (None, _) => return Err(past),
            (Some(header), 0) => return Ok((BlockIndex(at as u32), HeaderId(header))),
            (Some(next), _) => {
                node = arena.node(NodeId(next));
                level -= 1;
            }
        }
    }
}

/// Frees all nodes of a file's tree. With the file stopped, or the session.
pub fn drop_tree(arena: &Arena, file: &FileEntry) {
    let root = Root::of(file.root.swap(0, Ordering::AcqRel));
    if let Some(root) = root {
        drop_below(arena, root.node, root.level);
    }
}

fn drop_below(arena: &Arena, id: NodeId, level: u32) {
    let Some(node) = arena.node(id) else { return };
    if level > 0 {
        for slot in &node.slots {
            if let Some(next) = slot.load(Ordering::Acquire).checked_sub(1) {
                drop_below(arena, NodeId(next), level - 1);
            }
        }
    }
    free_node(arena, id);
}

/// Makes every backed node free that is not held by a living thread; part of a rebuild, before headers are
/// installed anew.
pub(crate) fn free_all_nodes(arena: &Arena, is_gone: impl Fn(ThreadId) -> bool) {
    let backed = arena.superblock().nodes_backed.load(Ordering::Acquire);
    for index in 0..backed {
        let Some(node) = arena.node(NodeId(index)) else {
            return;
        };
        let state = node.state.load(Ordering::Acquire);
        let held_by_living = state & 7 == 1 && !is_gone(ThreadId(state >> 3));
        if !held_by_living {
            free_node(arena, NodeId(index));
        }
    }
}

/// Sets the root to none without following it; part of a rebuild.
pub(crate) fn forget_tree(file: &FileEntry) {
    file.root.store(0, Ordering::Release);
}
