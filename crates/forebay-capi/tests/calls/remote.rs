//! The same calls, made by `driver.c` in a process of its own, which is built against the installed library.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

use crate::built::{OPTIONS, installed, program, ready, session_name, shared};
use crate::model::{Answer, Calls, Function, Request};

/// The C program, which is told by its standard input what to call, and answers by its standard output.
pub struct Remote {
    /// Its session.
    pub session: String,
    child: Child,
    asks: Option<ChildStdin>,
    answers: ChildStdout,
}

/// Built once for all tests.
fn driver() -> &'static Path {
    static DRIVER: OnceLock<PathBuf> = OnceLock::new();
    DRIVER.get_or_init(|| {
        let arguments = shared();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let driver = program("gcc", "tests/driver.c", &arguments, installed());
        driver.get_program().into()
    })
}

impl Remote {
    pub fn new(dir: &Path) -> Self {
        let session = session_name();
        let mut child = ready(Command::new(driver()))
            .arg(dir)
            .arg(&session)
            .args(OPTIONS)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the driver runs");
        Remote {
            session,
            asks: child.stdin.take(),
            answers: child.stdout.take().expect("a pipe"),
            child,
        }
    }
}

impl Remote {
    /// Kills it in the middle of everything.
    pub fn kill(mut self) {
        self.child.kill().expect("a child of ours");
        let ended = self.child.wait().expect("it ends");
        assert!(!ended.success());
        self.asks = None;
        // What is left of it has nothing to wait for.
        std::mem::forget(self);
    }
}

impl Calls for Remote {
    fn call(&mut self, request: &Request) -> Answer {
        let reads = matches!(request.function, Function::Pread | Function::Preadv);
        let len = if reads || request.bytes.is_empty() {
            request.len
        } else {
            request.bytes.len() as i64
        };
        let head: [i64; 7] = [
            request.function as i64,
            request.file.into(),
            request.handle.into(),
            request.flags.into(),
            request.offset,
            len,
            request.lens.len() as i64,
        ];
        let mut message: Vec<u8> = head.iter().flat_map(|word| word.to_ne_bytes()).collect();
        message.extend(request.lens.iter().flat_map(|len| len.to_ne_bytes()));
        message.extend(&request.bytes);
        let asks = self.asks.as_mut().expect("open");
        asks.write_all(&message).expect("the driver listens");
        let mut head = [0; 16];
        self.answers.read_exact(&mut head).expect("an answer");
        let word = |at: usize| i64::from_ne_bytes(head[at..at + 8].try_into().expect("8 bytes"));
        let (result, errno) = (word(0), word(8) as i32);
        let mut bytes = vec![
            0;
            if reads {
                usize::try_from(result).unwrap_or(0)
            } else {
                0
            }
        ];
        self.answers.read_exact(&mut bytes).expect("bytes");
        Answer {
            result,
            errno,
            bytes,
        }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // At the end of its input it closes everything and ends.
        self.asks = None;
        let ended = self.child.wait().expect("it ends");
        assert!(ended.success() || std::thread::panicking(), "{ended}");
    }
}
