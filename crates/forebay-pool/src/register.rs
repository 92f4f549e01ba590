//! The register of members, as a machine without I/O. One server's process drives it: the first, or the one that rules by etcd (`ruler`).
//!
//! A member is there as long as its messages come within a *term*. When one is gone, or a server joins or leaves, a new *epoch* begins. It is *active*
//! once all its servers are ready. The register's clock must not run ahead: it is a monotonic clock, as etcd's. After a
//! restart of the register every member has a whole term again.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::ids::{Client, Epoch, Node, Server};
use crate::list::List;
use crate::message::{Loss, Message, Outbox, View};

/// What outlives the process that keeps the register: all that its answers rest on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    view: View,
    members: Vec<Node>,
    placements: Vec<Vec<Server>>,
    dead: Vec<Server>,
    origin: Epoch,
    boots: BTreeMap<Server, u64>,
    boot: u64,
    /// Where servers may be.
    pub list: List,
}

impl Saved {
    /// The servers that may have blocks.
    pub fn servers(&self) -> impl Iterator<Item = Server> + '_ {
        let view = self.view.servers.iter().chain(&self.view.leaving);
        view.copied()
    }

    /// Whether this is a member.
    pub fn has(&self, member: Node) -> bool {
        self.members.contains(&member)
    }

    /// Whether a pool has begun.
    pub fn has_begun(&self) -> bool {
        self.view.epoch != self.origin
    }
}

/// Numbers below these were given by an earlier ruler. Who has one of them is a member by the saved state or not at all.
#[derive(Clone, Copy, Debug, Default)]
pub struct Floor {
    /// Epochs come after this one.
    pub epoch: Epoch,
    /// Of clients.
    pub client: u32,
    /// Of servers.
    pub server: u32,
}

/// The register.
#[derive(Clone, Debug)]
pub struct Register {
    term: u64,
    view: View,
    /// When each member's term ends, by the register's clock, in milliseconds.
    ends: BTreeMap<Node, u64>,
    ready: BTreeSet<Server>,
    expelled: BTreeSet<Client>,
    /// Whoever does not answer before this is excused: requests waited for the home, or the register was away.
    excused_until: u64,
    /// Lives that have ended. Their numbers are never used again.
    gone: BTreeSet<Node>,
    /// The servers of the last active epoch and of those since.
    placements: Vec<Vec<Server>>,
    /// Servers that died since that epoch.
    dead: Vec<Server>,
    /// The pool begins when it has so many servers.
    servers_min: usize,
    /// Where its epochs begin.
    origin: Epoch,
    /// What an earlier ruler has given.
    floor: Floor,
    /// Nothing is lost with servers.
    has_home: bool,
    /// As servers say it ([`Home::boot`](crate::home::Home::boot)).
    boots: BTreeMap<Server, u64>,
    /// The one by which there may be blocks in the home that nobody has synced; 0 if there is none.
    boot: u64,
    /// A sync of the home has failed at a server.
    has_failed: bool,
    /// Where servers may be.
    pub list: List,
}

impl Register {
    /// A register of a pool that begins with `servers_min` servers. `term` is in milliseconds.
    pub fn new(term: u64, servers_min: usize) -> Self {
        Register {
            term,
            view: View::default(),
            ends: BTreeMap::new(),
            ready: BTreeSet::new(),
            expelled: BTreeSet::new(),
            excused_until: 0,
            gone: BTreeSet::new(),
            placements: Vec::new(),
            dead: Vec::new(),
            servers_min,
            origin: Epoch(0),
            floor: Floor::default(),
            has_home: false,
            boots: BTreeMap::new(),
            boot: 0,
            has_failed: false,
            list: List::default(),
        }
    }

    /// A register of a pool whose servers are at these addresses, for now.
    pub fn of_list(self, list: List) -> Self {
        Register { list, ..self }
    }

    /// A register of a pool that has a home, or none.
    pub fn of_home(self, has_home: bool) -> Self {
        Register { has_home, ..self }
    }

