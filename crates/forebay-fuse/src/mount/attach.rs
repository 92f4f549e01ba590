//! Mounting: root does it by itself, for everybody else the helper does.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::{fs, io};

use forebay::sys::socket;
use rustix::process::{getegid, geteuid};

use super::{Options, Places};
use crate::contents::REQUEST_BYTES_MAX;
use crate::points::{self, HELPER, as_option};
use crate::transport::device::PATH as DEVICE;

/// Mounts. The descriptor is where the kernel's requests come from.
pub(super) fn attach(places: &Places, options: &Options) -> Result<OwnedFd, String> {
    if geteuid().is_root() {
        attach_by_root(places, options)
    } else {
        attach_by_helper(places, options)
    }
}

fn attach_by_root(places: &Places, options: &Options) -> Result<OwnedFd, String> {
    let device = fs::OpenOptions::new().read(true).write(true).open(DEVICE);
    let device = OwnedFd::from(device.map_err(|error| no_device(&error))?);
    let mut data = format!(
        "fd={},rootmode=40000,user_id=0,group_id={},default_permissions,{}",
        device.as_raw_fd(),
        getegid().as_raw(),
        max_read()
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let data = CString::new(data).map_err(|error| error.to_string())?;
    rustix::mount::mount(
        &places.source,
        &places.point,
        points::FILE_SYSTEM,
        options.flags(),
        &*data,
    )
    .map_err(|error| io::Error::from(error).to_string())?;
    Ok(device)
}

fn no_device(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => format!(
            "there is no {DEVICE}; load the kernel's module (`modprobe fuse`), or give the container that device"
        ),
        _ => format!("{DEVICE}: {error}; a container needs that device, and the right to mount"),
    }
}

/// The helper mounts with root's rights, checks what this user may, and sends the descriptor over its standard input.
fn attach_by_helper(places: &Places, options: &Options) -> Result<OwnedFd, String> {
    let (ours, theirs) = UnixStream::pair().map_err(|error| error.to_string())?;
    let mut words = b"fsname=".to_vec();
    words.extend(as_option(&places.source));
    for word in options.words() {
        words.push(b',');
        words.extend(word.bytes());
    }
    let words: std::ffi::OsString = std::os::unix::ffi::OsStringExt::from_vec(words);
    let child = Command::new(HELPER)
        .arg("-o")
        .arg(words)
        .arg("--")
        .arg(&places.point)
        .env("_FUSE_COMMFD", "0")
        .env("LC_ALL", "C")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| points::no_helper(&error))?;
    // It sends one, or ends.
    let received = socket::receive(ours.as_fd(), &mut [0]);
    let output = child
        .wait_with_output()
        .map_err(|error| error.to_string())?;
    let descriptor = received
        .ok()
        .and_then(|(_, descriptors)| descriptors.into_iter().next());
    match descriptor.filter(|_| output.status.success()) {
        Some(descriptor) => Ok(descriptor),
        None => Err(refused(&String::from_utf8_lossy(&output.stderr))),
    }
}

fn refused(said: &str) -> String {
    let said = said.trim();
    if said.contains("user_allow_other") {
        return "--allow-other is root's to allow: write the line user_allow_other to /etc/fuse.conf".into();
    }
    if said.is_empty() {
        return format!("{HELPER} has refused without a word");
    }
    said.to_owned()
}

/// What one request of the kernel's reads at most. Where the kernel reads a file for itself (a module's, another kernel's) nothing else limits it.
pub(super) fn max_read() -> String {
    format!("max_read={REQUEST_BYTES_MAX}")
}
