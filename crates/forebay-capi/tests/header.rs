//! `forebay.h` and what is written of it say what the library has. With `TEST_BLESS=1` the header is written anew.

use std::path::Path;

/// The sources of the header, in its order.
const SOURCES: [&str; 9] = [
    "border",
    "session",
    "stats",
    "file",
    "view",
    "window",
    "pool",
    "store",
    "store/window",
];

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(name: &str) -> String {
    std::fs::read_to_string(package().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// What cbindgen makes of the sources, as a C programmer reads it: what is asked of the caller is a sentence of the function's.
fn generated() -> String {
    let config =
        cbindgen::Config::from_file(package().join("cbindgen.toml")).expect("cbindgen.toml");
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in SOURCES {
        builder = builder.with_src(package().join(format!("src/{source}.rs")));
    }
    let mut text = Vec::new();
    builder.generate().expect("a header").write(&mut text);
    let text = String::from_utf8(text).expect("UTF-8");
    text.replace(" * # Safety\n", " * The caller's part:\n")
        .replace("// # Safety\n", "// The caller's part:\n")
}

#[test]
fn the_header_is_current() {
    let generated = generated();
    if std::env::var_os("TEST_BLESS").is_some() {
        std::fs::write(package().join("forebay.h"), &generated).expect("written");
    }
    assert!(
        read("forebay.h") == generated,
        "forebay.h is not what the sources say; run: TEST_BLESS=1 cargo test -p forebay-capi --test header"
    );
}

/// The functions of the header.
fn functions(header: &str) -> Vec<String> {
    let code = header
        .lines()
        .filter(|line| !line.starts_with("//") && !line.starts_with(" *"));
    let code = code.collect::<Vec<_>>().join("\n");
    let mut names: Vec<String> = code
        .split(|c: char| !c.is_alphanumeric() && c != '_' && c != '(')
        .filter_map(|word| word.split_once('('))
        .map(|(name, _)| name.to_owned())
        .filter(|name| name.starts_with("forebay_"))
        .collect();
    names.dedup();
    names
}

#[test]
fn every_function_is_in_manual_page_and_documentation() {
    let functions = functions(&read("forebay.h"));
    assert!(functions.len() >= 20, "{functions:?}");
    let (page, guide) = (read("forebay.3"), read("../../docs/c.md"));
    for name in &functions {
        assert!(
            page.contains(&format!("{name}(")),
            "{name} is not in forebay.3"
        );
        assert!(guide.contains(name), "{name} is not in docs/c.md");
    }
}

/// Each function has words before it that say what it returns or what becomes of the handle.
#[test]
fn every_function_is_documented() {
    let header = read("forebay.h");
    for name in functions(&header) {
        let at = header.find(&format!("{name}(")).expect("listed");
        let line = header[..at].rfind('\n').unwrap_or(0);
        let before = header[..line].lines().next_back().unwrap_or("");
        assert!(before.starts_with("//"), "{name} has no words before it");
    }
}
