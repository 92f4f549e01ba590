//! What all commands share in speaking: sizes, colours, JSON, progress.
//!
//! Results go to the standard output, everything else to the standard error. A reader that goes away is no error of
//! ours: the rest is dropped without a word, and the exit code is that of the work. Any other failure to write is
//! reported at the end.

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::path::Path;

use forebay::member::left::LeftFile;
use serde::Serialize;

use crate::failure::Failure;

/// Version of what `--json` prints; a field that changes its meaning raises it, a new field does not.
pub const SCHEMA: u32 = 1;

/// How a word stands out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// A heading.
    Strong,
    /// All is well.
    Good,
    /// To be looked at.
    Doubtful,
    /// Not well.
    Bad,
    /// Beside the point.
    Faint,
}

/// The standard output.
pub struct Output {
    stdout: BufWriter<Stdout>,
    colors: bool,
    failed: Option<io::Error>,
}

impl Output {
    /// `plain` switches colours off; without it a terminal gets them.
    pub fn new(plain: bool) -> Self {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self {
            colors: !plain && !dumb && io::stdout().is_terminal(),
            stdout: BufWriter::new(io::stdout()),
            failed: None,
        }
    }

    /// Writes one line. What could speak to the terminal is escaped, but for our own colours.
    pub fn line(&mut self, text: impl Display) {
        let text = tame(&text.to_string(), self.colors);
        self.plain_line(&text);
    }

    fn plain_line(&mut self, text: &str) {
        if self.failed.is_none() {
            self.failed = writeln!(self.stdout, "{text}").err();
        }
    }

    /// Writes text or bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) {
        if self.failed.is_none() {
            self.failed = self.stdout.write_all(bytes).err();
        }
    }

    /// Writes a value as indented JSON.
    pub fn json(&mut self, value: &impl Serialize) {
        match serde_json::to_string_pretty(value) {
            Ok(text) => self.plain_line(&text),
            Err(error) => self.failed = self.failed.take().or(Some(error.into())),
        }
    }

    /// Writes a value as JSON on one line.
    pub fn json_line(&mut self, value: &impl Serialize) {
        match serde_json::to_string(value) {
            Ok(text) => self.plain_line(&text),
            Err(error) => self.failed = self.failed.take().or(Some(error.into())),
        }
    }

    /// Brings what was written so far to the reader. `false` when there is none any more.
    pub fn flush(&mut self) -> bool {
        if self.failed.is_none() {
            self.failed = self.stdout.flush().err();
        }
        self.failed.is_none()
    }

    /// The text in a style, where colours are wanted.
    pub fn paint(&self, style: Style, text: impl Display) -> String {
        let code = match style {
            Style::Strong => 1,
            Style::Good => 32,
            Style::Doubtful => 33,
            Style::Bad => 31,
            Style::Faint => 2,
        };
        if self.colors {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_string()
        }
    }

    /// Ends the output.
    ///
    /// # Errors
    /// When something could not be written, unless the reader just went away.
    pub fn finish(&mut self) -> Result<(), Failure> {
        self.flush();
        match &self.failed {
            Some(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::Failed(
                format!("the output cannot be written: {error}; see where it is sent to"),
            )),
            _ => Ok(()),
        }
    }
}

/// Whether colours are switched off, by option or environment. Asked before the command line is parsed, because its
/// messages have colours too.
pub fn wants_no_color(mut arguments: impl Iterator<Item = OsString>) -> bool {
    let by_environment = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    by_environment || arguments.any(|argument| argument == "--no-color")
}

/// A line for people on the standard error.
pub fn note(text: impl Display) {
    // A reader that closed it does not want it.
    let _ = writeln!(io::stderr(), "forebay: {}", tame(&text.to_string(), false));
}

/// A path as it is shown to people: anybody may have named the file, and a terminal obeys control characters.
pub fn path(path: &Path) -> String {
    let shown = path.display().to_string();
    shown.chars().flat_map(visible).collect()
}

