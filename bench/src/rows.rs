//! The rows, and what the engine is to reach in each. A target says where its number comes from.

use crate::memory::PAGE;
use crate::requests::Shape;
use crate::sides::SideKind;
use crate::workload::{Before, Line, Metric, Operation, Target, Workload};

/// A row of the report: one question, one or more workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Row {
    /// 4 KiB sequential writes to a fresh file
    #[value(name = "seq-write-4k")]
    SeqWrite4k,
    /// 4 KiB random overwrites of a file in memory
    #[value(name = "overwrite-4k")]
    Overwrite4k,
    /// Ragged overwrites of pages that are not in memory
    #[value(name = "ragged-4k")]
    Ragged4k,
    /// 1 MiB sequential writes, then sync
    #[value(name = "write-sync-1m")]
    WriteSync1m,
    /// 4 MiB sequential writes, then sync
    #[value(name = "write-sync-4m")]
    WriteSync4m,
    /// Ragged writes of about 2 MiB: how much goes through memory
    #[value(name = "ragged-2m")]
    Ragged2m,
    /// Random 4 KiB writes over a large file: memory held and device bytes
    #[value(name = "sparse-16g")]
    Sparse16g,
    /// 4 KiB reads of a file in memory
    #[value(name = "read-4k")]
    Read4k,
    /// Sequential reads of a file that is not in memory
    #[value(name = "read-cold")]
    ReadCold,
    /// What each way of finding free memory is worth (not part of the default rows)
    #[value(name = "allocators")]
    Allocators,
    /// What each technique of StreamCache is worth, alone and together (not part of the default rows)
    #[value(name = "ablation")]
    Ablation,
    /// What tracking costs under requests at random (not part of the default rows)
    #[value(name = "tracking")]
    Tracking,
    /// Where the nanoseconds of a 4 KiB write go (not part of the default rows)
    #[value(name = "where-ns")]
    WhereNs,
}

/// The rows measured when none is named.
pub const DEFAULT: [Row; 9] = [
    Row::SeqWrite4k,
    Row::Overwrite4k,
    Row::Ragged4k,
    Row::WriteSync1m,
    Row::WriteSync4m,
    Row::Ragged2m,
    Row::Sparse16g,
    Row::Read4k,
    Row::ReadCold,
];

/// No workload may be slower than the kernel by more than a tenth (promise 6).
const NEVER_SLOWER: Target = Target::Times(0.9);

const PLAIN_AND_ENGINE: [SideKind; 2] = [SideKind::Kernel, SideKind::ForebayAuto];

fn line(metric: Metric, target: Target) -> Line {
    Line {
        metric,
        target: Some(target),
    }
}

fn shown(metric: Metric) -> Line {
    Line {
        metric,
        target: None,
    }
}

/// The row's workloads with files of about `size` bytes.
pub fn workloads(row: Row, size: u64) -> Vec<Workload> {
    match row {
        Row::SeqWrite4k => seq_write(size),
        Row::Overwrite4k => vec![overwrite(size)],
        Row::Ragged4k => vec![ragged(size, false), ragged(size, true)],
        Row::WriteSync1m => write_sync("write-sync-1m", 1 << 20, size),
        Row::WriteSync4m => write_sync("write-sync-4m", 4 << 20, size),
        Row::Ragged2m => vec![ragged_run(size)],
        Row::Sparse16g => vec![sparse(size)],
        Row::Read4k => vec![read(size, "sequential"), read(size, "random")],
        Row::ReadCold => [("4k", 4 << 10), ("64k", 64 << 10), ("1m", 1 << 20)]
            .map(|(name, len)| read_cold(size, name, len))
            .into(),
        Row::Allocators | Row::Ablation | Row::Tracking | Row::WhereNs => Vec::new(),
    }
}

fn seq_write(size: u64) -> Vec<Workload> {
    let synced = Workload {
        name: "seq-write-4k".into(),
        sides: PLAIN_AND_ENGINE.into(),
        before: Before::Fresh,
        shape: Shape::Sequential { len: PAGE as u32 },
        operation: Operation::WriteSyncClose,
        span: size,
        bytes: size,
        unaligned: false,
        // The kernel's 3.2 µs against a bare shared-memory path's 0.43, plus 0.1 for the features, and some room.
        lines: vec![
            line(Metric::TimeReturned, Target::Times(5.0)),
            line(Metric::TimeDurable, NEVER_SLOWER),
        ],
    };
    let mut closed = synced.clone();
    closed.name = "seq-write-4k closed first".into();
    closed.operation = Operation::WriteCloseSync;
    closed.lines = vec![
        line(Metric::SpeedClosed, NEVER_SLOWER),
        shown(Metric::SpeedDurable),
    ];
    vec![synced, closed]
}

fn overwrite(size: u64) -> Workload {
    Workload {
        name: "overwrite-4k".into(),
        sides: PLAIN_AND_ENGINE.into(),
        before: Before::InMemory,
        shape: Shape::RandomPages,
        operation: Operation::WriteSyncClose,
        span: size,
        bytes: size,
        unaligned: false,
        // 1.9 µs against 0.40, plus 0.1 for the features, and some room.
        lines: vec![
            line(Metric::TimeReturned, Target::Times(3.5)),
            line(Metric::TimeDurable, NEVER_SLOWER),
        ],
    }
}

