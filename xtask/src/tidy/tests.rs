//! Canaries: for each rule a violation planted in a temporary tree, which must be found, and the
//! innocent neighbour of it, which must not.

use std::fs;
use std::path::Path;

use super::config::Config;
use super::ratchet::Ratchet;
use super::size::{self, Subject};
use super::source::Source;
use super::tree::Tree;
use super::{CONFIG_PATH, Finding, RATCHET_PATH, Report};

const CONFIG: &str = r#"
[order]
common = ["sync", "limits"]
ranks = [
    { modules = ["engine"] },
    { modules = ["keeper", "file"], each_other = true },
    { modules = ["frame"] },
    { modules = ["memory", "store"] },
    { modules = ["sim"] },
    { modules = ["sys"] },
]
exceptions = [{ from = "sys", to = "frame", why = "to test exceptions" }]

[[unsafe]]
module = "crates/forebay/src/sys"
why = "to test the list"
"#;

const LIB: &str = "crates/forebay/src/lib.rs";

/// Writes a small clean tree and `files` over it, and applies every rule.
fn tidy(files: &[(&str, &str)]) -> Report {
    let root = plant(files);
    super::run(root.path(), false).expect("the tree can be read")
}

fn plant(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("a temporary folder");
    let modules = [
        "engine", "frame", "memory", "store", "sys", "sync", "limits", "keeper", "file",
    ];
    let mut lib = "//! The root.\n#[cfg(feature = \"sim\")]\npub mod sim;\n".to_string();
    for module in modules {
        lib += &format!("pub mod {module};\n");
        write(
            root.path(),
            &format!("crates/forebay/src/{module}.rs"),
            "//! A module.\n",
        );
    }
    write(
        root.path(),
        "crates/forebay/src/sim.rs",
        "//! Test machinery.\n",
    );
    write(
        root.path(),
        "crates/forebay/Cargo.toml",
        "[package]\nname = \"forebay\"\n",
    );
    write(root.path(), LIB, &lib);
    write(root.path(), CONFIG_PATH, CONFIG);
    for (path, text) in files {
        write(root.path(), path, text);
    }
    root
}

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().expect("a file has a folder")).expect("a folder");
    fs::write(path, text).expect("a file");
}

/// The single finding of a tree.
fn only(files: &[(&str, &str)]) -> Finding {
    let report = tidy(files);
    assert_eq!(report.findings.len(), 1, "expected one finding:\n{report}");
    report.findings[0].clone()
}

fn assert_clean(files: &[(&str, &str)]) {
    let report = tidy(files);
    assert!(report.findings.is_empty(), "expected no finding:\n{report}");
}

fn module(name: &str) -> String {
    format!("crates/forebay/src/{name}.rs")
}

#[test]
fn a_clean_tree_has_no_findings() {
    let report = tidy(&[]);
    assert!(report.findings.is_empty(), "{report}");
    assert!(report.files > 10, "the tree was read: {report}");
}

#[test]
fn canary_order_upward_import() {
    let text = "//! M.\nuse crate::limits::X;\n\nuse crate::frame::Header;\n";
    let finding = only(&[(&module("memory"), text)]);
    assert_eq!((finding.rule, finding.line), ("order", 4));
    assert!(
        finding.message.contains("`memory` must not import `frame`"),
        "{finding}"
    );
}

#[test]
fn canary_order_every_form_of_path() {
    for text in [
        "//! M.\nuse crate::{limits::A, frame::{B, C}};\n",
        "//! M.\nfn f() { crate::frame::g() }\n",
        "//! M.\nuse super::frame::B;\n",
        "//! M.\nuse super::{sys, frame};\n",
        "//! M.\nmod inner { use super::super::frame::B; }\n",
        "//! M.\nuse self::super::frame::B;\n",
        "//! M.\nmacro_rules! m { () => { $crate::frame::g() } }\n",
    ] {
        assert_eq!(only(&[(&module("memory"), text)]).rule, "order", "{text}");
    }
    let deep = [
        (module("memory"), "//! M.\nmod stock;\n"),
        (
            module("memory/stock"),
            "//! S.\nuse super::super::frame::B;\n",
        ),
    ];
    let deep: Vec<(&str, &str)> = deep
        .iter()
        .map(|(path, text)| (path.as_str(), *text))
        .collect();
    assert_eq!(only(&deep).rule, "order");
}

