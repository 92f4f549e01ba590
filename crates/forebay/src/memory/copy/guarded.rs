//! Copies from and to the program's memory, which may not be there.
//!
//! A program may pass any address; the kernel answers EFAULT where one is bad. These copies are written by hand so that
//! every instruction that may fault lies between two labels, and so that a handler of SIGSEGV and SIGBUS can end the copy by
//! moving the instruction pointer: [`fixup`] says where to. They push nothing, so the way out is a plain return.
//! Without such a handler a bad address ends the process, as it does with a slice.

use std::arch::global_asm;

unsafe extern "C" {
    /// The processor's string instruction from 4 KiB on, unless it is slow there (below); else vectors of 16 bytes. 1: copied.
    fn forebay_copy_plain(target: *mut u8, source: *const u8, len: usize) -> u32;
    /// As the former, with vectors of 32 bytes instead. More than 128 bytes; the processor has AVX2.
    fn forebay_copy_avx2(target: *mut u8, source: *const u8, len: usize) -> u32;
    /// A plain loop of vectors of 32 bytes. The processor has AVX2, and `len` is at least 128.
    fn forebay_copy_stream(target: *mut u8, source: *const u8, len: usize) -> u32;
    /// As the former, with stores past the caches. `target` is a multiple of 32, and `len` one of 128, not 0.
    fn forebay_copy_pass(target: *mut u8, source: *const u8, len: usize) -> u32;
    /// Reads a byte of each page from `begin` to `end`, which is not before it.
    fn forebay_touch(begin: *const u8, end: *const u8) -> u32;
    /// As the former, and writes it again as it is, in one access: what other threads store there stays.
    fn forebay_touch_to_write(begin: *mut u8, end: *const u8) -> u32;

    static FOREBAY_COPY_BEGIN: u8;
    static FOREBAY_COPY_AVX: u8;
    static FOREBAY_COPY_END: u8;
    static FOREBAY_COPY_FAULT: u8;
    static FOREBAY_COPY_AVX_FAULT: u8;
}

/// From so many bytes on the string instruction copies faster, also what is in order: it does not read the lines that it overwrites, and the
/// loop does once the two ranges are larger than the first cache. Measured in docs/performance.md.
const STREAM_END: usize = 24 * 1024;
/// From so many bytes on vectors copy as fast as the string instruction or faster, where source and target lie differently in their vectors.
const UNALIGNED_MIN: usize = 64 * 1024;
/// The least that goes past the caches: the fence at the end waits for the memory.
const PASS_MIN: usize = 64 * 1024;
const VECTOR: usize = 32;
const STEP: usize = 4 * VECTOR;

/// Where a thread goes on that has faulted at instruction `ip`, if that was in a copy: the copy then returns that it
/// failed. For handlers of SIGSEGV and SIGBUS.
pub fn fixup(ip: usize) -> Option<usize> {
    let begin = (&raw const FOREBAY_COPY_BEGIN).addr();
    let avx = (&raw const FOREBAY_COPY_AVX).addr();
    let end = (&raw const FOREBAY_COPY_END).addr();
    if !(begin..end).contains(&ip) {
        return None;
    }
    Some(if ip < avx {
        (&raw const FOREBAY_COPY_FAULT).addr()
    } else {
        (&raw const FOREBAY_COPY_AVX_FAULT).addr()
    })
}

/// # Safety
/// As for [`super::try_copy`].
#[inline(always)]
pub unsafe fn copy(source: *const u8, target: *mut u8, len: usize) -> bool {
    // SAFETY: the caller's promise; the processor has the instructions.
    unsafe {
        if len > 128 && std::arch::is_x86_feature_detected!("avx2") {
            let apart = target.addr().wrapping_sub(source.addr());
            if len >= UNALIGNED_MIN && !apart.is_multiple_of(VECTOR) {
                forebay_copy_stream(target, source, len) != 0
            } else {
                forebay_copy_avx2(target, source, len) != 0
            }
        } else {
            forebay_copy_plain(target, source, len) != 0
        }
    }
}

