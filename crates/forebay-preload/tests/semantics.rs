//! `docs/semantics.md`, `docs/mount.md` and `docs/failures.md`: every sentence names tests, and they are there.

use std::path::PathBuf;

const PLACES: [(&str, &str); 12] = [
    ("preload", "crates/forebay-preload/tests"),
    ("engine", "crates/forebay/tests"),
    ("unit", "crates/forebay/src"),
    ("cli", "crates/forebay-cli/tests/cli"),
    ("mount", "crates/forebay-cli/tests/mount"),
    ("fuse", "crates/forebay-fuse/src"),
    ("pool", "crates/forebay-pool/src"),
    ("pools", "crates/forebay-pool/tests"),
    ("pmem", "crates/forebay-pmem/src"),
    ("capi", "crates/forebay-capi/tests/calls"),
    ("python", "crates/forebay-python/tests"),
    ("whole", "tests/programs"),
];

/// What is wrong with a text, item by item. `file` gives the text of a file, by its path in the repository.
fn faults(text: &str, file: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut faults = Vec::new();
    let (_, items) = text.split_once("\n## ").expect("sections");
    for item in items.split("\n- ").skip(1) {
        let item = item.split("\n\n").next().unwrap_or(item).trim_end();
        let sentence = item.lines().next().unwrap_or(item);
        let tests: Vec<_> = item
            .split('`')
            .skip(1)
            .step_by(2)
            .filter_map(|code| named(code))
            .collect();
        if tests.is_empty() && !item.ends_with("*Not tested.*") {
            faults.push(format!("no test: {sentence}"));
        }
        for (path, name) in tests {
            let there = file(&path).is_some_and(|text| is_in(&text, &path, name));
            if !there {
                faults.push(format!("no {name} in {path}: {sentence}"));
            }
        }
    }
    faults
}

/// A test's file and name, should this be one.
fn named(code: &str) -> Option<(String, &str)> {
    let (file, name) = code.split_once(' ')?;
    let (place, rest) = file.split_once('/')?;
    let (_, directory) = PLACES.iter().find(|(known, _)| *known == place)?;
    Some((format!("{directory}/{rest}"), name))
}

fn is_in(text: &str, path: &str, name: &str) -> bool {
    let forms = if path.ends_with(".sh") {
        vec![
            format!("same {name} "),
            format!("same \"{name}\" "),
            format!("if wanted {name}; then"),
        ]
    } else if path.ends_with(".py") {
        vec![format!("def {name}(")]
    } else {
        // A function, or a case of a macro.
        vec![format!("fn {name}()"), format!("    {name}: \"")]
    };
    forms.iter().any(|form| text.contains(form))
}

fn of_repository(path: &str) -> Option<String> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::fs::read_to_string(root.join(path)).ok()
}

#[test]
fn every_sentence_has_its_tests() {
    for (document, items) in [
        ("docs/semantics.md", 40),
        ("docs/mount.md", 30),
        ("docs/failures.md", 30),
    ] {
        let text = of_repository(document).expect("the document");
        let faults = faults(&text, of_repository);
        assert!(faults.is_empty(), "{document}: {}", faults.join("\n"));
        assert!(text.matches("\n- ").count() > items, "items are not found");
    }
}

#[test]
fn canary_missing_tests_are_found() {
    let file = |path: &str| (path == "tests/programs/a.sh").then(|| "same one 'x'".to_owned());
    let check = |items: &str| faults(&format!("# T\n\n- not one\n\n## S\n\n{items}"), file).len();
    assert_eq!(check("- It is so.\n  `whole/a.sh one`\n"), 0);
    assert_eq!(check("- It is so.\n  `whole/a.sh on`\n"), 1);
    assert_eq!(check("- It is so.\n  `whole/b.sh one`\n"), 1);
    assert_eq!(check("- It is so. *Not tested.*\n"), 0);
    assert_eq!(check("- It is `so`.\n- And so.\n  `whole/a.sh one`\n"), 1);
}
