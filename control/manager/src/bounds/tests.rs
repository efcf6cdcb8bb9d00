//! Promises and what is beyond them.

use config::plan::{HostCpus, Plan, load};

use super::*;

fn plan(text: &str) -> Plan {
    let host = HostCpus { online: vec![0], auto: vec![0], auto_count: 1, waits_on_lines: false };
    load(text, "f", "/etc", &host, None).unwrap()
}

fn disk(line: &str) -> DevicePlan {
    DevicePlan::Disk(plan(&format!("[[disk]]\nid = \"a\"\n{line}")).disks.remove(0))
}

fn limits(descriptors: u64, mappings: u64, bytes: u64) -> Bounds {
    Bounds::new(Amount { descriptors, mappings, bytes }, Amount::default())
}

#[test]
fn what_a_device_is_promised_follows_from_its_plan() {
    let amount = |line| Amount::of(&disk(line));
    // 4, and of one front-end 3 + 1 + 5, and for each ring 2 and 2.
    assert_eq!(amount("path = \"/a\"").descriptors, 13 + 4);
    assert_eq!(amount("path = \"/a\"\nqueues = 64").descriptors, 13 + 4 * 64);
    assert_eq!(amount("path = \"/a\"").mappings, 34);
    assert_eq!(amount("path = \"/a\"").bytes, (64 + 200) << 10);
    let memory = amount("backend = \"memory\"\nsize = \"1G\"");
    assert_eq!(memory.bytes, (1 << 30) + ((64 + 200) << 10));
    let text = "[[switch]]\nid = \"s\"\n[[nic]]\nid = \"n\"\nswitch = \"s\"\nqueues = 4\n";
    let nic = Amount::of(&DevicePlan::Nic(plan(text).nics.remove(0)));
    assert_eq!(nic.descriptors, 13 + 4 * 8);
    let text = "[[nic]]\nid = \"n\"\ntap = \"t\"\nqueues = 4\n";
    let nic = Amount::of(&DevicePlan::Nic(plan(text).nics.remove(0)));
    assert_eq!(nic.descriptors, 13 + 4 * 8 + 4 + 4);
}

#[test]
fn the_next_device_is_refused_with_numbers_and_an_end_gives_back() {
    let plan = disk("path = \"/a\"");
    let bounds = limits(42, u64::MAX, u64::MAX);
    let promises: Vec<Claim> = (0..2).map(|_| bounds.promise(&plan).unwrap()).collect();
    assert_eq!(
        bounds.promise(&plan).unwrap_err(),
        "it may take 17 descriptors, and of 42 only 8 are left beside what 2 devices and the daemon itself may \
         take: raise LimitNOFILE in the unit (`ulimit -Hn`), or give devices fewer queues"
    );
    assert_eq!(bounds.view().descriptors.promised, 34);
    // What another process serves is taken over all the same.
    let again = bounds.promise_again(&plan);
    assert_eq!((bounds.view().descriptors.promised, bounds.view().devices), (51, 3));
    drop(again);
    drop(promises);
    assert_eq!(bounds.view().devices, 0);
    assert!(bounds.promise(&plan).is_ok());
    let said = limits(u64::MAX, 33, u64::MAX).promise(&plan).unwrap_err();
    assert!(said.contains("34 mappings") && said.contains("vm.max_map_count"), "{said}");
    let memory = disk("backend = \"memory\"\nsize = \"1G\"");
    let said = limits(u64::MAX, u64::MAX, 1 << 30).promise(&memory).unwrap_err();
    assert!(said.contains("KiB of memory") && said.contains("MemoryMax"), "{said}");
}

#[test]
fn what_is_beyond_a_promise_never_comes_out_of_another_one() {
    let plan = disk("path = \"/a\"");
    // Two devices, and one more connection of either.
    let bounds = limits(2 * 17 + 11, 2 * 34 + 10, u64::MAX);
    let _promises = [bounds.promise(&plan).unwrap(), bounds.promise(&plan).unwrap()];
    let link = bounds.claim_link(1).unwrap();
    assert!(bounds.claim_link(1).is_none() && bounds.claim_message(5, 0).is_none());
    assert!(bounds.is_used_up());
    drop(link);
    // Some that are in every device's part, and those beyond it.
    assert!(bounds.claim_message(4, 0).is_some() && bounds.claim_message(15, 0).is_some());
    assert!(bounds.claim_message(16, 0).is_none());
    // Those of a table take the place that its regions had, or will have.
    assert!(bounds.claim_message(13, 2).is_some() && bounds.claim_message(14, 2).is_none());
    assert!(bounds.claim_message(12, 9).is_some() && bounds.claim_message(13, 9).is_none());
    assert!(bounds.claim_regions(15).is_ok() && bounds.claim_regions(16).is_err());
    let bounds = limits(2 * 17 + 66, 2 * 34 + 10, u64::MAX);
    let _promises = [bounds.promise(&plan).unwrap(), bounds.promise(&plan).unwrap()];
    let regions = bounds.claim_regions(26).unwrap();
    assert!(bounds.claim_regions(16).is_ok());
    let said = bounds.claim_regions(17).unwrap_err();
    assert!(said.starts_with("17 regions of memory: each guest has 16 mappings"), "{said}");
    drop(regions);
    assert!(bounds.claim_regions(17).is_ok());
    assert_eq!(bounds.view().mappings.extra, 0);
}
