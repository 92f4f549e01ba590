//! Messages with descriptors over a Unix socket (`SCM_RIGHTS`), of a fixed small size.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::{check, check_bytes, retry};

/// Descriptors in one message at most.
pub const DESCRIPTORS_MAX: usize = 4;
/// Room for the control message, aligned as its header wants.
type Control = [u64; 8];

fn address(path: &Path) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    // SAFETY: all zeros is a valid address.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() >= address.sun_path.len() {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    let len = std::mem::offset_of!(libc::sockaddr_un, sun_path) + bytes.len() + 1;
    Ok((address, len as libc::socklen_t))
}

fn new_socket(flags: libc::c_int) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | flags;
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    check(fd)?;
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A listening socket at `path`, which must not exist.
pub fn listen(path: &Path) -> io::Result<OwnedFd> {
    let socket = new_socket(libc::SOCK_NONBLOCK)?;
    let (address, len) = address(path)?;
    let pointer = (&raw const address).cast();
    // SAFETY: the address is ours and as long as said.
    check(unsafe { libc::bind(socket.as_raw_fd(), pointer, len) })?;
    // SAFETY: no memory is passed.
    check(unsafe { libc::listen(socket.as_raw_fd(), 128) })?;
    Ok(socket)
}

/// A connection to the socket at `path`. Waits for nobody: `WouldBlock` where as many as may are waiting to be taken in.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = new_socket(libc::SOCK_NONBLOCK)?;
    let (address, len) = address(path)?;
    let pointer = (&raw const address).cast();
    // SAFETY: the address is ours and as long as said.
    retry(|| check(unsafe { libc::connect(socket.as_raw_fd(), pointer, len) }))?;
    Ok(socket)
}

/// Two sockets that are connected to each other. Neither waits for anybody.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let mut ends = [0; 2];
    // SAFETY: the target is ours, and holds two numbers.
    check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) })?;
    // SAFETY: the descriptors are new and nobody else's.
    let [one, other] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    Ok((one, other))
}

/// The next connection, if one waits.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let null = std::ptr::null_mut();
    // SAFETY: no address is asked for.
    let fd = unsafe { libc::accept4(listener.as_raw_fd(), null, null.cast(), flags) };
    check(fd)?;
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The user at the other end.
pub fn peer_uid(socket: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(peer(socket)?.uid)
}

/// The process at the other end, or the one that has made the listener; 0 where it cannot be seen from here.
pub fn peer_pid(socket: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(peer(socket)?.pid.unsigned_abs())
}

fn peer(socket: BorrowedFd<'_>) -> io::Result<libc::ucred> {
    let mut who = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: the target is ours and as long as said.
    check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw mut who).cast(),
            &raw mut len,
        )
    })?;
    Ok(who)
}

/// A descriptor of the process at the other end, or of the one that has made the listener (Linux 6.5).
pub fn peer_process(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    const SO_PEERPIDFD: libc::c_int = 77;
    let mut fd: libc::c_int = -1;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    let (socket, target) = (socket.as_raw_fd(), (&raw mut fd).cast());
    // SAFETY: the target is ours and as long as said.
    check(unsafe {
        libc::getsockopt(socket, libc::SOL_SOCKET, SO_PEERPIDFD, target, &raw mut len)
    })?;
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What another process has by a number, for this process as well. It takes the right to trace that process.
pub fn borrow_from(process: BorrowedFd<'_>, number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) };
    let fd = fd as libc::c_int;
    check(fd)?;
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn message<'m>(
    vector: &'m mut libc::iovec,
    control: &'m mut Control,
    control_len: usize,
) -> libc::msghdr {
    // SAFETY: all zeros is a valid message.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vector;
    message.msg_iovlen = 1;
    if control_len > 0 {
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = control_len as _;
    }
    message
}

/// Sends a message with up to [`DESCRIPTORS_MAX`] descriptors. `WouldBlock` where the socket holds no more.
pub fn send_at_once(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    assert!(
        descriptors.len() <= DESCRIPTORS_MAX,
        "too many descriptors for one message"
    );
    let mut control: Control = [0; 8];
    let mut vector = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let payload = (descriptors.len() * size_of::<libc::c_int>()) as u32;
    // SAFETY: arithmetic only.
    let space = unsafe { libc::CMSG_SPACE(payload) } as usize;
    let with = if descriptors.is_empty() { 0 } else { space };
    let message = message(&mut vector, &mut control, with);
    if with > 0 {
        // SAFETY: the control buffer is large enough for so many descriptors and lives to the end of this function.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(payload) as _;
            for (index, descriptor) in descriptors.iter().enumerate() {
                let data = libc::CMSG_DATA(header).cast::<libc::c_int>();
                data.add(index).write_unaligned(descriptor.as_raw_fd());
            }
        }
    }
    let sent = retry(|| {
        // SAFETY: everything the message points to is alive, and the kernel only reads it.
        check_bytes(unsafe {
            let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
            libc::sendmsg(socket.as_raw_fd(), &raw const message, flags)
        })
    })?;
    if sent == bytes.len() {
        Ok(())
    } else {
        Err(io::ErrorKind::WriteZero.into())
    }
}

