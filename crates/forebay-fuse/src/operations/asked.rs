//! What a request asks, taken from it part by part. One that is cut short, or says more than it has, is an error (`EIO`): the kernel sends none.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::caller::Caller;
use crate::contents::REQUEST_BYTES_MAX;
use crate::failed::{Answer, Failed};
use crate::transport::Request;

const MALFORMED: Failed = Failed(libc::EIO);

pub(crate) struct Asked<'a> {
    number: u64,
    by: Caller,
    operation: &'a [u8],
    /// What has not been taken yet of what follows.
    payload: &'a [u8],
}

impl<'a> Asked<'a> {
    pub(crate) fn new(request: &Request<'a>) -> Self {
        let header = &request.header;
        Asked {
            number: header.nodeid,
            by: Caller {
                uid: header.uid,
                gid: header.gid,
                pid: header.pid,
            },
            operation: request.operation,
            payload: request.payload,
        }
    }

    /// The file, or the directory.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn by(&self) -> &Caller {
        &self.by
    }

    /// What the operation says of itself.
    pub(crate) fn own<T>(&self, parse: impl FnOnce(&[u8]) -> Option<T>) -> Answer<T> {
        parse(self.operation).ok_or(MALFORMED)
    }

    /// The next name, which ends with a zero.
    pub(crate) fn name(&mut self) -> Answer<&'a OsStr> {
        let len = self.payload.iter().position(|&byte| byte == 0);
        let name = self.next(len.ok_or(MALFORMED)?)?;
        self.next(1)?;
        Ok(OsStr::from_bytes(name))
    }

    /// The next bytes.
    pub(crate) fn next(&mut self, len: usize) -> Answer<&'a [u8]> {
        let (next, rest) = self.payload.split_at_checked(len).ok_or(MALFORMED)?;
        self.payload = rest;
        Ok(next)
    }
}

/// Bytes that one answer may have. Who asks for more gets fewer, and asks for the rest: that is no read for the kernel's cache, for which fewer would be
/// the file's end. Those have no more than the pages that were agreed on.
pub(crate) fn room(size: u32) -> usize {
    size.min(REQUEST_BYTES_MAX) as usize
}
