//! The picture of the system that a place is chosen from, and the choice of candidates.
//!
//! [`Survey::of_this_system`] looks, once; [`Survey::rungs`] decides, without looking, so that a test
//! can draw any system. A mount counts only when its directory really shows it: another mount may
//! cover it.

use super::PlaceKind;
use crate::limits::HUGE_BYTES;
use crate::sys::mounts::{Mount, parse_mountinfo_of};
use std::ffi::CString;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where programs keep shared memory by convention.
const SHARED_MEMORY_DIR: &str = "/dev/shm";
/// Switches huge pages of all tmpfs mounts, whatever their options, when `force` or `deny`.
const SHMEM_ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
/// The pool of huge pages of 2 MiB.
const HUGE_POOL_DIR: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";
/// Of what is free in /dev/shm, the part that is left to other programs: a quarter. Containers get
/// 64 MiB by default, and a program that finds it full dies of SIGBUS.
const SHARED_LEFT_PARTS: u64 = 4;

/// A kind of memory file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fs {
    /// tmpfs
    Tmpfs,
    /// hugetlbfs
    Hugetlbfs,
    /// Anything that does not keep files in memory.
    Other,
}

/// A directory that might hold arenas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The directory.
    pub dir: PathBuf,
    /// The file system it is on.
    pub fs: Fs,
    /// Value of the mount option `huge`, empty where there is none.
    pub huge: String,
    /// Bytes free; `u64::MAX` where the file system has no limit of its own.
    pub free: u64,
    /// Page size in bytes.
    pub page_bytes: u64,
    /// Nothing can be written there.
    pub read_only: bool,
}

/// What was found on this system.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// The configured directory and what it is on, or why it cannot be looked at.
    pub configured: Option<(PathBuf, Result<Site, String>)>,
    /// Memory file systems that are mounted and visible.
    pub sites: Vec<Site>,
    /// `shmem_enabled`: "force" and "deny" matter.
    pub shmem: String,
    /// Huge pages of 2 MiB that nobody has or has reserved.
    pub huge_pages_free: u64,
}

/// A candidate.
#[derive(Debug)]
pub(super) struct Rung {
    pub(super) kind: PlaceKind,
    pub(super) dir: PathBuf,
    /// Bytes there is room for, a multiple of 2 MiB, at least one.
    pub(super) room: u64,
    /// What makes more room.
    remedy: &'static str,
}

/// Why a rung was not taken.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) kind: PlaceKind,
    pub(super) why: String,
}

impl Rung {
    pub(super) fn too_small(&self, bytes: u64) -> Option<Refusal> {
        let why = || {
            format!(
                "{} has room for {} MiB of the {} MiB asked for: {}, or set memory to less",
                self.dir.display(),
                self.room >> 20,
                bytes >> 20,
                self.remedy
            )
        };
        (self.room < bytes).then(|| Refusal {
            kind: self.kind,
            why: why(),
        })
    }
}

impl Survey {
    /// Looks at this process's mounts and the kernel's settings. What cannot be read counts as
    /// not there.
    pub fn of_this_system(config_dir: Option<&Path>) -> Self {
        let mounts = mounts_here();
        let shmem = std::fs::read_to_string(SHMEM_ENABLED).unwrap_or_default();
        Self {
            configured: config_dir.map(|dir| (dir.to_owned(), look_at(dir, &mounts))),
            sites: mounts.iter().filter_map(visible).collect(),
            shmem: chosen_word(&shmem).to_owned(),
            huge_pages_free: pool_count("free_hugepages")
                .saturating_sub(pool_count("resv_hugepages")),
        }
    }

    /// The candidates in the ladder's order, whatever their room, and why others are none.
    pub(super) fn rungs(&self, bytes: u64) -> (Vec<Rung>, Vec<Refusal>) {
        let mut rungs = Vec::new();
        let mut refusals = Vec::new();
        let mut sort = |kind, results: Vec<Result<Rung, String>>| {
            for result in results {
                match result {
                    Ok(rung) => rungs.push(rung),
                    Err(why) => refusals.push(Refusal { kind, why }),
                }
            }
        };
        sort(
            PlaceKind::Configured,
            self.configured().into_iter().collect(),
        );
        sort(PlaceKind::Hugetlb, self.hugetlb(bytes));
        sort(PlaceKind::HugeTmpfs, self.huge_tmpfs());
        sort(PlaceKind::Plain, vec![self.plain()]);
        (rungs, refusals)
    }

