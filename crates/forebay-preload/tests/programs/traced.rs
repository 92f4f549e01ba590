//! Programs that stand still before and after one of their system calls, while others go on: windows of microseconds, held open.

use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use crate::outsiders::Member;
use crate::scene::Scene;
use crate::sys::pattern;

/// A program of one thread.
struct Traced {
    program: Child,
}

/// What a system call was given.
struct Call {
    number: i64,
    arguments: [u64; 3],
}

impl Traced {
    /// Starts a program, which stands still just before the first call that is one.
    fn before(mut command: Command, is_it: impl Fn(&Self, &Call) -> bool) -> Self {
        // SAFETY: one system call, in a child of ours that has not executed its program yet.
        unsafe {
            command.pre_exec(|| {
                let traced = libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
                if traced == 0 {
                    Ok(())
                } else {
                    Err(std::io::Error::last_os_error())
                }
            });
        }
        let traced = Traced {
            program: command.spawn().expect("a program"),
        };
        let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL;
        traced.stops();
        traced.asks(libc::PTRACE_SETOPTIONS, options as usize);
        loop {
            traced.goes_on();
            if is_it(&traced, &traced.call()) {
                return traced;
            }
            traced.goes_on();
        }
    }

    fn asks(&self, what: libc::c_uint, argument: usize) {
        let process = self.program.id() as libc::pid_t;
        // SAFETY: a child of this thread's that stands still; what is asked reads no memory of ours.
        let done = unsafe { libc::ptrace(what, process, 0, argument) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }

    /// Waits until it stands still; the signal.
    fn stops(&self) -> i32 {
        let mut status = 0;
        // SAFETY: a child of ours, and a variable of ours.
        let got = unsafe { libc::waitpid(self.program.id() as i32, &raw mut status, 0) };
        assert!(
            got > 0 && libc::WIFSTOPPED(status),
            "it has ended: {status}"
        );
        libc::WSTOPSIG(status)
    }

    /// It goes on to the beginning, or the end, of a call.
    fn goes_on(&self) {
        let mut signal = 0;
        loop {
            self.asks(libc::PTRACE_SYSCALL, signal as usize);
            signal = self.stops();
            if signal == libc::SIGTRAP | 0x80 {
                return;
            }
        }
    }

    fn call(&self) -> Call {
        let mut registers = std::mem::MaybeUninit::<libc::user_regs_struct>::uninit();
        let (process, to) = (self.program.id() as libc::pid_t, registers.as_mut_ptr());
        // SAFETY: the target is ours, and filled in where the call succeeds.
        let registers = unsafe {
            assert_eq!(libc::ptrace(libc::PTRACE_GETREGS, process, 0, to), 0);
            registers.assume_init()
        };
        Call {
            number: registers.orig_rax as i64,
            arguments: [registers.rdi, registers.rsi, registers.rdx],
        }
    }

    /// Whether its memory has this path there.
    fn has(&self, path: &Path, at: u64) -> bool {
        let memory = std::fs::File::open(format!("/proc/{}/mem", self.program.id()));
        let wanted = path.as_os_str().as_encoded_bytes();
        let mut bytes = vec![0; wanted.len()];
        let read = memory.expect("its memory").read_exact_at(&mut bytes, at);
        read.is_ok() && bytes == wanted
    }

    fn ends(mut self) {
        self.asks(libc::PTRACE_DETACH, 0);
        assert!(self.program.wait().expect("an end").success());
    }
}

/// A write that is to be durable syncs as much as it was asked to.
#[test]
fn a_write_with_a_flag_syncs_what_the_flag_says() {
    const SCRIPT: &str = r#"open(my $f, "+>", $ARGV[0]) or die;
        my $bytes = "x" x 100_000;
        my $parts = pack("PQ", $bytes, length $bytes);
        syscall($ARGV[1] + 0, fileno($f), $parts, 1, 0, 0, $ARGV[2] + 0) == length $bytes or die"#;
    for (flag, expected) in [
        (libc::RWF_SYNC, libc::SYS_fsync),
        (libc::RWF_DSYNC, libc::SYS_fdatasync),
        (libc::RWF_SYNC | libc::RWF_DSYNC, libc::SYS_fsync),
    ] {
        let scene = Scene::new("flags", 0);
        let mut perl = scene.command("perl");
        let numbers = [libc::SYS_pwritev2, flag.into()].map(|number| number.to_string());
        perl.args(["-e", SCRIPT]).arg(scene.path("a")).args(numbers);
        let syncs = [libc::SYS_fsync, libc::SYS_fdatasync];
        let writer = Traced::before(perl, |_, call| syncs.contains(&call.number));
        assert_eq!(writer.call().number, expected, "with the flags {flag}");
        writer.ends();
        assert!(scene.bytes_to_memory() > 0);
    }
}

/// The kernel cuts a file while another program begins to manage it, with the length that it had, and the one that has cut it goes on only after
/// that has gone to the kernel again.
#[test]
fn a_file_that_is_cut_does_not_get_its_old_length_back() {
    const OPEN: &str = r#"open(my $f, ">", $ARGV[0]) or die"#;
    const NAME: &str = r#"truncate($ARGV[0], 0) or die"#;
    const TURNS: u64 = 60;
    let scene = Scene::new("cut", 0);
    let mut member = Member::of(&scene);
    for (turn, script) in (0..TURNS).flat_map(|turn| [(turn, OPEN), (turn, NAME)]) {
        let path = scene.path("a");
        // A new file each time.
        let _ = std::fs::remove_file(&path);
        std::fs::write(&path, pattern(9, 50_000)).expect("a file");
        let mut perl = scene.command("perl");
        perl.args(["-e", script]).arg(&path);
        let cutter = Traced::before(perl, |cutter, call| {
            let [first, second, third] = call.arguments;
            match call.number {
                libc::SYS_openat => third as i32 & libc::O_TRUNC != 0 && cutter.has(&path, second),
                libc::SYS_truncate => cutter.has(&path, first),
                _ => false,
            }
        });
        member.does("log a");
        member.begins("write 1 100");
        std::thread::sleep(Duration::from_micros(turn * 25));
        cutter.goes_on();
        std::thread::sleep(Duration::from_micros(500));
        cutter.ends();
        member.answers();
        member.does("write 1 100");
        member.does("close");
        let bytes = std::fs::read(&path).expect("a file");
        let (one, two) = (pattern(1, 100), [pattern(1, 100), pattern(1, 100)].concat());
        assert!(
            [&[][..], &one, &two].contains(&&bytes[..]),
            "turn {turn}, {script}: {} bytes, that begin with {:?}",
            bytes.len(),
            &bytes[..bytes.len().min(8)]
        );
    }
    member.ends();
}
