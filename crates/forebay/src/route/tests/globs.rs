//! Overrides: the first match decides, paths are absolute, and a bad rule names its glob.

use std::path::Path;

use super::super::*;

fn compile(rules: &[(&str, &str)]) -> Result<Overrides, GlobError> {
    Overrides::compile(rules, &RouteOptions::default())
}

fn name_for(overrides: &Overrides, path: &str) -> Option<&'static str> {
    overrides
        .route_for(Path::new(path))
        .map(|route| route.name())
}

#[test]
fn the_first_match_decides() {
    let overrides = compile(&[
        ("/data/hot/**", "scrap"),
        ("/data/**/*.ckpt", "direct"),
        ("/data/**", "threshold"),
        ("{/tmp,/var/tmp}/*", "kernel"),
    ])
    .unwrap();
    let cases = [
        ("/data/hot/a.ckpt", Some("scrap")),
        ("/data/run/3/a.ckpt", Some("direct")),
        ("/data/a.ckpt", Some("direct")),
        ("/data/run/log", Some("threshold")),
        ("/var/tmp/x", Some("kernel")),
        ("/var/tmp/deep/x", None),
        ("/database/x", None),
        ("data/hot/x", None),
    ];
    for (path, route) in cases {
        assert_eq!(name_for(&overrides, path), route, "{path}");
    }
    assert_eq!((overrides.len(), overrides.is_empty()), (4, false));
}

#[test]
fn the_order_is_the_lists_not_the_globs() {
    let overrides = compile(&[("/**", "kernel"), ("/data/exact", "scrap")]).unwrap();
    assert_eq!(name_for(&overrides, "/data/exact"), Some("kernel"));
}

#[test]
fn no_rules_decide_nothing() {
    assert!(Overrides::default().is_empty());
    assert_eq!(name_for(&Overrides::default(), "/x"), None);
    assert_eq!(name_for(&compile(&[]).unwrap(), "/x"), None);
}

#[test]
fn stars_stay_within_a_component_and_case_counts() {
    let overrides = compile(&[("/a/*.log", "kernel"), ("**/core.[0-9]", "scrap")]).unwrap();
    assert_eq!(name_for(&overrides, "/a/x.log"), Some("kernel"));
    assert_eq!(name_for(&overrides, "/a/b/x.log"), None);
    assert_eq!(name_for(&overrides, "/a/x.LOG"), None);
    assert_eq!(name_for(&overrides, "/deep/down/core.7"), Some("scrap"));
}

#[test]
fn a_glob_without_a_slash_is_a_name_anywhere() {
    let overrides = compile(&[("*.log", "kernel")]).unwrap();
    assert_eq!(name_for(&overrides, "/x.log"), Some("kernel"));
    assert_eq!(name_for(&overrides, "/a/b/x.log"), Some("kernel"));
    assert_eq!(name_for(&overrides, "/a/x.log/b"), None);
}

#[cfg(unix)]
#[test]
fn paths_need_not_be_utf8() {
    use std::os::unix::ffi::OsStrExt;
    let path = Path::new(std::ffi::OsStr::from_bytes(b"/data/\xff\xfe.ckpt"));
    let overrides = compile(&[("/data/*.ckpt", "direct")]).unwrap();
    assert_eq!(
        overrides.route_for(path).map(|route| route.name()),
        Some("direct")
    );
}

#[test]
fn a_bad_rule_names_its_glob() {
    for (rules, wanted) in [
        ([("/ok/**", "auto"), ("/bad/[z", "auto")], "/bad/[z"),
        ([("/ok/**", "auto"), ("a/*.log", "auto")], "a/*.log"),
        ([("/ok/**", "auto"), ("/x/**", "fastest")], "/x/**"),
    ] {
        let message = compile(&rules).unwrap_err().to_string();
        assert!(message.contains(&format!("{wanted:?}")), "{message}");
    }
}

#[test]
fn an_override_takes_the_options() {
    let options = RouteOptions {
        direct_bytes_min: 512 * 1024,
    };
    let overrides = Overrides::compile(&[("/**", "threshold")], &options).unwrap();
    let route = overrides.route_for(Path::new("/x")).unwrap();
    assert_eq!(route.quick_scrap_below(), 512 * 1024);
}