fn ragged(size: u64, sequential: bool) -> Workload {
    let order = if sequential { "sequential" } else { "random" };
    Workload {
        name: format!("ragged-4k {order}"),
        sides: PLAIN_AND_ENGINE.into(),
        before: Before::Cold,
        shape: Shape::RaggedPages { sequential },
        operation: Operation::WriteSyncClose,
        span: size,
        // Tens of microseconds each: 16,384 requests are enough for a mean.
        bytes: size.min(64 << 20),
        unaligned: false,
        // The kernel's 37 to 59 µs (70 and more on ext4) are nearly all read-before-write, which the engine never
        // does: 40 leaves it 1 µs, twice a fresh write.
        lines: vec![
            line(Metric::TimeReturned, Target::Times(40.0)),
            line(Metric::TimeDurable, NEVER_SLOWER),
        ],
    }
}

fn write_sync(name: &str, len: u32, size: u64) -> Vec<Workload> {
    let make = |variant: &str, before, unaligned| Workload {
        name: format!("{name} {variant}"),
        sides: if unaligned {
            vec![
                SideKind::Kernel,
                SideKind::KernelDontCache,
                SideKind::ForebayAuto,
                SideKind::ForebayThreshold,
            ]
        } else {
            vec![
                SideKind::Kernel,
                SideKind::Direct { depth: 1 },
                SideKind::Direct { depth: 8 },
                SideKind::KernelDontCache,
                SideKind::ForebayAuto,
                SideKind::ForebayThreshold,
            ]
        },
        before,
        shape: Shape::Sequential { len },
        operation: Operation::WriteSyncClose,
        span: size,
        bytes: size,
        unaligned,
        // WSBuffer's least gain for writes of 1 MiB and more (section 4.2, Figure 8).
        lines: vec![
            line(Metric::SpeedDurable, Target::Times(1.15)),
            shown(Metric::SpeedReturned),
        ],
    };
    vec![
        make("fresh", Before::Fresh, false),
        make("preallocated", Before::Preallocated, false),
        make("fresh, unaligned memory", Before::Fresh, true),
        make("preallocated, unaligned memory", Before::Preallocated, true),
    ]
}

fn ragged_run(size: u64) -> Workload {
    Workload {
        name: "ragged-2m".into(),
        sides: vec![SideKind::Kernel, SideKind::ForebayThreshold],
        before: Before::Fresh,
        shape: Shape::RaggedRun { len: 2 << 20 },
        operation: Operation::WriteSyncClose,
        span: size,
        bytes: size,
        unaligned: false,
        // WSBuffer, Table 4: partial-page writes of 2 MB.
        lines: vec![
            line(Metric::MemoryWritten, Target::AtMost(0.18)),
            line(Metric::SpeedDurable, NEVER_SLOWER),
        ],
    }
}

fn sparse(size: u64) -> Workload {
    Workload {
        name: "sparse-16g".into(),
        sides: PLAIN_AND_ENGINE.into(),
        before: Before::Preallocated,
        shape: Shape::RandomPages,
        operation: Operation::WriteSyncClose,
        span: size * 16,
        bytes: size / 4,
        unaligned: false,
        // A page, its share of headers and slots, and some room; 64 would be a whole frame each.
        lines: vec![
            line(Metric::MemoryHeld, Target::AtMost(1.3)),
            line(Metric::DeviceWritten, Target::AtMost(1.3)),
            shown(Metric::EngineDeviceWritten),
            line(Metric::TimeDurable, NEVER_SLOWER),
        ],
    }
}

fn read(size: u64, order: &str) -> Workload {
    let shape = match order {
        "sequential" => Shape::Sequential { len: PAGE as u32 },
        _ => Shape::RandomPages,
    };
    Workload {
        name: format!("read-4k {order}"),
        sides: PLAIN_AND_ENGINE.into(),
        before: Before::InMemory,
        shape,
        operation: Operation::Read,
        span: size,
        bytes: size,
        unaligned: false,
        // 1.0 µs against a bare path's 0.30: what is left of 3.3 times.
        lines: vec![line(Metric::TimeReturned, Target::Times(3.0))],
    }
}

/// With the kernel's read-ahead against the engine's, and the engine without.
fn read_cold(size: u64, name: &str, len: u32) -> Workload {
    Workload {
        name: format!("read-cold-{name}"),
        sides: vec![
            SideKind::Kernel,
            SideKind::ForebayAuto,
            SideKind::ForebayAlone,
        ],
        before: Before::Cold,
        shape: Shape::Sequential { len },
        operation: Operation::Read,
        span: size,
        bytes: size,
        unaligned: false,
        lines: vec![line(Metric::SpeedReturned, NEVER_SLOWER)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_begins_with_the_plain_kernel_and_stays_in_its_span() {
        for row in DEFAULT {
            for workload in workloads(row, 8 << 20) {
                assert_eq!(workload.sides[0], SideKind::Kernel, "{}", workload.name);
                assert!(
                    workload.sides.iter().any(|side| side.is_engine()),
                    "{}",
                    workload.name
                );
                assert!(workload.lines.iter().any(|line| line.target.is_some()));
                let requests = workload.requests();
                assert!(!requests.is_empty(), "{}", workload.name);
                for request in requests {
                    assert!(request.offset + u64::from(request.len) <= workload.span);
                }
            }
        }
    }
}
