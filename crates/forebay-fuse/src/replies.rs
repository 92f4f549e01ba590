//! Answers to the kernel's requests, by their kinds.

use std::io::IoSlice;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use forebay::sys::extents::STORE_SPACE;
use rustix::fs::{FileType, StatVfs};

use crate::attributes::{FileAttr, Time};
use crate::contents::{Part, SET_GROUP, SET_USER};
use crate::failed::{Answer, Failed};
use crate::names::{Listed, is_dots};
use crate::nodes::ROOT;
use crate::served::Served;
use crate::transport::Unanswered;
use crate::wire::{
    AttrOut, CreateOut, Dirent, EntryOut, Field, GetxattrOut, IoctlOut, OpenOut, SpaceOut,
    StatfsOut, SyncedOut,
};

/// The longest value of an extended attribute, and the longest list of names.
const ATTRIBUTE_BYTES_MAX: usize = 64 << 10;
/// Structures that are answered are no longer.
const ANSWER_BYTES_MAX: usize = 160;
/// Entries of directories begin at multiples of so many bytes.
const ENTRY_ALIGN: usize = 8;

/// Answers with a structure, or with why there is none.
pub(crate) fn reply<T: Field>(to: Unanswered, answer: Answer<T>) {
    const { assert!(T::SIZE <= ANSWER_BYTES_MAX) };
    match answer {
        Ok(answer) => {
            let mut memory = [0; ANSWER_BYTES_MAX];
            let bytes = &mut memory[..T::SIZE];
            answer.to_wire(bytes);
            to.send(&[IoSlice::new(bytes)]);
        }
        Err(failed) => to.fail(failed),
    }
}

/// What tells a file from earlier ones of the same number; the kernel makes file handles of both.
pub(crate) fn generation<F: Served>(told: &FileAttr) -> u64 {
    match told.born {
        Some(born) if F::ALONE && told.number != ROOT => born.ns().max(0) as u64,
        // Numbers are not used for another file as long as the kernel knows them.
        _ => 0,
    }
}

/// How long the kernel may believe this. It does not know that a program has lost its privileges by being written to.
fn believed(told: &FileAttr, so_long: Duration) -> Duration {
    match told.is_regular() && told.mode & (SET_USER | SET_GROUP) != 0 {
        true => Duration::ZERO,
        false => so_long,
    }
}

pub(crate) fn entry<F: Served>(served: &F, told: &FileAttr) -> EntryOut {
    let of_it = believed(told, told.believed.unwrap_or(served.believed()));
    EntryOut {
        nodeid: told.number,
        generation: generation::<F>(told),
        attr: told.to_wire(),
        attr_valid: of_it.as_secs(),
        attr_valid_nsec: of_it.subsec_nanos(),
        ..believed_entry(believed(told, served.believed()))
    }
}

fn believed_entry(believed: Duration) -> EntryOut {
    EntryOut {
        entry_valid: believed.as_secs(),
        entry_valid_nsec: believed.subsec_nanos(),
        attr_valid: believed.as_secs(),
        attr_valid_nsec: believed.subsec_nanos(),
        ..EntryOut::default()
    }
}

/// What a lookup has found. That a name is not there is believed like one that is, where nobody else makes any: the kernel takes the file
/// number 0 for it.
pub(crate) fn found_or_absent<F: Served>(served: &F, found: Answer<FileAttr>) -> Answer<EntryOut> {
    match found {
        Err(Failed(libc::ENOENT)) if F::ALONE => Ok(believed_entry(served.believed())),
        found => Ok(entry(served, &found?)),
    }
}

pub(crate) fn created<F: Served>(served: &F, told: &FileAttr, handle: u64) -> CreateOut {
    CreateOut {
        entry: entry(served, told),
        opened: opened(handle, F::AS_OPENED),
    }
}

