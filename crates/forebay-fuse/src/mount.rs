//! Beginning a mount, serving it, ending it.
//!
//! Life: the places are looked at ([`Places::of`]); root mounts by itself, everybody else by `fusermount3`; the kernel and this process
//! agree on what each can do; threads serve it until it is unmounted, by whomever. Whatever was open then is closed, which hands it to
//! the devices.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay::Session;
use forebay::sys::{priority, scheduling};
use forebay_pmem::Store;
use forebay_pool::files::Files;
use rustix::fs::Mode;
use rustix::mount::MountFlags;
use rustix::process::{Resource, getrlimit};

use crate::directory::{Directory, open_root};
use crate::failed::Failed;
use crate::operations::{Serving, wanted};
use crate::points::{self, NotEnded, Own, State};
use crate::pool::Pooled;
use crate::served::Served;
use crate::store::Stored;
use crate::transport::follow::Follow;
pub use crate::transport::ring::Ring;
use crate::transport::threads::{Threads, is_aborted};

mod attach;

use attach::attach;

/// What is asked for beside the places.
#[derive(Clone, Debug)]
pub struct Options {
    /// Nothing can be changed by this mount.
    pub read_only: bool,
    /// Other users may use it as well: who may what, the modes of files say.
    pub allow_other: bool,
    /// Programs may be executed.
    pub exec: bool,
    /// Programs that run as their owner do so; root alone may ask for that.
    pub suid: bool,
    /// Device nodes are devices; root alone may ask for that.
    pub dev: bool,
    /// How long the kernel may believe what it was told of names and attributes.
    pub believed: Duration,
    /// Of a pool: the kernel keeps what it has of files, as long as this host's grants last or until they are opened again.
    pub cache: bool,
    /// Whether requests come by io_uring.
    pub ring: Ring,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            read_only: false,
            allow_other: false,
            exec: true,
            suid: false,
            dev: false,
            believed: Duration::from_secs(1),
            cache: false,
            ring: Ring::Auto,
        }
    }
}

impl Options {
    /// To be called before what is behind a mount of this kind begins threads of its own. If idle threads are going to answer requests, the calling one is idle from
    /// now on, and so are those that it starts. What a group may have of a processor goes by what all its threads weigh: of a group with an ordinary thread that works
    /// on another processor the idle ones would get next to nothing.
    pub fn prepare(&self, kind: Kind) {
        let follows = match kind {
            Kind::Directory => Directory::FOLLOWS,
            Kind::Store => Stored::FOLLOWS,
            Kind::Pool => Pooled::FOLLOWS,
        };
        let follows = follows && scheduling::is_own_session();
        if follows || self.ring.may_be_had() && scheduling::is_own_group() {
            priority::make_idle();
        }
    }

    /// Takes one word of `-o`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn set(&mut self, word: &str) -> Result<(), String> {
        match word {
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "allow_other" => self.allow_other = true,
            "exec" => self.exec = true,
            "noexec" => self.exec = false,
            "suid" => self.suid = true,
            "nosuid" => self.suid = false,
            "dev" => self.dev = true,
            "nodev" => self.dev = false,
            // So it is always.
            "default_permissions" | "noatime" => {}
            _ => {
                return Err(format!(
                    "`{word}` is none of ro, rw, allow_other, exec, noexec, suid, nosuid, dev, nodev, default_permissions and noatime"
                ));
            }
        }
        Ok(())
    }

    fn flags(&self) -> MountFlags {
        let given = [
            (self.read_only, MountFlags::RDONLY),
            (!self.exec, MountFlags::NOEXEC),
            (!self.suid, MountFlags::NOSUID),
            (!self.dev, MountFlags::NODEV),
        ];
        let given = given.into_iter().filter(|(yes, _)| *yes);
        given.fold(MountFlags::NOATIME, |flags, (_, flag)| flags | flag)
    }

    /// As the helper takes them.
    fn words(&self) -> Vec<String> {
        let mut words = vec!["default_permissions", "subtype=forebay", "noatime"];
        words.push(if self.read_only { "ro" } else { "rw" });
        let more = [
            (self.allow_other, "allow_other"),
            (!self.exec, "noexec"),
            (self.suid, "suid"),
            (self.dev, "dev"),
        ];
        words.extend(
            more.into_iter()
                .filter(|(yes, _)| *yes)
                .map(|(_, word)| word),
        );
        let words = words.into_iter().map(String::from);
        words.chain([attach::max_read()]).collect()
    }
}

