//! A process that lets in those that wait to open a file, while the one that should does not: it is stopped (`SIGSTOP`, a debugger), frozen
//! with its cgroup, or stuck. They would wait for as long as that for the answer to a permission event, members of the session among them,
//! and for `/proc/sys/fs/lease-break-time` (45 s) for the end of a lease.
//!
//! It is a copy of its parent that has given everything back but the listener's descriptor and a page that both see. In that the
//! parent's thread counts its rounds; where it does not count on, the copy lets everybody in, since it knows nothing: it answers events, and
//! gives those leases up that somebody waits for, by descriptors that it takes from its parent for that moment (`leases`). If there is a program that
//! knows what to do ([`Relief`]) it has that answer. Once its parent has ended, and that program too, it takes all marks away and ends; or when it
//! is dropped. No signal says so to the parent: an embedding program may be waiting for children of its own.

mod leases;
mod relief;

pub use relief::{NUMBERS_MIN, Relief};

use super::{check, fanotify, liveness};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};

/// How often the copy looks after its parent.
const LOOK_EVERY_MS: libc::c_int = 100;
/// Looks without a round in between, after which the parent is stuck. Looks, not time: a parent that gets no processor for a while is not.
const QUIET_LOOKS: u32 = 8;
/// How often a program that stands in is started at most.
const RELIEFS_MAX: u32 = 8;
/// Numbers of descriptors that the parent may have taken events by.
const NUMBERS: RawFd = 1 << 14;

/// What parent and copy both see: a page of its own.
#[repr(C, align(4096))]
struct Seen {
    /// Rounds of the parent's thread.
    rounds: AtomicU32,
    /// Goes on whenever the copy has answered.
    answers: AtomicU32,
}

/// The copy. It ends when this is dropped, which the thread that has made it does.
pub struct StandIn {
    process: libc::pid_t,
    seen: *mut Seen,
}

impl StandIn {
    /// Its number.
    pub fn process(&self) -> i32 {
        self.process
    }

    fn seen(&self) -> &Seen {
        // SAFETY: mapped until this is dropped, and changed by atomic operations alone.
        unsafe { &*self.seen }
    }

    /// The thread that answers has come round. Has to be called every few tenths of a second.
    pub fn note_round(&self) {
        self.seen().rounds.fetch_add(1, Ordering::Release);
    }

    /// Differs from before where the copy has let somebody in meanwhile.
    pub fn answers(&self) -> u32 {
        self.seen().answers.load(Ordering::Acquire)
    }
}

fn map_seen() -> io::Result<*mut Seen> {
    let (access, kind) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_SHARED | libc::MAP_ANONYMOUS,
    );
    // SAFETY: new memory, where the kernel likes it.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), size_of::<Seen>(), access, kind, -1, 0) };
    match page {
        libc::MAP_FAILED => Err(io::Error::last_os_error()),
        page => Ok(page.cast()),
    }
}

fn unmap_seen(seen: *mut Seen) {
    // SAFETY: mapped by the function above; its owner is done with it.
    unsafe { libc::munmap(seen.cast(), size_of::<Seen>()) };
}

/// Makes one, for this listener if there is one, and for leases. `relief` is for those that wait for answers.
pub fn begin(group: Option<BorrowedFd<'_>>, relief: Option<&Relief>) -> io::Result<StandIn> {
    let parent = std::process::id() as libc::pid_t;
    let seen = map_seen()?;
    // SAFETY: all zeros are sets of signals, which the calls below fill in.
    let (mut all, mut before) = unsafe { std::mem::zeroed::<(libc::sigset_t, libc::sigset_t)>() };
    // SAFETY: our own sets. The child begins with all signals blocked: handlers are the parent's.
    let child = unsafe {
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        // A fork without a signal at the end, and without what libc does at one: the child calls nothing that waits for
        // another thread.
        let child = libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0);
        if child == 0 {
            stand(
                group.map_or(-1, |group| group.as_raw_fd()),
                parent,
                seen,
                relief,
            );
        }
        if child > 0 {
            // Where the kernel asks (Yama): it takes descriptors from us. Elsewhere an error and no more.
            libc::prctl(libc::PR_SET_PTRACER, child, 0, 0, 0);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        child as libc::pid_t
    };
    match check(child) {
        Ok(_) => Ok(StandIn {
            process: child,
            seen,
        }),
        Err(error) => {
            unmap_seen(seen);
            Err(error)
        }
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        // SAFETY: a child of ours that nobody else waits for; no memory is passed.
        unsafe {
            libc::kill(self.process, libc::SIGKILL);
            libc::waitpid(self.process, std::ptr::null_mut(), libc::__WALL);
        }
        unmap_seen(self.seen);
    }
}

