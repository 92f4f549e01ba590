//! Headers, files, trees and sums.

use std::collections::{HashMap, HashSet};

use super::Check;
use crate::flush::busy;
use crate::frame::header::{Look, NOBODYS, State};
use crate::frame::slots::visit::{Met, NodeState, state_of, visit};
use crate::ids::{FileId, HeaderId, NodeId, ThreadId};
use crate::limits::{BLOCK_PAGES, PAGE_BYTES};
use crate::memory::files::{ABSENT, ENTERING, FileEntry, GONE, LIVE};
use crate::scrap::page::PageWord;
use crate::scrap::split::mask;
use crate::sync::Ordering;

impl Check<'_> {
    pub(super) fn headers(&mut self) {
        let looks = std::mem::take(&mut self.looks);
        for (id, look) in looks.iter().enumerate() {
            self.one_header(HeaderId(id as u32), look);
        }
        self.looks = looks;
    }

    fn one_header(&mut self, id: HeaderId, look: &Look) {
        if let Some(holder) = look.holder {
            self.problem(format!("header {} is locked by {}", id.0, holder.0));
        }
        match look.state {
            State::Free => {
                self.report.headers_free += 1;
                let hinted = self.arena.header_hints().is_set(id.0);
                self.must(hinted, || {
                    format!("header {} is free and cannot be found", id.0)
                });
                let none = look.identity.is_none();
                self.must(none, || {
                    format!("header {} is free and describes a block", id.0)
                });
                self.no_bytes(id, look);
            }
            State::Held(by) => {
                self.report.headers_held += 1;
                let lives = self.lives(by);
                self.must(lives, || {
                    format!("header {} is held by {}, who is gone", id.0, by.0)
                });
                self.no_bytes(id, look);
            }
            State::Doomed => self.problem(format!("header {} was left doomed", id.0)),
            State::Linked => self.linked_header(id, look),
            State::Superseded(by) => {
                let lives = self.lives(by);
                self.must(lives, || {
                    format!("header {} is superseded by the dead", id.0)
                });
                self.linked_header(id, look);
            }
        }
        let due = look.charge_due();
        self.must(look.charged == due, || {
            format!(
                "header {} is charged {} pages and owes {due}",
                id.0, look.charged
            )
        });
    }

    fn no_bytes(&mut self, id: HeaderId, look: &Look) {
        let words = look.pages_where(|word| word != PageWord::EMPTY);
        let empty = look.valid | look.owed() | words == 0 && look.frame.is_none();
        self.must(empty, || {
            format!("header {} is not linked and holds memory", id.0)
        });
    }

    fn linked_header(&mut self, id: HeaderId, look: &Look) {
        self.report.headers_linked += 1;
        let file = look.identity.and_then(|i| Some((i, self.live(i.file)?)));
        let Some((identity, entry)) = file else {
            return self.problem(format!("header {} is linked to no file", id.0));
        };
        let size = entry.size.load(Ordering::Acquire);
        let pages = size
            .saturating_sub(identity.block.start())
            .div_ceil(PAGE_BYTES as u64);
        let within = mask(0..pages.min(BLOCK_PAGES as u64) as u32);
        let beyond = (look.valid | look.ragged_words()) & look.dirty & !within;
        self.must(beyond == 0, || {
            format!("header {} owes pages {beyond:x} beyond the end", id.0)
        });
        let odd = look.pages_where(|word| !word.is_wellformed());
        self.must(odd == 0, || {
            format!("header {} has odd words of pages {odd:x}", id.0)
        });
        let runs = look.ragged_words();
        let both = runs & look.valid;
        self.must(both == 0, || {
            format!("header {} has runs in whole pages {both:x}", id.0)
        });
        let lost = runs & !look.dirty;
        self.must(lost == 0, || {
            format!("header {} has runs that owe nothing {lost:x}", id.0)
        });
        if look.frame.is_none() {
            let homeless = (look.valid | runs) & !look.small_pages();
            self.must(homeless == 0, || {
                format!("header {}: no memory of {homeless:x}", id.0)
            });
        } else {
            let left = look.small_pages();
            self.must(left == 0, || {
                format!("header {}: small frames {left:x} beside a frame", id.0)
            });
        }
        if look.inflight != 0 {
            let lives = self.lives(look.flusher);
            let orphans = self.arena.superblock().orphans.load(Ordering::Acquire) != 0;
            let orphan = look.flusher == NOBODYS && orphans;
            self.must(lives || orphan, || {
                format!("header {} is in flight by the dead", id.0)
            });
        }
    }

    fn live(&self, id: FileId) -> Option<&FileEntry> {
        self.arena
            .file(id)
            .filter(|entry| entry.state.load(Ordering::Acquire) == LIVE)
    }

    /// Every tree leads to the linked headers of its file, and to nothing else.
    pub(super) fn trees(&mut self) {
        let mut seen = HashSet::new();
        let mut found: HashMap<HeaderId, bool> = HashMap::new();
        for id in (0..self.arena.counts().files).map(FileId) {
            self.one_file(id, &mut seen, &mut found);
        }
        let (entries, files) = (&self.arena.superblock().entries, self.report.files);
        let entries = entries.load(Ordering::Acquire);
        self.must(entries >= files, || {
            format!("{entries} entries are counted, and {files} are files")
        });
        let mut lost = Vec::new();
        for (id, look) in self.linked() {
            match found.get(&id) {
                None => lost.push(format!("header {} is linked and in no tree", id.0)),
                Some(false) if look.charged != 0 => {
                    lost.push(format!("header {} owes pages and no scan finds it", id.0));
                }
                Some(_) => {}
            }
        }
        lost.into_iter().for_each(|text| self.problem(text));
        self.nodes(&seen);
    }

    fn one_file(
        &mut self,
        id: FileId,
        seen: &mut HashSet<NodeId>,
        found: &mut HashMap<HeaderId, bool>,
    ) {
        let Some(entry) = self.arena.file(id) else {
            return;
        };
        if let Some(rule) = entry.broken_rule() {
            self.problem(format!("entry {}: {rule} ({})", id.0, entry.describe()));
        }
        let state = entry.state.load(Ordering::Acquire);
        match state & 7 {
            LIVE if state == LIVE => self.report.files += 1,
            ABSENT | GONE if state <= GONE => {
                let bare = entry.root.load(Ordering::Acquire) == 0;
                return self.must(bare, || format!("entry {} is no file and has a tree", id.0));
            }
            ENTERING if self.lives(ThreadId(state >> 3)) => return,
            _ => return self.problem(format!("entry {} was left in state {state:x}", id.0)),
        }
        let append_lock = entry.append_lock.load(Ordering::Acquire);
        for (name, holder) in [
            ("gate", entry.gate.closer().0),
            ("append lock", append_lock),
        ] {
            self.must(holder == 0, || {
                format!("{name} of entry {} is held by {holder}", id.0)
            });
        }
        let noted = entry.is_changing(self.arena.counts().threads);
        self.report.files_noted += u32::from(noted);
        let mut met = Vec::new();
        visit(self.arena, entry, seen, &mut |what| met.push(what));
        for what in met {
            match what {
                Met::BadNode(node) => self.problem(format!("entry {}: bad node {}", id.0, node.0)),
                Met::Header {
                    block,
                    header,
                    owed,
                } => {
                    let identity = self
                        .looks
                        .get(header.index())
                        .and_then(|look| look.identity);
                    let right =
                        identity.is_some_and(|i| i.file == id && u64::from(i.block.0) == block);
                    self.must(right, || {
                        format!("entry {}: block {block} leads to header {}", id.0, header.0)
                    });
                    found.insert(header, owed);
                }
            }
        }
    }

    fn nodes(&mut self, in_trees: &HashSet<NodeId>) {
        let backed = self.arena.superblock().nodes_backed.load(Ordering::Acquire);
        for id in (0..backed.min(self.arena.counts().nodes)).map(NodeId) {
            let Some(node) = self.arena.node(id) else {
                return;
            };
            let in_tree = in_trees.contains(&id);
            self.report.nodes_linked += u32::from(in_tree);
            let fine = match state_of(node) {
                NodeState::Linked => in_tree,
                NodeState::Free => !in_tree && self.arena.node_hints().is_set(id.0),
                NodeState::Held(by) => !in_tree && self.lives(by),
                NodeState::Odd => false,
            };
            self.must(fine, || {
                format!(
                    "node {} is {:?}, in a tree: {in_tree}",
                    id.0,
                    state_of(node)
                )
            });
        }
    }

    /// What is counted is the sum of what is there.
    pub(super) fn sums(&mut self) {
        let mut files: HashMap<FileId, u64> = HashMap::new();
        let mut all = 0u64;
        let mut flying = false;
        for (_, look) in self.linked() {
            all += u64::from(look.charged);
            flying |= look.inflight != 0 || matches!(look.state, State::Superseded(_));
            if let Some(identity) = look.identity {
                *files.entry(identity.file).or_default() += u64::from(look.charged);
            }
        }
        self.report.owed_pages = all;
        for id in (0..self.arena.counts().files).map(FileId) {
            let Some(entry) = self.live(id) else { continue };
            let counted = entry.owed_pages.load(Ordering::Acquire);
            let due = files.get(&id).copied().unwrap_or(0);
            self.must(counted == due, || {
                format!(
                    "entry {} counts {counted} owed pages and there are {due}",
                    id.0
                )
            });
        }
        let superblock = self.arena.superblock();
        let mut counted = superblock.owed_pages.load(Ordering::Acquire);
        for id in (0..self.arena.counts().threads).map(ThreadId) {
            let delta = self
                .arena
                .thread_unchecked(id)
                .owed_delta
                .load(Ordering::Acquire);
            counted = counted.wrapping_add(delta);
        }
        self.must(counted == all, || {
            format!(
                "the session counts {} owed pages and there are {all}",
                counted as i64
            )
        });
        for words in &superblock.devices {
            let bytes = busy::bytes_of(words);
            self.must(bytes == 0 || flying, || {
                format!(
                    "a device counts {} bytes in flight and there are none",
                    bytes as i64
                )
            });
        }
    }
}