    /// Goes on with what another process has saved: every member has a whole term again.
    pub fn resume(self, now: u64, saved: Saved, floor: Floor) -> Self {
        let ends = { saved.members.iter() }
            .map(|member| (*member, now + self.term))
            .collect();
        Register {
            // One that did not know of the home may have saved some.
            view: View {
                losses: if self.has_home {
                    Vec::new()
                } else {
                    saved.view.losses
                },
                ..saved.view
            },
            ends,
            placements: saved.placements,
            dead: saved.dead,
            origin: saved.origin,
            boots: saved.boots,
            boot: saved.boot,
            list: saved.list,
            floor,
            excused_until: now + self.patience(),
            ..self
        }
    }

    /// What another process needs to go on.
    pub fn saved(&self) -> Saved {
        Saved {
            view: self.view.clone(),
            members: self.ends.keys().copied().collect(),
            placements: self.placements.clone(),
            dead: self.dead.clone(),
            origin: self.origin,
            boots: self.boots.clone(),
            boot: self.boot,
            list: self.list.clone(),
        }
    }

    /// A register whose epochs come after this one: what was written in an earlier life of the pool is older.
    pub fn after(mut self, origin: Epoch) -> Self {
        self.view.epoch = origin;
        self.origin = origin;
        self
    }

    /// Whether the pool has begun.
    pub fn has_begun(&self) -> bool {
        self.view.epoch != self.origin
    }

    /// How long a member is waited for, in milliseconds.
    pub fn term(&self) -> u64 {
        self.term
    }

    /// The members of the pool.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Whether a member's term has ended.
    pub fn is_over(&self, member: Node) -> bool {
        let is_old = match member {
            Node::Client(client) => client.0 < self.floor.client,
            Node::Server(server) => server.0 < self.floor.server,
            Node::Register => false,
        };
        self.gone.contains(&member) || is_old && !self.ends.contains_key(&member)
    }

    /// A message of `from`.
    pub fn handle(&mut self, now: u64, from: Node, message: Message, out: &mut Outbox) {
        match message {
            Message::Alive {
                sent,
                knows,
                ready,
                leaving,
                waits,
                boot,
            } => {
                self.alive(now, from, (sent, knows), (ready, leaving, boot), out);
                if waits && self.has_blocks(from) {
                    self.excused_until = now + self.patience();
                }
            }
            // Who is late still is reported again.
            Message::Expel { client }
                if self.ends.contains_key(&from) && now >= self.excused_until =>
            {
                self.expelled.insert(client);
            }
            _ => {}
        }
    }

    /// The clock has moved on.
    pub fn tick(&mut self, now: u64) {
        let over: Vec<Node> = self
            .ends
            .iter()
            .filter(|(_, ends)| **ends <= now)
            .map(|(node, _)| *node)
            .collect();
        if !over.is_empty() {
            let dead: Vec<Server> = over.iter().filter_map(server_of).collect();
            for node in over {
                self.ends.remove(&node);
                self.gone.insert(node);
            }
            self.begin(&dead);
        }
    }

    /// Nobody was listened to since then, though nothing that was said is lost: each member has left of its term what it had then, and no more.
    /// A register that now and then does not listen would else keep the dead for ever.
    pub fn stood_still(&mut self, since: u64, now: u64) {
        let gap = now - since;
        for ends in self.ends.values_mut() {
            *ends += gap;
        }
        if since < self.excused_until {
            self.excused_until += gap;
        } else {
            self.excused_until = now + self.patience();
        }
    }

    /// The register was away, and what was said to it is lost: every member has a whole term again.
    pub fn restart(&mut self, now: u64) {
        for ends in self.ends.values_mut() {
            *ends = now + self.term;
        }
        self.excused_until = now + self.patience();
    }

    /// How long a client may take to answer a server.
    fn patience(&self) -> u64 {
        self.term * 2
    }

