//! A Rust file as tokens, with the few facts about it that the rules ask for.
//!
//! This is a scanner and no parser: it knows comments, literals, brackets and attributes, which is
//! what it takes to tell code from text and to find where an item ends. Macro bodies are read as
//! if they were code.

use std::ops::Range;

/// A token: a name, a literal, `::`, or one character of punctuation. Comments leave none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token<'a> {
    /// As written.
    pub text: &'a str,
    /// Line, counted from 1.
    pub line: usize,
}

/// A Rust file taken apart.
#[derive(Debug)]
pub struct Source<'a> {
    /// Relative to the root of the tree.
    pub path: &'a str,
    /// The whole text.
    pub text: &'a str,
    /// Its tokens.
    pub tokens: Vec<Token<'a>>,
}

/// Words that begin an item or statement in which a comma does not end it.
const BEGINNINGS: [&str; 21] = [
    "fn",
    "struct",
    "enum",
    "union",
    "impl",
    "trait",
    "unsafe",
    "async",
    "const",
    "static",
    "type",
    "use",
    "mod",
    "let",
    "macro_rules",
    "extern",
    "if",
    "while",
    "for",
    "loop",
    "match",
];

impl<'a> Source<'a> {
    /// Takes `text` apart.
    pub fn new(path: &'a str, text: &'a str) -> Self {
        Source {
            path,
            text,
            tokens: Scanner {
                text,
                at: 0,
                line: 1,
            }
            .collect(),
        }
    }

    /// The token's text, or nothing beyond the end.
    pub fn word(&self, index: usize) -> &'a str {
        self.tokens.get(index).map_or("", |token| token.text)
    }

    /// Whether the whole file is test code.
    pub fn is_test_file(&self) -> bool {
        let name = self.path.rsplit('/').next().unwrap_or(self.path);
        name == "tests.rs"
            || self
                .path
                .split('/')
                .any(|part| part == "tests" || part == "benches")
    }

    /// Ranges of tokens under an attribute whose own tokens satisfy `holds`, attribute included.
    /// An inner attribute (`#![...]`) covers the whole file.
    pub fn under_attribute(&self, holds: impl Fn(&[Token<'a>]) -> bool) -> Vec<Range<usize>> {
        let mut ranges = Vec::new();
        for hash in 0..self.tokens.len() {
            let inner = self.word(hash + 1) == "!";
            let open = hash + 1 + usize::from(inner);
            if self.word(hash) != "#" || self.word(open) != "[" {
                continue;
            }
            let close = self.closing(open);
            if !holds(&self.tokens[open + 1..close.min(self.tokens.len())]) {
                continue;
            }
            let end = if inner {
                self.tokens.len()
            } else {
                self.item_end(close + 1)
            };
            ranges.push(if inner { 0..end } else { hash..end });
        }
        ranges
    }

    /// Ranges of tokens that are compiled only into tests.
    pub fn tests(&self) -> Vec<Range<usize>> {
        self.under_attribute(|attribute| match attribute {
            [only] => only.text == "test",
            _ => is_cfg_with(attribute, |word| word == "test"),
        })
    }

    /// Index of the bracket that closes the one at `open`; the end of the file if none does.
    pub fn closing(&self, open: usize) -> usize {
        let mut depth = 0usize;
        for (index, token) in self.tokens.iter().enumerate().skip(open) {
            match token.text {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth == 0 {
                return index;
            }
        }
        self.tokens.len()
    }

    /// Index just after the item, statement, field or arm that begins at `start`.
    fn item_end(&self, start: usize) -> usize {
        let mut at = start;
        while self.word(at) == "#" && self.word(at + 1) == "[" {
            at = self.closing(at + 1) + 1;
        }
        if self.word(at) == "pub" {
            at = if self.word(at + 1) == "(" {
                self.closing(at + 1) + 1
            } else {
                at + 1
            };
        }
        let comma_ends = !BEGINNINGS.contains(&self.word(at));
        while at < self.tokens.len() {
            match self.word(at) {
                ";" => return at + 1,
                "," if comma_ends => return at + 1,
                "{" => return (self.closing(at) + 1).min(self.tokens.len()),
                "(" | "[" => at = self.closing(at),
                ")" | "]" | "}" => return at,
                _ => {}
            }
            at += 1;
        }
        self.tokens.len()
    }
}

/// Whether the tokens inside `#[...]` are a `cfg` that demands what `wanted` recognises. What stands in a `not` is not demanded, and an
/// `any` anywhere counts as no: such a condition can hold without the wanted word.
pub fn is_cfg_with(attribute: &[Token<'_>], wanted: impl Fn(&str) -> bool) -> bool {
    let is_cfg = attribute.first().is_some_and(|token| token.text == "cfg");
    let weak = attribute.iter().any(|token| token.text == "any");
    let mut demanded = Vec::new();
    let mut denied = 0usize;
    for (index, token) in attribute.iter().enumerate() {
        match token.text {
            "(" if denied > 0 || attribute[index - 1].text == "not" => denied += 1,
            ")" if denied > 0 => denied -= 1,
            word if denied == 0 => demanded.push(word),
            _ => {}
        }
    }
    is_cfg && !weak && demanded.into_iter().any(wanted)
}

/// Whether `index` lies in one of `ranges`.
pub fn within(ranges: &[Range<usize>], index: usize) -> bool {
    ranges.iter().any(|range| range.contains(&index))
}

struct Scanner<'a> {
    text: &'a str,
    at: usize,
    line: usize,
}

impl<'a> Scanner<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// Moves `length` bytes on and returns them.
    fn take(&mut self, length: usize) -> &'a str {
        let taken = &self.rest()[..length];
        self.at += length;
        self.line += taken.matches('\n').count();
        taken
    }

    fn skip_blanks_and_comments(&mut self) {
        loop {
            let rest = self.rest();
            let blank = rest.len() - rest.trim_start().len();
            let length = if blank > 0 {
                blank
            } else if rest.starts_with("//") {
                rest.find('\n').unwrap_or(rest.len())
            } else if rest.starts_with("/*") {
                block_comment_length(rest)
            } else {
                return;
            };
            self.take(length);
        }
    }
}

