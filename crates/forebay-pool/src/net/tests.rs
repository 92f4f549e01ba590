//! What a server's door lets in, what strangers before it do to others, and connections whose other end has gone.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use super::clock::Moment;
use super::door::{Door, Inside, listen};
use super::link::{self, Dialled, Dialler, Hello, Link, Newest, Welcome};
use super::process::{Event, Machine, Process, locked};
use super::security::Security;
use super::serving::keep_dialling;
use super::stream::Stream;
use super::{Config, Pool, Serving};
use crate::client::{Answer, Entry, Operation};
use crate::ids::{Client, File, Key, Node, Server, Version};
use crate::message::{Addresses, Block, Message, Part};
use crate::random::mix2;
use crate::register::Register;
use crate::ruler::Ruler;
use crate::server;
use crate::wire;

const PATIENCE: Duration = Duration::from_secs(60);

/// A pool on addresses that no other process uses.
pub(crate) fn config(servers: u16) -> Config {
    static PORT: AtomicU16 = AtomicU16::new(7400);
    let [a, b, c, d] = std::process::id().to_be_bytes();
    let host = Ipv4Addr::new(127, (a ^ b) | 0x40, c, d);
    let first = PORT.fetch_add(servers, Ordering::Relaxed);
    let all: Vec<String> = { first..first + servers }
        .map(|port| format!("\"{}\"", SocketAddr::from((host, port))))
        .collect();
    Config::parse(&format!("servers = [{}]", all.join(","))).unwrap()
}

