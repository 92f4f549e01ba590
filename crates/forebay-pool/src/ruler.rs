//! Who keeps the register, for as long as he may, as a machine without I/O.
//!
//! A ruler by etcd answers a member only when etcd has what the answer rests on, and only as long as his lease lasts by his own clock. So a later
//! ruler knows of all that members were told, and nobody was told anything after the lease had ended. Without etcd there is one ruler for the whole life of
//! the pool, and he answers at once.

use std::collections::VecDeque;
use std::net::SocketAddr;

use crate::ids::Node;
use crate::message::{Addresses, Message, Outbox};
use crate::mistakes::{Mistake, is_made};
use crate::register::{Register, Saved};

/// How long a reign lasts, and what is known of it.
#[derive(Clone, Debug)]
struct Lease {
    /// By this process's clock.
    until: u64,
    /// The last state that differs from the one before, and its number.
    state: Saved,
    change: u64,
    /// The last one that was taken to be saved, and the last one that has been.
    taken: u64,
    kept: u64,
    /// How many addresses of the list have been saved, and the first state that has all of it.
    listed: usize,
    grown: u64,
    /// Answers, and the state that they rest on.
    held: VecDeque<(u64, Outbox)>,
    /// The lease was over when it was last looked at.
    is_away: bool,
}

/// What a server is told that asks for the place of its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placed {
    /// This one.
    At(u8),
    /// The pool has not begun, or the list with it has not been saved.
    Later,
    /// There is no place left.
    Never,
}

/// A ruler.
#[derive(Clone, Debug)]
pub struct Ruler {
    register: Register,
    lease: Option<Lease>,
    /// When the clock was last looked at.
    looked: Option<u64>,
}

impl Ruler {
    /// One whom nobody follows.
    pub fn for_ever(register: Register) -> Ruler {
        Ruler {
            register,
            lease: None,
            looked: None,
        }
    }

    /// One who rules until then. What the register knows now has been saved.
    pub fn under_lease(register: Register, until: u64) -> Ruler {
        let lease = Lease {
            until,
            state: register.saved(),
            change: 0,
            taken: 0,
            kept: 0,
            listed: register.list.count(),
            grown: 0,
            held: VecDeque::new(),
            is_away: false,
        };
        Ruler {
            register,
            lease: Some(lease),
            looked: None,
        }
    }

    /// The register.
    pub fn register(&self) -> &Register {
        &self.register
    }

    /// The addresses of servers that a later ruler will know as well.
    pub fn addresses(&self) -> Addresses {
        let lease = self.lease.as_ref();
        let known = lease.map_or(usize::MAX, |lease| lease.listed);
        self.register.list.first(known)
    }

    /// The place of a server at this address. Where the list lacks it, it grows once the pool has begun.
    pub fn place(&mut self, address: SocketAddr) -> Placed {
        let known = self.register.list.place(address);
        if known.is_none() && !self.register.has_begun() {
            return Placed::Later;
        }
        let Some(place) = self.register.list.take_in(address) else {
            return Placed::Never;
        };
        let Some(lease) = &mut self.lease else {
            return Placed::At(place);
        };
        if known.is_none() {
            lease.note(&self.register);
            lease.grown = lease.change;
        }
        if usize::from(place) < lease.listed {
            Placed::At(place)
        } else {
            Placed::Later
        }
    }

    /// A message of `from`. One that comes while the lease is over is lost.
    pub fn handle(&mut self, now: u64, from: Node, message: Message, out: &mut Outbox) {
        self.tick(now);
        if !self.may_answer(now) {
            return;
        }
        let Some(lease) = &mut self.lease else {
            return self.register.handle(now, from, message, out);
        };
        let mut answers = Outbox::new();
        self.register.handle(now, from, message, &mut answers);
        lease.note(&self.register);
        lease.held.push_back((lease.change, answers));
        self.release(now, out);
    }

    /// The clock has moved on.
    pub fn tick(&mut self, now: u64) {
        if let Some(since) = self.stood_still_since(now) {
            // Signs of life that came meanwhile wait still, and nobody has looked at them.
            self.register.stood_still(since, now);
        }
        let may_answer = self.may_answer(now);
        if let Some(lease) = &mut self.lease {
            if !may_answer {
                lease.is_away = true;
                lease.held.clear();
                return;
            }
            if std::mem::take(&mut lease.is_away) {
                // Nobody could be answered meanwhile.
                self.register.restart(now);
            }
        }
        self.register.tick(now);
        if let Some(lease) = &mut self.lease {
            lease.note(&self.register);
        }
    }