/// The copy's life.
///
/// # Safety
/// Called in a new process that is a copy of `parent`, by its only thread.
unsafe fn stand(group: RawFd, parent: libc::pid_t, seen: *mut Seen, relief: Option<&Relief>) -> ! {
    // SAFETY: nothing here takes a lock, allocates or returns; all memory that is passed lies on this stack, or is a copy that nobody changes.
    unsafe {
        // Also one that is stopped is to see that its parent has ended.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGCONT, 0, 0, 0);
        if libc::getppid() != parent {
            part(group);
        }
        libc::prctl(libc::PR_SET_NAME, c"forebay-standin".as_ptr(), 0, 0, 0);
        libc::setsid();
        libc::chdir(c"/".as_ptr());
        // First: the parent may have no number left for what is opened here.
        close_all_but(group);
        unmap_shared_but(seen.addr());
        let mut parent = Parent {
            process: parent,
            stat: open_in_proc(parent, b"stat", libc::O_RDONLY | libc::O_CLOEXEC),
            life: libc::syscall(libc::SYS_pidfd_open, parent, 0) as RawFd,
            leases: leases::Leases::of(parent),
            looks: Looks::default(),
        };
        loop {
            parent.wait();
            match parent.is_silent(&*seen) {
                _ if parent.has_ended() => {
                    relieve(group, relief, &mut parent, &*seen);
                    part(group)
                }
                true => stand_for(group, relief, &mut parent, &*seen),
                false => {}
            }
        }
    }
}

/// The parent is gone, and with the copy's end the kernel lets everybody in. But for members that have the group's descriptor at this moment, to
/// mark a file: one that is stopped there would keep the group. So nobody is held up by it any more, and those that are held up are let in.
///
/// # Safety
/// As for [`stand`].
unsafe fn part(group: RawFd) -> ! {
    if group >= 0 {
        fanotify::forget_all(group);
        while is_readable(group, 0) {
            admit_all(group);
        }
        admit_numbers(group);
    }
    // SAFETY: takes no memory.
    unsafe { libc::_exit(0) }
}

/// Until the parent answers again, or has ended.
///
/// # Safety
/// As for [`stand`].
unsafe fn stand_for(group: RawFd, relief: Option<&Relief>, parent: &mut Parent, seen: &Seen) {
    // First: the guard that sees it looks for those that are let in.
    seen.answers.fetch_add(1, Ordering::Release);
    if group >= 0 {
        if !is_stopped(parent.stat) {
            // It has been looked at for long.
            admit_numbers(group);
            if is_readable(group, 0) {
                admit_all(group);
            }
        }
        // SAFETY: as the caller's.
        unsafe { relieve(group, relief, parent, seen) };
        if parent.has_ended() || !parent.is_silent(seen) {
            return;
        }
        // What the parent had taken and not answered.
        admit_numbers(group);
    }
    while !parent.has_ended() && parent.is_silent(seen) {
        parent.leases.end_wanted();
        // Without a listener the kernel passes over it, and this only waits. The parent may have gone on meanwhile.
        if is_readable(group, LOOK_EVERY_MS) && parent.is_silent(seen) {
            admit_all(group);
            seen.answers.fetch_add(1, Ordering::Release);
        }
    }
}

/// Has the program stand in, if there is one: until the parent goes on, and where that has ended for as long as the program runs. Where it fails
/// then, another one; for a parent that is only stopped the copy knows enough.
///
/// # Safety
/// As for [`stand`].
unsafe fn relieve(group: RawFd, relief: Option<&Relief>, parent: &mut Parent, seen: &Seen) {
    let Some(relief) = relief.filter(|_| group >= 0) else {
        return;
    };
    for _ in 0..RELIEFS_MAX {
        // SAFETY: as the caller's.
        let failed = unsafe { relief::Running::stand_by(relief, group, parent, seen) };
        let again = match parent.has_ended() {
            true => failed,
            // It has gone on meanwhile.
            false => !failed && is_stopped(parent.stat),
        };
        if !again {
            return;
        }
    }
}

/// The parent, as the copy sees it.
struct Parent {
    process: libc::pid_t,
    stat: RawFd,
    /// `pidfd_open` of it; negative where the kernel has none, or it had ended before.
    life: RawFd,
    leases: leases::Leases,
    looks: Looks,
}

impl Parent {
    fn is_silent(&mut self, seen: &Seen) -> bool {
        self.looks.is_silent(seen, self.stat)
    }

    /// For a moment, or until it ends.
    fn wait(&self) {
        is_readable(self.life, LOOK_EVERY_MS);
    }

    fn has_ended(&self) -> bool {
        // SAFETY: takes no memory.
        is_readable(self.life, 0) || unsafe { libc::getppid() } != self.process
    }
}

