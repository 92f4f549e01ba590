//! libfabric's library, loaded when it is first needed: neither a build nor a pool without a fabric wants it.
//!
//! When the process ends, libfabric takes itself apart while threads are still at work. So all calls are made by [`unless_ended`], and a function that
//! runs before that waits for those that are under way, and lets no others in.
//!
//! It stays loaded for the life of the process. Most of its interface is tables of functions in its objects, which `endpoint` calls.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{OnceLock, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use super::Error;
use super::bindings as raw;
use super::objects::Signals;

/// The name that its version 1 has on every system.
const NAME: &str = "libfabric.so.1";

/// The version whose structures `bindings` has. Later ones keep them.
pub(super) const VERSION: u32 = raw::FI_MAJOR_VERSION << 16 | raw::FI_MINOR_VERSION;

type GetInfo = unsafe extern "C" fn(
    u32,
    *const c_char,
    *const c_char,
    u64,
    *const raw::fi_info,
    *mut *mut raw::fi_info,
) -> c_int;
type OpenFabric =
    unsafe extern "C" fn(*mut raw::fi_fabric_attr, *mut *mut raw::fid_fabric, *mut c_void) -> c_int;

/// Whether the process ends.
static ENDED: RwLock<bool> = RwLock::new(false);

/// Calls libfabric, unless the process ends. No call is made within another one.
pub(super) fn unless_ended<T>(call: impl FnOnce() -> T) -> Option<T> {
    let ended = ENDED.read().unwrap_or_else(PoisonError::into_inner);
    (!*ended).then(call)
}

/// Whether the process ends.
pub(super) fn has_ended() -> bool {
    *ENDED.read().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for calls that are under way, but not for ever: in a forked child nobody ends those of its parent's threads.
extern "C" fn end() {
    let until = Instant::now() + Duration::from_secs(1);
    loop {
        match ENDED.try_write() {
            Ok(mut ended) => return *ended = true,
            Err(_) if Instant::now() > until => return,
            Err(_) => thread::sleep(Duration::from_micros(50)),
        }
    }
}

/// The functions that it exports.
pub(super) struct Library {
    pub get_info: GetInfo,
    pub free_info: unsafe extern "C" fn(*mut raw::fi_info),
    pub dup_info: unsafe extern "C" fn(*const raw::fi_info) -> *mut raw::fi_info,
    pub open_fabric: OpenFabric,
    strerror: unsafe extern "C" fn(c_int) -> *const c_char,
    version: u32,
}

impl Library {
    /// The library of this process.
    pub fn load() -> Result<&'static Library, Error> {
        static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
        let loaded = LIBRARY.get_or_init(|| Library::open().map_err(|why| why.to_string()));
        loaded.as_ref().map_err(|why| Error::NoLibrary(why.clone()))
    }

    fn open() -> Result<Library, libloading::Error> {
        let signals = Signals::now();
        // SAFETY: what runs when it is loaded is libfabric's own: it looks for providers, and needs nothing of this process.
        let library = unsafe { libloading::Library::new(NAME) };
        signals.restore_all();
        let library = library?;
        // After it was loaded, so that this runs before libfabric takes itself apart.
        // SAFETY: the function takes nothing, and lives as long as the process.
        unsafe { libc::atexit(end) };
        // SAFETY: the types are those of its headers, and the library is never unloaded, so the functions stay.
        let (mut loaded, version) = unsafe {
            let version: unsafe extern "C" fn() -> u32 = *library.get(b"fi_version\0")?;
            let loaded = Library {
                get_info: *library.get(b"fi_getinfo\0")?,
                free_info: *library.get(b"fi_freeinfo\0")?,
                dup_info: *library.get(b"fi_dupinfo\0")?,
                open_fabric: *library.get(b"fi_fabric\0")?,
                strerror: *library.get(b"fi_strerror\0")?,
                version: 0,
            };
            (loaded, version)
        };
        std::mem::forget(library);
        // SAFETY: it takes nothing.
        loaded.version = unsafe { version() };
        Ok(loaded)
    }

    /// What version it is.
    pub fn version(&self) -> (u32, u32) {
        (self.version >> 16, self.version & 0xffff)
    }

    /// What libfabric calls an error, by its number without a sign.
    pub fn text(&self, number: c_int) -> String {
        // SAFETY: it answers with a string that is never freed, for any number.
        let text = unsafe { CStr::from_ptr((self.strerror)(number)) };
        text.to_string_lossy().into_owned()
    }

    /// An error of a call that returned this.
    pub fn failed(&self, what: &'static str, returned: i64) -> Error {
        let number = c_int::try_from(-returned).unwrap_or(0);
        Error::Call(what, self.text(number))
    }

    /// The same as a result: what is not negative is none.
    pub fn check(&self, what: &'static str, returned: c_int) -> Result<(), Error> {
        if returned < 0 {
            return Err(self.failed(what, returned.into()));
        }
        Ok(())
    }
}