    /// Nobody could ask for a while: nobody's term has run meanwhile.
    pub fn restart(&mut self, now: u64) {
        self.looked = Some(now);
        self.register.restart(now);
    }

    /// The lease lasts until then.
    pub fn renewed(&mut self, until: u64) {
        if let Some(lease) = &mut self.lease {
            lease.until = lease.until.max(until);
        }
    }

    /// Whether there is something to be saved that was not taken yet.
    pub fn has_unsaved(&self) -> bool {
        { self.lease.as_ref() }.is_some_and(|lease| lease.taken < lease.change)
    }

    /// What is to be saved now, and its number.
    pub fn unsaved(&mut self) -> Option<(u64, Saved)> {
        let lease = self.lease.as_mut()?;
        (lease.kept < lease.change).then(|| {
            lease.taken = lease.change;
            (lease.change, lease.state.clone())
        })
    }

    /// The state with this number has been saved: answers that rest on it go.
    pub fn kept(&mut self, now: u64, change: u64, out: &mut Outbox) {
        if let Some(lease) = &mut self.lease {
            lease.kept = lease.kept.max(change);
            if lease.kept >= lease.grown {
                lease.listed = self.register.list.count();
            }
        }
        self.release(now, out);
    }

    /// Since when this process has done nothing, if that is half a term ago: it was stopped, its host slept, or its home took so long.
    fn stood_still_since(&mut self, now: u64) -> Option<u64> {
        let looked = self.looked.replace(now)?;
        (now.saturating_sub(looked) > self.register.term() / 2).then_some(looked)
    }

    /// Whether its lease lasts.
    pub fn may_answer(&self, now: u64) -> bool {
        let lease = self.lease.as_ref();
        lease.is_none_or(|lease| now < lease.until) || is_made(Mistake::OldRulerRules)
    }

    fn release(&mut self, now: u64, out: &mut Outbox) {
        if !self.may_answer(now) {
            return;
        }
        if let Some(lease) = &mut self.lease {
            let kept = lease.kept;
            let is_old = now >= lease.until && is_made(Mistake::OldRulerRules);
            let goes = |(on, _): &mut (u64, Outbox)| {
                *on <= kept || is_old || is_made(Mistake::AnswersUnsaved)
            };
            while let Some((_, answers)) = lease.held.pop_front_if(goes) {
                out.extend(answers);
            }
        }
    }
}

