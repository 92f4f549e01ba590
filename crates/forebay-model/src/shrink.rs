//! Makes a failing list of operations small, for lists that did not come from proptest.

use crate::{BLOCK_BYTES, Op, PAGE_BYTES};

/// The smallest list found that still `fails`. Takes operations away in ever smaller runs (delta
/// debugging), then makes those that are left simpler, until nothing helps any more. `ops` itself
/// must fail, and `fails` should say the same thing twice for the same list.
pub fn shrink(ops: Vec<Op>, mut fails: impl FnMut(&[Op]) -> bool) -> Vec<Op> {
    let mut ops = ops;
    loop {
        let before = ops.clone();
        ops = remove_runs(ops, &mut fails);
        ops = simplify_each(ops, &mut fails);
        if ops == before {
            return ops;
        }
    }
}

fn remove_runs(mut ops: Vec<Op>, fails: &mut impl FnMut(&[Op]) -> bool) -> Vec<Op> {
    let mut run = ops.len().div_ceil(2);
    while run > 0 {
        // From the back: what comes after the failure goes first.
        let mut end = ops.len();
        while end > 0 {
            let start = end.saturating_sub(run);
            let candidate = [&ops[..start], &ops[end..]].concat();
            if fails(&candidate) {
                ops = candidate;
            }
            end = start.min(ops.len());
        }
        run = if run == 1 { 0 } else { run.div_ceil(2) };
    }
    ops
}

fn simplify_each(mut ops: Vec<Op>, fails: &mut impl FnMut(&[Op]) -> bool) -> Vec<Op> {
    for i in 0..ops.len() {
        while let Some(simpler) = simpler(&ops[i]).into_iter().find(|simpler| {
            let mut candidate = ops.clone();
            candidate[i] = simpler.clone();
            fails(&candidate)
        }) {
            ops[i] = simpler;
        }
    }
    ops
}

/// Smaller values for a number: each less than the number, so that shrinking ends.
fn smaller(value: u64) -> Vec<u64> {
    let floors = [BLOCK_BYTES, PAGE_BYTES].map(|unit| value - value % unit);
    let mut values = vec![
        0,
        1,
        value / 2,
        floors[0],
        floors[1],
        value.saturating_sub(1),
    ];
    values.retain(|&v| v < value);
    values
}

/// Operations that are simpler than `op` and otherwise like it.
fn simpler(op: &Op) -> Vec<Op> {
    if let Op::WriteVectored {
        file,
        handle,
        offset,
        seed,
        ..
    } = *op
    {
        let len = op.payload_len() as u32;
        return vec![Op::Write {
            file,
            handle,
            offset,
            len,
            seed,
        }];
    }
    let (len, offset) = numbers(op);
    let with_len = |smaller: u64| {
        let mut simpler = op.clone();
        set_numbers(&mut simpler, smaller, offset);
        simpler
    };
    let with_offset = |smaller: u64| {
        let mut simpler = op.clone();
        set_numbers(&mut simpler, len, smaller);
        simpler
    };
    let lens = smaller(len).into_iter().map(with_len);
    lens.chain(smaller(offset).into_iter().map(with_offset))
        .collect()
}

/// Length and offset of an operation, or zeros where it has none.
fn numbers(op: &Op) -> (u64, u64) {
    match *op {
        Op::Write { len, offset, .. } | Op::Read { len, offset, .. } => (u64::from(len), offset),
        Op::Punch { len, offset, .. } => (len, offset),
        Op::Append { len, .. } => (u64::from(len), 0),
        Op::SetLen { len, .. } => (len, 0),
        Op::KeeperStep { steps } => (u64::from(steps), 0),
        _ => (0, 0),
    }
}

/// The other way round.
fn set_numbers(op: &mut Op, new_len: u64, new_offset: u64) {
    match op {
        Op::Write { len, offset, .. } | Op::Read { len, offset, .. } => {
            (*len, *offset) = (new_len as u32, new_offset);
        }
        Op::Punch { len, offset, .. } => (*len, *offset) = (new_len, new_offset),
        Op::Append { len, .. } => *len = new_len as u32,
        Op::SetLen { len, .. } => *len = new_len,
        Op::KeeperStep { steps } => *steps = new_len as u16,
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Profile, generate};

    #[test]
    fn a_list_shrinks_to_the_operations_that_matter() {
        let ops = generate(3, &Profile::TINY, 200);
        // Fails when a write of at least a page comes before a punch.
        let fails = |ops: &[Op]| {
            let write = ops.iter().position(|op| op.payload_len() >= PAGE_BYTES);
            let punch = ops.iter().rposition(|op| matches!(op, Op::Punch { .. }));
            matches!((write, punch), (Some(write), Some(punch)) if write < punch)
        };
        assert!(fails(&ops));
        let small = shrink(ops, fails);
        assert_eq!(small.len(), 2, "{small:?}");
        assert_eq!(small[0].payload_len(), PAGE_BYTES);
        assert!(
            matches!(
                small[1],
                Op::Punch {
                    offset: 0,
                    len: 0,
                    ..
                }
            ),
            "{small:?}"
        );
    }
}