#[test]
fn order_allows_what_points_down_and_listed_neighbours() {
    assert_clean(&[
        (
            &module("frame"),
            "//! M.\nuse crate::memory::A;\nuse crate::{store, sync::B};\n",
        ),
        (&module("keeper"), "//! M.\nuse crate::file::A;\n"),
        (&module("file"), "//! M.\nuse super::keeper::A;\n"),
        (&module("sys"), "//! M.\nuse crate::frame::Excepted;\n"),
        (
            &module("memory"),
            "//! M. crate::frame\n// crate::frame::A\nconst A: &str = \"crate::frame::A\";\n",
        ),
        (
            &module("store"),
            "//! M.\npub(in crate::frame) fn f() { crate::exported!() }\n",
        ),
    ]);
}

#[test]
fn order_leaves_tests_free() {
    assert_clean(&[
        (&module("memory"), "//! M.\n#[cfg(test)]\nmod tests;\n"),
        (&module("memory/tests"), "//! T.\nuse crate::engine::A;\n"),
        (
            &module("sys"),
            "//! M.\n#[cfg(test)]\nmod tests {\n    use crate::engine::A;\n}\n",
        ),
    ]);
}

#[test]
fn canary_order_neighbours_not_listed() {
    let finding = only(&[(&module("memory"), "//! M.\nuse crate::store::A;\n")]);
    assert!(
        finding.message.contains("`memory` must not import `store`"),
        "{finding}"
    );
}

#[test]
fn canary_order_common_module_imports_ranked() {
    let finding = only(&[(&module("limits"), "//! M.\nuse crate::sys::A;\n")]);
    assert!(
        finding.message.contains("`limits` must not import `sys`"),
        "{finding}"
    );
}

#[test]
fn canary_order_an_exception_makes_no_cycle() {
    let finding = only(&[
        (&module("sys"), "//! M.\nuse crate::frame::Excepted;\n"),
        (&module("frame"), "//! M.\nuse crate::sys::A;\n"),
    ]);
    assert!(
        finding.message.contains("`frame` must not import `sys`"),
        "{finding}"
    );
}

#[test]
fn canary_order_module_without_rank() {
    let lib = "//! L.\nmod engine; mod frame; mod memory; mod store; mod sys; mod sync; mod limits;\n\
               mod keeper; mod file; mod sim; mod novel;\n";
    let novel = "//! N.\nuse crate::sys::A;\n";
    let finding = only(&[(LIB, lib), (&module("novel"), novel)]);
    assert!(finding.message.contains("`novel` has no rank"), "{finding}");
}

#[test]
fn canary_order_name_through_the_root() {
    let finding = only(&[(&module("engine"), "//! M.\nuse crate::Header;\n")]);
    assert!(
        finding.message.contains("`crate::Header` is no module"),
        "{finding}"
    );
}

#[test]
fn canary_order_sim_outside_its_feature() {
    for gate in [
        "",
        "#[cfg(not(feature = \"sim\"))]\n",
        "#[cfg(feature = \"keeper\")]\n",
    ] {
        let text = format!("//! M.\nfn f() {{\n{gate}crate::sim::point();\n}}\n");
        let finding = only(&[(&module("sync"), &text)]);
        assert!(
            finding.message.contains("in every build"),
            "{gate}: {finding}"
        );
    }
    let ends = "//! M.\n#[cfg(feature = \"sim\")]\nfn f() {}\nfn g() { crate::sim::point() }\n";
    assert_eq!(only(&[(&module("sync"), ends)]).line, 4);
}

#[test]
fn order_allows_sim_under_its_feature() {
    assert_clean(&[
        (
            &module("sync"),
            "//! M.\nfn f() {\n#[cfg(feature = \"sim\")]\ncrate::sim::point();\n}\n",
        ),
        (
            &module("sys"),
            "//! M.\n#[cfg(all(unix, feature = \"sim\"))]\nuse crate::sim::A;\n",
        ),
        (
            &module("frame"),
            "//! M.\n#[cfg(feature = \"shuttle\")]\nfn f() { crate::sim::g(); crate::sim::h() }\n",
        ),
    ]);
}