/// As [`copy`] on a processor without AVX2.
///
/// # Safety
/// As for [`super::try_copy`].
#[cfg(test)]
pub unsafe fn copy_without_avx2(source: *const u8, target: *mut u8, len: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe { forebay_copy_plain(target, source, len) != 0 }
}

/// # Safety
/// As for [`super::try_copy`].
#[inline(always)]
pub unsafe fn stream(source: *const u8, target: *mut u8, len: usize) -> bool {
    // SAFETY: the caller's promise; the processor has the instructions.
    unsafe {
        if (1024..STREAM_END).contains(&len) && std::arch::is_x86_feature_detected!("avx2") {
            forebay_copy_stream(target, source, len) != 0
        } else {
            copy(source, target, len)
        }
    }
}

/// # Safety
/// As for [`super::try_copy`].
#[inline]
pub unsafe fn pass(source: *const u8, target: *mut u8, len: usize) -> bool {
    let fits = target.addr().is_multiple_of(VECTOR) && len.is_multiple_of(STEP);
    if !fits || len < PASS_MIN || !std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the caller's promise.
        return unsafe { copy(source, target, len) };
    }
    // SAFETY: the caller's promise; the processor has the instructions. The fence is made after a fault as well: what was copied before it must not
    // come over what others write there once the lock is theirs.
    unsafe {
        let copied = forebay_copy_pass(target, source, len) != 0;
        std::arch::x86_64::_mm_sfence();
        copied
    }
}

/// # Safety
/// As for [`super::fault_in`]; `len` is not 0.
#[inline(always)]
pub unsafe fn touch(memory: *const u8, len: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe { forebay_touch(memory, memory.wrapping_add(len)) != 0 }
}

/// # Safety
/// As for [`super::fault_in_to_write`]; `len` is not 0.
#[inline(always)]
pub unsafe fn touch_to_write(memory: *mut u8, len: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe { forebay_touch_to_write(memory, memory.wrapping_add(len)) != 0 }
}

