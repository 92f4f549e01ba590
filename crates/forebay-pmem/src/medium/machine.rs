//! What the CPU has for persistent memory: writing lines back, streaming stores, fences, and CRC-32C.
//!
//! Found once, at the first use. On x86-64 the best of `clwb`, `clflushopt` and `clflush`; on aarch64
//! `dc cvac` with `dsb`, which is compiled and has not been tried on such a machine. Elsewhere nothing is
//! flushed, and [`flush_by`] says so: such a machine gets no DAX.

use std::sync::OnceLock;

use super::LINE;

/// How lines are written back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlushBy {
    /// `clwb`: the line stays in the cache.
    #[cfg(target_arch = "x86_64")]
    Clwb,
    /// `clflushopt`: the line leaves the cache, in any order.
    #[cfg(target_arch = "x86_64")]
    ClflushOpt,
    /// `clflush`: the line leaves the cache, one after the other.
    #[cfg(target_arch = "x86_64")]
    Clflush,
    /// `dc cvac` of aarch64.
    #[cfg(target_arch = "aarch64")]
    DcCvac,
    /// Nothing is known for this CPU.
    Nothing,
}

impl FlushBy {
    /// The instruction's name.
    pub fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Clwb => "clwb",
            #[cfg(target_arch = "x86_64")]
            Self::ClflushOpt => "clflushopt",
            #[cfg(target_arch = "x86_64")]
            Self::Clflush => "clflush",
            #[cfg(target_arch = "aarch64")]
            Self::DcCvac => "dc cvac",
            Self::Nothing => "nothing",
        }
    }
}

/// What this CPU writes lines back with.
pub fn flush_by() -> FlushBy {
    static FOUND: OnceLock<FlushBy> = OnceLock::new();
    *FOUND.get_or_init(find)
}

#[cfg(target_arch = "x86_64")]
fn find() -> FlushBy {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    let best = __cpuid(0).eax;
    let features = if best >= 7 {
        __cpuid_count(7, 0).ebx
    } else {
        0
    };
    if features & (1 << 24) != 0 {
        FlushBy::Clwb
    } else if features & (1 << 23) != 0 {
        FlushBy::ClflushOpt
    } else {
        FlushBy::Clflush
    }
}

#[cfg(target_arch = "aarch64")]
fn find() -> FlushBy {
    FlushBy::DcCvac
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn find() -> FlushBy {
    FlushBy::Nothing
}

/// Begins to write back the lines that `length` bytes at `at` touch.
///
/// # Safety
/// The bytes lie in a mapping that lives throughout the call. Who else touches them does not matter: nothing
/// is read or changed.
pub unsafe fn flush(at: *const u8, length: usize, by: FlushBy) {
    if by == FlushBy::Nothing {
        return;
    }
    let (first, lines) = lines_of(at.addr(), length);
    #[cfg(test)]
    tests::FLUSHED.with_borrow_mut(|flushed| flushed.push((first, lines)));
    // SAFETY: each line has at least one byte of the mapping, and mappings are of whole pages.
    unsafe { flush_lines(first, lines, by) };
}

/// Where the first line begins that some bytes touch, and how many there are.
fn lines_of(at: usize, length: usize) -> (usize, usize) {
    let first = at & !(LINE - 1);
    (first, (at + length - first).div_ceil(LINE))
}

/// # Safety
/// The lines lie in a mapping.
#[cfg(target_arch = "x86_64")]
unsafe fn flush_lines(first: usize, lines: usize, by: FlushBy) {
    use std::arch::asm;
    // What to do is chosen once, and not for each line.
    let lines = (0..lines).map(|line| first + line * LINE);
    match by {
        FlushBy::Clwb => lines.for_each(|line| {
            // SAFETY: it changes no memory and no register, and was found to be there.
            unsafe { asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)) };
        }),
        FlushBy::ClflushOpt => lines.for_each(|line| {
            // SAFETY: as above.
            unsafe { asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags)) };
        }),
        _ => lines.for_each(|line| {
            // SAFETY: every x86-64 CPU has it.
            unsafe { asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags)) };
        }),
    }
}

