//! A run: tasks get their turns, and now and then something happens to them all: a client is killed, the keeper, both,
//! the power fails; or an audit looks at everything.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use forebay::sim::device::Weather;
use forebay::sim::tasks::{Failure, Simulation};
use forebay_model::SplitMix64;

use crate::audit;
use crate::client::Client;
use crate::outsider::Outsider;
use crate::swarm::Swarm;
use crate::world::World;

/// The longest that anything may take, in the time of the simulation: a device call may take 40 ms, and a sync hundreds.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a run was like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub turns: u64,
    pub operations: u64,
    pub trace: u64,
    pub client_deaths: u64,
    pub keeper_deaths: u64,
    pub power_losses: u64,
    pub audits: u64,
    pub faults: u64,
    /// Files that got the number of one that is gone.
    pub numbers_again: u64,
    /// Closes that have left what was owed to the keeper, looks of outsiders, and those of them that waited for a lease.
    pub left: u64,
    pub outside_looks: u64,
    pub lease_waits: u64,
}

/// See the module's documentation.
pub struct Run {
    pub sim: Simulation,
    pub world: Rc<World>,
    dice: SplitMix64,
    outcome: Outcome,
}

/// Runs a seed for about so many turns.
///
/// # Errors
/// What went wrong, and how to see it again.
pub fn run(seed: u64, turns: u64) -> Result<Outcome, String> {
    run_swarm(Swarm::new(seed), turns)
}

/// The same of a swarm that somebody has chosen.
///
/// # Errors
/// As for [`run`].
pub fn run_swarm(swarm: Swarm, turns: u64) -> Result<Outcome, String> {
    let seed = swarm.seed;
    let sim = Simulation::new(seed, swarm.manner);
    let world = World::new(swarm);
    let dice = SplitMix64::new(!seed);
    let outcome = Outcome::default();
    let mut run = Run {
        sim,
        world,
        dice,
        outcome,
    };
    if let Err(failure) = run.live(turns) {
        return Err(run.describe(seed, turns, &failure));
    }
    Ok(Outcome {
        turns: run.sim.turns(),
        operations: run.world.operations.get(),
        trace: run.sim.trace(),
        faults: run.outcome.faults + run.world.station().faults(),
        numbers_again: run.world.numbers_again.get(),
        left: run.world.left.get(),
        outside_looks: run.world.outside_looks.get(),
        lease_waits: run.world.lease_waits.get(),
        ..run.outcome
    })
}

impl Drop for Run {
    /// Nobody closes anything in good order.
    fn drop(&mut self) {
        self.sim.cut_power();
        (0..self.world.swarm.clients).for_each(|place| self.world.bury_client(place));
        self.world.forget_keeper();
    }
}

impl Run {
    fn describe(&self, seed: u64, turns: u64, failure: &Failure) -> String {
        format!(
            "seed {seed}, turn {} (of {turns}), {}: {}\nlast operations:\n{}still there: {}\n{:?}\nagain: {}",
            self.sim.turns(),
            failure.task,
            failure.what,
            self.world.last_operations(),
            self.sim.describe(),
            self.world.swarm,
            replay_line(seed, turns),
        )
    }

    fn live(&mut self, turns: u64) -> Result<(), Failure> {
        self.start_keeper();
        (0..self.world.swarm.clients).for_each(|place| self.start_client(place));
        self.start_outsiders();
        let mut next_audit = turns / 8;
        while self.sim.turns() < turns {
            let until = self.sim.turns() + 200 + self.dice.below(3000);
            let sim = &self.sim;
            sim.run(Duration::from_millis(200), || sim.turns() >= until)?;
            if self.sim.turns() > next_audit || self.is_in_doubt() && self.dice.below(3) == 0 {
                self.audit()?;
                next_audit = self.sim.turns() + turns / 8;
            } else {
                self.strike()?;
            }
        }
        self.audit()
    }

    fn is_in_doubt(&self) -> bool {
        let mut files = self.world.files.iter();
        files.any(|file| file.ledger.borrow().is_doubtful())
    }

    fn start_client(&mut self, place: usize) {
        let process = self.world.new_client();
        for thread in 0..self.world.swarm.threads {
            let client = Client::new(&self.world, &process, self.dice.next_u64());
            let name = format!("client {}.{thread}", process.number);
            self.sim.spawn(process.number, &name, move || client.live());
        }
        self.world.clients.borrow_mut()[place] = Some(process);
    }

    fn start_outsiders(&mut self) {
        for _ in 0..self.world.swarm.outsiders {
            let number = self.world.number();
            let outsider = Outsider::new(&self.world, number, self.dice.next_u64());
            let name = format!("outsider {number}");
            self.sim.spawn(number, &name, move || outsider.live());
        }
    }

    fn start_keeper(&mut self) {
        if !self.world.swarm.keeper {
            return;
        }
        let bodies = self.world.new_keeper();
        let number = self.keeper_number();
        for (name, body) in bodies {
            self.sim.spawn(number, &format!("{name} {number}"), body);
        }
    }

    fn keeper_number(&self) -> u32 {
        self.world.keeper.borrow().as_ref().map_or(0, |k| k.number)
    }

