//! A connection's way in, where threads of this process wait for what it brings: whoever waits reads it himself while nobody else does.
//!
//! An answer that a thread of the connection's own reads wakes two threads, that one and the one that waits. So the *reader* is an object that is taken and
//! given back. A caller that has sent a request takes it, reads until its own answer has come, and does what other messages ask for on the way. While
//! nobody has it, the connection's thread is woken by whatever comes. A caller takes the socket out of what that thread waits for, which does not wake it,
//! and whoever gives the reader back puts the socket in again, which wakes it if something has come meanwhile.
//!
//! Nothing is missed: the thread is told of a socket once, and whoever had the reader then asks for it again after he has given the reader back.

use std::io::{self, BufReader, Read};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, recv};

use super::link::{self, READ};
use super::process::{Outcome, Process, locked};
use super::stream::Stream;
use crate::client::Failure;
use crate::ids::Node;
use crate::message::Message;
use crate::wire;

/// How long a caller whose outcome has come another way waits for the rest of a message that it has begun to read, before it ends the connection.
const REST: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// Asks for one event.
const ONE: EventFlags = EventFlags::IN.union(EventFlags::ONESHOT);

/// A connection's way in.
pub(super) struct Inlet {
    socket: Arc<TcpStream>,
    /// Away while somebody reads.
    reader: Mutex<Option<Reader>>,
    /// Rung for a caller that reads when its outcome has come another way, and for the connection's thread when messages are left that have been taken out of
    /// the socket. Who has the reader silences it.
    bell: Arc<OwnedFd>,
    /// What the connection's thread waits for.
    events: OwnedFd,
}

/// What reads a connection.
pub(super) struct Reader {
    from: BufReader<Way>,
    head: Vec<u8>,
    /// Nothing more is to be read: what is left is no message's beginning.
    is_over: bool,
}

/// The socket, and what a caller is called away by.
struct Way {
    socket: Arc<TcpStream>,
    bell: Arc<OwnedFd>,
    is_callers: bool,
}

