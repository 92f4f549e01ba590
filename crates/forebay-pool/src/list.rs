//! Where a pool's servers are: a list that only grows, with places that never change.
//!
//! A server's number says its place ([`Server::place`](crate::ids::Server::place)). Whoever knows an address of a place knows it for the pool's whole life.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::ids::PLACES;
use crate::message::Addresses;

/// The addresses of servers, by place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<SocketAddr>")]
pub struct List(Vec<SocketAddr>);

/// A list has more addresses than there are places.
#[derive(Debug, thiserror::Error)]
#[error("{0} addresses of servers")]
pub struct TooLong(usize);

impl TryFrom<Vec<SocketAddr>> for List {
    type Error = TooLong;

    fn try_from(all: Vec<SocketAddr>) -> Result<List, TooLong> {
        if all.len() > PLACES {
            return Err(TooLong(all.len()));
        }
        Ok(List(all))
    }
}

impl List {
    /// One that begins with these.
    pub fn of(all: &[SocketAddr]) -> List {
        List(all.iter().copied().take(PLACES).collect())
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// An address's place.
    pub fn place(&self, address: SocketAddr) -> Option<u8> {
        let found = self.0.iter().position(|known| *known == address)?;
        u8::try_from(found).ok()
    }

    /// The same, where an address that is not there gets the next place; `None` if there is none.
    pub fn take_in(&mut self, address: SocketAddr) -> Option<u8> {
        let next = self.0.len();
        self.place(address).or_else(|| {
            let place = u8::try_from(next).ok()?;
            self.0.push(address);
            Some(place)
        })
    }

    /// Whether it has one of these.
    pub fn has_any(&self, addresses: &[SocketAddr]) -> bool {
        self.0.iter().any(|known| addresses.contains(known))
    }

    /// So many of the first ones.
    pub fn first(&self, count: usize) -> Addresses {
        (0..=u8::MAX)
            .zip(self.0.iter().copied())
            .take(count)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: usize) -> SocketAddr {
        format!("127.0.0.1:{port}").parse().unwrap()
    }

    #[test]
    fn a_list_grows_up_to_its_last_place_and_no_place_changes() {
        let mut list = List::of(&[address(1), address(2)]);
        for port in (1..=PLACES).chain(1..=PLACES) {
            assert_eq!(list.take_in(address(port)), u8::try_from(port - 1).ok());
        }
        assert_eq!(list.take_in(address(PLACES + 1)), None);
        assert_eq!(
            (list.count(), list.place(address(PLACES + 1))),
            (PLACES, None)
        );
        let first = list.first(3);
        assert_eq!(first.into_values().last(), Some(address(3)));
        assert_eq!(list.first(PLACES).len(), PLACES);
    }

    #[test]
    fn a_list_that_is_too_long_is_not_read() {
        let of = |count| {
            let all: Vec<SocketAddr> = (1..=count).map(address).collect();
            postcard::from_bytes::<List>(&postcard::to_stdvec(&all).unwrap())
        };
        assert_eq!(of(PLACES).unwrap().count(), PLACES);
        assert!(of(PLACES + 1).is_err());
    }
}
