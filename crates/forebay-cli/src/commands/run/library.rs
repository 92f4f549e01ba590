//! The preload library: where it lies, and whether a program can have it loaded.
//!
//! A program that cannot is told by looking at its file, as the kernel and the loader will: without an interpreter nobody
//! loads libraries into it, and with rights of its own nobody may.

use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use forebay::sys::notes;

/// Its file name.
const NAME: &str = "libforebay_preload.so";
/// Where it is looked for, seen from the directory of this executable.
const PLACES: [&str; 3] = ["../lib/forebay", ".", "../lib"];
/// Names another place for it.
pub const VARIABLE: &str = "FOREBAY_PRELOAD";
/// Interpreters that lead to one another are followed so far, as the kernel does.
const INTERPRETERS_MAX: u32 = 4;
/// Of a script's first line the kernel reads so much.
const LINE_BYTES: usize = 256;
/// Read at once: a script's first line; what says what a program is, mostly.
const HEAD_BYTES: usize = 2048;

/// The library's path.
///
/// # Errors
/// In words: where it was looked for, and what to do.
pub fn find() -> Result<PathBuf, String> {
    if let Some(named) = std::env::var_os(VARIABLE).filter(|name| !name.is_empty()) {
        let path = std::path::absolute(&named).unwrap_or_else(|_| PathBuf::from(&named));
        return match path.is_file() {
            true => can_be_listed(path),
            false => Err(format!(
                "{VARIABLE} names {}, which is no file",
                crate::output::path(&path)
            )),
        };
    }
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let dir = program.parent().unwrap_or(Path::new("/"));
    let candidates = PLACES.map(|place| dir.join(place).join(NAME));
    let found = candidates.iter().find(|path| path.is_file());
    match found.and_then(|path| path.canonicalize().ok()) {
        Some(path) => can_be_listed(path),
        None => Err(format!(
            "{NAME} is neither in {} nor in {}: install it there, or name it in {VARIABLE}",
            crate::output::path(&dir.join(PLACES[0])),
            crate::output::path(dir)
        )),
    }
}

/// The loader takes spaces and colons for ends of a name.
fn can_be_listed(path: PathBuf) -> Result<PathBuf, String> {
    let ends = |byte: &u8| matches!(byte, b' ' | b':' | b'\t' | b'\n');
    if path.as_os_str().as_bytes().iter().any(ends) {
        return Err(format!(
            "{} has a space or a colon in its path, which LD_PRELOAD cannot name: put a link to it elsewhere and name that in \
             {VARIABLE}",
            crate::output::path(&path)
        ));
    }
    Ok(path)
}

/// Why the library cannot be loaded into a program, in words; `None` if it can.
pub fn why_not(program: &Path) -> Option<String> {
    let mut program = program.to_owned();
    for _ in 0..INTERPRETERS_MAX {
        // What cannot be read is left to the kernel to judge.
        let file = File::open(&program).ok()?;
        let name = crate::output::path(&program);
        let mode = file.metadata().ok()?.mode();
        if mode & 0o6000 != 0 {
            return Some(format!(
                "{name} runs with rights of its owner (mode {:o}), and the loader lets nobody load libraries into such programs",
                mode & 0o7777
            ));
        }
        if has_capabilities(&file) {
            return Some(format!(
                "{name} runs with capabilities of its own, and the loader lets nobody load libraries into such programs"
            ));
        }
        let mut room = [0; HEAD_BYTES];
        let read = file.read_at(&mut room, 0).ok()?;
        let head = &room[..read];
        match head[..read.min(LINE_BYTES)].strip_prefix(b"#!") {
            Some(line) => program = interpreter_of_script(line)?,
            None if head.starts_with(b"\x7fELF") => {
                return elf(&file, head).err().map(|why| format!("{name} {why}"));
            }
            None => return None,
        }
    }
    None
}

fn has_capabilities(file: &File) -> bool {
    let mut value = [0_u8; 32];
    rustix::fs::fgetxattr(file, "security.capability", &mut value).is_ok()
}

fn interpreter_of_script(line: &[u8]) -> Option<PathBuf> {
    let line = line.split(|&byte| byte == b'\n').next()?;
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t'));
    let word = words.find(|word| !word.is_empty())?;
    Some(PathBuf::from(std::ffi::OsString::from_vec(word.to_vec())))
}

