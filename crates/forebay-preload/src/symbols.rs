//! Functions of the libraries behind ours, found where the dynamic linker would find them, but without its locks and without
//! memory: so a function is looked for when it is first called, be it in a signal handler or in a forked child.
//!
//! The libraries that the program was started with never go, and their tables never change: [`at_start`] notes where these are.
//! What they do not have is `dlsym`'s to find, and so is everything where one of them has no table of the kind that is read here.
//! Debug builds ask `dlsym` each time, and stop where it says otherwise.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_int, c_void, size_t};

/// Libraries behind ours at most; with more, `dlsym` is asked.
const LIBRARIES_MAX: usize = 128;

/// A name and its hash. Two words, so that code hands it on in registers: a record in memory would have an address in it, which the linker
/// writes in each process.
#[derive(Clone, Copy)]
pub struct Name {
    /// Ends in a null byte, and stays.
    name: *const c_char,
    hash: u32,
}

impl Name {
    /// Of a literal that ends in a null byte.
    pub const fn new(name: &'static str) -> Self {
        let Ok(name) = CStr::from_bytes_with_nul(name.as_bytes()) else {
            panic!("a name ends in a null byte");
        };
        let bytes = name.to_bytes();
        let mut hash = 5381u32;
        let mut at = 0;
        while at < bytes.len() {
            hash = hash.wrapping_mul(33).wrapping_add(bytes[at] as u32);
            at += 1;
        }
        Name {
            name: name.as_ptr(),
            hash,
        }
    }

    /// As C has it.
    pub fn as_c(self) -> &'static CStr {
        // SAFETY: made of a `'static` string of C.
        unsafe { CStr::from_ptr(self.name) }
    }
}

/// A library's tables.
#[derive(Clone, Copy)]
struct Library {
    base: usize,
    symbols: *const libc::Elf64_Sym,
    strings: *const libc::c_char,
    /// Null where symbols have no versions.
    versions: *const u16,
    /// `DT_GNU_HASH`.
    hashes: *const u32,
}

/// What is behind a hash in a library.
enum Found {
    Nothing,
    Function(*mut c_void),
    /// A function that chooses the function.
    Chooser,
}

struct Libraries(UnsafeCell<[Library; LIBRARIES_MAX]>);

// SAFETY: written by the constructor of this library, before `COUNT` says that there is anything, and never again.
unsafe impl Sync for Libraries {}

const NONE: Library = Library {
    base: 0,
    symbols: ptr::null(),
    strings: ptr::null(),
    versions: ptr::null(),
    hashes: ptr::null(),
};

static LIBRARIES: Libraries = Libraries(UnsafeCell::new([NONE; LIBRARIES_MAX]));
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// What [`note`] has come to.
struct Walk {
    /// Our library has been passed.
    is_behind: bool,
    count: usize,
    /// One has no table of hashes, or there are too many.
    failed: bool,
}

/// Notes where the libraries' tables are. Whether [`find`] finds anything from now on.
pub fn at_start() -> bool {
    let mut walk = Walk {
        is_behind: false,
        count: 0,
        failed: false,
    };
    // SAFETY: the function is called with our own structure, before this returns.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut walk).cast()) };
    if walk.failed {
        return false;
    }
    COUNT.store(walk.count, Ordering::Release);
    walk.count != 0
}

/// # Safety
/// For `dl_iterate_phdr`, with a [`Walk`].
unsafe extern "C" fn note(
    info: *mut libc::dl_phdr_info,
    _size: size_t,
    walk: *mut c_void,
) -> c_int {
    // SAFETY: what the linker says of a library that is loaded, and the caller's structure.
    let (info, walk) = unsafe { (&*info, &mut *walk.cast::<Walk>()) };
    if !walk.is_behind {
        walk.is_behind = is_ours(info);
        return 0;
    }
    match tables_of(info) {
        Some(library) if walk.count < LIBRARIES_MAX => {
            // SAFETY: nobody reads them before `COUNT` is set, which is after this.
            unsafe { (*LIBRARIES.0.get())[walk.count] = library };
            walk.count += 1;
            0
        }
        _ => {
            walk.failed = true;
            1
        }
    }
}

fn segments(info: &libc::dl_phdr_info) -> &[libc::Elf64_Phdr] {
    // SAFETY: the library's own list, which lies in its first page.
    unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) }
}

fn is_ours(info: &libc::dl_phdr_info) -> bool {
    let at = (at_start as *const ()).addr() as u64;
    segments(info).iter().any(|segment| {
        let begin = info.dlpi_addr + segment.p_vaddr;
        segment.p_type == libc::PT_LOAD && (begin..begin + segment.p_memsz).contains(&at)
    })
}

