//! A server's process: it listens, lets members in, and dials the servers before it in the list.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::door::{Door, Inside, listen};
use super::link::{self, Dialled, Dialler, Hello, LONG_PAUSE, PAUSE};
use super::numbers::Numbers;
use super::process::{Event, Machine, Process, locked};
use super::security::Security;
use super::status::Status;
use super::steward::{Entry, Member, Steward};
use super::{Config, Ended, MEMORY_MIB, random};
use crate::home::{Directory, Owner, Taken, first_epoch};
use crate::ids::{Node, Server as Id};
use crate::list::List;
use crate::message::Addresses;
use crate::register::Register;
use crate::ruler::Ruler;
use crate::server::{self, Server};

/// Where a server's process is told what does not come by its connections. Each of its lives has its own: what an earlier one's threads say concerns nobody.
type Inbox = Arc<Mutex<Sender<Event>>>;

/// A server that runs.
pub struct Serving {
    inbox: Inbox,
    is_over: Arc<AtomicBool>,
    status: Arc<Mutex<Status>>,
    thread: JoinHandle<Result<(), Ended>>,
}

impl Serving {
    /// Begins to serve at this address of the configuration, the first being 0. It is in the pool when all servers of the list have begun, or soon
    /// if the pool has begun without it.
    pub fn begin(config: &Config, index: usize) -> Result<Serving, Ended> {
        let address = config.servers.get(index).copied();
        let address = address.ok_or(Ended::NoSuchServer(index))?;
        let listener = TcpListener::bind(address).map_err(|why| Ended::Listen(address, why))?;
        Serving::begin_at(listener, config, index)
    }

    /// The same where others reach this one by its address.
    pub(super) fn begin_at(
        listener: TcpListener,
        config: &Config,
        index: usize,
    ) -> Result<Serving, Ended> {
        let own = listener.local_addr();
        let (inbox, events) = mpsc::channel();
        let inbox = Arc::new(Mutex::new(inbox));
        let is_over = Arc::new(AtomicBool::new(false));
        let status = Arc::default();
        let life = Life {
            security: Security::of_server(config, index)?,
            config: config.clone(),
            index,
            inbox: Arc::clone(&inbox),
            is_over: Arc::clone(&is_over),
            status: Arc::clone(&status),
            secret: random()?,
            birth: random()?.max(1),
            taken: OnceLock::new(),
        };
        let thread = thread::spawn(move || {
            let result = life.serve(listener, events);
            life.is_over.store(true, Ordering::Relaxed);
            // The listener's thread waits for somebody to come.
            let _ = own.and_then(TcpStream::connect);
            result
        });
        Ok(Serving {
            inbox,
            is_over,
            status,
            thread,
        })
    }

    /// Hands on what it has, and goes. A second call does not wait for that. Without etcd the first server takes the pool with it.
    pub fn stop(&self) {
        // It may have ended already.
        let _ = locked(&self.inbox).send(Event::Stop);
    }

