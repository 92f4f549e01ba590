//! What a server that has its number does with etcd, until it ends.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use super::{Fault, LOOK, Member, Reign, Seen, State, Steward};
use crate::ids::{Node, Server};
use crate::net::Ended;
use crate::net::link::OTHER_LIFE;
use crate::net::numbers::Numbers;
use crate::net::process::locked;

impl Steward {
    /// Goes on until the server ends.
    ///
    /// # Errors
    /// Why this server cannot be a member any more.
    pub fn run(
        mut self,
        member: &Member,
        saves: &Receiver<()>,
        is_over: &AtomicBool,
    ) -> Result<(), String> {
        self.me = Some(member.me);
        let mut is_said = false;
        let mut result = Ok(());
        while !is_over.load(Ordering::Relaxed) {
            let stepped = if is_said {
                self.step(member)
            } else {
                let said = self.hold_lease().and_then(|_| self.say_alive());
                is_said = said.is_ok();
                said.map_err(Fault::Etcd)
            };
            let trouble = match stepped {
                Ok(()) => None,
                Err(Fault::Etcd(why)) => Some(why.to_string()),
                Err(Fault::Ended(Ended::Home(why))) => {
                    // Another server may see it.
                    self.step_down(member);
                    self.resign();
                    Some(format!("this server cannot rule: home: {why}"))
                }
                Err(Fault::Ended(why)) => {
                    result = Err(why.to_string());
                    break;
                }
            };
            let has_failed = trouble.is_some();
            locked(&member.process).etcd_fails(trouble);
            let pause = if has_failed {
                LOOK.1
            } else if is_said {
                self.pause()
            } else {
                Duration::ZERO
            };
            match saves.recv_timeout(pause) {
                Ok(()) => while saves.try_recv().is_ok() {},
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.step_down(member);
        self.resign();
        result
    }

    pub(super) fn step(&mut self, member: &Member) -> Result<(), Fault> {
        if self.reign.is_some() {
            self.save_changes(member)?;
        }
        let is_same = self.hold_lease()?;
        if !is_same {
            self.step_down(member);
        }
        if let (Some(_), Some(lease)) = (&self.reign, &self.lease) {
            locked(&member.process).renewed(lease.until);
        }
        match (self.look()?, self.reign.as_ref().map(|reign| reign.number)) {
            (Seen::Me(reign), Some(own)) if reign == own => self.renumber(member)?,
            (Seen::Me(reign), _) => self.begin_reign(reign, member)?,
            (Seen::Other(ruling, reign), _) => {
                self.step_down(member);
                if ruling.server != 0 && self.followed != reign {
                    // Who has a number has saved his state.
                    if { self.state()? }.is_some_and(|state| state.birth != member.birth) {
                        return Err(Fault::foreign(OTHER_LIFE));
                    }
                    self.followed = reign;
                }
                let ruler = (ruling.server != 0).then_some(Node::Server(Server(ruling.server)));
                locked(&member.process).follow(ruler, reign);
            }
            (Seen::Nobody, _) => {
                self.step_down(member);
                if let Some(reign) = self.campaign()? {
                    self.begin_reign(reign, member)?;
                }
            }
        }
        Ok(())
    }

    /// Saves what the register has come to know.
    fn save_changes(&mut self, member: &Member) -> Result<(), Fault> {
        let unsaved = locked(&member.process).unsaved();
        let (Some((change, register)), Some(reign)) = (unsaved, &mut self.reign) else {
            return Ok(());
        };
        reign.state.register = register;
        let (number, state) = (reign.number, reign.state.clone());
        if self.save(number, &state)? {
            locked(&member.process).kept(change);
        } else {
            self.step_down(member);
        }
        Ok(())
    }

    /// Rules from now on.
    fn begin_reign(&mut self, number: u64, member: &Member) -> Result<(), Fault> {
        let state = match self.state()? {
            Some(state) if state.birth == member.birth => state,
            _ => {
                self.resign();
                return Err(Fault::foreign(OTHER_LIFE));
            }
        };
        let (life, home) = self.take_life((number, state.birth), state.life, false)?;
        let state = State { life, ..state };
        if !self.save(number, &state)? {
            return Ok(());
        }
        self.settle_life();
        let mut process = locked(&member.process);
        let now = process.now();
        process.rule(self.ruler(&state, now), number);
        if let Some(lease) = &self.lease {
            process.renewed(lease.until);
        }
        drop(process);
        let numbers = Numbers::of_ruler(life);
        member.door.give(Some(numbers));
        member.door.comes_after(state.after);
        self.reign = Some(Reign {
            number,
            state,
            _home: home,
        });
        Ok(())
    }

    /// Takes another life, if there are no more numbers.
    fn renumber(&mut self, member: &Member) -> Result<(), Fault> {
        let Some(reign) = self.reign.as_ref().filter(|_| member.door.has_given_all()) else {
            return Ok(());
        };
        let (number, mut state) = (reign.number, reign.state.clone());
        state.life = self.another_life((number, state.birth), state.life)?;
        if self.save(number, &state)? {
            self.settle_life();
            let numbers = Numbers::of_ruler(state.life);
            member.door.give(Some(numbers));
            if let Some(reign) = &mut self.reign {
                reign.state = state;
            }
        }
        Ok(())
    }

    /// Does not rule any more.
    fn step_down(&mut self, member: &Member) {
        if self.reign.take().is_some() {
            member.door.give(None);
            locked(&member.process).follow(None, 0);
        }
    }
}
