//! Intervals that may overlap, in a balanced tree: the index below [`Locks`](super::Locks).
//!
//! A treap (Seidel and Aragon 1996), ordered by start and holder. Each node knows the furthest end in its subtree, once of
//! all intervals and once of the exclusive ones, so that a search for conflicts leaves out subtrees that end too early.
//! Priorities are hashes of a counter: the shape depends on nothing but the order of calls. It knows nothing of who may
//! hold what.

use crate::random::mix;
use crate::range::{Range, Right};

const NONE: u32 = u32::MAX;

#[derive(Clone, Debug)]
struct Node<H> {
    start: u64,
    holder: H,
    end: u64,
    right: Right,
    priority: u64,
    left: u32,
    after: u32,
    /// The furthest end of all intervals at and below this node, in blocks.
    end_max: u64,
    /// The same of exclusive ones; 0 if there is none.
    exclusive_end_max: u64,
}

/// The intervals. At most one of each holder begins at any block.
#[derive(Clone, Debug)]
pub struct Tree<H> {
    nodes: Vec<Node<H>>,
    free: Vec<u32>,
    root: u32,
    counter: u64,
}

impl<H> Default for Tree<H> {
    fn default() -> Self {
        Tree {
            nodes: Vec::new(),
            free: Vec::new(),
            root: NONE,
            counter: 0,
        }
    }
}

impl<H: Copy + Ord> Tree<H> {
    /// Number of intervals.
    pub fn len(&self) -> usize {
        self.nodes.len() - self.free.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds an interval. The holder has none that begins at the same block.
    pub fn insert(&mut self, holder: H, range: Range, right: Right) {
        self.counter += 1;
        let node = Node {
            start: range.start,
            holder,
            end: range.end,
            right,
            priority: mix(self.counter),
            left: NONE,
            after: NONE,
            end_max: 0,
            exclusive_end_max: 0,
        };
        let at = match self.free.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                at
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as u32
            }
        };
        self.renew(at);
        let (left, after) = self.split(self.root, (range.start, holder));
        let left = self.join(left, at);
        self.root = self.join(left, after);
    }

    /// Takes away the holder's interval that begins at `start`. Says whether there was one.
    pub fn remove(&mut self, holder: H, start: u64) -> bool {
        let (root, removed) = self.cut(self.root, (start, holder));
        self.root = root;
        self.free.extend(removed);
        removed.is_some()
    }

    /// Calls `visit` for every interval that overlaps `range`, in order of start, until it says `false`. With
    /// [`Right::Shared`], only for those that conflict with it: the exclusive ones.
    pub fn conflicting(
        &self,
        range: Range,
        right: Right,
        visit: &mut dyn FnMut(H, Range, Right) -> bool,
    ) {
        self.walk(self.root, range, right, visit);
    }

    fn walk(
        &self,
        at: u32,
        range: Range,
        right: Right,
        visit: &mut dyn FnMut(H, Range, Right) -> bool,
    ) -> bool {
        let Some(node) = self.nodes.get(at as usize) else {
            return true;
        };
        let furthest = match right {
            Right::Exclusive => node.end_max,
            Right::Shared => node.exclusive_end_max,
        };
        if furthest <= range.start {
            return true;
        }
        if !self.walk(node.left, range, right, visit) {
            return false;
        }
        if node.start >= range.end {
            return true;
        }
        if node.end > range.start && node.right.conflicts(right) {
            let held = Range {
                start: node.start,
                end: node.end,
            };
            if !visit(node.holder, held, node.right) {
                return false;
            }
        }
        self.walk(node.after, range, right, visit)
    }

    fn renew(&mut self, at: u32) {
        let (left, after) = {
            let node = &self.nodes[at as usize];
            (node.left, node.after)
        };
        let of = |child: u32| {
            let child = self.nodes.get(child as usize);
            child.map_or((0, 0), |child| (child.end_max, child.exclusive_end_max))
        };
        let (left, after) = (of(left), of(after));
        let node = &mut self.nodes[at as usize];
        let own = match node.right {
            Right::Exclusive => node.end,
            Right::Shared => 0,
        };
        node.end_max = node.end.max(left.0).max(after.0);
        node.exclusive_end_max = own.max(left.1).max(after.1);
    }

    /// Those before `key`, and the rest.
    fn split(&mut self, at: u32, key: (u64, H)) -> (u32, u32) {
        let Some(node) = self.nodes.get(at as usize) else {
            return (NONE, NONE);
        };
        if (node.start, node.holder) < key {
            let (left, after) = self.split(node.after, key);
            self.nodes[at as usize].after = left;
            self.renew(at);
            (at, after)
        } else {
            let (left, after) = self.split(node.left, key);
            self.nodes[at as usize].left = after;
            self.renew(at);
            (left, at)
        }
    }

    /// Both as one; all of `left` are before all of `after`.
    fn join(&mut self, left: u32, after: u32) -> u32 {
        if left == NONE {
            return after;
        }
        if after == NONE {
            return left;
        }
        if self.nodes[left as usize].priority >= self.nodes[after as usize].priority {
            let joined = self.join(self.nodes[left as usize].after, after);
            self.nodes[left as usize].after = joined;
            self.renew(left);
            left
        } else {
            let joined = self.join(left, self.nodes[after as usize].left);
            self.nodes[after as usize].left = joined;
            self.renew(after);
            after
        }
    }

    /// The subtree without the node of `key`, and that node.
    fn cut(&mut self, at: u32, key: (u64, H)) -> (u32, Option<u32>) {
        let Some(node) = self.nodes.get(at as usize) else {
            return (NONE, None);
        };
        let (own, left, after) = ((node.start, node.holder), node.left, node.after);
        if own == key {
            return (self.join(left, after), Some(at));
        }
        let removed = if key < own {
            let (child, removed) = self.cut(left, key);
            self.nodes[at as usize].left = child;
            removed
        } else {
            let (child, removed) = self.cut(after, key);
            self.nodes[at as usize].after = child;
            removed
        };
        self.renew(at);
        (at, removed)
    }

    /// How far down the deepest interval lies: what a call costs, for tests.
    #[cfg(test)]
    pub fn depth(&self) -> usize {
        fn below<H>(tree: &Tree<H>, at: u32) -> usize {
            let Some(node) = tree.nodes.get(at as usize) else {
                return 0;
            };
            1 + below(tree, node.left).max(below(tree, node.after))
        }
        below(self, self.root)
    }
}
