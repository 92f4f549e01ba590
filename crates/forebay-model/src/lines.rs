//! Lists of operations as text: one JSON object a line, so that a failing list can be kept in a
//! file, handed to another process, and cut with an editor. Empty lines and lines that begin with
//! `#` are passed over.

use crate::Op;

/// A line that is not an operation.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {source}")]
pub struct LineError {
    /// Counted from 1.
    pub line: usize,
    source: serde_json::Error,
}

/// One line an operation, each ended by a newline.
pub fn to_lines(ops: &[Op]) -> String {
    let line = |op| serde_json::to_string(op).expect("an operation is plain data") + "\n";
    ops.iter().map(line).collect()
}

/// Reads what [`to_lines`] wrote.
pub fn from_lines(text: &str) -> Result<Vec<Op>, LineError> {
    let is_op = |line: &str| !line.trim().is_empty() && !line.starts_with('#');
    let parse = |(i, line)| {
        serde_json::from_str(line).map_err(|source| LineError {
            line: i + 1,
            source,
        })
    };
    text.lines()
        .enumerate()
        .filter(|(_, line)| is_op(line))
        .map(parse)
        .collect()
}
