//! libfabric's objects: what is asked for, opened and closed.

use std::ffi::{CString, c_int, c_void};
use std::mem;
use std::net::IpAddr;
use std::ptr;

use super::bindings as raw;
use super::library::{Library, VERSION, unless_ended};
use super::names::{self, ADDRESS_MAX};
use super::{Error, Provider};

/// libfabric's objects, in the order in which they are closed.
pub(super) struct Objects {
    pub(super) ep: *mut raw::fid_ep,
    pub(super) cq: *mut raw::fid_cq,
    pub(super) av: *mut raw::fid_av,
    pub(super) domain: *mut raw::fid_domain,
    pub(super) fabric: *mut raw::fid_fabric,
}

/// Closes one of libfabric's objects, if there is one.
///
/// # Safety
/// It is null, or an object of libfabric's that is open and that nobody uses any more. All of them begin with a `fid`.
pub(super) unsafe fn close<T>(object: *mut T) {
    let fid: *mut raw::fid = object.cast();
    if fid.is_null() {
        return;
    }
    // SAFETY: as the caller says. An object that cannot be closed stays, and so does one that is left when the process ends.
    unless_ended(|| unsafe {
        if let Some(close) = (*(*fid).ops).close {
            close(fid);
        }
    });
}

impl Drop for Objects {
    fn drop(&mut self) {
        // SAFETY: nobody else has these, each is closed before what it was made of, and regions are gone before their endpoint.
        unsafe {
            close(self.ep);
            close(self.cq);
            close(self.av);
            close(self.domain);
            close(self.fabric);
        }
    }
}

/// A description of what is wanted, or of what there is.
pub(super) struct Info {
    pub(super) info: *mut raw::fi_info,
    library: &'static Library,
}

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: it is libfabric's, and freed once.
        unsafe { (self.library.free_info)(self.info) };
    }
}

impl Info {
    /// What a provider offers at this host's address.
    pub(super) fn find(
        library: &'static Library,
        provider: Provider,
        at: Option<IpAddr>,
    ) -> Result<Info, Error> {
        // SAFETY: null asks for an empty description, which has all of its parts.
        let info = unsafe { (library.dup_info)(ptr::null()) };
        if info.is_null() {
            return Err(Error::Call("fi_allocinfo", "no memory".to_string()));
        }
        let hints = Info { info, library };
        let name = CString::new(provider.name()).unwrap_or_default();
        // SAFETY: the description is this function's, its parts are there, and the name is copied, for libfabric frees it.
        unsafe {
            let wanted = &mut *hints.info;
            wanted.caps = u64::from(
                raw::FI_RMA
                    | raw::FI_READ
                    | raw::FI_WRITE
                    | raw::FI_REMOTE_READ
                    | raw::FI_REMOTE_WRITE,
            );
            wanted.mode = raw::FI_CONTEXT | raw::FI_CONTEXT2;
            (*wanted.ep_attr).type_ = raw::FI_EP_RDM;
            (*wanted.domain_attr).threading = raw::FI_THREAD_SAFE;
            // Without FI_MR_VIRT_ADDR the other side checks each key; with it, `shm` reads and writes past the other side, and checks none.
            (*wanted.domain_attr).mr_mode = match provider {
                Provider::Tcp | Provider::Shm => 0,
                Provider::Verbs => {
                    (raw::FI_MR_LOCAL
                        | raw::FI_MR_VIRT_ADDR
                        | raw::FI_MR_ALLOCATED
                        | raw::FI_MR_PROV_KEY) as c_int
                }
            };
            // A write is over when its bytes are there, and a key that is refused is told. An adapter tells both by what it is anyway.
            if provider != Provider::Verbs {
                (*wanted.tx_attr).op_flags = raw::FI_DELIVERY_COMPLETE.into();
            }
            (*wanted.fabric_attr).prov_name = libc::strdup(name.as_ptr());
        }
        let node = match provider {
            Provider::Shm => Some(names::own()),
            Provider::Tcp | Provider::Verbs => at.map(|at| at.to_string()),
        };
        let node = node.map(|node| CString::new(node).unwrap_or_default());
        let flags = node.as_ref().map_or(0, |_| raw::FI_SOURCE);
        let mut found = ptr::null_mut();
        let name = node.as_ref().map_or(ptr::null(), |node| node.as_ptr());
        // SAFETY: all of it is there until it returns.
        let returned = unless_ended(|| unsafe {
            (library.get_info)(VERSION, name, ptr::null(), flags, hints.info, &mut found)
        });
        let returned = returned.unwrap_or(-libc::ECANCELED);
        if returned != 0 {
            return Err(Error::NoProvider(provider, library.text(-returned)));
        }
        Ok(Info {
            info: found,
            library,
        })
    }
}

/// Whether there is such a provider.
pub(super) fn is_there(library: &'static Library, provider: Provider) -> Result<(), Error> {
    Info::find(library, provider, None).map(drop)
}

/// Programs' handling of those signals that `shm` takes for itself when its first endpoint is made, to remove its names.
pub(super) struct Signals([(c_int, libc::sigaction); 6]);