/// # Safety
/// The lines lie in a mapping.
#[cfg(target_arch = "aarch64")]
unsafe fn flush_lines(first: usize, lines: usize, _by: FlushBy) {
    for line in (first..).step_by(LINE).take(lines) {
        // SAFETY: the instruction changes no memory and no register; Linux lets programs use it.
        unsafe { std::arch::asm!("dc cvac, {}", in(reg) line, options(nostack, preserves_flags)) };
    }
}

/// # Safety
/// None; it does nothing.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn flush_lines(_first: usize, _lines: usize, _by: FlushBy) {}

/// Waits for this thread's flushes and streaming stores.
pub fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: `sfence` is in every x86-64 CPU and changes nothing.
    unsafe {
        std::arch::asm!("sfence", options(nostack, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier changes nothing.
    unsafe {
        std::arch::asm!("dsb sy", options(nostack, preserves_flags));
    }
}

/// Copies past the cache; what is not a whole line at the edges is stored and flushed.
///
/// # Safety
/// `to` has room for the bytes in a mapping that lives throughout the call, nobody else reads or writes there
/// meanwhile, and no reference to those bytes exists.
pub unsafe fn stream(to: *mut u8, bytes: &[u8], by: FlushBy) {
    let head = (to as usize).next_multiple_of(LINE) - to as usize;
    let (head, rest) = bytes.split_at(head.min(bytes.len()));
    let (lines, tail) = rest.split_at(rest.len() & !(LINE - 1));
    // SAFETY: three pieces of the caller's range, one after the other; the middle begins at a line.
    unsafe {
        store(to, head, by);
        stream_lines(to.add(head.len()), lines, by);
        store(to.add(head.len() + lines.len()), tail, by);
    }
}

/// As [`stream`], for memory that the kernel writes back: nothing is flushed. What was copied comes before whatever this thread stores next.
///
/// # Safety
/// As [`stream`].
pub unsafe fn stream_unflushed(to: *mut u8, bytes: &[u8]) {
    // SAFETY: the caller's promise.
    unsafe { stream(to, bytes, FlushBy::Nothing) };
    fence();
}

/// # Safety
/// As [`stream`].
unsafe fn store(to: *mut u8, bytes: &[u8], by: FlushBy) {
    if bytes.is_empty() {
        return;
    }
    // SAFETY: as the caller has it.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        flush(to, bytes.len(), by);
    }
}

/// # Safety
/// As [`stream`]; `to` and the length are multiples of a line.
#[cfg(target_arch = "x86_64")]
unsafe fn stream_lines(to: *mut u8, bytes: &[u8], _by: FlushBy) {
    // By four lines first: what counts the lines costs nearly as much as the lines.
    let (groups, rest) = bytes.as_chunks::<{ 4 * LINE }>();
    for (index, group) in groups.iter().enumerate() {
        for line in 0..4 {
            // SAFETY: 64 bytes from the slice, to 64 aligned bytes that the caller vouches for.
            unsafe {
                let to = to.add(index * group.len() + line * LINE);
                stream_line(to, group.as_ptr().add(line * LINE));
            }
        }
    }
    for (index, line) in rest.chunks_exact(LINE).enumerate() {
        // SAFETY: as above.
        unsafe {
            stream_line(
                to.add(groups.len() * 4 * LINE + index * LINE),
                line.as_ptr(),
            )
        };
    }
}

/// Copies a line by vectors that this instruction stores. The stores are written out: `_mm_stream_si128` has an address made for each, and of a loop of plain
/// ones the compiler makes a `memcpy`. Whoever uses it vouches for a line at both ends, and for what the instruction asks of `to`.
#[cfg(target_arch = "x86_64")]
macro_rules! copy_line {
    ($store:literal, $to:ident, $from:ident) => {{
        use std::arch::x86_64::{__m128i, _mm_loadu_si128};
        let from: *const __m128i = $from.cast();
        let parts = [0, 1, 2, 3].map(|part| _mm_loadu_si128(from.add(part)));
        std::arch::asm!(
            concat!($store, " [{to}], {a}"),
            concat!($store, " [{to} + 16], {b}"),
            concat!($store, " [{to} + 32], {c}"),
            concat!($store, " [{to} + 48], {d}"),
            to = in(reg) $to,
            a = in(xmm_reg) parts[0],
            b = in(xmm_reg) parts[1],
            c = in(xmm_reg) parts[2],
            d = in(xmm_reg) parts[3],
            options(nostack, preserves_flags),
        );
    }};
}

/// # Safety
/// As [`stream`]; both have a line, and that of `to` is aligned.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn stream_line(to: *mut u8, from: *const u8) {
    // SAFETY: as the caller has it.
    unsafe { copy_line!("movntdq", to, from) };
}

