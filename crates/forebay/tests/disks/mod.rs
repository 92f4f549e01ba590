//! File systems for tests: loop devices over files in memory, mounted while a value lives. Needs root; where something is
//! missing, the reason comes back instead.
#![allow(dead_code)]

use std::fs;
use std::io::{Read, repeat};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

static COUNT: AtomicU32 = AtomicU32::new(0);

fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(format!("{program} {}: {said}", arguments.join(" ")))
}

/// A name that no other test process uses.
pub fn unique(what: &str) -> String {
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("forebay-test-{what}-{}-{count}", std::process::id())
}

/// A file system on a loop device, mounted.
pub struct Disk {
    image: PathBuf,
    device: String,
    dir: PathBuf,
    options: String,
}

impl Disk {
    /// Makes one of `kind` ("xfs", "xfs-1k", "ext4", "ext4-1k", "ext4-plain", which has no journal, "btrfs") with `mib` MiB, mounted with `options`.
    pub fn new(kind: &str, mib: u64, options: &str) -> Result<Disk, String> {
        Self::within(Path::new("/dev/shm"), kind, mib, options)
    }

    /// The same, in a file of this directory.
    fn within(place: &Path, kind: &str, mib: u64, options: &str) -> Result<Disk, String> {
        // SAFETY: a call without arguments.
        if unsafe { libc::geteuid() } != 0 {
            return Err("not root, so nothing can be mounted".into());
        }
        let name = unique(kind);
        let image = place.join(format!("{name}.img"));
        let file = fs::File::create(&image).map_err(|e| e.to_string())?;
        file.set_len(mib << 20).map_err(|e| e.to_string())?;
        drop(file);
        let mut disk = Disk {
            device: String::new(),
            dir: std::env::temp_dir().join(&name),
            image,
            options: options.to_owned(),
        };
        let image = disk.image.to_str().expect("plain").to_owned();
        match kind {
            // Smaller ones than it likes; only tests want them.
            "xfs" | "xfs-1k" => {
                let small = ["-q", "-f", "-d", "agcount=1", "-l", "size=8m"];
                let bytes = if kind == "xfs" { "4096" } else { "1024" };
                let env = Command::new("mkfs.xfs")
                    .args(if mib < 300 { &small[..] } else { &small[..2] })
                    .args(["-b", &format!("size={bytes}")])
                    .arg(&image)
                    .envs([("TEST_DIR", "1"), ("TEST_DEV", "1"), ("QA_CHECK_FS", "1")])
                    .output()
                    .map_err(|error| format!("mkfs.xfs: {error}"))?;
                if !env.status.success() {
                    return Err(String::from_utf8_lossy(&env.stderr).into_owned());
                }
            }
            // Small ones would get blocks of 1 KiB.
            "ext4" => drop(run("mkfs.ext4", &["-q", "-F", "-b", "4096", &image])?),
            "ext4-1k" => drop(run("mkfs.ext4", &["-q", "-F", "-b", "1024", &image])?),
            "ext4-plain" => drop(run(
                "mkfs.ext4",
                &["-q", "-F", "-b", "4096", "-O", "^has_journal", &image],
            )?),
            _ => drop(run(&format!("mkfs.{kind}"), &["-q", &image])?),
        }
        disk.device = run("losetup", &["--find", "--show", &image])?;
        fs::create_dir(&disk.dir).map_err(|e| e.to_string())?;
        disk.mount()?;
        Ok(disk)
    }

    /// Where it is mounted.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its block device.
    pub fn device(&self) -> &str {
        &self.device
    }

    fn dir_text(&self) -> &str {
        self.dir.to_str().expect("plain")
    }

    /// Mounts it, as it was at first.
    pub fn mount(&self) -> Result<(), String> {
        let mut arguments = vec![self.device.as_str(), self.dir_text()];
        if !self.options.is_empty() {
            arguments.extend(["-o", &self.options]);
        }
        run("mount", &arguments).map(drop)
    }

    /// Unmounts it; busy file systems refuse.
    pub fn unmount(&self) -> Result<(), String> {
        run("umount", &[self.dir_text()]).map(drop)
    }

    /// Makes it read-only, or writable again.
    pub fn remount(&self, option: &str) -> Result<(), String> {
        let options = format!("remount,{option}");
        run("mount", &["-o", &options, self.dir_text()]).map(drop)
    }