// rdi: target, rsi: source, rdx: len. Nothing is pushed, nothing but rax, rcx, rdx, rsi, rdi and vectors is changed.
//
// The string instruction takes 2 to 19 times as long as vectors where the target's place in its page is 1 to 31 bytes after the
// source's (measured in docs/performance.md, "A hit into malloc's memory"): such copies go by vectors. Programs often ask for
// them, since the large pieces of memory that glibc's malloc gives begin 16 bytes after a page, and reads of whole pages are from a page.
global_asm!(
    ".pushsection .text.forebay_copy,\"ax\",@progbits",
    ".p2align 6",
    ".hidden FOREBAY_COPY_BEGIN",
    ".globl FOREBAY_COPY_BEGIN",
    "FOREBAY_COPY_BEGIN:",
    ".hidden forebay_copy_plain",
    ".globl forebay_copy_plain",
    ".type forebay_copy_plain,@function",
    "forebay_copy_plain:",
    ".cfi_startproc",
    "cmp rdx, 16",
    "jb 20f",
    "cmp rdx, 32",
    "ja 30f",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + rdx - 16]",
    "movups [rdi], xmm0",
    "movups [rdi + rdx - 16], xmm1",
    "mov eax, 1",
    "ret",
    // 33 to 64, then to 128.
    ".p2align 4",
    "30:",
    "cmp rdx, 64",
    "ja 31f",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + rdx - 32]",
    "movups xmm3, [rsi + rdx - 16]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + rdx - 32], xmm2",
    "movups [rdi + rdx - 16], xmm3",
    "mov eax, 1",
    "ret",
    ".p2align 4",
    "31:",
    "cmp rdx, 128",
    "ja 40f",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + 32]",
    "movups xmm3, [rsi + 48]",
    "movups xmm4, [rsi + rdx - 64]",
    "movups xmm5, [rsi + rdx - 48]",
    "movups xmm6, [rsi + rdx - 32]",
    "movups xmm7, [rsi + rdx - 16]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + 32], xmm2",
    "movups [rdi + 48], xmm3",
    "movups [rdi + rdx - 64], xmm4",
    "movups [rdi + rdx - 48], xmm5",
    "movups [rdi + rdx - 32], xmm6",
    "movups [rdi + rdx - 16], xmm7",
    "mov eax, 1",
    "ret",
    // 8 to 15, 4 to 7, 2 and 3, 1, none.
    ".p2align 4",
    "20:",
    "cmp edx, 8",
    "jb 21f",
    "mov rax, [rsi]",
    "mov rcx, [rsi + rdx - 8]",
    "mov [rdi], rax",
    "mov [rdi + rdx - 8], rcx",
    "mov eax, 1",
    "ret",
    "21:",
    "cmp edx, 4",
    "jb 22f",
    "mov eax, [rsi]",
    "mov ecx, [rsi + rdx - 4]",
    "mov [rdi], eax",
    "mov [rdi + rdx - 4], ecx",
    "mov eax, 1",
    "ret",
    "22:",
    "cmp edx, 2",
    "jb 23f",
    "movzx eax, word ptr [rsi]",
    "movzx ecx, word ptr [rsi + rdx - 2]",
    "mov [rdi], ax",
    "mov [rdi + rdx - 2], cx",
    "mov eax, 1",
    "ret",
    "23:",
    "test edx, edx",
    "jz 24f",
    "movzx eax, byte ptr [rsi]",
    "mov [rdi], al",
    "24:",
    "mov eax, 1",
    "ret",
    // More than 128.
    ".p2align 4",
    "40:",
    "cmp rdx, 4096",
    "jb 42f",
    "lea eax, [rdi - 1]",
    "sub eax, esi",
    "and eax, 4095",
    "cmp eax, 31",
    "jae 50f",
    "42:",
    "movups xmm4, [rsi + rdx - 64]",
    "movups xmm5, [rsi + rdx - 48]",
    "movups xmm6, [rsi + rdx - 32]",
    "movups xmm7, [rsi + rdx - 16]",
    "lea rcx, [rdi + rdx - 64]",
    ".p2align 4",
    "41:",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + 32]",
    "movups xmm3, [rsi + 48]",
    "add rsi, 64",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + 32], xmm2",
    "movups [rdi + 48], xmm3",
    "add rdi, 64",
    "cmp rdi, rcx",
    "jb 41b",
    "movups [rcx], xmm4",
    "movups [rcx + 16], xmm5",
    "movups [rcx + 32], xmm6",
    "movups [rcx + 48], xmm7",
    "mov eax, 1",
    "ret",
    ".p2align 4",
    "50:",
    // The string instruction is fastest to a cache line's start.
    "mov rcx, rdx",
    "test edi, 63",
    "jz 51f",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + 32]",
    "movups xmm3, [rsi + 48]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + 32], xmm2",
    "movups [rdi + 48], xmm3",
    "lea rcx, [rdi + rdx]",
    "mov rax, rdi",
    "add rdi, 63",
    "and rdi, -64",
    "sub rax, rdi",
    "sub rsi, rax",
    "sub rcx, rdi",
    "51:",
    "rep movsb",
    "mov eax, 1",
    "ret",
    ".cfi_endproc",
    // rdi: begin, rsi: end.
    ".p2align 4",
    ".hidden forebay_touch",
    ".globl forebay_touch",
    ".type forebay_touch,@function",
    "forebay_touch:",
    ".cfi_startproc",
    "70:",
    "movzx eax, byte ptr [rdi]",
    "and rdi, -4096",
    "add rdi, 4096",
    "cmp rdi, rsi",
    "jb 70b",
    "mov eax, 1",
    "ret",
    ".cfi_endproc",
    ".p2align 4",
    ".hidden forebay_touch_to_write",
    ".globl forebay_touch_to_write",
    ".type forebay_touch_to_write,@function",
    "forebay_touch_to_write:",
    ".cfi_startproc",
    "71:",
    "lock or byte ptr [rdi], 0",
    "and rdi, -4096",
    "add rdi, 4096",
    "cmp rdi, rsi",
    "jb 71b",
    "mov eax, 1",
    "ret",
    ".cfi_endproc",
    ".hidden FOREBAY_COPY_AVX",
    ".globl FOREBAY_COPY_AVX",
    "FOREBAY_COPY_AVX:",
    ".p2align 6",
    ".hidden forebay_copy_avx2",
    ".globl forebay_copy_avx2",
    ".type forebay_copy_avx2,@function",
    "forebay_copy_avx2:",
    ".cfi_startproc",
    "cmp rdx, 4096",
    "jb 60f",
    "lea eax, [rdi - 1]",
    "sub eax, esi",
    "and eax, 4095",
    "cmp eax, 31",
    "jae 50b",
    "60:",
    ".hidden forebay_copy_stream",
    ".globl forebay_copy_stream",
    ".type forebay_copy_stream,@function",
    "forebay_copy_stream:",
    "lea rcx, [rdx - 128]",
    "lea rdx, [rsi + rcx]",
    "add rcx, rdi",
    ".p2align 4",
    "61:",
    "vmovdqu ymm0, [rsi]",
    "vmovdqu ymm1, [rsi + 32]",
    "vmovdqu ymm2, [rsi + 64]",
    "vmovdqu ymm3, [rsi + 96]",
    "sub rsi, -128",
    "vmovdqu [rdi], ymm0",
    "vmovdqu [rdi + 32], ymm1",
    "vmovdqu [rdi + 64], ymm2",
    "vmovdqu [rdi + 96], ymm3",
    "sub rdi, -128",
    "cmp rdi, rcx",
    "jb 61b",
    // The last step ends where the ranges end, and may overlap the one before.
    "vmovdqu ymm0, [rdx]",
    "vmovdqu ymm1, [rdx + 32]",
    "vmovdqu ymm2, [rdx + 64]",
    "vmovdqu ymm3, [rdx + 96]",
    "vmovdqu [rcx], ymm0",
    "vmovdqu [rcx + 32], ymm1",
    "vmovdqu [rcx + 64], ymm2",
    "vmovdqu [rcx + 96], ymm3",
    "mov eax, 1",
    "vzeroupper",
    "ret",
    ".p2align 6",
    ".hidden forebay_copy_pass",
    ".globl forebay_copy_pass",
    ".type forebay_copy_pass,@function",
    "forebay_copy_pass:",
    "lea rcx, [rdi + rdx]",
    ".p2align 4",
    "62:",
    "vmovdqu ymm0, [rsi]",
    "vmovdqu ymm1, [rsi + 32]",
    "vmovdqu ymm2, [rsi + 64]",
    "vmovdqu ymm3, [rsi + 96]",
    "sub rsi, -128",
    "vmovntdq [rdi], ymm0",
    "vmovntdq [rdi + 32], ymm1",
    "vmovntdq [rdi + 64], ymm2",
    "vmovntdq [rdi + 96], ymm3",
    "sub rdi, -128",
    "cmp rdi, rcx",
    "jb 62b",
    "mov eax, 1",
    "vzeroupper",
    "ret",
    ".hidden FOREBAY_COPY_END",
    ".globl FOREBAY_COPY_END",
    "FOREBAY_COPY_END:",
    ".hidden FOREBAY_COPY_AVX_FAULT",
    ".globl FOREBAY_COPY_AVX_FAULT",
    "FOREBAY_COPY_AVX_FAULT:",
    "vzeroupper",
    ".hidden FOREBAY_COPY_FAULT",
    ".globl FOREBAY_COPY_FAULT",
    "FOREBAY_COPY_FAULT:",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    ".popsection",
);