fn lines(count: usize) -> String {
    let mut text = "//! Long.\n".to_string();
    text += &"const _: () = ();\n".repeat(count - 1);
    text
}

fn function(lines: usize) -> String {
    format!(
        "//! F.\nfn long(\n) {{\n{}}}\n",
        "    ();\n".repeat(lines - 3)
    )
}

#[test]
fn canary_size_of_a_file() {
    let finding = only(&[(&module("sys"), &lines(size::FILE_LINES_MAX + 1))]);
    assert_eq!(finding.rule, "size");
    assert!(
        finding.message.contains("501 lines, 500 are allowed"),
        "{finding}"
    );
    assert_clean(&[(&module("sys"), &lines(size::FILE_LINES_MAX))]);
}

#[test]
fn canary_size_of_a_file_with_tests() {
    let with_tests = |count: usize| {
        format!(
            "{}#[cfg(test)]\nmod tests {{\n{}}}\n",
            lines(400),
            "// t\n".repeat(count)
        )
    };
    assert_clean(&[(&module("sys"), &with_tests(497))]);
    let finding = only(&[(&module("sys"), &with_tests(498))]);
    assert!(
        finding.message.contains("with its tests has 901 lines"),
        "{finding}"
    );
}

#[test]
fn canary_size_of_a_function() {
    let finding = only(&[(&module("sys"), &function(size::FUNCTION_LINES_MAX + 1))]);
    assert_eq!((finding.rule, finding.line), ("size", 2));
    assert!(
        finding
            .message
            .contains("`long` has 71 lines, 70 are allowed"),
        "{finding}"
    );
    assert_clean(&[(&module("sys"), &function(size::FUNCTION_LINES_MAX))]);
}

#[test]
fn canary_ratchet_does_not_allow_growth() {
    let path = module("sys");
    let entry = format!("function {path}::long 80\n");
    assert_clean(&[(&path, &function(80)), (RATCHET_PATH, &entry)]);
    let finding = only(&[(&path, &function(81)), (RATCHET_PATH, &entry)]);
    assert!(
        finding.message.contains("81 lines, 80 are allowed"),
        "{finding}"
    );
}

#[test]
fn ratchet_reports_what_can_be_tightened() {
    let path = module("sys");
    let entries = format!("function {path}::long 90\nfile {path} 600\n");
    let report = tidy(&[(&path, &function(80)), (RATCHET_PATH, &entries)]);
    assert!(report.findings.is_empty(), "{report}");
    let text = report.to_string();
    assert!(text.contains("::long` can go from 90 to 80"), "{text}");
    assert!(text.contains("sys.rs` is no longer needed"), "{text}");
}

#[test]
fn bless_only_lowers() {
    let path = module("sys");
    let text = function(80) + "fn other() {\n" + &"    ();\n".repeat(98) + "}\n";
    let entries =
        format!("function {path}::long 90\nfunction {path}::other 85\nfile gone.rs 700\n");
    let root = plant(&[(&path, &text), (RATCHET_PATH, &entries)]);
    let report = super::run(root.path(), true).expect("the tree can be read");
    assert_eq!(report.findings.len(), 1, "growth is still found: {report}");
    let blessed = fs::read_to_string(root.path().join(RATCHET_PATH)).expect("a ratchet");
    let expected = format!("function {path}::long 80\nfunction {path}::other 85\n");
    assert_eq!(Ratchet::parse(&blessed), Ratchet::parse(&expected));
}

#[test]
fn ratchet_with_a_bad_line_is_an_error_that_names_it() {
    for bad in [
        "file only-a-name",
        "function x 1 2",
        "folder x 1",
        "file x many",
    ] {
        let error = Ratchet::parse(&format!("# fine\n{bad}\n")).expect_err(bad);
        assert!(error.contains(":2:") && error.contains(bad), "{error}");
    }
}

