//! The core that the calling thread runs on.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Its number; 0 where the kernel does not say. By the next instruction it may be another: a hint.
#[inline]
pub fn current() -> u32 {
    // SAFETY: reads a number of the calling thread's; no memory of ours.
    let core = unsafe { libc::sched_getcpu() };
    u32::try_from(core).unwrap_or(0)
}

/// Bytes of the last cache that the core has a part in.
pub fn cache_bytes() -> u64 {
    /// Where it is not known: what is common.
    const COMMON: u64 = 32 << 20;
    static FOUND: AtomicU64 = AtomicU64::new(0);
    let found = FOUND.load(Relaxed);
    if found != 0 {
        return found;
    }
    // Under a hypervisor the instruction takes as long as a system call: once.
    let found = last_cache().filter(|&bytes| bytes != 0).unwrap_or(COMMON);
    FOUND.store(found, Relaxed);
    found
}

#[cfg(target_arch = "x86_64")]
fn last_cache() -> Option<u64> {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    /// Leaves that list the caches, of Intel's processors and of AMD's: what one has, the other says nothing at.
    const LISTS: [(u32, u32); 2] = [(0, 4), (0x8000_0000, 0x8000_001d)];
    /// No processor has as many; a hypervisor may answer anything.
    const CACHES_MAX: u32 = 16;
    let list = |(base, leaf): (u32, u32)| {
        let known = __cpuid(base).eax >= leaf;
        let caches = (0..CACHES_MAX).map(move |at| __cpuid_count(leaf, at));
        let caches = caches.take_while(move |cache| known && cache.eax & 0x1f != 0);
        let bytes = |cache: std::arch::x86_64::CpuidResult| {
            let ways = u64::from(cache.ebx >> 22) + 1;
            let partitions = u64::from(cache.ebx >> 12 & 0x3ff) + 1;
            let line = u64::from(cache.ebx & 0xfff) + 1;
            // A hypervisor may answer anything: three factors fit, and the fourth may not.
            (ways * partitions * line).saturating_mul(u64::from(cache.ecx) + 1)
        };
        caches.map(bytes).max()
    };
    LISTS.into_iter().filter_map(list).max()
}

#[cfg(not(target_arch = "x86_64"))]
fn last_cache() -> Option<u64> {
    None
}

/// How many the machine has at work; 1 where the kernel does not say.
pub fn count() -> usize {
    // SAFETY: asks for a number; no memory of ours.
    let cores = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    usize::try_from(cores).unwrap_or(1).max(1)
}