/// Takes a message away, with its descriptors, which are closed unless they are open elsewhere. `false`: there was none.
pub fn discard(socket: BorrowedFd<'_>) -> bool {
    take_bytes(socket, &mut [0], 0) > 0
}

/// Whether no message waits in a socket whose other end is open.
pub fn is_empty(socket: BorrowedFd<'_>) -> bool {
    look(socket, &mut [0]) == 0
}

/// The bytes of a message, without its descriptors, which stays where it is. Returns how many there are; 0: no message waits.
pub fn look(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> usize {
    take_bytes(socket, bytes, libc::MSG_PEEK)
}

/// Receives the beginning of a message, without room for descriptors: the kernel closes those that it cannot give.
fn take_bytes(socket: BorrowedFd<'_>, bytes: &mut [u8], flags: libc::c_int) -> usize {
    let got = retry(|| {
        // SAFETY: the target is ours and as long as said.
        check_bytes(unsafe {
            let flags = flags | libc::MSG_DONTWAIT;
            libc::recv(
                socket.as_raw_fd(),
                bytes.as_mut_ptr().cast(),
                bytes.len(),
                flags,
            )
        })
    });
    got.unwrap_or(0)
}

/// Receives a message and its descriptors. Returns 0 bytes when the other end is gone.
pub fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    receive_as(socket, bytes, 0)
}

/// As [`receive_at_once`], and leaves the message where it is.
///
/// # Errors
/// `WouldBlock`: there is none.
pub fn peek(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    receive_as(socket, bytes, libc::MSG_DONTWAIT | libc::MSG_PEEK)
}

/// From now on nothing can be sent to this end. What has been sent can be received.
pub fn take_no_more(socket: BorrowedFd<'_>) {
    // SAFETY: takes no memory. A socket whose other end is closed takes nothing anyway.
    unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RD) };
}

/// As [`receive`], if a message waits.
///
/// # Errors
/// `WouldBlock`: none does.
pub fn receive_at_once(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
) -> io::Result<(usize, Vec<OwnedFd>)> {
    receive_as(socket, bytes, libc::MSG_DONTWAIT)
}

fn receive_as(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    flags: libc::c_int,
) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut control: Control = [0; 8];
    let mut vector = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    let mut message = message(&mut vector, &mut control, size_of::<Control>());
    let got = retry(|| {
        // SAFETY: everything the message points to is alive, and ours, and as long as said.
        check_bytes(unsafe {
            let flags = flags | libc::MSG_CMSG_CLOEXEC;
            libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags)
        })
    })?;
    let mut descriptors = Vec::new();
    // SAFETY: the kernel has filled the control buffer with whole messages; each descriptor in them is new and ours.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&raw const message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let payload = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                for index in 0..payload / size_of::<libc::c_int>() {
                    let data = libc::CMSG_DATA(header).cast::<libc::c_int>();
                    descriptors.push(OwnedFd::from_raw_fd(data.add(index).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
    }
    Ok((got, descriptors))
}

/// Waits until one of the descriptors can be read, for at most `timeout_ms`.
pub fn wait_readable(descriptors: &[BorrowedFd<'_>], timeout_ms: i32) -> io::Result<bool> {
    let mut polls: Vec<libc::pollfd> = descriptors
        .iter()
        .map(|fd| libc::pollfd {
            fd: fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        })
        .collect();
    // SAFETY: the list is ours and as long as said.
    let ready = unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, timeout_ms) };
    match check(ready) {
        Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => Ok(ready > 0),
    }
}
