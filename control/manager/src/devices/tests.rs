//! Devices by number and by name: one that goes has its number until it is gone, and its name no more.

use config::plan::{DevicePlan, load};
use cpus::HostCpus;

use super::*;
use crate::devices::device_plan::Facts;
use crate::devices::kind::Kind;
use crate::trial::Trial;
use crate::trial::vmm::Vmm;

fn nic(number: u32, id: &str) -> Device {
    let host = HostCpus { online: vec![0], auto: vec![0], auto_count: 1 };
    let text = format!("[[nic]]\nid = \"{id}\"\nnull = \"drop\"\n");
    let plan = load(&text, "f", "/", &host, None).expect("a plan").nics.remove(0);
    Device::new(number, Facts::from(&plan), Kind::Nic(NicParts::new(plan, None)))
}

#[test]
fn a_name_is_free_when_its_device_goes_and_a_number_when_never() {
    let mut devices = Devices::default();
    for id in ["a", "b"] {
        let number = devices.next_number();
        devices.use_number();
        assert!(devices.insert(number, nic(number, id)).is_none());
    }
    assert_eq!(
        (devices.number_of("a"), devices.number_of("b"), devices.len()),
        (Some(0), Some(1), 2)
    );
    devices.get_mut(0).expect("it is there").go();
    assert_eq!(devices.number_of("a"), None, "it goes");
    assert!(devices.named_mut("a").is_none() && devices.get(0).is_some());
    let number = devices.next_number();
    devices.use_number();
    devices.insert(number, nic(number, "a"));
    assert_eq!(devices.number_of("a"), Some(2), "another one of its name");
    assert!(devices.remove(0).is_some() && devices.remove(0).is_none());
    assert_eq!(
        (devices.next_number(), devices.keys().copied().collect::<Vec<_>>()),
        (3, vec![1, 2])
    );
}

#[test]
fn connections_have_numbers_that_no_other_has() {
    let mut devices = Devices::default();
    let first: Vec<u32> = (0..100).map(|_| devices.number_connection()).collect();
    assert_eq!(first, (0..100).collect::<Vec<_>>());
}

/// What is asked of a disk is nothing of a NIC, and the other way round.
#[test]
fn a_nic_is_no_disk_and_has_no_image() {
    let mut devices = Devices::default();
    devices.insert(0, nic(0, "a"));
    assert!(devices.disk(0).is_none() && devices.disk_mut(0).is_none());
    assert!(devices.nic_mut(0).is_some() && devices.nic_mut(1).is_none());
    assert!(!devices.asks_for_image("a") && !devices.asks_for_image("none"));
    assert!(devices.queue_mut(0, 1).is_some() && devices.queue_mut(0, 2).is_none());
    let plan = devices.get(0).expect("it is there").plan();
    assert_eq!((plan.name().as_str(), plan.title().as_str()), ("nic \"a\"", "nic a"));
    assert!(plan.disk().is_none() && matches!(plan, DevicePlan::Nic(_)));
}

/// Who holds an image is named by its disk, however many names the file has.
#[test]
fn the_holder_of_a_file_is_named_and_nobody_where_there_is_none() {
    let mut trial = Trial::of("[[disk]]\nid = \"a\"\npath = \"{}/a.img\"\nsize = \"1M\"\n");
    let path = trial.path("a.img").display().to_string();
    let devices = &mut trial.rooms().devices;
    let number = devices.number_of("a").expect("a device");
    let file = devices.disk(number).and_then(|disk| disk.file).expect("a file");
    let named = devices.name_holder("in use".to_string(), file);
    assert_eq!(named, format!("in use: it is disk \"a\" ({path}) of this daemon"));
    devices.get_mut(number).expect("it is there").go();
    let named = devices.name_holder("in use".to_string(), file);
    assert!(named.ends_with("of this daemon, which is being removed"), "{named}");
    devices.get_mut(number).expect("it is there").disk_mut().expect("a disk").file = None;
    assert_eq!(devices.name_holder("in use".to_string(), file), "in use");
}

#[test]
fn a_device_is_driven_by_who_says_so_and_not_when_it_goes() {
    let mut trial = Trial::of("[[disk]]\nid = \"a\"\nbackend = \"memory\"\nsize = \"1M\"\n");
    let is_driven = |trial: &mut Trial| trial.rooms().devices.values().any(Device::is_driven);
    assert!(!is_driven(&mut trial));
    let vmm = Vmm::served(&mut trial, "a", 1);
    assert!(is_driven(&mut trial));
    let number = trial.rooms().devices.number_of("a").expect("a device");
    assert!(trial.rooms().devices.get(number).expect("it is there").surely_runs());
    drop(vmm.hang_up());
    trial.rest();
    assert!(!is_driven(&mut trial));
    assert!(!trial.rooms().devices.get(number).expect("it is there").surely_runs());
}
