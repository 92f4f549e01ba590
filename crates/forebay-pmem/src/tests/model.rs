//! What a store should hold: a tree in plain collections, changed by the same operations.

use std::collections::{BTreeMap, BTreeSet};

use crate::errno::Errno;
use crate::types::OnExisting;

/// Names that operations choose from.
pub const NAMES: [&str; 7] = [
    "a",
    "b",
    "c",
    "dd",
    "name-of-middling-length",
    "x.tmp",
    "zz",
];

/// An operation. Directories and files are chosen by number among those that there are.
#[derive(Clone, Debug)]
pub enum Op {
    Create {
        dir: u8,
        name: u8,
    },
    Mkdir {
        dir: u8,
        name: u8,
    },
    Symlink {
        dir: u8,
        name: u8,
        length: u16,
    },
    Link {
        file: u8,
        dir: u8,
        name: u8,
    },
    Unlink {
        dir: u8,
        name: u8,
    },
    Rmdir {
        dir: u8,
        name: u8,
    },
    Rename {
        dir: u8,
        name: u8,
        to: u8,
        new: u8,
        existing: u8,
    },
    Write {
        file: u8,
        at: u32,
        length: u16,
        fill: u8,
    },
    /// A write by windows.
    Window {
        file: u8,
        at: u32,
        length: u16,
        fill: u8,
    },
    /// Takes a view, and keeps it for a while.
    View {
        file: u8,
        at: u32,
        length: u16,
    },
    Append {
        file: u8,
        length: u16,
        fill: u8,
    },
    Truncate {
        file: u8,
        size: u32,
    },
    Allocate {
        file: u8,
        mode: u8,
        at: u32,
        length: u16,
    },
    SetAttribute {
        file: u8,
        name: u8,
        length: u16,
        fill: u8,
    },
    RemoveAttribute {
        file: u8,
        name: u8,
    },
    Chmod {
        file: u8,
        mode: u16,
    },
    Chown {
        file: u8,
        uid: u16,
        gid: u16,
    },
    /// Makes a pipe, or a device.
    Mknod {
        dir: u8,
        name: u8,
        device: u16,
    },
    /// Writes to a file without a name, and gives it one or lets it go.
    Nameless {
        dir: u8,
        name: u8,
        length: u16,
        fill: u8,
        is_named: bool,
    },
    Sync,
    Reopen,
}

/// A node of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub kind: u32,
    pub mode: u32,
    pub owner: (u32, u32),
    pub device: u32,
    pub bytes: Vec<u8>,
    pub children: BTreeMap<String, usize>,
    pub parent: usize,
    pub attributes: BTreeMap<String, Vec<u8>>,
}

/// The tree; node 0 is the root.
#[derive(Clone, Debug)]
pub struct Model {
    pub nodes: BTreeMap<usize, Node>,
    next: usize,
}

/// A tree in words: type and mode, links, bytes, attributes, owner and group, device number, by path. Two trees are the same if these are.
pub type Tree = BTreeMap<
    String,
    (
        u32,
        u32,
        Vec<u8>,
        BTreeMap<String, Vec<u8>>,
        (u32, u32),
        u32,
    ),
>;

/// Whoever makes something owns it.
pub const MAKER: (u32, u32) = (1000, 100);

type Done = Result<Option<usize>, Errno>;

impl Model {
    pub fn new() -> Self {
        let mut model = Self {
            nodes: BTreeMap::new(),
            next: 0,
        };
        model.add(libc::S_IFDIR, 0o755, 0);
        model
    }

    fn add(&mut self, kind: u32, mode: u32, parent: usize) -> usize {
        let number = self.next;
        self.next += 1;
        let (bytes, children, attributes) = Default::default();
        self.nodes.insert(
            number,
            Node {
                kind,
                mode,
                owner: MAKER,
                device: 0,
                bytes,
                children,
                parent,
                attributes,
            },
        );
        number
    }

    fn of_kind(&self, kind: u32) -> Vec<usize> {
        self.nodes
            .iter()
            .filter(|(_, node)| node.kind == kind)
            .map(|(number, _)| *number)
            .collect()
    }

    pub fn directory(&self, choice: u8) -> usize {
        let directories = self.of_kind(libc::S_IFDIR);
        directories[usize::from(choice) % directories.len()]
    }

    pub fn file(&self, choice: u8) -> Option<usize> {
        let files = self.of_kind(libc::S_IFREG);
        (!files.is_empty()).then(|| files[usize::from(choice) % files.len()])
    }

    fn is_directory(&self, node: usize) -> bool {
        self.nodes[&node].kind == libc::S_IFDIR
    }

    pub fn make(&mut self, parent: usize, name: &str, kind: u32, mode: u32) -> Done {
        if self.nodes[&parent].children.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        let made = self.add(kind, mode, parent);
        self.name(parent, name, made);
        Ok(Some(made))
    }

    fn name(&mut self, parent: usize, name: &str, node: usize) {
        if let Some(parent) = self.nodes.get_mut(&parent) {
            parent.children.insert(name.to_string(), node);
        }
    }

