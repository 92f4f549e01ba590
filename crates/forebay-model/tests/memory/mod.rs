//! A target in memory with a disk below it, written without the model's code, and with mistakes to
//! order: the canaries that the drivers must find.

#![allow(dead_code, reason = "each test program uses its part")]

use forebay_model::{ErrorClass, Kind, Op, Outcome, Profile, SplitMix64, Target, fill};

/// Operations that [`Memory`] knows: handles are all alike.
pub const PLAIN: Profile = Profile {
    weights: &[
        (Kind::Write, 30),
        (Kind::Read, 20),
        (Kind::Append, 8),
        (Kind::SetLen, 8),
        (Kind::SyncData, 3),
        (Kind::Punch, 8),
        (Kind::Len, 5),
        (Kind::WriteVectored, 5),
        (Kind::CloseAll, 1),
    ],
    ..Profile::TINY
};

/// A mistake to order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    None,
    LosesLastByteOfRaggedWrite,
    ShowsOldBytesAfterCutAndGrow,
    PunchesWholePagesOnly,
    ForgetsToGrow,
    AppendsAtPageEnd,
    WritesOnePageTooFar,
    ReadsOfTheOtherFile,
    SyncsAllButTheLastBlock,
    SyncForgetsTheLength,
}

/// Files in memory, and what of them is on the disk.
pub struct Memory {
    pub files: Vec<Vec<u8>>,
    pub disk: Vec<Vec<u8>>,
    /// Each file as it was before it was last cut.
    uncut: Vec<Vec<u8>>,
    pub bug: Bug,
    /// One in so many operations fails for the device's sake; 0: none.
    pub fault_every: u64,
    random: SplitMix64,
}

impl Memory {
    pub fn new(files: usize, bug: Bug) -> Self {
        let empty = || vec![Vec::new(); files];
        Memory {
            files: empty(),
            disk: empty(),
            uncut: empty(),
            bug,
            fault_every: 0,
            random: SplitMix64::new(9),
        }
    }

    fn write(&mut self, file: u8, offset: u64, len: u64, seed: u32) {
        let mut bytes = vec![0; len as usize];
        fill(seed, offset, &mut bytes);
        let ragged = !len.is_multiple_of(4096);
        if self.bug == Bug::LosesLastByteOfRaggedWrite && ragged && seed.is_multiple_of(10) {
            bytes.pop();
        }
        if self.bug == Bug::WritesOnePageTooFar && len == 4096 {
            self.put(file, offset + 4096, &bytes);
        }
        self.put(file, offset, &bytes);
    }

    fn put(&mut self, file: u8, offset: u64, bytes: &[u8]) {
        let (start, end) = (offset as usize, offset as usize + bytes.len());
        if bytes.is_empty() {
            return;
        }
        if self.files[file as usize].len() < end {
            self.grow(file, end);
        }
        self.files[file as usize][start..end].copy_from_slice(bytes);
    }

    fn grow(&mut self, file: u8, len: usize) {
        let (content, uncut) = (&mut self.files[file as usize], &self.uncut[file as usize]);
        let stale = content.len()..len.min(uncut.len());
        content.resize(len, 0);
        if self.bug == Bug::ShowsOldBytesAfterCutAndGrow && !stale.is_empty() {
            content[stale.clone()].copy_from_slice(&uncut[stale]);
        }
    }

    fn set_len(&mut self, file: u8, len: u64) {
        let content = &mut self.files[file as usize];
        if len < content.len() as u64 {
            self.uncut[file as usize].clone_from(content);
            content.truncate(len as usize);
        } else if self.bug != Bug::ForgetsToGrow {
            self.grow(file, len as usize);
        }
    }

    fn punch(&mut self, file: u8, offset: u64, len: u64) {
        let content = &mut self.files[file as usize];
        let (mut start, mut end) = (offset, (offset + len).min(content.len() as u64));
        if self.bug == Bug::PunchesWholePagesOnly {
            (start, end) = (start.next_multiple_of(4096), end - end % 4096);
        }
        if start < end {
            content[start as usize..end as usize].fill(0);
        }
    }

    fn sync(&mut self, file: u8) {
        let content = &self.files[file as usize];
        let disk = &mut self.disk[file as usize];
        match self.bug {
            Bug::SyncsAllButTheLastBlock => {
                let synced = content.len() - content.len() % (256 * 1024);
                disk.resize(content.len(), 0);
                disk[..synced].copy_from_slice(&content[..synced]);
            }
            Bug::SyncForgetsTheLength => {
                let len = disk.len().min(content.len());
                disk[..len].copy_from_slice(&content[..len]);
            }
            _ => disk.clone_from(content),
        }
    }

    /// What the disk shows after power loss: some pages, and maybe the length, made it there.
    pub fn lose_power(&mut self, file: u8) -> Vec<u8> {
        let now = &self.files[file as usize];
        let mut image = self.disk[file as usize].clone();
        if self.random.below(2) == 0 {
            image.resize(now.len(), 0);
        }
        for (page, bytes) in image.chunks_mut(4096).enumerate() {
            let start = page * 4096;
            if self.random.below(2) == 0 && start + bytes.len() <= now.len() {
                bytes.copy_from_slice(&now[start..start + bytes.len()]);
            }
        }
        image
    }

    /// Tears a write: some of its bytes arrive.
    fn tear(&mut self, op: &Op) {
        if let &Op::Write {
            file,
            offset,
            len,
            seed,
            ..
        } = op
        {
            let content = &mut self.files[file as usize];
            let mut bytes = vec![0; len as usize];
            fill(seed, offset, &mut bytes);
            for (i, byte) in bytes.iter().enumerate() {
                match content.get_mut(offset as usize + i) {
                    Some(at) if self.random.below(2) == 0 => *at = *byte,
                    _ => {}
                }
            }
        }
    }
}

impl Target for Memory {
    fn run(&mut self, op: &Op) -> Outcome {
        if self.fault_every > 0 && self.random.below(self.fault_every) == 0 {
            self.tear(op);
            return Outcome::Failed(ErrorClass::Io);
        }
        match *op {
            Op::Write {
                file, offset, seed, ..
            }
            | Op::WriteVectored {
                file, offset, seed, ..
            } => {
                self.write(file, offset, op.payload_len(), seed);
                Outcome::Wrote(op.payload_len())
            }
            Op::Append {
                file, len, seed, ..
            } => {
                let mut end = self.files[file as usize].len() as u64;
                if self.bug == Bug::AppendsAtPageEnd {
                    end = end.next_multiple_of(4096);
                }
                self.write(file, end, u64::from(len), seed);
                Outcome::AppendedAt(end)
            }
            Op::Read {
                mut file,
                offset,
                len,
                ..
            } => {
                if self.bug == Bug::ReadsOfTheOtherFile && self.random.below(20) == 0 {
                    file = 1 - file;
                }
                let content = &self.files[file as usize];
                let start = content.len().min(offset as usize);
                let end = content.len().min(start + len as usize);
                Outcome::Bytes(content[start..end].to_vec())
            }
            Op::SetLen { file, len, .. } => {
                self.set_len(file, len);
                Outcome::Done
            }
            Op::Punch { len: 0, .. } => Outcome::Failed(ErrorClass::Invalid),
            Op::Punch {
                file, offset, len, ..
            } => {
                self.punch(file, offset, len);
                Outcome::Done
            }
            Op::SyncData { file, .. } | Op::SyncAll { file, .. } => {
                self.sync(file);
                Outcome::Done
            }
            Op::Len { file, .. } => Outcome::Length(self.files[file as usize].len() as u64),
            _ => Outcome::Done,
        }
    }
}
