//! Hearing of a mount's end: the kernel takes a mount away before its process has written what it has, and the process then has nobody to tell how that went.
//!
//! So the process listens on an abstract socket whose name begins with the mount's device and what is mounted, and at its end tells whoever has connected. Who waits finds it in the
//! kernel's list of sockets and connects before it unmounts. Anybody may take names that begin so: nobody knows how the process's own ends before it has it, and who waits believes
//! root and the mount's owner only. Another network name space has other sockets: from there nobody can wait.

use std::collections::HashSet;
use std::fs;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect, shutdown,
    socket_with,
};
use rustix::process::geteuid;

use crate::points::{FILE_SYSTEM, unescaped};

/// What is said when nobody has it mounted any more.
const OVER: &str = "over";
/// What is said when everything is where it belongs.
const ENDED: &str = "ended";
/// How long a process is tried again that has not taken in yet who has connected before.
const FULL_PATIENCE: Duration = Duration::from_secs(1);
const FULL_PAUSE: Duration = Duration::from_millis(20);
/// How often who waits looks whether the mount is there still.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What the kernel's list says of a mount.
struct Listed {
    device: String,
    /// What is mounted, as the list has it.
    source: Vec<u8>,
    point: PathBuf,
    owner: u32,
}

fn listed(point: &Path) -> Option<Listed> {
    let all = listed_by("self");
    all.into_iter().rfind(|mount| mount.point == point)
}

/// The mounts of ours that a process sees.
fn listed_by(process: &str) -> Vec<Listed> {
    let list = fs::read(format!("/proc/{process}/mountinfo")).unwrap_or_default();
    let lines = list.split(|&byte| byte == b'\n');
    lines.filter_map(parsed).collect()
}

/// One line of it, if that is a mount of ours.
fn parsed(line: &[u8]) -> Option<Listed> {
    let words: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
    let rest = words.iter().position(|word| *word == b"-")?;
    if words.get(rest + 1)? != &FILE_SYSTEM.as_bytes() {
        return None;
    }
    let options = String::from_utf8_lossy(words.get(rest + 3)?);
    let owner = { options.split(',') }.find_map(|option| option.strip_prefix("user_id="));
    Some(Listed {
        device: String::from_utf8_lossy(words.get(2)?).into_owned(),
        source: words.get(rest + 2)?.to_vec(),
        point: unescaped(words.get(4)?),
        owner: owner?.parse().ok()?,
    })
}

impl Listed {
    /// Whether it is a mount of that file system. A number alone says little: once that is gone, another one has its number.
    fn is_of(&self, device: &str, source: &[u8]) -> bool {
        self.device == device && self.source == source
    }
}

/// Where something is mounted still: in words.
fn still_mounted(device: &str, source: &[u8]) -> Option<String> {
    let is_it = |mount: &Listed| mount.is_of(device, source);
    if let Some(mount) = listed_by("self").into_iter().find(is_it) {
        return Some(format!("at {}", mount.point.display()));
    }
    // Many processes see the same mounts.
    let mut seen = HashSet::new();
    let all = fs::read_dir("/proc").ok()?;
    let names = all.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut others = names.filter(|name| {
        let space = name.parse::<u32>().ok();
        let space = space.and_then(|id| fs::read_link(format!("/proc/{id}/ns/mnt")).ok());
        space.is_some_and(|space| seen.insert(space))
    });
    let other = others.find(|id| listed_by(id).iter().any(is_it))?;
    Some(format!(
        "in another mount name space, that of process {other}: a container's, for one"
    ))
}

/// What names of sockets begin with for a mount. Its number may be another mount's while the process of the last one still writes, so what is
/// mounted is in the name as well.
fn prefix(device: &str, source: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    source.hash(&mut hasher);
    format!("forebay-mount/{device}/{:x}/", hasher.finish())
}

