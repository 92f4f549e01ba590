//! The version of the arena's layout: a hash of the sources that say what lies where in it and what the words mean. Two builds that differ
//! there never share an arena, without anybody counting a number up.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// What arenas are made of.
const SOURCES: [&str; 7] = [
    "src/memory",
    "src/frame",
    "src/ids.rs",
    "src/limits.rs",
    "src/sys/liveness.rs",
    "src/session/opens.rs",
    "src/session/reached.rs",
];

fn main() -> io::Result<()> {
    let mut files = Vec::new();
    for source in SOURCES {
        println!("cargo:rerun-if-changed={source}");
        collect(Path::new(source), &mut files)?;
    }
    files.sort();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for file in files {
        add(&mut hash, file.to_string_lossy().as_bytes());
        add(&mut hash, &fs::read(file)?);
    }
    let version = (hash >> 32) as u32 ^ hash as u32;
    let out = env::var_os("OUT_DIR")
        .map(PathBuf::from)
        .unwrap_or_default();
    fs::write(out.join("layout.rs"), format!("0x{version:08x}_u32"))
}

/// The sources below a path; tests are no part of any layout.
fn collect(path: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    if path.is_file() {
        files.push(path.to_owned());
        return Ok(());
    }
    for entry in fs::read_dir(path)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default();
        if name != "tests" && name != "tests.rs" {
            collect(&path, files)?;
        }
    }
    Ok(())
}

/// FNV-1a, with an end to each part.
fn add(hash: &mut u64, bytes: &[u8]) {
    for &byte in bytes.iter().chain(&[0xff]) {
        *hash = (*hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
}
