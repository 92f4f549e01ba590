//! A command line of `forebay run` without options, read without their definition: to build that takes 60 to 100 us of each command.

use std::ffi::OsString;

use super::{LINGER_SECONDS, Run};
use crate::settings::Settings;

impl Run {
    /// What is run by these words, those after `run`; `None` where there may be options among them, or nothing to run.
    pub fn plain(words: &[OsString]) -> Option<Self> {
        let command = match words.split_first()? {
            (first, rest) if first == "--" => rest,
            (first, _) if first.as_encoded_bytes().starts_with(b"-") => return None,
            _ => words,
        };
        (!command.is_empty()).then(|| Self {
            dir: Vec::new(),
            report: None,
            json: false,
            require: false,
            linger: LINGER_SECONDS,
            settings: Settings::default(),
            command: command.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Cli, Command};
    use super::*;
    use clap::Parser;

    /// Whatever is read without the definition is read as by it.
    #[test]
    fn the_definition_says_the_same() {
        let words = [
            "--", "-", "-x", "--json", "--mem=1", "", "true", "run", "help", "a b", "a=b",
        ];
        let mut lines = vec![Vec::new()];
        let mut plain = 0;
        for _ in 0..3 {
            lines = lines
                .iter()
                .flat_map(|line| {
                    words.map(|word| [line.as_slice(), &[OsString::from(word)]].concat())
                })
                .collect();
            for line in &lines {
                let Some(read) = Run::plain(line) else {
                    continue;
                };
                plain += 1;
                let whole = ["forebay", "run"].map(OsString::from).into_iter();
                let defined = Cli::try_parse_from(whole.chain(line.iter().cloned()));
                let Ok(Cli {
                    command: Command::Run(defined),
                    ..
                }) = defined
                else {
                    panic!("{line:?}: {defined:?}");
                };
                assert_eq!(format!("{read:?}"), format!("{defined:?}"), "{line:?}");
            }
        }
        assert!(plain > 900, "{plain}");
    }

    #[test]
    fn what_may_be_an_option_is_left() {
        for line in [&["--json", "true"][..], &["-h"], &["-"], &["--"], &[]] {
            let words: Vec<_> = line.iter().map(OsString::from).collect();
            assert!(Run::plain(&words).is_none(), "{line:?}");
        }
    }
}