    /// How it is.
    pub fn status(&self) -> Status {
        locked(&self.status).clone()
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
    inbox: Inbox,
    is_over: Arc<AtomicBool>,
    status: Arc<Mutex<Status>>,
    secret: u64,
    birth: u64,
    /// The home, if this is the first server: no other pool has it meanwhile.
    taken: OnceLock<Taken>,
}

/// How a server stands in the pool when it begins.
struct Standing {
    me: Id,
    birth: u64,
    /// If it rules.
    ruler: Option<Ruler>,
    reign: u64,
    keeper: Option<Node>,
    numbers: Option<Numbers>,
    /// The servers of the pool's list.
    servers: Addresses,
}

/// How a life by one number has ended.
struct Lived {
    result: Result<(), Ended>,
    /// The register had told it that it is a member.
    was_member: bool,
}

impl Life {
    fn serve(&self, listener: TcpListener, mut events: Receiver<Event>) -> Result<(), Ended> {
        let door = Arc::new(Door::new(&self.config, self.security.clone()));
        let listens = {
            let (door, is_over) = (Arc::clone(&door), Arc::clone(&self.is_over));
            move || listen(&listener, &door, &is_over)
        };
        let Some(etcd) = &self.config.etcd else {
            let Some(standing) = self.begin(&events)? else {
                return Ok(());
            };
            thread::spawn(listens);
            return self.live(standing, None, &door, &events).result;
        };
        // Others may ask it before it has a number, and are told that it cannot say yet.
        thread::spawn(listens);
        loop {
            // Each life has a name of its own in etcd: what an earlier one has left there is somebody else's.
            let mut steward = Steward::new(etcd, &self.config, self.index, random()?)?;
            let Some(standing) = self.enter(&mut steward, &events)? else {
                return Ok(());
            };
            let lived = self.live(standing, Some(steward), &door, &events);
            match lived.result {
                // Who gave it a number died before the next one knew of it.
                Err(Ended::GivenUp) if !lived.was_member => {
                    door.close();
                    *locked(&self.status) = Status::default();
                }
                result => return result,
            }
            match self.another_inbox(&events) {
                Some(another) => events = another,
                None => return Ok(()),
            }
        }
    }

    /// An inbox for another life; `None` if it is to stop.
    fn another_inbox(&self, events: &Receiver<Event>) -> Option<Receiver<Event>> {
        let (inbox, another) = mpsc::channel();
        let mut current = locked(&self.inbox);
        *current = inbox;
        let is_to_stop = events.try_iter().any(|event| matches!(event, Event::Stop));
        (!is_to_stop).then_some(another)
    }

    /// A server's life by one number.
    fn live(
        &self,
        standing: Standing,
        steward: Option<Steward>,
        door: &Arc<Door>,
        events: &Receiver<Event>,
    ) -> Lived {
        let (me, reign) = (standing.me, standing.reign);
        let is_in = Arc::new(AtomicBool::new(false));
        let server = match self.server(me, standing.birth) {
            Ok(server) => server,
            Err(why) => {
                if let Some(mut steward) = steward {
                    // Another one may see the home.
                    steward.resign();
                }
                let (result, was_member) = (Err(why), false);
                return Lived { result, was_member };
            }
        };
        let machine = Machine::Server(Box::new(server));
        let keeper = standing.keeper.unwrap_or(Node::Register);
        let term = self.config.term_ms;
        let mut process = Process::new((Node::Server(me), machine), None, keeper, is_in, term);
        process = process.with_status(Arc::clone(&self.status));
        let (saver, saves) = mpsc::channel();
        if steward.is_some() {
            process = process.with_saver(saver);
        }
        process.learn(standing.servers);
        if let Some(ruler) = standing.ruler {
            process.rule(ruler, reign);
        }
        let process = Arc::new(Mutex::new(process));
        door.give(standing.numbers);
        door.comes_after(steward.as_ref().and_then(Steward::after));
        door.open(Inside {
            birth: standing.birth,
            me,
            process: Arc::clone(&process),
        });
        let is_done = Arc::new(AtomicBool::new(false));
        let inbox = locked(&self.inbox).clone();
        let told = (Arc::clone(&process), inbox.clone());
        let dial = self.dialling((me, standing.birth), told, &is_done);
        let steward = steward.map(|steward| {
            let member = Member {
                me,
                birth: standing.birth,
                process: Arc::clone(&process),
                door: Arc::clone(door),
            };
            let own = Arc::clone(&is_done);
            thread::spawn(move || {
                if let Err(why) = steward.run(&member, &saves, &own) {
                    // The process may have ended already.
                    let _ = inbox.send(Event::Refused(why));
                }
            })
        });
        let result = Process::run(&process, events, &dial);
        is_done.store(true, Ordering::Relaxed);
        if let Some(steward) = steward {
            // It gives up its lease, so that another one rules at once. It has not panicked, or there is nothing to give up.
            let _ = steward.join();
        }
        let was_member = locked(&process).has_been_member();
        Lived { result, was_member }
    }

