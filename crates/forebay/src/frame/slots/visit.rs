//! Walking a whole tree without trusting it: for the arena checker, and for those that wait for long. A node that is met twice is named
//! and not followed again, so cycles end.

use std::collections::HashSet;

use crate::frame::header::Identity;
use crate::frame::slots::{self, NODE_LINKED, Node, Root, SLOT_BITS, SLOTS};
use crate::ids::{BlockIndex, FileId, HeaderId, NodeId, ThreadId};
use crate::memory::arena::Arena;
use crate::memory::files::{FileEntry, LIVE};
use crate::sync::Ordering;

/// What a node's state word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// Nobody's.
    Free,
    /// In a thread's hands.
    Held(ThreadId),
    /// Part of a tree.
    Linked,
    /// None of these.
    Odd,
}

/// What a node's state word says.
pub fn state_of(node: &Node) -> NodeState {
    let word = node.state.load(Ordering::Acquire);
    match word & 7 {
        0 if word == 0 => NodeState::Free,
        1 => NodeState::Held(ThreadId(word >> 3)),
        NODE_LINKED if word == NODE_LINKED => NodeState::Linked,
        _ => NodeState::Odd,
    }
}

/// What a walk meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Met {
    /// A leaf's slot that leads to a header. `owed`: every node on the way marks it.
    Header {
        /// Block by the slot's place.
        block: u64,
        /// Where it leads.
        header: HeaderId,
        /// Whether a scan for what is owed would find it.
        owed: bool,
    },
    /// A slot that leads to a node that does not exist, or was met before.
    BadNode(NodeId),
}

/// Walks the tree of a file. `seen` collects its nodes.
pub fn visit(
    arena: &Arena,
    file: &FileEntry,
    seen: &mut HashSet<NodeId>,
    meet: &mut dyn FnMut(Met),
) {
    if let Some(root) = Root::of(file.root.load(Ordering::Acquire)) {
        below(arena, root, 0, true, seen, meet);
    }
}

fn below(
    arena: &Arena,
    root: Root,
    first: u64,
    owed: bool,
    seen: &mut HashSet<NodeId>,
    meet: &mut dyn FnMut(Met),
) {
    let Some(node) = arena.node(root.node) else {
        return meet(Met::BadNode(root.node));
    };
    if !seen.insert(root.node) {
        return meet(Met::BadNode(root.node));
    }
    let marks = node.owed.load(Ordering::Acquire);
    for slot in 0..SLOTS {
        let Some(next) = node.slots[slot].load(Ordering::Acquire).checked_sub(1) else {
            continue;
        };
        let block = first + ((slot as u64) << (SLOT_BITS * root.level));
        let owed = owed && marks & (1 << slot) != 0;
        if root.level == 0 {
            meet(Met::Header {
                block,
                header: HeaderId(next),
                owed,
            });
        } else {
            let child = Root {
                node: NodeId(next),
                level: root.level - 1,
            };
            below(arena, child, block, owed, seen, meet);
        }
    }
}

/// Whether a slot of any file leads to no node, or to no header of its block, for as long as three looks take. A header gets its identity
/// before a slot leads to it, and loses it afterwards, so that nobody's work explains it, nor anybody's death. May be asked while others
/// work, outside of any operation.
pub fn leads_astray(arena: &Arena) -> bool {
    let files = (0..arena.counts().files).map(FileId);
    files
        .filter_map(|id| Some((id, arena.file(id)?)))
        .filter(|(_, entry)| entry.state.load(Ordering::Acquire) == LIVE)
        .any(|(file, entry)| is_led_astray(arena, file, entry))
}

fn is_led_astray(arena: &Arena, file: FileId, entry: &FileEntry) -> bool {
    let (mut odd, mut no_node) = (Vec::new(), false);
    let root = entry.root.load(Ordering::Acquire);
    let is_of = |header, block| {
        let identity = Identity { file, block };
        arena.header(header).and_then(|header| header.identity()) == Some(identity)
    };
    visit(arena, entry, &mut HashSet::new(), &mut |met| match met {
        Met::Header { block, header, .. } => {
            // A slot beyond the last block that there can be is asked for by nobody.
            if let Ok(block) = u32::try_from(block).map(BlockIndex)
                && !is_of(header, block)
            {
                odd.push((block, header));
            }
        }
        Met::BadNode(node) => no_node |= arena.node(node).is_none(),
    });
    let leads = |block, header| slots::lookup(arena, entry, block) == Some(header);
    // Nodes of a tree that was dropped meanwhile may be another's.
    no_node && entry.root.load(Ordering::Acquire) == root
        || odd.into_iter().any(|(block, header)| {
            leads(block, header) && !is_of(header, block) && leads(block, header)
        })
}
