//! See `forebay::sim::fuzz::arena_checker`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay::sim::fuzz::arena_checker::check(data));
