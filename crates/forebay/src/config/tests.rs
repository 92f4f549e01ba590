//! Sources against each other, values against each other, and messages that name the remedy.

use super::locate::Environment;
use super::*;
use crate::memory::cgroup::Limits;
use std::path::Path;
use tempfile::TempDir;

const GIB: u64 = 1 << 30;

fn limits() -> Limits {
    Limits {
        total_bytes: 8 * GIB,
        cgroup_limit: None,
        cgroup_used: None,
        source: "test".into(),
    }
}

fn built(set: &[(&str, &str)]) -> Result<Config, ConfigError> {
    set.iter()
        .try_fold(
            Config::builder().limits(limits()),
            |builder, (key, text)| builder.set(key, text),
        )?
        .build()
}

fn environment(pairs: &[(&str, &str)]) -> Environment {
    pairs
        .iter()
        .map(|&(name, value)| (name.into(), value.into()))
        .collect()
}

#[test]
fn defaults() {
    let config = built(&[]).unwrap();
    assert_eq!(config.memory, 2 * GIB);
    assert_eq!(
        (config.dirty_bytes_max, config.dirty_background),
        (GIB, GIB / 2)
    );
    assert_eq!(config.file_dirty_bytes_max, None);
    assert_eq!((config.direct_min, config.busy_bytes), (1 << 20, 4 << 20));
    assert_eq!(config.flush_after, Some(Duration::from_millis(500)));
    assert_eq!(config.flush_interval, Some(Duration::from_secs(5)));
    assert_eq!(config.idle_after, Some(Duration::from_secs(30)));
    assert_eq!((config.queue_depth, config.io_engine), (32, IoEngine::Auto));
    assert_eq!(
        (config.session.as_str(), config.heap_backed),
        ("default", false)
    );
    assert!(
        config
            .explain()
            .iter()
            .all(|line| line.origin == Origin::Default)
    );
}

#[test]
fn who_joins_asks_for_memory_only_where_it_matters() {
    let joining = |set: Option<(&str, &str)>| {
        let builder = Config::builder().joining();
        let builder = match set {
            Some((key, text)) => builder.set(key, text)?,
            None => builder,
        };
        builder.build()
    };
    // A quarter of what nobody has.
    assert_eq!(joining(None).unwrap().memory, u64::MAX / 4);
    assert!(joining(Some(("route", "scrap"))).unwrap().memory == u64::MAX / 4);
    let asked = joining(Some(("dirty_bytes_max", "25%"))).unwrap();
    assert!(asked.memory < u64::MAX / 4 && asked.dirty_bytes_max <= asked.memory);
    assert!(joining(Some(("memory", "1000000GiB"))).is_err());
}

#[test]
fn the_tiny_configuration_is_sound() {
    let config = Config::tiny();
    config.check().unwrap();
    assert_eq!(config.memory / BLOCK_BYTES as u64, 8);
    assert!(
        config.dirty_bytes_max < 6 * BLOCK_BYTES as u64,
        "six blocks must not fit"
    );
    assert!(config.flush_after.is_none() && config.flush_interval.is_none());
}

#[test]
fn options_beat_the_environment_beats_the_file() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("forebay.toml");
    let text = "memory = '1GiB'\ndirty_bytes_max = 1048576\nqueue_depth = 7\nsession = 'file'\n\
                flush_after = 'never'\nfile_dirty_bytes_max = 'none'\n\
                [[routes]]\nglob = '*.log'\nroute = 'kernel'\n";
    std::fs::write(&file, text).unwrap();
    let variables = environment(&[
        ("FOREBAY_CONFIG", file.to_str().unwrap()),
        ("FOREBAY_SESSION", "environment"),
        ("FOREBAY_QUEUE_DEPTH", "8"),
        ("FOREBAY_MEMORY", ""),
        ("FOREBAY__SOCKET", "not an option"),
        ("FOREBAY_LOG", "debug"),
        ("HOME", "/home/user"),
        ("OTHER", "1"),
    ]);
    let builder = Builder::of_environment(&variables)
        .unwrap()
        .limits(limits());
    let config = builder.set("queue_depth", "9").unwrap().build().unwrap();
    assert_eq!((config.memory, config.dirty_bytes_max), (GIB, 1 << 20));
    assert_eq!(config.dirty_background, 1 << 20, "the default gives way");
    assert_eq!(
        (config.session.as_str(), config.queue_depth),
        ("environment", 9)
    );
    assert_eq!(config.flush_after, None);
    assert_eq!(
        config.kept_dir,
        Path::new("/home/user/.local/state/forebay/kept")
    );
    let table = config.route_table().unwrap();
    assert_eq!(table.route_of(Path::new("/var/x.log")), Route::Kernel);

    let explained = config.explain();
    let line = |key: &str| explained.iter().find(|line| line.key == key).unwrap();
    assert_eq!(line("memory").value, "1GiB");
    assert_eq!(line("memory").origin, Origin::File { path: file.clone() });
    assert_eq!(line("queue_depth").origin, Origin::Option);
    let name = "FOREBAY_SESSION".to_owned();
    assert_eq!(line("session").origin, Origin::Environment { name });
    assert_eq!(
        (
            line("routes").value.as_str(),
            line("arena_dir").value.as_str()
        ),
        ("*.log=kernel", "none")
    );
    let json = serde_json::to_value(line("session")).unwrap();
    assert_eq!(json["origin"]["name"], "FOREBAY_SESSION");
}