impl Lease {
    fn note(&mut self, register: &Register) {
        let state = register.saved();
        if state != self.state {
            self.state = state;
            self.change += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Client, Epoch, Server};
    use crate::list::List;
    use crate::message::alive;
    use crate::register::Floor;

    const MEMBERS: [Node; 2] = [Node::Server(Server(1)), Node::Client(Client(2))];

    fn is_taken(ruler: &mut Ruler, now: u64, member: Node) -> bool {
        let mut out = Outbox::new();
        let (_, sign) = alive(now, (Epoch(0), false), Epoch(0), false, (false, 0));
        ruler.handle(now, member, sign, &mut out);
        matches!(out[..], [(to, Message::Member { .. })] if to == member)
    }

    #[test]
    fn who_stood_still_gives_nobody_up_for_that() {
        let mut ruler = Ruler::for_ever(Register::new(400, 1));
        assert!(
            MEMBERS
                .iter()
                .all(|member| is_taken(&mut ruler, 0, *member))
        );
        // It goes on, and what has come meanwhile is heard one after the other.
        ruler.tick(1000);
        assert!(
            MEMBERS
                .iter()
                .all(|member| is_taken(&mut ruler, 1001, *member))
        );
    }

    #[test]
    fn who_says_nothing_after_that_is_given_up() {
        let [here, silent] = MEMBERS;
        let mut ruler = Ruler::for_ever(Register::new(400, 1));
        assert!(
            MEMBERS
                .iter()
                .all(|member| is_taken(&mut ruler, 0, *member))
        );
        for now in (1000..1500).step_by(100) {
            assert!(is_taken(&mut ruler, now, here));
            assert_eq!(ruler.register().is_over(silent), now >= 1400, "{now}");
        }
    }

    /// When a ruler looks who stands still for 0.6 terms again and again, and is there for 0.3 terms between.
    fn now_and_then() -> impl Iterator<Item = u64> {
        let there = |begin: u64| (begin..=begin + 120).step_by(30);
        (0..4000).step_by(360).flat_map(there)
    }

    #[test]
    fn who_stands_still_now_and_then_gives_up_who_says_nothing() {
        let [here, silent] = MEMBERS;
        let mut ruler = Ruler::for_ever(Register::new(400, 1));
        assert!(is_taken(&mut ruler, 0, silent));
        for now in now_and_then() {
            assert!(is_taken(&mut ruler, now, here), "{now}");
        }
        assert!(ruler.register().is_over(silent));
    }

    #[test]
    fn who_stands_still_now_and_then_gives_up_who_does_not_answer() {
        let [server, late] = MEMBERS;
        let mut ruler = Ruler::for_ever(Register::new(400, 1));
        let mut is_in = |now| {
            assert!(is_taken(&mut ruler, now, server), "{now}");
            let (client, mut out) = (Client(2), Outbox::new());
            // Nobody has stood still yet when it comes.
            if now > 120 {
                ruler.handle(now, server, Message::Expel { client }, &mut out);
            }
            is_taken(&mut ruler, now, late)
        };
        // It is excused for two terms in which the ruler was there.
        let is_excused = |now: &u64| *now < 2400;
        assert!(now_and_then().take_while(is_excused).all(&mut is_in));
        assert!(!now_and_then().skip_while(is_excused).all(is_in));
    }

    fn address(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    #[test]
    fn no_place_is_given_before_the_pool_has_begun_and_the_list_with_it_is_saved() {
        let list = List::of(&[address(1), address(2)]);
        let mut ruler = Ruler::under_lease(Register::new(400, 1).of_list(list), 2000);
        let known = |ruler: &Ruler| ruler.addresses().len();
        assert_eq!(ruler.place(address(2)), Placed::At(1));
        assert_eq!(ruler.place(address(3)), Placed::Later);
        assert!(!ruler.has_unsaved());
        is_taken(&mut ruler, 0, MEMBERS[0]);
        let (begun, _) = ruler.unsaved().unwrap();
        assert_eq!(ruler.place(address(3)), Placed::Later);
        // What is saved now does not have it.
        ruler.kept(1, begun, &mut Outbox::new());
        assert_eq!(ruler.place(address(3)), Placed::Later);
        assert_eq!(known(&ruler), 2);
        let (grown, saved) = ruler.unsaved().unwrap();
        assert_eq!(saved.list.place(address(3)), Some(2));
        assert_eq!(ruler.place(address(4)), Placed::Later);
        // Until all is saved that it has, it tells nobody of any of it.
        ruler.kept(2, grown, &mut Outbox::new());
        assert_eq!(known(&ruler), 2);
        let (grown, saved) = ruler.unsaved().unwrap();
        ruler.kept(3, grown, &mut Outbox::new());
        assert_eq!(ruler.place(address(3)), Placed::At(2));
        assert_eq!(ruler.place(address(4)), Placed::At(3));
        assert_eq!((known(&ruler), saved.list.count()), (4, 4));
        // The next one has them where they were.
        let register = Register::new(400, 4).resume(0, saved, Floor::default());
        let mut next = Ruler::under_lease(register, 2000);
        assert_eq!(next.place(address(4)), Placed::At(3));
    }

    #[test]
    fn without_a_lease_a_place_is_given_at_once_when_the_pool_has_begun() {
        let list = List::of(&[address(1)]);
        let mut ruler = Ruler::for_ever(Register::new(400, 1).of_list(list));
        assert_eq!(ruler.place(address(2)), Placed::Later);
        assert!(is_taken(&mut ruler, 0, MEMBERS[0]));
        for place in 1..=u8::MAX {
            let address = address(u16::from(place) + 1);
            assert_eq!(ruler.place(address), Placed::At(place));
        }
        assert_eq!(ruler.addresses().len(), 256);
        assert_eq!(ruler.place(address(257)), Placed::Never);
        assert_eq!(ruler.place(address(9)), Placed::At(8));
    }

    #[test]
    fn a_ruler_under_a_lease_that_stood_still_gives_nobody_up_for_that() {
        let mut ruler = Ruler::under_lease(Register::new(400, 1), 2000);
        for member in MEMBERS {
            is_taken(&mut ruler, 0, member);
        }
        ruler.tick(1000);
        assert!(
            MEMBERS
                .iter()
                .all(|member| !ruler.register().is_over(*member))
        );
    }
}
