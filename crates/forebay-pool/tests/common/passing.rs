//! Blocks that are read past their server, by whichever fabric the test program is called by.

use std::thread;
use std::time::{Duration, Instant};

use forebay_pool::client::{Answer, Mode, Operation};
use forebay_pool::ids::File;
use forebay_pool::net::{By, Config, Pool, Serving};

use super::common::{PATIENCE, addresses, by_fabric};

const BLOCK: usize = 4096;

fn pool(more: &str) -> Option<Config> {
    let server = addresses(1)[0];
    let text = format!("servers = [\"{server}\"]\nterm_ms = 4000\nblock_bytes = {BLOCK}\n{more}");
    let config = by_fabric(Config::parse(&text).unwrap());
    (config.fabric != By::None).then_some(config)
}

fn join(config: &Config) -> Pool {
    Pool::join(config, PATIENCE).unwrap()
}

fn make(pool: &Pool) -> File {
    let made = pool.run(Operation::MakeNameless);
    let Ok(Answer::Made(entry, _)) = made else {
        panic!("{made:?}");
    };
    entry.file
}

fn write(pool: &Pool, file: File, offset: u64, bytes: &[u8], mode: Mode) {
    let write = Operation::Write {
        file,
        offset,
        bytes: bytes.to_vec().into(),
        mode,
    };
    assert_eq!(pool.run(write), Ok(Answer::Done));
}

fn read(pool: &Pool, file: File, offset: u64, length: usize) -> Vec<u8> {
    let read = Operation::Read {
        file,
        offset,
        length: length as u64,
        mode: Mode::Remote,
    };
    match pool.run(read) {
        Ok(Answer::Bytes(bytes)) => bytes.into_vec(),
        other => panic!("{}", other.is_ok()),
    }
}

/// Reads until it goes past the server, and says what came then.
fn read_past(pool: &Pool, file: File, offset: u64, length: usize) -> Vec<u8> {
    let until = Instant::now() + PATIENCE;
    loop {
        let before = pool.passed().0;
        let bytes = read(pool, file, offset, length);
        if pool.passed().0 > before {
            return bytes;
        }
        assert!(Instant::now() < until, "{:?}", pool.passed());
        thread::sleep(Duration::from_millis(1));
    }
}

fn bytes(of: u8, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 7) as u8 ^ of).collect()
}

#[test]
fn lent_blocks_are_read_past_their_server() {
    let Some(config) = pool("") else {
        return;
    };
    let server = Serving::begin(&config, 0).unwrap();
    let (a, b) = (join(&config), join(&config));
    assert_eq!(server.lends(), Some(Ok(config.fabric.provider().unwrap())));
    let file = make(&a);
    let length = 300_000;
    let mut all = bytes(1, length);
    write(&a, file, 0, &all, Mode::Remote);
    // What one has read so, and another writes, is never old, with whole blocks and parts of them, at the servers and in memory.
    for round in 0..20_u8 {
        for pool in [&a, &b] {
            assert!(read_past(pool, file, 0, length) == all, "round {round}");
            let (from, count) = (usize::from(round) * 1000 + 1, 9_000);
            let part = read_past(pool, file, from as u64, count);
            assert!(part == all[from..from + count], "round {round}");
        }
        let (from, count) = (
            usize::from(round) * 4000,
            [300, 10_000][usize::from(round) % 2],
        );
        let new = bytes(round + 2, count);
        all[from..from + count].copy_from_slice(&new);
        let (writer, mode) = [(&a, Mode::Remote), (&b, Mode::Local)][usize::from(round) / 2 % 2];
        write(writer, file, from as u64, &new, mode);
        for pool in [&a, &b] {
            assert!(read(pool, file, 0, length) == all, "round {round}");
        }
    }
    // Behind the file's end, and where nobody has written.
    let size = Operation::Truncate {
        file,
        size: 400_000,
    };
    assert_eq!(a.run(size), Ok(Answer::Done));
    all.resize(400_000, 0);
    for _ in 0..3 {
        assert!(read(&b, file, 0, 500_000) == all);
    }
    // No key was ever refused: whoever reads has always heard of what changed.
    assert_eq!((a.passed().1, b.passed().1), (0, 0));
}

#[test]
fn a_pool_that_does_not_lend_is_read_by_messages() {
    let Some(config) = pool("") else {
        return;
    };
    let without = Config {
        fabric: By::None,
        ..config.clone()
    };
    let server = Serving::begin(&without, 0).unwrap();
    let pool = join(&config);
    let file = make(&pool);
    write(&pool, file, 0, &bytes(1, 10_000), Mode::Remote);
    for _ in 0..5 {
        assert!(read(&pool, file, 0, 10_000) == bytes(1, 10_000));
    }
    assert_eq!(pool.passed(), (0, 0));
    assert_eq!(server.lends(), None);
}

#[test]
fn blocks_that_have_gone_from_a_servers_memory_are_read_by_messages() {
    let home = tempfile::tempdir().unwrap();
    let more = format!("home = \"{}\"\nmemory_mib = 1\n", home.path().display());
    let Some(config) = pool(&more) else {
        return;
    };
    let _server = Serving::begin(&config, 0).unwrap();
    let pool = join(&config);
    let (file, length) = (make(&pool), 3 << 20);
    write(&pool, file, 0, &bytes(1, length), Mode::Remote);
    assert_eq!(pool.run(Operation::Sync { file }), Ok(Answer::Done));
    let began = read_past(&pool, file, 0, BLOCK);
    assert!(began == bytes(1, length)[..BLOCK]);
    // All the others take its place.
    assert!(read(&pool, file, 0, length) == bytes(1, length));
    let (_, failed) = pool.passed();
    assert!(read(&pool, file, 0, BLOCK) == began);
    assert_eq!(pool.passed().1, failed + 1);
    // And after a while it goes past the server again.
    assert!(read_past(&pool, file, 0, BLOCK) == began);
}

#[test]
fn an_epoch_ends_all_loans() {
    let Some(config) = pool("") else {
        return;
    };
    let _server = Serving::begin(&config, 0).unwrap();
    let pool = join(&config);
    let file = make(&pool);
    let mut all = bytes(1, 20_000);
    write(&pool, file, 0, &all, Mode::Remote);
    for round in 0..5_u8 {
        assert!(read_past(&pool, file, 0, 20_000) == all);
        // Who goes begins an epoch, and may have written before.
        let other = join(&config);
        all = bytes(round, 20_000);
        write(&other, file, 0, &all, Mode::Remote);
        drop(other);
        assert!(read(&pool, file, 0, 20_000) == all, "round {round}");
    }
}
