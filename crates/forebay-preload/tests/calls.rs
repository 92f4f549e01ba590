//! What the library exports is what `calls/*.txt` say.

mod library;

use std::collections::BTreeSet;
use std::path::Path;

fn word<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word[..N].copy_from_slice(&bytes[at..at + N]);
    u64::from_le_bytes(word)
}

/// The functions that a shared object defines for others: its dynamic symbols (ELF, 64 bits).
fn exported(library: &Path) -> BTreeSet<String> {
    let bytes = std::fs::read(library).expect("readable");
    let (sections, size, count) = (
        word::<8>(&bytes, 0x28),
        word::<2>(&bytes, 0x3a),
        word::<2>(&bytes, 0x3c),
    );
    let section = |index: u64| {
        let at = (sections + index * size) as usize;
        let kind = word::<4>(&bytes, at + 4);
        (
            kind,
            word::<8>(&bytes, at + 0x18) as usize,
            word::<8>(&bytes, at + 0x20) as usize,
            word::<4>(&bytes, at + 0x28),
        )
    };
    const DYNAMIC_SYMBOLS: u64 = 11;
    let (_, start, len, names) = (0..count)
        .map(section)
        .find(|s| s.0 == DYNAMIC_SYMBOLS)
        .expect("symbols");
    let names = section(names).1;
    (start..start + len)
        .step_by(24)
        .filter(|&symbol| word::<2>(&bytes, symbol + 6) != 0 && bytes[symbol + 4] & 15 == 2)
        .map(|symbol| {
            let name = &bytes[names + word::<4>(&bytes, symbol) as usize..];
            let end = name.iter().position(|&byte| byte == 0).expect("names end");
            String::from_utf8_lossy(&name[..end]).into_owned()
        })
        .collect()
}

fn listed(file: &str) -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("calls")
        .join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let lines = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (symbol, what) = line.split_once(char::is_whitespace).expect("symbol  what");
            assert!(
                !what.trim().is_empty(),
                "{file}: {symbol} does not say what"
            );
            symbol.to_owned()
        })
        .collect()
}

#[test]
fn what_is_exported_is_listed() {
    let (wrapped, passed) = (listed("wrapped.txt"), listed("passed.txt"));
    let twice: Vec<_> = wrapped.intersection(&passed).collect();
    assert!(twice.is_empty(), "listed twice: {twice:?}");
    let all: BTreeSet<_> = wrapped.union(&passed).cloned().collect();
    let exported = exported(&library::built());
    let missing: Vec<_> = all.difference(&exported).collect();
    assert!(missing.is_empty(), "listed and not exported: {missing:?}");
    let unlisted: Vec<_> = exported.difference(&all).collect();
    assert!(unlisted.is_empty(), "exported and not listed: {unlisted:?}");
    let unsupported = listed("unsupported.txt");
    let both: Vec<_> = unsupported.intersection(&exported).collect();
    assert!(
        both.is_empty(),
        "exported and said to be unsupported: {both:?}"
    );
}

/// A name of libc's without what distinguishes its variants.
fn stem(name: &str) -> &str {
    let prefixes = ["__isoc99_", "__isoc23_", "_IO_", "__", "_"];
    let name = prefixes
        .iter()
        .find_map(|prefix| name.strip_prefix(prefix))
        .unwrap_or(name);
    let name = name.strip_suffix("_chk").unwrap_or(name);
    let name = name.strip_suffix("_unlocked").unwrap_or(name);
    name.strip_suffix("64").unwrap_or(name)
}

/// stdio has many names for one function: whichever a program calls, it is one of ours.
#[test]
fn all_names_of_stdio_are_listed() {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("readable");
    let libc = maps
        .lines()
        .find_map(|line| {
            line.split_whitespace()
                .find(|part| part.contains("/libc.so"))
        })
        .expect("libc");
    let passed = listed("passed.txt");
    let of_stdio = ["fopen", "freopen", "fdopen", "fclose", "popen"];
    let standard = std::fs::read_to_string("calls/passed.txt").expect("readable");
    let (_, standard) = standard
        .split_once("# stdio on a standard stream")
        .expect("a section");
    let standard = standard.lines().filter_map(|line| line.split(' ').next());
    let stems: BTreeSet<_> = standard.chain(of_stdio).map(stem).collect();
    let all = exported(Path::new(libc));
    assert!(all.contains("printf"), "libc's names are not found");
    let missing: Vec<_> = all
        .iter()
        .filter(|name| stems.contains(stem(name)) && !passed.contains(*name))
        .collect();
    assert!(missing.is_empty(), "not listed: {missing:?}");
}
