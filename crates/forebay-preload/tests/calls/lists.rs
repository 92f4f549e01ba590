//! The lists in `calls/`.

use std::collections::BTreeSet;
use std::path::Path;

/// Those that say of a name what becomes of it.
pub const ALL: [&str; 4] = ["wrapped.txt", "passed.txt", "unsupported.txt", UNRELATED];
/// The one that gives no reasons.
const UNRELATED: &str = "unrelated.txt";

pub fn text(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("calls")
        .join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// All words but those of comments.
pub fn words(file: &str) -> Vec<String> {
    let text = text(file);
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .flat_map(str::split_whitespace)
        .map(str::to_owned)
        .collect()
}

/// The names of a list, each of which must have its reason.
pub fn listed(file: &str) -> BTreeSet<String> {
    if file == UNRELATED {
        return words(file).into_iter().collect();
    }
    let text = text(file);
    let names: Vec<_> = entries(file, &text).collect();
    let set: BTreeSet<_> = names.iter().cloned().collect();
    assert_eq!(set.len(), names.len(), "{file} has a name twice");
    set
}

/// The names below a heading that begins so, up to the end.
pub fn section(file: &str, heading: &str) -> Vec<String> {
    let text = text(file);
    let (_, below) = text.split_once(heading).expect("a section");
    let (_, below) = below.split_once('\n').expect("lines");
    entries(file, below).collect()
}

fn entries<'a>(file: &'a str, text: &'a str) -> impl Iterator<Item = String> + 'a {
    let lines = text.lines();
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(move |line| {
        let (symbol, what) = line.split_once(char::is_whitespace).expect("symbol  what");
        assert!(
            !what.trim().is_empty(),
            "{file}: {symbol} does not say what"
        );
        symbol.to_owned()
    })
}
