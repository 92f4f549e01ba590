//! Bugs that tests plant to see whether they are found: a machine that finds none of these proves nothing.
//!
//! The engine asks with `planted!`, which is `false` at compile time without the `sim` feature.

use std::cell::Cell;

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Pages are published as valid before their bytes are copied.
    ValidFirst,
    /// Pages are announced as dirty after their bytes have been copied.
    DirtyLast,
    /// The file's size is raised before the bytes are there.
    SizeFirst,
    /// Pages are clean once their write has been submitted.
    CleanAtSubmit,
    /// A rebuild takes flights of the dead for completed.
    ForgetFlights,
    /// A rebuild opens a dead repairer's gate instead of taking it over.
    OpenGate,
    /// A failed flush leaves its pages clean and tells nobody.
    SwallowFlushError,
    /// A sync does not ask the device to make anything durable.
    SkipDeviceSync,
    /// A rebuild lets two headers have one frame.
    TrustFrames,
}

thread_local! {
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// Plants a bug on this operating-system thread, or takes it away.
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

/// Whether a bug is planted.
pub fn planted(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}
