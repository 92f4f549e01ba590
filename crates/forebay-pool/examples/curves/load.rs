//! What the programs of a simulated pool do: one on each client's host, which asks for the next thing when the last one is done.

use bytes::Bytes;
use forebay_pool::client::{Answer, Entry, Facts, Kind, Mode, Operation};
use forebay_pool::ids::File;
use forebay_pool::rope::Rope;
use forebay_seed::random::Random;

use crate::world::{MS, Size, US, World};

/// What all programs do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Reads and writes 4 KiB past memory, in a file that no other client uses.
    Own,
    /// Reads and writes 4 KiB by memory, in files that ten clients share.
    Groups,
    /// The same in one file for all.
    Shared,
    /// Makes a file, takes its name away, and removes it, each in a directory of its own: three requests.
    Names,
}

impl What {
    pub const ALL: [What; 4] = [What::Own, What::Groups, What::Shared, What::Names];

    pub fn name(self) -> &'static str {
        match self {
            What::Own => "own files, remotely",
            What::Groups => "a file for ten, by memory",
            What::Shared => "a file for all, by memory",
            What::Names => "names",
        }
    }

    fn sharers(self, clients: u32) -> u32 {
        match self {
            What::Own | What::Names => 1,
            What::Groups => 10,
            What::Shared => clients,
        }
    }
}

/// Blocks of a file for each client that uses it.
const BLOCKS: u64 = 64;
/// Of a hundred requests, so many write.
const WRITES: usize = 30;
/// How long anything may take that a program waits for before the measurement.
const PATIENCE: u64 = 120_000 * MS;

/// Programs on a pool.
pub struct Load {
    pub world: World,
    size: Size,
    what: What,
    random: Random,
    block: Bytes,
    /// Of each client: its file, or its directory.
    files: Vec<File>,
    /// The file that a client has made last, and whether it has a name still.
    made: Vec<Option<(Entry, bool)>>,
    begun: Vec<u64>,
    /// How long a program pauses between two requests, at most.
    pub pause: u64,
    /// Nanoseconds that requests took.
    pub took: Vec<u64>,
    /// Of each client: when its last request ended, and the first that began after `watch` and ended.
    pub last: Vec<u64>,
}

impl Load {
    /// A pool that has begun, with all its files.
    pub fn new(world: World, size: Size, what: What) -> Load {
        let clients = size.clients as usize;
        let mut load = Load {
            world,
            size,
            what,
            random: Random::new(14),
            block: vec![5; size.block_bytes as usize].into(),
            files: vec![File::ROOT; clients],
            made: vec![None; clients],
            begun: vec![0; clients],
            pause: 0,
            took: Vec::new(),
            last: vec![0; clients],
        };
        while !load.world.is_settled() {
            let until = load.world.now + 10 * MS;
            load.world.step(until);
        }
        load.make_files();
        load
    }

    fn make_files(&mut self) {
        let sharers = self.what.sharers(self.size.clients);
        let makers: Vec<u32> = (0..self.size.clients).step_by(sharers as usize).collect();
        for client in &makers {
            let operation = if self.what == What::Names {
                Operation::Make {
                    parent: File::ROOT,
                    name: client.to_string().into_bytes(),
                    facts: Facts {
                        kind: Kind::Directory,
                        ..Facts::default()
                    },
                    bytes: Vec::new(),
                }
            } else {
                Operation::MakeNameless
            };
            self.world.begin(self.world.now, *client, 0, operation);
        }
        for (client, answer) in self.answers(makers.len()) {
            let Answer::Made(entry, true) = answer else {
                panic!("{answer:?}")
            };
            let all = self.size.clients.min(client + sharers);
            self.files[client as usize..all as usize].fill(entry.file);
        }
        if self.what == What::Names {
            return;
        }
        // Each of its users writes a part, one after the other, so that nobody makes it longer twice.
        for nth in 0..sharers {
            let users: Vec<u32> = { makers.iter().map(|maker| maker + nth) }
                .filter(|client| *client < self.size.clients)
                .collect();
            for sync in [false, true] {
                for client in &users {
                    let file = self.files[*client as usize];
                    let operation = if sync {
                        Operation::sync(file)
                    } else {
                        self.write(file, u64::from(nth) * BLOCKS, BLOCKS, Mode::Local)
                    };
                    self.world.begin(self.world.now, *client, 0, operation);
                }
                self.answers(users.len());
            }
        }
    }

    fn write(&self, file: File, block: u64, blocks: u64, mode: Mode) -> Operation {
        let mut bytes = Rope::default();
        (0..blocks).for_each(|_| bytes.push(self.block.clone()));
        Operation::Write {
            file,
            offset: block * self.size.block_bytes,
            bytes,
            mode,
        }
    }

    /// Waits for so many answers.
    fn answers(&mut self, count: usize) -> Vec<(u32, Answer)> {
        let until = self.world.now + PATIENCE;
        let mut all = Vec::new();
        while all.len() < count && self.world.step(until) {
            let ended = std::mem::take(&mut self.world.ended).into_iter();
            all.extend(ended.map(|ended| (ended.client, ended.result.expect("done"))));
        }
        assert_eq!(all.len(), count, "requests that did not end");
        all
    }

    fn next(&mut self, client: u32, at: u64) {
        let file = self.files[client as usize];
        let sharers = self.what.sharers(self.size.clients).min(self.size.clients);
        let block = self.random.below((BLOCKS * u64::from(sharers)) as usize) as u64;
        let mode = if self.what == What::Own {
            Mode::Remote
        } else {
            Mode::Local
        };
        let operation = match (self.what, self.made[client as usize].take()) {
            (What::Names, None) => Operation::Make {
                parent: file,
                name: b"file".to_vec(),
                facts: Facts::default(),
                bytes: Vec::new(),
            },
            (What::Names, Some((entry, true))) => {
                self.made[client as usize] = Some((entry, false));
                Operation::Unlink {
                    parent: file,
                    name: b"file".to_vec(),
                    entry,
                }
            }
            (What::Names, Some((entry, false))) => Operation::Remove { file: entry.file },
            _ if self.random.below(100) < WRITES => self.write(file, block, 1, mode),
            _ => Operation::Read {
                file,
                offset: block * self.size.block_bytes,
                length: self.size.block_bytes,
                mode,
            },
        };
        self.begun[client as usize] = at;
        self.world.begin(at, client, 1, operation);
    }

    /// All programs begin, within a millisecond.
    pub fn begin(&mut self) {
        for client in 0..self.size.clients {
            let at = self.world.now + self.random.below(MS as usize) as u64;
            self.next(client, at);
        }
    }

    /// They go on until then.
    pub fn run(&mut self, until: u64) {
        while self.world.step(until) {
            for ended in std::mem::take(&mut self.world.ended) {
                let client = ended.client as usize;
                if let Answer::Made(entry, _) = ended.result.expect("done") {
                    self.made[client] = Some((entry, true));
                }
                self.took.push(ended.at - self.begun[client]);
                self.last[client] = ended.at;
                let pause = if self.pause == 0 {
                    US
                } else {
                    self.random.below(self.pause as usize) as u64
                };
                self.next(ended.client, ended.at + pause);
            }
        }
    }
}
