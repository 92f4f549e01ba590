//! To whom removals and truncations go.

use std::collections::BTreeSet;

use super::*;
use crate::message::Loss;
use crate::placement::{key_of_block, owners};

/// A client in a pool of so many servers, which is in its second epoch. Of the only one in the first all is lost, or nothing.
fn among(servers: u32, is_lost: bool) -> Desk {
    let mut desk = Desk::new();
    begin_epoch(&mut desk, 2, servers, is_lost);
    desk
}

fn begin_epoch(desk: &mut Desk, epoch: u64, servers: u32, is_lost: bool) -> Outbox {
    let (epoch, servers) = (Epoch(epoch), (1..=servers).map(Server));
    let loss = Loss {
        epoch,
        before: vec![Server(1)],
        dead: vec![Server(1)],
    };
    let view = View {
        epoch,
        servers: servers.clone().collect(),
        clients: vec![Id(9)],
        active: true,
        losses: Vec::from_iter(is_lost.then_some(loss)),
        ..View::default()
    };
    let member = Message::Member {
        sent: 0,
        view: Some(view),
    };
    let mut out = Outbox::new();
    desk.client.handle(0, Node::Register, member, &mut out);
    for server in servers {
        let entered = Message::Entered { epoch, key: Key(1) };
        desk.client
            .handle(0, Node::Server(server), entered, &mut out);
    }
    out
}

/// The servers that are to discard something.
fn discarding(out: &Outbox) -> BTreeSet<Server> {
    let all = out.iter().filter_map(|(to, message)| match (to, message) {
        (Node::Server(server), Message::Discard { .. }) => Some(*server),
        _ => None,
    });
    all.collect()
}

/// Those that discard something for an operation on a file of two blocks, or of one of which nothing is there.
fn asked(desk: &mut Desk, operation: Operation, is_there: bool) -> BTreeSet<Server> {
    let mut out = Outbox::new();
    desk.client.begin(0, 1, operation, &mut out);
    loop {
        let to = discarding(&out);
        if !to.is_empty() {
            return to;
        }
        assert!(!out.is_empty(), "nothing is discarded");
        for (to, message) in std::mem::take(&mut out) {
            let answer = match message {
                Message::Ask { .. } => granted(&message, 1),
                Message::Read { number, .. } => {
                    let size = [2 * UNIT, 2 * UNIT, 1, 0, 0, 0, 0, 0].map(u64::to_le_bytes);
                    let size = size.as_flattened();
                    Message::Bytes {
                        number,
                        found: vec![is_there.then_some(size.len() as u32)],
                        bytes: size[..if is_there { size.len() } else { 0 }]
                            .to_vec()
                            .into(),
                    }
                }
                Message::Write { number, .. } => Message::Done { number },
                message => panic!("{message:?}"),
            };
            desk.client.handle(0, to, answer, &mut out);
        }
    }
}

fn owners_of(desk: &Desk, blocks: &[u64]) -> BTreeSet<Server> {
    let of = |block| owners(&desk.client.view.servers, key_of_block(FILE, block), 1);
    blocks.iter().copied().flat_map(of).collect()
}

#[test]
fn what_is_removed_or_cut_goes_at_the_servers_that_can_have_it() {
    let mut desk = among(40, false);
    let removed = asked(&mut desk, Operation::Remove { file: FILE }, true);
    assert_eq!(removed, owners_of(&desk, &[0, 1, SIZE_BLOCK]));
    // In another epoch others have it.
    let renewed = discarding(&begin_epoch(&mut desk, 3, 60, false));
    assert_eq!(renewed, owners_of(&desk, &[0, 1, SIZE_BLOCK]));
    assert_ne!(renewed, removed);
    for (size, cut) in [(0, &[0, 1][..]), (UNIT - 1, &[1]), (2 * UNIT - 1, &[2])] {
        let mut desk = among(40, false);
        let asked = asked(&mut desk, Operation::Truncate { file: FILE, size }, true);
        assert_eq!(asked, owners_of(&desk, cut), "{size}");
    }
}

#[test]
fn a_file_whose_size_is_lost_is_removed_at_all_servers() {
    let mut desk = among(40, true);
    let removed = asked(&mut desk, Operation::Remove { file: FILE }, false);
    assert_eq!(removed.len(), 40);
}

#[test]
fn a_file_of_many_blocks_is_removed_at_all_servers() {
    let mut desk = among(2, false);
    let removed = asked(&mut desk, Operation::Remove { file: FILE }, true);
    assert_eq!(removed.len(), 2);
}