/// Reads the program headers of a 64-bit little-endian ELF file.
fn elf(file: &File, head: &[u8]) -> Result<(), String> {
    const X86_64: u64 = 62;
    const INTERPRETER: u64 = 3;
    const NOTES: u64 = 4;
    let number = |bytes: &[u8], at: usize, len: usize| -> u64 {
        let digits = bytes.get(at..at + len).unwrap_or_default().iter().rev();
        digits.fold(0, |sum, &byte| sum << 8 | u64::from(byte))
    };
    if number(head, 4, 1) != 2 || number(head, 18, 2) != X86_64 {
        return Err("is not a program for x86-64".into());
    }
    let (table, entry, count) = (
        number(head, 32, 8),
        number(head, 54, 2),
        number(head, 56, 2),
    );
    let mut loader = None;
    for index in 0..count.min(512) {
        let mut header = [0; 56];
        let at = table.saturating_add(index * entry);
        if !copy(file, head, &mut header, at) {
            return Ok(());
        }
        let kind = number(&header, 0, 4);
        if !matches!(kind, INTERPRETER | NOTES) {
            continue;
        }
        let mut bytes = vec![0; number(&header, 32, 8).min(4096) as usize];
        if !copy(file, head, &mut bytes, number(&header, 8, 8)) {
            return Ok(());
        }
        if kind == INTERPRETER {
            loader = Some(bytes);
        } else if notes::each(&bytes).any(|note| note.is_go()) {
            return Err(
                "is a program in Go, which makes its system calls itself, past the library; `forebay mount` serves such programs"
                    .into(),
            );
        }
    }
    let Some(loader) = loader else {
        return Err("is linked statically, and nobody loads libraries into such programs".into());
    };
    let loader = String::from_utf8_lossy(&loader);
    let loader = loader.trim_end_matches('\0');
    if loader.contains("ld-musl") {
        return Err(format!(
            "is loaded by {loader}, and the library is made for the GNU C library"
        ));
    }
    Ok(())
}

/// Bytes of a file of which the first have been read. `false`: there are none.
fn copy(file: &File, head: &[u8], to: &mut [u8], at: u64) -> bool {
    let begin = usize::try_from(at).unwrap_or(usize::MAX);
    let known = head.get(begin..).and_then(|rest| rest.get(..to.len()));
    match known {
        Some(known) => to.copy_from_slice(known),
        None => return file.read_exact_at(to, at).is_ok(),
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// An ELF header with one program header of a kind.
    fn program(kind: u8, loader: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 64 + 56];
        bytes[..5].copy_from_slice(b"\x7fELF\x02");
        bytes[18] = 62;
        (bytes[32], bytes[54], bytes[56]) = (64, 56, 1);
        (bytes[64], bytes[64 + 8], bytes[64 + 32]) = (kind, 120, loader.len() as u8);
        bytes.extend_from_slice(loader);
        bytes
    }

    fn judged(bytes: &[u8], mode: u32) -> Option<String> {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("program");
        std::fs::write(&path, bytes).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("changed");
        why_not(&path)
    }

    #[test]
    fn programs_are_told_apart() {
        let glibc = program(3, b"/lib64/ld-linux-x86-64.so.2\0");
        assert_eq!(judged(&glibc, 0o755), None);
        assert_eq!(judged(b"echo\n", 0o755), None);
        for (bytes, mode, why) in [
            (glibc.clone(), 0o4755, "rights of its owner"),
            (program(1, b""), 0o755, "statically"),
            (
                program(3, b"/lib/ld-musl-x86_64.so.1\0"),
                0o755,
                "GNU C library",
            ),
            (b"\x7fELF\x01".to_vec(), 0o755, "x86-64"),
            (
                program(4, b"\x04\0\0\0\x04\0\0\0\x04\0\0\0Go\0\0name"),
                0o755,
                "Go",
            ),
        ] {
            let judged = judged(&bytes, mode);
            assert!(
                judged.as_ref().is_some_and(|text| text.contains(why)),
                "{judged:?}"
            );
        }
    }

    #[test]
    fn a_script_is_judged_by_its_interpreter() {
        let dir = tempfile::tempdir().expect("a directory");
        let fixed = dir.path().join("fixed");
        std::fs::write(&fixed, program(1, b"")).expect("written");
        let script = format!("#! {} -x\nthe script\n", fixed.display());
        let judged = judged(script.as_bytes(), 0o755);
        assert!(judged.is_some_and(|text| text.contains("statically")));
    }
}
