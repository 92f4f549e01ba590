//! Servers that begin again where another one has just ended.

use std::thread;
use std::time::{Duration, Instant};

use forebay_pool::net::{Config, Serving};

use crate::common::PATIENCE;

/// Serves at an address that is free in a moment.
pub fn begin_again(config: &Config, index: usize) -> Serving {
    let until = Instant::now() + PATIENCE;
    loop {
        match Serving::begin(config, index) {
            Ok(again) => return again,
            Err(why) => assert!(Instant::now() < until, "{why}"),
        }
        thread::sleep(Duration::from_millis(5));
    }
}
