//! Connections: one between two processes. The client, or the server that is later in the list, dials.
//!
//! A message goes straight from the thread that sends it into the socket, as far as that takes it without waiting. The rest is for a thread of the
//! connection's own, and what follows goes the same way until that is done: nobody waits for a peer while he holds the process.
//! What the register says and is told goes before what others say: signs of life do not wait behind blocks.
//!
//! Both sides send the mark. The dialler says who it is ([`Hello`]) and the other welcomes or refuses it. Then come frames: a byte that says whether
//! the register is meant or speaks, and a message. What a connection brings after a newer one of the same peer is there counts no more, and one that
//! comes up after a newer one does not count at all: connections are numbered when they are taken in, before anything can be sent by them.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustls::pki_types::ServerName;
use serde::{Deserialize, Serialize};

use super::process::{self, Process};
use super::security::Security;
use super::stream::Stream;
use crate::ids::{Client, Node, Server};
use crate::message::{Addresses, Message};
use crate::wire::{self, Parcel};

/// A peer that does not read what it is sent is cut off when so much waits for it, in bytes. Little in tests, so that these can send more.
const QUEUE_MAX: usize = if cfg!(test) { 8 << 20 } else { 512 << 20 };

/// How long a greeting may take.
const GREETING: Duration = Duration::from_secs(10);

/// No greeting is longer, in bytes: so much memory is taken for somebody who may be a stranger. The addresses of all places take 5,600.
pub(super) const GREETING_MAX: u64 = 8192;

/// How long until a peer that could not be reached is dialled again.
pub(super) const PAUSE: Duration = Duration::from_millis(50);

/// The same where somebody has answered who does not let it in.
pub(super) const LONG_PAUSE: Duration = Duration::from_millis(500);

/// The register is meant.
const TO_REGISTER: u8 = 1;
/// The register speaks.
const OF_REGISTER: u8 = 2;

/// What a dialler says of itself.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Dialler {
    /// A client that has no number yet.
    NewClient,
    /// A server that has no number yet, and its address.
    NewServer(SocketAddr),
    /// A client, by its number.
    Client(Client),
    /// A server, by its number, and its address.
    Server(Server, SocketAddr),
}

impl Dialler {
    /// A server's.
    pub fn address(&self) -> Option<SocketAddr> {
        match *self {
            Dialler::NewServer(address) | Dialler::Server(_, address) => Some(address),
            Dialler::NewClient | Dialler::Client(_) => None,
        }
    }
}

/// How a dialler begins.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    /// The mark of the configuration.
    pub pool: u64,
    /// Which life of the pool it belongs to; 0 if it is new.
    pub birth: u64,
    /// Itself.
    pub dialler: Dialler,
}

/// What the other side says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Welcome {
    /// Come in. These are the servers.
    In {
        birth: u64,
        you: Node,
        me: Server,
        servers: Addresses,
    },
    /// Not now, or not here; perhaps later, or at one of these.
    Later(Addresses),
    /// Never.
    Never(String),
    /// The pool's life is another one. Whether who says so rules it, where servers are elected, and the configurations agree.
    OtherLife { is_rulers: bool },
}

/// The number of a new connection. It is drawn before the peer is welcomed: who has been welcomed and dials again then has a greater one.
pub(super) fn next_generation() -> u64 {
    static GENERATIONS: AtomicU64 = AtomicU64::new(1);
    GENERATIONS.fetch_add(1, Ordering::Relaxed)
}

/// Peers whose newest connections are known one by one.
const PEERS_MAX: usize = 4096;

/// The newest connection that there has been of each peer, whether or not it has ended.
#[derive(Default)]
pub(super) struct Newest {
    of: BTreeMap<Node, u64>,
    /// The newest one of all peers that are not known any more.
    forgotten: u64,
}

impl Newest {
    /// Whether this connection is newer than all others of its peer; then it is the newest. Now and then one is refused that was under way
    /// when its peer was forgotten: that one dials again.
    pub fn takes(&mut self, peer: Node, generation: u64) -> bool {
        let newest = self.of.get(&peer).copied().unwrap_or(self.forgotten);
        if generation <= newest {
            return false;
        }
        self.of.insert(peer, generation);
        if self.of.len() > PEERS_MAX {
            self.forgotten = self.of.values().copied().fold(self.forgotten, u64::max);
            self.of.clear();
        }
        true
    }
}

/// What could not go at once.
#[derive(Default)]
struct Rest {
    /// Bytes of it that have not gone.
    queued: AtomicUsize,
    waiting: Mutex<Waiting>,
    comes: Condvar,
}

