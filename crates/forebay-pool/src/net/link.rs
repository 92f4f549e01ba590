//! Connections: one between two processes. The client, or the server that is later in the list, dials.
//!
//! Both sides send the mark. The dialler says who it is ([`Hello`]) and the other welcomes or refuses it. Then come frames: a byte that says whether
//! the register is meant or speaks, and a message. What a connection brings after a newer one of the same peer is there counts no more.

use std::io::{self, BufReader, BufWriter, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::process::Event;
use super::security::Security;
use super::stream::Stream;
use crate::ids::{Client, Node, Server};
use crate::message::Message;
use crate::wire;

/// A peer that does not read what it is sent is cut off when so much waits for it, in bytes.
const QUEUE_MAX: usize = 512 << 20;

/// How long a greeting may take.
const GREETING: Duration = Duration::from_secs(10);

/// No greeting is longer, in bytes: so much memory is taken for somebody who may be a stranger.
const GREETING_MAX: u64 = 4096;

/// How long until a peer that could not be reached is dialled again.
const PAUSE: Duration = Duration::from_millis(50);

/// The register is meant.
const TO_REGISTER: u8 = 1;
/// The register speaks.
const OF_REGISTER: u8 = 2;

/// What a dialler says of itself.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Dialler {
    /// A client that has no number yet.
    NewClient,
    /// A server of the list that has no number yet.
    NewServer(u32),
    /// A client, by its number.
    Client(Client),
    /// A server, by its number.
    Server(Server),
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
    /// Come in.
    In { birth: u64, you: Node, me: Server },
    /// Not now; perhaps later.
    Later,
    /// Never.
    Never(String),
}

/// One connection's way out.
pub(super) struct Link {
    pub generation: u64,
    frames: Sender<Vec<u8>>,
    queued: Arc<AtomicUsize>,
    stream: Stream,
}

impl Link {
    /// Sends a message, or ends the connection if too much waits already. What is not sent then is sent again on the next connection.
    pub fn send(&self, (from, to): (Node, Node), message: &Message) {
        let mut frame = vec![0];
        frame[0] |= if to == Node::Register { TO_REGISTER } else { 0 };
        frame[0] |= if from == Node::Register {
            OF_REGISTER
        } else {
            0
        };
        let Ok(bytes) = wire::encode(message) else {
            return self.end();
        };
        frame.extend(bytes);
        let before = self.queued.fetch_add(frame.len(), Ordering::Relaxed);
        if before > QUEUE_MAX || self.frames.send(frame).is_err() {
            self.end();
        }
    }

    /// Whether everything has been handed to the kernel.
    pub fn is_idle(&self) -> bool {
        self.queued.load(Ordering::Relaxed) == 0
    }

    fn end(&self) {
        self.stream.end();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.end();
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
    let mut stream = Stream::dial(door.to, door.security, GREETING)?;
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

/// Dials until somebody lets it in, or refuses it for ever; `None` if nobody wants to know any more.
pub(super) fn dial_until(
    door: Dialled<'_>,
    goes_on: &dyn Fn() -> bool,
) -> Option<Result<(Stream, u64, Node, Server), String>> {
    while goes_on() {
        match dial(&door) {
            Ok((stream, Welcome::In { birth, you, me })) => {
                return Some(Ok((stream, birth, you, me)));
            }
            Ok((_, Welcome::Never(why))) => return Some(Err(why)),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Some(Err(format!("{}: {error}", door.to)));
            }
            Ok((_, Welcome::Later)) | Err(_) => thread::sleep(PAUSE),
        }
    }
    None
}

/// Carries a connection until it ends: a thread writes, and this one reads. Says whether anybody still listens.
pub(super) fn carry(stream: Stream, peer: Node, inbox: &Sender<Event>) -> bool {
    static GENERATIONS: AtomicU64 = AtomicU64::new(1);
    let generation = GENERATIONS.fetch_add(1, Ordering::Relaxed);
    let began = { stream.wait_for_ever() }.and_then(|()| Ok((stream.writer()?, stream.writer()?)));
    let Ok((own, mut write)) = began else {
        return true;
    };
    let (frames, outbox) = mpsc::channel();
    let queued = Arc::new(AtomicUsize::new(0));
    let link = Link {
        generation,
        frames,
        queued: Arc::clone(&queued),
        stream: own,
    };
    let writer = thread::Builder::new().spawn(move || {
        // An error is the connection's end, which the reader sees.
        let _ = write_all(&mut write, &outbox, &queued);
        write.end();
    });
    let Ok(writer) = writer else {
        // There are no threads left, perhaps for a moment.
        thread::sleep(PAUSE);
        return true;
    };
    let mut listens = inbox.send(Event::Up { peer, link }).is_ok();
    let mut reader = BufReader::with_capacity(1 << 16, stream);
    while listens {
        let Ok(Some(frame)) = wire::receive(&mut reader) else {
            break;
        };
        let Some((flags, body)) = frame.split_first() else {
            break;
        };
        let Ok(message) = wire::decode(body) else {
            break;
        };
        let arrived = Event::Arrived {
            peer,
            generation,
            of_register: flags & OF_REGISTER != 0,
            to_register: flags & TO_REGISTER != 0,
            message,
        };
        listens = inbox.send(arrived).is_ok();
    }
    reader.get_ref().end();
    listens = inbox.send(Event::Down { peer, generation }).is_ok() && listens;
    // It ends when the link is dropped.
    let _ = writer.join();
    listens
}

fn write_all(
    stream: &mut Stream,
    frames: &Receiver<Vec<u8>>,
    queued: &AtomicUsize,
) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 16, stream);
    while let Ok(first) = frames.recv() {
        let mut next = Some(first);
        let mut sent = 0;
        while let Some(frame) = next {
            wire::send(&mut out, &frame)?;
            sent += frame.len();
            next = frames.try_recv().ok();
        }
        out.flush()?;
        queued.fetch_sub(sent, Ordering::Relaxed);
    }
    Ok(())
}
