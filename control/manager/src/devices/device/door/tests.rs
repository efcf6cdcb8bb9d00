//! The socket of a device: there when a VMM may come, tried again where it cannot be made.

use std::time::Duration;

use config::api::{Call, DiskState};
use config::spec::Carrier;

use crate::trial::Trial;
use crate::trial::vmm::{Guest, Vmm, dial};

const NIC: &str = "[[switch]]\nid = \"s\"\n[[nic]]\nid = \"n\"\nswitch = \"s\"\n";

fn set(trial: &mut Trial, carrier: Carrier) {
    trial.ask(Call::SetCarrier { id: "n".to_string(), carrier }).expect("it is set");
}

/// What is in the way when a cable is put in again is waited for, and said.
#[test]
fn a_socket_that_cannot_be_made_is_tried_again_each_second() {
    let mut trial = Trial::of(NIC);
    set(&mut trial, Carrier::Down);
    let path = trial.socket("n");
    assert!(!path.exists());
    std::fs::write(&path, "in the way").expect("a file");
    set(&mut trial, Carrier::Up);
    let problem = trial.nic("n").problem.expect("it is told");
    assert!(problem.ends_with("what is there is not a socket: move it away"), "{problem}");
    let before = trial.turns;
    trial.pass(Duration::from_secs(10));
    assert!(trial.turns - before < 40, "{} turns in 10 s", trial.turns - before);
    std::fs::remove_file(&path).expect("moved away");
    trial.pass(Duration::from_millis(1_100));
    let mut vmm = Vmm::connect(&trial, "n", Guest::new(2)).expect("it listens");
    vmm.features = 1 << 32;
    vmm.begin(&mut trial);
    assert_eq!(trial.nic("n").problem, None);
}

/// A cable that is moved in and out again and again leaves one socket or none.
#[test]
fn a_cable_that_flaps_ends_as_it_was_put_last() {
    let mut trial = Trial::of(NIC);
    let before = trial.daemon.bounds();
    for round in 0..20 {
        let vmm = dial(&trial.socket("n"));
        assert!(vmm.is_some(), "round {round}");
        set(&mut trial, Carrier::Down);
        set(&mut trial, Carrier::Down);
        assert!(dial(&trial.socket("n")).is_none(), "round {round}");
        set(&mut trial, Carrier::Up);
    }
    trial.rest();
    assert_eq!(trial.daemon.bounds(), before);
}

/// Its name is anybody's who listens there; what nobody listens at was left.
#[test]
fn a_socket_of_a_dead_daemon_is_replaced_and_one_of_a_living_one_is_not() {
    const DISK: &str = "[[disk]]\nid = \"n\"\nbackend = \"memory\"\nsize = \"1M\"\n";
    let trial = Trial::of(DISK);
    let folder = trial.die();
    let path = folder.path().join("run/n.sock");
    assert!(path.exists(), "it died without a word");
    let trial = Trial::start(DISK, folder).unwrap_or_else(|why| panic!("{why}"));
    assert!(dial(&trial.socket("n")).is_some());
    let folder = trial.die();
    let _ = std::fs::remove_file(&path);
    let _living = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
    let mut trial = Trial::start(DISK, folder).unwrap_or_else(|why| panic!("{why}"));
    let disk = trial.disk("n");
    assert_eq!(disk.state, DiskState::Failed);
    assert!(disk.problem.is_some_and(|why| why.contains("another process listens there")));
}