pub(crate) fn attributes(served: &impl Served, told: &FileAttr) -> AttrOut {
    let believed = believed(told, told.believed.unwrap_or(served.believed()));
    AttrOut {
        attr_valid: believed.as_secs(),
        attr_valid_nsec: believed.subsec_nanos(),
        dummy: 0,
        attr: told.to_wire(),
    }
}

pub(crate) fn opened(handle: u64, flags: u32) -> OpenOut {
    OpenOut {
        fh: handle,
        open_flags: flags,
        backing_id: 0,
    }
}

/// What the file is like, and everything that was done before is durable. In this order: a sync changes nothing of it, and what others change during the
/// sync is not told for the asker's doing.
pub(crate) fn synced(served: &impl Served, handle: u64, number: u64) -> Answer<SyncedOut> {
    if served.store() == 0 {
        return Err(Failed(libc::ENOTTY));
    }
    // What cannot be told is no failed sync: the asker then makes two requests of it.
    let of = served
        .attributes(number)
        .map_err(|_| Failed(libc::ENOTTY))?;
    served.sync(handle, false)?;
    // As the engine reads what `statx` says: earlier times as 1970.
    let ns = |time: Time| u64::try_from(time.ns().max(0)).unwrap_or(u64::MAX);
    Ok(SyncedOut {
        about: IoctlOut::default(),
        found: [
            of.size,
            of.blocks * 512,
            ns(of.modified),
            ns(of.changed),
            of.links.into(),
        ],
    })
}

/// How far a file has space, and of which store it is.
pub(crate) fn space(served: &impl Served, at: Part, asked: (u32, &[u8])) -> Answer<SpaceOut> {
    match asked {
        (STORE_SPACE, range) if range.len() == 16 => {
            let [start, end] = <[u64; 2]>::from_wire(range);
            let at = Part {
                offset: start,
                ..at
            };
            Ok(SpaceOut {
                about: IoctlOut::default(),
                range: [served.allocated_to(at, end)?, served.store()],
            })
        }
        _ => Err(Failed(libc::ENOTTY)),
    }
}

/// What there is of room in a file system.
pub(crate) fn room(found: &StatVfs) -> StatfsOut {
    StatfsOut {
        blocks: found.f_blocks,
        bfree: found.f_bfree,
        bavail: found.f_bavail,
        files: found.f_files,
        ffree: found.f_ffree,
        bsize: found.f_bsize as u32,
        namelen: found.f_namemax as u32,
        frsize: found.f_frsize as u32,
        ..StatfsOut::default()
    }
}

/// Asks for bytes of so many at most; where none are wanted, for their number.
pub(crate) fn told_bytes(size: u32, to: Unanswered, ask: impl FnOnce(&mut [u8]) -> Answer<usize>) {
    match size {
        0 => {
            let size = ask(&mut []).map(|len| GetxattrOut {
                size: len as u32,
                padding: 0,
            });
            reply(to, size);
        }
        size => to.fill(ATTRIBUTE_BYTES_MAX.min(size as usize), ask),
    }
}

/// Entries of a directory, one after the other in memory.
pub(crate) struct Entries<'a> {
    memory: &'a mut [u8],
    used: usize,
}

impl<'a> Entries<'a> {
    pub(crate) fn new(memory: &'a mut [u8]) -> Self {
        Entries { memory, used: 0 }
    }

    /// Bytes of all that there are.
    pub(crate) fn len(&self) -> usize {
        self.used
    }

    /// Adds one; whether there was no room for it. `told`: what comes before it, where the kernel is told of the file as well.
    pub(crate) fn add(&mut self, listed: &Listed<'_>, told: Option<&EntryOut>) -> bool {
        let about = Dirent {
            ino: listed.inode,
            off: listed.next,
            namelen: listed.name.len() as u32,
            kind: match listed.kind {
                FileType::Unknown => 0,
                kind => kind.as_raw_mode() >> 12,
            },
        };
        let told = told.map(EntryOut::bytes);
        let parts = [
            told.as_ref().map_or(&[][..], |told| &told[..]),
            &about.bytes(),
            listed.name.as_bytes(),
        ];
        let len = parts.iter().map(|part| part.len()).sum::<usize>();
        let end = self.used + len.next_multiple_of(ENTRY_ALIGN);
        let Some(memory) = self.memory.get_mut(self.used..end) else {
            return true;
        };
        let mut rest = memory;
        for part in parts {
            let (here, after) = rest.split_at_mut(part.len());
            here.copy_from_slice(part);
            rest = after;
        }
        rest.fill(0);
        self.used = end;
        false
    }
}

