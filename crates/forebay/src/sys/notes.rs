//! Notes of ELF files (`PT_NOTE`), of this machine's byte order: a name, a kind, and bytes.

/// A note.
pub struct Note<'a> {
    /// Whose it is, with the null byte at its end.
    pub name: &'a [u8],
    /// What it tells, which only its owner knows.
    pub kind: u32,
    /// Where its bytes begin, from the first note's beginning on.
    pub at: usize,
    /// Its bytes.
    pub bytes: &'a [u8],
}

impl Note<'_> {
    /// Whether it is of this owner and kind.
    pub fn is(&self, name: &[u8], kind: u32) -> bool {
        self.name == name && self.kind == kind
    }

    /// Whether it is the one with which Go's linker marks a program.
    pub fn is_go(&self) -> bool {
        self.is(b"Go\0\0", 4)
    }
}

/// Those that one segment has, as far as they are whole.
pub fn each(notes: &[u8]) -> impl Iterator<Item = Note<'_>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let number = |at: usize| {
            let bytes = notes.get(at..at.checked_add(4)?)?;
            Some(u32::from_ne_bytes(bytes.try_into().ok()?))
        };
        let (name, bytes, kind) = (
            number(at)? as usize,
            number(at + 4)? as usize,
            number(at + 8)?,
        );
        let from = at + 12;
        let begin = from.checked_add(name)?.next_multiple_of(4);
        let end = begin.checked_add(bytes)?;
        at = end.next_multiple_of(4);
        Some(Note {
            name: notes.get(from..from + name)?,
            kind,
            at: begin,
            bytes: notes.get(begin..end)?,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::each;

    #[test]
    fn notes_are_read_as_far_as_they_are_whole() {
        let mut notes = Vec::new();
        for (name, kind, bytes) in [(&b"GNU\0"[..], 3u32, &b"12345"[..]), (b"Go\0\0", 4, b"id")] {
            for number in [name.len() as u32, bytes.len() as u32, kind] {
                notes.extend(number.to_ne_bytes());
            }
            notes.extend(name);
            notes.extend(bytes);
            notes.resize(notes.len().next_multiple_of(4), 0);
        }
        let seen: Vec<_> = each(&notes)
            .map(|note| (note.at, note.bytes.to_vec(), note.is_go()))
            .collect();
        let wanted = [(16, b"12345".to_vec(), false), (40, b"id".to_vec(), true)];
        assert_eq!(seen, wanted);
        assert_eq!(each(&notes[..30]).count(), 1);
        assert_eq!(each(&[0xff; 64]).count(), 0);
    }
}
