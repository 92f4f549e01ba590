//! Requests, and the memory that libfabric reads or fills for them.

use std::cell::UnsafeCell;
use std::mem;
use std::sync::{Arc, Condvar, Mutex};

use bytes::Bytes;

use super::Error;
use super::bindings as raw;
use super::endpoint::locked;
use super::peers::{Inserted, Peer};
use super::region::Local;

/// Memory that several requests fill, each a part of its own.
pub(super) struct Landing(pub(super) UnsafeCell<Vec<u8>>);

// SAFETY: nobody but libfabric touches the bytes before all of their requests are over, and then only who has it alone.
unsafe impl Sync for Landing {}

/// What libfabric reads or fills.
pub(super) enum Carried {
    Filled(Vec<u8>),
    /// From this byte on, so many.
    Part(Arc<Landing>, usize, usize),
    Sent(Bytes),
}

impl Carried {
    pub(super) fn into_filled(self) -> Vec<u8> {
        match self {
            Carried::Filled(bytes) => bytes,
            Carried::Sent(_) | Carried::Part(..) => Vec::new(),
        }
    }
}

/// A request.
#[repr(C)]
pub(super) struct Op {
    /// Providers may want so much memory of each request. Nobody else uses it.
    context: mem::MaybeUninit<raw::fi_context2>,
    pub(super) state: Mutex<State>,
    pub(super) is_over: Condvar,
    /// It stays in the endpoint's list as long as something may come from it.
    _peer: Arc<Inserted>,
}

pub(super) struct State {
    pub(super) outcome: Option<Result<(), Error>>,
    // In this order: what is registered goes before its memory.
    pub(super) local: Option<Local>,
    pub(super) carried: Carried,
}

// SAFETY: nobody but libfabric uses the context, and the rest has a lock.
unsafe impl Send for Op {}
// SAFETY: as above.
unsafe impl Sync for Op {}

impl Op {
    pub(super) fn new(carried: Carried, peer: &Peer) -> Arc<Op> {
        let state = State {
            outcome: None,
            local: None,
            carried,
        };
        Arc::new(Op {
            context: mem::MaybeUninit::zeroed(),
            state: Mutex::new(state),
            is_over: Condvar::new(),
            _peer: Arc::clone(&peer.0),
        })
    }

    pub(super) fn is_over(&self) -> bool {
        locked(&self.state).outcome.is_some()
    }
}
