//! Answers collectors of metrics, in Prometheus' text form: every request for anything.
//!
//! Each connection has a thread, and so much time from its first byte to its last. There are few of them: the first that came gives way to one that comes when
//! there are too many. So a client that keeps connections open, and says nothing, keeps nobody else out.

use std::collections::VecDeque;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use crate::failure::Failure;

/// How long a client that asks for metrics may take.
const ASKING: Duration = Duration::from_secs(2);
/// So many may ask at once.
const ASKERS_MAX: usize = 16;
/// Nobody's request is longer.
const REQUEST_MAX: usize = 8 << 10;
/// Where no connection can be taken, for want of descriptors say, the next try comes after this.
const PAUSE: Duration = Duration::from_millis(100);

/// Listens there from now on, and says to each client that asks what there is to say then.
pub fn answer(
    address: SocketAddr,
    metrics: impl Fn() -> String + Send + Sync + 'static,
) -> std::result::Result<(), Failure> {
    let failed = |why: String| Failure::Failed(format!("--metrics: {why}"));
    let listener = TcpListener::bind(address);
    let listener = listener.map_err(|why| failed(not_listening(address, &why)))?;
    let metrics = Arc::new(metrics);
    let begun = thread::Builder::new().spawn(move || accept(&listener, &metrics));
    begun
        .map(drop)
        .map_err(|why| failed(format!("no thread is to be had that answers: {why}")))
}

fn not_listening(address: SocketAddr, why: &Error) -> String {
    format!("cannot listen on {address}: {why}")
}

fn accept(listener: &TcpListener, metrics: &Arc<impl Fn() -> String + Send + Sync + 'static>) {
    let mut askers: VecDeque<Weak<TcpStream>> = VecDeque::new();
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            thread::sleep(PAUSE);
            continue;
        };
        askers.retain(|asker| asker.strong_count() > 0);
        while askers.len() >= ASKERS_MAX {
            if let Some(first) = askers.pop_front().and_then(|asker| asker.upgrade()) {
                // It has ended by itself, perhaps.
                let _ = first.shutdown(Shutdown::Both);
            }
        }
        let stream = Arc::new(stream);
        askers.push_back(Arc::downgrade(&stream));
        let metrics = Arc::clone(metrics);
        // A client that does not listen has no answer, nor has anybody while no thread is to be had.
        let _ = thread::Builder::new().spawn(move || say(&stream, &*metrics));
    }
}

fn say(stream: &TcpStream, metrics: &impl Fn() -> String) -> Result<()> {
    let until = Instant::now() + ASKING;
    hear(stream, until)?;
    let body = metrics();
    let mut answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
    .into_bytes();
    let mut stream = stream;
    while !answer.is_empty() {
        stream.set_write_timeout(Some(left(until)?))?;
        let written = stream.write(&answer)?;
        answer.drain(..written);
    }
    Ok(())
}

/// Reads a request to its end: what is closed with something unread takes the answer along.
fn hear(mut stream: &TcpStream, until: Instant) -> Result<()> {
    let mut request: Vec<u8> = Vec::new();
    let mut piece = [0; 1024];
    while request.len() < REQUEST_MAX && !request.windows(4).any(|end| end == b"\r\n\r\n") {
        stream.set_read_timeout(Some(left(until)?))?;
        match stream.read(&mut piece)? {
            0 if request.is_empty() => return Err(ErrorKind::UnexpectedEof.into()),
            0 => break,
            length => request.extend(&piece[..length]),
        }
    }
    Ok(())
}

/// How long there is to that moment.
fn left(until: Instant) -> Result<Duration> {
    match until.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}
