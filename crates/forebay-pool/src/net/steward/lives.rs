//! The lives that reigns have.

use super::{Fault, Steward};
use crate::home::{Directory, Foreign, Taken};
use crate::net::Ended;

/// There are 65,536 lives: one that etcd did not take at once is not given up for another one.
pub(super) struct NextLife {
    reign: u64,
    number: u64,
}

impl Steward {
    /// Takes a life for a reign: its number, and the home if others are kept out of it.
    pub(super) fn take_life(
        &mut self,
        reign: u64,
        known: u64,
        is_new: bool,
    ) -> Result<(u64, Option<Taken>), Fault> {
        let taken = match &self.config.home {
            Some(home) => match Directory::take(home, self.config.block_bytes) {
                Ok(taken) => Some(taken),
                // The one who ruled before may not know that he does not: then he has it still.
                Err(Foreign::Taken(_)) if !is_new => None,
                Err(why) => return Err(Fault::Ended(Ended::Home(why))),
            },
            None => None,
        };
        Ok((self.another_life(reign, known)?, taken))
    }

    /// The number of a life for a reign. Until it is settled, the same reign gets it again.
    pub(super) fn another_life(&mut self, reign: u64, known: u64) -> Result<u64, Fault> {
        if let Some(next) = { self.next_life.as_ref() }.filter(|next| next.reign == reign) {
            return Ok(next.number);
        }
        let number = match &self.config.home {
            Some(home) => {
                let life = Directory::begin_life_after(home, self.config.block_bytes, known);
                life.map_err(|why| Fault::Ended(Ended::Home(why)))?
            }
            None => known + 1,
        };
        self.next_life = Some(NextLife { reign, number });
        Ok(number)
    }

    /// What was taken is saved.
    pub(super) fn settle_life(&mut self) {
        self.next_life = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::Config;

    #[test]
    fn a_life_that_etcd_has_not_taken_yet_is_not_given_up_for_another_one() {
        let home = tempfile::tempdir().unwrap();
        let text = format!(
            "servers = [\"127.0.0.1:7411\"]\nhome = {:?}\n\
             [etcd]\nendpoints = [\"http://127.0.0.1:1\"]\nprefix = \"/forebay/lives\"",
            home.path()
        );
        let config = Config::parse(&text).unwrap();
        let etcd = config.etcd.as_ref().unwrap();
        let mut steward = Steward::new(etcd, &config, 0, 1).unwrap();
        let life = |steward: &mut Steward, reign| {
            let taken = steward.take_life(reign, 0, true).ok();
            // Nobody else is kept out of the home meanwhile.
            taken.map(|(number, _)| number)
        };
        let first = life(&mut steward, 5);
        assert!(first.is_some());
        assert_eq!(life(&mut steward, 5), first);
        let second = life(&mut steward, 6);
        assert!(second > first);
        steward.settle_life();
        assert!(life(&mut steward, 6) > second);
    }
}
