//! What every queue promises, on a plain file: each request comes back once, with its own result.

use super::*;
use crate::device::{Piece, RealFile};
use crate::sys::memory::AlignedBytes;
use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::sync::Arc;

fn queues() -> Vec<Box<dyn Queue>> {
    vec![
        best_queue(4),
        Box::new(Threads::new(2).expect("threads")),
        Box::new(Inline::new()),
        Box::new(Inline::seeded(7)),
    ]
}

/// A managed file in the target directory, or `None` where its file system cannot be managed.
fn file() -> Option<Arc<RealFile>> {
    let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).expect("a file");
    match RealFile::reopen(file.as_fd()) {
        Ok(file) => Some(Arc::new(file)),
        Err(reason) => {
            forebay_model::skipped(reason);
            None
        }
    }
}

fn drain(queue: &mut dyn Queue) -> Vec<Done> {
    let mut done = Vec::new();
    while queue.in_flight() > 0 {
        let before = done.len();
        queue.poll(true, &mut done);
        assert!(
            done.len() > before,
            "{}: a waiting poll came back empty",
            queue.name()
        );
    }
    done
}

#[test]
fn each_request_comes_back_once_however_many_there_are() {
    let Some(file) = file() else { return };
    let memory = AlignedBytes::copy_of(&[7; 4096], 4096);
    for mut queue in queues() {
        for token in 0..100 {
            queue.submit(Request {
                file: file.clone(),
                kind: RequestKind::Write,
                pieces: vec![memory.piece()],
                offset: token * 4096,
                token,
            });
        }
        assert_eq!(queue.in_flight(), 100);
        let done = drain(queue.as_mut());
        assert!(
            done.iter()
                .all(|done| done.result.as_ref().is_ok_and(|&n| n == 4096))
        );
        let tokens: BTreeSet<_> = done.iter().map(|done| done.token).collect();
        assert_eq!((done.len(), tokens.len()), (100, 100), "{}", queue.name());
        queue.poll(true, &mut Vec::new());
    }
}

#[test]
fn errors_come_back_as_results() {
    let Some(file) = file() else { return };
    let memory = AlignedBytes::new(4096, 4096);
    for mut queue in queues() {
        let pieces = vec![Piece {
            ptr: memory.piece().ptr.wrapping_add(1),
            len: 4095,
        }];
        queue.submit(Request {
            file: file.clone(),
            kind: RequestKind::Write,
            pieces,
            offset: 1,
            token: 1,
        });
        let done = drain(queue.as_mut());
        let error = done[0].result.as_ref().expect_err("misaligned");
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{}", queue.name());
    }
}

#[test]
fn dropping_a_queue_carries_out_what_was_submitted() {
    let Some(file) = file() else { return };
    for (round, mut queue) in queues().into_iter().enumerate() {
        let memory = AlignedBytes::copy_of(&[round as u8 + 1; 4096], 4096);
        for offset in 0..32 {
            queue.submit(Request {
                file: file.clone(),
                kind: RequestKind::WriteBuffered,
                pieces: vec![memory.part(0, 1000), memory.part(1000, 3096)],
                offset: offset * 4096,
                token: offset,
            });
        }
        drop(queue);
        let back = AlignedBytes::new(32 * 4096, 4096);
        use crate::device::DeviceFile;
        assert_eq!(file.read_direct(back.piece(), 0).expect("read"), 32 * 4096);
        assert!(back.to_vec().iter().all(|&byte| byte == round as u8 + 1));
    }
}

/// Lets the calling thread, and no other, get `EPERM` from a system call, as a sandbox would.
#[cfg(feature = "keeper")]
fn forbid(call: libc::c_long) {
    const LOAD_NUMBER: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut filter = [
        step(LOAD_NUMBER, 0, 0, 0),
        step(JUMP_IF_EQUAL, 0, 1, call as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the program and its filter are ours and live during the calls, which copy them.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_SET_MODE_FILTER;
        assert_eq!(
            libc::syscall(libc::SYS_seccomp, mode, 0, &raw const program),
            0
        );
    }
}

#[test]
#[cfg(feature = "keeper")]
fn where_io_uring_is_refused_threads_take_over() {
    for call in [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter] {
        let name = std::thread::spawn(move || {
            forbid(call);
            best_queue(4).name()
        });
        assert_eq!(
            name.join().expect("no panic"),
            "threads",
            "system call {call}"
        );
    }
}

#[test]
fn a_seed_decides_the_order() {
    let Some(file) = file() else { return };
    let memory = AlignedBytes::copy_of(&[7; 4096], 4096);
    let order = |seed| {
        let mut queue = Inline::seeded(seed);
        for token in 0..20 {
            let (kind, pieces) = (RequestKind::Write, vec![memory.piece()]);
            queue.submit(Request {
                file: file.clone(),
                kind,
                pieces,
                offset: 0,
                token,
            });
        }
        drain(&mut queue)
            .iter()
            .map(|done| done.token)
            .collect::<Vec<_>>()
    };
    assert_eq!(order(1), order(1));
    assert_ne!(order(1), order(2));
    assert_ne!(order(1), (0..20).collect::<Vec<_>>());
}
