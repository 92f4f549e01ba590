//! A client's process, or its part in one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::link::{self, Dialled, Dialler, Hello};
use super::process::{self, Event, Machine, Process};
use super::security::Security;
use super::serving::keep_dialling;
use super::{Config, Ended};
use crate::client::{self, Answer, Client, Failure, Operation};
use crate::ids::Node;

/// A membership in a pool. Any number of threads may use it.
pub struct Pool {
    process: Arc<Mutex<Process>>,
    inbox: Sender<Event>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), Ended>>>,
}

impl Pool {
    /// Joins a pool, and waits at most `patience` until it is in.
    pub fn join(config: &Config, patience: Duration) -> Result<Pool, Ended> {
        let until = Instant::now() + patience;
        let is_time = || Instant::now() < until;
        let hello = |birth, dialler| Hello {
            pool: config.mark(),
            birth,
            dialler,
        };
        let first = hello(0, Dialler::NewClient);
        let security = Security::of(config.tls.as_ref())?;
        let door = Dialled {
            to: config.servers[0],
            security: &security,
            hello: &first,
        };
        let met = link::dial_until(door, &is_time).ok_or(Ended::NoAnswer)?;
        let (_, birth, you, keeper) = met.map_err(Ended::Refused)?;
        let Node::Client(me) = you else {
            return Err(Ended::Refused("it is not taken for a client".to_string()));
        };
        let term = config.term_ms;
        let machine = client::Config {
            block_bytes: config.block_bytes,
            copies: config.copies,
            // Clocks may differ by one in a hundred.
            term: term * 9 / 10,
            alive_every: config.alive_every(),
            cache_blocks: config.cache_blocks,
            has_home: config.home.is_some(),
            wish_blocks: 16,
        };
        let machine = Machine::Client(Box::new(Client::new(me, machine)));
        let is_in = Arc::new(AtomicBool::new(false));
        let keeper = Node::Server(keeper);
        let process = Process::new((you, machine), None, keeper, Arc::clone(&is_in), term);
        let process = Arc::new(Mutex::new(process));
        let (inbox, events) = mpsc::channel();
        let is_over = Arc::new(AtomicBool::new(false));
        for address in &config.servers {
            let hello = hello(birth, Dialler::Client(me));
            let to = (*address, security.clone());
            let told = (Arc::clone(&process), inbox.clone());
            keep_dialling(to, hello, told, Arc::clone(&is_over));
        }
        let (over, own) = (Arc::clone(&is_over), Arc::clone(&process));
        let thread = thread::spawn(move || {
            let result = Process::run(&own, &events);
            over.store(true, Ordering::Relaxed);
            result
        });
        let pool = Pool {
            process,
            inbox,
            is_over,
            thread: Some(thread),
        };
        while !is_in.load(Ordering::Relaxed) {
            if !is_time() || pool.is_over.load(Ordering::Relaxed) {
                return Err(Ended::NoAnswer);
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(pool)
    }

    /// Does an operation, and waits for its end.
    pub fn run(&self, operation: Operation) -> Result<Answer, Failure> {
        // What is here is done by this thread, under the lock; the rest is waited for without it.
        let begun = process::locked(&self.process).begin(operation);
        begun.unwrap_or_else(|outcome| outcome.recv().unwrap_or(Err(Failure::GivenUp)))
    }
}

impl Drop for Pool {
    /// Leaves the pool: others wait no term for what this client held. What was not synced is lost.
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.inbox.send(Event::Stop);
        if let Some(thread) = self.thread.take() {
            // What it ended by, its operations have told.
            let _ = thread.join();
        }
        self.is_over.store(true, Ordering::Relaxed);
    }
}