    fn configured(&self) -> Option<Result<Rung, String>> {
        let (dir, site) = self.configured.as_ref()?;
        let remedy = "give its file system more room";
        Some(match site {
            Err(why) => Err(format!("arena_dir {}: {why}", dir.display())),
            Ok(site) => self.rung(PlaceKind::Configured, site, remedy),
        })
    }

    fn hugetlb(&self, bytes: u64) -> Vec<Result<Rung, String>> {
        let pages = bytes.div_ceil(HUGE_BYTES as u64);
        let found: Vec<_> = self
            .sites
            .iter()
            .filter(|site| site.fs == Fs::Hugetlbfs)
            .map(|site| self.rung(PlaceKind::Hugetlb, site, "raise vm.nr_hugepages"))
            .collect();
        if found.is_empty() {
            let uid = super::dir::user_id();
            return vec![Err(format!(
                "no hugetlbfs is mounted: `sysctl vm.nr_hugepages={pages}` and \
                 `mount -t hugetlbfs -o pagesize=2M,mode=0700,uid={uid} none /dev/hugepages`"
            ))];
        }
        found
    }

    fn huge_tmpfs(&self) -> Vec<Result<Rung, String>> {
        if self.shmem == "deny" {
            return vec![Err(format!(
                "huge pages of tmpfs are switched off: `echo advise > {SHMEM_ENABLED}`"
            ))];
        }
        let huge = |site: &&Site| {
            site.fs == Fs::Tmpfs
                && (matches!(site.huge.as_str(), "always" | "within_size" | "advise")
                    || self.shmem == "force" && site.dir == Path::new(SHARED_MEMORY_DIR))
        };
        let remedy = "remount it with a larger size=";
        let found: Vec<_> = self
            .sites
            .iter()
            .filter(huge)
            .map(|site| self.rung(PlaceKind::HugeTmpfs, site, remedy))
            .collect();
        if found.is_empty() {
            return vec![Err(format!(
                "no tmpfs with huge pages is mounted: `mount -o remount,huge=advise \
                 {SHARED_MEMORY_DIR}`"
            ))];
        }
        found
    }

    fn plain(&self) -> Result<Rung, String> {
        let site = self
            .sites
            .iter()
            .find(|site| site.dir == Path::new(SHARED_MEMORY_DIR));
        let Some(site) = site else {
            return Err(format!(
                "{SHARED_MEMORY_DIR} is not mounted: `mount -t tmpfs -o mode=1777 none \
                 {SHARED_MEMORY_DIR}`, or set arena_dir to a directory on tmpfs"
            ));
        };
        let remedy = "make it larger (`mount -o remount,size=...`, or --shm-size for a container)";
        self.rung(PlaceKind::Plain, site, remedy)
    }

    fn rung(&self, kind: PlaceKind, site: &Site, remedy: &'static str) -> Result<Rung, String> {
        let dir = site.dir.display();
        let unlimited_pool = self.huge_pages_free.saturating_mul(HUGE_BYTES as u64);
        let room = match site.fs {
            Fs::Other => {
                return Err(format!(
                    "{dir} is not on a memory file system, so the kernel would write the arena to \
                     its disk: choose a directory on tmpfs or hugetlbfs"
                ));
            }
            _ if site.read_only => return Err(format!("{dir} is read-only: remount it rw")),
            Fs::Hugetlbfs if site.page_bytes != HUGE_BYTES as u64 => {
                let kib = site.page_bytes >> 10;
                return Err(format!(
                    "{dir} has pages of {kib} KiB: mount one with pagesize=2M"
                ));
            }
            Fs::Hugetlbfs => site.free.min(unlimited_pool),
            Fs::Tmpfs if site.dir == Path::new(SHARED_MEMORY_DIR) => {
                site.free - site.free / SHARED_LEFT_PARTS
            }
            Fs::Tmpfs => site.free,
        };
        let room = room / HUGE_BYTES as u64 * HUGE_BYTES as u64;
        if room == 0 {
            return Err(format!("{dir} has no 2 MiB free: {remedy}"));
        }
        Ok(Rung {
            kind,
            dir: site.dir.clone(),
            room,
            remedy,
        })
    }
}