/// A text with control characters escaped, but for the ends of lines and, if wanted, the colours of [`Output::paint`].
fn tame(text: &str, colors: bool) -> String {
    if !text.chars().any(char::is_control) {
        return text.to_owned();
    }
    let mut tamed = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if let Some(color) = colors.then(|| color_at(rest)).flatten() {
            tamed.push_str(color);
            rest = &rest[color.len()..];
            continue;
        }
        match first {
            '\n' | '\t' => tamed.push(first),
            _ => tamed.extend(visible(first)),
        }
        rest = &rest[first.len_utf8()..];
    }
    tamed
}

/// One of the sequences of [`Output::paint`] at the beginning of a text.
fn color_at(text: &str) -> Option<&str> {
    let digits = text.strip_prefix("\x1b[")?;
    let end = digits.find('m')?;
    let is_color = end <= 2 && digits[..end].bytes().all(|byte| byte.is_ascii_digit());
    is_color.then(|| &text[..end + 3])
}

fn visible(c: char) -> impl Iterator<Item = char> {
    let (escaped, plain) = match c.is_control() {
        true => (Some(c.escape_default()), None),
        false => (None, Some(c)),
    };
    escaped.into_iter().flatten().chain(plain)
}

/// A line on the standard error that is rewritten while long work goes on, where that is a terminal.
pub struct Progress {
    on: bool,
}

impl Progress {
    /// Nothing is shown yet.
    pub fn new() -> Self {
        let on = io::stderr().is_terminal();
        Self { on }
    }

    /// Whether anybody sees it.
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Shows this instead of what was shown before.
    pub fn show(&self, text: impl Display) {
        if self.on {
            let text = tame(&text.to_string(), false);
            let _ = write!(io::stderr(), "\r\x1b[Kforebay: {text}");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.on {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

/// Bytes for people: three digits or so, binary units.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1024.0;
    let mut unit = 0;
    // What would be shown as 1024 is one of the next unit.
    while value >= 1023.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(value < 99.95);
    format!("{value:.digits$} {}", UNITS[unit])
}

/// "1 file", "2 files".
pub fn count(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

/// Files that are named one by one for people; JSON has all.
const LEFT_SHOWN: usize = 20;

/// Files that were left to the kernel, the last ones first, a line each.
pub fn left_lines(files: &[LeftFile]) -> Vec<String> {
    let line = |file: &LeftFile| {
        let times = match file.times {
            0 | 1 => String::new(),
            times => format!(" ({times} times)"),
        };
        format!("{}: {}{times}", path(&file.path), file.reason)
    };
    let mut lines: Vec<_> = files.iter().rev().take(LEFT_SHOWN).map(line).collect();
    if files.len() > LEFT_SHOWN {
        let more = files.len() - LEFT_SHOWN;
        lines.push(format!("and {} more, in --json", count(more, "file")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_as_people_read_them() {
        let table = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (1024 * 1024 - 1, "1.0 MiB"),
            (100 << 20, "100 MiB"),
            (u64::MAX, "16.0 EiB"),
        ];
        for (count, text) in table {
            assert_eq!(bytes(count), text);
        }
        assert_eq!(
            (count(1, "file"), count(0, "file")),
            ("1 file".into(), "0 files".into())
        );
    }

    #[test]
    fn names_do_not_speak_to_the_terminal() {
        let evil = "a\x1b]0;title\x07\u{9b}31m\rb\nc";
        let shown = path(Path::new(evil));
        assert_eq!(shown, r"a\u{1b}]0;title\u{7}\u{9b}31m\rb\nc");
        let colored = "\x1b[31mbad\x1b[0m \x1b[2Jx\ny";
        assert_eq!(tame(colored, true), "\x1b[31mbad\x1b[0m \\u{1b}[2Jx\ny");
        assert!(!tame(colored, false).contains('\x1b'));
        assert_eq!(path(Path::new("plain ä")), "plain ä");
    }

    #[test]
    fn the_option_switches_colors_off() {
        assert!(wants_no_color(
            ["stat", "--no-color"].map(OsString::from).into_iter()
        ));
    }
}
