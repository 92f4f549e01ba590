//! The run: the thread that is next goes on, until the last phase has ended.

use super::paths::{Hardware, Path};
use super::{INFERENCE_NS, LEARN_EVERY_NS, Measured, Outcome, SAMPLE_NS, Workload};
use crate::chooser::{Choice, Policy};
use crate::environment::{Environment, Log};
use crate::random::Random;
use crate::request::{Kind, Record, Request};

/// Where a thread stands.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// It makes a request as soon as a phase has it.
    Ready,
    /// Its request's bytes begin to move at that time.
    Fixed { until_ns: f64 },
    /// Its request ends once the path has served so much.
    Moving { served: f64 },
}

#[derive(Clone, Debug)]
struct Thread {
    stage: Stage,
    request: Request,
    choice: Choice,
    began_ns: f64,
    log: Log,
}

/// What happens next.
#[derive(Clone, Copy, Debug)]
enum Event {
    Thread(usize),
    Learn,
    Sample,
    PhaseEnds,
}

struct Run<'a> {
    workload: &'a Workload,
    policy: &'a mut dyn Policy,
    random: Random,
    paths: [Path; 2],
    threads: Vec<Thread>,
    now_ns: f64,
    learn_ns: f64,
    phase_ends_ns: f64,
    outcome: Outcome,
    phase: Measured,
    sample: Measured,
}

/// Has the policy choose for all requests of the workload. The seed decides sizes, kinds, jitter and lots.
pub fn run(
    hardware: &Hardware,
    workload: &Workload,
    policy: &mut dyn Policy,
    seed: u64,
) -> Outcome {
    let request = Request {
        kind: Kind::Read,
        bytes: 0,
    };
    let thread = Thread {
        stage: Stage::Ready,
        request,
        choice: Choice::plain(crate::Mode::Local),
        began_ns: 0.0,
        log: Log::default(),
    };
    let threads = workload.phases.iter().map(|phase| phase.threads).max();
    let mut run = Run {
        workload,
        policy,
        random: Random::new(seed),
        paths: hardware.paths.map(Path::new),
        threads: vec![thread; threads.unwrap_or(0)],
        now_ns: 0.0,
        learn_ns: LEARN_EVERY_NS,
        phase_ends_ns: 0.0,
        outcome: Outcome::default(),
        phase: Measured::default(),
        sample: Measured::default(),
    };
    for phase in &workload.phases {
        run.phase_ends_ns += phase.ms as f64 * 1e6;
        run.phase(phase.threads);
    }
    if run.sample.ns > 0.0 {
        run.outcome.series.push(run.sample);
    }
    run.outcome
}

impl Run<'_> {
    fn phase(&mut self, threads: usize) {
        loop {
            for thread in 0..threads {
                if matches!(self.threads[thread].stage, Stage::Ready) {
                    self.begin(thread);
                }
            }
            let (at_ns, event) = self.next();
            let passed = at_ns - self.now_ns;
            self.phase.ns += passed;
            self.sample.ns += passed;
            self.now_ns = at_ns;
            match event {
                Event::Thread(thread) => self.go_on(thread),
                Event::Learn => {
                    self.policy.learn();
                    self.learn_ns += LEARN_EVERY_NS;
                }
                Event::Sample => {
                    let sample = std::mem::take(&mut self.sample);
                    self.outcome.series.push(sample);
                }
                Event::PhaseEnds => {
                    let phase = std::mem::take(&mut self.phase);
                    self.outcome.phases.push(phase);
                    return;
                }
            }
        }
    }

    /// The next event and its time; of several at one time the first of these.
    fn next(&self) -> (f64, Event) {
        let sample_ns = self.now_ns + (SAMPLE_NS - self.sample.ns).max(0.0);
        let mut next = (self.phase_ends_ns.max(self.now_ns), Event::PhaseEnds);
        let mut consider = |at_ns: f64, event| {
            if at_ns < next.0 {
                next = (at_ns, event);
            }
        };
        consider(sample_ns, Event::Sample);
        consider(self.learn_ns, Event::Learn);
        for (i, thread) in self.threads.iter().enumerate() {
            match thread.stage {
                Stage::Ready => {}
                Stage::Fixed { until_ns } => consider(until_ns, Event::Thread(i)),
                Stage::Moving { served } => {
                    let path = &self.paths[thread.choice.mode as usize];
                    consider(path.time_of(served).max(self.now_ns), Event::Thread(i));
                }
            }
        }
        next
    }

    fn begin(&mut self, index: usize) {
        let is_write = self.random.below(100) < self.workload.write_percent;
        let request = Request {
            kind: if is_write { Kind::Write } else { Kind::Read },
            bytes: self.workload.sizes.draw(&mut self.random),
        };
        let (threads, now_ns) = (&self.threads, self.now_ns);
        let mut gather = || Environment::of(threads.iter().map(|t| &t.log), now_ns as u64);
        let choice = self
            .policy
            .choose(&request, &mut gather, self.random.next_u64());
        let asked_ns = if choice.environment.is_some() {
            INFERENCE_NS as f64
        } else {
            0.0
        };
        let began_ns = now_ns + asked_ns;
        let thread = &mut self.threads[index];
        thread.request = request;
        thread.choice = choice;
        thread.began_ns = began_ns;
        let until_ns = began_ns + self.paths[choice.mode as usize].model.fixed_ns;
        thread.stage = Stage::Fixed { until_ns };
    }

    fn go_on(&mut self, index: usize) {
        let thread = &mut self.threads[index];
        let path = &mut self.paths[thread.choice.mode as usize];
        match thread.stage {
            Stage::Ready => unreachable!("a thread without a request has no event"),
            Stage::Fixed { .. } => {
                let bytes = thread.request.bytes as f64 * path.model.longer(&mut self.random);
                let served = path.begin(self.now_ns, bytes);
                thread.stage = Stage::Moving { served };
            }
            Stage::Moving { .. } => {
                path.end(self.now_ns);
                self.end(index);
            }
        }
    }

    fn end(&mut self, index: usize) {
        let thread = &mut self.threads[index];
        let latency_ns = self.now_ns - thread.began_ns;
        let record = Record {
            request: thread.request,
            mode: thread.choice.mode,
            latency_ns: latency_ns as u64,
        };
        thread.stage = Stage::Ready;
        thread.log.note(&record, self.now_ns as u64);
        for measured in [&mut self.phase, &mut self.sample] {
            measured.bytes += record.request.bytes;
            measured.requests += 1;
            measured.remote += record.mode as u64;
            measured.latency_ns += latency_ns;
        }
        self.policy.done(&thread.choice, &record);
    }
}
