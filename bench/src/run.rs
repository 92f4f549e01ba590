//! Runs a workload: sides in turn (A B A B ...), each run with caches dropped, memory warmed, the
//! clock around nothing but the requests and the sync, and the bytes checked afterwards, through the
//! side itself and then from the device.

use std::cell::OnceCell;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::{Context, Failure, Result};
use crate::memory::{self, Generation, Mapping, Source};
use crate::meter::{Meter, Pinned, drop_caches, kernel_file_memory};
use crate::place::{Place, PlaceName, Storage};
use crate::requests::{Expected, Request, Shape, make};
use crate::sides::{Side, SideKind, Writes};
use crate::workload::{Before, Operation, Run, Workload};

/// Set by a signal; looked at between runs.
pub static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Requests by which a file is brought into memory: too small to pass by it.
const FILL_REQUEST: u32 = 64 << 10;
const CHECK_CHUNK: u64 = 1 << 20;
const REQUEST_BYTES_MAX: usize = 5 << 20;
/// More than the last-level cache that one core can use, on any machine so far.
const LARGE_SOURCE_BYTES: u64 = 256 << 20;
/// Less than this is not worth warming exactly.
const WARM_BYTES_MIN: u64 = 64 << 20;

/// How to measure.
pub struct Bench {
    /// Where.
    pub storage: Storage,
    /// How often each side runs.
    pub runs: usize,
    /// The core to pin the timed loop to.
    pub pin: Option<usize>,
    /// Bytes to write in small requests, as from a buffer that stays in the processor's cache.
    small_source: Source,
    /// The same bytes, spread over memory larger than any cache.
    large_source: Source,
    /// The same where no device takes them from; made when it is first asked for.
    unaligned_source: OnceCell<Source>,
    generation: u64,
}

/// All runs of one side, or why there is none.
pub struct SideRuns {
    /// The side.
    pub kind: SideKind,
    /// One for each round.
    pub runs: Vec<Run>,
    /// Why it took no part.
    pub unavailable: Option<String>,
}

/// What a workload's rounds gave.
pub struct Measured {
    /// Where it was measured.
    pub place: PlaceName,
    /// In the workload's order.
    pub sides: Vec<SideRuns>,
}

/// The measured file, removed whatever happens.
struct DataFile(PathBuf);

impl Drop for DataFile {
    fn drop(&mut self) {
        // It may never have been made.
        let _ = fs::remove_file(&self.0);
    }
}

/// What every step of one run needs.
struct Step<'a> {
    workload: &'a Workload,
    place: &'a Place,
    path: &'a Path,
    requests: &'a [Request],
    base: Generation,
    written: Generation,
}

impl Bench {
    /// A bench for requests of up to 5 MiB.
    pub fn new(storage: Storage, runs: usize, pin: Option<usize>) -> Result<Self> {
        let what = "memory for the bytes to write";
        Ok(Bench {
            storage,
            runs,
            pin,
            small_source: Source::new(REQUEST_BYTES_MAX, 0).context(what)?,
            large_source: Source::new(REQUEST_BYTES_MAX, LARGE_SOURCE_BYTES).context(what)?,
            unaligned_source: OnceCell::new(),
            generation: 0,
        })
    }

    /// Runs every side `runs` times, in turn.
    pub fn measure(&mut self, workload: &Workload, progress: &str) -> Result<Measured> {
        let place = self.storage.place(workload.span + workload.bytes)?;
        let requests = workload.requests();
        let new = |&kind: &SideKind| {
            let absent = kind.is_engine() && !cfg!(feature = "engine");
            let unavailable =
                absent.then(|| "this program was built without the engine".to_owned());
            SideRuns {
                kind,
                runs: Vec::new(),
                unavailable,
            }
        };
        let mut sides: Vec<SideRuns> = workload.sides.iter().map(new).collect();
        for round in 1..=self.runs {
            for side in sides.iter_mut().filter(|side| side.unavailable.is_none()) {
                if INTERRUPTED.load(Ordering::Relaxed) {
                    return Err(Failure::Interrupted);
                }
                let name = side.kind.name();
                let head = format!(
                    "{progress} {}: run {round}/{} {name}",
                    workload.name, self.runs
                );
                match self.run_once(workload, &place, &requests, side.kind) {
                    Ok(run) => {
                        let metric = workload.lines[0].metric;
                        let value = metric.of(&run).unwrap_or(f64::NAN);
                        eprintln!("{head}: {value:.3} {}", metric.unit());
                        side.runs.push(run);
                    }
                    Err(Failure::Unavailable(why)) => {
                        eprintln!("{head}: {why}");
                        side.unavailable = Some(why);
                    }
                    Err(failure) => {
                        eprintln!("{head}: failed");
                        return Err(failure);
                    }
                }
            }
        }
        Ok(Measured {
            place: place.about.clone(),
            sides,
        })
    }

