//! Lower bounds: what a request takes at least, alone on an idle path (3.2.2 of the paper).
//!
//! Measured by one thread when a host joins, or when a device is seen for the first time; a line for each kind and mode.

use crate::request::{Kind, Mode, Record, Request};

const MEBI: f64 = (1 << 20) as f64;

/// A time that grows with size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// Nanoseconds of a request without bytes.
    pub fixed_ns: f64,
    /// Nanoseconds of a mebibyte.
    pub ns_per_mib: f64,
}

impl Line {
    /// Where nothing was measured: 1 µs and 8 GB/s.
    pub const UNKNOWN: Line = Line {
        fixed_ns: 1_000.0,
        ns_per_mib: 131_072.0,
    };

    fn at(&self, bytes: u64) -> f64 {
        self.fixed_ns + self.ns_per_mib * bytes as f64 / MEBI
    }

    /// Through the fastest of the smallest and the fastest of the largest requests. One size alone gives a time without slope.
    fn through(records: &[&Record]) -> Option<Self> {
        let fastest = |bytes: u64| {
            let same = records.iter().filter(|r| r.request.bytes == bytes);
            same.map(|r| r.latency_ns).min()
        };
        let smallest = records.iter().map(|r| r.request.bytes).min()?;
        let largest = records.iter().map(|r| r.request.bytes).max()?;
        let (low, high) = (fastest(smallest)? as f64, fastest(largest)? as f64);
        let ns_per_byte = if largest > smallest {
            ((high - low) / (largest - smallest) as f64).max(0.0)
        } else {
            0.0
        };
        Some(Line {
            fixed_ns: (low - ns_per_byte * smallest as f64).max(1.0),
            ns_per_mib: ns_per_byte * MEBI,
        })
    }
}

/// The lines of both kinds in both modes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    lines: [[Line; 2]; 2],
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds {
            lines: [[Line::UNKNOWN; 2]; 2],
        }
    }
}

impl Bounds {
    /// What these requests, each made alone, say. Kinds and modes of which there is none keep [`Line::UNKNOWN`].
    pub fn measured(records: &[Record]) -> Self {
        let mut bounds = Bounds::default();
        for kind in Kind::BOTH {
            for mode in Mode::BOTH {
                let of_both = |r: &&Record| r.request.kind == kind && r.mode == mode;
                let own: Vec<&Record> = records.iter().filter(of_both).collect();
                if let Some(line) = Line::through(&own) {
                    bounds.set(kind, mode, line);
                }
            }
        }
        bounds
    }

    /// Sets a line that is known otherwise.
    pub fn set(&mut self, kind: Kind, mode: Mode, line: Line) {
        self.lines[kind as usize][mode as usize] = line;
    }

    /// Nanoseconds that the request takes at least in that mode, 1 or more.
    pub fn latency_ns(&self, request: &Request, mode: Mode) -> f64 {
        let line = self.lines[request.kind as usize][mode as usize];
        line.at(request.bytes).max(1.0)
    }

    /// What part of its time the request would have needed alone: its strength, above 0 and at most 1.
    pub fn strength(&self, record: &Record) -> f32 {
        let bound = self.latency_ns(&record.request, record.mode);
        let strength = bound / record.latency_ns.max(1) as f64;
        strength.clamp(f64::from(STRENGTH_MIN), 1.0) as f32
    }
}

/// The least strength that is told from less: a millionth.
pub const STRENGTH_MIN: f32 = 1e-6;

#[cfg(test)]
mod tests {
    use super::*;

    fn record(bytes: u64, latency_ns: u64, mode: Mode) -> Record {
        let request = Request {
            kind: Kind::Read,
            bytes,
        };
        Record {
            request,
            mode,
            latency_ns,
        }
    }

    #[test]
    fn a_line_goes_through_the_fastest() {
        let bounds = Bounds::measured(&[
            record(0, 5_000, Mode::Remote),
            record(0, 3_000, Mode::Remote),
            record(1 << 20, 103_000, Mode::Remote),
            record(1 << 20, 203_000, Mode::Remote),
            record(4096, 700, Mode::Local),
        ]);
        let request = |bytes| Request {
            kind: Kind::Read,
            bytes,
        };
        assert_eq!(
            bounds.latency_ns(&request(2 << 20), Mode::Remote),
            203_000.0
        );
        assert_eq!(bounds.latency_ns(&request(2 << 20), Mode::Local), 700.0);
        assert_eq!(
            bounds.strength(&record(2 << 20, 406_000, Mode::Remote)),
            0.5
        );
        assert_eq!(bounds.strength(&record(2 << 20, 1, Mode::Remote)), 1.0);
        assert!(bounds.strength(&record(0, u64::MAX, Mode::Local)) > 0.0);
    }

    #[test]
    fn smaller_that_was_slower_gives_no_negative_slope() {
        let bounds = Bounds::measured(&[
            record(4096, 9_000, Mode::Local),
            record(1 << 20, 8_000, Mode::Local),
        ]);
        for bytes in [0, 1 << 30, u64::MAX] {
            let request = Request {
                kind: Kind::Read,
                bytes,
            };
            assert_eq!(bounds.latency_ns(&request, Mode::Local), 9_000.0);
        }
        assert_eq!(
            Bounds::measured(&[]).latency_ns(
                &Request {
                    kind: Kind::Write,
                    bytes: 0
                },
                Mode::Local
            ),
            1_000.0
        );
    }
}