#[test]
fn canary_unsafe_outside_the_list() {
    let text = "//! M.\n\nfn f() { unsafe { g() } }\n";
    let finding = only(&[(&module("frame"), text)]);
    assert_eq!((finding.rule, finding.line), ("unsafe", 3));
    assert_clean(&[
        (
            &module("sys"),
            "//! M.\nmod futex;\nfn f() { unsafe { g() } }\n",
        ),
        (&module("sys/futex"), "//! M.\nunsafe fn f() {}\n"),
        (
            &module("frame"),
            "//! M.\n// unsafe\nconst A: &str = \"unsafe\";\n#[deny(unsafe_code)]\nfn f() {}\n",
        ),
    ]);
}

#[test]
fn canary_unsafe_list_names_modules_not_prefixes() {
    let lib = "//! L.\nmod engine; mod frame; mod memory; mod store; mod sys; mod sync; mod limits;\n\
               mod keeper; mod file; mod sim; mod system;\n";
    let finding = only(&[
        (LIB, lib),
        (&module("system"), "//! M.\nunsafe fn f() {}\n"),
    ]);
    assert_eq!(finding.rule, "unsafe");
}

#[test]
fn canary_opening_line_missing() {
    for text in [
        "fn f() {}\n",
        "//!\nfn f() {}\n",
        "// A comment.\nfn f() {}\n",
        "",
    ] {
        assert_eq!(only(&[(&module("sys"), text)]).rule, "opening", "{text}");
    }
}

#[test]
fn canary_dead_file() {
    let finding = only(&[(&module("frame/orphan"), "//! O.\n")]);
    assert_eq!(finding.rule, "dead");
    assert!(finding.path.ends_with("orphan.rs"), "{finding}");
    // Declared only in a comment or a string.
    let text = "//! M.\n// mod orphan;\nconst A: &str = \"mod orphan;\";\n";
    assert_eq!(
        only(&[
            (&module("frame"), text),
            (&module("frame/orphan"), "//! O.\n")
        ])
        .rule,
        "dead"
    );
}

#[test]
fn dead_follows_every_way_to_reach_a_file() {
    assert_clean(&[
        (
            &module("frame"),
            "//! M.\nmod state;\nmod inline { mod deep; }\n#[path = \"odd.rs\"]\nmod even;\n",
        ),
        (&module("frame/state/mod"), "//! M.\nmod leaf;\n"),
        (&module("frame/state/leaf"), "//! M.\n"),
        (&module("frame/inline/deep"), "//! M.\n"),
        (&module("odd"), "//! M.\ninclude!(\"table.rs\");\n"),
        (&module("table"), "//! M.\n"),
        ("crates/forebay/build.rs", "//! B.\n"),
        ("crates/forebay/tests/one.rs", "//! T.\nmod common;\n"),
        ("crates/forebay/tests/common/mod.rs", "//! T.\n"),
        ("crates/forebay/tests/two/main.rs", "//! T.\nmod part;\n"),
        ("crates/forebay/tests/two/part.rs", "//! T.\n"),
        (
            "fuzz/Cargo.toml",
            "[package]\nname = \"fuzz\"\n[[bin]]\nname = \"x\"\npath = \"fuzz_targets/x.rs\"\n",
        ),
        ("fuzz/fuzz_targets/x.rs", "//! F.\n"),
    ]);
}

#[test]
fn canary_words() {
    let unfinished = ["TO", "FIX", "XX"].into_iter().zip(["DO", "ME", "X"]);
    let planted: Vec<String> = unfinished
        .map(|(a, b)| format!("// {a}{b}: later"))
        .chain([
            format!("see /{}/notes", "work"),
            format!("\"/{}/x\"", "root"),
            format!("from https://{}.io/", "crates"),
            format!("pypi{}", ".org"),
        ])
        .collect();
    for text in planted {
        let finding = only(&[("notes.txt", &format!("fine\n{text}\n"))]);
        assert_eq!((finding.rule, finding.line), ("words", 2), "{text}");
    }
}

#[test]
fn words_that_only_look_forbidden() {
    let text = format!(
        "mkstemp tmp.{x}\nframe/{w}/x and ../{w}/y and $HOME/{w}/\nPHOTO{d}S\n",
        x = "XX".repeat(2),
        w = "work",
        d = "DO"
    );
    assert_clean(&[("notes.txt", &text)]);
}

