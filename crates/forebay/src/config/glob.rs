//! Globs: patterns over whole paths, without a library for regular expressions, whose tables every program under the preload
//! library would load.
//!
//! `*` and `?` stay within one name, `**` crosses directories where it stands for whole ones, `{a,b}` and `[a-z]` are
//! alternatives, `\` takes the next character as it is. Tests compare with the crate `globset`, separators being literal.

use std::iter::Peekable;
use std::path::Path;
use std::str::Chars;

use std::os::unix::ffi::OsStrExt;

/// A pattern, ready to be compared: a program for a machine that is in many places at once, so that the time is that of the
/// path's length, whatever the pattern.
#[derive(Clone, Debug)]
pub struct Glob {
    steps: Vec<Step>,
}

#[derive(Clone, Debug)]
enum Step {
    /// Takes one character.
    One(Set),
    /// Goes on at both places.
    Both(usize, usize),
    /// Goes on elsewhere.
    Jump(usize),
    /// The whole path has matched, should this be its end.
    End,
}

#[derive(Clone, Debug)]
enum Set {
    All,
    NotSlash,
    Only(char),
    /// One of the ranges, or none of them.
    Class(bool, Vec<(char, char)>),
}

impl Set {
    /// `None` is a byte that begins no character.
    fn has(&self, found: Option<char>) -> bool {
        match self {
            Set::All => true,
            Set::NotSlash => found != Some('/'),
            Set::Only(wanted) => found == Some(*wanted),
            Set::Class(negated, ranges) => {
                let within = |c| ranges.iter().any(|&(from, to)| (from..=to).contains(&c));
                found.is_some_and(within) != *negated
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Token {
    One(Set),
    Star,
    /// `**/` at the beginning.
    AnyAbove,
    /// `/**` at the end.
    AnyBelow,
    /// `/**/`.
    AnyBetween,
    Either(Vec<Vec<Token>>),
}

impl Glob {
    /// Reads a pattern; the error is what is wrong with it.
    pub fn new(pattern: &str) -> Result<Self, String> {
        let tokens = Parser::of(pattern).parse()?;
        let mut glob = Self { steps: Vec::new() };
        match tokens.as_slice() {
            [Token::AnyAbove] => glob.many(Set::All),
            tokens => glob.put_all(tokens),
        }
        glob.steps.push(Step::End);
        Ok(glob)
    }

    fn put_all(&mut self, tokens: &[Token]) {
        for token in tokens {
            self.put(token);
        }
    }

    fn put(&mut self, token: &Token) {
        match token {
            Token::One(set) => self.steps.push(Step::One(set.clone())),
            Token::Star => self.many(Set::NotSlash),
            Token::AnyAbove => self.perhaps_directories(),
            Token::AnyBelow => {
                self.steps.push(Step::One(Set::Only('/')));
                self.many(Set::All);
            }
            Token::AnyBetween => {
                self.steps.push(Step::One(Set::Only('/')));
                self.perhaps_directories();
            }
            Token::Either(ways) => {
                let ways: Vec<_> = ways.iter().filter(|way| !is_empty(way)).collect();
                let mut ends = Vec::new();
                for (index, way) in ways.iter().enumerate() {
                    let is_last = index + 1 == ways.len();
                    let at = self.steps.len();
                    if !is_last {
                        self.steps.push(Step::Both(at + 1, 0));
                    }
                    self.put_all(way);
                    if !is_last {
                        ends.push(self.steps.len());
                        self.steps.push(Step::Jump(0));
                        self.steps[at] = Step::Both(at + 1, self.steps.len());
                    }
                }
                for at in ends {
                    self.steps[at] = Step::Jump(self.steps.len());
                }
            }
        }
    }

    /// Any number of a set's characters.
    fn many(&mut self, set: Set) {
        let at = self.steps.len();
        self.steps.push(Step::Both(at + 1, at + 3));
        self.steps.push(Step::One(set));
        self.steps.push(Step::Jump(at));
    }

    /// Nothing, or anything that ends in a slash.
    fn perhaps_directories(&mut self) {
        let at = self.steps.len();
        self.steps.push(Step::Both(at + 1, at + 5));
        self.many(Set::All);
        self.steps.push(Step::One(Set::Only('/')));
    }

    /// Whether the pattern is one of the whole path.
    pub fn is_match(&self, path: &Path) -> bool {
        let mut here = vec![false; self.steps.len()];
        let mut next = here.clone();
        self.go(&mut here, 0);
        for found in characters(path.as_os_str().as_bytes()) {
            next.fill(false);
            for (at, step) in self.steps.iter().enumerate() {
                if let (true, Step::One(set)) = (here[at], step)
                    && set.has(found)
                {
                    self.go(&mut next, at + 1);
                }
            }
            std::mem::swap(&mut here, &mut next);
        }
        here[self.steps.len() - 1]
    }

    /// Enters a step, and those that follow without taking anything.
    fn go(&self, places: &mut [bool], at: usize) {
        if std::mem::replace(&mut places[at], true) {
            return;
        }
        match self.steps[at] {
            Step::Both(one, other) => {
                self.go(places, one);
                self.go(places, other);
            }
            Step::Jump(to) => self.go(places, to),
            Step::One(_) | Step::End => {}
        }
    }
}

/// Whether a way of `{}` is none at all.
fn is_empty(way: &[Token]) -> bool {
    way.iter().all(|token| match token {
        Token::Either(ways) => ways.iter().all(|way| is_empty(way)),
        _ => false,
    })
}

/// A path's characters; `None` for bytes that are part of none.
fn characters(path: &[u8]) -> impl Iterator<Item = Option<char>> {
    path.utf8_chunks().flat_map(|chunk| {
        let broken = chunk.invalid().iter().map(|_| None);
        chunk.valid().chars().map(Some).chain(broken)
    })
}

struct Parser<'a> {
    rest: Peekable<Chars<'a>>,
    /// The character before the one that was taken last.
    before: Option<char>,
    last: Option<char>,
    /// Ways of `{}` that are open, above the pattern itself.
    ways: Vec<Vec<Token>>,
    /// Where the ways of each begin.
    open: Vec<usize>,
}

impl<'a> Parser<'a> {
    fn of(pattern: &'a str) -> Self {
        Parser {
            rest: pattern.chars().peekable(),
            before: None,
            last: None,
            ways: vec![Vec::new()],
            open: Vec::new(),
        }
    }

    fn take(&mut self) -> Option<char> {
        self.before = self.last;
        self.last = self.rest.next();
        self.last
    }

    fn tokens(&mut self) -> &mut Vec<Token> {
        self.ways.last_mut().expect("there is one: the pattern")
    }

    fn push(&mut self, token: Token) {
        self.tokens().push(token);
    }

    fn parse(mut self) -> Result<Vec<Token>, String> {
        while let Some(c) = self.take() {
            match c {
                '?' => self.push(Token::One(Set::NotSlash)),
                '*' => self.star(),
                '[' => self.class()?,
                '{' => {
                    self.open.push(self.ways.len());
                    self.ways.push(Vec::new());
                }
                '}' => {
                    let begin = self.open.pop().ok_or("a } without its {")?;
                    let ways = self.ways.drain(begin..).collect();
                    self.push(Token::Either(ways));
                }
                ',' if !self.open.is_empty() => self.ways.push(Vec::new()),
                '\\' => {
                    let literal = self.take().ok_or("a \\ at the end")?;
                    self.push(Token::One(Set::Only(literal)));
                }
                c => self.push(Token::One(Set::Only(c))),
            }
        }
        if !self.open.is_empty() {
            return Err("a { without its }".to_owned());
        }
        Ok(self.ways.swap_remove(0))
    }

    fn star(&mut self) {
        let before = self.before;
        if self.rest.peek() != Some(&'*') {
            return self.push(Token::Star);
        }
        self.take();
        let next = self.rest.peek().copied();
        if self.tokens().is_empty() {
            if !matches!(next, None | Some('/')) {
                return self.two_stars();
            }
            self.take();
            return self.push(Token::AnyAbove);
        }
        let within = self.ways.len() >= 2;
        let begins = before == Some('/') || within && matches!(before, Some(',' | '{'));
        let ends = next.is_none() || within && matches!(next, Some(',' | '}'));
        if !begins || !(ends || next == Some('/')) {
            return self.two_stars();
        }
        if next.is_none() || next == Some('/') {
            self.take();
        }
        // In place of the slash before.
        let kind = match self.tokens().pop() {
            Some(same @ (Token::AnyAbove | Token::AnyBelow)) => same,
            _ if ends => Token::AnyBelow,
            _ => Token::AnyBetween,
        };
        self.push(kind);
    }

    /// `**` where it stands for no directories is as good as one.
    fn two_stars(&mut self) {
        self.push(Token::Star);
        self.push(Token::Star);
    }

    fn class(&mut self) -> Result<(), String> {
        let negated = matches!(self.rest.peek(), Some('!' | '^'));
        if negated {
            self.take();
        }
        let mut ranges: Vec<(char, char)> = Vec::new();
        let mut in_range = false;
        loop {
            let c = self.take().ok_or("a [ without its ]")?;
            match (c, ranges.last_mut()) {
                (']', Some(_)) => break,
                ('-', Some(_)) if !in_range => in_range = true,
                (c, Some(range)) if in_range => {
                    range.1 = c;
                    if c < range.0 {
                        return Err(format!("{}-{c} is no range", range.0));
                    }
                    in_range = false;
                }
                (c, _) => ranges.push((c, c)),
            }
        }
        if in_range {
            ranges.push(('-', '-'));
        }
        self.push(Token::One(Set::Class(negated, ranges)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use globset::GlobBuilder;
    use proptest::prelude::*;

    fn theirs(pattern: &str) -> Option<globset::GlobMatcher> {
        let mut builder = GlobBuilder::new(pattern);
        let glob = builder.literal_separator(true).build().ok()?;
        // What it accepts here and cannot compile would end it.
        std::panic::catch_unwind(|| glob.compile_matcher()).ok()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]
        #[test]
        fn as_globset_has_it(
            pattern in "(/|\\*\\*/|\\*|\\?|[ab]|\\.|\\{|\\}|,|\\[a-b\\]|\\[!a\\]|/\\*\\*|\\\\|-|\\[|\\]){1,9}",
            paths in proptest::collection::vec("[/ab.,*-]{0,8}", 24),
        ) {
            let ours = Glob::new(&pattern);
            match (theirs(&pattern), ours) {
                (Some(theirs), Ok(ours)) => {
                    for path in &paths {
                        prop_assert_eq!(ours.is_match(Path::new(path)), theirs.is_match(path), "{} on {}", pattern, path);
                    }
                }
                (theirs, ours) => prop_assert_eq!(theirs.is_some(), ours.is_ok(), "{}", pattern),
            }
        }
    }

    #[test]
    fn characters_are_whole_and_bytes_may_be_none() {
        use std::ffi::OsStr;
        let is_match = |pattern: &str, path: &[u8]| {
            Glob::new(pattern)
                .unwrap()
                .is_match(Path::new(OsStr::from_bytes(path)))
        };
        assert!(is_match("/?", "/é".as_bytes()));
        assert!(is_match("/[à-ü]x", "/éx".as_bytes()));
        assert!(!is_match("/[!à-ü]", "/é".as_bytes()));
        assert!(is_match("/?.log", b"/\xff.log"));
        assert!(is_match("/**/x", b"/\xff\n/x"));
        assert!(!is_match("/[a-z]", b"/\xff"));
        assert!(is_match("/[!a-z]", b"/\xff"));
    }

    #[test]
    fn a_long_pattern_takes_no_long_time() {
        let pattern = format!("/{}b", "{*,a*}".repeat(40));
        let path = format!("/{}", "a".repeat(400));
        assert!(!Glob::new(&pattern).unwrap().is_match(Path::new(&path)));
    }
}
