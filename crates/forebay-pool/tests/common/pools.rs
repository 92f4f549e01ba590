//! Pools whose bytes a fabric moves, by whichever the test program is called by.

use forebay_pool::client::{Answer, Mode, Operation};
use forebay_pool::ids::File;
use forebay_pool::net::{Config, Pool, Serving, Way};

use super::common::{PATIENCE, addresses, by_fabric};

fn pool() -> Option<Config> {
    let server = addresses(1)[0];
    let text = format!("servers = [\"{server}\"]\nterm_ms = 4000");
    let config = by_fabric(Config::parse(&text).unwrap());
    (config.fabric != Way::None).then_some(config)
}

fn make(pool: &Pool) -> File {
    let made = pool.run(Operation::MakeNameless);
    let Ok(Answer::Made(entry, _)) = made else {
        panic!("{made:?}");
    };
    entry.file
}

fn write(pool: &Pool, file: File, bytes: &[u8], mode: Mode) {
    let write = Operation::Write {
        file,
        offset: 0,
        bytes: bytes.to_vec().into(),
        mode,
    };
    assert_eq!(pool.run(write), Ok(Answer::Done));
}

fn read(pool: &Pool, file: File, length: u64, mode: Mode) -> Vec<u8> {
    let read = Operation::Read {
        file,
        offset: 0,
        length,
        mode,
    };
    match pool.run(read) {
        Ok(Answer::Bytes(bytes)) => bytes.into_vec(),
        other => panic!("{}", other.is_ok()),
    }
}

#[test]
fn bytes_go_by_the_fabric_both_ways() {
    let Some(config) = pool() else {
        return;
    };
    let server = Serving::begin(&config, 0).unwrap();
    let (a, b) = (
        Pool::join(&config, PATIENCE).unwrap(),
        Pool::join(&config, PATIENCE).unwrap(),
    );
    let file = make(&a);
    for (mode, length) in [
        (Mode::Remote, 1 << 20),
        (Mode::Local, 3 << 20),
        (Mode::Remote, 5000),
    ] {
        let bytes: Vec<u8> = (0..length).map(|at| (at / 7 + length) as u8).collect();
        let (server_had, b_had) = (server.taken_by_fabric(), b.taken_by_fabric());
        write(&a, file, &bytes, mode);
        let seen = read(&b, file, length as u64, mode);
        assert!(seen == bytes, "{mode:?} {length}");
        let (server_has, b_has) = (server.taken_by_fabric(), b.taken_by_fabric());
        assert!(
            server_has >= server_had + length as u64,
            "{mode:?} {length} to the server"
        );
        assert!(b_has >= b_had + length as u64, "{mode:?} {length} from it");
    }
}

#[test]
fn who_has_no_fabric_is_a_member_too() {
    let Some(config) = pool() else {
        return;
    };
    let server = Serving::begin(&config, 0).unwrap();
    let without = Config {
        fabric: Way::None,
        ..config.clone()
    };
    let (a, b) = (
        Pool::join(&config, PATIENCE).unwrap(),
        Pool::join(&without, PATIENCE).unwrap(),
    );
    let file = make(&b);
    let bytes = vec![5; 1 << 20];
    write(&b, file, &bytes, Mode::Remote);
    assert_eq!(server.taken_by_fabric(), 0);
    assert!(read(&a, file, 1 << 20, Mode::Remote) == bytes);
    assert!(a.taken_by_fabric() >= 1 << 20);
    assert!(read(&b, file, 1 << 20, Mode::Remote) == bytes);
    assert_eq!(b.taken_by_fabric(), 0);
}
