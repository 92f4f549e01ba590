//! Others' endpoints, as an endpoint knows them.

use std::ptr;
use std::sync::{Arc, Weak};

use super::Error;
use super::bindings as raw;
use super::endpoint::{Inner, locked};
use super::library::unless_ended;

/// A peer's place in the endpoint's list.
pub(super) struct Inserted {
    pub(super) at: raw::fi_addr_t,
    pub(super) inner: Weak<Inner>,
}

impl Drop for Inserted {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.upgrade() {
            inner.forget(self.at);
        }
    }
}

/// Whom one reads from and writes to.
#[derive(Clone)]
pub struct Peer(pub(super) Arc<Inserted>);

impl Inner {
    pub(super) fn peer(inner: &Arc<Inner>, address: &[u8]) -> Result<Arc<Inserted>, Error> {
        if !inner.addresses.fits(address) {
            return Err(Error::Address);
        }
        let mut peers = locked(&inner.peers);
        if let Some(known) = peers.get(address).and_then(Weak::upgrade) {
            return Ok(known);
        }
        let mut at = 0;
        // SAFETY: the list is open as long as `inner`, and the address has the length that its form says.
        let inserted = unless_ended(|| unsafe {
            let av = inner.objects.av;
            let address = address.as_ptr().cast();
            let insert = (*(*av).ops).insert;
            insert.map_or(0, |insert| {
                insert(av, address, 1, &mut at, 0, ptr::null_mut())
            })
        });
        let inserted = inserted.ok_or(Error::Ended)?;
        if inserted != 1 {
            let why = inner.library.failed("fi_av_insert", inserted.into());
            return Err(if inserted < 0 { why } else { Error::Address });
        }
        let inserted = Arc::new(Inserted {
            at,
            inner: Arc::downgrade(inner),
        });
        peers.retain(|_, peer| peer.strong_count() > 0);
        peers.insert(address.to_vec(), Arc::downgrade(&inserted));
        Ok(inserted)
    }

    fn forget(&self, at: raw::fi_addr_t) {
        let mut at = at;
        // SAFETY: it was inserted, and nobody can name it any more. That it may not be removed harms nobody.
        unless_ended(|| unsafe {
            let av = self.objects.av;
            if let Some(remove) = (*(*av).ops).remove {
                remove(av, &mut at, 1, 0);
            }
        });
    }
}
