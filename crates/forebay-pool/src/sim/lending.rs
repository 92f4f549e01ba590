//! Messages on their way, and what goes past servers: blocks that are lent, in half of all pools.
//!
//! A read past a server takes its bytes at two moments, its first parts before the others, as they are then. It takes a quarter of a term at
//! most, as it does between real members.
//! Keys that have been closed open nothing; then the request goes by a message.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::scenes::{Scene, play};
use super::{What, World, pair};
use crate::ids::{Client as ClientId, Node};
use crate::loans::Lender;
use crate::loans::table::Shared;
use crate::located::{Goes, Located, Wanted};
use crate::message::{Message, Outbox};
use crate::random::mix;

/// A request that goes past its server, and by which connection it would have gone.
pub(super) struct Passing {
    client: ClientId,
    link: u64,
    wanted: Wanted,
}

/// What all servers lend, and what clients know of it.
#[derive(Default)]
pub(super) struct Lending {
    shared: Shared,
    located: BTreeMap<ClientId, Located>,
    /// Requests that went past servers, and those that could not.
    pub passed: (u64, u64),
}

impl Lending {
    pub fn in_half(seed: u64) -> Option<Lending> {
        (mix(seed ^ 0x10a5) & 1 == 0).then(Lending::default)
    }

    pub fn lender(&self) -> Arc<dyn Lender> {
        Arc::new(self.shared.clone())
    }
}

impl World {
    pub(super) fn send(&mut self, from: Node, out: Outbox) {
        let reign = self.rulers.followed_by(from);
        self.send_in(reign, from, out);
    }

    pub(super) fn send_in(&mut self, reign: u64, from: Node, out: Outbox) {
        for (to, message) in out {
            let mut goes = Goes::Itself;
            if let (Node::Client(id), Some(lending)) = (from, &mut self.lending) {
                let located = lending.located.entry(id).or_insert_with(Located::eager);
                goes = located.goes(to, &message, true);
            }
            match goes {
                Goes::Itself => self.send_one(reign, (from, to), message),
                Goes::With(another) => {
                    self.send_one(reign, (from, to), message);
                    self.send_one(reign, (from, to), another);
                }
                Goes::Past(wanted) => self.begin_passing(from, wanted),
            }
        }
    }

    fn send_one(&mut self, reign: u64, (from, to): (Node, Node), message: Message) {
        self.messages += 1;
        let (link, cut_until) = self.links.get(&pair(from, to)).copied().unwrap_or((0, 0));
        let delay = self.delay(from, to);
        let last = self.last.entry((from, to)).or_insert(0);
        *last = (*last).max(self.now + delay).max(cut_until);
        let at = *last;
        self.event(
            at,
            What::Arrives {
                from,
                to,
                link,
                reign,
                message,
            },
        );
    }

    fn link_of(&self, client: ClientId, wanted: &Wanted) -> (u64, u64) {
        let pair = pair(Node::Client(client), Node::Server(wanted.server));
        self.links.get(&pair).copied().unwrap_or((0, 0))
    }

    /// How long a part of it takes. It waits for nothing that goes by messages.
    fn until_passed(&mut self) -> u64 {
        let most = if self.random.chance(20) {
            super::TERM / 8
        } else {
            self.delay_max
        };
        self.now + self.random.below(most + 1)
    }

    fn begin_passing(&mut self, from: Node, wanted: Wanted) {
        let Node::Client(client) = from else {
            return;
        };
        let (link, _) = self.link_of(client, &wanted);
        let at = self.until_passed();
        let passing = Passing {
            client,
            link,
            wanted,
        };
        self.event(at, What::Passes(passing));
    }

    pub(super) fn passes(&mut self, passing: Passing) {
        let parts = &passing.wanted.parts;
        let first =
            { self.lending.as_ref() }.and_then(|all| all.shared.read(&parts[..parts.len() / 2]));
        let at = self.until_passed();
        self.event(at, What::Passed(passing, first));
    }

    pub(super) fn passed(&mut self, passing: Passing, first: Option<Vec<u8>>) {
        let Passing {
            client: id,
            link,
            wanted,
        } = passing;
        let (now_link, cut_until) = self.link_of(id, &wanted);
        let parts = &wanted.parts;
        let Some(lending) = &mut self.lending else {
            return;
        };
        let rest = lending.shared.read(&parts[parts.len() / 2..]);
        let is_cut = cut_until > self.now;
        let bytes = first.zip(rest).filter(|_| !is_cut);
        let passed = &mut lending.passed;
        *(if bytes.is_some() {
            &mut passed.0
        } else {
            &mut passed.1
        }) += 1;
        if bytes.is_none()
            && let Some(located) = lending.located.get_mut(&id)
        {
            located.failed(&wanted);
        }
        if now_link != link {
            return;
        }
        let (from, server) = (Node::Client(id), Node::Server(wanted.server));
        let Some((first, rest)) = bytes else {
            let reign = self.rulers.followed_by(from);
            return self.send_one(reign, (from, server), wanted.read);
        };
        let now = self.clock(from);
        let mut out = Outbox::new();
        if let Some(client) = self.clients.get_mut(&id) {
            let answer = wanted.answer([first, rest].concat());
            client.handle(now, server, answer, &mut out);
        }
        self.send(from, out);
        self.collect(id);
    }

    pub(super) fn is_of_loans(&mut self, (id, from): (ClientId, Node), what: &Message) -> bool {
        let Some(lending) = &mut self.lending else {
            return false;
        };
        let located = lending.located.entry(id).or_insert_with(Located::eager);
        located.came(from, what)
    }

    pub(super) fn forget_lent(&mut self, id: ClientId) {
        if let Some(lending) = &mut self.lending {
            lending.located.remove(&id);
        }
    }
}

/// All scenes go past servers in half of their pools, and now and then they cannot.
#[test]
fn reads_go_past_servers_in_all_scenes() {
    let mut failures = 0;
    let scenes = [
        Scene::Quiet,
        Scene::Breaks,
        Scene::Servers,
        Scene::Clients,
        Scene::Home,
    ];
    for scene in scenes {
        let mut reads = 0;
        for seed in 1..100 {
            let world = play(seed, scene, 120).unwrap_or_else(|why| panic!("{seed}: {why}"));
            let passed = world.lending.map(|lending| lending.passed);
            let (passed, failed) = passed.unwrap_or_default();
            reads += passed;
            failures += failed;
        }
        println!("{scene:?}: {reads}");
        assert!(reads > 20, "{scene:?}: {reads}");
    }
    println!("not so: {failures}");
    assert!(failures > 0);
}