    /// The next pair of generations: the file's bytes before, and what is written.
    pub fn next_generations(&mut self) -> (Generation, Generation) {
        self.generation += 2;
        (Generation(self.generation), Generation(self.generation + 1))
    }

    fn run_once(
        &mut self,
        workload: &Workload,
        place: &Place,
        requests: &[Request],
        kind: SideKind,
    ) -> Result<Run> {
        let file = DataFile(place.dir.join("forebay-bench.data"));
        let (base, written) = self.next_generations();
        let step = Step {
            workload,
            place,
            path: &file.0,
            requests,
            base,
            written,
        };
        // A leftover of a killed run would make the file not fresh.
        let _ = fs::remove_file(&file.0);
        self.prepare_file(&step)?;
        drop_caches(&file.0).context("drop caches")?;
        let name = kind.name();
        let mut side = kind.start().context(&name)?;
        side.open(&file.0).context(&name)?;
        if workload.before == Before::InMemory {
            self.fill_memory(side.as_mut(), workload.span, base)
                .context(&name)?;
        }
        let warm_bytes = workload.bytes.max(WARM_BYTES_MIN);
        side.warm(warm_bytes).context(&name)?;
        memory::warm(warm_bytes).context("warm memory")?;
        let run = self.timed(&step, side.as_mut(), &name)?;

        let expected = self.expected(&step);
        if workload.operation != Operation::WriteCloseSync {
            let read = |bytes: &mut [u8], at| side.read_at(bytes, at).context(&name);
            compare(&expected, &format!("{name}, read back through it"), read)?;
            side.close().context(&name)?;
        }
        drop(side);
        self.check_device(&step, &expected, &name)?;
        Ok(run)
    }