fn dial(config: &Config, index: usize, birth: u64, dialler: Dialler) -> Welcome {
    let hello = Hello {
        pool: config.mark(),
        birth,
        dialler,
    };
    let door = Dialled {
        to: config.servers[index],
        security: &Security::None,
        hello: &hello,
    };
    let until = std::time::Instant::now() + PATIENCE;
    loop {
        match link::dial(&door) {
            Ok((_, welcome)) => return welcome,
            // It does not listen yet.
            Err(why) => assert!(std::time::Instant::now() < until, "{why}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_server_lets_in_later_servers_only() {
    let config = config(3);
    let servers: Vec<Serving> = (0..3)
        .map(|index| Serving::begin(&config, index).unwrap())
        .collect();
    let Welcome::In { birth, .. } = dial(&config, 0, 0, Dialler::NewClient) else {
        panic!("a client is not let in");
    };
    // All servers have their numbers when a client has joined.
    let pool = Pool::join(&config, PATIENCE).unwrap();
    // Numbers from 257 on are those of servers that were begun again. Nobody has been given them: members are believed that.
    let later = [&[2, 3, 258, 259][..], &[3, 259], &[]];
    for (index, later) in later.into_iter().enumerate() {
        for number in [0, 1, 2, 3, 257, 258, 259] {
            let place = (number + 256 - 1) as usize % 256;
            let address = config.servers[place.min(2)];
            let dialler = Dialler::Server(Server(number), address);
            let welcome = dial(&config, index, birth, dialler);
            let is_in = matches!(welcome, Welcome::In { .. });
            assert_eq!(is_in, later.contains(&number), "{number} at {index}");
        }
    }
    drop((pool, servers));
}

#[test]
fn a_pools_list_takes_in_as_many_servers_as_it_has_places() {
    let config = config(2);
    let begin = |index| Serving::begin(&config, index).unwrap();
    let new = |number: u16| {
        let address = SocketAddr::from((config.servers[0].ip(), 20_000 + number));
        dial(&config, 0, 0, Dialler::NewServer(address))
    };
    let first = begin(0);
    wait_until("it rules", || first.status().rules);
    // The pool has not begun.
    assert!(matches!(new(1), Welcome::Later(_)));
    let second = begin(1);
    let pool = Pool::join(&config, PATIENCE).unwrap();
    for place in 2..=u8::MAX {
        let Welcome::In { you, servers, .. } = new(place.into()) else {
            panic!("there is room");
        };
        let Node::Server(server) = you else {
            panic!("it is a server");
        };
        assert_eq!(server.place(), Some(place));
        assert_eq!(servers.len(), usize::from(place) + 1);
    }
    match new(256) {
        Welcome::Never(why) => assert!(why.contains("256"), "{why}"),
        other => panic!("{other:?}"),
    }
    // Who is in the list is let in again, by another number.
    let Welcome::In { you, .. } = new(7) else {
        panic!("it is in the list");
    };
    assert_eq!(you, Node::Server(Server(256 + 8)));
    let far = Dialler::NewServer("192.0.2.1:7411".parse().unwrap());
    assert!(matches!(dial(&config, 0, 0, far), Welcome::Never(_)));
    // Whoever has these addresses does not hold up those who are there.
    let made = pool.run(Operation::MakeNameless);
    assert!(made.is_ok(), "{made:?}");
    drop(pool);
    for server in [second, first] {
        server.stop();
        server.stop();
        server.wait().unwrap();
    }
}

#[test]
fn addresses_that_some_member_cannot_dial_are_refused() {
    let parsed =
        |servers: &[&str], rest: &str| Config::parse(&format!("servers = {servers:?}\n{rest}"));
    // Nobody reads them here.
    let tls = "[tls]\ncertificate = \"a\"\nkey = \"b\"\nauthority = \"c\"";
    let [far, near] = ["192.0.2.1:7411", "127.0.0.1:7411"];
    let wrong = [
        "0.0.0.0:7411",
        "[::]:7411",
        "224.0.0.1:7411",
        "[ff02::1]:7411",
        "255.255.255.255:7411",
        "[fe80::1%2]:7411",
        "[::ffff:192.0.2.1]:7411",
        "[::ffff:127.0.0.1]:7411",
    ];
    for wrong in wrong {
        let why = parsed(&[wrong], tls).unwrap_err().to_string();
        assert!(why.contains("of one host"), "{wrong}: {why}");
        let door = parsed(&[far], tls).unwrap();
        assert!(!door.may_be_dialled(wrong.parse().unwrap()), "{wrong}");
    }
    let flow = SocketAddr::V6(std::net::SocketAddrV6::new(
        Ipv4Addr::LOCALHOST.to_ipv6_compatible(),
        7411,
        1,
        0,
    ));
    assert!(!parsed(&[far], tls).unwrap().may_be_dialled(flow));
    for (servers, rest, is_good) in [
        (&[near][..], "", true),
        (&[near], tls, true),
        (&[far], tls, true),
        (&[far, "[2001:db8::1]:7411"], tls, true),
        (&[far], "", false),
        (&[far, near], tls, false),
    ] {
        assert_eq!(parsed(servers, rest).is_ok(), is_good, "{servers:?} {rest}");
    }
    // The others of a pool may have other files.
    for (server, other, may) in [
        (far, near, false),
        (near, far, false),
        (far, "192.0.2.2:1", true),
    ] {
        let door = parsed(&[server], tls).unwrap();
        assert_eq!(door.may_be_dialled(other.parse().unwrap()), may, "{other}");
    }
}

#[test]
fn a_member_that_knows_no_ruler_is_refused_for_good_by_one_of_another_life() {
    let text = format!(
        "servers = [\"{}\"]\n[etcd]\nendpoints = [\"http://127.0.0.1:1\"]\nprefix = \"/pool\"",
        config(1).servers[0]
    );
    let config = Config::parse(&text).unwrap();
    let [ruling, member] = [(), ()].map(|()| Arc::new(Mutex::new(alone().0)));
    let door = Arc::new(Door::new(&config, Security::None));
    door.open(Inside {
        birth: 2,
        me: Server(1),
        process: Arc::clone(&ruling),
    });
    let own = Arc::clone(&door);
    let listener = TcpListener::bind(config.servers[0]).unwrap();
    std::thread::spawn(move || listen(&listener, &door, &AtomicBool::new(false)));
    let dialler = Dialler::Client(Client(9));
    let refused = |config: &Config| match dial(config, 0, 1, dialler) {
        Welcome::OtherLife { is_rulers } => is_rulers,
        other => panic!("{other:?}"),
    };
    assert!(!refused(&config), "it does not rule");
    let ruler = Ruler::under_lease(Register::new(1000, 1), 0);
    locked(&ruling).rule(ruler, 1);
    assert!(!refused(&config), "its lease is over");
    let (inbox, events) = mpsc::channel();
    let hello = Hello {
        pool: config.mark(),
        birth: 1,
        dialler,
    };
    let told = (Arc::clone(&member), inbox);
    let to = (0, config.servers[0], Security::None);
    keep_dialling(to, hello, told, &Arc::default());
    wait_until("it is refused", || !locked(&member).has_no_refusal());
    assert!(events.try_recv().is_err());
    locked(&ruling).renewed(Moment::now() + PATIENCE);
    assert!(
        !refused(&config),
        "its pool may be another one of this mark"
    );
    own.comes_after(Some(3));
    assert!(!refused(&config), "it came after another life");
    assert!(events.try_recv().is_err());
    own.comes_after(Some(1));
    assert!(matches!(events.recv_timeout(SOON), Ok(Event::Refused(_))));
    let other = Config {
        copies: 2,
        ..config.clone()
    };
    assert!(!refused(&other), "it rules another pool");
}

#[test]
fn all_addresses_that_a_pool_can_have_fit_into_a_greeting() {
    let address = SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, u16::MAX));
    let welcome = Welcome::In {
        birth: u64::MAX,
        you: Node::Server(Server(u32::MAX)),
        me: Server(u32::MAX),
        servers: (0..=u8::MAX).map(|place| (place, address)).collect(),
    };
    let bytes = postcard::to_stdvec(&welcome).unwrap();
    assert!(
        (bytes.len() as u64) + 4 <= link::GREETING_MAX,
        "{}",
        bytes.len()
    );
}

#[test]
fn a_server_that_does_not_rule_tells_its_clients_of_servers_that_come() {
    let (mut process, _) = alone();
    let (link, mut far) = link(1);
    far.set_read_timeout(Some(SOON)).unwrap();
    let mut hear = || wire::hear(&mut far, &mut Vec::new()).unwrap().unwrap().1;
    let at = |place, port| Addresses::from([(place, ([127, 0, 0, 1], port).into())]);
    process.learn(at(0, 7411));
    assert!(process.up(Node::Client(Client(9)), link));
    let addresses = at(0, 7411);
    assert_eq!(hear(), Message::Servers { addresses });
    // Nobody takes another one's place.
    process.learn(at(0, 7412));
    process.learn(at(3, 7413));
    let addresses = at(0, 7411).into_iter().chain(at(3, 7413)).collect();
    assert_eq!(hear(), Message::Servers { addresses });
}

/// Less than a greeting may take by itself.
const SOON: Duration = Duration::from_secs(8);

/// Whether the other side ends a connection soon.
fn is_ended(stranger: &mut TcpStream) -> bool {
    stranger.set_read_timeout(Some(SOON)).unwrap();
    let mut heard = Vec::new();
    let end = stranger.read_to_end(&mut heard);
    end.map_or_else(|error| error.kind() == ErrorKind::ConnectionReset, |_| true)
}

#[test]
fn strangers_who_say_nothing_keep_nobody_out() {
    let config = config(1);
    let serving = Serving::begin(&config, 0).unwrap();
    let strangers = (0..100).map(|_| TcpStream::connect(config.servers[0]).unwrap());
    let mut strangers: Vec<TcpStream> = strangers.collect();
    // So many are listened to at once, and the first of them give way.
    assert!({ strangers[..30].iter_mut() }.all(is_ended));
    let pool = Pool::join(&config, PATIENCE).unwrap();
    // A member is let in for good, whoever comes afterwards.
    let later = (0..100).map(|_| TcpStream::connect(config.servers[0]).unwrap());
    let mut later: Vec<TcpStream> = later.collect();
    assert!(is_ended(&mut later[0]));
    let made = pool.run(crate::client::Operation::List {
        parent: crate::ids::File::ROOT,
    });
    assert_eq!(made, Ok(crate::client::Answer::Names(Vec::new())));
    drop(pool);
    serving.stop();
    serving.wait().unwrap();
}

#[test]
fn a_stranger_is_not_listened_to_for_long() {
    let config = config(1);
    let serving = Serving::begin(&config, 0).unwrap();
    let mut stranger = TcpStream::connect(config.servers[0]).unwrap();
    stranger.write_all(&wire::MARK).unwrap();
    stranger.write_all(&(1u32 << 20).to_le_bytes()).unwrap();
    // It may be cut off in the midst of this.
    let _ = stranger.write_all(&[0; 1 << 16]);
    assert!(is_ended(&mut stranger));
    serving.stop();
    serving.wait().unwrap();
}

/// A connection with this number, and its other end.
fn link(generation: u64) -> (Link, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (near, _) = listener.accept().unwrap();
    let near = Stream::accept(near, &Security::None, PATIENCE).unwrap();
    let (link, _writer) = Link::of(&near, generation).unwrap();
    (link, far)
}

/// A server's process without a pool, and the key of its memory.
pub(in crate::net) fn alone() -> (Process, Key) {
    let secret = 11;
    let config = server::Config {
        copies: 1,
        alive_every: 50,
        term: 400,
        patience: 800,
        secret,
    };
    let server = Machine::Server(Box::new(server::Server::new(Server(1), config)));
    let me = (Node::Server(Server(1)), server);
    let process = Process::new(me, None, Node::Register, Default::default(), 1000);
    (process, Key(mix2(secret, 0)))
}

fn write(key: Key, change: u64) -> Message {
    let version = Version {
        epoch: 0,
        stamp: 1,
        change,
    };
    let block = Block {
        place: (File(7), 0),
        version,
        bytes: vec![change as u8; 4].into(),
    };
    Message::Write {
        key,
        number: change,
        blocks: vec![block],
    }
}

#[test]
fn an_older_connection_takes_no_newer_ones_place() {
    let peer = Node::Client(Client(9));
    let (mut process, key) = alone();
    let ((older, mut far_older), (newer, mut far_newer)) = (link(1), link(2));
    let (latest, mut far_latest) = link(1);
    let machines = (false, false);
    assert!(process.up(peer, newer));
    assert!(process.arrived((peer, 2), machines, write(key, 2)));
    // The thread of the one before it comes to its turn only now. The process goes on, and that connection ends.
    assert!(process.up(peer, older));
    assert!(process.arrived((peer, 1), machines, write(key, 1)));
    assert!(process.down(peer, 1));
    assert!(is_ended(&mut far_older));
    let part = Part {
        place: (File(7), 0),
        from: 0,
        length: 4,
    };
    let (number, parts) = (3, vec![part]);
    let read = Message::Read { key, number, parts };
    assert!(process.arrived((peer, 2), machines, read));
    far_newer.set_read_timeout(Some(SOON)).unwrap();
    let mut hear = || {
        wire::hear(&mut far_newer, &mut Vec::new())
            .unwrap()
            .unwrap()
    };
    let addresses = Addresses::new();
    assert_eq!(hear().1, Message::Servers { addresses });
    assert_eq!(hear().1, Message::Done { number: 2 });
    match hear().1 {
        Message::Bytes { bytes, .. } => assert_eq!(bytes.into_vec(), [2; 4]),
        other => panic!("{other:?}"),
    }
    // Nor is it let in when the newer one has ended.
    assert!(process.down(peer, 2));
    assert!(process.up(peer, latest));
    assert!(is_ended(&mut far_latest));
}

#[test]
fn the_newest_connections_of_many_peers_are_known() {
    let mut newest = Newest::default();
    let peer = |number| Node::Client(Client(number));
    for number in 1..=10_000 {
        assert!(newest.takes(peer(number), 2 * u64::from(number)));
        // None of anybody's past ones comes up again.
        for past in [1, number / 2, number].map(|past| past.max(1)) {
            assert!(!newest.takes(peer(past), 2 * u64::from(past)), "{past}");
        }
    }
    assert!(newest.takes(peer(1), 20_001));
}

#[test]
fn the_other_end_of_a_connection_is_asked_whether_it_is_there() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let _far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (near, _) = listener.accept().unwrap();
    let near = Stream::accept(near, &Security::None, PATIENCE).unwrap();
    near.wait_for_ever(Duration::from_secs(12)).unwrap();
    let socket = near.socket();
    assert!(sockopt::socket_keepalive(socket).unwrap());
    let often = Duration::from_secs(3);
    assert_eq!(sockopt::tcp_keepidle(socket).unwrap(), often);
    assert_eq!(sockopt::tcp_keepintvl(socket).unwrap(), often);
    assert_eq!(sockopt::tcp_keepcnt(socket).unwrap(), 3);
    // Any other, and the kernel would count by it instead of the probes.
    assert_eq!(sockopt::tcp_user_timeout(socket).unwrap(), 0);
}