    fn unname(&mut self, parent: usize, name: &str) {
        if let Some(parent) = self.nodes.get_mut(&parent) {
            parent.children.remove(name);
        }
    }

    pub fn link(&mut self, node: usize, parent: usize, name: &str) -> Done {
        if self.nodes[&parent].children.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        self.name(parent, name, node);
        Ok(None)
    }

    fn collect(&mut self) {
        let named: BTreeSet<usize> = self
            .nodes
            .values()
            .flat_map(|node| node.children.values().copied())
            .collect();
        self.nodes
            .retain(|number, _| *number == 0 || named.contains(number));
    }

    fn child(&self, parent: usize, name: &str) -> Result<usize, Errno> {
        self.nodes[&parent]
            .children
            .get(name)
            .copied()
            .ok_or(Errno::ENOENT)
    }

    pub fn remove(&mut self, parent: usize, name: &str, directory: bool) -> Done {
        let child = self.child(parent, name)?;
        match (directory, self.is_directory(child)) {
            (false, true) => return Err(Errno::EISDIR),
            (true, false) => return Err(Errno::ENOTDIR),
            (true, true) if !self.nodes[&child].children.is_empty() => {
                return Err(Errno::ENOTEMPTY);
            }
            _ => {}
        }
        self.unname(parent, name);
        self.collect();
        Ok(None)
    }

    fn is_below(&self, mut node: usize, above: usize) -> bool {
        while node != above {
            if node == 0 {
                return false;
            }
            node = self.nodes[&node].parent;
        }
        true
    }

    pub fn rename(
        &mut self,
        (parent, name): (usize, &str),
        (to, new): (usize, &str),
        existing: OnExisting,
    ) -> Done {
        let moved = self.child(parent, name)?;
        let target = self.child(to, new).ok();
        match (existing, target) {
            (OnExisting::Fail, Some(_)) => return Err(Errno::EEXIST),
            (OnExisting::Exchange, None) => return Err(Errno::ENOENT),
            _ => {}
        }
        if target == Some(moved) {
            return Ok(None);
        }
        if self.is_directory(moved) && self.is_below(to, moved) {
            return Err(Errno::EINVAL);
        }
        if let Some(target) = target {
            if existing == OnExisting::Exchange {
                if self.is_directory(target) && self.is_below(parent, target) {
                    return Err(Errno::EINVAL);
                }
                self.name(parent, name, target);
                self.set_parent(target, parent);
                self.name(to, new, moved);
                self.set_parent(moved, to);
                return Ok(None);
            }
            match (self.is_directory(moved), self.is_directory(target)) {
                (true, false) => return Err(Errno::ENOTDIR),
                (false, true) => return Err(Errno::EISDIR),
                (true, true) if !self.nodes[&target].children.is_empty() => {
                    return Err(Errno::ENOTEMPTY);
                }
                _ => {}
            }
        }
        self.unname(parent, name);
        self.name(to, new, moved);
        self.set_parent(moved, to);
        self.collect();
        Ok(None)
    }

    fn set_parent(&mut self, node: usize, parent: usize) {
        if let Some(node) = self.nodes.get_mut(&node) {
            node.parent = parent;
        }
    }

    pub fn write(&mut self, file: usize, at: usize, bytes: &[u8]) {
        let Some(node) = self.nodes.get_mut(&file) else {
            return;
        };
        if bytes.is_empty() {
            return;
        }
        let end = at + bytes.len();
        if node.bytes.len() < end {
            node.bytes.resize(end, 0);
        }
        node.bytes[at..end].copy_from_slice(bytes);
    }

    pub fn resize(&mut self, file: usize, size: usize) {
        if let Some(node) = self.nodes.get_mut(&file) {
            node.bytes.resize(size, 0);
        }
    }

    /// Zeros within the file, and the size raised if that is said.
    pub fn zero(&mut self, file: usize, range: std::ops::Range<usize>, zero: bool, extend: bool) {
        let Some(node) = self.nodes.get_mut(&file) else {
            return;
        };
        let size = node.bytes.len();
        if zero {
            node.bytes[range.start.min(size)..range.end.min(size)].fill(0);
        }
        if extend && size < range.end {
            node.bytes.resize(range.end, 0);
        }
    }

    pub fn tree(&self) -> Tree {
        let mut tree = Tree::new();
        let mut open = vec![(String::new(), 0)];
        while let Some((path, number)) = open.pop() {
            let node = &self.nodes[&number];
            let mut links = 0;
            for other in self.nodes.values() {
                links += other
                    .children
                    .values()
                    .filter(|child| **child == number)
                    .count() as u32;
            }
            if node.kind == libc::S_IFDIR {
                let directories = node
                    .children
                    .values()
                    .filter(|child| self.is_directory(**child));
                links = 2 + directories.count() as u32;
            }
            for (name, child) in &node.children {
                open.push((format!("{path}/{name}"), *child));
            }
            let entry = (
                node.kind | node.mode,
                links,
                node.bytes.clone(),
                node.attributes.clone(),
                node.owner,
                node.device,
            );
            tree.insert(path, entry);
        }
        tree
    }
}
