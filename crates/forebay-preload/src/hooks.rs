//! Entry points: libc's names, answered by [`crate::serve`] where the descriptor is one of ours.

/// Exports one function under several names, all of which take the same. A cancelled thread unwinds through them.
macro_rules! export {
    ($($(#[$doc:meta])* fn $($name:ident)|+ ($($arg:ident: $type:ty),*) -> $out:ty $body:block)*) => {
        $(export!(@each [$($name)+] [$(#[$doc])*] ($($arg: $type),*) -> $out, $body);)*
    };
    (@each [$first:ident $($name:ident)*] [$(#[$doc:meta])*] ($($arg:ident: $type:ty),*) -> $out:ty, $body:block) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// As for libc's function of that name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $first($($arg: $type),*) -> $out {
            /// # Safety
            /// The caller's.
            #[inline(never)]
            unsafe extern "C-unwind" fn body($($arg: $type),*) -> $out $body
            if !$crate::inside::at_any_time() {
                // SAFETY: the same call.
                return unsafe { body($($arg),*) };
            }
            let before = $crate::inside::defer_cancellation();
            // SAFETY: the same call.
            let out = unsafe { body($($arg),*) };
            $crate::inside::stop_deferring(before);
            out
        }
        export!(@also $first [$($name)*] ($($arg: $type),*) -> $out);
    };
    (@also $first:ident [$($name:ident)*] $args:tt -> $out:ty) => {
        $(export!(@alias $first $name $args -> $out);)*
    };
    (@alias $first:ident $name:ident ($($arg:ident: $type:ty),*) -> $out:ty) => {
        #[doc = concat!("`", stringify!($first), "` by another name.")]
        ///
        /// # Safety
        /// The same.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $out {
            // SAFETY: the same call.
            unsafe { $first($($arg),*) }
        }
    };
}

pub mod advise;
pub mod attributes;
pub mod close;
pub mod dup;
pub mod fork;
pub mod io;
pub mod limits;
pub mod open;
pub mod pass;
pub mod quit;
pub mod sanitizers;
pub mod seek;
pub mod signals;
pub mod size;
pub mod stat;
pub mod sync;
pub mod times;
pub mod transfer;
