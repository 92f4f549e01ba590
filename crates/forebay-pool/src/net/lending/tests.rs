//! Loans by the providers that this host has.

use std::net::Ipv4Addr;
use std::thread;
use std::time::Duration;

use forebay_model::skipped;

use super::*;
use crate::fabric::{Peer, offered};

const HOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// What a provider that refuses may take.
const SHORT: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(20);

fn lendings() -> Vec<Lending> {
    let offered = match offered() {
        Ok(offered) => offered.providers,
        Err(why) => {
            skipped(format!("{why} (scripts/install-test-deps.sh does it)"));
            return Vec::new();
        }
    };
    let there = offered.into_iter().filter(|(_, is_there)| is_there.is_ok());
    let there = there.filter(|(provider, _)| *provider != Provider::Verbs);
    { there.map(|(provider, _)| Lending::begin(provider, HOST)) }
        .collect::<Result<_, _>>()
        .unwrap()
}

/// Somebody who has met no refusal yet.
fn reader(of: &Lending) -> (Fabric, Peer) {
    let endpoint = of.endpoint();
    let fabric = Fabric::open(endpoint.provider, Some(HOST)).unwrap();
    let peer = fabric.peer(&endpoint.address).unwrap();
    (fabric, peer)
}

fn lend(lending: &Lending, bytes: &Bytes) -> (Loan, Lent) {
    lending.lend(bytes.clone()).unwrap()
}

#[test]
fn a_loan_that_has_ended_opens_nothing() {
    for lending in lendings() {
        let bytes: Bytes = (0..100_000_u32).map(|at| at as u8).collect();
        let (loan, lent) = lend(&lending, &bytes);
        let (other, lent_too) = lend(&lending, &bytes.slice(1..));
        let read = |(fabric, peer): &(Fabric, Peer), lent: Lent, limit| {
            let into = vec![0; lent.len() as usize];
            fabric.read(peer, (lent, 0), into, limit)
        };
        let first = reader(&lending);
        assert!(read(&first, lent, LIMIT).unwrap() == bytes);
        drop(loan);
        let refused = read(&first, lent, SHORT);
        assert!(refused.is_err(), "{lending:?}");
        assert!(read(&reader(&lending), lent_too, LIMIT).unwrap() == bytes.slice(1..));
        drop(other);
    }
}

#[test]
fn nobody_writes_by_the_key_of_a_loan() {
    for lending in lendings() {
        let bytes: Bytes = vec![1; 10_000].into();
        let (_loan, lent) = lend(&lending, &bytes);
        let (fabric, peer) = reader(&lending);
        let written = fabric.write(&peer, (lent, 0), vec![2; 10_000].into(), SHORT);
        assert!(written.is_err(), "{lending:?}");
        thread::sleep(Duration::from_millis(50));
        assert!(bytes == vec![1; 10_000]);
    }
}

#[test]
fn memory_behind_a_loan_stays_for_a_while_when_it_has_ended() {
    for lending in lendings() {
        let bytes: Bytes = vec![1; ENDED_MAX + 1].into();
        let (loan, _) = lend(&lending, &bytes);
        assert!(!bytes.is_unique());
        drop(loan);
        lending.tidy();
        assert!(!bytes.is_unique(), "a provider may send it still");
        // And nothing more is lent while so much waits.
        assert!(lending.lend(vec![1].into()).is_none());
        thread::sleep(KEPT + Duration::from_millis(20));
        lending.tidy();
        assert!(bytes.is_unique());
        assert!(lending.lend(vec![1].into()).is_some());
    }
}
