//! A loop device over a memory file, a file system on it, and its mount.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{FileSystem, memory_total};
use crate::failure::{Context, Failure, Result};

// From the kernel's `uapi/linux/loop.h`.
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
/// Detach when the last user closes: the mount is the last.
const LO_FLAGS_AUTOCLEAR: u32 = 4;

/// `struct loop_config` with the `struct loop_info64` inside it.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    names_and_key: [u8; 64 + 64 + 32],
    init: [u64; 2],
    reserved: [u64; 8],
}
const _: () = assert!(size_of::<LoopConfig>() == 8 + 232 + 64);

/// Gives this process, and all it starts, a view of the mounts that no other process shares.
pub fn hide_mounts() -> io::Result<()> {
    // SAFETY: changes this thread's view of mounts only; the strings are terminated.
    unsafe {
        if libc::unshare(libc::CLONE_NEWNS) != 0
            || libc::mount(
                c"none".as_ptr(),
                c"/".as_ptr(),
                std::ptr::null(),
                libc::MS_REC | libc::MS_PRIVATE,
                std::ptr::null(),
            ) != 0
        {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Mounts a tmpfs with huge pages for the engine's arena, in this process's own view of the mounts: what an administrator
/// would set up. It goes with the process.
pub fn mount_huge_pages() -> Result<PathBuf> {
    let dir = std::env::temp_dir().join(format!("forebay-bench-arena-{}", std::process::id()));
    fs::create_dir(&dir).context("mount point of the arena")?;
    let target = c_string(&dir);
    // SAFETY: terminated strings.
    let code = unsafe {
        libc::mount(
            c"none".as_ptr(),
            target.as_ptr(),
            c"tmpfs".as_ptr(),
            0,
            c"huge=always,mode=1777,size=60%".as_ptr().cast(),
        )
    };
    if code != 0 {
        return Err(io::Error::last_os_error()).context("mount a tmpfs with huge pages");
    }
    Ok(dir)
}

/// A mounted file system that is gone when this is dropped.
pub struct MadeDevice {
    dir: PathBuf,
}

impl MadeDevice {
    /// Makes a device with room for `bytes` of files, a file system, and mounts it.
    pub fn new(file_system: FileSystem, bytes: u64) -> Result<Self> {
        // A quarter more for the file system's own, and what mkfs and btrfs want at the least.
        let len = (bytes + bytes / 4 + (512 << 20)).next_multiple_of(1 << 20);
        let memory = memory_file(len).context("memory file for the loop device")?;
        let (device, path) = attach(&memory)?;
        drop(memory);
        make_file_system(file_system, &path)?;
        let made = mount(file_system, &path)?;
        // Open until now, so that the device did not detach itself before it was mounted.
        drop(device);
        Ok(made)
    }

    /// The root of the new file system.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for MadeDevice {
    fn drop(&mut self) {
        unmount(&self.dir);
    }
}

/// Unmounts and removes the mount point. A busy mount (a session's keeper may be about to leave) is detached from the tree
/// at once and unmounted by the kernel when its last user goes.
pub fn unmount(dir: &Path) {
    let target = c_string(dir);
    // SAFETY: a terminated path.
    unsafe {
        if libc::umount2(target.as_ptr(), 0) != 0 {
            libc::umount2(target.as_ptr(), libc::MNT_DETACH);
        }
    }
    // An empty directory left behind is no harm.
    let _ = fs::remove_dir(dir);
}

/// A memory file, backed ahead where a third of the memory allows it: otherwise the first writes to
/// the device would pay for its memory, and only they.
fn memory_file(len: u64) -> io::Result<File> {
    // SAFETY: a terminated name; the descriptor returned is ours alone.
    let file = unsafe {
        let fd = libc::memfd_create(c"forebay-bench".as_ptr(), libc::MFD_CLOEXEC);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        File::from(OwnedFd::from_raw_fd(fd))
    };
    file.set_len(len)?;
    if len <= memory_total() / 3 {
        let zeros = vec![0; 1 << 20];
        for offset in (0..len).step_by(zeros.len()) {
            file.write_all_at(&zeros, offset)?;
        }
    }
    Ok(file)
}

/// Attaches a free loop device to the file.
fn attach(memory: &File) -> Result<(File, PathBuf)> {
    let control = File::options()
        .read(true)
        .write(true)
        .open("/dev/loop-control");
    let control = control.context("/dev/loop-control (needs root)")?;
    // Others may take the free device between the two calls.
    for _ in 0..16 {
        // SAFETY: this request takes no argument.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
        if number < 0 {
            return Err(io::Error::last_os_error()).context("a free loop device");
        }
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let device = File::options()
            .read(true)
            .write(true)
            .open(&path)
            .context("loop device")?;
        // SAFETY: zeros are valid for a structure of integers.
        let mut config: LoopConfig = unsafe { std::mem::zeroed() };
        config.fd = memory.as_raw_fd() as u32;
        config.flags = LO_FLAGS_AUTOCLEAR;
        // SAFETY: the request reads one structure of the size asserted above.
        if unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) } == 0 {
            return Ok((device, path));
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EBUSY) {
            return Err(error).context("attach a loop device");
        }
    }
    Err(Failure::Unavailable(
        "all loop devices are taken by others".into(),
    ))
}

fn make_file_system(file_system: FileSystem, device: &Path) -> Result<()> {
    // No discard: it would give back the memory that was backed ahead. No lazy work later on.
    let options: &[&str] = match file_system {
        FileSystem::Xfs => &["-q", "-f", "-K"],
        FileSystem::Ext4 => &[
            "-q",
            "-F",
            "-E",
            "nodiscard,lazy_itable_init=0,lazy_journal_init=0",
        ],
        FileSystem::Btrfs => &["-q", "-f", "-K"],
    };
    let program = format!("mkfs.{}", file_system.name());
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let output = Command::new(&program)
        .env("PATH", path)
        .args(options)
        .arg(device)
        .output()
        .context(&program)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Failure::Unavailable(format!("{program}: {said}")));
    }
    Ok(())
}

fn mount(file_system: FileSystem, device: &Path) -> Result<MadeDevice> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    // Relaxed: the number only has to be new.
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("forebay-bench-{}-{count}", std::process::id()));
    fs::create_dir(&dir).context("mount point")?;
    let (source, target) = (c_string(device), c_string(&dir));
    let kind = CString::new(file_system.name()).expect("names hold no zero byte");
    // SAFETY: terminated strings, no data.
    let code = unsafe {
        libc::mount(
            source.as_ptr(),
            target.as_ptr(),
            kind.as_ptr(),
            0,
            std::ptr::null(),
        )
    };
    if code != 0 {
        let error = io::Error::last_os_error();
        let _ = fs::remove_dir(&dir);
        return Err(error).context("mount");
    }
    Ok(MadeDevice { dir })
}

fn c_string(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("paths we made hold no zero byte")
}