/// What can be mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A directory, through a session.
    Directory,
    /// A store, in a file or in a device.
    Store,
    /// The files of a pool.
    Pool,
}

/// What is mounted, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// The directory, the store, or `pool:` and a name.
    pub source: PathBuf,
    /// Which of these.
    pub kind: Kind,
    /// The mount point.
    pub point: PathBuf,
}

impl Places {
    /// Looks at both.
    ///
    /// # Errors
    /// Why they will not do, and what would.
    pub fn of(source: &Path, point: &Path) -> Result<Self, String> {
        let source =
            points::resolved(source).map_err(|error| format!("{}: {error}", source.display()))?;
        let kind = if source.is_dir() {
            Kind::Directory
        } else {
            Kind::Store
        };
        let places = Places::at(source, kind, point)?;
        let Places { source, point, .. } = &places;
        if point.starts_with(source) || source.starts_with(point) {
            return Err(format!(
                "{} and {} lie one in the other, and the mount would serve itself, or hide what it shows; mount it elsewhere",
                source.display(),
                point.display()
            ));
        }
        Ok(places)
    }

    /// Looks at where a pool is to be mounted; `source` is how programs see what it is.
    ///
    /// # Errors
    /// Why it will not do, and what would.
    pub fn of_pool(source: &Path, point: &Path) -> Result<Self, String> {
        Places::at(source.to_owned(), Kind::Pool, point)
    }

    fn at(source: PathBuf, kind: Kind, point: &Path) -> Result<Self, String> {
        let point =
            points::resolved(point).map_err(|error| format!("{}: {error}", point.display()))?;
        let state = points::state(&point)
            .map_err(|error| format!("the list of mounts cannot be read: {error}"))?;
        let shown = point.display();
        match state {
            State::Dead => {
                return Err(format!(
                    "{shown} is a mount whose process has died; run `forebay umount {shown}` first"
                ));
            }
            State::Alive => {
                return Err(format!(
                    "{shown} is a mount of Forebay's already; run `forebay umount {shown}` first"
                ));
            }
            State::Free | State::Foreign => {}
        }
        if !point.is_dir() {
            return Err(format!("{shown} is no directory"));
        }
        Ok(Places {
            source,
            kind,
            point,
        })
    }
}

/// What is behind a mount.
enum Behind {
    Directory(Arc<Directory>),
    Store(Arc<Stored>),
    Pool(Arc<Pooled>),
}

/// A mount that this process serves.
pub struct Mounted {
    behind: Behind,
    serving: Threads,
    point: Own,
    /// What [`Mounted::begin_flush`] has begun.
    flushing: Mutex<Option<JoinHandle<usize>>>,
}

impl Mounted {
    /// Mounts a directory and serves it from now on. New files get the modes that programs ask for: this process has no umask any
    /// more.
    ///
    /// # Errors
    /// Why that cannot be, and what to do about it.
    pub fn begin(session: Session, places: &Places, options: &Options) -> Result<Self, String> {
        let cannot = |failed: Failed| cannot(places, &in_words(failed));
        let root = open_root(&places.source).map_err(cannot)?;
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let descriptors = usize::try_from(limit).unwrap_or(usize::MAX);
        let directory = Directory::new(session, root, options.believed, descriptors);
        let directory = Arc::new(directory.map_err(cannot)?);
        rustix::process::umask(Mode::empty());
        let serving = attach_and_serve(&directory, places, options)?;
        Ok(Mounted {
            behind: Behind::Directory(directory),
            serving,
            point: Own::of(&places.point),
            flushing: Mutex::default(),
        })
    }

