//! Writes by way of windows: a target of the model whose positional writes are commits.

use forebay::limits::BLOCK_BYTES;
use forebay::{File, Session, Window};
use forebay_model::{SplitMix64, fill};

/// A window that is filled, committed, stored into, refilled, detached and moved as a seed decides, and looked at each time.
pub struct Windows {
    dice: SplitMix64,
    len: usize,
    window: Option<Window>,
    /// What the window has to show.
    shown: Vec<u8>,
    /// Bytes that went without a copy.
    pub attached_bytes: u64,
}

impl Windows {
    /// Of `len` bytes, made with the first write.
    pub fn new(seed: u64, len: usize) -> Self {
        Windows {
            dice: SplitMix64::new(seed),
            len,
            window: None,
            shown: vec![0; len],
            attached_bytes: 0,
        }
    }

    /// Whether a write of so many bytes can be a commit.
    pub fn takes(&self, len: usize) -> bool {
        len <= self.len
    }

    /// What is left of it with somebody who has died: nothing.
    pub fn forget(&mut self) {
        std::mem::forget(self.window.take());
        self.shown.fill(0);
    }

    /// Writes bytes by a commit.
    pub fn write(
        &mut self,
        session: &Session,
        file: &File,
        (offset, len, seed): (u64, usize, u32),
    ) -> forebay::Result<usize> {
        let window = match &mut self.window {
            Some(window) => window,
            none => none.insert(session.window(self.len)?),
        };
        let block = BLOCK_BYTES as u64;
        if self.dice.below(2) == 0 {
            window.slide(offset)?;
            self.shown.fill(0);
        }
        let room = (self.len - len) as u64;
        let shift = window.as_ptr().addr() as u64 % block;
        let fits = (offset % block + block - shift) % block;
        let start = match self.dice.below(4) {
            0 => self.dice.below(room + 1),
            _ if fits <= room => fits,
            _ => 0,
        } as usize;
        assert!(window[..] == self.shown[..], "a window has changed");
        let range = start..start + len;
        fill(seed, offset, &mut self.shown[range.clone()]);
        window[range.clone()].copy_from_slice(&self.shown[range.clone()]);
        let before = window.attached_bytes();
        let written = window.commit(file, offset, range.clone());
        self.attached_bytes += window.attached_bytes() - before;
        assert!(window[..] == self.shown[..], "a commit changes its window");
        // Stores into what was given are the window's alone: whoever reads the file finds out.
        for at in range.step_by(50_000) {
            window[at] ^= 0xFF;
            self.shown[at] ^= 0xFF;
        }
        match self.dice.below(3) {
            0 => window.refill()?,
            1 => {
                window.detach()?;
                let kept = |(now, was): (&u8, &u8)| now == was || *now == 0;
                assert!(window.iter().zip(&self.shown).all(kept), "detached");
                self.shown.copy_from_slice(window);
            }
            _ => {}
        }
        written
    }
}
