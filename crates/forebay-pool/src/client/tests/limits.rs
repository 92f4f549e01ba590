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
