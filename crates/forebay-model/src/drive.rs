//! Drives a target through a list of operations, comparing every answer with the model's.

use crate::{
    Access, BLOCK_BYTES, LineError, Mismatch, Model, Op, Outcome, Target, first_difference,
    from_lines,
};

/// How often a read-back after a fault is tried before the test gives up.
const READ_BACK_TRIES: usize = 100;

/// Drives `target` through `ops`, and reads everything at the end.
pub fn drive(ops: &[Op], target: &mut dyn Target) -> Result<(), Mismatch> {
    let mut driver = Driver::for_ops(ops);
    for op in ops {
        driver.step(op, target)?;
    }
    driver.finish(target)
}

/// Why a replay did not end well.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The text is not a list of operations.
    #[error(transparent)]
    Line(#[from] LineError),
    /// The target is wrong.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
}

/// [`drive`] for a list that [`to_lines`](crate::to_lines) wrote.
pub fn replay(lines: &str, target: &mut dyn Target) -> Result<(), ReplayError> {
    Ok(drive(&from_lines(lines)?, target)?)
}

/// A model and a target kept in step, one operation at a time: for tests that do something of their
/// own between operations, such as killing somebody.
pub struct Driver {
    model: Model,
    faults: bool,
}

impl Driver {
    /// For as many files and handles as the list needs.
    pub fn for_ops(ops: &[Op]) -> Self {
        Driver {
            model: Model::for_ops(ops),
            faults: false,
        }
    }

    /// Goes on from a model, for instance after [`Model::adopt_after_death`].
    pub fn from_model(model: Model) -> Self {
        Driver {
            model,
            faults: false,
        }
    }

    /// Accepts that anything may fail for the device's sake: short writes, and
    /// [`is_fault`](crate::ErrorClass::is_fault). What a failed write left is read back; it must be old or new byte by
    /// byte, and stay as it is from then on. A failed sync promises nothing.
    pub fn tolerating_faults(mut self) -> Self {
        self.faults = true;
        self
    }

    /// The model, in the state after the last step.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The model, to adopt what was found after a crash.
    pub fn model_mut(&mut self) -> &mut Model {
        &mut self.model
    }

    /// Carries out one operation and compares the answers. After a set-length it asks for the length
    /// too: a file seldom keeps it long enough for the list to notice.
    pub fn step(&mut self, op: &Op, target: &mut dyn Target) -> Result<(), Mismatch> {
        let outcome = target.run(op);
        match outcome {
            Outcome::Failed(class) if self.faults && class.is_fault() => {
                self.step_failed(op, target)
            }
            Outcome::Wrote(n) if self.faults && n < op.payload_len() => {
                self.step_exact(&shortened(op, n), outcome)
            }
            outcome => {
                self.step_exact(op, outcome)?;
                self.check_len(op, target)
            }
        }
    }

    fn check_len(&mut self, op: &Op, target: &mut dyn Target) -> Result<(), Mismatch> {
        let Op::SetLen { file, handle, .. } = *op else {
            return Ok(());
        };
        let expected = Outcome::Length(self.model.content(file).len());
        let outcome = self.persist(&Op::Len { file, handle }, target)?;
        if outcome == expected {
            return Ok(());
        }
        let what = format!("after {op:?}: expected {expected:?}, got {outcome:?}");
        Err(self.model.mismatch(what, Some(file)))
    }

    fn step_exact(&mut self, op: &Op, outcome: Outcome) -> Result<(), Mismatch> {
        let expected = self.model.apply(op);
        if expected == outcome {
            return Ok(());
        }
        let index = self.model.applied().len() - 1;
        let what = format!("operation {index} {op:?}: expected {expected:?}, got {outcome:?}");
        if let (Op::Read { file, offset, .. }, Outcome::Bytes(want), Outcome::Bytes(found)) =
            (op, &expected, &outcome)
            && let Some(at) = first_difference(want, found)
        {
            let offset = offset + at as u64;
            return Err(self
                .model
                .byte_mismatch(what, *file, offset, want[at], &found[at..]));
        }
        Err(self.model.mismatch(what, op.file()))
    }

