//! The reference model's operations, by the mount.

use forebay_model::{Op, Profile, StdFiles, drive, fresh_seed, generate, shrink, to_lines};

use crate::scene::Scene;

fn check(name: &str, seeds: u64, profile: &Profile, count: usize) {
    for scene in Scene::each(name, &[]) {
        check_in(&scene, seeds, profile, count);
        scene.end();
    }
}

fn check_in(scene: &Scene, seeds: u64, profile: &Profile, count: usize) {
    let run = |ops: &[Op]| {
        let (files, handles) = Op::extent(ops);
        let mut target = StdFiles::new(&scene.point, files.max(3), handles.max(2)).expect("files");
        drive(ops, &mut target).map_err(|mismatch| mismatch.to_string())
    };
    for seed in (0..seeds).chain([fresh_seed()]) {
        let ops = generate(seed, profile, count);
        if let Err(mismatch) = run(&ops) {
            let small = shrink(ops, |ops| run(ops).is_err());
            let lines = to_lines(&small);
            panic!(
                "{:?}, seed {seed}: {mismatch}\nshrunk to {} operations:\n{lines}",
                scene.kind,
                small.len()
            );
        }
    }
}

#[test]
fn small_operations() {
    check("small", 5, &Profile::TINY, 150);
}

#[test]
fn large_operations() {
    check("large", 2, &Profile::LARGE, 40);
}

#[test]
fn sparse_operations() {
    check("sparse", 3, &Profile::SPARSE, 60);
}
