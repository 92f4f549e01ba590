//! A server's process: it listens, lets members in, and dials the servers before it in the list.

use std::collections::VecDeque;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::link::{self, Dialled, Dialler, Hello, Welcome};
use super::process::{Event, Machine, Process};
use super::security::Security;
use super::status::Status;
use super::stream::Stream;
use super::{Config, Ended, random};
use crate::home::{Directory, Taken, first_epoch};
use crate::ids::{Client, Node, Server as Id};
use crate::register::Register;
use crate::server::{self, Server};

/// A server that runs.
pub struct Serving {
    inbox: Sender<Event>,
    is_over: Arc<AtomicBool>,
    status: Arc<Mutex<Status>>,
    thread: JoinHandle<Result<(), Ended>>,
}

impl Serving {
    /// Begins to serve as the server with this place in the list, the first being 0. It is in the pool when all servers of the list have begun.
    pub fn begin(config: &Config, index: usize) -> Result<Serving, Ended> {
        let address = config.servers.get(index).copied();
        let address = address.ok_or(Ended::NoSuchServer(index))?;
        let listener = TcpListener::bind(address).map_err(|why| Ended::Listen(address, why))?;
        let (inbox, events) = mpsc::channel();
        let is_over = Arc::new(AtomicBool::new(false));
        let status = Arc::default();
        let life = Life {
            security: Security::of(config.tls.as_ref())?,
            config: config.clone(),
            index,
            inbox: inbox.clone(),
            is_over: Arc::clone(&is_over),
            status: Arc::clone(&status),
            secret: random()?,
            birth: random()?.max(1),
            taken: OnceLock::new(),
        };
        let thread = thread::spawn(move || {
            let result = life.serve(listener, &events);
            life.is_over.store(true, Ordering::Relaxed);
            // The listener's thread waits for somebody to come.
            let _ = TcpStream::connect(address);
            result
        });
        Ok(Serving {
            inbox,
            is_over,
            status,
            thread,
        })
    }

    /// Hands on what it has, and goes. A second call does not wait for that. The first server takes the pool with it.
    pub fn stop(&self) {
        // It may have ended already.
        let _ = self.inbox.send(Event::Stop);
    }