/// Whether there is something to be read, which is waited for at most so long. A negative number is one that never has anything.
fn is_readable(fd: RawFd, ms: libc::c_int) -> bool {
    let mut source = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: the target is ours.
    unsafe { libc::poll(&raw mut source, 1, ms) > 0 }
}

/// Lets those in that somebody has taken by descriptors with low numbers.
fn admit_numbers(group: RawFd) {
    // A number that no event has is an error and no more.
    (0..NUMBERS).for_each(|number| _ = fanotify::admit(group, number));
}

/// What the copy has seen of its parent.
#[derive(Default)]
struct Looks {
    rounds: u32,
    /// Looks since the last round.
    quiet: u32,
}

impl Looks {
    /// Whether the parent does not answer, as far as one more look tells.
    fn is_silent(&mut self, seen: &Seen, stat: RawFd) -> bool {
        let rounds = seen.rounds.load(Ordering::Acquire);
        self.quiet = match rounds == self.rounds {
            true => self.quiet.saturating_add(1),
            false => 0,
        };
        self.rounds = rounds;
        self.quiet >= QUIET_LOOKS || is_stopped(stat)
    }
}

/// Gives back what is mapped shared, but for what begins at `kept`: a mapping of an arena counts as life in its session.
///
/// # Safety
/// As for [`stand`].
unsafe fn unmap_shared_but(kept: usize) {
    // SAFETY: as below.
    let maps = unsafe { libc::open(c"/proc/self/maps".as_ptr(), libc::O_RDONLY) };
    let mut bytes = [0u8; 4096];
    // START-END PERMISSIONS ...: the two numbers, the field we are in, its characters so far.
    let (mut numbers, mut field, mut column, mut shared) = ([0usize; 2], 0, 0, false);
    loop {
        // SAFETY: the target is ours, as long as said.
        let got = unsafe { libc::read(maps, bytes.as_mut_ptr().cast(), bytes.len()) };
        let Some(read) = usize::try_from(got).ok().filter(|&got| got > 0) else {
            break;
        };
        for &byte in &bytes[..read] {
            match (field, byte) {
                (_, b'\n') => {
                    if shared && numbers[0] != kept {
                        let (start, end) = (numbers[0], numbers[1]);
                        // SAFETY: this process's own mapping of what others have too; nobody in it uses it.
                        unsafe { libc::munmap(start as *mut libc::c_void, end - start) };
                    }
                    (numbers, field, column, shared) = ([0; 2], 0, 0, false);
                }
                (0, b'-') | (1 | 2, b' ') => (field, column) = (field + 1, 0),
                (0 | 1, digit) => {
                    let digit = (digit as char).to_digit(16).unwrap_or(0);
                    numbers[field] = numbers[field] << 4 | digit as usize;
                }
                (2, letter) => {
                    shared |= column == 3 && letter == b's';
                    column += 1;
                }
                _ => {}
            }
        }
    }
}

/// # Safety
/// As for [`stand`].
unsafe fn close_all_but(one: RawFd) {
    let parts = [(0, one - 1), (one + 1, RawFd::MAX)];
    for (from, to) in parts.into_iter().filter(|(from, to)| from <= to) {
        // SAFETY: the copy's own descriptors, which nobody in it uses.
        unsafe { libc::syscall(libc::SYS_close_range, from, to, 0) };
    }
}

/// # Safety
/// As for [`stand`].
unsafe fn open_in_proc(process: libc::pid_t, name: &[u8], flags: libc::c_int) -> RawFd {
    let mut path = *b"/proc/0000000000/\0\0\0\0\0\0\0\0";
    path[17..17 + name.len()].copy_from_slice(name);
    let mut rest = process;
    for digit in path[6..16].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    // The kernel takes no number that begins with a zero.
    let zeros = path[6..15]
        .iter()
        .take_while(|&&digit| digit == b'0')
        .count();
    path.copy_within(6 + zeros.., 6);
    // SAFETY: ends in a null byte, and lies on this stack.
    unsafe { libc::open(path.as_ptr().cast(), flags) }
}

/// Whether the process of this `/proc/PID/stat` is stopped, by a signal or a debugger.
fn is_stopped(stat: RawFd) -> bool {
    let mut text = [0u8; 64];
    // SAFETY: the target is ours, as long as said.
    let got = unsafe { libc::pread(stat, text.as_mut_ptr().cast(), text.len(), 0) };
    liveness::tells_of_a_stop(&text[..usize::try_from(got).unwrap_or(0)])
}

