//! The library's allocator, by itself.

#[path = "../src/alloc.rs"]
mod alloc;

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicBool, Ordering};

use alloc::Allocator;

/// All allocations of this test program, the test harness's too.
#[global_allocator]
static ALLOCATOR: Allocator = Allocator::new();

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound
    }

    fn layout(&mut self) -> Layout {
        let size = match self.below(4) {
            0 => 1 + self.below(40),
            1 => 1 + self.below(3000),
            2 => 1 + self.below(70_000),
            _ => 1 + self.below(400_000),
        };
        let aligns = if self.below(10) == 0 { 22 } else { 8 };
        let align = 1 << self.below(aligns);
        Layout::from_size_align(size, align).expect("a layout")
    }
}

/// A block that is full of one byte.
struct Block(*mut u8, Layout, u8);

impl Block {
    fn new(layout: Layout, byte: u8, zeroed: bool) -> Self {
        // SAFETY: the layout is not empty; all of the block is written before it is read, unless it is zeros.
        unsafe {
            let at = if zeroed {
                ALLOCATOR.alloc_zeroed(layout)
            } else {
                ALLOCATOR.alloc(layout)
            };
            assert!(!at.is_null() && at.addr().is_multiple_of(layout.align()));
            if zeroed {
                let bytes = std::slice::from_raw_parts(at, layout.size());
                assert!(bytes.iter().all(|&b| b == 0));
            }
            at.write_bytes(byte, layout.size());
            Block(at, layout, byte)
        }
    }

    fn check(&self, len: usize) {
        // SAFETY: the block's own bytes.
        let bytes = unsafe { std::slice::from_raw_parts(self.0, len) };
        assert!(
            bytes.iter().all(|&b| b == self.2),
            "someone else wrote here"
        );
    }

    fn resize(self, size: usize) -> Self {
        let layout = Layout::from_size_align(size, self.1.align()).expect("a layout");
        // SAFETY: the block is ours, and goes to its new place.
        let at = unsafe { ALLOCATOR.realloc(self.0, self.1, size) };
        assert!(!at.is_null() && at.addr().is_multiple_of(layout.align()));
        let moved = Block(at, layout, self.2);
        moved.check(size.min(self.1.size()));
        // SAFETY: as above.
        unsafe { at.write_bytes(self.2, size) };
        moved
    }

    fn free(self) {
        self.check(self.1.size());
        // SAFETY: it is not used any more.
        unsafe { ALLOCATOR.dealloc(self.0, self.1) };
    }
}

fn churn(seed: u64, rounds: usize) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut blocks: Vec<Block> = Vec::new();
    for round in 0..rounds {
        match random.below(5) {
            0 | 1 if blocks.len() < 60 => {
                let zeroed = random.below(3) == 0;
                blocks.push(Block::new(
                    random.layout(),
                    (seed + round as u64) as u8,
                    zeroed,
                ));
            }
            2 if !blocks.is_empty() => {
                let block = blocks.swap_remove(random.below(blocks.len()));
                let size = random.layout().size();
                blocks.push(block.resize(size));
            }
            _ if !blocks.is_empty() => {
                blocks.swap_remove(random.below(blocks.len())).free();
            }
            _ => {}
        }
    }
    blocks.into_iter().for_each(Block::free);
}

/// Page faults of the calling thread.
fn faults() -> i64 {
    // SAFETY: plain numbers; the target is ours.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage.ru_minflt
    }
}

#[test]
fn the_first_blocks_touch_a_page_for_each_size() {
    static FRESH: Allocator = Allocator::new();
    let sizes = [16, 32, 64, 128, 256, 512, 1024, 2048, 4096];
    let before = faults();
    for size in sizes {
        let layout = Layout::from_size_align(size, 8).expect("a layout");
        // SAFETY: the layout is not empty; the block is as long as it says.
        unsafe {
            let block = FRESH.alloc(layout);
            block.write_bytes(1, size);
        }
    }
    let touched = faults() - before;
    assert!(
        touched <= sizes.len() as i64 + 4,
        "{touched} page faults for {} blocks",
        sizes.len()
    );
}

#[test]
fn pages_of_one_chunk_and_the_next_are_nobody_elses() {
    static FRESH: Allocator = Allocator::new();
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for round in 0..200 {
        let size = 4096 << (round % 5);
        let layout = Layout::from_size_align(size, 4096).expect("a layout");
        // SAFETY: the layout is not empty; the block is as long as it says.
        let at = unsafe {
            let block = FRESH.alloc(layout);
            block.write_bytes(round as u8, size);
            block.addr()
        };
        runs.push((at, at + size));
    }
    runs.sort_unstable();
    assert!(runs.windows(2).all(|pair| pair[0].1 <= pair[1].0));
}

#[test]
fn blocks_are_aligned_and_nobody_elses() {
    churn(1, 8000);
}

#[test]
fn threads_share_the_lists() {
    std::thread::scope(|scope| {
        for seed in 0..6 {
            scope.spawn(move || churn(seed, 3000));
        }
    });
}

/// The lists' heads are what threads fight over: one size only.
#[test]
fn a_head_that_was_put_back_is_not_mistaken() {
    let layout = Layout::from_size_align(48, 8).expect("a layout");
    std::thread::scope(|scope| {
        for seed in 0..4u8 {
            scope.spawn(move || {
                for round in 0..60_000 {
                    let byte = seed * 64 + (round % 64) as u8;
                    let (one, other) = (
                        Block::new(layout, byte, false),
                        Block::new(layout, byte ^ 32, false),
                    );
                    one.free();
                    other.free();
                }
            });
        }
    });
}

/// A fork may fall into the middle of another thread's allocation; the child goes on.
#[test]
fn a_forked_child_can_allocate() {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stop = &stop;
        for seed in 10..12 {
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    churn(seed, 50);
                }
            });
        }
        for seed in 0..100 {
            // SAFETY: the child uses nothing but this allocator.
            let child = unsafe { libc::fork() };
            assert!(child >= 0);
            if child == 0 {
                churn(seed, 30);
                // SAFETY: ends the child without destructors.
                unsafe { libc::_exit(0) };
            }
            let mut status = -1;
            // SAFETY: a child of this test's.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0, "the child died");
        }
        stop.store(true, Ordering::Relaxed);
    });
}