    /// How it is.
    pub fn status(&self) -> Status {
        let status = self.status.lock();
        status.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Waits until it ends.
    pub fn wait(self) -> Result<(), Ended> {
        self.thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

struct Life {
    config: Config,
    security: Security,
    index: usize,
    inbox: Sender<Event>,
    is_over: Arc<AtomicBool>,
    status: Arc<Mutex<Status>>,
    secret: u64,
    birth: u64,
    /// The home, if this is the first server: no other pool has it meanwhile.
    taken: OnceLock<Taken>,
}

impl Life {
    fn serve(&self, listener: TcpListener, events: &Receiver<Event>) -> Result<(), Ended> {
        let Some((me, birth)) = self.number(events)? else {
            return Ok(());
        };
        let count = self.config.servers.len();
        let life = self.begin_life()?;
        let term = self.config.term_ms;
        let config = server::Config {
            copies: self.config.copies,
            alive_every: self.config.alive_every(),
            // Clocks may differ by one in a hundred.
            term: term * 9 / 10,
            patience: term * 2,
            secret: self.secret,
        };
        let origin = first_epoch(life.unwrap_or(0));
        let register = (self.index == 0).then(|| Register::new(term, count).after(origin));
        let mut server = Server::new(me, config);
        if let Some(home) = &self.config.home {
            let home = Directory::new(home, me.0);
            server = server.with_home(Arc::new(home), self.config.memory_mib << 20);
        }
        let machine = Machine::Server(Box::new(server));
        let is_in = Arc::new(AtomicBool::new(false));
        let keeper = Node::Server(Id(1));
        let process = Process::new((Node::Server(me), machine), register, keeper, is_in, term);
        let process = process.with_status(Arc::clone(&self.status));
        let process = Arc::new(Mutex::new(process));
        self.begin_links((me, birth), life, listener, &process);
        Process::run(&process, events)
    }

    /// Listens, and dials the servers before this one.
    fn begin_links(
        &self,
        (me, birth): (Id, u64),
        life: Option<u64>,
        listener: TcpListener,
        process: &Arc<Mutex<Process>>,
    ) {
        let door = Arc::new(Door {
            mark: self.config.mark(),
            birth,
            me,
            servers: self.config.servers.len() as u32,
            security: self.security.clone(),
            numbers: (self.index == 0).then(|| Mutex::new(Numbers::new(&self.config, life))),
            process: Arc::clone(process),
        });
        let is_over = Arc::clone(&self.is_over);
        thread::spawn(move || listen(&listener, &door, &is_over));
        let hello = Hello {
            pool: self.config.mark(),
            birth,
            dialler: Dialler::Server(me),
        };
        for address in &self.config.servers[..self.index] {
            keep_dialling(
                (*address, self.security.clone()),
                hello,
                (Arc::clone(process), self.inbox.clone()),
                Arc::clone(&self.is_over),
            );
        }
    }

    /// The first server begins the pool's life; which one, only the home knows.
    fn begin_life(&self) -> Result<Option<u64>, Ended> {
        match &self.config.home {
            Some(home) if self.index == 0 => {
                let block_bytes = self.config.block_bytes;
                let taken = Directory::take(home, block_bytes).map_err(Ended::Home)?;
                self.taken.get_or_init(|| taken);
                let life = Directory::begin_life(home, block_bytes);
                life.map(Some).map_err(Ended::Home)
            }
            _ => Ok(None),
        }
    }

    /// Its number in this life of the pool, and that life's mark; `None` if it is to stop.
    fn number(&self, events: &Receiver<Event>) -> Result<Option<(Id, u64)>, Ended> {
        if self.index == 0 {
            return Ok(Some((Id(1), self.birth)));
        }
        let hello = Hello {
            pool: self.config.mark(),
            birth: 0,
            dialler: Dialler::NewServer(self.index as u32),
        };
        let goes_on = || events.try_recv().is_err();
        let door = Dialled {
            to: self.config.servers[0],
            security: &self.security,
            hello: &hello,
        };
        match link::dial_until(door, &goes_on) {
            Some(Ok((_, birth, Node::Server(me), _))) => Ok(Some((me, birth))),
            Some(Ok(_)) => Err(Ended::Refused("it is not taken for a server".into())),
            Some(Err(why)) => Err(Ended::Refused(why)),
            None => Ok(None),
        }
    }
}

/// Dials a server again and again, until nobody listens any more.
pub(super) fn keep_dialling(
    (to, security): (SocketAddr, Security),
    hello: Hello,
    (process, inbox): (Arc<Mutex<Process>>, Sender<Event>),
    is_over: Arc<AtomicBool>,
) {
    thread::spawn(move || {
        let goes_on = || !is_over.load(Ordering::Relaxed);
        let door = Dialled {
            to,
            security: &security,
            hello: &hello,
        };
        while let Some(met) = link::dial_until(door, &goes_on) {
            let listens = match met {
                Ok((stream, _, _, peer)) => link::carry(stream, Node::Server(peer), &process),
                Err(why) => {
                    // It ends by this, or has ended.
                    let _ = inbox.send(Event::Refused(why));
                    false
                }
            };
            if !listens {
                return;
            }
        }
    });
}

/// Clients of one life of a pool with a home; for more another life is taken, whose numbers nobody has had either.
const CLIENTS_OF_A_LIFE: u32 = 1 << 16;

/// Numbers that the register's process gives. None is given twice, not in another life either: a file is called after its maker.
struct Numbers {
    clients: u32,
    lives: Vec<u32>,
    home: Option<(PathBuf, u64)>,
}

impl Numbers {
    fn new(config: &Config, life: Option<u64>) -> Numbers {
        let home = config.home.clone().map(|home| (home, config.block_bytes));
        let first = u32::try_from(life.unwrap_or(0)).ok();
        let first = first.and_then(|life| life.checked_mul(CLIENTS_OF_A_LIFE));
        Numbers {
            // After the last number there is none.
            clients: first.unwrap_or(u32::MAX),
            lives: vec![0; config.servers.len()],
            home,
        }
    }

    fn client(&mut self) -> Option<Node> {
        let next = self.clients.checked_add(1)?;
        self.clients = match &self.home {
            Some((home, block_bytes)) if next.is_multiple_of(CLIENTS_OF_A_LIFE) => {
                let life = Directory::begin_life(home, *block_bytes).ok()?;
                u32::try_from(life).ok()?.checked_mul(CLIENTS_OF_A_LIFE)? + 1
            }
            _ => next,
        };
        Some(Node::Client(Client(self.clients)))
    }

    fn server(&mut self, index: u32) -> Option<Node> {
        let count = self.lives.len() as u32;
        let life = self.lives.get_mut(index as usize).filter(|_| index > 0)?;
        let number = 1 + index + *life * count;
        *life += 1;
        Some(Node::Server(Id(number)))
    }
}

/// Greetings under way at once. Whoever comes then takes the place of the one who has been at it for longest: a member is greeted in
/// milliseconds, and strangers who say nothing keep nobody out.
const GREETINGS: usize = 64;

/// How long it takes breath when there are no descriptors or threads left.
const BREATH: Duration = Duration::from_millis(20);

/// Those who are being greeted, in the order in which they came.
#[derive(Default)]
struct Greetings(Mutex<VecDeque<(u64, TcpStream)>>);

impl Greetings {
    fn locked(&self) -> MutexGuard<'_, VecDeque<(u64, TcpStream)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Decides on those who dial.
struct Door {
    mark: u64,
    birth: u64,
    me: Id,
    /// Servers of the list; their numbers go round in it ([`Numbers::server`]).
    servers: u32,
    security: Security,
    numbers: Option<Mutex<Numbers>>,
    process: Arc<Mutex<Process>>,
}

impl Door {
    /// Whether a server is later in the list than this one: no other dials, and above all nobody who says that he is the first.
    fn may_dial(&self, server: Id) -> bool {
        let place = |server: Id| server.0.checked_sub(1).map(|number| number % self.servers);
        place(server) > place(self.me)
    }

    fn admit(&self, hello: Hello) -> Welcome {
        if hello.pool != self.mark {
            return Welcome::Never("its configuration is another one".to_string());
        }
        if hello.birth != 0 && hello.birth != self.birth {
            return Welcome::Never("the pool that it belonged to is no more".to_string());
        }
        let numbers = self.numbers.as_ref();
        let mut numbers =
            numbers.map(|numbers| numbers.lock().unwrap_or_else(PoisonError::into_inner));
        let you = match (hello.dialler, numbers.as_mut()) {
            (Dialler::NewClient, Some(numbers)) => numbers.client(),
            (Dialler::NewServer(index), Some(numbers)) => numbers.server(index),
            (Dialler::Client(client), _) if hello.birth != 0 => Some(Node::Client(client)),
            (Dialler::Server(server), _) if hello.birth != 0 => {
                if !self.may_dial(server) {
                    let why = "only servers that are later in the list dial this one";
                    return Welcome::Never(why.to_string());
                }
                Some(Node::Server(server))
            }
            _ => None,
        };
        match you {
            Some(you) => Welcome::In {
                birth: self.birth,
                you,
                me: self.me,
            },
            None => Welcome::Never("only the first server gives numbers".to_string()),
        }
    }

    /// Lets somebody in or not; says who it is, if this connection is to be kept.
    fn greet(&self, socket: TcpStream) -> std::io::Result<Option<(Stream, Node)>> {
        let mut stream = link::accept(socket, &self.security)?;
        let hello: Hello = link::hear(&mut stream)?;
        let welcome = self.admit(hello);
        link::say(&mut stream, &welcome)?;
        Ok(match (welcome, hello.dialler) {
            (Welcome::In { you, .. }, Dialler::Client(_) | Dialler::Server(_)) => {
                Some((stream, you))
            }
            _ => None,
        })
    }
}

fn listen(listener: &TcpListener, door: &Arc<Door>, is_over: &AtomicBool) {
    let greetings = Arc::new(Greetings::default());
    for (number, stream) in (0..).zip(listener.incoming()) {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        // Whoever could not be met tries again.
        let met = stream.and_then(|stream| {
            greetings.begin(number, stream.try_clone()?);
            let (door, own) = (Arc::clone(door), Arc::clone(&greetings));
            thread::Builder::new().spawn(move || {
                let greeted = door.greet(stream);
                own.end(number);
                if let Ok(Some((stream, you))) = greeted {
                    link::carry(stream, you, &door.process);
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
