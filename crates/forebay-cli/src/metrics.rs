//! Answers collectors of metrics, in Prometheus' text form: every request for anything, one after another.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use crate::failure::Failure;

/// How long somebody who asks for metrics may take.
const ASKING: Duration = Duration::from_secs(2);

/// Listens there from now on, and says to everybody who asks what there is to say then.
pub fn answer(
    address: SocketAddr,
    metrics: impl Fn() -> String + Send + 'static,
) -> Result<(), Failure> {
    let listener = TcpListener::bind(address);
    let listener =
        listener.map_err(|why| Failure::Failed(format!("--metrics: {address}: {why}")))?;
    let answers = move || {
        for stream in listener.incoming().flatten() {
            // Whoever does not listen has no answer.
            let _ = say(stream, &metrics());
        }
    };
    let begun = thread::Builder::new().spawn(answers);
    begun.map(drop).map_err(|why| {
        Failure::Failed(format!(
            "--metrics: no thread is to be had that answers: {why}"
        ))
    })
}

fn say(mut stream: TcpStream, body: &str) -> std::io::Result<()> {
    stream.set_read_timeout(Some(ASKING))?;
    stream.set_write_timeout(Some(ASKING))?;
    let mut line = [0; 1024];
    let _ = stream.read(&mut line)?;
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}
