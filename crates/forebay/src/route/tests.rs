//! Tests of routes: that every plan covers its request, that the paper's shares come out, that
//! `auto` moves only in the directions it should, that estimates converge, that globs decide in
//! order.

mod auto;
mod coverage;
mod globs;
mod paper;
mod speeds;

use super::{CopySpeed, DeviceSpeed, NAMES, Pressure, Route, RouteOptions, Situation, by_name};
use crate::limits::BLOCK_BYTES;

const BLOCK: u64 = BLOCK_BYTES as u64;
const MIB: u64 = 1 << 20;

/// Free memory, an idle device of 2 GB/s and 60 µs, copies of 8 GB/s, of 32 in the cache.
fn calm() -> Situation {
    Situation {
        memory_pressure: Pressure::NONE,
        pressure_after: Pressure::NONE,
        device_busy: false,
        cached_bytes: 0,
        provide_ns: 0,
        turn: 1,
        device: DeviceSpeed {
            write_bytes_per_second: 2_000_000_000,
            write_latency_ns: 60_000,
        },
        copy: CopySpeed {
            bytes_per_second: 8_000_000_000,
            per_block_ns: 500,
            bounce_bytes_per_second: 32_000_000_000,
        },
        extends: false,
        hole: false,
        sync: false,
        flush_syncs: false,
    }
}

fn every_route() -> Vec<Box<dyn Route>> {
    let options = RouteOptions::default();
    let mut routes: Vec<_> = NAMES
        .iter()
        .map(|name| by_name(name, &options).unwrap())
        .collect();
    routes.push(Box::new(super::Lustre::over_scrap(
        options.direct_bytes_min,
    )));
    routes.extend([0, 1, BLOCK, 512 * 1024].map(threshold_at));
    routes
}

fn threshold_at(direct_bytes_min: u64) -> Box<dyn Route> {
    Box::new(super::Threshold::new(direct_bytes_min))
}

#[test]
fn routes_are_found_by_the_names_they_give() {
    for name in NAMES {
        assert_eq!(
            by_name(name, &RouteOptions::default()).unwrap().name(),
            name
        );
    }
}

#[test]
fn an_unknown_name_is_told_what_exists() {
    let error = by_name("Auto", &RouteOptions::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no route is called \"Auto\"; there are auto, threshold, lustre, direct, scrap, kernel"
    );
}

#[test]
fn pressure_saturates_and_never_divides_by_zero() {
    assert_eq!(Pressure::of(0, 100), Pressure::NONE);
    assert_eq!(Pressure::of(50, 100).parts(), 512);
    assert_eq!(Pressure::of(100, 100), Pressure::FULL);
    assert_eq!(Pressure::of(u64::MAX, 1), Pressure::FULL);
    assert_eq!(Pressure::of(0, 0), Pressure::FULL);
    assert_eq!(
        Pressure::of(u64::MAX - 1, u64::MAX).parts(),
        Pressure::WHOLE - 1
    );
}