impl<'a> Iterator for Scanner<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        self.skip_blanks_and_comments();
        let line = self.line;
        let length = token_length(self.rest())?;
        Some(Token {
            text: self.take(length),
            line,
        })
    }
}

fn token_length(rest: &str) -> Option<usize> {
    let first = rest.chars().next()?;
    let name = name_length(rest);
    if name > 0 {
        return Some(prefixed_literal_length(rest, name).unwrap_or(name));
    }
    Some(match first {
        '"' => string_length(rest),
        '\'' => quote_length(rest),
        ':' if rest.starts_with("::") => 2,
        other => other.len_utf8(),
    })
}

/// Length of the name or number that `rest` begins with.
fn name_length(rest: &str) -> usize {
    rest.find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(rest.len())
}

/// Length of a literal with a prefix (`b"x"`, `r#"x"#`, `b'x'`) or of a raw name (`r#type`).
fn prefixed_literal_length(rest: &str, name: usize) -> Option<usize> {
    let (prefix, after) = rest.split_at(name);
    match prefix {
        "b" if after.starts_with('\'') => Some(name + quote_length(after)),
        "b" | "c" if after.starts_with('"') => Some(name + string_length(after)),
        "r" | "br" | "cr" => {
            let hashes = after.len() - after.trim_start_matches('#').len();
            let body = &after[hashes..];
            if !body.starts_with('"') {
                return (hashes == 1).then(|| name + 1 + name_length(body));
            }
            let end = format!("\"{}", "#".repeat(hashes));
            let inside = body[1..].find(&end).unwrap_or(body.len() - 1);
            Some((name + hashes + 1 + inside + end.len()).min(rest.len()))
        }
        _ => None,
    }
}

/// Length of the string literal that `rest` begins with.
fn string_length(rest: &str) -> usize {
    let mut escaped = false;
    for (index, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return index + 1,
            _ => {}
        }
    }
    rest.len()
}

/// Length of the character literal or lifetime that `rest` begins with.
fn quote_length(rest: &str) -> usize {
    let mut inside = rest[1..].chars();
    match (inside.next(), inside.next()) {
        (Some('\\'), Some(escaped)) => {
            let skip = 2 + escaped.len_utf8();
            rest[skip..]
                .find('\'')
                .map_or(rest.len(), |end| skip + end + 1)
        }
        (Some(c), Some('\'')) => c.len_utf8() + 2,
        _ => 1 + name_length(&rest[1..]),
    }
}

fn block_comment_length(rest: &str) -> usize {
    let mut depth = 0usize;
    let mut at = 0;
    while at < rest.len() {
        let here = &rest.as_bytes()[at..];
        if here.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if here.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}
