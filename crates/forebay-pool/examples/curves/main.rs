//! Pools of many clients and servers in simulated time, of the same machines that real pools have: throughput, latency, messages for each request, and how
//! long a pool takes to settle after a death.
//!
//!     cargo run --release -p forebay-pool --example curves -- real        what a message costs, on this host
//!     cargo run --release -p forebay-pool --example curves -- writers [MB_PER_S]  writers of one file, by processes of this host; memory may be held down
//!     cargo run --release -p forebay-pool --example curves -- epoch       what the news of an epoch costs a server, on this host
//!     cargo run --release -p forebay-pool --example curves -- requests [CLIENTS SERVERS]
//!     cargo run --release -p forebay-pool --example curves -- deaths [CLIENTS SERVERS]
//!     cargo run --release -p forebay-pool --example curves -- breakdown   writers of one file, by the file's lock and by blocks' locks
//!
//! All but the first three say the same on any machine.

mod breakdown;
mod epoch;
mod load;
mod real;
mod world;
mod writers;

use std::time::Instant;

use load::{Load, What};
use world::{Costs, MS, Size, TERM, World};

/// Processor time as `real` measures it on a host that others use as well: 9 to 13 µs for a request of 4 KiB at its server, which is two messages, and 60 to
/// 130 for one of 1 MiB. What a request costs its client before that is what 4 KiB take locally (docs/pool.md). The network is one of 25 Gbit/s.
const COSTS: Costs = Costs {
    message: 5_000,
    kib: 100,
    request: 1_500,
    delay: 10_000,
    link_kib: 330,
};

const CLIENTS: [u32; 3] = [10, 100, 1000];
const SERVERS: [u32; 4] = [4, 16, 64, 128];

/// How long programs are at work before they are measured, and how long that is.
const BEFORE: u64 = 100 * MS;
const MEASURED: u64 = 200 * MS;

fn size(clients: u32, servers: u32) -> Size {
    Size {
        servers,
        clients,
        copies: 2,
        block_bytes: 4096,
        wish_blocks: 16,
    }
}

fn of_hundred(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Of sorted numbers the one that so many of a hundred are below, in microseconds.
fn below(took: &[u64], of_hundred: usize) -> f64 {
    took.get(took.len() * of_hundred / 100)
        .map_or(0.0, |took| *took as f64 / 1e3)
}

fn requests(clients: u32, servers: u32) {
    for what in What::ALL {
        let began = Instant::now();
        let size = size(clients, servers);
        let mut load = Load::new(World::new(size, COSTS), size, what);
        let set_up = load.world.now / MS;
        load.begin();
        load.run(load.world.now + BEFORE);
        load.world.forget_counts();
        load.took.clear();
        load.run(load.world.now + MEASURED);
        let (counts, [of_servers, of_clients]) = (load.world.counts, load.world.load(MEASURED));
        load.took.sort_unstable();
        let done = load.took.len() as f64;
        println!(
            "| {} | {clients} | {servers} | {:.0} | {:.0}, {:.0} | {:.1} | {}, {}, {} | {} | {} |",
            what.name(),
            done / (MEASURED / MS) as f64,
            below(&load.took, 50),
            below(&load.took, 99),
            counts.messages as f64 / done,
            of_hundred(of_servers.busiest),
            of_hundred(of_servers.first),
            of_hundred(of_servers.mean),
            of_hundred(of_clients.mean),
            of_hundred(of_servers.link.max(of_clients.link)),
        );
        let second = |count: u64| count * 1000 / (MEASURED / MS);
        eprintln!(
            "set up in {set_up} ms of simulated time; signs of life and answers: {} a second, {} KiB; {:.1?} of real time",
            second(counts.signs),
            second(counts.sign_bytes) >> 10,
            began.elapsed()
        );
    }
}

fn deaths(clients: u32, servers: u32) {
    let began = Instant::now();
    let size = size(clients, servers);
    let mut load = Load::new(World::new(size, COSTS), size, What::Groups);
    // Programs that ask now and then: what is measured is the pool.
    load.pause = 50 * MS;
    load.begin();
    load.run(load.world.now + 500 * MS);
    let (died, epoch) = (load.world.now, load.world.register().view().epoch);
    load.world.kill(servers - 1);
    let run = |load: &mut Load, is_there: &dyn Fn(&World) -> bool| {
        while !is_there(&load.world) {
            load.run(load.world.now + MS);
            assert!(load.world.now < died + 4 * TERM * MS, "it does not settle");
        }
        load.world.now
    };
    let begun = run(&mut load, &|world| world.register().view().epoch > epoch);
    load.world.forget_counts();
    let active = run(&mut load, &|world| world.register().view().active);
    let known = run(&mut load, &|world| world.is_settled());
    let mut last = load.last.clone();
    // All programs have had an answer of this epoch's servers, or of their own memory.
    while last.iter().any(|at| *at < active) {
        load.run(load.world.now + MS);
        last.clone_from(&load.last);
        assert!(
            load.world.now < died + 6 * TERM * MS,
            "programs do not go on"
        );
    }
    let went_on = load.world.now;
    let ms = |from: u64, to: u64| to.saturating_sub(from) / MS;
    println!(
        "| {clients} | {servers} | {} | {} | {} | {} | {} | {} | {} |",
        load.world.blocks(),
        ms(died, begun),
        ms(begun, active),
        ms(begun, known),
        ms(begun, went_on),
        load.world.counts.messages,
        of_hundred(load.world.load(went_on - begun)[0].busiest),
    );
    load.world.forget_counts();
    load.run(load.world.now + MEASURED);
    let counts = load.world.counts;
    eprintln!(
        "signs of life and answers after that: {} a second, {} KiB; {:.1?} of real time",
        counts.signs * 1000 / (MEASURED / MS),
        (counts.sign_bytes * 1000 / (MEASURED / MS)) >> 10,
        began.elapsed()
    );
}

const REQUESTS: &str = "| what | clients | servers | requests for each ms | µs: half below, 99 of 100 below | messages for each request | servers at work: busiest, first, mean | clients | busiest link |\n|---|---|---|---|---|---|---|---|---|";
const DEATHS: &str = "| clients | servers | blocks | ms to the next epoch | until servers have all | until clients know | until all programs go on | messages | busiest server |\n|---|---|---|---|---|---|---|---|---|";

fn table(head: &str, row: fn(u32, u32), one: &[&str]) {
    println!("{head}");
    if let [clients, servers] = one {
        let number = |text: &str| text.parse().expect("a number");
        return row(number(clients), number(servers));
    }
    for clients in CLIENTS {
        for servers in SERVERS {
            row(clients, servers);
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", address, block_bytes] => real::serve(address, block_bytes),
        ["write", of_client @ ..] => writers::write(of_client),
        ["writers"] => writers::rows(0),
        ["writers", speed] => writers::rows(speed.parse().expect("MB/s")),
        ["real"] => real::rows(),
        ["epoch"] => epoch::rows(),
        ["breakdown"] => breakdown::rows(COSTS),
        ["requests", one @ ..] => table(REQUESTS, requests, one),
        ["deaths", one @ ..] => table(DEATHS, deaths, one),
        _ => println!(
            "curves real | curves writers | curves epoch | curves requests | curves deaths | curves breakdown"
        ),
    }
}
