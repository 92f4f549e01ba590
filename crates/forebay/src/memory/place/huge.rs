//! How much of a mapping is huge pages, as the kernel's page tables have it at this moment.
//!
//! Options and advice say what was asked for; this says what was got. Reading `smaps` walks the page
//! tables, so it is for `doctor`, reports and tests.

use crate::memory::mapping::Mapping;
use std::io;
use std::ops::Range;

/// The lines of `smaps` that count huge pages: of anonymous memory (the heap), of tmpfs, of other
/// files, and of hugetlbfs by whether another process maps them too.
const HUGE_FIELDS: [&str; 5] = [
    "AnonHugePages",
    "ShmemPmdMapped",
    "FilePmdMapped",
    "Shared_Hugetlb",
    "Private_Hugetlb",
];

/// Bytes of the mapping that this process reaches through huge pages. Memory that is not touched by
/// this process yet counts as none.
///
/// # Errors
/// What reading `/proc/self/smaps` returns.
pub fn huge_bytes(mapping: &Mapping) -> io::Result<u64> {
    let start = mapping.base() as u64;
    let text = std::fs::read_to_string("/proc/self/smaps")?;
    Ok(parse_smaps(&text, &(start..start + mapping.len() as u64)))
}

/// Sum of the huge pages of all areas that lie in the range. The kernel may split a mapping into
/// several areas, and joins none with a stranger's file; on the heap an area may be larger than
/// the mapping, and then counts whole.
fn parse_smaps(text: &str, range: &Range<u64>) -> u64 {
    let mut inside = false;
    let mut bytes = 0;
    for line in text.lines() {
        if let Some(area) = area(line) {
            inside = area.start < range.end && range.start < area.end;
        } else if inside {
            bytes += huge_field(line).unwrap_or(0);
        }
    }
    bytes
}

/// The addresses in an area's first line, `7f00-7f10 rw-s 00000000 00:17 5 /dev/shm/x`.
fn area(line: &str) -> Option<Range<u64>> {
    let (start, end) = line.split(' ').next()?.split_once('-')?;
    Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
}

/// The bytes of a line such as `ShmemPmdMapped:     2048 kB`.
fn huge_field(line: &str) -> Option<u64> {
    let (name, value) = line.split_once(':')?;
    let kib = value.trim().strip_suffix(" kB")?.parse::<u64>().ok()?;
    HUGE_FIELDS.contains(&name).then_some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
7f0000000000-7f0000400000 rw-s 00000000 00:17 5                          /dev/shm/x
Size:               4096 kB
ShmemPmdMapped:     2048 kB
FilePmdMapped:         0 kB
Shared_Hugetlb:     4096 kB
VmFlags: rd wr sh
7f0000400000-7f0000600000 rw-s 00400000 00:17 5                          /dev/shm/x
ShmemPmdMapped:     2048 kB
7f0000800000-7f0000a00000 rw-p 00000000 00:00 0
AnonHugePages:      2048 kB
";

    #[test]
    fn areas_inside_count_and_others_do_not() {
        assert_eq!(
            parse_smaps(SMAPS, &(0x7f00_0000_0000..0x7f00_0060_0000)),
            8192 * 1024
        );
        assert_eq!(
            parse_smaps(SMAPS, &(0x7f00_0040_0000..0x7f00_0060_0000)),
            2048 * 1024
        );
        assert_eq!(parse_smaps(SMAPS, &(0x7f00_0060_0000..0x7f00_0080_0000)), 0);
        assert_eq!(parse_smaps("", &(0..u64::MAX)), 0);
    }
}