#[test]
fn what_is_explained_can_be_set_again() {
    let config = built(&[("routes", "/a/**=direct; *.x=scrap"), ("memory", "37%")]).unwrap();
    let lines = config.explain();
    assert_eq!(lines.len(), options::KEYS.len());
    let set: Vec<_> = lines
        .iter()
        .filter(|line| line.key != "arena_dir")
        .collect();
    let pairs: Vec<_> = set
        .iter()
        .map(|line| (line.key, line.value.as_str()))
        .collect();
    let again = built(&pairs).unwrap();
    let values = |config: &Config| -> Vec<_> {
        config
            .explain()
            .into_iter()
            .map(|line| (line.key, line.value))
            .collect()
    };
    assert_eq!(values(&config), values(&again));
}

#[test]
fn every_key_is_accepted_in_all_three_places() {
    let text = |key: &str| match key {
        "routes" => "*.a=direct",
        "route" => "threshold",
        "io_engine" => "threads",
        "dirty_tracking" | "flush_order" => "stream",
        "allocator" => "regions",
        "coherence" => "notify",
        "heap_backed" | "manage_stores" => "true",
        "queue_depth" | "kernel_after_syncs" | "kernel_after_holes" => "3",
        "session" => "s",
        "arena_dir" | "kept_dir" | "dirs" => "/tmp",
        "flush_after" | "flush_interval" | "idle_after" => "3s",
        _ => "2MiB",
    };
    for &key in options::KEYS {
        let mut options = Options::default();
        options
            .set(key, text(key))
            .unwrap_or_else(|error| panic!("{key}: {error}"));
        let name = format!("FOREBAY_{}", key.to_ascii_uppercase());
        let variables = environment(&[(&name, text(key))]);
        Config::builder().environment(&variables).unwrap();
        let toml = match key {
            "routes" => "routes = [{ glob = '*.a', route = 'direct' }]".to_owned(),
            "dirs" => "dirs = ['/tmp']".to_owned(),
            "heap_backed" | "manage_stores" => format!("{key} = true"),
            "queue_depth" | "kernel_after_syncs" | "kernel_after_holes" => {
                format!("{key} = {}", text(key))
            }
            _ => format!("{key} = '{}'", text(key)),
        };
        assert_eq!(
            Options::from_toml(&toml, Path::new("f")).unwrap(),
            options,
            "{key}"
        );
    }
}

#[test]
fn misspelt_keys_name_place_and_nearest() {
    let table = [
        ("memroy", "memory"),
        ("dirty_max", "dirty_bytes_max"),
        ("direct-min", "direct_min"),
        ("queue_dept", "queue_depth"),
        ("Session", "session"),
    ];
    for (key, nearest) in table {
        let error = Options::from_toml(&format!("{key} = 1"), Path::new("/etc/forebay.toml"));
        let message = error.unwrap_err().to_string();
        let expected =
            format!("/etc/forebay.toml: there is no option '{key}'; did you mean '{nearest}'?");
        assert_eq!(message, expected);
    }
    let error = Builder::of_environment(&environment(&[("FOREBAY_MEMROY", "1G")])).unwrap_err();
    assert!(error.to_string().contains("FOREBAY_MEMROY"), "{error}");
    assert!(error.to_string().contains("'memory'"), "{error}");
}

