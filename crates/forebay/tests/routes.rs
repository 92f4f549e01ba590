//! Routes that a program brings itself.
#![cfg(feature = "sim")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use forebay::device::DeviceFile;
use forebay::route::{Plan, Route, Situation, Way, WriteRequest};
use forebay::sim::device::{SimDisk, SimOptions};
use forebay::{Config, File, OpenOptions, Session};
use forebay_model::fill;

const LEN: usize = 1 << 20;

/// To the device while it says so.
#[derive(Debug, Default)]
struct Own {
    is_direct: AtomicBool,
}

impl Route for Own {
    fn name(&self) -> &'static str {
        "own"
    }

    fn plan(&self, request: &WriteRequest, _: &Situation) -> Plan {
        let split = || Plan::split(request);
        let direct = self.is_direct.load(Relaxed).then(split).flatten();
        direct.unwrap_or(Plan::whole(request, Way::SCRAP))
    }

    fn quick_scrap_below(&self) -> u64 {
        0
    }
}

/// A plan for half of the request, at the wrong place.
#[derive(Debug)]
struct Wrong;

impl Route for Wrong {
    fn name(&self) -> &'static str {
        "wrong"
    }

    fn plan(&self, request: &WriteRequest, _: &Situation) -> Plan {
        let other = WriteRequest {
            offset: request.offset + 4096,
            len: request.len / 2,
            ..*request
        };
        Plan::whole(&other, Way::Direct)
    }

    fn quick_scrap_below(&self) -> u64 {
        0
    }
}

fn file(session: &Session, route: Arc<dyn Route>) -> File {
    let disk = SimDisk::new(SimOptions::default());
    let device: Arc<dyn DeviceFile> = disk.create();
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let file = session.open_device(device, "file", &options);
    file.expect("a file").routed_by(route)
}

/// Writes 1 MiB at that place, and reads it back.
fn write(file: &File, offset: u64, seed: u32) {
    let mut bytes = vec![0; LEN];
    fill(seed, offset, &mut bytes);
    assert_eq!(file.write_at(&bytes, offset).expect("space"), LEN);
    let mut back = vec![0; LEN];
    assert_eq!(file.read_at(&mut back, offset).expect("reads"), LEN);
    assert!(back == bytes, "other bytes");
}

#[test]
fn a_programs_own_route_decides_about_each_write() {
    let session = Session::open(Config::tiny()).expect("a session");
    let own = Arc::new(Own::default());
    let file = file(&session, own.clone());
    for (turn, is_direct) in [false, true, false, true].into_iter().enumerate() {
        own.is_direct.store(is_direct, Relaxed);
        let before = session.stats();
        write(&file, (turn * LEN) as u64, turn as u32);
        let after = session.stats();
        let direct = after.direct_bytes - before.direct_bytes;
        assert_eq!(direct, if is_direct { LEN as u64 } else { 0 }, "{turn}");
        let memory = after.scrap_bytes - before.scrap_bytes;
        assert_eq!(memory, LEN as u64 - direct, "{turn}");
    }
}

#[test]
fn a_plan_for_another_request_is_not_followed() {
    let session = Session::open(Config::tiny()).expect("a session");
    let file = file(&session, Arc::new(Wrong));
    write(&file, 0, 1);
    write(&file, 3 << 20, 2);
    assert_eq!(session.stats().direct_bytes, 0);
    let len = file.len().expect("a length");
    assert_eq!(len, (3 << 20) + LEN as u64);
}