/// Lists an open directory (its number and its handle), each entry as a lookup would tell it.
pub(crate) fn list_with_attributes<F: Served>(
    served: &F,
    (number, handle): (u64, u64),
    from: u64,
    entries: &mut Entries<'_>,
) -> Answer<()> {
    let mut answered = Answered::default();
    let listed = served.list(handle, from, |listed| {
        // Of these two the kernel takes the name alone.
        let is_dots = is_dots(listed.name);
        let told = match is_dots {
            true => served.attributes(number).map(|told| FileAttr {
                number: listed.inode,
                ..told
            }),
            false => served.look_up(number, listed.name),
        };
        answered.take(told, |told| {
            let listed = Listed {
                inode: told.number,
                kind: FileType::from_raw_mode(told.mode),
                ..*listed
            };
            let is_full = entries.add(&listed, Some(&entry(served, told)));
            if is_full && !is_dots {
                served.forget(told.number, 1);
            }
            is_full
        })
    });
    answered.end(listed)
}

/// How far a listing with attributes has come.
#[derive(Default)]
struct Answered {
    any: bool,
    failed: Option<Failed>,
}

impl Answered {
    /// Takes what is told of the next name; `add` says whether there was no room for it. Whether the list ends here.
    fn take(&mut self, told: Answer<FileAttr>, add: impl FnOnce(&FileAttr) -> bool) -> bool {
        match told {
            Ok(told) => {
                let is_full = add(&told);
                self.any |= !is_full;
                is_full
            }
            // It has gone since.
            Err(Failed(libc::ENOENT)) => false,
            // The list ends before it.
            Err(why) => {
                self.failed = Some(why);
                true
            }
        }
    }

