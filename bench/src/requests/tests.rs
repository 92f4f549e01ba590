//! Requests: what they cover, and that they repeat.

use super::*;

const MIB: u64 = 1 << 20;

#[test]
fn random_pages_are_distinct_and_inside() {
    let requests = make(Shape::RandomPages, 8 * MIB, 4 * MIB);
    assert_eq!(requests.len(), 1024);
    let mut offsets: Vec<u64> = requests.iter().map(|request| request.offset).collect();
    assert!(
        offsets.windows(2).any(|pair| pair[1] < pair[0]),
        "not shuffled"
    );
    offsets.sort_unstable();
    offsets.dedup();
    assert_eq!(offsets.len(), 1024);
    assert!(
        offsets
            .iter()
            .all(|offset| offset % PAGE as u64 == 0 && *offset < 8 * MIB)
    );
}

#[test]
fn ragged_pages_leave_both_edges() {
    for sequential in [true, false] {
        for request in make(Shape::RaggedPages { sequential }, MIB, MIB / 2) {
            assert_eq!(request.offset % PAGE as u64, 100);
            assert_eq!(request.len, 3896);
        }
    }
}

#[test]
fn a_ragged_run_has_no_gap_and_ends_where_asked() {
    let requests = make(Shape::RaggedRun { len: 2 << 20 }, 64 * MIB, 64 * MIB);
    let mut end = 0;
    for request in &requests[..requests.len() - 1] {
        assert_eq!(request.offset, end);
        assert!(
            (1_887_437..=2_306_867).contains(&request.len),
            "{}",
            request.len
        );
        end = request.end();
    }
    assert_eq!(requests.last().unwrap().end(), 64 * MIB);
}

#[test]
fn expected_bytes_are_base_with_requests_over_it() {
    let source = Source::new(PAGE, 0).unwrap();
    let requests = [Request {
        offset: 4196,
        len: 3896,
    }];
    let mut expected = Expected::new(&source, 3 * PAGE as u64, &requests);
    expected.base = Some(Generation(1));
    expected.written = Some(Generation(2));
    let mut bytes = vec![0; 4000];
    expected.fill(4100, &mut bytes);
    assert_eq!(bytes[..96], *source.at(Generation(1), 4100, 96));
    assert_eq!(bytes[96..3992], *source.at(Generation(2), 4196, 3896));
    assert_eq!(bytes[3992..], *source.at(Generation(1), 8092, 8));
}

#[test]
fn a_sparse_file_is_compared_around_its_requests() {
    let source = Source::new(PAGE, 0).unwrap();
    let requests = [Request {
        offset: 1 << 30,
        len: 4096,
    }];
    let expected = Expected::new(&source, 16 << 30, &requests);
    assert_eq!(expected.parts(MIB), vec![1 << 30..(1 << 30) + 8192]);
    let whole = Expected::new(&source, 3 * MIB / 2, &make(Shape::RandomPages, MIB, MIB));
    assert_eq!(whole.parts(MIB), vec![0..MIB, MIB..3 * MIB / 2]);
}