#[test]
fn a_connection_outlasts_an_end_that_does_not_read() {
    const LENGTH: usize = 8 << 20;
    let term = Duration::from_secs(1);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut far, _) = listener.accept().unwrap();
    let mut near = Stream::accept(near, &Security::None, PATIENCE).unwrap();
    near.wait_for_ever(term).unwrap();
    let writer = std::thread::spawn(move || near.write_all(&vec![7; LENGTH]));
    std::thread::sleep(term * 3);
    assert!(!writer.is_finished());
    let mut bytes = Vec::new();
    far.read_to_end(&mut bytes).unwrap();
    writer.join().unwrap().unwrap();
    assert!(bytes == [7; LENGTH]);
}

/// Takes connections to a server along, and keeps both ends of each when one has ended: nobody hears of it, as if a host had lost power.
/// Says how many it has taken.
fn take_along(from: TcpListener, to: Arc<Mutex<SocketAddr>>) -> Arc<AtomicUsize> {
    let count = Arc::<AtomicUsize>::default();
    let taken = Arc::clone(&count);
    std::thread::spawn(move || {
        for near in from.incoming() {
            taken.fetch_add(1, Ordering::Relaxed);
            let near = near.unwrap();
            let to = *to.lock().unwrap();
            // Nobody may listen there for a while.
            let Ok(far) = TcpStream::connect(to) else {
                continue;
            };
            for (from, to) in [(&near, &far), (&far, &near)] {
                let ends = (from.try_clone().unwrap(), to.try_clone().unwrap());
                std::thread::spawn(move || copy(ends));
            }
        }
    });
    count
}

