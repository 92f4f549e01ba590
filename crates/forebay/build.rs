//! The version of the arena's layout: a hash of the engine's sources, which say what lies where in an arena and what the words mean. Two
//! builds that differ never share one, without anybody counting a number up.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

const SOURCES: &str = "src";

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-changed={SOURCES}");
    let mut files = Vec::new();
    collect(Path::new(SOURCES), &mut files)?;
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

/// The sources below a path; tests mean nothing to an arena.
fn collect(path: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default();
        if path.is_dir() && name != "tests" {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|kind| kind == "rs") && name != "tests.rs" {
            files.push(path);
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