    /// An error after the first name is the next answer's, which begins with it: an empty one is the directory's end.
    fn end(self, listed: Answer<()>) -> Answer<()> {
        match self.any {
            true => Ok(()),
            false => listed.and(self.failed.map_or(Ok(()), Err)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::tests::Kernel;

    fn listed(name: &str) -> Listed<'_> {
        Listed {
            name: name.as_ref(),
            inode: 5,
            kind: FileType::Directory,
            next: 9,
        }
    }

    /// A name of a directory as it travels: file 5, a directory, the next one at 9, zeros up to a multiple of eight bytes.
    fn travelling(name: &[u8], zeros: usize) -> Vec<u8> {
        let mut bytes = [5_u64, 9].map(u64::to_ne_bytes).concat();
        bytes.extend([name.len() as u32, 4].map(u32::to_ne_bytes).concat());
        bytes.extend(name);
        bytes.resize(bytes.len() + zeros, 0);
        bytes
    }

    #[test]
    fn names_of_a_directory_are_packed_as_long_as_there_is_room() {
        // What was there before does not travel.
        let mut memory = [0xee; 24 + 8 + 24 + 16];
        let mut entries = Entries::new(&mut memory);
        assert!(!entries.add(&listed("abc"), None));
        assert!(!entries.add(&listed("sixteen letters!"), None));
        assert!(entries.add(&listed(""), None));
        assert_eq!(entries.len(), memory.len());
        let expected = [travelling(b"abc", 5), travelling(b"sixteen letters!", 0)];
        assert_eq!(memory[..], expected.concat());
        // One byte less, and the second one has no room.
        let mut entries = Entries::new(&mut memory[1..]);
        assert!(!entries.add(&listed("abc"), None));
        assert!(entries.add(&listed("sixteen letters!"), None));
        assert_eq!(entries.len(), 32);
        assert!(Entries::new(&mut []).add(&listed("a"), None));
    }

    #[test]
    fn a_name_that_is_told_with_its_file_follows_what_is_told() {
        let told = EntryOut {
            nodeid: 5,
            generation: 6,
            ..EntryOut::default()
        };
        let mut memory = [0xee; 128 + 32];
        let mut entries = Entries::new(&mut memory);
        assert!(!entries.add(&listed("a"), Some(&told)));
        assert_eq!(entries.len(), memory.len());
        assert_eq!(memory[..128], told.bytes());
        assert_eq!(memory[128..], travelling(b"a", 7));
        assert!(Entries::new(&mut memory[1..]).add(&listed("a"), Some(&told)));
    }

    #[test]
    fn a_type_that_is_not_known_is_told_as_that() {
        let unknown = Listed {
            kind: FileType::Unknown,
            ..listed("a")
        };
        let mut memory = [0xee; 32];
        assert!(!Entries::new(&mut memory).add(&unknown, None));
        assert_eq!(Dirent::parse(&memory).map(|about| about.kind), Some(0));
    }

    #[test]
    fn bytes_are_told_or_how_many_they_are() {
        let kernel = Kernel::new();
        let value = |memory: &mut [u8]| match memory.len() {
            0 => Ok(3),
            1..3 => Err(Failed(libc::ERANGE)),
            _ => {
                memory[..3].copy_from_slice(b"abc");
                Ok(3)
            }
        };
        let told = |size| {
            told_bytes(size, kernel.waits_for(1), value);
            kernel.answered().expect("an answer")
        };
        let size = GetxattrOut {
            size: 3,
            padding: 0,
        };
        assert_eq!(told(0), (1, 0, size.bytes().to_vec()));
        assert_eq!(told(2), (1, -libc::ERANGE, vec![]));
        assert_eq!(told(3), (1, 0, b"abc".to_vec()));
        // However much memory a program has, the longest value takes no more.
        assert_eq!(told(u32::MAX), (1, 0, b"abc".to_vec()));
    }

    /// What a listing answers of which this is told: how many names, or an error. There is room for so many.
    fn answer(told: &[Answer<()>], room: usize) -> Answer<usize> {
        let (mut answered, mut names) = (Answered::default(), 0);
        for told in told {
            let is_over = answered.take(told.map(|()| FileAttr::default()), |_| {
                let is_full = names == room;
                names += usize::from(!is_full);
                is_full
            });
            if is_over {
                break;
            }
        }
        answered.end(Ok(())).map(|()| names)
    }

    #[test]
    fn an_answer_without_a_name_is_the_directorys_end_or_an_error() {
        let (gone, fails) = (Err(Failed(libc::ENOENT)), Err(Failed(libc::ESTALE)));
        assert_eq!(answer(&[], 9), Ok(0));
        assert_eq!(answer(&[gone, gone], 9), Ok(0));
        assert_eq!(answer(&[gone, Ok(()), gone, Ok(())], 9), Ok(2));
        // Every look-up fails, the first or a later one.
        assert_eq!(answer(&[fails, fails], 9), Err(Failed(libc::ESTALE)));
        assert_eq!(answer(&[gone, fails], 9), Err(Failed(libc::ESTALE)));
        // What there is is told first.
        assert_eq!(answer(&[Ok(()), fails, Ok(())], 9), Ok(1));
        assert_eq!(answer(&[Ok(()), Ok(()), fails], 1), Ok(1));
        let answered = Answered {
            any: true,
            failed: None,
        };
        assert_eq!(answered.end(Err(Failed(libc::EIO))), Ok(()));
        let failed = Answered::default().end(Err(Failed(libc::EIO)));
        assert_eq!(failed, Err(Failed(libc::EIO)));
    }
}
