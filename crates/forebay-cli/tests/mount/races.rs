//! What others make in the moment in which a program looks at it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::thread;

use crate::pools::Hosts;

#[test]
fn a_symbolic_link_in_a_pool_has_its_target_from_the_beginning() {
    let Some(mut hosts) = Hosts::begin("pool-links", 7491) else {
        return;
    };
    let [a, b] = hosts.points();
    for round in 0..100 {
        let name = format!("link-{round}");
        let (theirs, ours) = (a.join(&name), b.join(&name));
        let seen = thread::scope(|scope| {
            let made = scope.spawn(|| symlink("a target", &theirs).expect("linked"));
            loop {
                let is_made = made.is_finished();
                let seen = fs::read_link(&ours);
                if is_made || seen.is_ok() {
                    break seen.expect("there");
                }
            }
        });
        assert_eq!(seen, Path::new("a target"), "round {round}");
    }
    hosts.umount(1);
    hosts.umount(0);
}
