//! Rule *size*: files and functions stay short enough to be read in one go.
//!
//! Half of the functions in the code bases we learn from have fewer than eight lines and 98 % have
//! fewer than 70. What exceeds a limit is listed with its size in `xtask/ratchet.txt`, where sizes
//! only go down (see [`super::ratchet`]).

use std::collections::BTreeMap;

use super::Finding;
use super::ratchet::Ratchet;
use super::source::Source;
use super::tree::Tree;

const RULE: &str = "size";
/// Lines of a file, its test code not counted.
pub const FILE_LINES_MAX: usize = 500;
/// Lines of a file with its test code, and of a file that is nothing but tests.
pub const FILE_WITH_TESTS_LINES_MAX: usize = 900;
/// Lines of a function, from `fn` to its closing brace.
pub const FUNCTION_LINES_MAX: usize = 70;

/// What has a size, as named in the ratchet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// A file without its test code.
    File(String),
    /// A file with its test code.
    Whole(String),
    /// The longest function of this name in a file: `path::name`.
    Function(String),
}

impl Subject {
    /// Lines it may have.
    pub fn limit(&self) -> usize {
        match self {
            Subject::File(_) => FILE_LINES_MAX,
            Subject::Whole(_) => FILE_WITH_TESTS_LINES_MAX,
            Subject::Function(_) => FUNCTION_LINES_MAX,
        }
    }

    fn remedy(&self) -> &'static str {
        match self {
            Subject::File(_) => {
                "split it by what its parts are for; `x.rs` becomes the front of `x/`"
            }
            Subject::Whole(_) => "move its tests to `tests.rs` beside it, or split them by subject",
            Subject::Function(_) => {
                "let one function decide and return a plan, and leaves act on it"
            }
        }
    }
}

/// A size and where it was taken.
#[derive(Clone, Debug)]
pub struct Size {
    /// In lines.
    pub lines: usize,
    path: String,
    line: usize,
}

/// All sizes of a tree.
pub type Sizes = BTreeMap<Subject, Size>;

/// Measures every Rust file and function.
pub fn measure(tree: &Tree) -> Sizes {
    let mut sizes = Sizes::new();
    for source in tree.sources() {
        let mut note = |subject, lines, line| {
            let size = Size {
                lines,
                path: source.path.to_string(),
                line,
            };
            let known = sizes.entry(subject).or_insert_with(|| size.clone());
            if known.lines < lines {
                *known = size;
            }
        };
        let path = source.path.to_string();
        let all = source.text.lines().count();
        note(Subject::Whole(path.clone()), all, 1);
        if !source.is_test_file() {
            note(Subject::File(path.clone()), all - test_lines(&source), 1);
        }
        for (name, first, last) in functions(&source) {
            note(
                Subject::Function(format!("{path}::{name}")),
                last - first + 1,
                first,
            );
        }
    }
    sizes
}

/// Compares sizes with limits and ratchet.
pub fn check(sizes: &Sizes, ratchet: &Ratchet) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (subject, size) in sizes {
        let allowed = ratchet.allowed(subject).unwrap_or(0).max(subject.limit());
        if size.lines <= allowed {
            continue;
        }
        let what = match subject {
            Subject::File(_) => "the file".to_string(),
            Subject::Whole(_) => "the file with its tests".to_string(),
            Subject::Function(name) => format!("`{}`", name.rsplit("::").next().unwrap_or(name)),
        };
        findings.push(Finding {
            path: size.path.clone(),
            line: size.line,
            rule: RULE,
            message: format!("{what} has {} lines, {allowed} are allowed", size.lines),
            remedy: subject.remedy().to_string(),
        });
    }
    findings
}

fn test_lines(source: &Source<'_>) -> usize {
    let mut covered = 0;
    let mut last = 0;
    for range in source.tests() {
        let Some(end) = source.tokens.get(range.end.saturating_sub(1)) else {
            continue;
        };
        let first = source.tokens[range.start].line.max(last + 1);
        covered += (end.line + 1).saturating_sub(first);
        last = last.max(end.line);
    }
    covered
}

/// Name, first and last line of every function with a body.
fn functions<'a>(source: &Source<'a>) -> Vec<(&'a str, usize, usize)> {
    let mut found = Vec::new();
    for (index, token) in source.tokens.iter().enumerate() {
        let name = source.word(index + 1);
        // `fn(u32)` is a type, `fn $name` a pattern of a macro.
        let is_named = name.starts_with(|c: char| c.is_alphabetic() || c == '_');
        if token.text != "fn" || !is_named {
            continue;
        }
        let mut at = index + 2;
        while !matches!(source.word(at), "{" | ";" | "") {
            at = if matches!(source.word(at), "(" | "[") {
                source.closing(at)
            } else {
                at
            } + 1;
        }
        if source.word(at) == "{"
            && let Some(end) = source.tokens.get(source.closing(at))
        {
            found.push((name, token.line, end.line));
        }
    }
    found
}