    fn alive(
        &mut self,
        now: u64,
        from: Node,
        (sent, knows): (u64, (Epoch, bool)),
        (ready, leaving, boot): (Epoch, bool, u64),
        out: &mut Outbox,
    ) {
        let expelled = matches!(from, Node::Client(client) if self.expelled.contains(&client));
        if self.is_over(from) || expelled {
            // An expelled client is told, but a new epoch begins only when its term is over: it may not hear of it.
            out.push((from, Message::Gone));
            return;
        }
        if leaving && matches!(from, Node::Client(_)) {
            // Its own word that it does nothing any more.
            self.gone.insert(from);
            if self.ends.remove(&from).is_some() {
                self.begin(&[]);
            }
            return;
        }
        if leaving && !self.has_blocks(from) {
            // A server that goes before it was in an epoch has nothing to hand on, and no epoch would ever tell it that it may go.
            self.ends.remove(&from);
            self.gone.insert(from);
            out.push((from, Message::Gone));
            return;
        }
        let known = self.ends.insert(from, now + self.term).is_some();
        if let Node::Server(server) = from {
            let before = self.boots.insert(server, boot);
            self.has_failed |= before.is_some_and(|before| before != boot);
            if !known || self.has_failed {
                self.begin(&[]);
            }
            if leaving && self.view.servers.contains(&server) {
                self.view.leaving.push(server);
                self.begin(&[]);
            }
            if ready == self.view.epoch && self.ready.insert(server) {
                self.activate();
            }
        }
        let view = self.news_for(from, knows);
        out.push((from, Message::Member { sent, view }));
    }

    /// The view, as far as it is news for this member. Most signs of life come from those who know it.
    fn news_for(&self, member: Node, knows: (Epoch, bool)) -> Option<View> {
        let view = &self.view;
        let is_news = knows != view.known();
        match member {
            Node::Client(_) => (is_news && view.active).then(|| View {
                servers: view.servers.clone(),
                leaving: view.leaving.clone(),
                clients: Vec::new(),
                losses: view.losses.clone(),
                ..*view
            }),
            _ => is_news.then(|| view.clone()),
        }
    }

    /// Whether another server than this one is a member.
    pub fn has_others(&self, me: Node) -> bool {
        let mut all = self.ends.keys();
        all.any(|node| matches!(node, Node::Server(_)) && *node != me)
    }

    /// Whether a server may have blocks.
    fn has_blocks(&self, member: Node) -> bool {
        let mut servers = self.view.servers.iter().chain(&self.view.leaving);
        servers.any(|server| member == Node::Server(*server))
    }

    /// A new epoch with those who are there now.
    fn begin(&mut self, dead: &[Server]) {
        let is_dead = |server: &&Server| dead.contains(server);
        let old = &self.view;
        let lost: Vec<Server> = old
            .servers
            .iter()
            .chain(&old.leaving)
            .filter(is_dead)
            .copied()
            .collect();
        let all = || self.ends.keys().filter_map(server_of);
        if !self.has_begun() && all().count() < self.servers_min {
            return;
        }
        let epoch = Epoch(old.epoch.max(self.floor.epoch).0 + 1);
        let leaving: Vec<Server> = all()
            .filter(|server| old.leaving.contains(server))
            .collect();
        if old.active {
            self.placements.clear();
            self.dead.clear();
        }
        if !self.placements.contains(&old.servers) {
            self.placements.push(old.servers.clone());
        }
        self.dead.extend(lost.iter().copied());
        let is_empty = old.servers.is_empty() && old.epoch != self.origin && leaving.is_empty();
        if is_empty {
            // All servers have gone together, and could hand on nothing.
            self.dead = self.placements.concat();
            self.dead.sort_unstable();
            self.dead.dedup();
        }
        let mut losses = old.losses.clone();
        if !self.has_home && (is_empty || !lost.is_empty()) {
            // Blocks that were being moved lay where any epoch since the last active one wants them. Where there was no server, nothing was.
            let placements = self.placements.iter().filter(|before| !before.is_empty());
            for before in placements {
                let (before, dead) = (before.clone(), self.dead.clone());
                // It says what older ones of the same servers do: between them nothing was written.
                let says = |loss: &Loss| loss.dead.iter().all(|server| dead.contains(server));
                losses.retain(|loss| loss.before != before || !says(loss));
                losses.push(Loss {
                    epoch,
                    before,
                    dead,
                });
            }
        }
        let servers: Vec<Server> = all().filter(|server| !leaving.contains(server)).collect();
        self.view = View {
            home_lost: self.home_lost(epoch, &servers),
            epoch,
            servers,
            leaving,
            clients: self.ends.keys().filter_map(client_of).collect(),
            active: false,
            losses,
        };
        self.ready.clear();
    }

