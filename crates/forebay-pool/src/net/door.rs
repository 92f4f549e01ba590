//! A server's door: who dials is greeted there, and let in or not.

use std::collections::VecDeque;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};

use super::Config;
use super::link::{self, Dialler, Hello, Welcome};
use super::numbers::{Given, NO_NUMBER, Numbers};
use super::process::{Process, locked};
use super::security::Security;
use super::stream::Stream;
use crate::ids::{Node, Server as Id};
use crate::message::Addresses;
use crate::ruler::Placed;

/// Greetings under way at once. Whoever comes then takes the place of the one who has been at it for longest: a member is greeted in
/// milliseconds, and strangers who say nothing keep nobody out.
const GREETINGS: usize = 64;

/// How long it takes breath when there are no descriptors or threads left.
const BREATH: Duration = Duration::from_millis(20);

/// So many descriptors are left for the home, for etcd, and for connections of those who are in. A client that has no number yet leaves as many again, so
/// that those who have one are let in.
const SPARE: u64 = 64;

/// How often [`SPARE`] descriptors are left behind the newest one, at most: the kernel gives the lowest that is free. Where few may be open an eighth of
/// them is spared.
fn room_behind(newest: &TcpStream) -> u64 {
    let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let left = most.saturating_sub(newest.as_raw_fd() as u64 + 1);
    left / SPARE.min(most / 8).max(1)
}

/// Those who are being greeted, in the order in which they came.
#[derive(Default)]
struct Greetings(Mutex<VecDeque<(u64, TcpStream)>>);

impl Greetings {
    fn locked(&self) -> MutexGuard<'_, VecDeque<(u64, TcpStream)>> {
        locked(&self.0)
    }

    fn begin(&self, number: u64, socket: TcpStream) {
        self.make_room(GREETINGS - 1);
        self.locked().push_back((number, socket));
    }

    /// Ends the oldest until there are at most so many.
    fn make_room(&self, most: usize) {
        let mut all = self.locked();
        while all.len() > most
            && let Some((_, socket)) = all.pop_front()
        {
            // It may have ended already.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    fn end(&self, number: u64) {
        self.locked().retain(|(other, _)| *other != number);
    }
}

/// Whether a server is later in the list than this one: no other dials, and above all nobody who says that he is the first.
fn may_dial(server: Id, me: Id) -> bool {
    server.place() > me.place()
}

/// Decides on those who dial.
pub(super) struct Door {
    config: Config,
    mark: u64,
    security: Security,
    /// What those who come in meet; nothing while this server has no number.
    inside: Mutex<Option<Arc<Inside>>>,
    numbers: Mutex<Option<Numbers>>,
    /// The mark of the pool's life before this one, where this server has ruled and knows it.
    after: Mutex<Option<u64>>,
}

pub(super) struct Inside {
    pub birth: u64,
    pub me: Id,
    pub process: Arc<Mutex<Process>>,
}

impl Door {
    /// A closed one.
    pub fn new(config: &Config, security: Security) -> Door {
        Door {
            config: config.clone(),
            mark: config.mark(),
            security,
            inside: Mutex::default(),
            numbers: Mutex::new(None),
            after: Mutex::new(None),
        }
    }

    /// Opens it.
    pub fn open(&self, inside: Inside) {
        *locked(&self.inside) = Some(Arc::new(inside));
    }

    /// Closes it again: this server has its number no more.
    pub fn close(&self) {
        *locked(&self.inside) = None;
    }

    /// Gives numbers from now on, or none any more.
    pub fn give(&self, numbers: Option<Numbers>) {
        *locked(&self.numbers) = numbers;
    }

    /// Who says that he belongs to this life of the pool is told that it is no more.
    pub fn comes_after(&self, birth: Option<u64>) {
        *locked(&self.after) = birth;
    }

    /// Whether there are no more numbers.
    pub fn has_given_all(&self) -> bool {
        locked(&self.numbers)
            .as_ref()
            .is_some_and(Numbers::has_ended)
    }