/// Directories in which a user's directory may lie, each once, the configured one first, then `/dev/shm`. The list of mounts, which takes 76 us
/// of a command that joins, is read only by a caller that goes on from there.
pub(super) fn parents(config_dir: Option<&Path>) -> impl Iterator<Item = PathBuf> {
    let shared = PathBuf::from(SHARED_MEMORY_DIR);
    let is_memory = |dir: &PathBuf| statfs(dir).is_ok_and(|site| site.fs != Fs::Other);
    let mounts = std::iter::once_with(mounts_here).flatten();
    let shown = mounts.filter(is_visible).map(|mount| mount.point);
    let mut seen = Vec::new();
    let configured = config_dir.map(Path::to_owned).into_iter();
    let likely = std::iter::once(shared).filter(is_memory);
    configured.chain(likely).chain(shown).filter(move |dir| {
        let is_new = !seen.contains(dir);
        if is_new {
            seen.push(dir.clone());
        }
        is_new
    })
}

/// The mounts of memory file systems: no other has room for an arena, or an option `huge`.
fn mounts_here() -> Vec<Mount> {
    let text = read_whole("/proc/self/mountinfo").unwrap_or_default();
    parse_mountinfo_of(&text, is_of_memory)
}

fn is_of_memory(kind: &str) -> bool {
    matches!(kind, "tmpfs" | "hugetlbfs")
}

/// A file of the kernel's, which does not say how long it is, in as few pieces as may be.
fn read_whole(path: &str) -> std::io::Result<String> {
    let mut text = Vec::with_capacity(16 * 1024);
    std::fs::File::open(path)?.read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Whether a mount is of a memory file system, and no other mount hides it.
fn is_visible(mount: &Mount) -> bool {
    is_of_memory(&mount.kind) && device_of(&mount.point) == Some(mount.device)
}

/// The site of a mount, unless another mount hides it or it is no memory file system.
fn visible(mount: &Mount) -> Option<Site> {
    if !is_visible(mount) {
        return None;
    }
    let mut site = statfs(&mount.point).ok()?;
    mount
        .super_option("huge")
        .unwrap_or_default()
        .clone_into(&mut site.huge);
    site.read_only = mount.is_read_only();
    Some(site)
}

/// The site of a directory anywhere.
fn look_at(dir: &Path, mounts: &[Mount]) -> Result<Site, String> {
    if !dir.is_absolute() {
        return Err("is not an absolute path: write it from / on".to_owned());
    }
    let mut site = statfs(dir).map_err(|error| format!("{error}: make it, or unset arena_dir"))?;
    let device = device_of(dir);
    if let Some(mount) = mounts.iter().rfind(|mount| Some(mount.device) == device) {
        mount
            .super_option("huge")
            .unwrap_or_default()
            .clone_into(&mut site.huge);
    }
    Ok(site)
}

fn device_of(dir: &Path) -> Option<(u32, u32)> {
    let device = std::fs::metadata(dir).ok()?.dev();
    Some((libc::major(device), libc::minor(device)))
}

fn statfs(dir: &Path) -> std::io::Result<Site> {
    let name = CString::new(dir.as_os_str().as_bytes())?;
    // SAFETY: `statfs` is plain numbers, for which zero is a value.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a NUL-terminated string and our own variable, both alive through the call.
    if unsafe { libc::statfs(name.as_ptr(), &raw mut stat) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    let fs = match stat.f_type {
        libc::TMPFS_MAGIC => Fs::Tmpfs,
        libc::HUGETLBFS_MAGIC => Fs::Hugetlbfs,
        _ => Fs::Other,
    };
    let page_bytes = stat.f_bsize as u64;
    // Both file systems report no blocks at all where they have no limit of their own; hugetlbfs
    // reports -1 in some kernels.
    let unlimited = stat.f_blocks == 0 || stat.f_blocks == u64::MAX;
    let free = if unlimited {
        u64::MAX
    } else {
        stat.f_bavail.saturating_mul(page_bytes)
    };
    Ok(Site {
        dir: dir.to_owned(),
        fs,
        huge: String::new(),
        free,
        page_bytes,
        read_only: false,
    })
}

/// The word in brackets: `always [never] force` is "never".
fn chosen_word(setting: &str) -> &str {
    let inside = setting
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    inside.map_or("", |(word, _)| word)
}

/// A counter of the pool of 2 MiB pages; 0 where the kernel has none.
fn pool_count(name: &str) -> u64 {
    std::fs::read_to_string(Path::new(HUGE_POOL_DIR).join(name))
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::chosen_word;

    #[test]
    fn the_chosen_word() {
        assert_eq!(chosen_word("always within_size [never] deny\n"), "never");
        assert_eq!(chosen_word(""), "");
    }
}