    /// A fault: reads and syncs have done nothing, closes have closed, a cut has or has not happened,
    /// anything else may be torn.
    fn step_failed(&mut self, op: &Op, target: &mut dyn Target) -> Result<(), Mismatch> {
        if let (Some(file), Some(effect)) = (op.file(), self.model.effect(op)) {
            let handle = 0;
            let access = Access::ReadWrite;
            self.ask(
                &Op::Reopen {
                    file,
                    handle,
                    access,
                    truncate: false,
                },
                target,
            )?;
            let Outcome::Length(len) = self.persist(&Op::Len { file, handle }, target)? else {
                return Err(self
                    .model
                    .mismatch("length was no length".into(), Some(file)));
            };
            let end = effect.change.end.min(len);
            let bytes = self.read_back(file, effect.change.start, end, target)?;
            self.model.adopt_torn(op, len, &bytes)?;
        }
        self.model.note(op);
        self.model.set_access(op);
        Ok(())
    }

    fn read_back(
        &mut self,
        file: u8,
        start: u64,
        end: u64,
        target: &mut dyn Target,
    ) -> Result<Vec<u8>, Mismatch> {
        let mut bytes = Vec::new();
        for offset in (start..end).step_by(BLOCK_BYTES as usize) {
            let len = (end - offset).min(BLOCK_BYTES) as u32;
            let read = Op::Read {
                file,
                handle: 0,
                offset,
                len,
            };
            match self.persist(&read, target)? {
                Outcome::Bytes(part) if part.len() == len as usize => bytes.extend(part),
                odd => {
                    let what = format!("{read:?} after a fault: {odd:?}");
                    return Err(self.model.mismatch(what, Some(file)));
                }
            }
        }
        Ok(bytes)
    }

    /// Asks again for as long as the device fails, where it may.
    fn persist(&mut self, op: &Op, target: &mut dyn Target) -> Result<Outcome, Mismatch> {
        for _ in 0..READ_BACK_TRIES {
            let outcome = target.run(op);
            if !(self.faults && matches!(outcome, Outcome::Failed(class) if class.is_fault())) {
                return Ok(outcome);
            }
        }
        Err(self
            .model
            .mismatch(format!("{op:?} never succeeds"), op.file()))
    }

    /// A step that has to succeed at last.
    fn ask(&mut self, op: &Op, target: &mut dyn Target) -> Result<(), Mismatch> {
        let outcome = self.persist(op, target)?;
        self.step_exact(op, outcome)
    }

    /// Compares every file with the model, through handle 0.
    pub fn finish(&mut self, target: &mut dyn Target) -> Result<(), Mismatch> {
        for file in 0..self.model.files() as u8 {
            let handle = 0;
            let access = Access::ReadWrite;
            self.ask(
                &Op::Reopen {
                    file,
                    handle,
                    access,
                    truncate: false,
                },
                target,
            )?;
            self.ask(&Op::Len { file, handle }, target)?;
            let len = self.model.content(file).len();
            self.ask(
                &Op::Read {
                    file,
                    handle,
                    offset: len,
                    len: 10,
                },
                target,
            )?;
            for block in self.model.blocks_to_check(file, len, &[]) {
                let offset = block * BLOCK_BYTES;
                self.ask(
                    &Op::Read {
                        file,
                        handle,
                        offset,
                        len: BLOCK_BYTES as u32,
                    },
                    target,
                )?;
            }
        }
        Ok(())
    }
}

/// The write that a short write was.
fn shortened(op: &Op, n: u64) -> Op {
    match *op {
        Op::Write {
            file,
            handle,
            offset,
            seed,
            ..
        }
        | Op::WriteVectored {
            file,
            handle,
            offset,
            seed,
            ..
        } => Op::Write {
            file,
            handle,
            offset,
            len: n as u32,
            seed,
        },
        _ => op.clone(),
    }
}