/// # Safety
/// As [`stream`].
#[cfg(not(target_arch = "x86_64"))]
unsafe fn stream_lines(to: *mut u8, bytes: &[u8], by: FlushBy) {
    // SAFETY: as the caller has it.
    unsafe { store(to, bytes, by) };
}

/// Copies to a caller's memory, by vectors where the string instruction is slow.
///
/// # Safety
/// `from` has as many bytes in a mapping that lives throughout the call, and nobody writes them meanwhile.
pub unsafe fn load(from: *const u8, into: &mut [u8]) {
    // SAFETY: the caller's source, to a slice that nobody else has; and what is left of both.
    unsafe {
        let done = load_lines(from, into);
        let rest = &mut into[done..];
        std::ptr::copy_nonoverlapping(from.add(done), rest.as_mut_ptr(), rest.len());
    }
}

/// From so many bytes on `memcpy` may take the string instruction, of which there is a slow case.
#[cfg(target_arch = "x86_64")]
const STRING_MIN: usize = 2048;

/// Copies the whole lines, if `memcpy` would be slow; answers how many bytes they are. Where the target lies a little after the source, modulo 4,096, the
/// string instruction takes up to six times as long as vectors (AMD), and large pieces of `malloc`'s begin 16 bytes after a page.
///
/// # Safety
/// As [`load`].
#[cfg(target_arch = "x86_64")]
unsafe fn load_lines(from: *const u8, into: &mut [u8]) -> usize {
    let after = into.as_ptr().addr().wrapping_sub(from.addr()) % 4096;
    if into.len() < STRING_MIN || !(1..32).contains(&after) {
        return 0;
    }
    let (lines, _) = into.as_chunks_mut::<LINE>();
    for (index, line) in lines.iter_mut().enumerate() {
        let (to, from) = (line.as_mut_ptr(), from.wrapping_add(index * LINE));
        // SAFETY: a line of the slice, which nobody else has, and one of the caller's source.
        unsafe { copy_line!("movdqu", to, from) };
    }
    lines.len() * LINE
}

/// # Safety
/// As [`load`].
#[cfg(not(target_arch = "x86_64"))]
unsafe fn load_lines(_from: *const u8, _into: &mut [u8]) -> usize {
    0
}

/// CRC-32C of `bytes`, going on from `seed`.
pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("sse4.2") {
        // SAFETY: the CPU has it.
        return unsafe { crc32c_sse(seed, bytes) };
    }
    crc32c_table(seed, bytes)
}

/// # Safety
/// The CPU has SSE 4.2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
unsafe fn crc32c_sse(seed: u32, bytes: &[u8]) -> u32 {
    use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u64};
    // By lines first: what counts the words costs as much as the words.
    let (lines, rest) = bytes.as_chunks::<LINE>();
    let (words, rest) = rest.as_chunks::<8>();
    let word = |crc, word: &[u8; 8]| _mm_crc32_u64(crc, u64::from_le_bytes(*word));
    let crc = lines.iter().fold(u64::from(!seed), |crc, line| {
        line.as_chunks::<8>().0.iter().fold(crc, word)
    });
    let crc = words.iter().fold(crc, word);
    let crc = rest
        .iter()
        .fold(crc as u32, |crc, byte| _mm_crc32_u8(crc, *byte));
    !crc
}

fn crc32c_table(seed: u32, bytes: &[u8]) -> u32 {
    let crc = bytes.iter().fold(!seed, |crc, byte| {
        TABLE[((crc ^ u32::from(*byte)) & 0xff) as usize] ^ (crc >> 8)
    });
    !crc
}

/// The polynomial of Castagnoli, reversed.
pub const POLYNOMIAL: u32 = 0x82f6_3b78;

const TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0u32; 256];
    let mut index = 0;
    while index < 256 {
        let mut value = index as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 {
                (value >> 1) ^ POLYNOMIAL
            } else {
                value >> 1
            };
            bit += 1;
        }
        table[index] = value;
        index += 1;
    }
    table
}

#[cfg(test)]
mod tests;