    /// The last epoch before which the home may have lost what was not synced, now that these servers serve. Where the host of those who have stored it lives, it is
    /// there, for a server is there that says so. Of a host that none is left on nobody knows.
    fn home_lost(&mut self, epoch: Epoch, servers: &[Server]) -> Epoch {
        let ends = &self.ends;
        self.boots
            .retain(|server, _| ends.contains_key(&Node::Server(*server)));
        let boots = { servers.iter() }.filter_map(|server| self.boots.get(server).copied());
        let boots: Vec<u64> = boots.filter(|boot| *boot != 0).collect();
        let mut is_lost = std::mem::take(&mut self.has_failed);
        // As long as there is no server the next one says whether it is another boot.
        if !servers.is_empty() && !boots.contains(&self.boot) {
            is_lost |= self.boot != 0;
            self.boot = boots.first().copied().unwrap_or(0);
        }
        if is_lost { epoch } else { self.view.home_lost }
    }

    fn activate(&mut self) {
        let view = &self.view;
        let mut needed = view.servers.iter().chain(&view.leaving);
        if needed.all(|server| self.ready.contains(server)) {
            // Without a server nobody is served. Those who were told to go together go, and the next epoch says what is lost by that.
            self.view.active = !self.view.servers.is_empty();
            for server in self.view.leaving.clone() {
                self.ends.remove(&Node::Server(server));
                self.gone.insert(Node::Server(server));
            }
        }
    }
}

fn server_of(node: &Node) -> Option<Server> {
    match node {
        Node::Server(server) => Some(*server),
        _ => None,
    }
}