/// The names that somebody has taken for a mount.
fn names(device: &str, source: &[u8]) -> Vec<String> {
    let list = fs::read("/proc/net/unix").unwrap_or_default();
    let list = String::from_utf8_lossy(&list).into_owned();
    let prefix = prefix(device, source);
    let of_lines = list.lines().filter_map(|line| line.rsplit_once('@'));
    let mut names: Vec<_> = of_lines
        .filter(|(_, name)| name.starts_with(&prefix))
        .map(|(_, name)| name.to_owned())
        .collect();
    // Each connection has a line of its own.
    names.sort();
    names.dedup();
    names
}

/// Who answers by a name. Nobody is waited for.
fn answers(name: &str) -> rustix::io::Result<UnixStream> {
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &address)?;
    Ok(UnixStream::from(socket))
}

fn is_of(stream: impl AsFd, owner: u32) -> bool {
    let peer = socket_peercred(stream).map(|peer| peer.uid.as_raw());
    peer.is_ok_and(|uid| uid == 0 || uid == owner)
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
        let listed = listed(point)?;
        Self::of_device(&listed.device, &listed.source)
    }

    fn of_device(device: &str, source: &[u8]) -> Option<Teller> {
        // Keys that nobody else knows.
        let key = RandomState::new().hash_one(0);
        let name = format!("{}{key:x}", prefix(device, source));
        let address = SocketAddr::from_abstract_name(name).ok()?;
        let socket = UnixListener::bind_addr(&address).ok()?;
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
            // Who else comes has nothing to end here.
            let is_theirs = is_of(&stream, geteuid().as_raw());
            if is_theirs && stream.set_nonblocking(true).is_ok() {
                self.asked.push(stream);
            }
        }
    }

    /// Tells everybody that it is mounted nowhere any more, and that the rest is being written.
    pub fn tell_over(&mut self) {
        self.look();
        for stream in &mut self.asked {
            let _ = stream.write_all(format!("{OVER}\n").as_bytes());
        }
    }

    /// Tells everybody how it ended: well, or why not.
    pub fn tell(mut self, failed: Option<&str>) {
        // Who comes from now on is turned away, rather than left without an answer when the socket goes.
        let _ = shutdown(&self.socket, Shutdown::Read);
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
pub struct Waiting {
    device: String,
    source: Vec<u8>,
    tellers: Vec<UnixStream>,
}

impl Waiting {
    /// For what is mounted at a point now.
    #[must_use]
    pub fn of(point: &Path) -> Waiting {
        match listed(point) {
            Some(mount) => Self::of_device(mount.device, mount.source, mount.owner),
            None => Self::of_device(String::new(), Vec::new(), 0),
        }
    }

    fn of_device(device: String, source: Vec<u8>, owner: u32) -> Waiting {
        let begun = Instant::now();
        let mut tellers = Vec::new();
        let mut names = names(&device, &source);
        loop {
            names.retain(|name| match answers(name) {
                Ok(stream) if is_of(&stream, owner) => {
                    tellers.push(stream);
                    false
                }
                // Whose it is nobody can tell.
                Err(Errno::AGAIN) => true,
                _ => false,
            });
            if names.is_empty() || !tellers.is_empty() || begun.elapsed() > FULL_PATIENCE {
                return Waiting {
                    device,
                    source,
                    tellers,
                };
            }
            std::thread::sleep(FULL_PAUSE);
        }
    }

    /// Waits until the mount's process has written everything; `patience` is called each time that so much has passed again, with all that has.
    ///
    /// # Errors
    /// What it could not, in its words; that the mount is there still, elsewhere; or that nobody can be asked.
    pub fn for_end(self, every: Duration, patience: impl Fn(Duration)) -> Result<(), String> {
        if self.tellers.is_empty() {
            return Err(
                "it is unmounted; whether everything has been written cannot be asked from here"
                    .into(),
            );
        }
        let begun = Instant::now();
        for mut stream in self.tellers {
            { stream.set_nonblocking(false) }
                .and_then(|()| stream.set_read_timeout(Some(LOOK_EVERY)))
                .map_err(|error| error.to_string())?;
            let mut told = begun.elapsed();
            let mut stream = BufReader::new(&mut stream);
            let (mut line, mut is_over) = (String::new(), false);
            loop {
                match stream.read_line(&mut line) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        // Another mount may have the number afterwards.
                        let place = (!is_over)
                            .then(|| still_mounted(&self.device, &self.source))
                            .flatten();
                        if let Some(place) = place {
                            return Err(format!(
                                "it is unmounted here, and still mounted {place}; its process goes on until it is unmounted there as well"
                            ));
                        }
                        if begun.elapsed() >= told + every {
                            told = begun.elapsed();
                            patience(told);
                        }
                    }
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Ok(_) if line.trim_end() == OVER => {
                        is_over = true;
                        line.clear();
                    }
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
        let found = parsed(line).expect("a mount");
        assert_eq!((found.device.as_str(), found.owner), ("0:43", 1000));
        assert_eq!(found.point, Path::new("/mnt/with space"));
        assert!(found.is_of("0:43", b"/data") && !found.is_of("0:4", b"/data"));
        // The next mount that has the number.
        assert!(!found.is_of("0:43", b"/other"));
        assert!(parsed(b"").is_none());
    }

    fn waiting(stream: UnixStream) -> Waiting {
        Waiting {
            device: "none".into(),
            source: Vec::new(),
            tellers: vec![stream],
        }
    }

    #[test]
    fn who_waits_is_told_how_it_ended() {
        let owner = geteuid().as_raw();
        let wait = |failed: Option<&'static str>| {
            let device = format!("test-{}-{}", std::process::id(), failed.is_some());
            let mut teller = Teller::of_device(&device, b"").expect("a socket");
            let waiting = Waiting::of_device(device.clone(), Vec::new(), owner);
            drop(Waiting::of_device(device, Vec::new(), owner));
            teller.look();
            teller.look();
            assert_eq!(teller.asked.len(), 1);
            teller.tell_over();
            teller.tell(failed);
            waiting.for_end(Duration::from_secs(60), |_| {})
        };
        assert_eq!(wait(None), Ok(()));
        let why = wait(Some("the store\nis full")).expect_err("it failed");
        assert!(why.contains("the store is full"), "{why}");
    }

    #[test]
    fn who_finds_nobody_to_ask_says_so() {
        let waiting = Waiting::of_device("none".into(), Vec::new(), 0);
        let why = waiting.for_end(Duration::from_secs(60), |_| {});
        assert!(why.expect_err("nobody").contains("cannot be asked"));
    }

    #[test]
    fn who_waits_for_what_dies_hears_of_it() {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let waiting = waiting(ours);
        let other = std::thread::spawn(move || {
            std::thread::sleep(LOOK_EVERY * 2);
            drop(theirs);
        });
        let times = std::cell::Cell::new(0);
        let why = waiting.for_end(Duration::from_millis(5), |_| times.set(times.get() + 1));
        assert!(why.expect_err("it died").contains("has died"));
        assert!(times.get() > 0);
        other.join().expect("it ends");
    }

    /// The process of an earlier mount that had the number may be at its end.
    #[test]
    fn who_comes_at_the_last_moment_is_told_or_turned_away() {
        let (device, source) = (format!("test-late-{}", std::process::id()), b"/data");
        let owner = geteuid().as_raw();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..5_000 {
                    Teller::of_device(&device, source)
                        .expect("a socket")
                        .tell(None);
                }
                is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            });
            let mut told = 0;
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                let waiting = Waiting::of_device(device.clone(), source.to_vec(), owner);
                let found = waiting.tellers.len();
                let ended = waiting.for_end(Duration::from_secs(60), |_| {});
                assert!(found == 0 || ended == Ok(()), "{ended:?}");
                told += found;
            }
            println!("{told} were told");
        });
    }

    #[test]
    fn what_else_has_had_the_number_is_not_asked() {
        let device = format!("test-other-{}", std::process::id());
        let _other = Teller::of_device(&device, b"/other").expect("a socket");
        let owner = geteuid().as_raw();
        let waiting = Waiting::of_device(device, b"/data".to_vec(), owner);
        assert!(waiting.tellers.is_empty());
    }
}
