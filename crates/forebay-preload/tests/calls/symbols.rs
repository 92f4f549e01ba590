//! Dynamic symbols of ELF files.

use std::collections::BTreeSet;
use std::path::Path;

use goblin::elf::Elf;
use goblin::elf::sym::STT_FUNC;

/// What a file offers and wants.
pub struct Dynamic {
    /// Functions that it defines for others.
    pub exported: BTreeSet<String>,
    /// Names that others have to define.
    pub imported: BTreeSet<String>,
    /// Libraries.
    pub needed: Vec<String>,
}

/// `None`: no ELF file, or one without dynamic symbols.
pub fn of(file: &Path) -> Option<Dynamic> {
    let bytes = std::fs::read(file).ok()?;
    if !bytes.starts_with(b"\x7fELF") {
        return None;
    }
    let elf = Elf::parse(&bytes).ok()?;
    let mut dynamic = Dynamic {
        exported: BTreeSet::new(),
        imported: BTreeSet::new(),
        needed: elf.libraries.iter().map(ToString::to_string).collect(),
    };
    for symbol in &elf.dynsyms {
        let Some(name) = elf.dynstrtab.get_at(symbol.st_name) else {
            continue;
        };
        if symbol.is_import() {
            dynamic.imported.insert(name.to_owned());
        } else if symbol.st_type() == STT_FUNC && symbol.st_shndx != 0 {
            dynamic.exported.insert(name.to_owned());
        }
    }
    Some(dynamic)
}

/// The functions that a shared object defines for others.
pub fn exported(library: &Path) -> BTreeSet<String> {
    of(library).expect("a shared object").exported
}

/// The C library that this program has.
pub fn libc() -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("readable");
    let mut words = maps.lines().flat_map(str::split_whitespace);
    let libc = words.find(|word| word.contains("/libc.so"));
    libc.expect("libc").to_owned()
}

/// A name of libc's without what distinguishes its variants.
pub fn stem(name: &str) -> &str {
    let prefixes = ["__isoc99_", "__isoc23_", "_IO_", "__", "_"];
    let name = prefixes
        .iter()
        .find_map(|prefix| name.strip_prefix(prefix))
        .unwrap_or(name);
    let name = name.strip_suffix("_chk").unwrap_or(name);
    let name = name.strip_suffix("_unlocked").unwrap_or(name);
    name.strip_suffix("64").unwrap_or(name)
}
