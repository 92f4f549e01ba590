//! The kernel's texts about memory, read by pure functions: text in, numbers out.
//!
//! `None` always means "says nothing": a missing line, "max", or version 1's number for no limit.

/// From here on a limit is none: version 1 writes the largest multiple of the page size below 2^63,
/// which depends on the page size.
const NO_LIMIT: u64 = 1 << 60;

/// Reads a limit in bytes.
pub fn parse_limit(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|&bytes| bytes < NO_LIMIT)
}

/// Reads the value of a line `name value`, as in `memory.stat` and `memory.events`.
pub fn parse_field(text: &str, name: &str) -> Option<u64> {
    let line = text
        .lines()
        .find(|line| line.split(' ').next() == Some(name))?;
    line.split(' ').nth(1)?.trim().parse().ok()
}

/// The machine's memory in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineMemory {
    /// All of it.
    pub total: u64,
    /// What could be had without swapping.
    pub available: u64,
}

/// Reads `/proc/meminfo`. A kernel without `MemAvailable` gets what is free.
pub fn parse_meminfo(text: &str) -> Option<MachineMemory> {
    let field = |name: &str| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim()
            .strip_suffix(" kB")?
            .trim()
            .parse::<u64>()
            .ok()?
            .checked_mul(1024)
    };
    let total = field("MemTotal")?;
    let available = field("MemAvailable").or_else(|| field("MemFree"))?;
    Some(MachineMemory { total, available })
}

/// Pressure stall information: the share of the last ten seconds, in percent, in which tasks waited
/// for memory.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stall {
    /// At least one task waited.
    pub some: f64,
    /// All tasks waited. 0 where the kernel does not say.
    pub full: f64,
}

/// Reads `memory.pressure` or `/proc/pressure/memory`.
pub fn parse_stall(text: &str) -> Option<Stall> {
    let share = |name: &str| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        let value = line
            .split(' ')
            .find_map(|part| part.strip_prefix("avg10="))?;
        value.parse::<f64>().ok().filter(|share| share.is_finite())
    };
    Some(Stall {
        some: share("some")?,
        full: share("full").unwrap_or(0.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits() {
        let table = [
            ("max\n", None),
            ("9223372036854771712\n", None),
            ("9223372036854710272\n", None),
            ("18446744073709551615", None),
            ("1073741824\n", Some(1 << 30)),
            ("0\n", Some(0)),
            ("", None),
            ("-1", None),
        ];
        for (text, expected) in table {
            assert_eq!(parse_limit(text), expected, "{text}");
        }
    }

    #[test]
    fn fields() {
        let text = "low 0\nhigh 12\nmax 3\noom_kill 1\n";
        assert_eq!(parse_field(text, "high"), Some(12));
        assert_eq!(parse_field(text, "oom"), None);
        assert_eq!(parse_field("", "high"), None);
    }

    #[test]
    fn the_machine() {
        let text = "MemTotal:       1024 kB\nMemFree:  10 kB\nMemAvailable:     512 kB\n";
        let expected = MachineMemory {
            total: 1 << 20,
            available: 512 << 10,
        };
        assert_eq!(parse_meminfo(text), Some(expected));
        let old = parse_meminfo("MemTotal: 8 kB\nMemFree: 4 kB\n");
        assert_eq!(
            old,
            Some(MachineMemory {
                total: 8192,
                available: 4096
            })
        );
        assert_eq!(parse_meminfo("MemTotal: lots\n"), None);
    }

    #[test]
    fn stalls() {
        let both = "some avg10=1.50 avg60=0 avg300=0 total=9\nfull avg10=0.25 avg60=0 total=3\n";
        assert_eq!(
            parse_stall(both),
            Some(Stall {
                some: 1.5,
                full: 0.25
            })
        );
        let one = parse_stall("some avg10=2.00 avg60=0 avg300=0 total=9\n");
        assert_eq!(
            one,
            Some(Stall {
                some: 2.0,
                full: 0.0
            })
        );
        assert_eq!(parse_stall("some avg10=NaN\n"), None);
        assert_eq!(parse_stall(""), None);
    }
}
