//! Mistakes that tests plant into the machines, to see that the simulation finds them.
//!
//! In a build that is not for tests none is ever made, and the compiler leaves the questions out.

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// A server takes one-sided requests with keys of older epochs.
    OldKeysOpen,
    /// A server grants locks before all clients have said what they hold.
    GrantsBeforeClaims,
    /// A server sends no recall, and gives the blocks away all the same.
    RecallsGetLost,
    /// A server takes a release for grants that its sender had not seen.
    ReleasesEndUnseen,
    /// A client gives blocks back before what it wrote has arrived.
    ReleasesBeforeWritten,
    /// A client goes on using its grants when its term is over.
    TermsNeverEnd,
    /// An operation that keeps blocks waits until what it needs besides has been given back, which waits for the operation.
    WaitsForItsOwnRecall,
    /// A client takes bytes of a block that it has dropped or written since it asked for them.
    TakesLateBytes,
    /// A remote read asks the servers for bytes that are newer in its client's memory.
    PassesByNewerBytes,
    /// A remote write leaves what its client's memory has of these blocks.
    LeavesOldBytes,
    /// An operation does not wait for a remote one that is in its way.
    OvertakesRemoteOnes,
    /// A server says that it has a block that is not in the pool's home.
    SkipsHome,
    /// A ruler goes on answering when his lease is over.
    OldRulerRules,
    /// A ruler answers before what the answer rests on has been saved.
    AnswersUnsaved,
    /// A client takes what was lost for a hole.
    LossesAreHoles,
    /// A remote write of a part of a block goes on when the rest of the block has been lost meanwhile.
    PatchesWhatIsLost,
    /// A file's new length is at the servers before its bytes are.
    LengthsBeforeBytes,
    /// The length of a file that goes on growing is at the servers before the bytes up to it are.
    TellsRisingLengths,
    /// A removal or a truncation goes to the servers of the first block alone.
    DiscardsTheFirstAlone,
    /// A sync says nothing of what the home may have lost.
    BelievesTheHome,
    /// A client goes on with what it has of a home that may have lost it.
    KeepsWhatTheHomeMayNotHave,
    /// A client makes new blocks at servers whose memory is full.
    FillsTheFull,
}

/// Whether a mistake is planted.
#[cfg(not(test))]
pub const fn is_made(_: Mistake) -> bool {
    false
}

/// Whether any mistake is planted.
#[cfg(not(test))]
pub const fn is_any_made() -> bool {
    false
}

#[cfg(test)]
pub use planted::{is_any_made, is_made, plant};

#[cfg(test)]
mod planted {
    use std::cell::Cell;

    use super::Mistake;

    thread_local! {
        static PLANTED: Cell<Option<Mistake>> = const { Cell::new(None) };
    }

    /// Plants a mistake into what this thread does from now on.
    pub fn plant(mistake: Option<Mistake>) {
        PLANTED.set(mistake);
    }

    /// Whether a mistake is planted.
    pub fn is_made(mistake: Mistake) -> bool {
        PLANTED.get() == Some(mistake)
    }

    /// Whether any mistake is planted.
    pub fn is_any_made() -> bool {
        PLANTED.get().is_some()
    }
}
