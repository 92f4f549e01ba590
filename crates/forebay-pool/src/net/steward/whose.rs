//! Whose the state is that etcd has, and whether a server that begins to rule goes on with it.

use std::time::Duration;

use super::{Fault, State, Steward};
use crate::ids::Server;
use crate::list::List;

impl Steward {
    /// How long a server without a number leaves it to others to rule: those who have blocks go first.
    pub(super) fn reserve(&mut self) -> Result<Duration, Fault> {
        let term = Duration::from_millis(self.config.term_ms);
        let Some(state) = self.state()? else {
            return Ok(Duration::ZERO);
        };
        let has_survivors = self.has_survivors_of_ours(&state)?;
        // A server that has ended is there for as long.
        let lasts = { self.lease.as_ref() }.map_or(Duration::ZERO, |lease| lease.lasts);
        Ok(match (has_survivors, state.has_home) {
            (true, _) => term.max(lasts + Duration::from_secs(1)),
            (false, true) => Duration::ZERO,
            // Then everything is lost, so it had better be true.
            (false, false) => term * 2,
        })
    }

    /// Whether a new ruler goes on with a state; else the pool begins anew, by this list.
    ///
    /// # Errors
    /// It is another pool's, which has something to lose.
    pub(super) fn is_kept(&mut self, state: &State, own: &List) -> Result<bool, Fault> {
        let has_survivors = self.has_survivors_of_ours(state)?;
        let register = &state.register;
        let outlives_all = if register.has_begun() {
            state.has_home
        } else {
            // Else it is to begin with other servers.
            register.list == *own
        };
        Ok(has_survivors || outlives_all && self.is_ours(state))
    }

    /// Whether a state is of the pool that this configuration means.
    pub(super) fn is_ours(&self, state: &State) -> bool {
        state.pool == self.pool && state.register.list.has_any(&self.config.servers)
    }

    pub(super) fn other_pools(&self, name: &str) -> Fault {
        let key = self.key(name);
        Fault::foreign(&format!(
            "{key} is another pool's, or its configuration is another one: each pool has a prefix of its own, and all its members the same file, or one that names a server of the pool's besides; when no server of it runs, and nobody wants it any more, `etcdctl del --prefix {}/` removes it",
            self.prefix
        ))
    }

    /// Whether a server of a state lives that would miss it.
    ///
    /// # Errors
    /// The state is another pool's. One of which nobody lives, and that has begun, may have blocks in a home.
    fn has_survivors_of_ours(&mut self, state: &State) -> Result<bool, Fault> {
        let has_survivors = self.has_survivors(state)?;
        let has_blocks = state.register.has_begun() && state.has_home;
        if (has_survivors || has_blocks) && !self.is_ours(state) {
            return Err(self.other_pools("state"));
        }
        Ok(has_survivors)
    }