#[test]
fn bad_values_name_place_and_remedy() {
    let table = [
        ("memory", "lots", "4GiB or 25%"),
        ("memory", "9G", "test allows 8192 MiB"),
        ("memory", "1M", "give 2MiB or more"),
        ("dirty_bytes_max", "3G", "which is 2GiB"),
        ("dirty_background", "100%", "at most dirty_bytes_max"),
        ("file_dirty_bytes_max", "1", "4KiB or more, or none"),
        ("clean_bytes_max", "4KiB", "256KiB or more, or none"),
        ("direct_min", "10%", "in bytes"),
        ("direct_min", "0", "route to scrap"),
        ("flush_after", "5", "500ms"),
        ("route", "fast", "`threshold`"),
        ("routes", "*.x", "GLOB=ROUTE"),
        ("routes", "[=auto", "pattern such as"),
        ("queue_depth", "0", "1 to 4096"),
        ("kernel_after_syncs", "256", "0 for never"),
        ("queue_depth", "-3", "whole number"),
        ("session", "a/b", "1 to 64 letters"),
        ("arena_dir", "here", "from / on"),
        ("heap_backed", "yes", "true or false"),
    ];
    for (key, value, remedy) in table {
        let message = built(&[(key, value)]).unwrap_err().to_string();
        assert!(
            message.contains(remedy) && message.contains(key),
            "{message}"
        );
    }
}

#[test]
fn bad_files_are_named() {
    let dir = TempDir::new().unwrap();
    let missing = dir.path().join("missing.toml");
    let error = Builder::default().file(&missing).unwrap_err().to_string();
    assert!(
        error.contains("missing.toml") && error.contains("FOREBAY_CONFIG"),
        "{error}"
    );
    let error = Options::from_toml("memory = ", Path::new("f.toml"))
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("f.toml: ") && error.contains("line 1"),
        "{error}"
    );
    let rule = "routes = [{ glob = 'x', rote = 'auto' }]";
    let error = Options::from_toml(rule, Path::new("f.toml"))
        .unwrap_err()
        .to_string();
    assert!(error.contains("rote"), "{error}");
    let error = Options::from_toml("memory = -1", Path::new("f.toml"))
        .unwrap_err()
        .to_string();
    assert!(error.contains("4GiB"), "{error}");
}

/// The reference page has a row for every option, with the default it really has.
#[test]
fn the_documentation_names_every_option_and_default() {
    let page = include_str!("../../../../docs/configuration.md");
    let rows: Vec<Vec<&str>> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .map(|row| {
            row.split('|')
                .map(|cell| cell.trim().trim_matches('`'))
                .collect()
        })
        .collect();
    let keys: Vec<_> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(keys, options::KEYS);
    for line in built(&[]).unwrap().explain() {
        let written = rows.iter().find(|row| row[0] == line.key).unwrap()[1];
        if matches!(line.key, "routes" | "dirs" | "arena_dir" | "kept_dir") {
            continue;
        }
        let with_default = built(&[(line.key, written)]).unwrap();
        let made = with_default
            .explain()
            .into_iter()
            .find(|made| made.key == line.key)
            .unwrap();
        assert_eq!(made.value, line.value, "{}", line.key);
    }
}

#[test]
fn only_files_below_the_directories_are_managed() {
    assert!(built(&[]).unwrap().manages(Path::new("/anything")));
    let dir = TempDir::new().unwrap();
    let real = dir.path().canonicalize().unwrap();
    let link = real.join("link");
    std::fs::create_dir(real.join("data")).unwrap();
    std::os::unix::fs::symlink(real.join("data"), &link).unwrap();
    let dirs = format!("{}:/nowhere/at/all", link.display());
    let config = built(&[("dirs", &dirs)]).unwrap();
    assert!(config.manages(&real.join("data/deep/file")));
    assert!(config.manages(Path::new("/nowhere/at/all/file")));
    assert!(!config.manages(&real.join("database")));
    assert!(!config.manages(&real.join("file")));
    let wrong = built(&[("dirs", "here")]).unwrap_err().to_string();
    assert!(wrong.contains("from / on"), "{wrong}");
}
