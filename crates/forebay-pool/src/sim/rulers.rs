//! Who keeps the register of a simulated pool, and when that changes: etcd's part.
//!
//! In most scenes one register lives as long as the pool. In a pool *by etcd* a ruler holds a lease, and saves what its register knows. He may die, or be cut
//! off from etcd and go on with those who follow him still; then another one begins with what was saved. Members follow the new one sooner or later,
//! some only when their terms are long over.

use std::collections::BTreeMap;

use super::{Clock, TERM, What, World};
use crate::ids::{Epoch, Node};
use crate::message::{Message, Outbox};
use crate::register::{Floor, Register, Saved};
use crate::ruler::Ruler;

/// As long as a lease lasts in real pools.
const LEASE: u64 = TERM / 2;
const STEP: u64 = 10;

struct Reign {
    ruler: Ruler,
    clock: Clock,
    /// Until then etcd does not hear him, nor he it.
    cut_off_until: u64,
    is_dead: bool,
    /// A state is on its way to etcd.
    is_saving: bool,
}

impl Reign {
    fn new(ruler: Ruler, clock: Clock) -> Reign {
        Reign {
            ruler,
            clock,
            cut_off_until: 0,
            is_dead: false,
            is_saving: false,
        }
    }

    fn now(&self, now: u64) -> u64 {
        now * self.clock.per_mille / 1000 + self.clock.ahead
    }
}

/// All who believe that they rule.
pub struct Rulers {
    reigns: BTreeMap<u64, Reign>,
    /// The last one that began.
    last: u64,
    /// Whom each node follows.
    followed: BTreeMap<Node, u64>,
    /// What etcd has. Nothing in a pool without it.
    etcd: Option<Etcd>,
}

struct Etcd {
    /// When the ruler's key goes.
    until: u64,
    state: Saved,
    servers_min: usize,
}

impl Rulers {
    /// One whose clock is the world's.
    pub fn one(ruler: Ruler) -> Rulers {
        let clock = Clock {
            per_mille: 1000,
            ahead: 0,
        };
        Rulers {
            reigns: BTreeMap::from([(1, Reign::new(ruler, clock))]),
            last: 1,
            followed: BTreeMap::new(),
            etcd: None,
        }
    }

    /// The register of the last ruler, dead or alive.
    pub fn register(&self) -> &Register {
        self.reigns[&self.last].ruler.register()
    }

    /// A new member has its number from the last ruler.
    pub fn met(&mut self, node: Node) {
        self.followed.insert(node, self.last);
    }

    pub fn followed_by(&self, node: Node) -> u64 {
        self.followed.get(&node).copied().unwrap_or(self.last)
    }

    /// Whether a member's term is over for good: what a ruler has not saved the next one does not know.
    pub fn is_over(&self, member: Node) -> bool {
        let is_saved = |etcd: &Etcd| !etcd.state.has(member);
        self.register().is_over(member) && self.etcd.as_ref().is_none_or(is_saved)
    }

    pub fn handle(
        &mut self,
        now: u64,
        reign: u64,
        (from, message): (Node, Message),
        out: &mut Outbox,
    ) {
        if let Some(reign) = self.reigns.get_mut(&reign).filter(|reign| !reign.is_dead) {
            let now = reign.now(now);
            reign.ruler.handle(now, from, message, out);
        }
    }

    pub fn tick(&mut self, now: u64) {
        for reign in self.reigns.values_mut().filter(|reign| !reign.is_dead) {
            let now = reign.now(now);
            reign.ruler.tick(now);
        }
    }

    /// The only ruler was away.
    pub fn restart(&mut self, now: u64) {
        for reign in self.reigns.values_mut() {
            reign.ruler.restart(now);
        }
    }
}

impl World {
    pub fn register(&self) -> &Register {
        self.rulers.register()
    }

    /// From now on rulers hold leases. The pool has not begun.
    pub fn by_etcd(&mut self, servers: u32) {
        let servers_min = servers as usize;
        self.rulers.etcd = Some(Etcd {
            until: 0,
            state: Register::new(TERM, servers_min).saved(),
            servers_min,
        });
        self.rulers.reigns.clear();
        self.rulers.last = 0;
        self.take_over();
        self.event(self.now + STEP, What::Etcd);
    }

    /// How many rulers there have been.
    pub fn reigns(&self) -> u64 {
        self.rulers.last
    }