    /// Mounts a store and serves it from now on. What is done is durable after `flush_interval` at the latest.
    ///
    /// # Errors
    /// Why that cannot be, and what to do about it.
    pub fn begin_store(
        places: &Places,
        options: &Options,
        flush_interval: Option<Duration>,
    ) -> Result<Self, String> {
        let asked = forebay_pmem::OpenOptions {
            flush_interval,
            read_only: options.read_only,
        };
        let store = Store::open(&places.source, asked);
        let store = store.map_err(|error| cannot(places, &error.to_string()))?;
        let stored = Arc::new(Stored::new(store));
        let serving = attach_and_serve(&stored, places, options)?;
        Ok(Mounted {
            behind: Behind::Store(stored),
            serving,
            point: Own::of(&places.point),
            flushing: Mutex::default(),
        })
    }

    /// Mounts the files of a pool and serves them from now on.
    ///
    /// # Errors
    /// Why that cannot be, and what to do about it.
    pub fn begin_pool(files: Files, places: &Places, options: &Options) -> Result<Self, String> {
        let pooled = Arc::new(Pooled::new(files, options.believed, options.cache));
        let serving = attach_and_serve(&pooled, places, options)?;
        Ok(Mounted {
            behind: Behind::Pool(pooled),
            serving,
            point: Own::of(&places.point),
            flushing: Mutex::default(),
        })
    }

    /// Whether it has been unmounted, and nobody has anything open there any more.
    pub fn is_over(&self) -> bool {
        self.serving.are_over()
    }

    /// Unmounts it.
    ///
    /// # Errors
    /// As for [`points::end`].
    pub fn unmount(&self, lazy: bool) -> Result<(), NotEnded> {
        points::end(&self.point.path, lazy)
    }

    /// How many openings of files there are, of a directory's and of a pool's; of a store's the kernel does not tell.
    pub fn open_files(&self) -> Option<usize> {
        match &self.behind {
            Behind::Directory(directory) => Some(directory.files.every().len()),
            Behind::Store(_) => None,
            Behind::Pool(pool) => Some(pool.open_files()),
        }
    }

    /// Hands what is open to the devices, or to the pool's servers, just before this process ends. How many files could not be: a session keeps their bytes and tries again, a pool does
    /// not.
    ///
    /// # Errors
    /// Of a store, why it cannot be made durable.
    pub fn flush(&self) -> Result<usize, String> {
        match &self.behind {
            Behind::Directory(directory) => Ok(directory.flush_all()),
            Behind::Store(store) => store.sync_all().map(|()| 0).map_err(not_durable),
            Behind::Pool(pool) => Ok(pool.end_all()),
        }
    }

    /// Begins to hand over what a pool's mount owes, while programs go on with it: there is the less to do at its end.
    pub fn begin_flush(&self) {
        if let Behind::Pool(pool) = &self.behind {
            let pool = Arc::clone(pool);
            // What fails, or finds no thread, is done at the end.
            let thread = std::thread::Builder::new().spawn(move || pool.sync_all());
            let mut flushing = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
            *flushing = thread.ok();
        }
    }

