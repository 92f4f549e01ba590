//! Where numbers end.

use super::*;

fn result(desk: &mut Desk, operation: Operation) -> Result<Answer, Failure> {
    desk.begin(1, operation);
    desk.settle();
    let (_, result) = desk.client.results().pop().expect("a result");
    result
}

#[test]
fn a_client_gives_no_number_of_a_file_twice() {
    let mut desk = Desk::new();
    desk.client.files_made = u32::MAX - 1;
    let make = || Operation::MakeNameless;
    let Ok(Answer::Made(last, _)) = result(&mut desk, make()) else {
        panic!("there was a number left");
    };
    assert_eq!(last.file, File(10 << 32 | u64::from(u32::MAX)));
    for _ in 0..3 {
        assert_eq!(result(&mut desk, make()), Err(Failure::Full));
    }
    // Whatever makes nothing goes on.
    assert!(result(&mut desk, Operation::Attributes { file: last.file }).is_ok());
}

#[test]
fn no_offset_is_so_large_that_its_end_is_small() {
    for block_bytes in [4 << 10, 64 << 10, 1 << 20] {
        let mut desk = Desk::new();
        desk.client.config.block_bytes = block_bytes;
        for offset in [i64::MAX as u64, u64::MAX - block_bytes, u64::MAX - 5] {
            let (file, mode) = (FILE, Mode::Local);
            let bytes = Rope::from(vec![1; 5]);
            for operation in [
                Operation::Write {
                    file,
                    offset,
                    bytes,
                    mode,
                },
                Operation::Read {
                    file,
                    offset,
                    length: 5,
                    mode,
                },
                Operation::Truncate {
                    file,
                    size: offset + 5,
                },
            ] {
                let what = format!("{operation:?}, blocks of {block_bytes}");
                assert_eq!(
                    result(&mut desk, operation),
                    Err(Failure::TooLarge),
                    "{what}"
                );
            }
        }
    }
}
