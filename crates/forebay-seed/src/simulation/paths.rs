//! Two paths for bytes, each shared by the requests that it serves.

use crate::bounds::Bounds;
use crate::random::Random;
use crate::request::{Kind, Mode, Record, Request};

/// What a path can do.
#[derive(Clone, Copy, Debug)]
pub struct PathModel {
    /// Nanoseconds before a request's bytes begin to move.
    pub fixed_ns: f64,
    /// Bytes per nanosecond (GB/s) of one request alone.
    pub one: f64,
    /// Bytes per nanosecond of all requests together.
    pub all: f64,
    /// A request takes longer by up to this part, by lot.
    pub jitter: f64,
}

/// Both paths, by the number of their mode.
#[derive(Clone, Copy, Debug)]
pub struct Hardware {
    /// Local, remote.
    pub paths: [PathModel; 2],
}

impl Hardware {
    /// After the paper's: the local path is full with eight requests, and the remote path adds the half of its speed (figure 11a:
    /// a third of the requests is best there). A lone remote request takes more than twice as long.
    pub fn paper() -> Self {
        Hardware {
            paths: [
                PathModel {
                    fixed_ns: 1_000.0,
                    one: 2.0,
                    all: 16.0,
                    jitter: 0.1,
                },
                PathModel {
                    fixed_ns: 5_000.0,
                    one: 0.9,
                    all: 8.0,
                    jitter: 0.1,
                },
            ],
        }
    }

    /// Both paths full, gigabytes per second: what no policy can exceed.
    pub fn limit(&self) -> f64 {
        self.paths[0].all + self.paths[1].all
    }

    /// The lower bounds as one thread measures them on idle paths.
    pub fn bounds(&self, seed: u64) -> Bounds {
        let mut random = Random::new(seed);
        let mut records = Vec::new();
        for kind in Kind::BOTH {
            for mode in Mode::BOTH {
                for bytes in [4096, 4 << 20] {
                    let path = &self.paths[mode as usize];
                    records.extend((0..20).map(|_| {
                        let moving =
                            path.longer(&mut random) * bytes as f64 / path.one.min(path.all);
                        Record {
                            request: Request { kind, bytes },
                            mode,
                            latency_ns: (path.fixed_ns + moving) as u64,
                        }
                    }));
                }
            }
        }
        Bounds::measured(&records)
    }
}

impl PathModel {
    /// By what factor a request takes longer, by lot.
    pub(super) fn longer(&self, random: &mut Random) -> f64 {
        1.0 + self.jitter * random.unit()
    }
}

/// A path at work. All requests that move get the same share, so one number says how far each has come: `served` counts the
/// bytes that a request has got which was there from the beginning.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    pub model: PathModel,
    moving: usize,
    served: f64,
    at_ns: f64,
}

impl Path {
    pub fn new(model: PathModel) -> Self {
        Path {
            model,
            moving: 0,
            served: 0.0,
            at_ns: 0.0,
        }
    }

    fn rate(&self) -> f64 {
        self.model
            .one
            .min(self.model.all / self.moving.max(1) as f64)
    }

    fn advance(&mut self, now_ns: f64) {
        if self.moving > 0 {
            self.served += self.rate() * (now_ns - self.at_ns);
        }
        self.at_ns = now_ns;
    }

    /// A request begins to move so many bytes: it has ended once `served` is what this gives.
    pub fn begin(&mut self, now_ns: f64, bytes: f64) -> f64 {
        self.advance(now_ns);
        self.moving += 1;
        self.served + bytes
    }

    /// When `served` will be that, if nothing begins or ends before.
    pub fn time_of(&self, served: f64) -> f64 {
        self.at_ns + (served - self.served).max(0.0) / self.rate()
    }

    pub fn end(&mut self, now_ns: f64) {
        self.advance(now_ns);
        self.moving -= 1;
    }
}
