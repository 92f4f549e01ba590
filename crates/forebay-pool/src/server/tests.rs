//! Single servers whose pool is played by hand.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::*;
use crate::home::Directory;
use crate::ids::Version;
use crate::message::{Block, Part};

const CLIENT: Client = Client(9);
const EPOCH: Epoch = Epoch(1);
const PLACE: Place = (File(7), 0);

/// A home that keeps nothing, and fails when it is told to.
#[derive(Debug, Default)]
struct Fails(AtomicBool);

impl Home for Fails {
    fn load(&self, _: Place) -> io::Result<Option<(Version, Vec<u8>)>> {
        Ok(None)
    }

    fn store(&self, _: &Block, _: &dyn Fn() -> bool) -> io::Result<bool> {
        if self.0.load(Ordering::Relaxed) {
            return Err(io::Error::other("no room"));
        }
        Ok(true)
    }

    fn discard(&self, _: File, _: u64, _: bool, _: bool) -> io::Result<bool> {
        Ok(true)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A server that has one client, and this home.
fn server<H: Home + 'static>(home: Option<Arc<H>>) -> Server {
    server_over(home.map(|home| (home as Arc<dyn Home>, 1 << 20)))
}

/// The same, with so many bytes of memory over the home.
fn server_over(home: Option<(Arc<dyn Home>, u64)>) -> Server {
    let config = Config {
        copies: 1,
        alive_every: 50,
        term: 400,
        patience: 800,
        secret: 11,
    };
    let mut server = Server::new(Id(1), config);
    if let Some((home, limit)) = home {
        server = server.with_home(home, limit);
    }
    let view = View {
        epoch: EPOCH,
        servers: vec![Id(1)],
        clients: vec![CLIENT],
        active: true,
        ..View::default()
    };
    let member = Message::Member {
        sent: 0,
        view: Some(view),
    };
    let enter = Message::Enter {
        epoch: EPOCH,
        claims: Vec::new(),
    };
    let out = &mut Outbox::new();
    server.handle(0, Node::Register, member, out);
    server.handle(0, Node::Client(CLIENT), enter, out);
    server
}

fn block(change: u64, bytes: &[u8]) -> Block {
    Block {
        place: PLACE,
        version: Version {
            epoch: 1,
            stamp: 1,
            change,
        },
        bytes: bytes.to_vec().into(),
    }
}

fn tell(server: &mut Server, message: Message) -> Vec<Message> {
    let mut out = Outbox::new();
    server.handle(0, Node::Client(CLIENT), message, &mut out);
    out.into_iter().map(|(_, message)| message).collect()
}

fn write(server: &mut Server, change: u64, bytes: &[u8]) -> bool {
    let (key, number) = (server.key(), change);
    let blocks = vec![block(change, bytes)];
    let write = Message::Write {
        key,
        number,
        blocks,
    };
    tell(server, write).contains(&Message::Done { number })
}

fn patch(server: &mut Server, change: u64, bytes: &[u8], at: u32) -> bool {
    let (key, number) = (server.key(), change);
    let parts = vec![(block(change, bytes), at)];
    tell(server, Message::Patch { key, number, parts }).contains(&Message::Done { number })
}

fn read(server: &mut Server, from: u32, length: u32) -> Option<Vec<u8>> {
    let (key, number) = (server.key(), 0);
    let place = PLACE;
    let parts = vec![Part {
        place,
        from,
        length,
    }];
    match tell(server, Message::Read { key, number, parts }).pop() {
        Some(Message::Bytes { found, bytes, .. }) => found[0].map(|_| bytes.into_vec()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_waits_for_the_home_is_not_done_after_it_was_sent_again() {
    let home = Arc::<Fails>::default();
    let mut server = server(Some(Arc::clone(&home)));
    home.0.store(true, Ordering::Relaxed);
    assert!(!write(&mut server, 1, b"old"));
    home.0.store(false, Ordering::Relaxed);
    // The connection breaks, and all that was not answered comes again.
    server.connected(Node::Client(CLIENT), &mut Outbox::new());
    assert!(write(&mut server, 1, b"old"));
    assert!(write(&mut server, 2, b"new"));
    server.tick(100, &mut Outbox::new());
    assert_eq!(read(&mut server, 0, 3), Some(b"new".to_vec()));
}

#[test]
fn older_blocks_take_no_newer_ones_places() {
    let around = tempfile::tempdir().unwrap();
    // Memory over a home keeps blocks, or nothing of them.
    let homes = [None, Some(1 << 20), Some(0)];
    for (at, limit) in homes.into_iter().enumerate() {
        let path = around.path().join(at.to_string());
        std::fs::create_dir(&path).unwrap();
        let home = || Directory::of_anybody(&path, 1).unwrap();
        let mut server = match limit {
            Some(limit) => server_over(Some((Arc::new(home()), limit))),
            None => server_over(None),
        };
        assert!(write(&mut server, 2, b"new"));
        // It is over with these, all the same.
        assert!(write(&mut server, 1, b"old"));
        assert_eq!(read(&mut server, 0, 9), Some(b"new".to_vec()));
        assert!(patch(&mut server, 1, b"O", 1));
        assert_eq!(read(&mut server, 0, 9), Some(b"new".to_vec()));
        assert!(patch(&mut server, 3, b"EW", 1));
        assert_eq!(read(&mut server, 0, 9), Some(b"nEW".to_vec()));
    }
}

#[test]
fn parts_of_blocks_are_read_and_written() {
    for home in [None, Some(Arc::<Fails>::default())] {
        let mut server = server(home);
        assert_eq!(read(&mut server, 0, 9), None);
        assert!(patch(&mut server, 1, b"cd", 2));
        assert_eq!(read(&mut server, 0, 9), Some(b"\0\0cd".to_vec()));
        assert!(patch(&mut server, 2, b"ab", 0));
        assert!(patch(&mut server, 3, b"DE", 3));
        assert_eq!(read(&mut server, 0, 9), Some(b"abcDE".to_vec()));
        assert_eq!(read(&mut server, 1, 2), Some(b"bc".to_vec()));
        assert_eq!(read(&mut server, 4, u32::MAX), Some(b"E".to_vec()));
        assert_eq!(read(&mut server, 9, 1), Some(Vec::new()));
        assert_eq!(server.blocks(), (1, 5));
        assert!(patch(&mut server, 4, b"all new", 0));
        assert_eq!(read(&mut server, 0, 9), Some(b"all new".to_vec()));
        assert_eq!(server.blocks(), (1, 7));
    }
}

/// A home that knows what came, one after the other.
#[derive(Debug, Default)]
struct Lists(Mutex<Vec<u64>>);

impl Home for Lists {
    fn load(&self, _: Place) -> io::Result<Option<(Version, Vec<u8>)>> {
        Ok(None)
    }

    fn store(&self, block: &Block, _: &dyn Fn() -> bool) -> io::Result<bool> {
        self.0.lock().expect("a lock").push(block.place.1);
        Ok(true)
    }

    fn discard(&self, _: File, _: u64, _: bool, _: bool) -> io::Result<bool> {
        Ok(true)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A request that writes these blocks of a file.
fn write_of(server: &Server, file: File, numbers: &[u64]) -> Message {
    let blocks = numbers.iter().map(|&number| Block {
        place: (file, number),
        ..block(1, b"bytes")
    });
    Message::Write {
        key: server.key(),
        number: 1,
        blocks: blocks.collect(),
    }
}

#[test]
fn a_home_gets_the_blocks_of_a_request_in_their_order() {
    let home = Arc::<Lists>::default();
    let mut server = server(Some(Arc::clone(&home)));
    let order = [5, 2, 9, 0];
    let write = write_of(&server, PLACE.0, &order);
    assert_eq!(tell(&mut server, write), [Message::Done { number: 1 }]);
    assert_eq!(*home.0.lock().expect("a lock"), order);
}

#[test]
fn a_server_lives_while_many_blocks_are_written() {
    let home = Arc::<Lists>::default();
    let mut server = server(Some(Arc::clone(&home)));
    // Each block takes 30 ms.
    let written = Arc::clone(&home);
    server.set_clock(move || 30 * written.0.lock().expect("a lock").len() as u64);
    let write = write_of(&server, PLACE.0, &[5, 2, 9, 0, 7]);
    assert_eq!(tell(&mut server, write), []);
    let written = || home.0.lock().expect("a lock").clone();
    assert_eq!(written(), [5, 2]);
    assert_eq!(turn(&mut server, 60).0, []);
    assert_eq!(written(), [5, 2, 9, 0]);
    assert_eq!(turn(&mut server, 120).0, [Message::Done { number: 1 }]);
    assert_eq!(written(), [5, 2, 9, 0, 7]);
}

#[test]
fn names_of_which_a_part_is_written_are_whole_before_the_next_epoch() {
    let home = Arc::<Lists>::default();
    let mut server = server(Some(Arc::clone(&home)));
    // Each block takes 30 ms.
    let written = Arc::clone(&home);
    server.set_clock(move || 30 * written.0.lock().expect("a lock").len() as u64);
    let write = write_of(&server, File::NAMES, &[5, 2, 9, 0, 7]);
    assert_eq!(tell(&mut server, write), []);
    let written = || home.0.lock().expect("a lock").clone();
    assert_eq!(written(), [5, 2]);
    // The client has died.
    let view = View {
        epoch: Epoch(2),
        servers: vec![Id(1)],
        ..View::default()
    };
    let mut hears = |now| {
        let view = Some(view.clone());
        let member = Message::Member { sent: 0, view };
        server.handle(now, Node::Register, member, &mut Outbox::new());
        server.view().epoch
    };
    assert_eq!(hears(60), EPOCH);
    assert_eq!(written(), [5, 2, 9, 0]);
    assert_eq!(hears(120), Epoch(2));
    assert_eq!(written(), [5, 2, 9, 0, 7]);
}

#[test]
fn names_of_which_a_killed_server_has_written_a_part_are_whole_in_the_next_epoch() {
    let around = tempfile::tempdir().unwrap();
    let home = || Directory::of_anybody(around.path(), 1).unwrap();
    let numbers = [5, 2, 9, 0, 7];
    let written = || {
        let is_there = |number: &&u64| home().load((File::NAMES, **number)).unwrap().is_some();
        numbers.iter().filter(is_there).count()
    };
    let mut killed = server(Some(Arc::new(home())));
    // It takes its time.
    let time = AtomicU64::new(0);
    killed.set_clock(move || time.fetch_add(20, Ordering::Relaxed));
    let write = write_of(&killed, File::NAMES, &numbers);
    assert_eq!(tell(&mut killed, write), []);
    drop(killed);
    assert!((1..numbers.len()).contains(&written()), "{}", written());
    drop(server(Some(Arc::new(home()))));
    assert_eq!(written(), numbers.len());
}

#[test]
fn damaged_blocks_are_said_to_be_so_at_once() {
    let around = tempfile::tempdir().unwrap();
    let home = Directory::of_anybody(around.path(), 1).unwrap();
    // Nothing stays in memory.
    let mut server = server_over(Some((Arc::new(home), 0)));
    assert!(write(&mut server, 1, b"old"));
    let (file, at) = PLACE;
    let path = around.path().join(format!("{:016x}/{at:x}", file.0));
    let there = std::fs::File::options().write(true).open(path).unwrap();
    there.set_len(0).unwrap();
    let (key, number, places) = (server.key(), 5, vec![PLACE]);
    let damaged = [Message::Damaged { number, places }];
    let part = |block| Part {
        place: (file, block),
        from: 0,
        length: 9,
    };
    let parts = vec![part(at + 1), part(at)];
    let read_both = Message::Read { key, number, parts };
    assert_eq!(tell(&mut server, read_both), damaged);
    let parts = vec![(block(2, b"x"), 1)];
    let patch = Message::Patch { key, number, parts };
    assert_eq!(tell(&mut server, patch), damaged);
    // It is told of for a while, and nothing waits.
    server.tick(100, &mut Outbox::new());
    assert!(server.trouble().is_some_and(|why| why.contains("damaged")));
    server.tick(1000, &mut Outbox::new());
    assert_eq!(server.trouble(), None);
    assert!(write(&mut server, 3, b"new"));
    assert_eq!(read(&mut server, 0, 9), Some(b"new".to_vec()));
}

/// A home that takes its time: it discards some blocks when it is told to, and a sync ends when somebody lets it.
#[derive(Debug)]
struct Slow {
    blocks: AtomicUsize,
    syncs: Mutex<(Sender<()>, Receiver<io::Result<()>>)>,
}

const AT_ONCE: usize = 500;

impl Home for Slow {
    fn load(&self, _: Place) -> io::Result<Option<(Version, Vec<u8>)>> {
        Ok(None)
    }

    fn store(&self, _: &Block, _: &dyn Fn() -> bool) -> io::Result<bool> {
        Ok(true)
    }

    fn discard(&self, file: File, _: u64, _: bool, _: bool) -> io::Result<bool> {
        if file != PLACE.0 {
            return Ok(true);
        }
        let left = self.blocks.load(Ordering::Relaxed);
        let left = left.saturating_sub(AT_ONCE);
        self.blocks.store(left, Ordering::Relaxed);
        Ok(left == 0)
    }

    fn sync(&self) -> io::Result<()> {
        let syncs = self.syncs.lock().expect("a lock");
        syncs.0.send(()).expect("somebody listens");
        syncs.1.recv().expect("somebody lets it end")
    }
}

/// What a server says in a turn, to its client and to the register.
fn turn(server: &mut Server, now: u64) -> (Vec<Message>, bool) {
    let mut out = Outbox::new();
    server.tick(now, &mut out);
    let is_alive = { out.iter() }.any(|(_, message)| matches!(message, Message::Alive { .. }));
    let to_client = { out.into_iter() }.filter(|(to, _)| *to == Node::Client(CLIENT));
    (to_client.map(|(_, message)| message).collect(), is_alive)
}

/// A home, what says that a sync has begun, and what lets it end.
fn slow() -> (Arc<Slow>, Receiver<()>, Sender<io::Result<()>>) {
    let (begins, begun) = mpsc::channel();
    let (end, ends) = mpsc::channel();
    let home = Slow {
        blocks: AtomicUsize::new(10_000),
        syncs: Mutex::new((begins, ends)),
    };
    (Arc::new(home), begun, end)
}

fn discard(server: &mut Server, number: u64, file: File) -> Vec<Message> {
    let discard = Message::Discard {
        key: server.key(),
        number,
        file,
        from: 0,
        whole: true,
    };
    tell(server, discard)
}

#[test]
fn a_server_lives_while_a_large_file_is_discarded() {
    let (home, ..) = slow();
    let mut server = server(Some(Arc::clone(&home)));
    assert_eq!(discard(&mut server, 1, PLACE.0), []);
    let mut now = 0;
    let mut done = Vec::new();
    while done.is_empty() {
        now += 50;
        let member = Message::Member {
            sent: now,
            view: Some(server.view().clone()),
        };
        server.handle(now, Node::Register, member, &mut Outbox::new());
        let before = home.blocks.load(Ordering::Relaxed);
        let (said, is_alive) = turn(&mut server, now);
        let after = home.blocks.load(Ordering::Relaxed);
        assert!(is_alive, "at {now}");
        assert_eq!((before - after, server.trouble()), (AT_ONCE, None));
        // Others are excused who wait for one that takes long, and not by any that takes two turns.
        assert_eq!(server.waits, said.is_empty() && now > 200, "at {now}");
        done = said;
    }
    assert_eq!(done, [Message::Done { number: 1 }]);
    assert_eq!(home.blocks.load(Ordering::Relaxed), 0);
    // Another file's is not held up by one, and one goes with its client's connection.
    home.blocks.store(10_000, Ordering::Relaxed);
    assert_eq!(discard(&mut server, 2, PLACE.0), []);
    let number = 3;
    let other = discard(&mut server, number, File(8));
    assert_eq!(other, [Message::Done { number }]);
    server.connected(Node::Client(CLIENT), &mut Outbox::new());
    let before = home.blocks.load(Ordering::Relaxed);
    assert_eq!(turn(&mut server, now).0, []);
    assert_eq!(home.blocks.load(Ordering::Relaxed), before);
}

#[test]
fn who_enters_again_by_a_new_connection_is_let_in_once() {
    let mut server = server::<Fails>(None);
    let client = Node::Client(CLIENT);
    let out = &mut Outbox::new();
    let epoch = Epoch(2);
    let member = |active| Message::Member {
        sent: 0,
        view: Some(View {
            epoch,
            servers: vec![Id(1)],
            clients: vec![CLIENT],
            active,
            ..View::default()
        }),
    };
    let enter = || Message::Enter {
        epoch,
        claims: Vec::new(),
    };
    server.handle(0, Node::Register, member(false), out);
    server.handle(0, client, enter(), out);
    server.connected(client, out);
    server.handle(0, client, enter(), out);
    server.handle(0, Node::Register, member(true), out);
    let is_entered = |said: &&(Node, Message)| matches!(said.1, Message::Entered { .. });
    assert_eq!(out.iter().filter(is_entered).count(), 1);
}

/// The one that waits would be done after what comes when the other one is answered.
#[test]
fn a_request_that_comes_again_is_done_once() {
    let (slow, ..) = slow();
    let mut over_slow = server(Some(Arc::clone(&slow)));
    assert_eq!(discard(&mut over_slow, 1, PLACE.0), []);
    slow.blocks.store(1, Ordering::Relaxed);
    let done = [Message::Done { number: 1 }];
    assert_eq!(discard(&mut over_slow, 1, PLACE.0), done);
    slow.blocks.store(1, Ordering::Relaxed);
    assert_eq!(turn(&mut over_slow, 50).0, []);
    assert_eq!(slow.blocks.load(Ordering::Relaxed), 1);
    let home = Arc::<Fails>::default();
    let mut over_failing = server(Some(Arc::clone(&home)));
    home.0.store(true, Ordering::Relaxed);
    assert!(!write(&mut over_failing, 1, b"old"));
    assert!(!write(&mut over_failing, 1, b"old"));
    home.0.store(false, Ordering::Relaxed);
    assert_eq!(turn(&mut over_failing, 50).0, done);
}

/// A server that syncs its home on threads, and what says that one has ended.
fn syncing(home: Arc<Slow>) -> (Server, Receiver<()>) {
    let (wake, woken) = mpsc::channel();
    let server = server(Some(home)).with_threads(move || {
        let _ = wake.send(());
    });
    (server, woken)
}

/// Waits until a server's thread has ended a sync.
fn after_sync(server: &mut Server, woken: &Receiver<()>) -> Vec<Message> {
    woken.recv_timeout(Duration::from_secs(60)).expect("woken");
    let mut out = Outbox::new();
    server.synced(&mut out);
    out.into_iter().map(|(_, message)| message).collect()
}

#[test]
fn a_server_lives_while_its_home_syncs() {
    let (home, begun, end) = slow();
    let (mut server, woken) = syncing(home);
    let key = server.key();
    let persist = |number| Message::Persist { key, number };
    let begins = || begun.recv_timeout(Duration::from_secs(60)).expect("begun");
    assert_eq!(tell(&mut server, persist(1)), []);
    begins();
    for now in 1..8 {
        assert_eq!(turn(&mut server, now * 50), (Vec::new(), true));
    }
    assert!(write(&mut server, 2, b"new"));
    // The one that is under way does not count for this.
    assert_eq!(tell(&mut server, persist(3)), []);
    end.send(Ok(())).expect("it waits");
    assert_eq!(
        after_sync(&mut server, &woken),
        [Message::Done { number: 1 }]
    );
    begins();
    // One that fails is tried again in the next turn, and that is told meanwhile.
    end.send(Err(io::Error::other("no room")))
        .expect("it waits");
    assert_eq!(after_sync(&mut server, &woken), []);
    assert_eq!(server.trouble(), Some("no room"));
    turn(&mut server, 380);
    begins();
    assert_eq!(server.trouble(), Some("no room"));
    // Who has a new connection asks again, and is not told twice.
    server.connected(Node::Client(CLIENT), &mut Outbox::new());
    assert_eq!(server.trouble(), None);
    assert_eq!(tell(&mut server, persist(3)), []);
    end.send(Ok(())).expect("it waits");
    assert_eq!(after_sync(&mut server, &woken), []);
    begins();
    end.send(Ok(())).expect("it waits");
    assert_eq!(
        after_sync(&mut server, &woken),
        [Message::Done { number: 3 }]
    );
}

#[test]
fn a_sync_that_does_not_end_is_told_of() {
    let (home, begun, end) = slow();
    let (mut server, woken) = syncing(home);
    let key = server.key();
    let persist = Message::Persist { key, number: 1 };
    assert_eq!(tell(&mut server, persist.clone()), []);
    let begins = || begun.recv_timeout(Duration::from_secs(60)).expect("begun");
    begins();
    for now in (50..1000).step_by(50) {
        turn(&mut server, now);
        assert_eq!(server.trouble().is_some(), now > 450, "at {now}");
    }
    // Nobody waits, and then somebody does again.
    server.connected(Node::Client(CLIENT), &mut Outbox::new());
    assert_eq!(server.trouble(), None);
    assert_eq!(tell(&mut server, persist), []);
    assert_eq!(server.trouble(), None);
    turn(&mut server, 1000);
    assert!(server.trouble().is_some() && server.waits);
    for said in [vec![], vec![Message::Done { number: 1 }]] {
        end.send(Ok(())).expect("it waits");
        assert_eq!(after_sync(&mut server, &woken), said);
        assert_eq!(server.trouble(), None);
    }
}

#[test]
fn a_server_that_is_ready_asks_soon_whether_all_are() {
    let mut server = server::<Fails>(None);
    let view = |active| View {
        epoch: Epoch(2),
        servers: vec![Id(1)],
        active,
        ..View::default()
    };
    let mut signs = |now, active| {
        let mut out = Outbox::new();
        let view = view(active);
        let member = Message::Member {
            sent: 0,
            view: Some(view),
        };
        server.handle(now, Node::Register, member, &mut out);
        let signs = |out: &Outbox| out.iter().filter(|(to, _)| *to == Node::Register).count();
        let ready = signs(&out);
        server.tick(now + 20, &mut out);
        (ready, signs(&out) - ready)
    };
    assert_eq!(signs(40, false), (1, 1));
    // There is nothing to wait for any more.
    assert_eq!(signs(65, true), (0, 0));
}

#[test]
fn who_is_given_up_before_it_has_handed_on_is_not_let_go() {
    for (leaves, is_ready) in [(true, false), (true, true), (false, true)] {
        let mut server = server::<Fails>(None);
        assert!(write(&mut server, 1, b"here"));
        if leaves {
            server.leave();
        }
        let out = &mut Outbox::new();
        let epoch = Epoch(2);
        let (servers, leaving) = (vec![Id(2)], vec![Id(1)]);
        let view = View {
            epoch,
            servers,
            leaving,
            ..View::default()
        };
        let member = Message::Member {
            sent: 0,
            view: Some(view),
        };
        server.handle(0, Node::Register, member, out);
        let peer = Node::Server(Id(2));
        if is_ready {
            let offer = Message::Offer {
                epoch,
                blocks: Vec::new(),
                last: true,
            };
            let give = Message::Give {
                epoch,
                blocks: Vec::new(),
                last: true,
            };
            for message in [offer, give, Message::Taken { epoch }] {
                server.handle(0, peer, message, out);
            }
        }
        server.handle(0, Node::Register, Message::Gone, out);
        assert!(server.is_gone());
        assert_eq!(server.is_let_go(), leaves && is_ready);
        assert_eq!(server.dropped().is_some(), !is_ready);
    }
}

/// What a server says of its memory when it has done this.
fn said_of_room(server: &mut Server, message: Message) -> Vec<bool> {
    let out = &mut Outbox::new();
    server.handle(1, Node::Client(CLIENT), message, out);
    let said = out.iter().filter_map(|(_, message)| match message {
        Message::Full { is_full } => Some(*is_full),
        _ => None,
    });
    said.collect()
}

#[test]
fn clients_are_told_when_memory_is_full_and_when_it_is_no_more() {
    let mut server = server::<Fails>(None);
    server.set_room(100);
    let key = server.key();
    let write = |number, file, length| Message::Write {
        key,
        number,
        blocks: vec![Block {
            place: (File(file), 0),
            ..block(number, &vec![1; length])
        }],
    };
    let discard = |number, file| Message::Discard {
        key,
        number,
        file: File(file),
        from: 0,
        whole: true,
    };
    assert!(said_of_room(&mut server, write(1, 1, 60)).is_empty());
    assert_eq!(said_of_room(&mut server, write(2, 2, 60)), [true]);
    // What comes is taken nevertheless, and nobody is told twice.
    assert!(said_of_room(&mut server, write(3, 3, 60)).is_empty());
    assert_eq!(server.blocks(), (3, 180));
    let enter = Message::Enter {
        epoch: EPOCH,
        claims: Vec::new(),
    };
    assert_eq!(said_of_room(&mut server, enter.clone()), [true]);
    assert!(said_of_room(&mut server, discard(4, 1)).is_empty());
    let out = &mut Outbox::new();
    server.connected(Node::Client(CLIENT), out);
    let said = |is_full| (Node::Client(CLIENT), Message::Full { is_full });
    assert!(out.contains(&said(true)), "{out:?}");
    assert_eq!(said_of_room(&mut server, discard(5, 2)), [false]);
    // Whoever comes again believes what he was told last, and is told this too.
    out.clear();
    server.connected(Node::Client(CLIENT), out);
    assert!(out.contains(&said(false)), "{out:?}");
    assert_eq!(said_of_room(&mut server, enter.clone()), [false]);
    // A smaller block in the place of a large one makes room as well: that is told at the next tick.
    assert_eq!(said_of_room(&mut server, write(6, 4, 60)), [true]);
    assert!(said_of_room(&mut server, write(7, 4, 10)).is_empty());
    out.clear();
    server.tick(2, out);
    assert!(out.contains(&said(false)), "{out:?}");
}

#[test]
fn memory_that_was_full_has_room_when_a_64th_of_it_is_free() {
    let mut server = server::<Fails>(None);
    server.set_room(128);
    let key = server.key();
    let write = |number, length| Message::Write {
        key,
        number,
        blocks: vec![block(number, &vec![1; length])],
    };
    let mut full_after = |number, length| {
        said_of_room(&mut server, write(number, length));
        server.tick(number, &mut Outbox::new());
        server.is_full()
    };
    let said = [(1, 127), (2, 128), (3, 127), (4, 126), (5, 125), (6, 127)];
    let said = said.map(|(number, length)| full_after(number, length));
    assert_eq!(said, [false, true, true, true, false, false]);
}

#[test]
fn with_a_home_memory_is_never_full() {
    let mut server = server_over(Some((Arc::new(Fails::default()), 10)));
    let key = server.key();
    let blocks = vec![block(1, &[1; 100])];
    let write = Message::Write {
        key,
        number: 1,
        blocks,
    };
    assert!(said_of_room(&mut server, write).is_empty());
    assert!(!server.is_full());
}