impl Read for Way {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut patience = None;
        loop {
            match recv(&*self.socket, &mut *into, RecvFlags::DONTWAIT) {
                Ok((came, _)) => return Ok(came),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let heeds = self.is_callers && patience.is_none();
                    let what = self.wait(heeds, patience.as_ref())?;
                    if what.is_rung {
                        patience = Some(REST);
                    } else if !what.has_come {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

struct Found {
    has_come: bool,
    is_rung: bool,
}

impl Way {
    /// Waits until bytes or the end have come, or the bell is rung if that is heeded, or for so long.
    fn wait(&self, heeds: bool, patience: Option<&Timespec>) -> io::Result<Found> {
        let mut fds = [
            PollFd::new(&*self.socket, PollFlags::IN),
            PollFd::new(&*self.bell, PollFlags::IN),
        ];
        let count = if heeds { 2 } else { 1 };
        retry_on_intr(|| poll(&mut fds[..count], patience))?;
        Ok(Found {
            has_come: !fds[0].revents().is_empty(),
            is_rung: heeds && !fds[1].revents().is_empty(),
        })
    }

    fn silence(&self) {
        // It may not have been rung.
        let _ = rustix::io::read(&*self.bell, &mut [0; 8]);
    }
}

/// What has been read.
type Read1 = ((bool, bool), Message);

impl Reader {
    fn has_rest(&self) -> bool {
        !self.is_over && !self.from.buffer().is_empty()
    }

    /// The next message; nothing at the connection's end, which this is then.
    fn hear(&mut self) -> Option<Read1> {
        let heard = wire::hear(&mut self.from, &mut self.head);
        if let Ok(Some((flags, message))) = heard {
            return Some((link::register_of(flags), message));
        }
        self.end();
        None
    }

    fn end(&mut self) {
        self.is_over = true;
        // It may have ended already.
        let _ = self.from.get_ref().socket.shutdown(Shutdown::Both);
    }
}

impl Inlet {
    /// Of a connection without TLS, of which nothing has been read ahead.
    pub fn of(stream: &Stream) -> io::Result<Inlet> {
        let socket = stream.shared();
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let events = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&events, &*socket, EventData::new_u64(0), ONE)?;
        let none = EventFlags::ONESHOT;
        epoll::add(&events, &*bell, EventData::new_u64(1), none)?;
        let way = Way {
            socket: Arc::clone(&socket),
            bell: Arc::clone(&bell),
            is_callers: false,
        };
        let reader = Reader {
            from: BufReader::with_capacity(READ, way),
            head: Vec::new(),
            is_over: false,
        };
        Ok(Inlet {
            socket,
            reader: Mutex::new(Some(reader)),
            bell,
            events,
        })
    }

    /// Takes the reader, if nobody has it.
    pub fn lead(self: &Arc<Inlet>) -> Option<Leading> {
        let mut reader = locked(&self.reader).take_if(|reader| !reader.is_over)?;
        reader.from.get_mut().is_callers = true;
        if reader.has_rest() {
            // It was rung for the connection's thread.
            reader.from.get_ref().silence();
        }
        Some(Leading {
            inlet: Arc::clone(self),
            reader: Some(reader),
        })
    }

    /// Tells a caller that reads that its outcome has come another way.
    pub fn ring(&self) {
        // If it cannot be rung once more it has been rung.
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
    }

    fn ask(&self, what: impl AsFd, data: u64, flags: EventFlags) {
        // Both have been put in, and stay: this takes no memory, and cannot fail.
        let _ = epoll::modify(&self.events, what, EventData::new_u64(data), flags);
    }

    fn give(&self, mut reader: Reader) {
        reader.from.get_mut().is_callers = false;
        let has_rest = reader.has_rest();
        *locked(&self.reader) = Some(reader);
        // In this order: whoever is woken finds the reader, or another one who does this after him.
        if has_rest {
            self.ring();
            self.ask(&*self.bell, 1, ONE);
        }
        self.ask(&*self.socket, 0, ONE);
    }

    /// What the connection's thread does until the connection ends: reads whatever comes while no caller reads.
    pub fn carry(&self, mut arrived: impl FnMut((bool, bool), Message) -> bool) {
        let mut events = Vec::with_capacity(2);
        loop {
            events.clear();
            let waited = retry_on_intr(|| {
                epoll::wait(
                    &self.events,
                    rustix::buffer::spare_capacity(&mut events),
                    None,
                )
            });
            if waited.is_err() {
                // It cannot fail but for a descriptor that somebody else has closed.
                let _ = self.socket.shutdown(Shutdown::Both);
                return;
            }
            let Some(mut reader) = locked(&self.reader).take() else {
                continue;
            };
            reader.from.get_ref().silence();
            // A caller may have read what it was woken for.
            let has_come = reader
                .from
                .get_ref()
                .wait(false, Some(&Timespec::default()));
            let mut has_come = has_come.is_ok_and(|found| found.has_come);
            while !reader.is_over && (has_come || reader.has_rest()) {
                has_come = false;
                if let Some((register, message)) = reader.hear()
                    && !arrived(register, message)
                {
                    reader.end();
                }
            }
            let is_over = reader.is_over;
            self.give(reader);
            if is_over {
                return;
            }
        }
    }
}

/// A caller that reads.
pub(super) struct Leading {
    inlet: Arc<Inlet>,
    reader: Option<Reader>,
}

impl Leading {
    /// Who is told if the caller's outcome comes another way.
    pub fn inlet(&self) -> Arc<Inlet> {
        Arc::clone(&self.inlet)
    }

    /// Reads until the outcome of the caller's operation has come, this way or another.
    pub fn outcome(
        mut self,
        process: &Mutex<Process>,
        (peer, own): ((Node, u64), u64),
        outcome: &Receiver<Outcome>,
    ) -> Option<Outcome> {
        let reader = self.reader.as_mut()?;
        self.inlet.ask(&*self.inlet.socket, 0, EventFlags::ONESHOT);
        while !reader.is_over {
            let found = if reader.has_rest() {
                Found {
                    has_come: true,
                    is_rung: false,
                }
            } else {
                let found = reader.from.get_ref().wait(true, None);
                found.unwrap_or(Found {
                    has_come: true,
                    is_rung: false,
                })
            };
            if found.is_rung {
                reader.from.get_ref().silence();
                match outcome.try_recv() {
                    Ok(outcome) => return Some(outcome),
                    Err(TryRecvError::Disconnected) => return Some(Err(Failure::GivenUp)),
                    Err(TryRecvError::Empty) => {}
                }
            }
            if found.has_come
                && let Some((register, message)) = reader.hear()
            {
                match locked(process).arrived_for(peer, register, message, Some(own)) {
                    Some(Some(outcome)) => return Some(outcome),
                    Some(None) => {}
                    None => reader.end(),
                }
            }
        }
        None
    }
}

impl Drop for Leading {
    fn drop(&mut self) {
        if let Some(mut reader) = self.reader.take() {
            if thread::panicking() {
                // Half a message may be left.
                reader.end();
            }
            self.inlet.give(reader);
        }
    }
}
