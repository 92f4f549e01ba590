//! Every policy, any request, any situation: the plan is complete, in order, and direct parts are
//! whole blocks. The checker itself is checked with routes that are broken on purpose.

use proptest::prelude::*;

use super::super::*;
use super::{BLOCK, MIB, calm, every_route};
use crate::limits::FILE_BYTES_MAX;

/// Offsets and lengths crowd around block boundaries, where mistakes are made.
fn any_request() -> impl Strategy<Value = WriteRequest> {
    let near_block =
        (0..64u64, 0..5u64).prop_map(|(block, by)| (block * BLOCK + by).saturating_sub(2));
    let offset = prop_oneof![near_block.clone(), 0..8 * MIB, 0..FILE_BYTES_MAX];
    let len = prop_oneof![near_block, 0..3 * BLOCK, 0..64 * MIB, 0..FILE_BYTES_MAX];
    (offset, len, any::<bool>()).prop_map(|(offset, len, memory_aligned)| WriteRequest {
        offset,
        len,
        memory_aligned,
    })
}

pub(super) fn any_situation() -> impl Strategy<Value = Situation> {
    let facts = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let speed = prop_oneof![Just(0), Just(u64::MAX), 1_000_000..100_000_000_000u64];
    let time = prop_oneof![Just(0), Just(u64::MAX), 1..10_000_000u64];
    let provide = time.clone();
    let speeds = (speed.clone(), time.clone(), speed.clone(), time, speed);
    let cached = prop_oneof![Just(0), 0..8 * MIB, any::<u64>()];
    let memory = (0..=1024u64, cached, provide, 0..32u64);
    (memory, facts, speeds).prop_map(|((dirty, cached_bytes, provide_ns, turn), facts, speeds)| {
        Situation {
            memory_pressure: Pressure::of(dirty, 1024),
            pressure_after: Pressure::of(dirty + turn * 16, 1024),
            device_busy: facts.0,
            cached_bytes,
            provide_ns,
            turn,
            device: DeviceSpeed {
                write_bytes_per_second: speeds.0,
                write_latency_ns: speeds.1,
            },
            copy: CopySpeed {
                bytes_per_second: speeds.2,
                per_block_ns: speeds.3,
                bounce_bytes_per_second: speeds.4,
            },
            extends: facts.1,
            hole: facts.2,
            sync: facts.3,
            flush_syncs: false,
        }
    })
}

/// What [`Plan::check`] says, and the same once more by adding up.
fn check(plan: &Plan, request: &WriteRequest) -> Result<(), Flaw> {
    plan.check(request)?;
    assert_eq!(plan.parts().map(|part| part.len).sum::<u64>(), request.len);
    assert!(plan.parts().all(|part| part.len > 0));
    for part in plan.parts().filter(|part| part.way == Way::Direct) {
        assert!(part.offset % BLOCK == 0 && part.len % BLOCK == 0 && part.len >= BLOCK);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_plan_covers_its_request(request in any_request(), situation in any_situation()) {
        for route in every_route() {
            let plan = route.plan(&request, &situation);
            prop_assert_eq!(check(&plan, &request), Ok(()), "{:?}", route);
        }
    }

    #[test]
    fn memory_alignment_moves_no_byte_out_of_the_plan(
        request in any_request(),
        situation in any_situation(),
    ) {
        let turned = WriteRequest { memory_aligned: !request.memory_aligned, ..request };
        for route in every_route() {
            prop_assert_eq!(check(&route.plan(&turned, &situation), &request), Ok(()));
        }
    }

    #[test]
    fn what_is_quick_would_have_been_planned_the_same(
        request in any_request(),
        situation in any_situation(),
    ) {
        for route in every_route() {
            if request.len > 0 && request.len < route.quick_scrap_below() {
                let ways: Vec<Way> = route.plan(&request, &situation).parts().map(|p| p.way).collect();
                prop_assert_eq!(ways, vec![Way::SCRAP], "{:?}", route);
            }
        }
    }

    #[test]
    fn plans_depend_on_their_arguments_only(request in any_request(), situation in any_situation()) {
        for route in every_route() {
            prop_assert_eq!(route.plan(&request, &situation), route.plan(&request, &situation));
        }
    }
}

#[test]
fn a_request_of_nothing_has_no_parts() {
    for route in every_route() {
        for offset in [0, 1, BLOCK, u64::MAX] {
            let request = WriteRequest {
                offset,
                len: 0,
                memory_aligned: true,
            };
            assert_eq!(
                route.plan(&request, &calm()).parts().count(),
                0,
                "{route:?}"
            );
        }
    }
}

#[test]
fn the_last_bytes_of_64_bits_have_a_plan() {
    for len in [1, BLOCK - 1, BLOCK, 8 * MIB] {
        let request = WriteRequest {
            offset: u64::MAX - len,
            len,
            memory_aligned: true,
        };
        for route in every_route() {
            assert_eq!(
                route.plan(&request, &calm()).check(&request),
                Ok(()),
                "{route:?}"
            );
        }
    }
}

#[test]
fn a_middle_is_whole_blocks_or_nothing() {
    let middle = |offset, len| {
        aligned_middle(&WriteRequest {
            offset,
            len,
            memory_aligned: true,
        })
    };
    assert_eq!(middle(0, BLOCK), Some((0, BLOCK)));
    assert_eq!(middle(0, BLOCK - 1), None);
    assert_eq!(middle(1, BLOCK), None);
    assert_eq!(middle(1, 2 * BLOCK - 2), None);
    assert_eq!(middle(1, 2 * BLOCK - 1), Some((BLOCK, 2 * BLOCK)));
    assert_eq!(middle(BLOCK - 1, 2 * BLOCK), Some((BLOCK, 2 * BLOCK)));
}

/// A good plan, spoilt.
#[derive(Debug)]
struct Broken(&'static str, fn(&mut Plan));

impl Route for Broken {
    fn name(&self) -> &'static str {
        self.0
    }

    fn plan(&self, request: &WriteRequest, _: &Situation) -> Plan {
        let mut plan = Plan::split(request).unwrap();
        (self.1)(&mut plan);
        plan
    }

    fn quick_scrap_below(&self) -> u64 {
        0
    }
}

#[test]
fn canary_broken_routes_are_caught() {
    let broken = [
        Broken("loses the head", |plan| plan.head.len = 0),
        Broken("loses the tail", |plan| plan.tail.len = 0),
        Broken("loses the head's last byte", |plan| plan.head.len -= 1),
        Broken("goes beyond the end", |plan| plan.tail.len += 1),
        Broken("writes a byte twice", |plan| plan.middle.offset -= 1),
        Broken("swaps its ends", |plan| {
            std::mem::swap(&mut plan.head, &mut plan.tail)
        }),
        Broken("sends a ragged head", |plan| plan.head.way = Way::Direct),
        Broken("sends a ragged tail", |plan| plan.tail.way = Way::Direct),
        Broken("wraps around", |plan| plan.tail.len = u64::MAX),
    ];
    let request = WriteRequest {
        offset: 10,
        len: 3 * BLOCK,
        memory_aligned: true,
    };
    assert_eq!(
        Broken("is whole", |_| {})
            .plan(&request, &calm())
            .check(&request),
        Ok(())
    );
    for route in broken {
        let plan = route.plan(&request, &calm());
        assert!(
            plan.check(&request).is_err(),
            "not caught: a route that {}",
            route.name()
        );
    }
}
