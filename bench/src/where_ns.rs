//! Where the nanoseconds of a 4 KiB write go: the whole, beside what its parts cost in the same loop
//! with the same bytes and offsets. The remainder is what a side spends on finding, locking and
//! accounting.

use crate::failure::{Context, Result};
use crate::memory::{PAGE, warm};
use crate::meter::Pinned;
use crate::report::columns;
use crate::requests::{Request, Shape, make};
use crate::run::Bench;
use crate::sides::null::{Copy, Null, Syscall};
use crate::sides::{Side, SideKind};
use crate::stats::Summary;

/// Prints the breakdown for overwrites of a file of `size` bytes in memory, in order and at random.
pub fn print(bench: &mut Bench, size: u64) -> Result<()> {
    for shape in [Shape::Sequential { len: PAGE as u32 }, Shape::RandomPages] {
        let requests = make(shape, size, size);
        let order = if shape == Shape::RandomPages {
            "random"
        } else {
            "sequential"
        };
        println!(
            "\nwhere-ns, 4 KiB {order} overwrites of {:.3} GB in memory",
            size as f64 / 1e9
        );
        let null = time(bench, &requests, &mut Null)?;
        let syscall = time(bench, &requests, &mut Syscall)?;
        let mut memory = Copy::new(size).context("memory as large as the file")?;
        let copy = time(bench, &requests, &mut memory)?;
        drop(memory);
        let mut rows = vec![
            ["", "ns", "spread", "less copy"]
                .map(str::to_owned)
                .to_vec(),
        ];
        let mut row = |name: &str, summary: Summary, rest: Option<f64>| {
            rows.push(vec![
                name.to_owned(),
                format!("{:.0}", summary.median),
                format!("{:.0}..{:.0}", summary.min, summary.max),
                rest.map_or(String::new(), |rest| format!("{rest:.0}")),
            ]);
        };
        row("null (the loop)", null, None);
        row("null system call", syscall, None);
        row("copy alone", copy, None);
        for kind in [SideKind::Kernel, SideKind::ForebayAuto] {
            match time_side(bench, &requests, size, kind) {
                Ok(summary) => row(&kind.name(), summary, Some(summary.median - copy.median)),
                Err(crate::failure::Failure::Unavailable(_)) => {}
                Err(failure) => return Err(failure),
            }
        }
        print!("{}", columns(&rows));
    }
    Ok(())
}

fn time_side(
    bench: &mut Bench,
    requests: &[Request],
    size: u64,
    kind: SideKind,
) -> Result<Summary> {
    let place = bench.storage.place(2 * size)?;
    let name = kind.name();
    let path = place.dir.join("forebay-bench.data");
    let mut side = kind.start().context(&name)?;
    side.open(&path).context(&name)?;
    side.warm(size).context(&name)?;
    let (base, _) = bench.next_generations();
    let outcome = bench.fill_memory(side.as_mut(), size, base).context(&name);
    let outcome = outcome.and_then(|()| time(bench, requests, side.as_mut()));
    side.close().context(&name)?;
    std::fs::remove_file(&path).context(&name)?;
    outcome
}

/// Nanoseconds per request, over the bench's number of runs.
fn time(bench: &mut Bench, requests: &[Request], side: &mut dyn Side) -> Result<Summary> {
    let mut runs = Vec::new();
    for _ in 0..bench.runs {
        let (_, generation) = bench.next_generations();
        warm(requests.len() as u64 * PAGE as u64).context("warm memory")?;
        let writes = bench.writes(requests, generation);
        let _pinned = bench.pin.map(Pinned::to).transpose().context("pin")?;
        let start = std::time::Instant::now();
        side.write_all(&writes).context("where-ns")?;
        runs.push(start.elapsed().as_nanos() as f64 / requests.len() as f64);
        side.sync().context("where-ns")?;
    }
    Ok(Summary::of(&runs).expect("at least one run"))
}