/// Never closes either of them.
fn copy((mut from, mut to): (TcpStream, TcpStream)) {
    let mut bytes = [0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        // What the one who has gone does not take is lost.
        let _ = to.write_all(&bytes[..count]);
    }
    std::mem::forget((from, to));
}

fn wait_until(what: &str, is: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !is() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn who_never_heard_of_a_servers_end_meets_its_next_life() {
    let config = Config {
        copies: 2,
        term_ms: 1000,
        ..config(3)
    };
    let own = || TcpListener::bind((config.servers[1].ip(), 0)).unwrap();
    let listener = own();
    let to = Arc::new(Mutex::new(listener.local_addr().unwrap()));
    take_along(
        TcpListener::bind(config.servers[1]).unwrap(),
        Arc::clone(&to),
    );
    let first = Serving::begin(&config, 0).unwrap();
    let second = Serving::begin_at(listener, &config, 1).unwrap();
    let third = Serving::begin(&config, 2).unwrap();
    let pool = Arc::new(Pool::join(&config, PATIENCE).unwrap());
    let Ok(Answer::Made(Entry { file, .. }, _)) = pool.run(Operation::MakeNameless) else {
        panic!("no file");
    };
    pool.write(file, 0, &[7; 1 << 18]).unwrap();
    pool.run(Operation::sync(file)).unwrap();
    let epoch = first.status().epoch;
    // The second word ends it at once.
    second.stop();
    second.stop();
    second.wait().unwrap();
    let listener = own();
    *to.lock().unwrap() = listener.local_addr().unwrap();
    let second = Serving::begin_at(listener, &config, 1).unwrap();
    let all = [&first, &second, &third];
    wait_until("no epoch has become active", || {
        all.iter().all(|server| {
            let status = server.status();
            status.epoch > epoch && status.is_active && status.servers == 3
        })
    });
    // The client is in it as well, though it had nothing to say to the old one.
    let (done, is_done) = mpsc::channel();
    let own = Arc::clone(&pool);
    std::thread::spawn(move || done.send(own.read(file, 0, 1 << 18)).unwrap());
    let bytes = is_done.recv_timeout(Duration::from_secs(20)).unwrap();
    assert!(bytes.unwrap() == [7; 1 << 18]);
    drop(pool);
    for server in [third, second, first] {
        server.stop();
        server.stop();
        server.wait().unwrap();
    }
}

#[test]
fn signs_of_life_do_not_wait_behind_blocks() {
    let (link, mut far) = link(1);
    let (server, register) = (Node::Server(Server(1)), Node::Register);
    let block = |number: u64| Block {
        place: (File(7), number),
        version: Version::default(),
        bytes: vec![number as u8; 1 << 20].into(),
    };
    let give = |number| Message::Give {
        epoch: crate::ids::Epoch(1),
        blocks: vec![block(number)],
        last: false,
    };
    // The other side does not read yet, and what the kernel takes is less.
    let count = 9;
    for number in 0..count {
        link.send((server, Node::Server(Server(2))), &give(number));
    }
    assert!(!link.is_idle());
    let (_, sign) = crate::message::alive(
        1,
        (crate::ids::Epoch(1), true),
        crate::ids::Epoch(1),
        true,
        (false, 0),
    );
    link.send((server, register), &sign);
    let (mut before, mut blocks) = (None, 0);
    while blocks < count {
        match wire::hear(&mut far, &mut Vec::new()).unwrap().unwrap().1 {
            message if message == sign => before = Some(blocks),
            message => {
                assert_eq!(message, give(blocks));
                blocks += 1;
            }
        }
    }
    assert!(
        before.is_some_and(|before| before < count - 1),
        "{before:?}"
    );
}

#[test]
fn a_server_hands_on_more_than_a_connection_takes_at_once() {
    const MIB: u64 = 1 << 20;
    let config = Config {
        block_bytes: MIB,
        ..config(2)
    };
    let listener = TcpListener::bind((config.servers[0].ip(), 0)).unwrap();
    let to = Arc::new(Mutex::new(listener.local_addr().unwrap()));
    let taken = take_along(TcpListener::bind(config.servers[0]).unwrap(), to);
    let first = Serving::begin_at(listener, &config, 0).unwrap();
    let second = Serving::begin(&config, 1).unwrap();
    let pool = Pool::join(&config, PATIENCE).unwrap();
    let Ok(Answer::Made(Entry { file, .. }, _)) = pool.run(Operation::MakeNameless) else {
        panic!("no file");
    };
    let bytes = |block: u64| vec![block as u8 + 1; MIB as usize];
    let blocks = 96;
    for block in 0..blocks {
        pool.write(file, block * MIB, &bytes(block)).unwrap();
    }
    pool.run(Operation::sync(file)).unwrap();
    // Several times what may wait in a connection of these tests.
    let has_many = || second.status().bytes > 24 * MIB;
    wait_until("it has many blocks", has_many);
    let before = taken.load(Ordering::Relaxed);
    second.stop();
    second.wait().unwrap();
    assert_eq!(taken.load(Ordering::Relaxed), before, "connections");
    drop(pool);
    let pool = Pool::join(&config, PATIENCE).unwrap();
    for block in 0..blocks {
        let read = pool.read(file, block * MIB, MIB).unwrap();
        assert!(read == bytes(block), "block {block}");
    }
    drop(pool);
    first.stop();
    first.wait().unwrap();
}

/// Answers whoever dials there as no server of a pool does, until the listener's address is dialled once more after the end.
fn answer_as_a_stranger(
    listener: TcpListener,
    is_over: Arc<AtomicBool>,
) -> std::thread::JoinHandle<usize> {
    std::thread::spawn(move || {
        let mut count = 0;
        for near in listener.incoming() {
            if is_over.load(Ordering::Relaxed) {
                break;
            }
            count += 1;
            // Whoever hears this may have gone.
            let _ = near.and_then(|mut near| near.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n"));
        }
        count
    })
}

#[test]
fn a_stranger_at_a_dead_servers_address_ends_nobody() {
    let config = Config {
        copies: 2,
        term_ms: 1000,
        ..config(3)
    };
    let begin = |index| Serving::begin(&config, index).unwrap();
    let [first, second, third] = [0, 1, 2].map(begin);
    let pool = Pool::join(&config, PATIENCE).unwrap();
    let Ok(Answer::Made(Entry { file, .. }, _)) = pool.run(Operation::MakeNameless) else {
        panic!("no file");
    };
    pool.write(file, 0, &[7; 1 << 18]).unwrap();
    pool.run(Operation::sync(file)).unwrap();
    second.stop();
    second.stop();
    second.wait().unwrap();
    let address = config.servers[1];
    let again = || {
        let until = Instant::now() + PATIENCE;
        loop {
            match TcpListener::bind(address) {
                Ok(listener) => return listener,
                // It is free in a moment.
                Err(why) => assert!(Instant::now() < until, "{why}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let is_over = Arc::<AtomicBool>::default();
    let stranger = answer_as_a_stranger(again(), Arc::clone(&is_over));
    // The third server dials it, and so does the client; the pool goes on with the two servers that are left.
    wait_until("the third server says who does not let it in", || {
        third
            .status()
            .refusal
            .is_some_and(|why| why.contains("server 2"))
    });
    let are_two = |server: &Serving| {
        let status = server.status();
        status.is_active && status.servers == 2
    };
    wait_until("the pool goes on without it", || {
        [&first, &third].into_iter().all(are_two)
    });
    pool.write(file, 0, &[8; 1 << 17]).unwrap();
    let other = Pool::join(&config, PATIENCE).unwrap();
    pool.run(Operation::sync(file)).unwrap();
    assert!(other.read(file, 0, 1 << 18).unwrap() == [[8; 1 << 17], [7; 1 << 17]].as_flattened());
    is_over.store(true, Ordering::Relaxed);
    let _ = TcpStream::connect(address);
    assert!(stranger.join().unwrap() >= 2);
    // It is let in again where the stranger was.
    let second = Serving::begin_at(again(), &config, 1).unwrap();
    wait_until("all are there again", || {
        [&first, &second, &third].into_iter().all(|server| {
            let status = server.status();
            status.is_active && status.servers == 3 && status.refusal.is_none()
        })
    });
    assert!(pool.read(file, 0, 1 << 17).unwrap() == [8; 1 << 17]);
    drop((pool, other));
    for server in [third, second, first] {
        server.stop();
        server.stop();
        server.wait().unwrap();
    }
}