    fn owner(&self, birth: u64) -> Owner {
        let block_bytes = self.config.block_bytes;
        Owner { block_bytes, birth }
    }

    fn server(&self, me: Id, birth: u64) -> Result<Server, Ended> {
        let term = self.config.term_ms;
        let config = server::Config {
            copies: self.config.copies,
            alive_every: self.config.alive_every(),
            // Clocks may differ by one in a hundred.
            term: term * 9 / 10,
            patience: term * 2,
            secret: self.secret,
        };
        let mut server = Server::new(me, config);
        Ok(match &self.config.home {
            Some(home) => {
                let home = Directory::open(home, self.owner(birth), me.0).map_err(Ended::Home)?;
                let mib = self.config.memory_mib.unwrap_or(MEMORY_MIB);
                let server = server.with_home(Arc::new(home), mib << 20);
                let inbox = locked(&self.inbox).clone();
                server.with_threads(move || {
                    // It may have ended already.
                    let _ = inbox.send(Event::Synced);
                })
            }
            None => {
                let bytes = self.config.memory_mib.map(|mib| mib << 20);
                server.set_room(bytes.unwrap_or(u64::MAX));
                server
            }
        })
    }

    /// Dials a server if it is before this one in the pool's list, until this life is done.
    fn dialling(
        &self,
        (me, birth): (Id, u64),
        told: (Arc<Mutex<Process>>, Sender<Event>),
        is_done: &Arc<AtomicBool>,
    ) -> impl Fn(u8, SocketAddr) {
        let hello = Hello {
            pool: self.config.mark(),
            birth,
            dialler: Dialler::Server(me, self.address()),
        };
        let config = self.config.clone();
        move |place, to| {
            if Some(place) < me.place() && config.may_be_dialled(to) {
                let security = self.security.clone();
                keep_dialling((place, to, security), hello, told.clone(), is_done);
            }
        }
    }

    /// Its own.
    fn address(&self) -> SocketAddr {
        self.config.servers[self.index]
    }

    /// The first server begins the pool's life; which one, only the home knows.
    fn begin_life(&self) -> Result<Option<u64>, Ended> {
        match &self.config.home {
            Some(home) => {
                let owner = self.owner(self.birth);
                let taken = Directory::take(home, owner.block_bytes).map_err(Ended::Home)?;
                self.taken.get_or_init(|| taken);
                let life = Directory::begin_life(home, owner);
                life.map(Some).map_err(Ended::Home)
            }
            None => Ok(None),
        }
    }

    /// How it stands in a pool whose first server rules; `None` if it is to stop.
    fn begin(&self, events: &Receiver<Event>) -> Result<Option<Standing>, Ended> {
        if self.index == 0 {
            let life = self.begin_life()?;
            let list = List::of(&self.config.servers);
            let register = Register::new(self.config.term_ms, list.count()).of_list(list);
            let register = register.of_home(self.config.home.is_some());
            let register = register.after(first_epoch(life.unwrap_or(0)));
            return Ok(Some(Standing {
                me: Id(1),
                birth: self.birth,
                ruler: Some(Ruler::for_ever(register)),
                reign: 0,
                keeper: None,
                numbers: Some(Numbers::of_first(&self.config, self.birth, life)),
                servers: Addresses::new(),
            }));
        }
        let hello = self.new_server();
        let goes_on = || events.try_recv().is_err();
        let first = self.config.servers[0];
        let met = link::dial_until(self.door_of(first, &hello), &goes_on);
        met.map(follower).transpose()
    }

    fn new_server(&self) -> Hello {
        Hello {
            pool: self.config.mark(),
            birth: 0,
            dialler: Dialler::NewServer(self.address()),
        }
    }

    fn door_of<'a>(&'a self, to: SocketAddr, hello: &'a Hello) -> Dialled<'a> {
        Dialled {
            to,
            security: &self.security,
            hello,
        }
    }