    /// After the end: what is still open is closed. How many files could not be written, as for [`Mounted::flush`].
    ///
    /// # Errors
    /// Why serving has ended, where it was not because of an unmount; of a store, why it could not be closed. All that is to be done is done all the same.
    pub fn finish(self) -> Result<usize, String> {
        let flushing = { self.flushing.into_inner() }.unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = flushing {
            let _ = thread.join();
        }
        let failed = match &self.behind {
            Behind::Directory(directory) => directory.flush_all(),
            Behind::Store(_) => 0,
            Behind::Pool(pool) => pool.end_all(),
        };
        let point = self.point.path.display();
        let served = match self.serving.join() {
            // A request was under way when it was unmounted: that a file which nobody has any more is to be given back.
            Err(error) if !is_aborted(&error) => {
                Err(format!("serving {point} has failed: {error}"))
            }
            _ => Ok(()),
        };
        let taken_away = self.point.take_away();
        // Whoever served it has gone.
        let closed = match self.behind {
            Behind::Store(store) => Arc::into_inner(store).map_or(Ok(()), Stored::close),
            _ => Ok(()),
        };
        let all = [served, taken_away, closed.map_err(not_durable)];
        let mut wrong: Vec<_> = all.into_iter().filter_map(Result::err).collect();
        if wrong.is_empty() {
            return Ok(failed);
        }
        if failed > 0 {
            wrong.push(format!("{failed} files could not be written"));
        }
        Err(wrong.join("; "))
    }
}

fn cannot(places: &Places, why: &str) -> String {
    let (source, point) = (places.source.display(), places.point.display());
    format!("{source} cannot be mounted on {point}: {why}")
}

fn in_words(failed: Failed) -> String {
    io::Error::from_raw_os_error(failed.0).to_string()
}

fn not_durable(failed: Failed) -> String {
    let why = in_words(failed);
    format!("the store could not be made durable: {why}; `forebay pmem check` says what it holds")
}

fn attach_and_serve(
    served: &Arc<impl Served>,
    places: &Places,
    options: &Options,
) -> Result<Threads, String> {
    let with = |ring| {
        let device = attach(places, options).map_err(|why| cannot(places, &why))?;
        serve(served, device, ring).map_err(|error| {
            let _ = points::end(&places.point, true);
            cannot(places, &error.to_string())
        })
    };
    match with(options.ring) {
        // The kernel may have granted rings, which cannot be taken back, and not have taken one of them: a mount without.
        Err(_) if options.ring == Ring::Auto => with(Ring::Never),
        ended => ended,
    }
}

/// The kernel keeps others out, unless `allow_other` is given. It lets descriptors pass that they have from this user, and so whoever asks is answered.
fn serve<F: Served>(served: &Arc<F>, device: OwnedFd, ring: Ring) -> io::Result<Threads> {
    served.begins(device.as_fd())?;
    let answers = Arc::new(Serving(Arc::clone(served)));
    let follow = F::FOLLOWS.then(Follow::begin).flatten();
    Threads::begin(device, wanted(&**served), ring, follow, answers)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn words_of_options_are_taken_or_refused() {
        let mut options = Options::default();
        for word in ["ro", "noexec", "allow_other", "default_permissions"] {
            options.set(word).expect("a word that is known");
        }
        assert!(options.read_only && options.allow_other && !options.exec);
        assert!(options.set("exce").is_err_and(|why| why.contains("`exce`")));
        let flags = options.flags();
        assert!(flags.contains(
            MountFlags::RDONLY | MountFlags::NOEXEC | MountFlags::NOSUID | MountFlags::NODEV
        ));
        let words = options.words();
        for word in ["noexec", "max_read=1048576"] {
            assert!(words.iter().any(|other| other == word), "{words:?}");
        }
    }

    #[test]
    fn a_mount_is_not_part_of_what_it_shows() {
        let dir = tempfile::tempdir().expect("a directory");
        let inner = dir.path().join("inner");
        fs::create_dir(&inner).expect("a directory");
        for (directory, point) in [
            (dir.path(), inner.as_path()),
            (&inner, dir.path()),
            (&inner, &inner),
        ] {
            let refused = Places::of(directory, point).expect_err("refused");
            assert!(refused.contains("one in the other"), "{refused}");
        }
        let missing = Places::of(&dir.path().join("no"), &inner).expect_err("refused");
        assert!(missing.contains("No such file"), "{missing}");
    }
}