    /// Whether a server lives that may have blocks; before the pool has begun, whether one lives at all: all of them wait for that.
    fn has_survivors(&mut self, state: &State) -> Result<bool, Fault> {
        let key = self.key("servers/");
        let alive = self.asker.below(&key)?;
        let mut alive = alive.iter().filter_map(|name| name.parse().ok());
        let register = &state.register;
        Ok(alive.any(|server| {
            !register.has_begun() || register.servers().any(|known| known == Server(server))
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::{Arc, Mutex};

    use super::super::tests::{Etcd, etcd};
    use super::super::{Member, VERSION};
    use super::*;
    use crate::ids::{Epoch, Node};
    use crate::message::{Outbox, alive};
    use crate::net::door::Door;
    use crate::net::security::Security;
    use crate::net::tests::alone;
    use crate::net::{Config, Ended};
    use crate::register::Register;

    #[test]
    fn a_state_is_another_pools_if_no_address_or_another_configuration_is_there() {
        let text = r#"
            servers = ["127.0.0.1:7411", "127.0.0.1:7414"]
            [etcd]
            endpoints = ["http://127.0.0.1:1"]
            prefix = "/forebay/ours"
        "#;
        let config = Config::parse(text).unwrap();
        let etcd = config.etcd.as_ref().unwrap();
        let steward = Steward::new(etcd, &config, 1, 1).unwrap();
        let is_ours = |pool, ports: &[u16]| {
            let all = ports.iter().map(|port| ([127, 0, 0, 1], *port).into());
            let list = List::of(&all.collect::<Vec<_>>());
            steward.is_ours(&State {
                version: VERSION,
                pool,
                birth: 1,
                life: 1,
                has_home: false,
                after: None,
                register: Register::new(2000, 1).of_list(list).saved(),
            })
        };
        assert!(is_ours(config.mark(), &[7412, 7411, 7413]));
        assert!(!is_ours(config.mark(), &[7412, 7413]));
        assert!(!is_ours(config.mark() + 1, &[7411, 7414]));
        let other = Config {
            servers: vec![config.servers[0]],
            ..config.clone()
        };
        assert_eq!(other.mark(), config.mark());
    }

    /// Stewards of one etcd, of servers at these ports of this host.
    struct Stewards {
        endpoint: String,
        home: Option<tempfile::TempDir>,
        _data: tempfile::TempDir,
        _etcd: Etcd,
    }

    impl Stewards {
        fn begin(home: Option<tempfile::TempDir>) -> Option<Stewards> {
            let data = tempfile::tempdir().unwrap();
            let (etcd, address) = etcd(data.path())?;
            let until = std::time::Instant::now() + Duration::from_secs(60);
            while std::net::TcpStream::connect(address).is_err() {
                assert!(std::time::Instant::now() < until, "etcd does not listen");
                std::thread::sleep(Duration::from_millis(20));
            }
            Some(Stewards {
                endpoint: format!("http://{address}"),
                home,
                _data: data,
                _etcd: etcd,
            })
        }

        /// Of the last of these.
        fn steward(&self, ports: &[u16]) -> Steward {
            self.steward_with(ports, true)
        }

        /// The same; its file says where the home is, or not.
        fn steward_with(&self, ports: &[u16], knows_home: bool) -> Steward {
            let servers: Vec<String> = { ports.iter() }
                .map(|port| format!("127.0.0.1:{port}"))
                .collect();
            let home = self.home.as_ref().filter(|_| knows_home);
            let home = home.map(tempfile::TempDir::path);
            let home = home.map_or(String::new(), |home: &Path| format!("home = {home:?}\n"));
            let text = format!(
                "servers = {servers:?}\nterm_ms = 8000\n{home}\
                 [etcd]\nendpoints = [\"{}\"]\nprefix = \"/pool\"",
                self.endpoint
            );
            let config = Config::parse(&text).unwrap();
            let process = u64::from(ports[ports.len() - 1]);
            let etcd = config.etcd.as_ref().unwrap();
            Steward::new(etcd, &config, ports.len() - 1, process).unwrap()
        }
    }

    /// As a ruler leaves it, of a pool that has begun, or not.
    fn state(steward: &Steward, birth: u64, has_begun: bool) -> State {
        let list = List::of(&steward.config.servers);
        let mut register = Register::new(8000, 1).of_list(list);
        if has_begun {
            let (_, sign) = alive(0, (Epoch(0), false), Epoch(0), false, (false, 0));
            register.handle(0, Node::Server(Server(1)), sign, &mut Outbox::new());
            register.tick(1);
        }
        assert_eq!(register.has_begun(), has_begun);
        State {
            version: VERSION,
            pool: steward.pool,
            birth,
            life: 1,
            has_home: steward.config.home.is_some(),
            after: None,
            register: register.saved(),
        }
    }

    /// What etcd did not answer in time is asked for again.
    fn insist<T>(mut what: impl FnMut() -> Result<T, Fault>) -> Result<T, Ended> {
        let until = std::time::Instant::now() + Duration::from_secs(60);
        loop {
            match what() {
                Ok(done) => return Ok(done),
                Err(Fault::Ended(why)) => return Err(why),
                Err(Fault::Etcd(why)) => {
                    assert!(std::time::Instant::now() < until, "{why}");
                    std::thread::sleep(Duration::from_millis(50));
                }
            }
        }
    }

    /// Rules, under a lease of its own, and has this saved.
    fn leave(steward: &mut Steward, number: u32, state: &State) {
        steward.me = Some(Server(number));
        let ruled = insist(|| {
            steward.hold_lease()?;
            steward.say_alive()?;
            steward.campaign()?;
            let super::super::Seen::Me(reign) = steward.look()? else {
                panic!("another one rules");
            };
            steward.state()?;
            steward.save(reign, state)
        });
        assert!(ruled.unwrap());
    }

    #[test]
    fn a_pool_that_has_not_begun_is_kept_as_long_as_somebody_waits_for_it() {
        let Some(stewards) = Stewards::begin(None) else {
            return;
        };
        let mut first = stewards.steward(&[7412, 7411]);
        let unbegun = state(&first, 1, false);
        leave(&mut first, 2, &unbegun);
        let mut other = stewards.steward(&[7411, 7413]);
        let own = List::of(&other.config.servers);
        assert!(insist(|| other.is_kept(&unbegun, &own)).unwrap());
        first.resign();
        assert!(!insist(|| other.is_kept(&unbegun, &own)).unwrap());
        let own = List::of(&first.config.servers);
        assert!(insist(|| first.is_kept(&unbegun, &own)).unwrap());
    }

    #[test]
    fn another_pools_state_is_not_written_over_while_it_has_something_to_lose() {
        let both = [false, true];
        for (has_home, we_have) in both.into_iter().flat_map(|it| both.map(|we| (it, we))) {
            let home = (has_home || we_have).then(|| tempfile::tempdir().unwrap());
            let Some(stewards) = Stewards::begin(home) else {
                return;
            };
            let mut theirs = stewards.steward_with(&[7411], has_home);
            let begun = state(&theirs, 1, true);
            leave(&mut theirs, 1, &begun);
            let mut ours = stewards.steward_with(&[7413], we_have);
            for lives in [true, false] {
                if !lives {
                    theirs.resign();
                }
                let own = List::of(&ours.config.servers);
                let kept = insist(|| ours.is_kept(&begun, &own));
                match kept {
                    Ok(is_kept) => assert!(!is_kept && !lives && !has_home),
                    Err(why) => {
                        assert!(lives || has_home);
                        assert!(why.to_string().contains("etcdctl del --prefix /pool/"));
                    }
                }
            }
            let entered = insist(|| ours.try_to_enter(5));
            assert_eq!(entered.is_err(), has_home);
            let saved = insist(|| ours.state()).unwrap();
            assert_eq!(saved.as_ref(), Some(&begun));
        }
    }

    #[test]
    fn a_member_of_another_life_than_the_rulers_ends() {
        let Some(stewards) = Stewards::begin(None) else {
            return;
        };
        let mut ruler = stewards.steward(&[7411]);
        let begun = state(&ruler, 2, true);
        leave(&mut ruler, 1, &begun);
        let mut steward = stewards.steward(&[7411, 7412]);
        let member = |birth| Member {
            me: Server(2),
            birth,
            process: Arc::new(Mutex::new(alone().0)),
            door: Arc::new(Door::new(&steward.config, Security::None)),
        };
        let [own, others] = [2, 1].map(member);
        assert!(insist(|| steward.step(&own)).is_ok());
        // It has met that ruler, in another life.
        steward.followed = 0;
        let ended = insist(|| steward.step(&others));
        let why = ended.unwrap_err().to_string();
        assert!(why.contains("is no more"), "{why}");
    }
}