    /// The same where the ruler is elected: this server rules itself, or who rules gives it a number.
    fn enter(
        &self,
        steward: &mut Steward,
        events: &Receiver<Event>,
    ) -> Result<Option<Standing>, Ended> {
        let hello = self.new_server();
        while events.try_recv().is_err() {
            let found = steward.enter(self.birth)?;
            self.tell_trouble(steward);
            match found {
                Entry::Rules(entered) => {
                    let (me, birth, reign) = (entered.me, entered.birth, entered.reign);
                    return Ok(Some(Standing {
                        me,
                        birth,
                        ruler: Some(entered.ruler),
                        reign,
                        keeper: None,
                        numbers: Some(entered.numbers),
                        servers: Addresses::new(),
                    }));
                }
                // Its own may be there still, of an earlier process.
                Entry::Ask(ruler) if ruler != self.address() => {
                    if let Ok(met) = link::dial_once(self.door_of(ruler, &hello)) {
                        return follower(met).map(Some);
                    }
                }
                Entry::Ask(_) | Entry::Wait => {}
            }
            thread::sleep(PAUSE);
        }
        steward.resign();
        Ok(None)
    }

    fn tell_trouble(&self, steward: &Steward) {
        let mut status = locked(&self.status);
        status.etcd_trouble = steward.trouble().map(str::to_string);
    }
}

/// A server that another one has given its number.
fn follower(met: link::Met) -> Result<Standing, Ended> {
    let host = met.map_err(|refusal| Ended::Refused(refusal.why))?;
    let Node::Server(me) = host.you else {
        return Err(Ended::Refused("it is not taken for a server".into()));
    };
    Ok(Standing {
        me,
        birth: host.birth,
        ruler: None,
        reign: 0,
        keeper: Some(Node::Server(host.me)),
        numbers: None,
        servers: host.servers,
    })
}

/// Dials the server at this place again and again, until nobody listens any more. Who is there may be anybody: a stranger at the address
/// of one that has died, or a server that has been told something else. So a member is refused for good only by a process that keeps the
/// register, or is said to, and only since that is in another life of the pool.
pub(super) fn keep_dialling(
    (place, to, security): (u8, SocketAddr, Security),
    hello: Hello,
    (process, inbox): (Arc<Mutex<Process>>, Sender<Event>),
    is_over: &Arc<AtomicBool>,
) {
    let is_over = Arc::clone(is_over);
    thread::spawn(move || {
        while !is_over.load(Ordering::Relaxed) {
            let met = link::dial_once(Dialled {
                to,
                security: &security,
                hello: &hello,
            });
            let listens = match met {
                Ok(Ok(host)) => {
                    locked(&process).refused(place, None);
                    let peer = (Node::Server(host.me), link::next_generation());
                    link::carry(host.stream, peer, &process)
                }
                Ok(Err(refusal)) => {
                    let keeper = locked(&process).keeper_place();
                    let is_final = refusal.is_final(keeper == Some(place));
                    if is_final {
                        // It ends by this, or has ended.
                        let _ = inbox.send(Event::Refused(refusal.why));
                    } else {
                        let number = usize::from(place) + 1;
                        let why = format!(
                            "server {number}, at {to}, does not let it in: {}",
                            refusal.why
                        );
                        locked(&process).refused(place, Some(why));
                        thread::sleep(LONG_PAUSE);
                    }
                    !is_final
                }
                Err(_) => {
                    wait_for(place, &process);
                    true
                }
            };
            if !listens {
                return;
            }
        }
    });
}

/// Until a server that could not be reached is dialled again: where nobody is, that is seldom, as long as nobody is said to have come.
fn wait_for(place: u8, process: &Mutex<Process>) {
    let mut left = LONG_PAUSE;
    while !left.is_zero() {
        let pause = left.min(PAUSE);
        thread::sleep(pause);
        let is_empty = locked(process).is_empty(place);
        left = if is_empty {
            left - pause
        } else {
            Duration::ZERO
        };
    }
}
