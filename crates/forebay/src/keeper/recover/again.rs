//! What a recovery has written and could not make durable is owed again: the device may have lost it, and says so once.

use crate::frame::header::{Guard, Identity};
use crate::frame::slots;
use crate::ids::{BlockIndex, FileId, HeaderId};
use crate::member::shared::Shared;
use crate::memory::threads::Me;
use crate::scrap::absorb::recharge;

/// Pages of a block that are owed before they are written.
pub(super) struct Owing {
    block: BlockIndex,
    header: HeaderId,
    pages: u64,
}

/// What a file owes.
pub(super) fn owing(shared: &Shared, me: Me<'_>, id: FileId) -> Vec<Owing> {
    let entry = shared.arena.file_unchecked(id);
    let mut all = Vec::new();
    let mut at = 0;
    while let Some((block, header)) = slots::next_owed(&shared.arena, entry, at) {
        at = u64::from(block.0) + 1;
        let pages = with(me, id, block, header, |guard| guard.dirty());
        if let Some(pages) = pages.filter(|&pages| pages != 0) {
            all.push(Owing {
                block,
                header,
                pages,
            });
        }
    }
    all
}

/// Owes it again, as far as memory still has it.
pub(super) fn owe(me: Me<'_>, id: FileId, owing: &[Owing]) {
    let entry = me.arena.file_unchecked(id);
    for part in owing {
        with(me, id, part.block, part.header, |guard| {
            let written = part.pages & guard.valid() & !guard.inflight() & !guard.dirty();
            if written != 0 {
                guard.set_dirty(guard.dirty() | written);
                recharge(guard, entry);
            }
        });
    }
    me.settle_owed();
}

fn with<T>(
    me: Me<'_>,
    id: FileId,
    block: BlockIndex,
    header: HeaderId,
    look: impl FnOnce(&Guard<'_>) -> T,
) -> Option<T> {
    let _operation = me.enter(id).ok()?;
    let guard = me.arena.header(header)?.lock(me, header)?;
    guard
        .is_for(Identity { file: id, block })
        .then(|| look(&guard))
}
