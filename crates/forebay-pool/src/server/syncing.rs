//! Syncs of the home on a thread of their own: they may take longer than a term, and a server that gives no sign of life meanwhile is given up.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::Server;
use crate::home::Home;
use crate::ids::{Client, Node};
use crate::message::{Message, Outbox};

/// The syncs, and who waits for which. One is under way at a time, and counts for what came before it began.
#[derive(Clone, Default)]
pub(super) struct Syncs {
    /// Called by the thread at its end. Without it there is no thread, and the server waits.
    wake: Option<Arc<dyn Fn() + Send + Sync>>,
    /// Requests by their numbers, with the first sync that counts for each.
    waiting: Vec<(Client, u64, u64)>,
    begun: u64,
    is_under_way: bool,
    /// The last one that was seen under way, and when it was first.
    seen: (u64, u64),
    /// What the thread has to say.
    ended: Arc<Mutex<Option<io::Result<()>>>>,
    trouble: Option<String>,
}

impl fmt::Debug for Syncs {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut to = to.debug_struct("Syncs");
        to.field("waiting", &self.waiting)
            .field("begun", &self.begun);
        to.finish_non_exhaustive()
    }
}

impl Syncs {
    pub fn by_threads(wake: impl Fn() + Send + Sync + 'static) -> Syncs {
        Syncs {
            wake: Some(Arc::new(wake)),
            ..Syncs::default()
        }
    }

    /// What the last one has failed by, or that it does not end, while somebody waits.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// One that takes longer than a term is trouble too.
    fn watch(&mut self, now: u64, term: u64) {
        if self.seen.0 != self.begun {
            self.seen = (self.begun, now);
        }
        let hangs = self.is_under_way && now.saturating_sub(self.seen.1) > term;
        if hangs && self.trouble.is_none() && !self.waiting.is_empty() {
            self.trouble = Some("a sync takes longer than a term".to_owned());
        }
    }

    /// Takes a request to be answered when what is in the home now is durable. Says whether it is taken.
    fn takes(&mut self, client: Client, number: u64, home: &Arc<dyn Home>) -> bool {
        if self.wake.is_some() {
            // One that is under way may have begun before what this request is about.
            self.waiting.push((client, number, self.begun + 1));
            self.begin(home);
        }
        self.wake.is_some()
    }

    /// Begins one, if somebody waits and none is under way.
    fn begin(&mut self, home: &Arc<dyn Home>) {
        let Some(wake) = self.wake.clone() else {
            return;
        };
        if self.is_under_way || self.waiting.is_empty() {
            return;
        }
        self.begun += 1;
        self.is_under_way = true;
        let (home, ended) = (Arc::clone(home), Arc::clone(&self.ended));
        let work = move || {
            let result = home.sync();
            *ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
            wake();
        };
        if let Err(why) = thread::Builder::new().spawn(work) {
            *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(Err(why));
        }
    }

    /// Whose requests are done, if one has ended. Where it has failed they wait for the next one.
    fn done(&mut self, home: &Arc<dyn Home>) -> Vec<(Client, u64)> {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(result) = ended.take() else {
            return Vec::new();
        };
        drop(ended);
        self.is_under_way = false;
        self.trouble = result.err().map(|why| why.to_string());
        if self.trouble.is_some() {
            self.forget_trouble();
            return Vec::new();
        }
        let begun = self.begun;
        let done = self.waiting.extract_if(.., |(_, _, first)| *first <= begun);
        let done = done.map(|(client, number, _)| (client, number)).collect();
        self.begin(home);
        done
    }

    /// A client's requests will come again.
    pub fn forget(&mut self, client: Client) {
        self.waiting.retain(|(from, ..)| *from != client);
        self.forget_trouble();
    }

    /// So will all.
    pub fn forget_all(&mut self) {
        self.waiting.clear();
        self.forget_trouble();
    }

    /// It is nobody's if nobody waits.
    fn forget_trouble(&mut self) {
        self.trouble.take_if(|_| self.waiting.is_empty());
    }
}

impl Server {
    /// Takes a request to make durable what is in the home. Says whether it is answered later; else the server is to wait for the home.
    pub(super) fn syncs_aside(&mut self, client: Client, message: &Message) -> bool {
        match (message, self.blocks.home()) {
            (Message::Persist { number, .. }, Some(home)) => {
                self.syncs.takes(client, *number, home)
            }
            _ => false,
        }
    }

    /// A sync has ended, perhaps: who has waited for it is told.
    pub fn synced(&mut self, out: &mut Outbox) {
        let Some(home) = self.blocks.home().filter(|_| !self.gone) else {
            return;
        };
        let done = self.syncs.done(home).into_iter();
        out.extend(done.map(|(client, number)| (Node::Client(client), Message::Done { number })));
    }

    /// One that has failed is tried again.
    pub(super) fn go_on_syncing(&mut self, now: u64, out: &mut Outbox) {
        self.synced(out);
        if let Some(home) = self.blocks.home() {
            self.syncs.begin(home);
        }
        self.syncs.watch(now, self.config.term);
    }
}
