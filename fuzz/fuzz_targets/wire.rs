//! Frames of a pool's connections: nothing that comes by a wire crashes a host, and what is read as a message is the same once it has been sent on.

#![no_main]

use forebay_pool::wire;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Ok(message) = wire::decode(data) {
        let again = wire::encode(&message).expect("it was a message");
        assert_eq!(wire::decode(&again).expect("it is one"), message);
    }
    let (mut from, mut head) = (data, Vec::new());
    while let Ok(Some(_)) = wire::hear(&mut from, &mut head) {}
});
