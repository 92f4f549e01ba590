//! Smoke tests of the kernel's own sides, at a tiny size, in a temporary directory.

use super::*;
use crate::rows::{DEFAULT, workloads};

fn bench(dir: &Path) -> Bench {
    Bench::new(Storage::Dir(dir.to_owned()), 1, None).unwrap()
}

#[test]
fn every_row_runs_on_the_kernel_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = bench(dir.path());
    for workload in DEFAULT.into_iter().flat_map(|row| workloads(row, 8 << 20)) {
        let measured = bench.measure(&workload, "test").unwrap();
        assert_eq!(measured.sides.len(), workload.sides.len());
        let kernel = &measured.sides[0].runs;
        assert_eq!(kernel.len(), 1, "{}", workload.name);
        assert!(kernel[0].returned_s > 0.0 && kernel[0].bytes > 0);
        assert_eq!(
            kernel[0].durable_s.is_some(),
            workload.operation != Operation::Read
        );
        for side in &measured.sides {
            // Whoever took no part says why.
            assert_ne!(
                side.runs.is_empty(),
                side.unavailable.is_none(),
                "{:?}",
                side.kind
            );
        }
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// The check must fail when it should: one wrong byte, one missing write, a wrong size.
#[test]
fn wrong_bytes_are_found() {
    use std::os::unix::fs::FileExt;
    let dir = tempfile::tempdir().unwrap();
    let bench = bench(dir.path());
    let workload = &workloads(crate::rows::Row::Ragged4k, 8 << 20)[0];
    let requests = workload.requests();
    let place = bench.storage.place(0).unwrap();
    let path = dir.path().join("data");
    let (base, written) = (Generation(1), Generation(2));
    let step = Step {
        workload,
        place: &place,
        path: &path,
        requests: &requests,
        base,
        written,
    };
    bench.prepare_file(&step).unwrap();
    let expected = bench.expected(&step);
    let check = || bench.check_device(&step, &expected, "test");
    assert!(
        matches!(check(), Err(Failure::WrongBytes(_))),
        "nothing was written yet"
    );

    let mut kernel = SideKind::Kernel.start().unwrap();
    kernel.open(&path).unwrap();
    kernel.write_all(&bench.writes(&requests, written)).unwrap();
    kernel.sync().unwrap();
    check().unwrap();

    let file = File::options().read(true).write(true).open(&path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 5_000_000).unwrap();
    file.write_all_at(&[!byte[0]], 5_000_000).unwrap();
    let told = check().unwrap_err().to_string();
    assert!(told.contains("offset 5000000"), "{told}");
    file.write_all_at(&byte, 5_000_000).unwrap();
    check().unwrap();
    file.set_len(workload.span + 1).unwrap();
    assert!(matches!(check(), Err(Failure::WrongBytes(_))));
}