    /// Runs until a condition holds that must hold at last.
    fn await_that(&self, what: &str, condition: impl Fn() -> bool) -> Result<(), Failure> {
        if self.sim.run(PATIENCE, condition)? {
            return Ok(());
        }
        if std::env::var_os("FOREBAY_SIMULATE_SHOW").is_some() {
            self.sim.show_where(12)?;
        }
        Err(Failure {
            task: "fate".into(),
            what: format!("{what} does not come about; {}", self.sim.describe()),
        })
    }

    /// Something happens, or nothing.
    fn strike(&mut self) -> Result<(), Failure> {
        let swarm = &self.world.swarm;
        let (client, keeper, power) =
            (swarm.client_deaths, swarm.keeper_deaths, swarm.power_losses);
        let place = self.dice.below(swarm.clients as u64) as usize;
        let die = self.dice.below(12);
        if die < client {
            return self.kill_client(place);
        }
        if die < client + keeper && self.world.swarm.keeper {
            return self.kill_keeper();
        }
        if power != 0 && die < client + keeper + power && self.dice.below(4) == 0 {
            return self.cut_power();
        }
        Ok(())
    }

    /// Kills a process: at one of its next accesses, or wherever it stands.
    fn kill(&mut self, number: u32) -> Result<(), Failure> {
        if self.dice.below(3) != 0 {
            self.sim.kill_later(number, self.dice.below(60));
            let sim = &self.sim;
            sim.run(Duration::from_millis(2), || sim.is_gone(number))?;
        }
        self.sim.kill(number);
        self.await_that("the end of a killed process", || self.sim.is_gone(number))
    }

    fn kill_client(&mut self, place: usize) -> Result<(), Failure> {
        let number = self.world.clients.borrow()[place]
            .as_ref()
            .map(|process| process.number);
        let Some(number) = number else { return Ok(()) };
        self.world.log(format!("client {number} is killed"));
        self.kill(number)?;
        self.world.bury_client(place);
        self.outcome.client_deaths += 1;
        self.start_client(place);
        Ok(())
    }

    fn kill_keeper(&mut self) -> Result<(), Failure> {
        let number = self.keeper_number();
        self.world.log(format!("keeper {number} is killed"));
        self.world.upset_all();
        self.kill(number)?;
        self.world.forget_keeper();
        self.world.upset_all();
        self.outcome.keeper_deaths += 1;
        // For a while there is none.
        let sim = &self.sim;
        let until = sim.turns() + self.dice.below(1000);
        sim.run(Duration::from_millis(50), || sim.turns() >= until)?;
        self.start_keeper();
        Ok(())
    }

    /// Everybody dies, the disk keeps what it must and what it likes, and a new session begins.
    fn cut_power(&mut self) -> Result<(), Failure> {
        self.world.log("the power fails".into());
        self.sim.cut_power();
        for place in 0..self.world.swarm.clients {
            self.world.bury_client(place);
        }
        self.world.forget_keeper();
        self.world.disk.crash_power(self.dice.next_u64());
        self.outcome.power_losses += 1;
        self.outcome.faults += self.world.station().faults();
        // Names are durable at once: what has none now is gone.
        let named = (0..self.world.files.len()).filter(|&file| self.world.is_in_use(file));
        for index in named {
            let file = &self.world.files[index];
            let left = file.sim().contents();
            let mut ledger = file.ledger.borrow_mut();
            ledger.check_power_loss(&left).map_err(|what| Failure {
                task: "the disk".into(),
                what: format!("after the power failed, file {index}: {what}"),
            })?;
            ledger.settle();
            ledger.restart(Rc::new(left));
        }
        self.world.begin_anew();
        self.start_keeper();
        (0..self.world.swarm.clients).for_each(|place| self.start_client(place));
        self.start_outsiders();
        Ok(())
    }

    /// Everybody pauses, the keeper ends, and everything is looked at. Then life goes on.
    fn audit(&mut self) -> Result<(), Failure> {
        let world = Rc::clone(&self.world);
        world.log("an audit".into());
        world.pause.set(true);
        self.await_that("the end of what clients do", || world.busy.get() == 0)?;
        let keeper = self.keeper_number();
        world.stop_keeper();
        self.await_that("the end of a keeper", || self.sim.is_gone(keeper))?;
        world.forget_keeper();
        let usual = world.swarm.weather;
        world.station().set_weather(Weather {
            error_rarity: 0,
            short_rarity: 0,
            ..usual
        });
        let number = world.number();
        let (seed, result) = (self.dice.next_u64(), Rc::new(RefCell::new(None)));
        let (there, of) = (Rc::clone(&result), Rc::clone(&world));
        self.sim.spawn(number, "the auditor", move || {
            audit::look_at_everything(&of, seed);
            *there.borrow_mut() = Some(());
        });
        self.await_that("the end of an audit", || self.sim.is_gone(number))?;
        assert!(result.borrow().is_some(), "nobody kills the auditor");
        self.outcome.audits += 1;
        world.station().set_weather(usual);
        self.start_keeper();
        world.pause.set(false);
        Ok(())
    }
}

/// A command that runs a seed again.
pub fn replay_line(seed: u64, turns: u64) -> String {
    format!(
        "FOREBAY_TEST_SEED={seed} FOREBAY_SIMULATE_TURNS={turns} cargo test -p forebay --features sim --test simulate -- \
         --nocapture a_seed_that_is_told"
    )
}
