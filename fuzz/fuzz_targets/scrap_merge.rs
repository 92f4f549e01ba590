//! See `forebay::sim::fuzz::scrap_merge`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay::sim::fuzz::scrap_merge::check(data));
