//! What files in a directory can be: managed, with which alignment, or left to the kernel, and why.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use forebay::device::file_system::STORE;
use forebay::device::{Caps, DeviceFile, RealFile};
use rustix::fs::{Mode, OFlags};

use super::Check;

const WHY: &str = "files that cannot be managed are served by the kernel as without Forebay";

/// Probes a directory with a temporary file.
pub fn directory(dir: &Path) -> Check {
    probe(dir).of(dir.display().to_string())
}

fn probe(dir: &Path) -> Check {
    let found = |text: String| Check::ok("directory", WHY, text);
    match std::fs::metadata(dir) {
        Err(error) => {
            return found(format!("cannot be looked at: {error}"))
                .fail("name a directory that there is");
        }
        Ok(meta) if !meta.is_dir() => {
            return found("not a directory".into()).fail("name the directory that it is in");
        }
        Ok(_) => {}
    }
    let file = match temporary(dir) {
        Ok(file) => file,
        Err(error) => {
            return found(format!("no file can be made here to probe with: {error}"))
                .warn("run doctor as a user who may write here");
        }
    };
    match RealFile::reopen(file.as_fd()) {
        Ok(file) => found(described(file.caps())),
        Err(reason) => {
            let (reason, remedy) = split(&reason.to_string());
            found(format!("its files stay with the kernel: {reason}")).warn(remedy)
        }
    }
}

fn described(caps: &Caps) -> String {
    let stable = if caps.stable_writes {
        ", pages must not change while written"
    } else {
        ""
    };
    let asked = match caps.file_system == STORE {
        true => ", unless `manage_stores = false`",
        false => "",
    };
    format!(
        "files can be managed: {}{asked}, direct I/O aligned to {} bytes (memory {}){stable}",
        caps.file_system, caps.offset_align, caps.memory_align
    )
}

/// A reason and its remedy are one sentence with a colon between them; a system's message in brackets may have one too.
fn split(sentence: &str) -> (String, String) {
    let (reason, remedy) = match sentence.rsplit_once("): ") {
        Some((reason, remedy)) => (format!("{reason})"), remedy),
        None => match sentence.split_once(": ") {
            Some((reason, remedy)) => (reason.to_owned(), remedy),
            None => (sentence.to_owned(), "leave them to the kernel"),
        },
    };
    (reason, remedy.to_owned())
}

/// A file without a name; where there is no such thing, one whose name is gone at once.
fn temporary(dir: &Path) -> io::Result<OwnedFd> {
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    if let Ok(file) = rustix::fs::open(dir, flags | OFlags::TMPFILE, mode) {
        return Ok(file);
    }
    let path = dir.join(format!(".forebay-doctor-{}", std::process::id()));
    let file = rustix::fs::open(
        &path,
        flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW,
        mode,
    )?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay::device::KernelReason;

    #[test]
    fn remedies_are_what_follows_the_reason() {
        let (reason, remedy) = split(&KernelReason::Fuse.to_string());
        assert_eq!(reason, "served by another process (FUSE)");
        assert_eq!(remedy, "use the files beneath it");
        let (reason, remedy) = split(&KernelReason::ReadOnly { errno: 26 }.to_string());
        assert!(reason.contains("Text file busy"), "{reason}");
        assert!(remedy.starts_with("let its mode"), "{remedy}");
        let (_, remedy) = split(&KernelReason::Immutable.to_string());
        assert_eq!(remedy, "`chattr -i` lifts it");
    }

    #[test]
    fn what_is_no_directory_fails() {
        let check = directory(Path::new("/dev/null"));
        assert_eq!(check.status, super::super::Status::Fail);
        assert_eq!(check.subject.as_deref(), Some("/dev/null"));
    }
}
