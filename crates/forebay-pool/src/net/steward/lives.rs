//! The lives that reigns have.

use super::{Fault, Steward};
use crate::home::{Directory, Foreign, Owner, Taken};
use crate::net::Ended;

/// There are 65,536 lives: one that etcd did not take at once is not given up for another one.
pub(super) struct NextLife {
    reign: u64,
    number: u64,
}

impl Steward {
    fn owner(&self, birth: u64) -> Owner {
        let block_bytes = self.config.block_bytes;
        Owner { block_bytes, birth }
    }

    /// Takes a life for a reign over a pool of this birth: its number, and the home if others are kept out of it.
    pub(super) fn take_life(
        &mut self,
        (reign, birth): (u64, u64),
        known: u64,
        is_new: bool,
    ) -> Result<(u64, Option<Taken>), Fault> {
        let owner = self.owner(birth);
        if let Some(home) = { self.config.home.as_ref() }.filter(|_| !is_new) {
            // What this host sees there may be a mount point, of which nothing is mounted.
            Directory::check(home, owner).map_err(|why| Fault::Ended(Ended::Home(why)))?;
        }
        let taken = match &self.config.home {
            Some(home) => match Directory::take(home, owner.block_bytes) {
                Ok(taken) => Some(taken),
                // The one who ruled before may not know that he does not: then he has it still.
                Err(Foreign::Taken(_)) if !is_new => None,
                Err(why) => return Err(Fault::Ended(Ended::Home(why))),
            },
            None => None,
        };
        Ok((self.another_life((reign, birth), known)?, taken))
    }

    /// The number of a life for a reign. Until it is settled, the same reign gets it again.
    pub(super) fn another_life(
        &mut self,
        (reign, birth): (u64, u64),
        known: u64,
    ) -> Result<u64, Fault> {
        if let Some(next) = { self.next_life.as_ref() }.filter(|next| next.reign == reign) {
            return Ok(next.number);
        }
        let number = match &self.config.home {
            Some(home) => {
                let life = Directory::begin_life_after(home, self.owner(birth), known);
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

    fn steward_at(home: &std::path::Path) -> Steward {
        let text = format!(
            "servers = [\"127.0.0.1:7411\"]\nhome = {home:?}\n\
             [etcd]\nendpoints = [\"http://127.0.0.1:1\"]\nprefix = \"/forebay/lives\""
        );
        let config = Config::parse(&text).unwrap();
        let etcd = config.etcd.as_ref().unwrap();
        Steward::new(etcd, &config, 0, 1).unwrap()
    }

    #[test]
    fn nobody_goes_on_with_a_pool_whose_home_he_does_not_see() {
        let home = tempfile::tempdir().unwrap();
        let mut steward = steward_at(home.path());
        let refused = steward.take_life((5, 1), 3, false);
        let is_home = matches!(refused, Err(Fault::Ended(Ended::Home(_))));
        assert!(is_home, "an empty directory is taken for it");
        assert!(home.path().read_dir().unwrap().next().is_none());
        assert!(steward.take_life((5, 1), 3, true).is_ok());
        assert!(steward.take_life((6, 1), 4, false).is_ok());
        assert!(steward.take_life((7, 2), 4, false).is_err());
    }

    #[test]
    fn a_life_that_etcd_has_not_taken_yet_is_not_given_up_for_another_one() {
        let home = tempfile::tempdir().unwrap();
        let mut steward = steward_at(home.path());
        let life = |steward: &mut Steward, reign| {
            let taken = steward.take_life((reign, 1), 0, true).ok();
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
