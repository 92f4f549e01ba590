//! What a write puts where, without the bytes themselves.

use std::rc::Rc;

use forebay_model::fill;

/// Bytes as a function of their position in the file.
#[derive(Clone)]
pub enum Value {
    /// Holes, and what is cut off.
    Zero,
    /// What [`fill`] makes of a seed, counting positions from `base`.
    Seed { seed: u32, base: u64 },
    /// What was found, from the file's beginning; zeros beyond.
    Found(Rc<Vec<u8>>),
}

impl Value {
    /// The bytes at `start`.
    pub fn copy_to(&self, start: u64, bytes: &mut [u8]) {
        match self {
            Value::Zero => bytes.fill(0),
            Value::Seed { seed, base } => fill(*seed, start - base, bytes),
            Value::Found(found) => {
                bytes.fill(0);
                let there = found.get(start as usize..).unwrap_or(&[]);
                let len = there.len().min(bytes.len());
                bytes[..len].copy_from_slice(&there[..len]);
            }
        }
    }

    /// Whether these bytes are at `start`.
    pub fn is(&self, start: u64, bytes: &[u8], scratch: &mut Vec<u8>) -> bool {
        if let Value::Zero = self {
            return bytes.iter().all(|&byte| byte == 0);
        }
        // Most that differ do so at once.
        let first = &mut [0; 8][..bytes.len().min(8)];
        self.copy_to(start, first);
        if *first != bytes[..first.len()] {
            return false;
        }
        scratch.resize(bytes.len(), 0);
        self.copy_to(start, scratch);
        scratch.as_slice() == bytes
    }

    /// For people.
    pub fn describe(&self) -> String {
        match self {
            Value::Zero => "zeros".into(),
            Value::Seed { seed, .. } => format!("write {seed}"),
            Value::Found(_) => "what an audit found".into(),
        }
    }
}
