//! What others see while a session is rebuilt.

mod here;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use forebay::keeper::repair;
use forebay::session::look::look;
use forebay::{Config, OpenOptions, Session};

/// Syncs look at what a file owes outside operations: for not one moment may a rebuild say that it owes nothing.
#[test]
fn a_file_owes_what_it_owes_throughout() {
    let mut config = Config::builder().build().expect("defaults");
    config.memory = 32 << 20;
    config.session = format!("test-rebuild-{}", std::process::id());
    let session = Session::join(config).expect("a session");
    let dir = tempfile::tempdir_in(Path::new(env!("CARGO_TARGET_TMPDIR"))).expect("a directory");
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true);
    let file = session
        .open_file(dir.path().join("data"), options)
        .expect("a file");
    if let Some(reason) = file.kernel_reason() {
        return here::skipped(reason);
    }
    file.write_at(&[7; 100_000], 0).expect("written");
    let place = session.place().expect("a place");
    let path = place.path.expect("a file");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let shared = session.shared();
            let me = shared.me().expect("a slot");
            for _ in 0..300 {
                repair::after_death(shared, me).expect("nobody else repairs");
            }
            done.store(true, Relaxed);
        });
        let seen = look(&path).expect("an arena").expect("there");
        while !done.load(Relaxed) {
            let owed = seen.files()[0].owed_bytes;
            assert!(owed >= 100_000, "{owed} bytes owed");
        }
    });
    file.close().expect("closed");
}