fn client_of(node: &Node) -> Option<Client> {
    match node {
        Node::Client(client) => Some(*client),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::alive;

    #[test]
    fn a_server_that_goes_before_it_was_in_an_epoch_is_told_so() {
        let alive = |leaving| Message::Alive {
            sent: 0,
            knows: (Epoch(0), false),
            ready: Epoch(0),
            leaving,
            waits: false,
            boot: 0,
        };
        let mut register = Register::new(400, 2);
        let mut say = |server: u32, leaving| {
            let (from, mut out) = (Node::Server(Server(server)), Outbox::new());
            register.handle(0, from, alive(leaving), &mut out);
            let is_gone = |answer: &(Node, Message)| *answer == (from, Message::Gone);
            (out.len(), out.iter().any(is_gone))
        };
        // One that nobody knew, and one that waits for others.
        assert_eq!(say(1, true), (1, true));
        assert_eq!(say(2, false), (1, false));
        assert_eq!(say(2, true), (1, true));
        // The pool begins without them, and who is in it goes step by step.
        assert_eq!((say(3, false), say(4, false)), ((1, false), (1, false)));
        assert_eq!(say(4, true), (1, false));
        let view = register.view();
        assert_eq!(
            (&view.servers[..], &view.leaving[..]),
            (&[Server(3)][..], &[Server(4)][..])
        );
    }

    #[test]
    fn who_knows_an_epoch_is_not_told_of_it_again() {
        let (server, client) = (Node::Server(Server(1)), Node::Client(Client(9)));
        let mut register = Register::new(400, 1);
        // What one that knows of `knows` is told, and has of this epoch what it should.
        let mut told = |from, knows: (Epoch, bool), ready| {
            let mut out = Outbox::new();
            let (_, sign) = alive(0, knows, ready, false, (false, 0));
            register.handle(0, from, sign, &mut out);
            match out.pop() {
                Some((_, Message::Member { view, .. })) => view,
                other => panic!("{other:?}"),
            }
        };
        let (none, one) = ((Epoch(0), false), Epoch(1));
        // A client hears of an epoch when it is active, and of no other clients.
        assert_eq!(told(client, none, Epoch(0)), None);
        let begun = told(server, none, Epoch(0)).expect("news");
        assert_eq!(
            (begun.known(), &begun.clients[..]),
            ((one, false), &[Client(9)][..])
        );
        assert_eq!(told(client, none, Epoch(0)), None);
        assert_eq!(told(server, (one, false), Epoch(0)), None);
        let active = told(server, (one, false), one).expect("news");
        assert_eq!(active.known(), (one, true));
        assert_eq!(told(server, (one, true), one), None);
        let active = told(client, none, Epoch(0)).expect("news");
        assert_eq!((active.known(), active.clients), ((one, true), Vec::new()));
        assert_eq!(active.servers, [Server(1)]);
        assert_eq!(told(client, (one, true), Epoch(0)), None);
        // The next one is news again, to servers first.
        let other = Node::Server(Server(2));
        assert!(told(other, none, Epoch(0)).is_some());
        assert_eq!(told(client, (one, true), Epoch(0)), None);
        assert!(told(server, (one, true), one).is_some());
    }

    #[test]
    fn whoever_does_not_answer_is_excused_while_requests_wait_for_the_home() {
        let (server, client) = (Node::Server(Server(1)), Client(2));
        let mut register = Register::new(400, 1);
        // Whether the client is a member still, after the server has said that it does not answer.
        let mut is_in = |now, waits| {
            let mut out = Outbox::new();
            let (_, sign) = alive(now, (Epoch(0), false), Epoch(0), false, (waits, 0));
            register.handle(now, server, sign, &mut out);
            register.handle(now, server, Message::Expel { client }, &mut out);
            out.clear();
            let (_, sign) = alive(now, (Epoch(0), false), Epoch(0), false, (false, 0));
            register.handle(now, Node::Client(client), sign, &mut out);
            matches!(out[..], [(_, Message::Member { .. })])
        };
        for now in (0..4000).step_by(100) {
            assert!(is_in(now, true), "{now}");
        }
        for now in (4000..6000).step_by(100) {
            assert_eq!(is_in(now, false), now < 3900 + 800, "{now}");
        }
    }

    /// A register, and its clock.
    struct Told(Register, u64);

    impl Told {
        fn new() -> Told {
            Told(Register::new(400, 1).of_home(true), 0)
        }

        /// So much later these servers say by which boot of their host they store; says when the home may have lost something.
        fn at(&mut self, now: u64, servers: &[(u32, u64)]) -> Epoch {
            while self.1 < now {
                self.1 += 100;
                self.0.tick(self.1);
                // Once more, since what comes first says which epoch it is.
                for (server, boot) in servers.iter().chain(servers) {
                    let (ready, mut out) = (self.0.view().epoch, Outbox::new());
                    let (_, sign) = alive(0, (Epoch(0), false), ready, false, (false, *boot));
                    let from = Node::Server(Server(*server));
                    self.0.handle(self.1, from, sign, &mut out);
                }
            }
            let view = self.0.view();
            assert!(view.active || servers.is_empty());
            view.home_lost
        }

        fn epoch(&self) -> Epoch {
            self.0.view().epoch
        }
    }

    #[test]
    fn a_home_has_lost_nothing_as_long_as_its_host_is_up() {
        let mut told = Told::new();
        assert_eq!(told.at(1000, &[(1, 5), (2, 5)]), Epoch(0));
        assert_eq!(told.at(2000, &[(2, 5)]), Epoch(0));
        assert_eq!(told.at(3000, &[]), Epoch(0));
        assert_eq!(told.at(4000, &[(3, 5)]), Epoch(0));
        assert!(told.epoch() > Epoch(3));
    }

    #[test]
    fn a_home_whose_host_has_begun_anew_may_have_lost_something() {
        for (pause, is_resumed) in [(0, false), (1000, false), (0, true), (1000, true)] {
            let mut told = Told::new();
            told.at(1000, &[(1, 5), (2, 5)]);
            told.at(1000 + pause, &[]);
            if is_resumed {
                let register = Register::new(400, 1).of_home(true);
                let saved = told.0.saved();
                told.0 = register.resume(told.1, saved, Floor::default());
            }
            // Those of before are not given up yet, or they are: it is said once.
            for _ in 0..2 {
                let (ready, mut out) = (told.epoch(), Outbox::new());
                let (_, sign) = alive(0, (Epoch(0), false), ready, false, (false, 6));
                let from = Node::Server(Server(3));
                told.0.handle(told.1, from, sign, &mut out);
            }
            let lost = told.at(2000 + pause, &[(3, 6)]);
            assert_eq!(lost, told.epoch());
            assert_eq!(told.at(3000 + pause, &[(3, 6), (4, 6)]), lost);
            assert!(told.epoch() > lost);
        }
    }

    #[test]
    fn a_home_whose_host_nobody_sees_any_more_may_have_lost_something() {
        let mut told = Told::new();
        // The others see it by a file system that has each block when it is stored.
        told.at(1000, &[(1, 5), (2, 0)]);
        let lost = told.at(2000, &[(2, 0)]);
        assert_eq!(lost, told.epoch());
        assert_eq!(told.at(3000, &[(3, 5), (2, 0)]), lost);
    }

    #[test]
    fn a_home_in_which_a_sync_has_failed_may_have_lost_something() {
        let mut told = Told::new();
        told.at(1000, &[(1, 5), (2, 5)]);
        let lost = told.at(2000, &[(1, 77), (2, 5)]);
        assert_eq!(lost, told.epoch());
        assert_eq!(told.at(3000, &[(1, 77), (2, 5)]), lost);
        // It has begun again.
        assert_eq!(told.at(4000, &[(3, 5), (2, 5)]), lost);
    }

    #[test]
    fn losses_are_few_and_none_where_there_is_a_home() {
        for has_home in [false, true] {
            let mut register = Register::new(400, 3).of_home(has_home);
            let say = |register: &mut Register, now, from, leaving| {
                let (ready, mut out) = (register.view().epoch, Outbox::new());
                let (_, sign) = alive(now, (Epoch(0), false), ready, leaving, (false, 0));
                register.handle(now, from, sign, &mut out);
            };
            let servers = [1, 2, 3].map(|number| Node::Server(Server(number)));
            let clients = [5, 6, 7].map(|number| Node::Client(Client(number)));
            for _ in 0..2 {
                for member in servers.into_iter().chain(clients) {
                    say(&mut register, 0, member, false);
                }
            }
            assert!(register.view().active && register.view().losses.is_empty());
            // One dies after the other, and then clients go while there is no server.
            for now in 1..1400 {
                register.tick(now);
                let alive = servers.iter().filter(|_| now < 300).skip(1);
                let last = servers.iter().skip(2).filter(|_| now < 600);
                for member in alive.chain(last).chain(&clients) {
                    say(&mut register, now, *member, false);
                }
            }
            for client in clients {
                say(&mut register, 1400, client, true);
            }
            assert!(register.view().servers.is_empty());
            say(&mut register, 1400, Node::Server(Server(4)), false);
            let view = register.view();
            assert_eq!(view.servers, [Server(4)]);
            let losses: Vec<_> = { view.losses.iter() }
                .map(|loss| (loss.before.len(), loss.dead.len()))
                .collect();
            // Of each list of servers that blocks may have been on, the newest.
            let all = vec![(3, 3), (2, 3), (1, 3)];
            let told = if has_home { Vec::new() } else { all };
            assert_eq!(losses, told);
        }
    }
}
