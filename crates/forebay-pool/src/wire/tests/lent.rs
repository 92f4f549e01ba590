//! Messages whose bytes are lent, and keys that do not fit.

use super::*;
use crate::fabric::Key as Lent;

/// Lends bytes by keys that say how many, and which each of them is.
struct Lender;

impl Lend for Lender {
    fn lend(&self, pieces: &[&Bytes]) -> Option<(u64, Vec<Lent>)> {
        let pieces = pieces.iter().filter(|piece| !piece.is_empty());
        let keys = pieces.map(|piece| key(piece[0], piece.len()));
        Some((77, keys.collect()))
    }
}

impl Take for Lender {
    fn take(&self, keys: &[Lent], is_one: bool) -> io::Result<Vec<Bytes>> {
        let all = keys.iter().map(|key| {
            let form = postcard::to_stdvec(key).unwrap();
            let (number, ..): (u64, u64, u64) = postcard::from_bytes(&form).unwrap();
            vec![number as u8; key.len() as usize]
        });
        Ok(if is_one {
            vec![all.flatten().collect::<Vec<u8>>().into()]
        } else {
            all.map(Bytes::from).collect()
        })
    }
}

fn key(number: u8, length: usize) -> Lent {
    let form = postcard::to_stdvec(&(u64::from(number), 0_u64, length as u64));
    postcard::from_bytes(&form.unwrap()).unwrap()
}

fn hear_lent(frame: &[u8], take: Option<&dyn Take>) -> io::Result<Option<Heard>> {
    hear(&mut &*frame, &mut Vec::new(), take)
}

fn whole(parcel: &Parcel) -> Vec<u8> {
    parcel.0.iter().flatten().copied().collect()
}

fn samples() -> [Message; 2] {
    let block = |number: u8, length| Block {
        place: (FILE, number.into()),
        version: Version {
            epoch: 1,
            stamp: 2,
            change: 3,
        },
        bytes: vec![number; length].into(),
    };
    let mut bytes = Rope::from(vec![4; 5]);
    bytes.push(vec![6; 7].into());
    [
        Message::Write {
            key: Key(1),
            number: 9,
            blocks: vec![block(1, 10), block(2, 0), block(3, 4)],
        },
        Message::Bytes {
            number: 9,
            found: vec![Some(5), None, Some(7)],
            bytes,
        },
    ]
}

#[test]
fn what_is_lent_comes_back_as_it_was() {
    for message in samples() {
        let frame = whole(&Parcel::lending(&message, 1, Some(&Lender)).unwrap());
        let Heard::Message(flags, heard, ticket) =
            hear_lent(&frame, Some(&Lender)).unwrap().unwrap()
        else {
            panic!("a ticket");
        };
        assert_eq!((flags, ticket), (1 | BY_FABRIC, Some(77)));
        assert_eq!(heard, message);
        assert!(hear_lent(&frame, None).is_err(), "keys without a fabric");
        for length in 0..frame.len() {
            let cut = hear_lent(&frame[..length], Some(&Lender));
            assert!(!matches!(cut, Ok(Some(_))), "cut at {length}");
        }
    }
    let taken = whole(&Parcel::taken(77));
    let heard = hear_lent(&taken, None).unwrap();
    assert!(matches!(heard, Some(Heard::Taken(77))));
}

#[test]
fn keys_that_do_not_fit_their_message_are_refused() {
    let [_, message] = samples();
    let heard = |lengths: &[u32], keys: &[Lent]| {
        let mut head = postcard::to_stdvec(&(&message, lengths)).unwrap();
        head.extend(postcard::to_stdvec(&(5_u64, keys)).unwrap());
        let frame = frame(BEFORE_HEAD - 4 + head.len(), BY_FABRIC, &head);
        hear_lent(&frame, Some(&Lender)).is_ok()
    };
    assert!(heard(&[12], &[key(1, 1), key(2, 11)]));
    for keys in [
        vec![],
        vec![key(1, 11)],
        vec![key(1, 13)],
        vec![key(1, 12), key(1, 0)],
        vec![key(1, usize::MAX)],
        vec![key(1, usize::MAX), key(1, 13)],
        vec![key(1, BLOCK_MAX); 20],
    ] {
        assert!(!heard(&[12], &keys), "{keys:?}");
    }
    assert!(!heard(&[BLOCK_MAX as u32 + 1], &[key(1, BLOCK_MAX + 1)]));
    let [message, _] = samples();
    let heard = |lengths: &[u32], keys: &[Lent]| {
        let mut head = postcard::to_stdvec(&(&message, lengths)).unwrap();
        head.extend(postcard::to_stdvec(&(5_u64, keys)).unwrap());
        let frame = frame(BEFORE_HEAD - 4 + head.len(), BY_FABRIC, &head);
        hear_lent(&frame, Some(&Lender)).is_ok()
    };
    assert!(heard(&[10, 0, 4], &[key(1, 10), key(3, 4)]));
    assert!(!heard(&[10, 0, 4], &[key(1, 4), key(3, 10)]));
    assert!(!heard(&[10, 0, 4], &[key(1, 14)]));
    assert!(!heard(&[10, 4], &[key(1, 10), key(3, 4)]));
}
