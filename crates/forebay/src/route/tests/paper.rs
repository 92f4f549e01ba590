//! The paper's shares of data that go to memory (WSBuffer Table 4, and 4.2 for the direct shares).
//!
//! A uniformly placed request of L >= 256 KiB leaves 256 KiB in its ragged ends on average, so the
//! share to memory is 256 KiB / L: 12.5 % of 2 MiB. The paper reports 17.7 %, and about 1.4 times
//! our share in every row, for reasons its description of the workload does not show. So there are
//! two tests: what the rule must give, within a point, and the paper's figures as a ceiling.

use super::super::*;
use super::{BLOCK, MIB, calm};

const KIB: u64 = 1024;

/// A small generator (splitmix64), so that the figures are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits ^ (bits >> 31)) % bound
    }

    /// Any offset, any size within a tenth of `size`.
    fn ragged(&mut self, size: u64) -> WriteRequest {
        let len = size - size / 10 + self.below(size / 5 + 1);
        WriteRequest {
            offset: self.below(1 << 36),
            len,
            memory_aligned: true,
        }
    }
}

/// Percent of the data of random ragged requests that goes to memory.
fn memory_percent(route: &dyn Route, size: u64) -> f64 {
    let mut random = Random(size);
    let (mut all, mut direct) = (0, 0);
    for _ in 0..20_000 {
        let request = random.ragged(size);
        all += request.len;
        direct += route.plan(&request, &calm()).direct_bytes();
    }
    100.0 - 100.0 * direct as f64 / all as f64
}

/// What the rule gives: sizes uniform within a tenth, ends of one block on average.
fn expected_percent(size: u64, direct_min: u64) -> f64 {
    let (size, block) = (size as f64, BLOCK as f64);
    let from = (size * 0.9).max(direct_min as f64).max(block);
    let to = size * 1.1;
    if from >= to {
        return 100.0;
    }
    let long_share = (to - from) / (0.2 * size);
    100.0 - 100.0 * long_share * ((from + to) / 2.0 - block) / size
}

/// Table 4, partial-page writes: size, threshold, percent to memory.
const TABLE_4_RAGGED: [(u64, u64, f64); 24] = [
    (256 * KIB, MIB, 100.0),
    (256 * KIB, 768 * KIB, 100.0),
    (256 * KIB, 512 * KIB, 100.0),
    (256 * KIB, 256 * KIB, 100.0),
    (512 * KIB, MIB, 100.0),
    (512 * KIB, 768 * KIB, 100.0),
    (512 * KIB, 512 * KIB, 92.2),
    (512 * KIB, 256 * KIB, 65.5),
    (768 * KIB, MIB, 100.0),
    (768 * KIB, 768 * KIB, 77.8),
    (768 * KIB, 512 * KIB, 45.2),
    (768 * KIB, 256 * KIB, 44.9),
    (MIB, MIB, 67.6),
    (MIB, 768 * KIB, 34.7),
    (MIB, 512 * KIB, 34.2),
    (MIB, 256 * KIB, 34.2),
    (2 * MIB, MIB, 17.7),
    (2 * MIB, 768 * KIB, 17.7),
    (2 * MIB, 512 * KIB, 17.7),
    (2 * MIB, 256 * KIB, 17.7),
    (4 * MIB, MIB, 8.9),
    (4 * MIB, 768 * KIB, 8.9),
    (4 * MIB, 512 * KIB, 8.9),
    (4 * MIB, 256 * KIB, 8.9),
];

#[test]
fn ragged_requests_keep_no_more_in_memory_than_the_paper_reports() {
    for (size, direct_min, reported) in TABLE_4_RAGGED {
        let found = memory_percent(&Threshold::new(direct_min), size);
        assert!(
            found <= reported,
            "{size} at {direct_min}: {found:.1} % > {reported} %"
        );
    }
}

#[test]
fn ragged_requests_keep_what_the_rule_predicts() {
    for (size, direct_min, _) in TABLE_4_RAGGED {
        let found = memory_percent(&Threshold::new(direct_min), size);
        let expected = expected_percent(size, direct_min);
        assert!(
            (found - expected).abs() < 1.0,
            "{size} at {direct_min}: {found:.1}, {expected:.1}"
        );
    }
}

#[test]
fn two_mebibytes_keep_at_most_18_percent() {
    assert!(memory_percent(&Threshold::new(MIB), 2 * MIB) <= 18.0);
}

/// 4.2: of ragged 1, 2 and 4 MiB writes, 32.4, 82.3 and 91.1 % go straight to the device.
#[test]
fn at_least_the_papers_share_goes_direct() {
    for (size, reported) in [(MIB, 32.4), (2 * MIB, 82.3), (4 * MIB, 91.1)] {
        let found = 100.0 - memory_percent(&Threshold::new(MIB), size);
        assert!(found >= reported, "{size}: {found:.1} % < {reported} %");
    }
}

/// Table 4, full-page writes: all or nothing, at the threshold.
#[test]
fn aligned_requests_go_direct_from_the_threshold_on() {
    for direct_min in [MIB, 768 * KIB, 512 * KIB, 256 * KIB] {
        for len in [256 * KIB, 512 * KIB, 768 * KIB, MIB, 2 * MIB, 4 * MIB] {
            let request = WriteRequest {
                offset: 7 * BLOCK,
                len,
                memory_aligned: true,
            };
            let plan = Threshold::new(direct_min).plan(&request, &calm());
            assert_eq!(plan.direct_bytes(), if len >= direct_min { len } else { 0 });
        }
    }
}

/// 4.2: XFS-AutoIO with a threshold of 1 MiB; what is ragged in any way is buffered whole.
#[test]
fn autoio_is_all_or_nothing() {
    let cases = [
        (0, 2 * MIB, true, Way::Direct),
        (0, MIB, true, Way::Direct),
        (0, MIB - BLOCK, true, Way::Kernel),
        (1, 2 * MIB, true, Way::Kernel),
        (0, 2 * MIB + 1, true, Way::Kernel),
        (0, 2 * MIB, false, Way::Kernel),
    ];
    for (offset, len, memory_aligned, way) in cases {
        let request = WriteRequest {
            offset,
            len,
            memory_aligned,
        };
        assert_eq!(
            Lustre::new(MIB).plan(&request, &calm()),
            Plan::whole(&request, way)
        );
    }
}

#[test]
fn the_baselines_are_what_they_say() {
    let long = WriteRequest {
        offset: 5,
        len: 2 * MIB,
        memory_aligned: true,
    };
    let short = WriteRequest {
        len: BLOCK - 1,
        ..long
    };
    assert_eq!(
        Scrap.plan(&long, &calm()),
        Plan::whole(&long, Way::SCRAP_EAGER)
    );
    assert_eq!(Scrap.plan(&short, &calm()), Plan::whole(&short, Way::SCRAP));
    assert_eq!(Kernel.plan(&long, &calm()), Plan::whole(&long, Way::Kernel));
    assert_eq!(Direct.plan(&long, &calm()).direct_bytes(), 2 * MIB - BLOCK);
    assert_eq!(
        Direct.plan(&short, &calm()),
        Plan::whole(&short, Way::SCRAP)
    );
}