    /// Runs a program on it.
    pub fn tool(&self, program: &str, arguments: &[&str]) -> Result<String, String> {
        run(program, arguments)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if run("mountpoint", &["-q", self.dir_text()]).is_ok() && self.unmount().is_err() {
            let _ = run("umount", &["--lazy", self.dir_text()]);
        }
        if !self.device.is_empty() {
            let _ = run("losetup", &["--detach", &self.device]);
        }
        let _ = fs::remove_dir(&self.dir);
        let _ = fs::remove_file(&self.image);
    }
}

/// Takes space for a file without changing its length.
pub fn allocate(file: &fs::File, offset: i64, len: i64) -> std::io::Result<()> {
    use std::os::fd::AsRawFd;
    // SAFETY: the call takes no memory.
    match unsafe { libc::fallocate(file.as_raw_fd(), libc::FALLOC_FL_KEEP_SIZE, offset, len) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Fills what is left of a disk, by a file of this name.
pub fn fill_up(disk: &Disk, name: &str) {
    let mut file = fs::File::create(disk.dir().join(name)).expect("a file");
    for size in [1 << 20, 4096] {
        while std::io::Write::write_all(&mut file, &vec![1; size]).is_ok() {}
    }
    file.sync_all().expect("what was written");
    // XFS takes no writes long before it has no block left.
    take_all(&file);
}

/// Takes all the space that there is.
pub fn take_all(file: &fs::File) {
    let (mut at, mut step) = (file.metadata().map_or(0, |of| of.len() as i64), 64 << 20);
    while step >= 4096 {
        match allocate(file, at, step) {
            Ok(()) => at += step,
            Err(_) => step /= 2,
        }
    }
}

/// A tmpfs, mounted.
pub struct Tmpfs(PathBuf);

impl Tmpfs {
    /// One of `mib` MiB.
    pub fn new(mib: u64) -> Result<Tmpfs, String> {
        let dir = std::env::temp_dir().join(unique("tmpfs"));
        fs::create_dir(&dir).map_err(|e| e.to_string())?;
        let options = format!("size={mib}m,mode=1777");
        let target = dir.to_str().expect("plain");
        run(
            "mount",
            &["-t", "tmpfs", "-o", &options, "forebay-tests", target],
        )?;
        Ok(Tmpfs(dir))
    }

    /// Where it is mounted.
    pub fn dir(&self) -> &Path {
        &self.0
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let target = self.0.to_str().expect("plain");
        if run("umount", &[target]).is_err() {
            let _ = run("umount", &["--lazy", target]);
        }
        let _ = fs::remove_dir(&self.0);
    }
}

/// A file system whose device takes what comes to where something has been, and nothing else.
pub struct Hollow {
    disk: Disk,
    /// Full, and what the device lies in.
    _floor: Tmpfs,
}

impl Hollow {
    /// One with a file of which the device takes the first `len` bytes.
    pub fn new(len: u64) -> Result<Hollow, String> {
        let floor = Tmpfs::new(24)?;
        let disk = Disk::within(floor.dir(), "ext4-plain", 200, "")?;
        let said = |error: std::io::Error| error.to_string();
        let file = fs::File::create(disk.dir().join("f")).map_err(said)?;
        std::io::copy(&mut repeat(b'y').take(len), &mut &file).map_err(said)?;
        file.set_len(len + LOST as u64).map_err(said)?;
        file.sync_all().map_err(said)?;
        disk.tool("sync", &["-f", disk.dir_text()])?;
        take_all(&fs::File::create(floor.dir().join("fill")).map_err(said)?);
        Ok(Hollow {
            disk,
            _floor: floor,
        })
    }

    /// The file.
    pub fn path(&self) -> PathBuf {
        self.disk.dir().join("f")
    }
}

/// Bytes of such a file, behind the others, that can be written, and that the kernel cannot write back.
const LOST: usize = 8 << 20;

/// Writes them. The device takes those before `from`.
pub fn lose(file: &fs::File, from: u64) {
    let written = file.write_all_at(&vec![b'x'; LOST], from);
    written.expect("into the kernel's cache");
}

/// Syncs by a description until it has heard of all that went wrong. It must have heard of something.
pub fn hear_of_all(file: &fs::File) {
    assert!(file.sync_all().is_err(), "the device has taken all");
    let mut quiet = 0;
    for _ in 0..100 {
        quiet = file.sync_all().map_or(0, |()| quiet + 1);
        if quiet == 3 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    panic!("it does not end");
}

/// A cgroup, removed with this value.
pub struct Group(PathBuf);

impl Group {
    fn new(controller: &str) -> Result<Group, String> {
        let top = Path::new("/sys/fs/cgroup").join(controller);
        if !top.join("cgroup.procs").exists() {
            return Err(format!("no {controller} cgroup of version 1"));
        }
        let dir = top.join(unique("group"));
        fs::create_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        Ok(Group(dir))
    }

    fn set(&self, file: &str, text: &str) -> Result<(), String> {
        let path = self.0.join(file);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// One whose members write to the disk's device at this speed, bytes a second.
    pub fn slow_writes(disk: &Disk, speed: u64) -> Result<Group, String> {
        let name = disk.device.trim_start_matches("/dev/");
        let number =
            fs::read_to_string(format!("/sys/block/{name}/dev")).map_err(|e| e.to_string())?;
        let group = Self::new("blkio")?;
        group.set(
            "blkio.throttle.write_bps_device",
            &format!("{} {speed}", number.trim()),
        )?;
        Ok(group)
    }

    /// One whose members may hold this much memory, of whichever version has the controller.
    pub fn little_memory(bytes: u64) -> Result<Group, String> {
        let two = Path::new("/sys/fs/cgroup");
        let enabled = fs::read_to_string(two.join("cgroup.subtree_control")).unwrap_or_default();
        let group = if enabled.split(' ').any(|name| name.trim() == "memory") {
            let dir = two.join(unique("group"));
            fs::create_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
            Group(dir)
        } else {
            Self::new("memory")?
        };
        group.set_memory(bytes)?;
        Ok(group)
    }

    /// Changes how much memory its members may hold.
    pub fn set_memory(&self, bytes: u64) -> Result<(), String> {
        let file = self.either("memory.max", "memory.limit_in_bytes");
        self.set(file, &bytes.to_string())
    }

    /// The name that a file has in version 2, or in version 1.
    fn either<'n>(&self, two: &'n str, one: &'n str) -> &'n str {
        if self.0.join(two).exists() { two } else { one }
    }

    /// Bytes of memory that its members hold, without what the kernel drops first.
    pub fn memory_used(&self) -> u64 {
        let used = self.get(self.either("memory.current", "memory.usage_in_bytes"));
        let used: u64 = used.trim().parse().expect("a number");
        let stat = self.get("memory.stat");
        let cold = stat.lines().filter_map(|line| line.split_once(' '));
        let cold = cold
            .filter(|(name, _)| ["total_inactive_file", "inactive_file"].contains(name))
            .filter_map(|(_, bytes)| bytes.parse().ok())
            .max();
        used.saturating_sub(cold.unwrap_or(0))
    }

    /// How often the kernel had to take memory from its members, or to refuse it.
    pub fn times_at_limit(&self) -> u64 {
        let name = self.either("memory.events", "memory.failcnt");
        let text = self.get(name);
        let max = text.lines().find_map(|line| line.strip_prefix("max "));
        max.unwrap_or(&text).trim().parse().expect("a number")
    }

    /// How often the kernel killed a member for want of memory.
    pub fn times_killed(&self) -> u64 {
        let text = self.get(self.either("memory.events", "memory.oom_control"));
        let killed = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        killed.expect("a count").trim().parse().expect("a number")
    }

    /// Has a program that is about to be started begin its life in the group.
    pub fn enter(&self, command: &mut Command) {
        use std::os::unix::process::CommandExt;
        let door = fs::OpenOptions::new().write(true).open(self.door());
        let door = door.expect("a door");
        // SAFETY: one write to a file that was opened before; no memory of the parent's is changed.
        unsafe { command.pre_exec(move || std::io::Write::write_all(&mut &door, b"0")) };
    }

    /// A value of the group.
    pub fn get(&self, file: &str) -> String {
        fs::read_to_string(self.0.join(file)).unwrap_or_default()
    }

    /// Puts a process into it, with all its threads.
    pub fn add(&self, pid: u32) -> Result<(), String> {
        self.set("cgroup.procs", &pid.to_string())
    }

    /// The file that takes new members.
    pub fn door(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel lets go of the dead a moment later.
        for _ in 0..200 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        eprintln!("still there: {}", self.0.display());
    }
}
