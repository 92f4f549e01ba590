//! Pools whose list of servers grows while they work.

use super::*;
use again::begin_again;

/// How far the list goes that the others have: the first servers are at places 0, 1 and 2.
const FIRST: u16 = 3;

fn wait_for_place(servers: &Servers, index: usize, etcd: &Etcd, place: usize) {
    wait_until("it has a number", || servers.place(index, etcd).is_some());
    assert_eq!(servers.place(index, etcd), u32::try_from(place).ok());
}

#[test]
fn a_server_that_no_file_has_but_its_own_takes_its_share() {
    let Some(etcd) = Etcd::begin() else {
        return;
    };
    let servers = Servers::begin(&etcd, FIRST, None);
    let writer = Writer::begin(Arc::new(servers.join()));
    writer.goes_on();
    let (file, own) = servers.longer_file();
    let added = Serving::begin(&file, own).unwrap();
    let is_in = |count| {
        let status = added.status();
        status.is_active && status.servers == count && status.blocks > 0
    };
    wait_until("it has blocks", || is_in(4));
    writer.goes_on();
    // A client with the file of before.
    drop(servers.join());
    assert_eq!(servers.place(0, &etcd), Some(0));
    added.stop();
    added.wait().unwrap();
    writer.goes_on();
    let again = begin_again(&file, own);
    wait_until("it is there again", || {
        let status = again.status();
        status.is_active && status.servers == 4
    });
    let failed = writer.end(&file);
    assert_eq!(failed, 0, "operations were cut off");
    again.stop();
    again.wait().unwrap();
}

#[test]
fn all_servers_are_replaced_by_others_under_load() {
    let Some(etcd) = Etcd::begin() else {
        return;
    };
    let mut servers = Servers::begin(&etcd, FIRST, None);
    let writer = Writer::begin(Arc::new(servers.join()));
    writer.goes_on();
    // Two of them at once.
    let added = [servers.add(), servers.add()];
    wait_for_all(&servers, &etcd);
    let mut places = added.map(|index| servers.place(index, &etcd));
    places.sort_unstable();
    assert_eq!(places, [Some(3), Some(4)]);
    let last = servers.add();
    wait_for_place(&servers, last, &etcd, 5);
    for old in 0..3 {
        writer.goes_on();
        servers.all[old].stop();
        writer.goes_on();
        if old == 1 {
            // With the file of before, as long as one of its addresses is left; whoever rules.
            drop(servers.join());
        }
    }
    wait_until("a new one rules", || {
        servers.ruler(&etcd).is_some_and(|ruler| ruler > 2)
    });
    writer.goes_on();
    // An old one comes back, by the file that has no address of those who are there.
    servers.restart(1);
    wait_for_place(&servers, 1, &etcd, 1);
    servers.all[last].stop();
    servers.restart(last);
    wait_for_place(&servers, last, &etcd, 5);
    writer.goes_on();
    let file = servers.files[last].0.clone();
    let failed = writer.end(&file);
    assert_eq!(failed, 0, "operations were cut off");
}

#[test]
fn a_server_is_added_though_the_one_that_adds_it_is_killed() {
    let Some(etcd) = Etcd::begin() else {
        return;
    };
    let mut servers = Servers::begin(&etcd, FIRST, None);
    let writer = Writer::begin(Arc::new(servers.join()));
    // Before it has been asked, about when it adds it, and when it has.
    for (place, delay) in [(3, Some(20)), (4, Some(90)), (5, None)] {
        writer.goes_on();
        let ruler = servers.ruler(&etcd).unwrap();
        let added = servers.add();
        match delay {
            Some(delay) => thread::sleep(Duration::from_millis(delay)),
            None => wait_until("it has a number", || servers.number(added, &etcd).is_some()),
        }
        servers.all[ruler].kill();
        writer.goes_on();
        servers.restart(ruler);
        wait_for_all(&servers, &etcd);
        assert_eq!(servers.place(added, &etcd), Some(place));
    }
    let file = servers.files[3].0.clone();
    writer.end(&file);
}

/// The members of before were never told of the one that rules.
#[test]
fn a_new_server_rules_those_who_do_not_know_it() {
    let Some(etcd) = Etcd::begin() else {
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let mut servers = Servers::begin(&etcd, 2, Some(&home.path().join("home")));
    let writer = Writer::begin(Arc::new(servers.join()));
    wait_for_all(&servers, &etcd);
    writer.goes_on();
    let ruler = servers.ruler(&etcd).unwrap();
    servers.all[1 - ruler].signal("-STOP");
    servers.all[ruler].kill();
    let added = servers.add();
    wait_until("the new one rules", || servers.ruler(&etcd) == Some(added));
    servers.all[1 - ruler].signal("-CONT");
    writer.goes_on();
    wait_for_place(&servers, added, &etcd, 2);
    servers.restart(ruler);
    wait_for_all(&servers, &etcd);
    let file = servers.files[added].0.clone();
    writer.end(&file);
}
