//! Which servers have a block, and which one keeps the locks of a file.
//!
//! Highest random weight (Thaler and Ravishankar 1998), a form of consistent hashing: each server has a weight for each
//! key, and the heaviest ones have it. A server that joins takes from each other server the keys for which it is
//! heavier, one that leaves hands on its own keys alone, and copies are the next servers in the same order.
//! It asks every server for its weight, and keeps nothing.

use crate::ids::{BLOCK_OF_NAMES, File, Server};
use crate::random::mix2;

/// Where blocks of one key lie: the first is asked first.
pub fn owners(servers: &[Server], key: u64, copies: usize) -> Vec<Server> {
    let weight = |server: &Server| (mix2(key, u64::from(server.0)), server.0);
    if copies == 1 {
        return servers
            .iter()
            .copied()
            .max_by_key(weight)
            .into_iter()
            .collect();
    }
    // The few heaviest of many: they are asked for with each block, and to sort all servers takes ten times as long.
    let mut heaviest: Vec<((u64, u32), Server)> = Vec::with_capacity(copies.min(servers.len()) + 1);
    for server in servers {
        let weight = weight(server);
        let is_full = heaviest.len() >= copies;
        if is_full && heaviest.last().is_none_or(|last| last.0 > weight) {
            continue;
        }
        let at = heaviest.partition_point(|other| other.0 > weight);
        heaviest.insert(at, (weight, *server));
        heaviest.truncate(copies);
    }
    heaviest.into_iter().map(|(_, server)| server).collect()
}

/// The key of a block. Blocks of names lie together, so that two of them can be changed at once.
pub fn key_of_block(file: File, block: u64) -> u64 {
    let block = if file == File::NAMES {
        BLOCK_OF_NAMES
    } else {
        block
    };
    mix2(mix2(file.0, 1), block)
}

/// The server that keeps a file's locks; `None` if there is no server.
pub fn keeper_of_locks(servers: &[Server], file: File) -> Option<Server> {
    owners(servers, mix2(file.0, 2), 1).first().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(count: u32) -> Vec<Server> {
        (0..count).map(Server).collect()
    }

    fn keys() -> impl Iterator<Item = u64> {
        (0..20_000).map(|block| key_of_block(File(1 + block % 7), block))
    }

    #[test]
    fn every_server_has_its_share() {
        for count in [4, 16, 128] {
            let servers = servers(count);
            let mut shares = vec![0; count as usize];
            keys().for_each(|key| shares[owners(&servers, key, 1)[0].0 as usize] += 1);
            let fair = 20_000 / count;
            assert!(
                shares
                    .iter()
                    .all(|share| *share > fair / 2 && *share < fair * 2),
                "{shares:?}"
            );
        }
    }

    #[test]
    fn the_owners_are_the_heaviest_servers() {
        for key in keys().take(200) {
            for copies in 1..=6 {
                let mut all = servers(5);
                all.sort_by_key(|server| mix2(key, u64::from(server.0)));
                all.reverse();
                all.truncate(copies);
                assert_eq!(owners(&servers(5), key, copies), all);
            }
        }
    }

    #[test]
    fn copies_lie_on_servers_of_their_own() {
        for key in keys().take(500) {
            let found = owners(&servers(5), key, 3);
            assert_eq!(found.len(), 3);
            assert!(found[0] != found[1] && found[1] != found[2] && found[0] != found[2]);
            assert_eq!(owners(&servers(2), key, 3).len(), 2);
        }
    }

    #[test]
    fn who_joins_or_leaves_moves_its_own_share_only() {
        let (before, after) = (servers(10), servers(11));
        let mut moved = 0;
        for key in keys() {
            let (old, new) = (owners(&before, key, 2), owners(&after, key, 2));
            moved += u32::from(old != new);
            // The newcomer took one place; the others kept their order.
            let rest: Vec<Server> = new
                .iter()
                .copied()
                .filter(|server| *server != Server(10))
                .collect();
            assert_eq!(rest, old[..rest.len()]);
        }
        // Two of eleven places of each key are the newcomer's with this share: 20,000 x 2 / 11 = 3,636.
        assert!((3_000..4_300).contains(&moved), "{moved}");
    }
}