    /// Decides on who has said that, has proved the address in it or not, and left so much room.
    fn admit(
        &self,
        (hello, has_proved): (Hello, bool),
        inside: Option<&Inside>,
        room: u64,
    ) -> Welcome {
        // Who is not in himself, perhaps since it is his configuration that is wrong, refuses nobody.
        let Some(Inside { birth, me, process }) = inside else {
            return Welcome::Later(Addresses::new());
        };
        if hello.birth != 0 && hello.birth != *birth {
            // Other pools may have the same mark: who comes after that life must know it.
            let comes_after = *locked(&self.after) == Some(hello.birth);
            let is_rulers = comes_after && hello.pool == self.mark && locked(process).rules();
            return Welcome::OtherLife { is_rulers };
        }
        if hello.pool != self.mark {
            return Welcome::Never(
                "its configuration is another one: all members of a pool have the same file"
                    .to_string(),
            );
        }
        if let Some(address) = hello.dialler.address()
            && let Err(why) = self.may_be_dialled(address, has_proved)
        {
            return Welcome::Never(format!("not all members can dial {address}: {why}"));
        }
        let needed = match hello.dialler {
            Dialler::NewClient => 2,
            Dialler::Client(_) => 1,
            Dialler::NewServer(_) | Dialler::Server(..) => 0,
        };
        if room < needed {
            return Welcome::Later(Addresses::new());
        }
        let given = match hello.dialler {
            Dialler::NewClient => self.number(Numbers::client),
            Dialler::NewServer(address) => self.number_at(address, process),
            Dialler::Client(client) if hello.birth != 0 => Given::Number(Node::Client(client)),
            Dialler::Server(server, _) if hello.birth != 0 && may_dial(server, *me) => {
                Given::Number(Node::Server(server))
            }
            Dialler::Server(..) => {
                Given::Never("only servers that are later in the list dial this one")
            }
            Dialler::Client(_) => NO_NUMBER,
        };
        // After it has been decided: the list has the newcomer's address then, and all of before it.
        let mut process = locked(process);
        match given {
            Given::Number(you) => {
                if let Dialler::Server(server, address) = hello.dialler
                    && let Some(place) = server.place()
                {
                    process.learn(Addresses::from([(place, address)]));
                }
                Welcome::In {
                    birth: *birth,
                    you,
                    me: *me,
                    servers: process.addresses().clone(),
                }
            }
            Given::Later => Welcome::Later(process.addresses().clone()),
            Given::Never(why) => Welcome::Never(why.to_string()),
        }
    }

    /// Whether all members can dial a server there, which has proved that the address is its own, or not.
    fn may_be_dialled(&self, server: SocketAddr, has_proved: bool) -> Result<(), &'static str> {
        if !self.config.may_be_dialled(server) {
            return Err(
                "it must be one host's, without [tls] a loopback one, and with it only if all servers' are",
            );
        }
        if !has_proved {
            return Err("its certificate does not name that (subjectAltName)");
        }
        Ok(())
    }

    fn number(&self, give: impl FnOnce(&mut Numbers) -> Given) -> Given {
        match (locked(&self.numbers).as_mut(), &self.config.etcd) {
            (Some(numbers), _) => give(numbers),
            // Any server may come to give them.
            (None, Some(_)) => Given::Later,
            (None, None) => NO_NUMBER,
        }
    }

    /// The number of a new server at this address.
    fn number_at(&self, address: SocketAddr, process: &Mutex<Process>) -> Given {
        let placed = locked(process).place(address);
        match placed {
            Some(Placed::At(place)) => self.number(|numbers| numbers.server(place)),
            Some(Placed::Never) => {
                Given::Never("the pool's list has 256 servers, and room for no more")
            }
            Some(Placed::Later) => Given::Later,
            // It does not rule.
            None => self.number(|_| Given::Later),
        }
    }

    /// Lets somebody in or not; says who it is and whom it meets, if this connection is to be kept.
    fn greet(&self, socket: TcpStream) -> std::io::Result<Option<(Stream, Node, Arc<Inside>)>> {
        let room = room_behind(&socket);
        let mut stream = link::accept(socket, &self.security)?;
        let hello: Hello = link::hear(&mut stream)?;
        let inside = locked(&self.inside).clone();
        let address = hello.dialler.address();
        let has_proved = address.is_none_or(|address| stream.has_proved(address.ip()));
        let welcome = self.admit((hello, has_proved), inside.as_deref(), room);
        link::say(&mut stream, &welcome)?;
        Ok(match (welcome, hello.dialler, inside) {
            (Welcome::In { you, .. }, Dialler::Client(_) | Dialler::Server(..), Some(inside)) => {
                Some((stream, you, inside))
            }
            _ => None,
        })
    }
}

/// Lets in those who dial, until the server has ended.
pub(super) fn listen(listener: &TcpListener, door: &Arc<Door>, is_over: &AtomicBool) {
    let greetings = Arc::new(Greetings::default());
    for (number, stream) in (0..).zip(listener.incoming()) {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        // Whoever could not be met tries again.
        let met = stream.and_then(|stream| {
            greetings.begin(number, stream.try_clone()?);
            let (door, own) = (Arc::clone(door), Arc::clone(&greetings));
            // In the order in which they come: threads may overtake one another, and a peer sends nothing before it is welcomed.
            let generation = link::next_generation();
            thread::Builder::new().spawn(move || {
                let greeted = door.greet(stream);
                own.end(number);
                if let Ok(Some((stream, you, inside))) = greeted {
                    link::carry(stream, (you, generation), &inside.process);
                }
            })
        });
        if met.is_err() {
            greetings.end(number);
            let most = greetings.locked().len().saturating_sub(1);
            greetings.make_room(most);
            thread::sleep(BREATH);
        }
    }
}