    /// The ruler dies.
    pub fn kill_ruler(&mut self) {
        if let Some(reign) = self.rulers.reigns.get_mut(&self.rulers.last) {
            reign.is_dead = true;
        }
    }

    /// The same, if another one follows.
    pub fn kill_elected_ruler(&mut self) {
        if self.rulers.etcd.is_some() {
            self.kill_ruler();
        }
    }

    /// The ruler does not reach etcd until then.
    pub fn cut_ruler(&mut self, until: u64) {
        if let Some(reign) = self.rulers.reigns.get_mut(&self.rulers.last) {
            reign.cut_off_until = until;
        }
    }

    /// Another one begins to rule with what the last one has saved.
    fn take_over(&mut self) {
        let clock = Clock {
            per_mille: 990 + self.random.below(21),
            ahead: self.random.below(10_000),
        };
        let Some(etcd) = &mut self.rulers.etcd else {
            return;
        };
        etcd.until = self.now + LEASE;
        // Who had a number from the first one has not met anybody yet.
        let floor = if self.rulers.last == 0 {
            Floor::default()
        } else {
            self.life += 1;
            Floor {
                epoch: Epoch(self.life << 32),
                client: self.next + 1,
                server: self.next + 1,
            }
        };
        let register = Register::new(TERM, etcd.servers_min);
        let mut reign = Reign::new(Ruler::under_lease(register.clone(), 0), clock);
        let now = reign.now(self.now);
        let register = register.resume(now, etcd.state.clone(), floor);
        reign.ruler = Ruler::under_lease(register, now + LEASE * 9 / 10);
        self.rulers.last += 1;
        let last = self.rulers.last;
        self.rulers.reigns.insert(last, reign);
        self.rulers.reigns.retain(|reign, _| reign + 3 > last);
        let nodes: Vec<Node> = self.rulers.followed.keys().copied().collect();
        for node in nodes {
            let bound = if self.random.chance(850) {
                TERM / 4
            } else {
                TERM * 3
            };
            let at = self.now + self.random.below(bound);
            self.event(at, What::Follows(node, last));
        }
    }

    /// The ruler renews his lease and saves; or another one begins.
    pub(super) fn etcd(&mut self) {
        self.event(self.now + STEP, What::Etcd);
        let last = self.rulers.last;
        let Some(until) = self.rulers.etcd.as_ref().map(|etcd| etcd.until) else {
            return;
        };
        if self.now >= until {
            return self.take_over();
        }
        let Some(reign) = self.rulers.reigns.get_mut(&last) else {
            return;
        };
        if reign.is_dead || self.now < reign.cut_off_until {
            return;
        }
        let now = reign.now(self.now);
        reign.ruler.renewed(now + LEASE * 9 / 10);
        let unsaved = reign.ruler.unsaved().filter(|_| !reign.is_saving);
        reign.is_saving |= unsaved.is_some();
        if let Some(etcd) = &mut self.rulers.etcd {
            etcd.until = self.now + LEASE;
        }
        if let Some((change, saved)) = unsaved {
            let at = self.now + 1 + self.random.below(15);
            let reign = last;
            self.event(
                at,
                What::Saves {
                    reign,
                    change,
                    saved,
                },
            );
        }
    }

    /// A state comes to etcd, which takes it from the last ruler only.
    pub(super) fn saves(&mut self, number: u64, change: u64, saved: Saved) {
        let is_last = number == self.rulers.last;
        let (Some(reign), Some(etcd)) =
            (self.rulers.reigns.get_mut(&number), &mut self.rulers.etcd)
        else {
            return;
        };
        reign.is_saving = false;
        let is_cut_off = self.now < reign.cut_off_until;
        // What is cut off may have come, and the answer is lost.
        if !is_last || is_cut_off && self.random.chance(500) {
            return;
        }
        etcd.state = saved;
        if !is_cut_off && !reign.is_dead {
            let now = reign.now(self.now);
            let mut out = Outbox::new();
            reign.ruler.kept(now, change, &mut out);
            self.send_in(number, Node::Register, out);
        }
    }

    pub(super) fn follows(&mut self, node: Node, reign: u64) {
        let followed = self.rulers.followed.entry(node).or_insert(reign);
        if *followed < reign {
            *followed = reign;
            self.break_link(node, Node::Register);
        }
    }
}
