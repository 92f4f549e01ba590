//! What an open file keeps to beside its bytes: its route, the limits of its process, what its calls answer.
#![cfg(feature = "sim")]

mod common;

use std::path::Path;

use forebay::config::{Route, RouteRule};
use forebay::{Config, File, OpenOptions, Session};

fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory")
}

fn open(session: &Session, path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    session.open_file(path, &options).expect("a file")
}

#[test]
fn a_glob_without_a_slash_routes_a_sessions_files() {
    let mut config = Config::tiny();
    config.routes = vec![RouteRule {
        glob: "*.log".to_owned(),
        route: Route::Kernel,
    }];
    let session = Session::open(config).expect("a documented glob");
    let dir = directory();
    let log = open(&session, &dir.path().join("x.log"));
    assert_eq!(log.kernel_reason().as_deref(), Some("its route is kernel"));
    let route = |name: &str| session.shared().route_for(&dir.path().join(name)).name();
    assert_eq!((route("x.log"), route("x.logs")), ("kernel", "auto"));
}