fn tables_of(info: &libc::dl_phdr_info) -> Option<Library> {
    const DT_NULL: u64 = 0;
    const DT_STRTAB: u64 = 5;
    const DT_SYMTAB: u64 = 6;
    const DT_GNU_HASH: u64 = 0x6fff_fef5;
    const DT_VERSYM: u64 = 0x6fff_fff0;
    let base = info.dlpi_addr as usize;
    let dynamic = segments(info)
        .iter()
        .find(|segment| segment.p_type == libc::PT_DYNAMIC)?;
    let mut entry: *const [u64; 2] =
        ptr::with_exposed_provenance(base.wrapping_add(dynamic.p_vaddr as usize));
    let mut library = Library { base, ..NONE };
    loop {
        // SAFETY: a list of pairs that ends in one of zeros, mapped as long as the library is.
        let [tag, value] = unsafe { entry.read() };
        // The linker has made addresses of those that it may write to.
        let address = match value as usize {
            value if value < base => value + base,
            value => value,
        };
        match tag {
            DT_NULL => break,
            DT_STRTAB => library.strings = ptr::with_exposed_provenance(address),
            DT_SYMTAB => library.symbols = ptr::with_exposed_provenance(address),
            DT_GNU_HASH => library.hashes = ptr::with_exposed_provenance(address),
            DT_VERSYM => library.versions = ptr::with_exposed_provenance(address),
            _ => {}
        }
        entry = entry.wrapping_add(1);
    }
    let all = ![library.symbols.cast::<u8>(), library.strings.cast()]
        .iter()
        .any(|table| table.is_null());
    (all && !library.hashes.is_null()).then_some(library)
}

/// The next definition of a name after ours, in one of the libraries that the program was started with. Null where there is
/// none, or where it is not known.
pub fn find(name: Name) -> *mut c_void {
    let count = COUNT.load(Ordering::Acquire);
    for index in 0..count {
        // SAFETY: written before `COUNT` was set.
        let library = unsafe { (*LIBRARIES.0.get())[index] };
        match library.find(name) {
            Found::Nothing => {}
            Found::Function(function) => {
                debug_assert_eq!(function, by_linker(name), "{:?}", name.as_c());
                return function;
            }
            Found::Chooser => return by_linker(name),
        }
    }
    ptr::null_mut()
}

/// Whether one library behind ours has all of these: none is another library's, which stands in for it and not for the rest.
pub fn are_of_one(names: &[Name]) -> bool {
    let count = COUNT.load(Ordering::Acquire);
    let has = |library: Library, name: &Name| !matches!(library.find(*name), Found::Nothing);
    for index in 0..count {
        // SAFETY: written before `COUNT` was set, and never again.
        let library = unsafe { (*LIBRARIES.0.get())[index] };
        if names.iter().any(|name| has(library, name)) {
            return names.iter().all(|name| has(library, name));
        }
    }
    false
}

/// As [`find`], also in libraries that have come later.
pub fn find_anywhere(name: Name) -> *mut c_void {
    let found = find(name);
    if found.is_null() {
        by_linker(name)
    } else {
        found
    }
}

fn by_linker(name: Name) -> *mut c_void {
    // SAFETY: a name that ends in a null byte.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.name) }
}

impl Library {
    fn find(self, name: Name) -> Found {
        let hash = name.hash;
        // SAFETY: the table as the linker reads it: four numbers, a filter of words, the buckets, and a chain of hashes, the last of
        // a bucket with its lowest bit set. Mapped and unchanged as long as the program runs.
        unsafe {
            let [buckets, first, words, shift] = self.hashes.cast::<[u32; 4]>().read();
            let filter = self.hashes.add(4).cast::<u64>();
            let word = filter.add((hash / 64 % words) as usize).read_unaligned();
            if word >> (hash % 64) & word >> ((hash >> shift) % 64) & 1 == 0 {
                return Found::Nothing;
            }
            let bucket = filter.add(words as usize).cast::<u32>();
            let chain = bucket.add(buckets as usize);
            let mut index = bucket.add((hash % buckets) as usize).read();
            while index >= first {
                let seen = chain.add((index - first) as usize).read();
                if seen | 1 == hash | 1 {
                    match self.look(index as usize, name) {
                        Found::Nothing => {}
                        found => return found,
                    }
                }
                if seen & 1 != 0 {
                    break;
                }
                index += 1;
            }
        }
        Found::Nothing
    }

    /// Whether a symbol is the one of that name that a program without wishes gets.
    ///
    /// # Safety
    /// There is a symbol of that number.
    unsafe fn look(self, index: usize, name: Name) -> Found {
        const HIDDEN: u16 = 1 << 15;
        const KINDS: [u8; 3] = [0, 1, 2];
        const CHOOSER: u8 = 10;
        // SAFETY: the caller's promise; names end in null bytes.
        let (symbol, is_it) = unsafe {
            let symbol = self.symbols.add(index).read();
            let same = CStr::from_ptr(self.strings.add(symbol.st_name as usize)) == name.as_c();
            let is_default = self.versions.is_null() || {
                let version = self.versions.add(index).read();
                version & !HIDDEN < 2 || version & HIDDEN == 0
            };
            (symbol, same && is_default)
        };
        if !is_it || symbol.st_shndx == 0 || symbol.st_value == 0 {
            return Found::Nothing;
        }
        match symbol.st_info & 15 {
            CHOOSER => Found::Chooser,
            kind if KINDS.contains(&kind) => {
                let address = self.base.wrapping_add(symbol.st_value as usize);
                Found::Function(ptr::with_exposed_provenance_mut(address))
            }
            _ => Found::Nothing,
        }
    }
}
