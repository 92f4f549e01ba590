//! Sizes above the limits, each with the lines it may have. They only go down.
//!
//! One entry a line: kind, name, lines, parted by blanks; `#` begins a comment. A new entry is
//! written by hand, so that a review sees it; `cargo xtask tidy --bless` lowers entries to today's
//! sizes and drops those that are no longer needed, and never raises or adds one.

use std::collections::BTreeMap;
use std::fmt;

use super::size::{Sizes, Subject};

/// What `xtask/ratchet.txt` holds.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Ratchet {
    entries: BTreeMap<Subject, usize>,
}

impl Ratchet {
    /// Reads the text of the file.
    pub fn parse(text: &str) -> Result<Ratchet, String> {
        let mut ratchet = Ratchet::default();
        for (index, line) in text.lines().enumerate() {
            let content = line.split('#').next().unwrap_or("").trim();
            if content.is_empty() {
                continue;
            }
            let Some((subject, lines)) = parse_entry(content) else {
                return Err(format!(
                    "{}:{}: expected `file|whole|function NAME LINES`, found `{content}`",
                    super::RATCHET_PATH,
                    index + 1
                ));
            };
            ratchet.entries.insert(subject, lines);
        }
        Ok(ratchet)
    }

    /// Lines that the subject may have beyond the general limit, if it is listed.
    pub fn allowed(&self, subject: &Subject) -> Option<usize> {
        self.entries.get(subject).copied()
    }

    /// The same ratchet with every entry lowered to today's size, and without those within limits.
    pub fn lowered(&self, sizes: &Sizes) -> Ratchet {
        let lower = |(subject, allowed): (&Subject, &usize)| {
            let today = sizes.get(subject)?.lines.min(*allowed);
            (today > subject.limit()).then(|| (subject.clone(), today))
        };
        Ratchet {
            entries: self.entries.iter().filter_map(lower).collect(),
        }
    }

    /// Entries that allow more than is needed.
    pub fn notes(&self, sizes: &Sizes) -> Vec<String> {
        let lowered = self.lowered(sizes);
        let loose = self.entries.iter().filter_map(|(subject, allowed)| {
            let name = subject.name();
            match lowered.allowed(subject) {
                None => Some(format!("ratchet entry `{name}` is no longer needed")),
                Some(today) if today < *allowed => Some(format!(
                    "ratchet entry `{name}` can go from {allowed} to {today}"
                )),
                Some(_) => None,
            }
        });
        loose
            .map(|note| format!("{note}: cargo xtask tidy --bless"))
            .collect()
    }
}

impl fmt::Display for Ratchet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "# Sizes above the limits of `cargo xtask tidy`, in lines. They only go down."
        )?;
        writeln!(f, "# kind (file, whole, function), name, lines allowed")?;
        for (subject, lines) in &self.entries {
            writeln!(f, "{} {} {lines}", subject.kind(), subject.name())?;
        }
        Ok(())
    }
}

impl Subject {
    fn kind(&self) -> &'static str {
        match self {
            Subject::File(_) => "file",
            Subject::Whole(_) => "whole",
            Subject::Function(_) => "function",
        }
    }

    fn name(&self) -> &str {
        match self {
            Subject::File(name) | Subject::Whole(name) | Subject::Function(name) => name,
        }
    }
}

fn parse_entry(content: &str) -> Option<(Subject, usize)> {
    let mut words = content.split_whitespace();
    let (kind, name, lines) = (words.next()?, words.next()?.to_string(), words.next()?);
    let subject = match kind {
        "file" => Subject::File(name),
        "whole" => Subject::Whole(name),
        "function" => Subject::Function(name),
        _ => return None,
    };
    let lines = lines.parse().ok()?;
    words.next().is_none().then_some((subject, lines))
}