#[test]
fn canary_links() {
    for link in [
        "[a](gone.md)",
        "[a](#gone)",
        "[a](real.md#gone)",
        "[a]: gone.md",
        "![p](gone.png)",
    ] {
        let text = format!("# Title\n\n{link}\n");
        let finding = only(&[("docs/page.md", &text), ("docs/real.md", "# Real\n")]);
        assert_eq!((finding.rule, finding.line), ("links", 3), "{link}");
    }
}

#[test]
fn links_that_hold() {
    let text = "# Two words, here\n\n[a](real.md) [b](../README.md#top-of-it) [c](#two-words-here)\n\
                [d](https://example.org/x) [e](sub) [f](p.png)\n\n```\n[g](gone.md)\n```\n\n\
                `[h](gone.md)`\n";
    assert_clean(&[
        ("docs/page.md", text),
        ("docs/real.md", "# Real\n"),
        ("docs/sub/x.md", "# X\n"),
        ("docs/p.png", "\0"),
        ("README.md", "# Top of it\n"),
    ]);
}

#[test]
fn an_exception_without_a_reason_is_refused() {
    let error = Config::parse("[[unsafe]]\nmodule = \"a\"\nwhy = \" \"\n").expect_err("no reason");
    assert!(error.contains('a') && error.contains("why"), "{error}");
    assert!(Config::parse("[order]\nunknown = 1\n").is_err());
}

fn words(text: &str) -> Vec<&str> {
    Source::new("x.rs", text)
        .tokens
        .iter()
        .map(|token| token.text)
        .collect()
}

#[test]
fn the_scanner_knows_comments_and_literals() {
    assert_eq!(words("a /* b /* c */ d */ e // f\ng"), ["a", "e", "g"]);
    assert_eq!(words(r#""a\"b" c"#), [r#""a\"b""#, "c"]);
    assert_eq!(words(r##"r#"a"b"# c"##), [r##"r#"a"b"#"##, "c"]);
    assert_eq!(
        words(r"'\'' 'x' '\u{41}' 'static b'{'"),
        [r"'\''", "'x'", r"'\u{41}'", "'static", "b'{'"]
    );
    assert_eq!(
        words("r#type::b\"{\" cr\"}\""),
        ["r#type", "::", "b\"{\"", "cr\"}\""]
    );
    assert_eq!(words("\"open"), ["\"open"]);
    assert_eq!(words("/* open"), Vec::<&str>::new());
}

#[test]
fn the_scanner_counts_lines_through_literals() {
    let source = Source::new("x.rs", "a\n\"b\nc\"\n/* d\n */ e");
    let lines: Vec<usize> = source.tokens.iter().map(|token| token.line).collect();
    assert_eq!(lines, [1, 2, 5]);
}

#[test]
fn the_longest_function_of_a_name_is_measured() {
    let text = "//! M.\nfn f() {}\nmod a {\n    fn f() {\n    }\n}\ntrait T { fn f(); }\n";
    let mut tree = Tree::default();
    tree.insert("x.rs", text.to_string());
    let sizes = size::measure(&tree);
    assert_eq!(sizes[&Subject::Function("x.rs::f".to_string())].lines, 2);
}

#[test]
fn canary_strays_in_the_root() {
    let config = format!("root = [\"crates\", \"xtask\"]\n{CONFIG}");
    let finding = only(&[(CONFIG_PATH, &config), ("f", "left over\n")]);
    assert_eq!((finding.rule, finding.path.as_str()), ("strays", "f"));
    assert_clean(&[(CONFIG_PATH, &config), ("crates/f", "of use\n")]);
}

#[test]
fn canary_strays_that_nobody_reads() {
    let large = "0123456\n".repeat(super::strays::BYTES_MAX / 8);
    assert_clean(&[("docs/large.txt", &large)]);
    assert_eq!(only(&[("docs/large.txt", &(large + "1"))]).rule, "strays");
    assert_eq!(only(&[("tests/image.bin", "a\0b")]).rule, "strays");
}
