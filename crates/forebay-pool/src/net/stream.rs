//! A connection's bytes, plain or by TLS.
//!
//! One thread reads and another writes. Neither holds the state of TLS while it waits for the socket: two members that both wait
//! to write would else not read one another.

use std::io::{self, IoSlice, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg, sockopt};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, Connection, ServerConnection};

use super::security::{self, Security};
use crate::wire::Parcel;

/// Bytes taken from the socket at once.
const TAKEN: usize = 1 << 16;

/// How often another host is asked whether it is there, within a term.
const PROBES: u32 = 3;

/// One end of a connection.
pub(super) struct Stream {
    socket: TcpStream,
    tls: Option<Arc<Mutex<Connection>>>,
    /// What the socket has brought and TLS has not taken.
    raw: Vec<u8>,
    taken: usize,
}

impl Stream {
    /// Dials, and makes sure who is there.
    pub fn dial(
        to: SocketAddr,
        name: ServerName<'static>,
        security: &Security,
        patience: Duration,
    ) -> io::Result<Stream> {
        let socket = TcpStream::connect_timeout(&to, patience)?;
        let tls = match security {
            Security::None => None,
            Security::Tls { dials, .. } => {
                let tls = ClientConnection::new(Arc::clone(dials), name);
                Some(tls.map_err(invalid)?.into())
            }
        };
        Stream::begin(socket, tls, patience)
    }

    /// Takes somebody in, and makes sure who it is.
    pub fn accept(
        socket: TcpStream,
        security: &Security,
        patience: Duration,
    ) -> io::Result<Stream> {
        let tls = match security {
            Security::None => None,
            Security::Tls { accepts, .. } => {
                let tls = ServerConnection::new(Arc::clone(accepts));
                Some(tls.map_err(invalid)?.into())
            }
        };
        Stream::begin(socket, tls, patience)
    }

    fn begin(
        mut socket: TcpStream,
        mut tls: Option<Connection>,
        patience: Duration,
    ) -> io::Result<Stream> {
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(patience))?;
        socket.set_write_timeout(Some(patience))?;
        if let Some(tls) = &mut tls {
            while tls.is_handshaking() || tls.wants_write() {
                tls.complete_io(&mut socket)?;
            }
        }
        Ok(Stream {
            socket,
            tls: tls.map(|tls| Arc::new(Mutex::new(tls))),
            raw: Vec::new(),
            taken: 0,
        })
    }

    /// From now on reads and writes wait as long as it takes, while the other host is there: it is asked if nothing is under way, and one that
    /// has answered nothing for a term has gone, or begun again. While bytes are under way nothing but the kernel's limit of retransmissions ends it
    /// from here: a user time-out would also end one whose other process stands still, though its host answers.
    pub fn wait_for_ever(&self, term: Duration) -> io::Result<()> {
        let often = (term / (PROBES + 1)).max(Duration::from_secs(1));
        sockopt::set_socket_keepalive(&self.socket, true)?;
        sockopt::set_tcp_keepidle(&self.socket, often)?;
        sockopt::set_tcp_keepintvl(&self.socket, often)?;
        sockopt::set_tcp_keepcnt(&self.socket, PROBES)?;
        self.socket.set_read_timeout(None)?;
        self.socket.set_write_timeout(None)
    }

    /// Whether the peer has proved that this is its address; without TLS nobody proves anything.
    pub fn has_proved(&self, address: IpAddr) -> bool {
        self.tls.as_ref().is_none_or(|tls| {
            let tls = locked(tls);
            let own = tls.peer_certificates().and_then(|all| all.first());
            own.is_some_and(|own| security::names(own, address))
        })
    }

    /// The connection itself.
    #[cfg(test)]
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// The same connection, for a thread that writes.
    pub fn writer(&self) -> io::Result<Stream> {
        Ok(Stream {
            socket: self.socket.try_clone()?,
            tls: self.tls.clone(),
            raw: Vec::new(),
            taken: 0,
        })
    }

    /// Writes as much as goes without waiting: with TLS nothing, for what is sealed must go whole.
    pub fn write_now(&self, parcel: &mut Parcel) -> io::Result<()> {
        while self.tls.is_none() && !parcel.is_empty() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let mut nothing = SendAncillaryBuffer::default();
            match sendmsg(&self.socket, &parcel.slices(), &mut nothing, flags) {
                Ok(gone) => parcel.advance(gone),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Ends it for both threads.
    pub fn end(&self) {
        // It may have ended already.
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Gives TLS more of what has come; `false` at the end of it.
    fn feed(&mut self, tls: &Mutex<Connection>) -> io::Result<bool> {
        if self.taken == self.raw.len() {
            self.raw.resize(TAKEN, 0);
            self.taken = 0;
            let came = self.socket.read(&mut self.raw);
            self.raw.truncate(*came.as_ref().unwrap_or(&0));
            if came? == 0 {
                return Ok(false);
            }
        }
        let mut tls = locked(tls);
        self.taken += tls.read_tls(&mut &self.raw[self.taken..])?;
        tls.process_new_packets().map_err(invalid)?;
        Ok(true)
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = self.tls.clone() else {
            return self.socket.read(into);
        };
        loop {
            match locked(&tls).reader().read(into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
            if !self.feed(&tls)? {
                // Frames say where they end, so nothing can be cut off without being missed.
                return Ok(0);
            }
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(tls) = &self.tls else {
            return self.socket.write(bytes);
        };
        let mut sealed = Vec::new();
        let mut tls = locked(tls);
        let taken = tls.writer().write(bytes)?;
        while tls.wants_write() {
            tls.write_tls(&mut sealed)?;
        }
        drop(tls);
        // There is one thread that writes: nothing comes between.
        self.socket.write_all(&sealed)?;
        Ok(taken)
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.tls.is_none() {
            // Not by `writev`: in a program of another language than Rust the signal of a broken connection would end it.
            let send = || {
                let mut nothing = SendAncillaryBuffer::default();
                sendmsg(&self.socket, pieces, &mut nothing, SendFlags::NOSIGNAL)
            };
            return Ok(rustix::io::retry_on_intr(send)?);
        }
        let next = pieces.iter().find(|piece| !piece.is_empty());
        self.write(next.map_or(&[], |piece| piece))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn locked(tls: &Mutex<Connection>) -> MutexGuard<'_, Connection> {
    tls.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Who cannot agree on TLS now never will.
fn invalid(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