fn admit_all(group: RawFd) {
    let mut words = [0u64; 256];
    // SAFETY: the target is ours, as long as said.
    let got = unsafe { libc::read(group, words.as_mut_ptr().cast(), size_of_val(&words)) };
    let got = usize::try_from(got).unwrap_or(0);
    let mut at = 0;
    while at + size_of::<libc::fanotify_event_metadata>() <= got {
        let event = words
            .as_ptr()
            .wrapping_byte_add(at)
            .cast::<libc::fanotify_event_metadata>();
        // SAFETY: so many bytes of it the kernel has filled in, and lengths of events are multiples of its alignment.
        let event = unsafe { event.read() };
        if (event.event_len as usize) < size_of_val(&event) {
            return;
        }
        at += event.event_len as usize;
        // SAFETY: made for this process and this event. The process that is let in finds it closed.
        unsafe { libc::close(event.fd) };
        let _ = fanotify::admit(group, event.fd);
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::io::{Read, Write};
    use std::mem::ManuallyDrop;
    use std::os::fd::{AsFd, AsRawFd};
    use std::path::Path;
    use std::sync::mpsc::Sender;
    use std::thread::{self, JoinHandle};
    use std::time::Duration;

    use super::begin;
    use crate::sys::fanotify::Group;

    fn opens(path: &Path, opened: &Sender<()>) -> JoinHandle<()> {
        let (path, opened) = (path.to_owned(), opened.clone());
        thread::spawn(move || {
            std::fs::File::open(path).expect("opened");
            let _ = opened.send(());
        })
    }

    /// A keeper that takes one of those that wait, says so, and ends at once, in no order.
    fn takes_one(group: &Group, mut says: impl Write) {
        let stand_in = ManuallyDrop::new(begin(Some(group.as_fd()), None).expect("a copy"));
        let rounds = |count: u32| {
            for _ in 0..count {
                thread::sleep(Duration::from_millis(20));
                stand_in.note_round();
            }
        };
        rounds(10);
        let taken = ManuallyDrop::new(group.waiting(0).expect("who waits"));
        says.write_all(&[taken.len() as u8]).expect("said");
        rounds(10);
    }

    /// A member that has the group's descriptor for a moment, to mark a file, may be stopped in it while the keeper is killed.
    #[test]
    fn nobody_waits_for_a_group_that_outlives_its_keeper() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let group = match Group::new() {
            Ok(group) => ManuallyDrop::new(group),
            Err(why) => return forebay_model::skipped(format!("no permission events: {why}")),
        };
        group.watch(file.as_file().as_fd()).expect("a mark");
        let path = file.into_temp_path();
        let (opened, told) = std::sync::mpsc::channel();
        let first = opens(&path, &opened);
        thread::sleep(Duration::from_millis(100));
        let (mut hears, says) = std::io::pipe().expect("a pipe");
        // SAFETY: the child has one thread, does what follows, and ends past everything that is the parent's.
        let keeper = unsafe { libc::fork() };
        if keeper == 0 {
            takes_one(&group, says);
            // SAFETY: takes no memory.
            unsafe { libc::_exit(0) }
        }
        drop(says);
        let mut taken = [0];
        hears.read_exact(&mut taken).expect("said");
        // One has been taken and not answered, one is in the queue, one comes later.
        let second = opens(&path, &opened);
        // SAFETY: a child of ours; no memory is passed.
        let ended = unsafe { libc::waitpid(keeper, std::ptr::null_mut(), 0) };
        assert_eq!(ended, keeper);
        thread::sleep(Duration::from_millis(300));
        let third = opens(&path, &opened);
        let got = (0..3).filter(|_| told.recv_timeout(Duration::from_secs(20)).is_ok());
        let got = got.count();
        if got < 3 {
            let group = group.as_fd().as_raw_fd();
            crate::sys::fanotify::forget_all(group);
            super::admit_all(group);
            super::admit_numbers(group);
        }
        for opener in [first, second, third] {
            opener.join().expect("an end");
        }
        assert_eq!((taken, got), ([1], 3), "taken, and let in");
    }

    /// Its parent runs, is not stopped, and does not answer: stuck, or frozen.
    #[test]
    fn who_waits_for_a_parent_that_is_stuck_is_let_in() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let group = match Group::new() {
            Ok(group) => group,
            Err(why) => return forebay_model::skipped(format!("no permission events: {why}")),
        };
        group.watch(file.as_file().as_fd()).expect("a mark");
        let path = file.into_temp_path();
        let stand_in = begin(Some(group.as_fd()), None).expect("a copy");
        stand_in.note_round();
        for _ in 0..2 {
            let path = path.to_path_buf();
            let (opened, told) = std::sync::mpsc::channel();
            let opener = std::thread::spawn(move || {
                let _ = opened.send(std::fs::File::open(path).map(drop));
            });
            let told = told.recv_timeout(Duration::from_secs(40));
            // With the group's end everybody is let in.
            if told.is_err() {
                drop(stand_in);
                drop(group);
                opener.join().expect("an end");
                panic!("nobody has answered");
            }
            opener.join().expect("an end");
            told.expect("an answer").expect("opened");
            assert_ne!(stand_in.answers(), 0);
        }
    }
}