#[derive(Default)]
struct Waiting {
    /// What has gone in part: nothing comes between its bytes.
    begun: Option<Parcel>,
    of_register: VecDeque<Parcel>,
    others: VecDeque<Parcel>,
    is_over: bool,
}

impl Waiting {
    fn next(&mut self) -> Option<Parcel> {
        let begun = self.begun.take();
        begun
            .or_else(|| self.of_register.pop_front())
            .or_else(|| self.others.pop_front())
    }
}

impl Rest {
    /// Something waits from now on.
    fn put(&self, parcel: Parcel, lane: impl FnOnce(&mut Waiting, Parcel)) {
        lane(&mut process::locked(&self.waiting), parcel);
        self.comes.notify_one();
    }

    /// What goes next, when there is something; `None` when nothing comes any more.
    fn take(&self) -> Option<Parcel> {
        let mut waiting = process::locked(&self.waiting);
        loop {
            if waiting.is_over {
                return None;
            }
            if let Some(next) = waiting.next() {
                return Some(next);
            }
            let woken = self.comes.wait(waiting);
            waiting = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn end(&self) {
        process::locked(&self.waiting).is_over = true;
        self.comes.notify_one();
    }
}

/// One connection's way out.
pub(super) struct Link {
    pub generation: u64,
    rest: Arc<Rest>,
    stream: Stream,
}

impl Link {
    /// The way out of a connection, and the thread that writes what does not go at once. It ends when the link is dropped.
    pub fn of(stream: &Stream, generation: u64) -> io::Result<(Link, JoinHandle<()>)> {
        let (own, mut write) = (stream.writer()?, stream.writer()?);
        let rest = Arc::<Rest>::default();
        let link = Link {
            generation,
            rest: Arc::clone(&rest),
            stream: own,
        };
        let writer = thread::Builder::new().spawn(move || {
            // An error is the connection's end, which the reader sees.
            let _ = write_all(&mut write, &rest);
            write.end();
        })?;
        Ok((link, writer))
    }

    /// Sends a message, or ends the connection if too much waits already. What is not sent then is sent again on the next connection. Who calls
    /// it holds the process, so that messages keep their order; those of the register and to it are in an order of their own.
    pub fn send(&self, (from, to): (Node, Node), message: &Message) {
        let register = |node, flag| if node == Node::Register { flag } else { 0 };
        let flags = register(to, TO_REGISTER) | register(from, OF_REGISTER);
        let Ok(mut parcel) = Parcel::of(message, flags) else {
            return self.end();
        };
        let rest = &self.rest;
        // Pairs with the subtraction: who sees that nothing is left does not overtake it.
        let before = rest.queued.load(Ordering::Acquire);
        if before == 0 {
            match self.stream.write_now(&mut parcel) {
                Ok(()) if parcel.is_empty() => return,
                Ok(()) => {}
                Err(_) => return self.end(),
            }
        }
        rest.queued.fetch_add(parcel.len(), Ordering::Relaxed);
        rest.put(parcel, |waiting, parcel| {
            if before == 0 {
                waiting.begun = Some(parcel);
            } else if flags == 0 {
                waiting.others.push_back(parcel);
            } else {
                waiting.of_register.push_back(parcel);
            }
        });
        if before > QUEUE_MAX {
            self.end();
        }
    }

    /// Whether everything has been handed to the kernel.
    pub fn is_idle(&self) -> bool {
        self.rest.queued.load(Ordering::Acquire) == 0
    }

    fn end(&self) {
        self.stream.end();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.end();
        self.rest.end();
    }
}

/// Sends something with a form of its own.
pub(super) fn say<T: Serialize>(to: &mut Stream, what: &T) -> io::Result<()> {
    let bytes = postcard::to_stdvec(what).map_err(io::Error::other)?;
    wire::send(to, &bytes)
}

/// Waits for something with a form of its own.
pub(super) fn hear<T: for<'de> Deserialize<'de>>(from: &mut Stream) -> io::Result<T> {
    let bytes = wire::receive(&mut io::Read::take(from, GREETING_MAX))?;
    let bytes = bytes.ok_or(io::ErrorKind::UnexpectedEof)?;
    postcard::from_bytes(&bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Takes somebody in: neither side waits long for the other.
pub(super) fn accept(socket: TcpStream, security: &Security) -> io::Result<Stream> {
    let mut stream = Stream::accept(socket, security, GREETING)?;
    wire::send_mark(&mut stream)?;
    wire::expect_mark(&mut stream)?;
    Ok(stream)
}

/// Dials once.
pub(super) fn dial(door: &Dialled<'_>) -> io::Result<(Stream, Welcome)> {
    let name = ServerName::from(door.to.ip());
    let mut stream = Stream::dial(door.to, name, door.security, GREETING)?;
    wire::send_mark(&mut stream)?;
    wire::expect_mark(&mut stream)?;
    say(&mut stream, door.hello)?;
    let welcome = hear(&mut stream)?;
    Ok((stream, welcome))
}

/// Who is dialled, and how.
#[derive(Clone, Copy)]
pub(super) struct Dialled<'a> {
    pub to: SocketAddr,
    pub security: &'a Security,
    pub hello: &'a Hello,
}

/// Somebody who has let it in.
pub(super) struct Host {
    pub stream: Stream,
    /// The pool's life.
    pub birth: u64,
    pub you: Node,
    pub me: Server,
    pub servers: Addresses,
}

/// What comes of dialling.
pub(super) type Met = Result<Host, Refusal>;

/// Why somebody is not let in.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    pub why: String,
    /// Who said so is in another life of the pool.
    pub is_other_life: bool,
    /// And rules it.
    pub is_rulers: bool,
}

impl Refusal {
    fn because(why: String) -> Refusal {
        Refusal {
            why,
            is_other_life: false,
            is_rulers: false,
        }
    }

    /// Whether it ends the member: its pool is no more, by the word of whoever keeps the register.
    pub fn is_final(&self, is_keepers: bool) -> bool {
        self.is_other_life && (self.is_rulers || is_keepers)
    }
}

/// What a member of another life of the pool ends by.
pub(super) const OTHER_LIFE: &str = "the pool that it belonged to is no more";

/// Dials until somebody lets it in, or refuses it; `None` if nobody wants to know any more.
pub(super) fn dial_until(door: Dialled<'_>, goes_on: &dyn Fn() -> bool) -> Option<Met> {
    while goes_on() {
        if let Ok(met) = dial_once(door) {
            return Some(met);
        }
        thread::sleep(PAUSE);
    }
    None
}

/// Dials once; else it may be let in later, or at one of these addresses.
pub(super) fn dial_once(door: Dialled<'_>) -> Result<Met, Addresses> {
    match dial(&door) {
        Ok((
            stream,
            Welcome::In {
                birth,
                you,
                me,
                servers,
            },
        )) => Ok(Ok(Host {
            stream,
            birth,
            you,
            me,
            servers,
        })),
        Ok((_, Welcome::Never(why))) => Ok(Err(Refusal::because(why))),
        Ok((_, Welcome::OtherLife { is_rulers })) => Ok(Err(Refusal {
            is_other_life: true,
            is_rulers,
            ..Refusal::because(OTHER_LIFE.to_string())
        })),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            Ok(Err(Refusal::because(format!("{}: {error}", door.to))))
        }
        Ok((_, Welcome::Later(servers))) => Err(servers),
        Err(_) => Err(Addresses::new()),
    }
}

/// Bytes that are read at once, but for those of blocks.
const READ: usize = 8 << 10;

/// Carries a connection until it ends: this thread reads, and does what messages ask for. Says whether anybody still listens.
pub(super) fn carry(
    stream: Stream,
    (peer, generation): (Node, u64),
    process: &Mutex<Process>,
) -> bool {
    let term = process::locked(process).term();
    let began = { stream.wait_for_ever(term) }.and_then(|()| Link::of(&stream, generation));
    let Ok((link, writer)) = began else {
        // There are no descriptors or threads left, perhaps for a moment.
        thread::sleep(PAUSE);
        return true;
    };
    let mut listens = process::locked(process).up(peer, link);
    let mut reader = BufReader::with_capacity(READ, stream);
    let mut head = Vec::new();
    while listens {
        let Ok(Some((flags, message))) = wire::hear(&mut reader, &mut head) else {
            break;
        };
        let (of, to) = (flags & OF_REGISTER != 0, flags & TO_REGISTER != 0);
        listens = process::locked(process).arrived((peer, generation), (of, to), message);
    }
    reader.get_ref().end();
    listens = process::locked(process).down(peer, generation) && listens;
    // It ends when the link is dropped.
    let _ = writer.join();
    listens
}

fn write_all(stream: &mut Stream, rest: &Rest) -> io::Result<()> {
    while let Some(mut parcel) = rest.take() {
        let length = parcel.len();
        while !parcel.is_empty() {
            let gone = stream.write_vectored(&parcel.slices())?;
            if gone == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            parcel.advance(gone);
        }
        rest.queued.fetch_sub(length, Ordering::Release);
    }
    Ok(())
}
