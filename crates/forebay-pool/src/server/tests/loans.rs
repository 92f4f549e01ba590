//! Blocks that are lent.

use super::*;
use crate::ids::Key;
use crate::loans::Lent;
use crate::loans::table::Shared;

fn locate(server: &mut Server, key: Key) -> Vec<Message> {
    let (number, places) = (5, vec![PLACE]);
    let locate = Message::Locate {
        key,
        number,
        places,
    };
    tell(server, locate)
}

/// The block's key, if it is lent.
fn lent(server: &mut Server) -> Option<Lent> {
    let key = server.key();
    match locate(server, key).pop() {
        Some(Message::Located { number: 5, lent }) => lent[0],
        other => panic!("{other:?}"),
    }
}

/// What the key opens.
fn opens(shared: &Shared, lent: Lent) -> Option<Vec<u8>> {
    shared.read(&[(lent, 0, lent.len() as usize)])
}

fn lending() -> (Server, Shared) {
    let shared = Shared::default();
    let server = server::<Fails>(None).with_lender(Arc::new(shared.clone()));
    (server, shared)
}

#[test]
fn a_loan_ends_before_its_block_is_another_one() {
    let (mut server, shared) = lending();
    assert_eq!(lent(&mut server), None, "it is not there");
    assert!(write(&mut server, 1, b"first"));
    let first = lent(&mut server).unwrap();
    assert_eq!(opens(&shared, first).unwrap(), b"first");
    assert_eq!(lent(&mut server), Some(first), "once for all");
    assert!(patch(&mut server, 2, b"x", 1));
    assert_eq!(opens(&shared, first), None);
    let second = lent(&mut server).unwrap();
    assert_eq!(opens(&shared, second).unwrap(), b"fxrst");
    assert!(write(&mut server, 3, b"third"));
    assert_eq!(opens(&shared, second), None);
    let third = lent(&mut server).unwrap();
    let (key, file) = (server.key(), PLACE.0);
    let discard = Message::Discard {
        key,
        number: 9,
        file,
        from: 0,
        whole: false,
    };
    tell(&mut server, discard);
    assert_eq!(opens(&shared, third), None);
    assert_eq!(lent(&mut server), None);
    assert_eq!(shared.loans(), 0);
}

#[test]
fn an_epoch_ends_all_loans_at_once() {
    let (mut server, shared) = lending();
    assert!(write(&mut server, 1, b"first"));
    let old = server.key();
    let first = lent(&mut server).unwrap();
    let view = View {
        epoch: Epoch(2),
        ..server.view().clone()
    };
    let member = Message::Member { sent: 0, view };
    server.handle(0, Node::Register, member, &mut Outbox::new());
    assert_eq!(opens(&shared, first), None);
    // Nor does anybody of the epoch before get another one.
    let said = locate(&mut server, old);
    assert!(matches!(said[..], [Message::Behind { .. }]), "{said:?}");
    assert_eq!(shared.loans(), 0);
}

#[test]
fn who_may_have_been_given_up_lends_nothing() {
    let shared = Shared::default();
    let server = server(Some(Arc::<Fails>::default()));
    let mut server = server.with_lender(Arc::new(shared.clone()));
    assert!(write(&mut server, 1, b"first"));
    let first = lent(&mut server).unwrap();
    server.tick(server.config.term - 1, &mut Outbox::new());
    assert_eq!(opens(&shared, first).unwrap(), b"first");
    server.tick(server.config.term, &mut Outbox::new());
    assert_eq!(opens(&shared, first), None);
}

#[test]
fn who_comes_in_hears_where_blocks_are_lent() {
    let (mut server, _) = lending();
    let enter = Message::Enter {
        epoch: EPOCH,
        claims: Vec::new(),
    };
    let said = tell(&mut server, enter);
    let key = server.key();
    assert!(
        matches!(&said[..], [Message::Entered { .. }, Message::Lends { key: of, .. }] if *of == key)
    );
}
