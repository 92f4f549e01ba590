//! A server's dealings with etcd: it holds a lease there, looks who rules, and rules itself if nobody does.
//!
//! ```text
//! PREFIX/ruler      who rules: under the ruler's lease, so that it goes when he is gone
//! PREFIX/state      what the next ruler must know
//! PREFIX/servers/N  that server N lives, under its lease
//! ```
//!
//! Decision 0058 says why it is done so.

mod lives;
mod member;
mod whose;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::clock::Moment;
use super::door::Door;
use super::etcd::{Asker, Etcd};
use super::numbers::{Given, Numbers};
use super::process::Process;
use super::{Config, Ended};
use crate::home::{Taken, first_epoch};
use crate::ids::{Node, Server};
use crate::list::List;
use crate::register::{Register, Saved};
use crate::ruler::Ruler;

/// Who rules, as etcd has it. It is text, so that people can read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Ruling {
    /// The mark of his configuration.
    pool: u64,
    /// Where he listens.
    address: SocketAddr,
    /// His number; 0 while he has none.
    server: u32,
    /// Drawn by chance: a process knows its own.
    process: u64,
}

/// What a ruler leaves to the next one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    /// The form of what follows.
    version: u8,
    /// The mark of the configuration.
    pool: u64,
    /// The mark of the pool's life, for its members.
    birth: u64,
    /// The last life that numbers were taken from.
    life: u64,
    /// The pool has a home, whatever the file of whoever looks at this says.
    has_home: bool,
    /// The mark of the life that this one came after, if there was one here: its members are told that it is no more.
    after: Option<u64>,
    register: Saved,
}

const VERSION: u8 = 3;

struct Lease {
    number: u64,
    lasts: Duration,
    /// By this host's clock it is not over before.
    until: Moment,
    renewed: Moment,
}

/// This server as a member.
pub(super) struct Member {
    pub me: Server,
    pub birth: u64,
    pub process: Arc<Mutex<Process>>,
    pub door: Arc<Door>,
}

/// A server that begins by ruling.
pub(super) struct Entered {
    pub me: Server,
    pub birth: u64,
    pub ruler: Ruler,
    pub reign: u64,
    pub numbers: Numbers,
}

/// How a server that has no number comes in.
pub(super) enum Entry {
    Rules(Box<Entered>),
    /// Who listens there gives it a number.
    Ask(SocketAddr),
    Wait,
}

/// Who rules.
enum Seen {
    Nobody,
    /// This process, in this reign.
    Me(u64),
    Other(Ruling, u64),
}

/// A reign of this process.
struct Reign {
    number: u64,
    state: State,
    /// The home, where its file system has locks: no other pool has it meanwhile.
    _home: Option<Taken>,
}

/// What it does for a server.
pub(super) struct Steward {
    asker: Asker,
    prefix: String,
    config: Config,
    pool: u64,
    address: SocketAddr,
    process: u64,
    /// Of the lease that is asked for.
    seconds: u64,
    lease: Option<Lease>,
    reign: Option<Reign>,
    /// A life that was taken for a reign, and is not saved yet.
    next_life: Option<lives::NextLife>,
    me: Option<Server>,
    /// The last reign of another server that goes on with this member's pool.
    followed: u64,
    /// In which revision the state was changed last, as far as this process knows.
    state_changed: u64,
    /// States that were sent to etcd since it has taken one: it may take them later.
    sent: Vec<Vec<u8>>,
    /// Since when nobody has ruled, while this server had no number.
    alone_since: Option<Moment>,
    trouble: Option<String>,
}

/// How often it is looked who rules: so many times in a lease, and within these bounds.
const LOOKS: u32 = 10;
const LOOK: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));

impl Steward {
    pub fn new(etcd: &Etcd, config: &Config, index: usize, process: u64) -> Result<Steward, Ended> {
        // Less than a term, so that another one rules before the terms of clients end.
        let seconds = (config.term_ms / 2000).max(1);
        let patience = Duration::from_millis((config.term_ms / 8).clamp(250, 5000));
        Ok(Steward {
            asker: Asker::new(etcd, patience)?,
            prefix: etcd.prefix.clone(),
            config: config.clone(),
            pool: config.mark(),
            address: config.servers[index],
            process,
            seconds,
            lease: None,
            reign: None,
            next_life: None,
            me: None,
            followed: 0,
            state_changed: 0,
            sent: Vec::new(),
            alone_since: None,
            trouble: None,
        })
    }

