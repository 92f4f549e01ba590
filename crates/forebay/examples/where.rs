//! Scratch.
use forebay::*;
use std::time::Instant;
fn main() {
    let dir = std::env::args().nth(1).unwrap();
    let route = std::env::args().nth(2).unwrap();
    let mut c = Config::builder().build().unwrap();
    c.session = "where".into();
    c.route = if route == "scrap" {
        forebay::config::Route::Scrap
    } else {
        forebay::config::Route::Auto
    };
    c.memory = 2 << 30;
    c.dirty_bytes_max = 1500 << 20;
    c.dirty_background = 1400 << 20;
    if let Some(d) = std::env::args().nth(3) {
        c.arena_dir = Some(d.into());
    }
    let s = Session::open(c).unwrap();
    let t = Instant::now();
    s.warm(700 << 20).unwrap();
    println!("warm {:?} place {:?}", t.elapsed(), s.place());
    let buf = vec![7u8; 256 << 20];
    for round in 0..4 {
        let f = s
            .open_file(
                format!("{dir}/w{round}"),
                OpenOptions::new().read(true).write(true).create(true),
            )
            .unwrap();
        let t = Instant::now();
        let mut worst = 0;
        for i in 0..512u64 {
            let u = Instant::now();
            let from = (i as usize % 256) << 20;
            f.write_at(&buf[from..from + (1 << 20)], i << 20).unwrap();
            worst = worst.max(u.elapsed().as_micros());
        }
        let ret = t.elapsed();
        f.sync_all().unwrap();
        println!(
            "{round} returned {:.2} GB/s durable {:.2} GB/s worst {worst} us {:?}",
            0.537 / ret.as_secs_f64(),
            0.537 / t.elapsed().as_secs_f64(),
            f.kernel_reason()
        );
        f.close().unwrap();
        std::fs::remove_file(format!("{dir}/w{round}")).unwrap();
    }
    println!("{:?}", s.stats());
}
