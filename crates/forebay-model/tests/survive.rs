//! What may be left after a death or after power loss: what must be accepted, and what must not.

use forebay_model::{Model, Op, byte_at, fill};

const FILE: u8 = 0;

fn write(offset: u64, len: u32, seed: u32) -> Op {
    Op::Write {
        file: FILE,
        handle: 0,
        offset,
        len,
        seed,
    }
}

fn sync() -> Op {
    Op::SyncData {
        file: FILE,
        handle: 0,
    }
}

fn set_len(len: u64) -> Op {
    Op::SetLen {
        file: FILE,
        handle: 0,
        len,
    }
}

fn model(ops: &[Op]) -> Model {
    let mut model = Model::new(1, 1);
    ops.iter().for_each(|op| drop(model.apply(op)));
    model
}

fn bytes(model: &Model) -> Vec<u8> {
    model.content(FILE).read(0, u64::MAX)
}

fn put(image: &mut Vec<u8>, offset: usize, len: usize, seed: u32) {
    if image.len() < offset + len {
        image.resize(offset + len, 0);
    }
    fill(seed, offset as u64, &mut image[offset..offset + len]);
}

#[test]
fn death_keeps_what_was_acknowledged() {
    let model = model(&[write(100, 9000, 1), write(3000, 500, 2)]);
    let mut image = bytes(&model);
    model.after_death(FILE, &[], &image).unwrap();
    image[3200] = byte_at(1, 3200);
    let report = model.after_death(FILE, &[], &image).unwrap_err();
    assert_eq!(report.details().place.unwrap().offset, 3200);
    image.pop();
    assert!(
        model
            .after_death(FILE, &[], &image)
            .unwrap_err()
            .details()
            .place
            .is_none()
    );
}

#[test]
fn death_may_tear_what_was_under_way_and_nothing_else() {
    let model = model(&[write(0, 20_000, 1)]);
    let under_way = [write(5000, 1000, 2)];
    let mut image = bytes(&model);
    for at in (5000..6000).step_by(3) {
        image[at] = byte_at(2, at as u64);
    }
    model.after_death(FILE, &under_way, &image).unwrap();
    assert!(model.after_death(FILE, &[], &image).is_err());
    image[6000] = byte_at(2, 6000);
    assert!(
        model.after_death(FILE, &under_way, &image).is_err(),
        "beyond the write's end"
    );
    image[6000] = byte_at(1, 6000);
    image[5001] = 0;
    assert!(
        model.after_death(FILE, &under_way, &image).is_err(),
        "neither old nor new"
    );
}

#[test]
fn after_a_death_bytes_come_before_the_size_that_shows_them() {
    let model = model(&[write(0, 1000, 1)]);
    let under_way = [write(500, 10_000, 2)];
    let mut image = bytes(&model);
    put(&mut image, 900, 7000, 2);
    model.after_death(FILE, &under_way, &image).unwrap();
    image[1500] = 0;
    assert!(
        model.after_death(FILE, &under_way, &image).is_err(),
        "size before bytes"
    );
    image.resize(10_501, 0);
    assert!(
        model.after_death(FILE, &under_way, &image).is_err(),
        "too long"
    );
}

#[test]
fn a_cut_under_way_has_happened_or_has_not() {
    let model = model(&[write(0, 9000, 1)]);
    let under_way = [set_len(4000)];
    let mut image = bytes(&model);
    image[5000..].fill(0);
    model.after_death(FILE, &under_way, &image).unwrap();
    image.truncate(4000);
    model.after_death(FILE, &under_way, &image).unwrap();
    image.truncate(3999);
    assert!(model.after_death(FILE, &under_way, &image).is_err());
    assert!(model.after_death(FILE, &under_way, &vec![0; 5000]).is_err());
}

