//! Hearing of a mount's end: the kernel takes a mount away before its process has written what it has, and the process then has nobody to tell how that went.
//!
//! So the process listens on an abstract socket that is named after the mount's device, and at its end tells whoever has connected. Who waits connects
//! before it unmounts, and believes root and the mount's owner only. Another network name space has other sockets: from there nobody waits.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::sockopt::socket_peercred;

use crate::points::{FILE_SYSTEM, unescaped};

/// A device's number may be another mount's while the process of the last one still writes.
const NAMES: u32 = 8;
/// What is said when everything is where it belongs.
const ENDED: &str = "ended";

/// What the kernel's list says of a mount.
struct Listed {
    device: String,
    owner: u32,
}

fn listed(point: &Path) -> Option<Listed> {
    let list = fs::read("/proc/self/mountinfo").ok()?;
    let lines = list.split(|&byte| byte == b'\n');
    lines.rev().find_map(|line| parsed(line, point))
}

/// One line of it, if that is a mount of ours at this point.
fn parsed(line: &[u8], point: &Path) -> Option<Listed> {
    let words: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
    let rest = words.iter().position(|word| *word == b"-")?;
    if words.get(rest + 1)? != &FILE_SYSTEM.as_bytes() || unescaped(words.get(4)?) != point {
        return None;
    }
    let options = String::from_utf8_lossy(words.get(rest + 3)?);
    let owner = { options.split(',') }.find_map(|option| option.strip_prefix("user_id="));
    Some(Listed {
        device: String::from_utf8_lossy(words.get(2)?).into_owned(),
        owner: owner?.parse().ok()?,
    })
}

fn addresses(device: &str) -> impl Iterator<Item = SocketAddr> {
    let name = move |count| format!("forebay-mount/{device}/{count}");
    (0..NAMES).filter_map(move |count| SocketAddr::from_abstract_name(name(count)).ok())
}

/// The mount's process, which tells of its end.
#[derive(Debug)]
pub struct Teller {
    socket: UnixListener,
    asked: Vec<UnixStream>,
}

impl Teller {
    /// For what this process has mounted at a point; `None` if nobody can be told.
    #[must_use]
    pub fn begin(point: &Path) -> Option<Teller> {
        let device = listed(point)?.device;
        let socket = addresses(&device).find_map(|name| UnixListener::bind_addr(&name).ok())?;
        socket.set_nonblocking(true).ok()?;
        Some(Teller {
            socket,
            asked: Vec::new(),
        })
    }

    /// Takes in who has connected, and forgets who has gone. To be called now and then: few may wait for it.
    pub fn look(&mut self) {
        // Nobody says anything: what comes is the end of the connection.
        let is_there = |stream: &mut UnixStream| {
            let heard = stream.read(&mut [0]);
            heard.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
        };
        self.asked.retain_mut(is_there);
        while let Ok((stream, _)) = self.socket.accept() {
            if stream.set_nonblocking(true).is_ok() {
                self.asked.push(stream);
            }
        }
    }

    /// Tells everybody how it ended: well, or why not.
    pub fn tell(mut self, failed: Option<&str>) {
        self.look();
        let line = failed.map_or(ENDED.to_owned(), |why| why.replace('\n', " "));
        for mut stream in self.asked {
            // Who does not wait any more hears nothing.
            let _ = stream.write_all(format!("{line}\n").as_bytes());
        }
    }
}

/// Somebody who waits for a mount's end.
#[derive(Debug)]
pub struct Waiting(Vec<UnixStream>);

impl Waiting {
    /// For what is mounted at a point now.
    #[must_use]
    pub fn of(point: &Path) -> Waiting {
        let Some(Listed { device, owner }) = listed(point) else {
            return Waiting(Vec::new());
        };
        let streams = addresses(&device).filter_map(|name| UnixStream::connect_addr(&name).ok());
        let is_theirs = |stream: &UnixStream| {
            let peer = socket_peercred(stream).map(|peer| peer.uid.as_raw());
            peer.is_ok_and(|uid| uid == 0 || uid == owner)
        };
        Waiting(streams.filter(is_theirs).collect())
    }

    /// Waits until the mount's process has written everything; `patience` is called each time that so much has passed again, with all that has.
    ///
    /// # Errors
    /// What it could not, in its words.
    pub fn for_end(self, every: Duration, patience: impl Fn(Duration)) -> Result<(), String> {
        let begun = Instant::now();
        for stream in self.0 {
            stream
                .set_read_timeout(Some(every))
                .map_err(|error| error.to_string())?;
            let mut stream = BufReader::new(stream);
            let mut line = String::new();
            loop {
                match stream.read_line(&mut line) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        patience(begun.elapsed())
                    }
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    _ => break,
                }
            }
            match line.trim_end() {
                ENDED => {}
                "" => return Err(
                    "it is unmounted, and its process has died before it had written everything"
                        .into(),
                ),
                why => return Err(format!("it is unmounted, and {why}")),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mounts_device_and_owner_are_found() {
        let line = b"36 35 0:43 / /mnt/with\\040space rw,nosuid shared:7 - fuse.forebay /data rw,user_id=1000,group_id=0";
        let found = parsed(line, Path::new("/mnt/with space")).expect("a mount");
        assert_eq!((found.device.as_str(), found.owner), ("0:43", 1000));
        assert!(parsed(line, Path::new("/mnt")).is_none());
        assert!(parsed(b"", Path::new("/mnt")).is_none());
    }

    #[test]
    fn who_waits_is_told_how_it_ended() {
        let device = format!("test-{}", std::process::id());
        let wait = |failed: Option<&'static str>| {
            let name = addresses(&device).next().expect("an address");
            let socket = UnixListener::bind_addr(&name).expect("a socket");
            socket.set_nonblocking(true).expect("set");
            let mut teller = Teller {
                socket,
                asked: Vec::new(),
            };
            let stream = || UnixStream::connect_addr(&name).expect("connected");
            let waiting = Waiting(vec![stream()]);
            drop(stream());
            teller.look();
            teller.look();
            assert_eq!(teller.asked.len(), 1);
            teller.tell(failed);
            waiting.for_end(Duration::from_secs(60), |_| {})
        };
        assert_eq!(wait(None), Ok(()));
        let why = wait(Some("the store\nis full")).expect_err("it failed");
        assert!(why.contains("the store is full"), "{why}");
    }

    #[test]
    fn who_waits_for_what_dies_hears_of_it() {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let waiting = Waiting(vec![ours]);
        let other = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(theirs);
        });
        let times = std::cell::Cell::new(0);
        let why = waiting.for_end(Duration::from_millis(5), |_| times.set(times.get() + 1));
        assert!(why.expect_err("it died").contains("has died"));
        assert!(times.get() > 0);
        other.join().expect("it ends");
    }
}