    /// What etcd fails by.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// The mark of the life before the one that this server rules.
    pub fn after(&self) -> Option<u64> {
        self.reign.as_ref()?.state.after
    }

    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }

    fn pause(&self) -> Duration {
        let lasts = { self.lease.as_ref() }.map_or(Duration::from_secs(1), |lease| lease.lasts);
        (lasts / LOOKS).clamp(LOOK.0, LOOK.1)
    }

    /// Comes nearer to a number for a server that has none. `birth` is the mark of the pool's life, should this server begin it.
    pub fn enter(&mut self, birth: u64) -> Result<Entry, Ended> {
        match self.try_to_enter(birth) {
            Ok(entry) => {
                self.trouble = None;
                Ok(entry)
            }
            Err(Fault::Etcd(why)) => {
                self.trouble = Some(why.to_string());
                // Whoever has blocks could not say so meanwhile.
                self.alone_since = None;
                Ok(Entry::Wait)
            }
            Err(Fault::Ended(why)) => {
                self.resign();
                Err(why)
            }
        }
    }

    fn try_to_enter(&mut self, birth: u64) -> Result<Entry, Fault> {
        self.hold_lease()?;
        let reign = match self.look()? {
            Seen::Other(ruling, _) => {
                self.alone_since = None;
                // Who has just begun to rule has not saved yet whose state that is.
                if ruling.server == 0 {
                    return Ok(Entry::Wait);
                }
                if !self.config.servers.contains(&ruling.address)
                    && let Some(state) = self.state()?
                    && !self.is_ours(&state)
                {
                    return Err(self.other_pools("ruler"));
                }
                return Ok(Entry::Ask(ruling.address));
            }
            Seen::Me(reign) => reign,
            Seen::Nobody => {
                let since = *self.alone_since.get_or_insert_with(Moment::now);
                if since.elapsed() < self.reserve()? {
                    return Ok(Entry::Wait);
                }
                // A number that was to be had in an earlier try says that a state is saved.
                self.me = None;
                match self.campaign()? {
                    Some(reign) => reign,
                    None => return Ok(Entry::Wait),
                }
            }
        };
        let entered = self.begin_as_ruler(reign, birth)?;
        Ok(entered.map_or(Entry::Wait, |entered| Entry::Rules(Box::new(entered))))
    }

    /// Holds a lease, and renews it in time. Says whether it is the same as before.
    fn hold_lease(&mut self) -> io::Result<bool> {
        let asked = Moment::now();
        // Clocks may differ by one in a hundred.
        let until = |lasts: Duration| asked + lasts * 9 / 10;
        if let Some(lease) = &mut self.lease {
            if asked.since(lease.renewed) < lease.lasts / 5 {
                return Ok(true);
            }
            if let Some(lasts) = self.asker.renew(lease.number)? {
                lease.until = until(lasts);
                lease.renewed = asked;
                return Ok(true);
            }
            self.lease = None;
        }
        let (number, lasts) = self.asker.grant(self.seconds)?;
        self.lease = Some(Lease {
            number,
            lasts,
            until: until(lasts),
            renewed: asked,
        });
        self.say_alive()?;
        Ok(false)
    }

    /// Says under the lease that this server lives, once it has a number.
    fn say_alive(&mut self) -> io::Result<()> {
        if let (Some(me), Some(lease)) = (self.me, &self.lease) {
            let key = format!("{}/servers/{}", self.prefix, me.0);
            let address = self.address.to_string();
            self.asker.put(&key, address.as_bytes(), lease.number)?;
        }
        Ok(())
    }

    fn other_versions(&self, what: &str) -> Fault {
        Fault::foreign(&format!(
            "{what}; when no server runs, `etcdctl del --prefix {}/` removes it",
            self.prefix
        ))
    }

    fn look(&mut self) -> Result<Seen, Fault> {
        let key = self.key("ruler");
        let Some(found) = self.asker.get(&key)? else {
            return Ok(Seen::Nobody);
        };
        let ruling: Ruling = serde_json::from_slice(&found.value).map_err(|why| {
            self.other_versions(&format!(
                "{key} is of another version, or no ruler of a pool: {why}"
            ))
        })?;
        if ruling.pool != self.pool {
            return Err(self.other_pools("ruler"));
        }
        Ok(if ruling.process == self.process {
            Seen::Me(found.made)
        } else {
            Seen::Other(ruling, found.made)
        })
    }

    fn ruling(&self, me: Option<Server>) -> Vec<u8> {
        let ruling = Ruling {
            pool: self.pool,
            address: self.address,
            server: me.map_or(0, |me| me.0),
            process: self.process,
        };
        serde_json::to_vec(&ruling).unwrap_or_default()
    }

    /// Makes the ruler's key, if nobody has it, and says in which revision.
    fn campaign(&mut self) -> Result<Option<u64>, Fault> {
        let (key, value) = (self.key("ruler"), self.ruling(self.me));
        let lease = self.lease_number();
        Ok(self.asker.make(&key, &value, lease)?)
    }

    fn lease_number(&self) -> u64 {
        self.lease.as_ref().map_or(0, |lease| lease.number)
    }

    fn state(&mut self) -> Result<Option<State>, Fault> {
        let key = self.key("state");
        let found = self.asker.get(&key)?;
        self.state_changed = found.as_ref().map_or(0, |found| found.changed);
        let Some(found) = found else {
            return Ok(None);
        };
        let state: Result<State, _> = postcard::from_bytes(&found.value);
        match state {
            Ok(state) if state.version == VERSION => Ok(Some(state)),
            _ => Err(self.other_versions(&format!("{key} is of another version"))),
        }
    }

    /// Saves a state, if this process still rules, over what it knows to be saved: etcd may take what it did not answer in time whenever it likes, also
    /// after newer states.
    fn save(&mut self, reign: u64, state: &State) -> Result<bool, Fault> {
        let (ruler, key) = (self.key("ruler"), self.key("state"));
        let bytes = postcard::to_stdvec(state).map_err(io::Error::other)?;
        if !self.sent.contains(&bytes) {
            self.sent.push(bytes.clone());
        }
        loop {
            let last = (&*key, self.state_changed);
            if let Some(changed) = self.asker.put_after((&ruler, reign), last, &bytes)? {
                // What was sent before was to come over an older one, and never will.
                self.state_changed = changed;
                self.sent.clear();
                return Ok(true);
            }
            match self.asker.get(&key)? {
                Some(found)
                    if found.changed != self.state_changed && self.sent.contains(&found.value) =>
                {
                    self.state_changed = found.changed;
                }
                _ => return Ok(false),
            }
        }
    }

    /// Begins to rule as a server without a number: it goes on with the pool, or begins one. `None`: it does not rule after all.
    fn begin_as_ruler(&mut self, reign: u64, birth: u64) -> Result<Option<Entered>, Fault> {
        let own = List::of(&self.config.servers);
        let before = self.state()?;
        let known = before.as_ref().map_or(0, |state| state.life);
        let given_up = before.as_ref().map(|state| state.birth);
        let kept = match before {
            Some(state) if self.is_kept(&state, &own)? => Some(state),
            _ => None,
        };
        let is_new = kept.is_none();
        let after = given_up.filter(|_| is_new);
        let birth = kept.as_ref().map_or(birth, |state| state.birth);
        let (life, home) = self.take_life((reign, birth), known, is_new)?;
        let mut state = kept.unwrap_or_else(|| {
            let register = Register::new(self.config.term_ms, own.count()).of_list(own);
            State {
                version: VERSION,
                pool: self.pool,
                birth,
                life,
                has_home: self.config.home.is_some(),
                after,
                register: register.after(first_epoch(life)).saved(),
            }
        });
        state.life = life;
        // Nobody may have told the pool of it yet.
        let Some(place) = state.register.list.take_in(self.address) else {
            return Err(Fault::foreign(
                "the pool's list has room for no more servers",
            ));
        };
        let mut numbers = Numbers::of_ruler(life);
        let Given::Number(Node::Server(me)) = numbers.server(place) else {
            return Err(Fault::foreign("there are no numbers left"));
        };
        if !self.save(reign, &state)? {
            return Ok(None);
        }
        self.settle_life();
        self.me = Some(me);
        self.say_alive()?;
        // Others follow by the number.
        let (ruling, lease) = (self.ruling(Some(me)), self.lease_number());
        let key = self.key("ruler");
        if !self.asker.put_if((&key, reign), &key, &ruling, lease)? {
            return Ok(None);
        }
        let ruler = self.ruler(&state, 0);
        self.reign = Some(Reign {
            number: reign,
            state,
            _home: home,
        });
        Ok(Some(Entered {
            me,
            birth,
            ruler,
            reign,
            numbers,
        }))
    }

    /// Whoever rules from now on, with what has been saved. He answers nobody before he is told how long his lease lasts.
    fn ruler(&self, state: &State, now: u64) -> Ruler {
        let floor = Numbers::floor(state.life);
        let register = Register::new(self.config.term_ms, state.register.list.count());
        let register = register.of_home(self.config.home.is_some());
        Ruler::under_lease(register.resume(now, state.register.clone(), floor), 0)
    }

    /// Gives up its lease, and with it what it is in etcd.
    pub fn resign(&mut self) {
        self.reign = None;
        if let Some(lease) = self.lease.take() {
            // Else it ends by itself.
            let _ = self.asker.revoke(lease.number);
        }
    }
}

