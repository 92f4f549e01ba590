//! Functions of the C library's mathematics, found when one is called for the first time.
//!
//! A pool's choosers of paths call four of them, and no other command does. Linked as usual, their library would be loaded by every one, in
//! 80 us. So these names are ours and lead to it. It is never unloaded.

use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

macro_rules! functions {
    ($($name:ident: $number:ty,)*) => {
        $(
            /// The C library's.
            #[unsafe(no_mangle)]
            extern "C" fn $name(number: $number) -> $number {
                static FOUND: AtomicPtr<libc::c_void> = AtomicPtr::new(std::ptr::null_mut());
                const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name has no null byte in it"),
                };
                // Pairs with the store below, of any thread: a thread that misses it finds the same.
                let mut found = FOUND.load(Relaxed);
                if found.is_null() {
                    found = find(NAME);
                    FOUND.store(found, Relaxed);
                }
                // SAFETY: C declares the function of this name so. It touches no memory of ours, and its library stays.
                let function: extern "C" fn($number) -> $number = unsafe { std::mem::transmute(found) };
                function(number)
            }
        )*
    };
}

functions! {
    cos: f64,
    expf: f32,
    log: f64,
    logf: f32,
}

/// Without it nothing can be computed, and what calls cannot be answered.
fn find(name: &CStr) -> *mut libc::c_void {
    // SAFETY: names that end in null bytes; the library stays.
    let found = unsafe {
        let library = libc::dlopen(c"libm.so.6".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        match library.is_null() {
            true => library,
            false => libc::dlsym(library, name.as_ptr()),
        }
    };
    if found.is_null() {
        std::process::abort();
    }
    found
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    /// The standard library calls these by their names.
    #[test]
    fn numbers_come_out_as_ever() {
        let (one, two) = (black_box(1.0_f64), black_box(2.0_f64));
        assert_eq!(one.cos().to_bits(), 0.540_302_305_868_139_8_f64.to_bits());
        assert_eq!(two.ln(), std::f64::consts::LN_2);
        assert_eq!((black_box(0.0_f32)).exp(), 1.0);
        assert_eq!(black_box(2.0_f32).ln(), std::f32::consts::LN_2);
        assert_eq!(black_box(1.0_f32).exp(), std::f32::consts::E);
    }

    /// The unwinder, too, is found at its first call.
    #[test]
    fn what_panics_is_caught() {
        let caught = std::panic::catch_unwind(|| assert_ne!(black_box(1), 1, "meant"));
        assert!(caught.is_err());
    }
}
