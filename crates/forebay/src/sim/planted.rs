//! Bugs that tests plant to see that they would be found. One at a time, in the operating-system thread
//! that plants it or in a whole process.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// What can be planted, each a step that the engine leaves out or takes too early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Unlocking a header leaves its version as it was.
    SameVersion,
    /// Bytes leave a header and the epoch does not say so.
    SameEpoch,
    /// A fill compares epochs only, not which header it is.
    AnyHeader,
    /// Entering an operation does not look at the file's gate.
    DeafEnter,
    /// A thread that closes a file's gate takes itself for the only one that has ever come in.
    AloneUnasked,
    /// Coming back from a wait does not look at the session's gate.
    DeafUnpark,
    /// Small frames are given back before their bytes have been moved.
    EarlyFree,
    /// A thread that gives memory to a huge page does not look whether somebody else has claimed it.
    LooseClaim,
    /// The last free part of a carved frame makes it whole without asking for all others.
    LooseUncarve,
    /// A new root does not say that something is owed below it.
    BareRoot,
    /// Pages are clean when their write ends, whatever was written meanwhile.
    LateClean,
    /// A direct write does not wait for flights.
    NoLanding,
    /// A read goes on to where the file ended when it began.
    ReadOverCut,
    /// A direct write moves the file's end before the page with the old end leaves memory.
    ZerosAtTheEnd,
    /// An append chooses its offset before it has the lock.
    EarlyEnd,
    /// A truncation does not wait for appends.
    CutAppends,
    /// A file goes to the kernel in the middle of an append.
    SwitchedAppends,
    /// An append does not look whether somebody has written beyond the end.
    BlindToGrowth,
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
    /// A sync that the device has refused is told nobody.
    SwallowSyncError,
    /// How a device file looks is taken for what one has seen, whichever process has written it.
    LooseWitness,
    /// A process that opens a file does not look whether it is the one that had its number before.
    AnyBirth,
    /// A rebuild lets two headers have one frame.
    TrustFrames,
    /// Recovery writes files that others have changed.
    BlindWitness,
    /// Lengthening the device file waits for flights beyond the old end only.
    ShortLanding,
    /// A rebuild takes what is owed for clean.
    ForgottenDirt,
    /// Recovery believes an arena whose words disagree.
    TrustWords,
    /// Pages that must not change while they are written are written to all the same.
    UnstablePages,
    /// The keeper does not look at how short memory is.
    DeafPressure,
    /// Eviction takes what was used again for something that a scan has left.
    EvictInUse,
    /// A small frame is taken from a stock though another thread has changed the stock meanwhile.
    LooseStock,
    /// A rebuild leaves in stock what it shows as free.
    StaleStock,
    /// Trees of streams are not told that a block owes something.
    UntoldDirt,
    /// A write takes its space for reserved without asking the device.
    SkipReserve,
    /// Clean pages between dirty ones are written though they may be holes.
    FillHoles,
    /// A writer that has found space does not look whether somebody has made a hole since.
    BlindToHoles,
    /// What is known to have space stays known when the file gets a hole.
    SolidHoles,
    /// A writer changes the bytes of a frame that views hold.
    WriteInPlace,
    /// A thread that frees a header frees its frame, whatever views hold it.
    FreePinned,
    /// A writer takes space for its own that somebody else has reserved beyond a gap.
    BorrowedSpace,
    /// A window lets stores reach what it has given.
    OpenWindow,
    /// A view that may be written lets stores reach the frame.
    OpenView,
    /// A frame that was read into becomes a block's whatever memory has of the block by then.
    AdoptOver,
    /// A rebuild leaves a frame whose giver has died in the middle as one that its header has left.
    HalfAttached,
    /// The pins of a mapping that is gone stay.
    LeakedPins,
    /// Pins of a mapping that children have as well go with that of their parent.
    EarlyUnpin,
    /// A file is left to the keeper though no lease on it was to be had.
    NoLease,
    /// The keeper gives a lease up before what is owed is written.
    EarlyRelease,
    /// The keeper does not give a lease up once everything is written.
    KeptLease,
    /// A process that opens an idle file does not look whether somebody outside has changed it.
    StaleMemory,
}

/// Bugs that whole processes can have, by name: for workers of tests.
const BY_NAME: [(&str, Bug); 13] = [
    ("EarlyEnd", Bug::EarlyEnd),
    ("BlindWitness", Bug::BlindWitness),
    ("ForgetFlights", Bug::ForgetFlights),
    ("ShortLanding", Bug::ShortLanding),
    ("ForgottenDirt", Bug::ForgottenDirt),
    ("TrustWords", Bug::TrustWords),
    ("DeafPressure", Bug::DeafPressure),
    ("SwallowFlushError", Bug::SwallowFlushError),
    ("SwallowSyncError", Bug::SwallowSyncError),
    ("WriteInPlace", Bug::WriteInPlace),
    ("FreePinned", Bug::FreePinned),
    ("LeakedPins", Bug::LeakedPins),
    ("EarlyUnpin", Bug::EarlyUnpin),
];

/// 1 + the place in [`BY_NAME`] of what is planted in the whole process, or 0.
static EVERYWHERE: AtomicUsize = AtomicUsize::new(0);

/// Plants a bug in all threads of this process, for good.
///
/// # Panics
/// When there is no bug of that name.
pub fn plant_everywhere(name: &str) {
    let place = BY_NAME.iter().position(|(known, _)| *known == name);
    let place = place.expect("the name of a bug");
    EVERYWHERE.store(place + 1, Relaxed);
}

thread_local! {
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// Plants a bug in this operating-system thread, or none.
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

/// Whether this one is planted.
#[inline]
pub fn planted(bug: Bug) -> bool {
    if PLANTED.get() == Some(bug) {
        return true;
    }
    match EVERYWHERE.load(Relaxed) {
        0 => false,
        place => BY_NAME[place - 1].1 == bug,
    }
}
