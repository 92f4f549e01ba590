//! Where the table of descriptors is, for this process and for a keeper that looks at its memory.
//!
//! A keeper asks which of a process's descriptors the library knows: others were opened past it. So the library's file has a note
//! (`PT_NOTE`) that leads from its own address to [`WORDS`]: that costs the process nothing. The engine's
//! `keeper::outsiders::library` reads it, and relies on what is here: two words, the first word of the table and how many there are; and that
//! a descriptor's word is 0 where nothing is known of it.

use std::arch::global_asm;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize};

/// Where the words are, and how many.
#[repr(C)]
pub struct Words {
    pub first: AtomicPtr<AtomicU64>,
    pub len: AtomicUsize,
}

pub static WORDS: Words = Words {
    first: AtomicPtr::new(std::ptr::null_mut()),
    len: AtomicUsize::new(0),
};

// Lengths of the name and of what is told, a kind; the name; how far it is from there to the words.
global_asm!(
    ".pushsection .note.forebay,\"a\",@note",
    ".balign 4",
    ".long 8, 8, 1",
    ".ascii \"Forebay\\0\"",
    "2:",
    ".quad {words} - 2b",
    ".popsection",
    words = sym WORDS,
);
