//! How long a real member is at work, and answers nobody, when it hears of an epoch of many servers: a server looks where each of its blocks belongs, and
//! a client who keeps the locks of each of its files.

use std::time::Instant;

use forebay_pool::client;
use forebay_pool::ids::{Client, Epoch, File, Node, Server as Id, Version};
use forebay_pool::message::{Block, Message, Outbox, View};
use forebay_pool::range::{Range, Right};
use forebay_pool::server::{Config, Server};

const CLIENT: Client = Client(1);

fn view(epoch: u64, servers: u32) -> Message {
    let view = View {
        epoch: Epoch(epoch),
        servers: (1..=servers).map(Id).collect(),
        clients: vec![CLIENT],
        active: epoch == 1,
        ..View::default()
    };
    Message::Member {
        sent: 0,
        view: Some(view),
    }
}

/// A server with so many blocks.
fn server(blocks: u64) -> Server {
    let config = Config {
        copies: 2,
        alive_every: 100,
        term: 9_000,
        patience: 20_000,
        secret: 7,
    };
    let mut server = Server::new(Id(1), config);
    let mut out = Outbox::new();
    server.handle(0, Node::Register, view(1, 1), &mut out);
    let enter = Message::Enter {
        epoch: Epoch(1),
        claims: Vec::new(),
    };
    server.handle(0, Node::Client(CLIENT), enter, &mut out);
    let Some((_, Message::Entered { key, .. })) = out.pop() else {
        panic!("it lets nobody in: {out:?}")
    };
    let blocks = (0..blocks).map(|block| Block {
        place: (File(7), block),
        version: Version::default(),
        bytes: b"few"[..].into(),
    });
    let write = Message::Write {
        key,
        number: 1,
        blocks: blocks.collect(),
    };
    server.handle(0, Node::Client(CLIENT), write, &mut out);
    server
}

/// A client with so many files, of each of which it has a block's grant.
fn client(files: u64) -> client::Client {
    let config = client::Config {
        block_bytes: 1 << 16,
        copies: 2,
        term: 9_000,
        alive_every: 100,
        cache_blocks: 1024,
        flush_interval: 5_000,
        has_home: false,
        wish_blocks: 16,
    };
    let mut client = client::Client::new(CLIENT, config);
    let mut out = Outbox::new();
    client.handle(0, Node::Register, view(1, 1), &mut out);
    for file in 2..files + 2 {
        let granted = Message::Granted {
            epoch: Epoch(1),
            number: 0,
            file: File(file),
            range: Range::one(0),
            right: Right::Shared,
            stamp: file,
        };
        client.handle(0, Node::Server(Id(1)), granted, &mut out);
    }
    client
}

/// Milliseconds of the news of an epoch, the median of three.
fn median(mut news: impl FnMut() -> f64) -> f64 {
    let mut rounds = [(); 3].map(|()| news());
    rounds.sort_by(f64::total_cmp);
    rounds[1]
}

pub fn rows() {
    println!("| a client's files | servers | ms |\n|---|---|---|");
    let full = client(8192);
    for servers in [4, 16, 64, 128] {
        let ms = median(|| {
            let (mut client, mut out) = (full.clone(), Outbox::new());
            let Message::Member {
                sent,
                view: Some(mut view),
            } = view(2, servers)
            else {
                panic!("no view")
            };
            view.active = true;
            let began = Instant::now();
            client.handle(
                0,
                Node::Register,
                Message::Member {
                    sent,
                    view: Some(view),
                },
                &mut out,
            );
            began.elapsed().as_secs_f64() * 1e3
        });
        println!("| 8192 | {servers} | {ms:.1} |");
    }
    rows_of_servers();
}

fn rows_of_servers() {
    println!("| a server's blocks | servers | ms |\n|---|---|---|");
    for blocks in [4_096, 65_536] {
        let full = server(blocks);
        for servers in [4, 16, 64, 128] {
            let ms = median(|| {
                let (mut server, mut out) = (full.clone(), Outbox::new());
                let began = Instant::now();
                server.handle(0, Node::Register, view(2, servers), &mut out);
                began.elapsed().as_secs_f64() * 1e3
            });
            println!("| {blocks} | {servers} | {ms:.1} |");
        }
    }
}
