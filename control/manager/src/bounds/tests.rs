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

fn regions(bounds: &Bounds, count: usize) -> Result<Claim, String> {
    let mut claim = bounds.claim_no_regions();
    claim.set_regions(count).map(|()| claim)
}

#[test]
fn what_a_device_is_promised_follows_from_its_plan() {
    let amount = |line| Amount::of(&disk(line));
    // 4, and of one front-end 3 + 1 + 5, and for each ring 2 and 2.
    assert_eq!(amount("path = \"/a\"").descriptors, 13 + 4);
    assert_eq!(amount("path = \"/a\"\nqueues = 64").descriptors, 13 + 4 * 64);
    assert_eq!(amount("path = \"/a\"").mappings, 34);
    assert_eq!(amount("path = \"/a\"").bytes, (64 + 200 + 128) << 10);
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
    assert!(regions(&bounds, 15).is_ok() && regions(&bounds, 16).is_err());
    let bounds = limits(2 * 17 + 66, 2 * 34 + 10, u64::MAX);
    let _promises = [bounds.promise(&plan).unwrap(), bounds.promise(&plan).unwrap()];
    let claim = regions(&bounds, 26).unwrap();
    assert!(regions(&bounds, 16).is_ok());
    let said = regions(&bounds, 17).unwrap_err();
    assert!(said.starts_with("17 regions of memory: each guest has 16 mappings"), "{said}");
    drop(claim);
    assert!(regions(&bounds, 17).is_ok());
    assert_eq!(bounds.view().mappings.extra, 0);
}

#[test]
fn as_many_regions_or_fewer_are_never_refused_and_more_only_for_what_is_more() {
    let bounds = limits(u64::MAX, 10, u64::MAX);
    let extra = || (bounds.view().mappings.extra, bounds.view().descriptors.extra);
    let mut claim = regions(&bounds, 25).unwrap();
    assert_eq!(extra(), (9, 21));
    // Another one is granted more than there is, as by an heir: less than nothing is free.
    bounds.be_lenient(true);
    let other = regions(&bounds, 36).unwrap();
    bounds.be_lenient(false);
    assert_eq!(extra(), (9 + 20, 21 + 32));
    assert_eq!((claim.set_regions(25), claim.set_regions(24)), (Ok(()), Ok(())));
    assert_eq!(extra(), (8 + 20, 20 + 32));
    assert!(claim.set_regions(25).is_err(), "what it gave back is not free");
    assert_eq!(extra(), (8 + 20, 20 + 32), "a refusal changes nothing");
    drop(other);
    // 8 of 10 are its own: the 2 that are left are all that 26 regions need.
    assert_eq!(claim.set_regions(26), Ok(()));
    assert!(claim.set_regions(27).is_err());
    assert_eq!(extra(), (10, 22));
    assert_eq!(claim.set_regions(5), Ok(()));
    assert_eq!(extra(), (0, 1));
    drop(claim);
    assert_eq!(extra(), (0, 0));
}