#[test]
fn power_loss_keeps_what_was_synced_and_may_keep_more() {
    let before = [write(0, 8192, 1), sync()];
    let after = [
        write(4000, 300, 2),
        write(4100, 8000, 3),
        set_len(6000),
        set_len(7000),
    ];
    let model = model(&[&before[..], &after[..]].concat());
    let mut image = vec![0; 8192];
    put(&mut image, 0, 8192, 1);
    let may_be = |image: &Vec<u8>| model.may_be_after_power_loss(FILE, &[], image);
    may_be(&image).unwrap();
    put(&mut image, 4000, 200, 2);
    put(&mut image, 4120, 50, 3);
    image[6500..7000].fill(0);
    may_be(&image).unwrap();
    for len in [6000, 6500, 7000, 10_000, 12_100] {
        let mut other = image.clone();
        other.resize(len, 0);
        may_be(&other).unwrap();
    }
    for len in [0, 5999, 12_101] {
        let mut other = image.clone();
        other.resize(len, 0);
        assert!(may_be(&other).is_err(), "length {len}");
    }
    image[3999] = byte_at(2, 3999);
    assert!(may_be(&image).is_err(), "no write put that there");
    image[3999] = 0;
    assert!(may_be(&image).is_err(), "synced bytes were lost");
}

#[test]
fn after_a_sync_only_the_newest_bytes_will_do() {
    let model = model(&[write(0, 5000, 1), sync(), write(100, 100, 2), sync()]);
    let mut image = bytes(&model);
    model.may_be_after_power_loss(FILE, &[], &image).unwrap();
    image[150] = byte_at(1, 150);
    let report = model
        .may_be_after_power_loss(FILE, &[], &image)
        .unwrap_err()
        .to_string();
    assert!(report.contains("as written by operation 0"), "{report}");
}

#[test]
fn a_sync_under_way_promises_nothing_and_a_write_under_way_may_show() {
    let model = model(&[write(0, 5000, 1)]);
    let may_be = |op: Op, image: &Vec<u8>| model.may_be_after_power_loss(FILE, &[op], image);
    may_be(sync(), &Vec::new()).unwrap();
    let mut image = vec![0; 300];
    put(&mut image, 200, 50, 7);
    may_be(write(200, 50, 7), &image).unwrap();
    assert!(may_be(sync(), &image).is_err());
}

#[test]
fn what_was_found_is_the_truth_from_then_on() {
    let mut model = model(&[write(0, 5000, 1), sync(), write(0, 5000, 2)]);
    let under_way = [write(4000, 2000, 3)];
    let mut image = bytes(&model);
    put(&mut image, 4000, 1500, 3);
    model.adopt_after_death(FILE, &under_way, &image).unwrap();
    assert_eq!(bytes(&model), image);
    let mut disk = vec![0; 5000];
    put(&mut disk, 0, 5000, 1);
    put(&mut disk, 4000, 500, 3);
    model.adopt_after_power_loss(FILE, &[], &disk).unwrap();
    assert_eq!(bytes(&model), disk);
    disk[0] = byte_at(2, 0);
    assert!(
        model.may_be_after_power_loss(FILE, &[], &disk).is_err(),
        "adopting is a promise"
    );
}

#[test]
fn a_terabyte_is_looked_at_only_where_it_was_touched() {
    let far = 1 << 40;
    let before = model(&[write(5, 100, 1), write(far, 5000, 2), sync()]);
    let under_way = [write(far / 2, 3000, 3)];
    let mut after = before.clone();
    after.apply(&under_way[0]);
    before
        .after_death(FILE, &under_way, after.content(FILE))
        .unwrap();
    before
        .may_be_after_power_loss(FILE, &under_way, after.content(FILE))
        .unwrap();
    let report = before.after_death(FILE, &[write(7, 1, 4)], after.content(FILE));
    assert!(
        report.is_ok(),
        "a block that nobody is known to touch is not read"
    );
    assert!(after.after_death(FILE, &[], before.content(FILE)).is_err());
    let mut adopted = before.clone();
    adopted
        .adopt_after_death(FILE, &under_way, after.content(FILE))
        .unwrap();
    assert_eq!(
        adopted.content(FILE).byte(far / 2 + 9),
        byte_at(3, far / 2 + 9)
    );
}
