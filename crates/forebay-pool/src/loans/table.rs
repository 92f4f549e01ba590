//! A lender for tests: what is lent lies in a table.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::{Endpoint, Lender, Lent, Loan};
use crate::fabric::Provider;

/// What is lent, by its keys.
#[derive(Debug, Default)]
struct Table {
    open: BTreeMap<u64, Bytes>,
    next: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Shared(Arc<Mutex<Table>>);

impl Shared {
    /// Bytes of these parts, if all their keys are good.
    pub fn read(&self, parts: &[(Lent, u64, usize)]) -> Option<Vec<u8>> {
        self.with(|table| {
            let mut all = Vec::new();
            for (lent, from, length) in parts {
                let bytes = table.open.get(&lent.number())?;
                let from = *from as usize;
                all.extend_from_slice(&bytes[from..from + length]);
            }
            Some(all)
        })
    }

    /// How many loans there are.
    pub fn loans(&self) -> usize {
        self.with(|table| table.open.len())
    }

    fn with<T>(&self, what: impl FnOnce(&mut Table) -> T) -> T {
        what(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

struct Open(Shared, u64);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.with(|table| table.open.remove(&self.1));
    }
}

impl Lender for Shared {
    fn endpoint(&self) -> Endpoint {
        Endpoint {
            provider: Provider::Tcp,
            address: Vec::new(),
        }
    }

    fn lend(&self, bytes: Bytes) -> Option<(Loan, Lent)> {
        let length = bytes.len() as u64;
        let number = self.with(|table| {
            table.next += 1;
            table.open.insert(table.next, bytes);
            table.next
        });
        let loan = Arc::new(Open(self.clone(), number));
        Some((loan, Lent::numbered(number, length)))
    }
}