    /// Makes the file what it is before the side opens it.
    fn prepare_file(&self, step: &Step<'_>) -> Result<()> {
        let what = "prepare the file";
        match step.workload.before {
            Before::Fresh | Before::InMemory => Ok(()),
            Before::Preallocated => {
                let file = File::create(step.path).context(what)?;
                let len = step.workload.span as libc::off_t;
                // SAFETY: an open descriptor; the call touches no memory of ours.
                if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len) } != 0 {
                    return Err(std::io::Error::last_os_error()).context("allocate the file");
                }
                file.sync_all().context(what)
            }
            Before::Cold => {
                let mut kernel = SideKind::Kernel.start().context(what)?;
                kernel.open(step.path).context(what)?;
                let shape = Shape::Sequential { len: 1 << 20 };
                let requests = make(shape, step.workload.span, step.workload.span);
                kernel
                    .write_all(&self.writes(&requests, step.base))
                    .context(what)?;
                kernel.sync().context(what)
            }
        }
    }

    /// Writes the file through the side, syncs, and reads it once, so that it is in its memory.
    pub fn fill_memory(
        &self,
        side: &mut dyn Side,
        span: u64,
        base: Generation,
    ) -> std::io::Result<()> {
        let requests = make(Shape::Sequential { len: FILL_REQUEST }, span, span);
        side.write_all(&self.writes(&requests, base))?;
        side.sync()?;
        let mut buffer = Mapping::new(FILL_REQUEST as usize)?;
        side.read_all(&mut buffer, &requests)
    }

    /// Writes of this bench's bytes, from little memory.
    pub fn writes<'a>(&'a self, requests: &'a [Request], generation: Generation) -> Writes<'a> {
        Writes {
            source: &self.small_source,
            generation,
            requests,
        }
    }

    fn unaligned_source(&self) -> Result<&Source> {
        if let Some(source) = self.unaligned_source.get() {
            return Ok(source);
        }
        let source = Source::skewed(REQUEST_BYTES_MAX, LARGE_SOURCE_BYTES, 16)
            .context("unaligned memory for the bytes to write")?;
        Ok(self.unaligned_source.get_or_init(|| source))
    }

    fn timed(&self, step: &Step<'_>, side: &mut dyn Side, name: &str) -> Result<Run> {
        let Step {
            workload, requests, ..
        } = *step;
        let longest = requests.iter().map(|request| request.len).max();
        let longest = longest.unwrap_or(0).max(FILL_REQUEST);
        let mut buffer = Mapping::new(longest as usize).context("read buffer")?;
        buffer.touch();
        let mut writes = self.writes(requests, step.written);
        if workload.unaligned {
            writes.source = self.unaligned_source()?;
        } else if workload.writes_from_large_memory() {
            writes.source = &self.large_source;
        }
        let weighs = workload.weighs_memory();
        let held_before = if weighs {
            kernel_file_memory().context("meminfo")?
        } else {
            0
        };
        let stats_before = side.stats().unwrap_or_default();
        let pinned = self.pin.map(Pinned::to).transpose().context("pin")?;
        let mut run = Run {
            requests: requests.len() as u64,
            bytes: requests.iter().map(|request| u64::from(request.len)).sum(),
            ..Run::default()
        };

        let meter = Meter::start(&step.place.counter).context("counters")?;
        match workload.operation {
            Operation::Read => side.read_all(&mut buffer, requests).context(name)?,
            _ => side.write_all(&writes).context(name)?,
        }
        run.returned_s = meter.elapsed().as_secs_f64();
        if weighs {
            run.memory_held = Some(match side.stats() {
                // For what is owed at this moment, scaled to what was written: a keeper may have written
                // part of it back.
                Some(stats) => {
                    let per_byte = stats.owed_memory_bytes as f64 / stats.dirty_bytes.max(1) as f64;
                    (per_byte * run.bytes as f64) as u64
                }
                None => kernel_file_memory()
                    .context("meminfo")?
                    .saturating_sub(held_before),
            });
        }
        make_durable(step, side, name, &meter, &mut run)?;
        let reading = meter.read().context("counters")?;
        drop(pinned);

        run.process_cpu_s = reading.cpu.process;
        run.machine_cpu_s = reading.cpu.machine;
        run.device = reading.device;
        run.engine = side.stats().map(|after| after.since(stats_before));
        Ok(run)
    }

    fn expected(&self, step: &Step<'_>) -> Expected<'_> {
        let Step {
            workload, requests, ..
        } = *step;
        let end = requests
            .iter()
            .map(|request| request.offset + u64::from(request.len))
            .max();
        let fresh = workload.before == Before::Fresh;
        let len = if fresh {
            end.unwrap_or(0)
        } else {
            workload.span
        };
        let mut expected = Expected::new(&self.small_source, len, requests);
        if matches!(workload.before, Before::Cold | Before::InMemory) {
            expected.base = Some(step.base);
        }
        if workload.operation != Operation::Read {
            expected.written = Some(step.written);
        }
        expected
    }

    /// Compares size and bytes as the kernel reads them once its caches are empty.
    fn check_device(&self, step: &Step<'_>, expected: &Expected<'_>, name: &str) -> Result<()> {
        use std::os::unix::fs::FileExt;
        drop_caches(step.path).context("drop caches")?;
        let file = File::open(step.path).context("check the file")?;
        let len = file.metadata().context("check the file")?.len();
        if len != expected.len {
            let told = format!("{name}: size {len} instead of {}", expected.len);
            return Err(Failure::WrongBytes(told));
        }
        let read = |bytes: &mut [u8], at| file.read_exact_at(bytes, at).context("check the file");
        compare(expected, &format!("{name}, read from the device"), read)
    }
}

/// What comes after the requests until the bytes are durable, with the moments in between.
fn make_durable(
    step: &Step<'_>,
    side: &mut dyn Side,
    name: &str,
    meter: &Meter,
    run: &mut Run,
) -> Result<()> {
    match step.workload.operation {
        Operation::Read => return Ok(()),
        Operation::WriteSyncClose => side.sync().context(name)?,
        Operation::WriteCloseSync => {
            side.close().context(name)?;
            run.closed_s = Some(meter.elapsed().as_secs_f64());
            File::open(step.path)
                .and_then(|file| file.sync_all())
                .context(name)?;
        }
    }
    run.durable_s = Some(meter.elapsed().as_secs_f64());
    Ok(())
}

/// Compares what `read` gives with what is expected.
fn compare(
    expected: &Expected<'_>,
    who: &str,
    mut read: impl FnMut(&mut [u8], u64) -> Result<()>,
) -> Result<()> {
    let mut found = Mapping::new(CHECK_CHUNK as usize).context("check buffer")?;
    let mut wanted = Mapping::new(CHECK_CHUNK as usize).context("check buffer")?;
    for part in expected.parts(CHECK_CHUNK) {
        let len = (part.end - part.start) as usize;
        let (found, wanted) = (&mut found[..len], &mut wanted[..len]);
        found.fill(0xEE);
        read(found, part.start)?;
        expected.fill(part.start, wanted);
        if found != wanted {
            let index = found
                .iter()
                .zip(wanted.iter())
                .position(|(a, b)| a != b)
                .unwrap_or(0);
            let offset = part.start + index as u64;
            return Err(Failure::WrongBytes(format!(
                "{who}: first at offset {offset}"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
