//! What a server's door lets in, and what strangers before it do to others.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use super::link::{self, Dialled, Dialler, Hello, Welcome};
use super::security::Security;
use super::{Config, Pool, Serving};
use crate::ids::Server;
use crate::wire;

const PATIENCE: Duration = Duration::from_secs(60);

/// A pool on addresses that no other process uses.
fn config(servers: u16) -> Config {
    static PORT: AtomicU16 = AtomicU16::new(7400);
    let [a, b, c, d] = std::process::id().to_be_bytes();
    let host = Ipv4Addr::new(127, (a ^ b) | 0x40, c, d);
    let first = PORT.fetch_add(servers, Ordering::Relaxed);
    let all: Vec<String> = { first..first + servers }
        .map(|port| format!("\"{}\"", SocketAddr::from((host, port))))
        .collect();
    Config::parse(&format!("servers = [{}]", all.join(","))).unwrap()
}

fn dial(config: &Config, index: usize, birth: u64, dialler: Dialler) -> Welcome {
    let hello = Hello {
        pool: config.mark(),
        birth,
        dialler,
    };
    let door = Dialled {
        to: config.servers[index],
        security: &Security::None,
        hello: &hello,
    };
    let until = std::time::Instant::now() + PATIENCE;
    loop {
        match link::dial(&door) {
            Ok((_, welcome)) => return welcome,
            // It does not listen yet.
            Err(why) => assert!(std::time::Instant::now() < until, "{why}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_server_lets_in_later_servers_only() {
    let config = config(3);
    let servers: Vec<Serving> = (0..3)
        .map(|index| Serving::begin(&config, index).unwrap())
        .collect();
    let Welcome::In { birth, .. } = dial(&config, 0, 0, Dialler::NewClient) else {
        panic!("a client is not let in");
    };
    // All servers have their numbers when a client has joined.
    let pool = Pool::join(&config, PATIENCE).unwrap();
    // Numbers 4 to 6 are those of servers that were begun again. Nobody has been given them: members are believed that.
    let later = [&[2, 3, 5, 6][..], &[3, 6], &[]];
    for (index, later) in later.into_iter().enumerate() {
        for number in 0..=6 {
            let welcome = dial(&config, index, birth, Dialler::Server(Server(number)));
            let is_in = matches!(welcome, Welcome::In { .. });
            assert_eq!(is_in, later.contains(&number), "{number} at {index}");
        }
    }
    drop((pool, servers));
}

/// Less than a greeting may take by itself.
const SOON: Duration = Duration::from_secs(8);

/// Whether the other side ends a connection soon.
fn is_ended(stranger: &mut TcpStream) -> bool {
    stranger.set_read_timeout(Some(SOON)).unwrap();
    let mut heard = Vec::new();
    let end = stranger.read_to_end(&mut heard);
    end.map_or_else(|error| error.kind() == ErrorKind::ConnectionReset, |_| true)
}

#[test]
fn strangers_who_say_nothing_keep_nobody_out() {
    let config = config(1);
    let serving = Serving::begin(&config, 0).unwrap();
    let strangers = (0..100).map(|_| TcpStream::connect(config.servers[0]).unwrap());
    let mut strangers: Vec<TcpStream> = strangers.collect();
    // So many are listened to at once, and the first of them give way.
    assert!({ strangers[..30].iter_mut() }.all(is_ended));
    let pool = Pool::join(&config, PATIENCE).unwrap();
    // A member is let in for good, whoever comes afterwards.
    let later = (0..100).map(|_| TcpStream::connect(config.servers[0]).unwrap());
    let mut later: Vec<TcpStream> = later.collect();
    assert!(is_ended(&mut later[0]));
    let made = pool.run(crate::client::Operation::List {
        parent: crate::ids::File::ROOT,
    });
    assert_eq!(made, Ok(crate::client::Answer::Names(Vec::new())));
    drop(pool);
    serving.stop();
    serving.wait().unwrap();
}

#[test]
fn a_stranger_is_not_listened_to_for_long() {
    let config = config(1);
    let serving = Serving::begin(&config, 0).unwrap();
    let mut stranger = TcpStream::connect(config.servers[0]).unwrap();
    stranger.write_all(&wire::MARK).unwrap();
    stranger.write_all(&(1_u32 << 20).to_le_bytes()).unwrap();
    // It may be cut off in the midst of this.
    let _ = stranger.write_all(&[0; 1 << 16]);
    assert!(is_ended(&mut stranger));
    serving.stop();
    serving.wait().unwrap();
}