impl Signals {
    pub(super) fn now() -> Signals {
        let signals = [
            libc::SIGBUS,
            libc::SIGSEGV,
            libc::SIGTERM,
            libc::SIGINT,
            libc::SIGILL,
            libc::SIGABRT,
        ];
        Signals(signals.map(|signal| {
            // SAFETY: zeros are a `sigaction`, and this asks only.
            unsafe {
                let mut action: libc::sigaction = mem::zeroed();
                libc::sigaction(signal, ptr::null(), &mut action);
                (signal, action)
            }
        }))
    }

    /// All is as it was: libraries that come with libfabric take these signals when they are loaded.
    pub(super) fn restore_all(&self) {
        for (signal, action) in &self.0 {
            // SAFETY: it was the handling before.
            unsafe { libc::sigaction(*signal, action, ptr::null_mut()) };
        }
    }

    /// Whoever has a handler keeps it. Where there was none, libfabric's removes what the process leaves in shared memory.
    pub(super) fn restore(&self) {
        for (signal, action) in &self.0 {
            if action.sa_sigaction != libc::SIG_DFL {
                // SAFETY: it was the handling before.
                unsafe { libc::sigaction(*signal, action, ptr::null_mut()) };
            }
        }
    }
}

/// A number that nobody guesses.
pub(super) fn draw() -> Result<u64, Error> {
    let mut bytes = [0; 8];
    // SAFETY: there is room for so many.
    let drawn = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if drawn != bytes.len() as isize {
        let why = std::io::Error::last_os_error();
        return Err(Error::Call("getrandom", why.to_string()));
    }
    Ok(u64::from_ne_bytes(bytes))
}

/// Opens all objects, and says what the kernel wakes by, if `wakes` says that there is something.
///
/// # Safety
/// The description is libfabric's, and whole.
pub(super) unsafe fn open_objects(
    library: &Library,
    info: *mut raw::fi_info,
    objects: &mut Objects,
    wakes: bool,
) -> Result<Option<c_int>, Error> {
    let none = ptr::null_mut::<c_void>();
    let missing = |what| move || Error::Call(what, "there is none".to_string());
    // SAFETY: each object is used only after the call that makes it has succeeded, and its tables are there as long as it is.
    unsafe {
        let opened = (library.open_fabric)((*info).fabric_attr, &mut objects.fabric, none);
        library.check("fi_fabric", opened)?;
        let of_fabric = &*(*objects.fabric).ops;
        let domain = of_fabric.domain.ok_or_else(missing("fi_domain"))?;
        let opened = domain(objects.fabric, info, &mut objects.domain, none);
        library.check("fi_domain", opened)?;
        let of_domain = &*(*objects.domain).ops;
        let mut attributes: raw::fi_av_attr = mem::zeroed();
        let av = of_domain.av_open.ok_or_else(missing("fi_av_open"))?;
        let opened = av(objects.domain, &mut attributes, &mut objects.av, none);
        library.check("fi_av_open", opened)?;
        let mut attributes: raw::fi_cq_attr = mem::zeroed();
        attributes.format = raw::FI_CQ_FORMAT_CONTEXT;
        attributes.wait_obj = if wakes {
            raw::FI_WAIT_FD
        } else {
            raw::FI_WAIT_NONE
        };
        let cq = of_domain.cq_open.ok_or_else(missing("fi_cq_open"))?;
        let opened = cq(objects.domain, &mut attributes, &mut objects.cq, none);
        library.check("fi_cq_open", opened)?;
        let endpoint = of_domain.endpoint.ok_or_else(missing("fi_endpoint"))?;
        let opened = endpoint(objects.domain, info, &mut objects.ep, none);
        library.check("fi_endpoint", opened)?;
        let ep = &raw mut (*objects.ep).fid;
        let of_ep = &*(*ep).ops;
        let bind = of_ep.bind.ok_or_else(missing("fi_ep_bind"))?;
        library.check("fi_ep_bind", bind(ep, &raw mut (*objects.av).fid, 0))?;
        let both = u64::from(raw::FI_TRANSMIT | raw::FI_RECV);
        library.check("fi_ep_bind", bind(ep, &raw mut (*objects.cq).fid, both))?;
        let control = of_ep.control.ok_or_else(missing("fi_enable"))?;
        library.check("fi_enable", control(ep, raw::FI_ENABLE as c_int, none))?;
        if !wakes {
            return Ok(None);
        }
        let cq = &raw mut (*objects.cq).fid;
        let control = (*(*cq).ops).control.ok_or_else(missing("FI_GETWAIT"))?;
        let mut fd: c_int = -1;
        let asked = control(cq, raw::FI_GETWAIT as c_int, (&raw mut fd).cast());
        library.check("FI_GETWAIT", asked)?;
        Ok(Some(fd))
    }
}

/// An endpoint's address.
///
/// # Safety
/// It is open and enabled.
pub(super) unsafe fn name_of(library: &Library, ep: *mut raw::fid_ep) -> Result<Vec<u8>, Error> {
    let mut name = vec![0; ADDRESS_MAX];
    let mut length = name.len() as u64;
    // SAFETY: as the caller says, and there is room for so many.
    let returned = unsafe {
        let Some(getname) = (*(*ep).cm).getname else {
            return Err(Error::Address);
        };
        getname(&raw mut (*ep).fid, name.as_mut_ptr().cast(), &mut length)
    };
    library.check("fi_getname", returned)?;
    name.truncate(length as usize);
    Ok(name)
}
