//! Usage, configuration, completions, manual pages, and outputs that cannot be written.

use std::process::Stdio;

use crate::place::{Place, Run};

#[test]
fn help_is_there_for_every_command_and_has_examples() {
    let place = Place::new("help");
    let commands = [
        "run",
        "daemon",
        "stat",
        "top",
        "recover",
        "evict",
        "pmem",
        "doctor",
        "config",
        "completions",
        "man",
    ];
    for command in commands {
        let run = place.run(&[command, "--help"]);
        assert_eq!(run.code, 0, "{run:?}");
        assert!(run.stdout.contains("Examples:"), "{run:?}");
    }
    let run = place.run(&["--help"]);
    assert!(
        commands.iter().all(|command| run.stdout.contains(command)),
        "{run:?}"
    );
    assert_eq!(place.run(&["--version"]).code, 0);
}

#[test]
fn what_does_not_exist_is_usage() {
    let place = Place::new("usage");
    for arguments in [
        &[][..],
        &["sing"],
        &["stat", "--loud"],
        &["stat", "--watch", "0"],
        &["evict"],
        &["recover", "--all", "--session", "x"],
        &["recover", "a.arena", "--all"],
        &["completions", "cmd"],
        &["stat", "--session", "a/b"],
    ] {
        let run = place.run(arguments);
        assert_eq!(run.code, 2, "{arguments:?}: {run:?}");
        assert!(run.stdout.is_empty() && !run.stderr.is_empty(), "{run:?}");
    }
}

#[test]
fn bad_values_are_usage_and_name_the_remedy() {
    let place = Place::new("values");
    for (flag, value, remedy) in [
        ("--mem", "lots", "4GiB or 25%"),
        ("--mem", "1M", "2MiB or more"),
        ("--mem", "90000TiB", "allows"),
        ("--flush-interval", "5", "500ms"),
        ("--route", "fast", "threshold"),
        ("--routes", "*.x", "GLOB=ROUTE"),
        ("--queue-depth", "0", "1 to 4096"),
        ("--io-engine", "steam", "io_uring"),
        ("--arena-dir", "here", "from / on"),
        ("--session", "a b", "1 to 64 letters"),
    ] {
        for command in ["daemon", "config"] {
            let run = place.run(&[command, flag, value]);
            assert_eq!(run.code, 2, "{flag} {value}: {run:?}");
            assert!(
                run.stderr.starts_with("forebay: ") && run.stderr.contains(remedy),
                "{run:?}"
            );
        }
    }
}

#[test]
fn a_bad_variable_is_usage_and_named() {
    let place = Place::new("variable");
    let output = place
        .forebay(&["stat"])
        .env("FOREBAY_MEMROY", "1G")
        .output();
    let run = Run::of(output.expect("forebay runs"));
    assert_eq!(run.code, 2, "{run:?}");
    assert!(
        run.stderr.contains("FOREBAY_MEMROY") && run.stderr.contains("'memory'"),
        "{run:?}"
    );
}

#[test]
fn options_beat_the_environment_beats_the_file() {
    let place = Place::new("strength");
    std::fs::create_dir_all(place.file("config/forebay")).expect("a directory");
    let text = "queue_depth = 7\nbusy_bytes = '1MiB'\nmemory = '64MiB'\n";
    std::fs::write(place.file("config/forebay/config.toml"), text).expect("written");
    let mut command = place.forebay(&["config", "--json", "--queue-depth", "9"]);
    let output = command.env("FOREBAY_QUEUE_DEPTH", "8").output();
    let json = Run::of(output.expect("forebay runs")).json();
    assert_eq!(json["schema"], 1);
    let option = |key: &str| {
        let options = json["options"].as_array().expect("a list");
        options
            .iter()
            .find(|o| o["key"] == key)
            .expect("the option")
            .clone()
    };
    assert_eq!(
        (
            &option("queue_depth")["value"],
            &option("queue_depth")["origin"]["from"]
        ),
        (&"9".into(), &"option".into())
    );
    assert_eq!(
        (
            &option("memory")["value"],
            &option("memory")["origin"]["name"]
        ),
        (&"32MiB".into(), &"FOREBAY_MEMORY".into())
    );
    assert_eq!(
        (
            &option("busy_bytes")["value"],
            &option("busy_bytes")["origin"]["from"]
        ),
        (&"1MiB".into(), &"file".into())
    );
    assert_eq!(option("direct_min")["origin"]["from"], "default");
    let run = place.run(&["config"]);
    assert_eq!(run.code, 0);
    assert!(
        run.stdout.contains("environment variable FOREBAY_MEMORY"),
        "{run:?}"
    );
    assert!(!run.stdout.contains('\x1b'), "colours are for terminals");
}

#[test]
fn completions_and_manual_pages_know_the_commands() {
    let place = Place::new("pages");
    for shell in ["bash", "zsh", "fish"] {
        let run = place.run(&["completions", shell]);
        assert_eq!(run.code, 0);
        assert!(
            run.stdout.contains("recover") && run.stdout.contains("arena-dir"),
            "{shell}"
        );
    }
    let run = place.run(&["man"]);
    assert!(run.stdout.contains(".TH forebay 1"), "{run:?}");
    let pages = place.file("man");
    let run = place.run(&["man", pages.to_str().expect("UTF-8")]);
    assert_eq!(run.code, 0, "{run:?}");
    let page = std::fs::read_to_string(pages.join("forebay-recover.1")).expect("a page");
    assert!(
        page.contains("kept") && page.contains("forebay recover"),
        "{page}"
    );
    let run = place.run(&["man", "/dev/null/man"]);
    assert_eq!(run.code, 1, "{run:?}");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let place = Place::new("pipe");
    for arguments in [
        &["completions", "zsh"][..],
        &["config"],
        &["--help"],
        &["stat", "--watch", "0.01"],
    ] {
        let mut command = place.forebay(arguments);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("forebay runs");
        drop(child.stdout.take());
        let run = Run::of(child.wait_with_output().expect("ended"));
        assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{arguments:?}");
    }
}

#[test]
fn a_full_disk_under_the_output_is_an_error() {
    let place = Place::new("full");
    let full = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .expect("/dev/full");
    let mut command = place.forebay(&["config"]);
    let child = command
        .stdout(full)
        .stderr(Stdio::piped())
        .spawn()
        .expect("forebay runs");
    let run = Run::of(child.wait_with_output().expect("ended"));
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stderr.contains("cannot be written"), "{run:?}");
}

/// Each library more that is loaded costs every `forebay run` 80 to 110 us. The loader says which there are, and runs nothing.
#[test]
fn the_command_loads_no_library_but_the_c_librarys_own() {
    let place = Place::new("loads");
    let mut command = place.forebay(&["run", "--", "true"]);
    command.env_remove("LD_PRELOAD");
    let told = command.env("LD_TRACE_LOADED_OBJECTS", "1").output();
    let told = String::from_utf8(told.expect("the loader").stdout).expect("names");
    let names = told
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    let names: Vec<_> = names.filter_map(|name| name.rsplit('/').next()).collect();
    assert!(names.contains(&"libc.so.6"), "{told}");
    let own = ["linux-vdso", "libc.", "ld-linux"];
    let is_own = |name: &&str| own.iter().any(|begin| name.starts_with(begin));
    assert!(names.iter().all(is_own), "{told}");
}