/// Why something was not done.
enum Fault {
    /// Etcd does not answer, or not as it should.
    Etcd(io::Error),
    /// It will never be done.
    Ended(Ended),
}

impl Fault {
    fn foreign(why: &str) -> Fault {
        Fault::Ended(Ended::Etcd(why.to_string()))
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        Fault::Etcd(error)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::{self, Receiver};

    use super::*;

    /// An etcd that does not outlive its test.
    pub struct Etcd(std::process::Child);

    impl Drop for Etcd {
        fn drop(&mut self) {
            // It may have ended already.
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// An etcd, and its address; `None`, and said so, where there is none.
    pub fn etcd(data: &std::path::Path) -> Option<(Etcd, SocketAddr)> {
        let ports = [(), ()].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [clients, peers] = ports.map(|port| port.local_addr().unwrap());
        let [own, others] = [clients, peers].map(|address| format!("http://{address}"));
        let child = std::process::Command::new("etcd")
            .args([
                "--listen-client-urls",
                &own,
                "--advertise-client-urls",
                &own,
            ])
            .args(["--listen-peer-urls", &others])
            .arg("--data-dir")
            .arg(data)
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn();
        match child {
            Ok(child) => Some((Etcd(child), clients)),
            Err(_) => {
                forebay_model::skipped(
                    "etcd is missing (scripts/install-test-deps.sh installs it)",
                );
                None
            }
        }
    }

    /// Stands before etcd, and keeps a request back when it is told to: whoever waits for the answer gives up.
    fn delays(etcd: SocketAddr) -> (SocketAddr, Arc<AtomicBool>, Receiver<Vec<u8>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (keeper, kept) = mpsc::channel();
        let keeps = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&keeps);
        std::thread::spawn(move || {
            for asker in listener.incoming() {
                let mut asker = asker.unwrap();
                let mut request = vec![0; 1 << 16];
                // It is short, and comes at once.
                let length = asker.read(&mut request).unwrap();
                request.truncate(length);
                if told.swap(false, Ordering::Relaxed) {
                    let _ = keeper.send(request);
                    std::thread::spawn(move || asker.read(&mut [0]));
                } else if let Ok(answer) = ask(etcd, &request) {
                    let _ = asker.write_all(&answer);
                }
            }
        });
        (address, keeps, kept)
    }

    fn ask(etcd: SocketAddr, request: &[u8]) -> io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(etcd)?;
        stream.write_all(request)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(answer)
    }

    #[test]
    fn a_save_that_was_given_up_takes_no_later_ones_place() {
        let data = tempfile::tempdir().unwrap();
        let Some((_etcd, etcd)) = etcd(data.path()) else {
            return;
        };
        let (address, keeps, kept) = delays(etcd);
        let text = format!(
            "servers = [\"127.0.0.1:7411\"]\nterm_ms = 8000\n\
             [etcd]\nendpoints = [\"http://{address}\"]\nprefix = \"/forebay/late\""
        );
        let config = Config::parse(&text).unwrap();
        let mut steward = Steward::new(config.etcd.as_ref().unwrap(), &config, 0, 1).unwrap();
        let until = std::time::Instant::now() + Duration::from_secs(60);
        let reign = loop {
            // What it did not answer in time it may have done.
            match steward.campaign().and_then(|_| steward.look()) {
                Ok(Seen::Me(reign)) => break reign,
                Ok(_) => panic!("another one rules"),
                Err(_) => assert!(std::time::Instant::now() < until, "etcd does not answer"),
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        let state = |life| State {
            version: VERSION,
            pool: 1,
            birth: 1,
            life,
            has_home: false,
            after: None,
            register: Register::new(2000, 1).saved(),
        };
        let mut save = |life| steward.save(reign, &state(life));
        assert!(save(1).is_ok_and(|saved| saved));
        // It comes behind the next one, or before it.
        for (life, is_late) in [(2, true), (4, false)] {
            keeps.store(true, Ordering::Relaxed);
            assert!(save(life).is_err());
            let request = kept.recv().unwrap();
            if !is_late {
                ask(etcd, &request).unwrap();
            }
            assert!(save(life + 1).is_ok_and(|saved| saved), "{life}");
            if is_late {
                ask(etcd, &request).unwrap();
            }
        }
        // Nor does it take the place of the last one.
        keeps.store(true, Ordering::Relaxed);
        assert!(save(6).is_err());
        assert!(save(7).is_ok_and(|saved| saved));
        ask(etcd, &kept.recv().unwrap()).unwrap();
        let found = steward.state().ok().flatten();
        assert_eq!(found.map(|state| state.life), Some(7));
    }

    #[test]
    fn nobody_was_alone_while_etcd_was_away() {
        let text = r#"
            servers = ["127.0.0.1:7411"]
            [etcd]
            endpoints = ["http://127.0.0.1:1"]
            prefix = "/forebay/alone"
        "#;
        let config = Config::parse(text).unwrap();
        let etcd = config.etcd.as_ref().unwrap();
        let mut steward = Steward::new(etcd, &config, 0, 1).unwrap();
        steward.alone_since = Some(Moment::now());
        assert!(matches!(steward.enter(1), Ok(Entry::Wait)));
        assert!(steward.trouble().is_some());
        assert_eq!(steward.alone_since, None);
    }
}
