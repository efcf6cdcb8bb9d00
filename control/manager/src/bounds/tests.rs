//! Promises and what is beyond them.

use std::sync::OnceLock;

use config::plan::{Plan, load};
use cpus::HostCpus;
use proptest::prelude::*;

use super::*;

fn plan(text: &str) -> Plan {
    let host = HostCpus { online: vec![0], auto: vec![0], auto_count: 1 };
    load(text, "f", "/etc", &host, None).unwrap()
}

fn disk(line: &str) -> DevicePlan {
    DevicePlan::Disk(plan(&format!("[[disk]]\nid = \"a\"\n{line}")).disks.remove(0))
}

fn limits(descriptors: u64, mappings: u64, bytes: u64) -> Bounds {
    Bounds::new(Amount { descriptors, mappings, bytes }, Amount::default())
}

fn regions(bounds: &Bounds, count: usize) -> Result<Claim, TooManyRegions> {
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
    assert_eq!(memory.mappings, 34 + 1);
    assert_eq!(amount("backend = \"memory\"\nsize = \"1025M\"").mappings, 34 + 2);
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
        bounds.promise(&plan).unwrap_err().to_string(),
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
    let said = limits(u64::MAX, 33, u64::MAX).promise(&plan).unwrap_err().to_string();
    assert!(said.contains("34 mappings") && said.contains("vm.max_map_count"), "{said}");
    let memory = disk("backend = \"memory\"\nsize = \"1G\"");
    let said = limits(u64::MAX, u64::MAX, 1 << 30).promise(&memory).unwrap_err().to_string();
    assert!(said.contains("KiB of memory") && said.contains("MemoryMax"), "{said}");
}

/// Each GiB of a memory disk is a mapping, and all of them have addresses.
#[test]
fn a_memory_disk_that_could_not_be_mapped_is_refused_before_it_is_opened() {
    let memory = |size: &str| disk(&format!("backend = \"memory\"\nsize = {size:?}"));
    let bounds = limits(u64::MAX, 65_530, u64::MAX);
    let said = bounds.promise(&memory("100T")).unwrap_err().to_string();
    let expected = "KiB of addresses, and of 64424509440 only 64424509440 are left beside what the daemon itself may \
                    take: make memory disks smaller";
    assert!(said.ends_with(expected), "{said}");
    let _one = bounds.promise(&memory("40T")).unwrap();
    let said = bounds.promise(&memory("20T")).unwrap_err().to_string();
    assert!(said.contains("KiB of addresses"), "{said}");
    let said = bounds.promise(&memory("19T")).map(drop);
    assert_eq!(said, Ok(()));
    let said = limits(u64::MAX, 1 << 10, u64::MAX).promise(&memory("1T")).unwrap_err().to_string();
    assert!(said.starts_with("it may take 1058 mappings"), "{said}");
}

#[test]
fn a_device_that_changes_is_promised_more_in_the_place_of_what_it_had() {
    let memory = |size: &str| disk(&format!("backend = \"memory\"\nsize = {size:?}"));
    let bounds = limits(u64::MAX, u64::MAX, 4 << 30);
    let first = bounds.promise(&memory("2G")).unwrap();
    let second = bounds.promise_instead(&memory("2G"), &memory("3G")).unwrap();
    drop(first);
    assert_eq!(bounds.view().memory_bytes.promised >> 30, 3);
    let refused = bounds.promise_instead(&memory("3G"), &memory("4G")).map(drop);
    assert!(matches!(refused, Err(BoundsError::Memory(_))), "{refused:?}");
    assert_eq!((bounds.view().memory_bytes.promised >> 30, bounds.view().devices), (3, 1));
    let third = bounds.promise_instead(&memory("3G"), &memory("1G")).unwrap();
    drop(second);
    assert_eq!((bounds.view().memory_bytes.promised >> 30, bounds.view().devices), (1, 1));
    drop(third);
    assert_eq!(bounds.view().memory_bytes.promised, 0);
}

#[test]
fn a_host_has_its_memory_and_its_swap() {
    let text = "MemTotal:       24682496 kB\nMemFree: 1 kB\nSwapTotal:         4096 kB\n";
    assert_eq!(total_of(text), Some((24_682_496 + 4096) << 10));
    assert_eq!(total_of("MemTotal: 8 kB\n"), Some(8 << 10));
    assert_eq!((total_of(""), total_of("MemTotal: much\n")), (None, None));
}

#[test]
fn what_is_beyond_a_promise_never_comes_out_of_another_one() {
    let plan = disk("path = \"/a\"");
    // Two devices, and one more connection of either.
    let bounds = limits(2 * 17 + 11, 2 * 34 + 10, u64::MAX);
    let _promises = [bounds.promise(&plan).unwrap(), bounds.promise(&plan).unwrap()];
    let link = bounds.claim_connection(1).unwrap();
    assert!(bounds.claim_connection(1).is_none() && bounds.claim_message(5, 0).is_none());
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
    let said = regions(&bounds, 17).unwrap_err().to_string();
    assert_eq!(
        said,
        "17 regions of memory: each guest has 16 mappings and 4 descriptors for them, and what is left \
         beyond that is used up; raise `sysctl vm.max_map_count` and LimitNOFILE and restart the daemon"
    );
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

/// The limit of a process in such groups, on a host whose files have such limits.
fn least(groups: &str, limits: &[(&str, &str)]) -> Option<u64> {
    let root = Path::new("/cgroups");
    let limit = |file: &Path| {
        let below = file.strip_prefix(root).unwrap();
        limits.iter().find(|(path, _)| Path::new(path) == below)?.1.parse().ok()
    };
    least_of_cgroups(groups, root, limit)
}

#[test]
fn limits_of_cgroups_of_both_versions_are_seen_and_those_above_them() {
    let v2 = "0::/system.slice/sidecore.service\n";
    let own = "system.slice/sidecore.service/memory.max";
    assert_eq!(least(v2, &[(own, "max"), ("system.slice/memory.max", "4096")]), Some(4096));
    assert_eq!(least(v2, &[(own, "max")]), None);
    let v1 = "12:cpu,cpuacct:/s\n5:memory:/s/sidecore\n1:name=systemd:/s/sidecore\n";
    let own = "memory/s/sidecore/memory.limit_in_bytes";
    let none = "9223372036854771712";
    assert_eq!(least(v1, &[(own, "8192"), ("memory/s/memory.limit_in_bytes", none)]), Some(8192));
    assert_eq!(least(v1, &[(own, none), ("memory/memory.limit_in_bytes", "777")]), Some(777));
    // Pages of 64 KiB.
    assert_eq!(least(v1, &[(own, "9223372036854710272")]), None);
    // Both mounted, and memory is that of the first.
    let both = format!("{v1}0::/s/sidecore\n");
    assert_eq!(least(&both, &[(own, "8192"), ("s/sidecore/memory.max", "max")]), Some(8192));
    // Controllers that only sound like it, and what is no line of this file.
    assert_eq!(least("3:memory2:/s\nnonsense\n4:hugetlb\n", &[(own, "1")]), None);
    // Of a namespace that does not show its own group.
    assert_eq!(least("5:memory:/../..\n", &[("memory/memory.limit_in_bytes", "9")]), Some(9));
}

/// What a tenant or an operator may do about bounds.
#[derive(Clone, Debug)]
enum Act {
    Add(u16),
    Connect(u16),
    Send(usize, usize),
    Map(prop::sample::Index, usize),
    New,
    Drop(prop::sample::Index),
    Lend(u16),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => (1u16..8).prop_map(Act::Add),
        2 => (1u16..8).prop_map(Act::Connect),
        2 => (0usize..40, 0usize..12).prop_map(|(count, kept)| Act::Send(count, kept)),
        3 => (any::<prop::sample::Index>(), 0usize..60).prop_map(|(at, count)| Act::Map(at, count)),
        2 => Just(Act::New),
        3 => any::<prop::sample::Index>().prop_map(Act::Drop),
        1 => (0u16..8).prop_map(Act::Lend),
    ]
}

/// A disk of so many queues, read once.
fn disk_of(queues: u16) -> &'static DevicePlan {
    static DISKS: OnceLock<Vec<DevicePlan>> = OnceLock::new();
    let one = |queues| disk(&format!("path = \"/a\"\nqueues = {queues}"));
    &DISKS.get_or_init(|| (1..8).map(one).collect())[usize::from(queues) - 1]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Whatever is promised, taken and given back, and in which order: the sum is below the limits, what is shown is the
    /// sum of what there is, and in the end there is nothing.
    #[test]
    fn no_order_of_claims_takes_more_than_there_is_or_leaves_some_behind(
        acts in prop::collection::vec(act(), 1..80),
    ) {
        let bounds = limits(400, 1000, u64::MAX);
        let (mut claims, mut is_lent): (Vec<Claim>, bool) = (Vec::new(), false);
        for act in acts {
            let before = bounds.view();
            let refused = match act {
                Act::Add(queues) => match bounds.promise(disk_of(queues)) {
                    Ok(claim) => { claims.push(claim); None }
                    Err(why) => Some(why.to_string()),
                },
                Act::Connect(rings) => match bounds.claim_connection(rings) {
                    Some(claim) => { claims.push(claim); None }
                    None => Some("a connection".to_string()),
                },
                Act::Send(count, kept) => match bounds.claim_message(count, kept) {
                    Some(claim) => { claims.push(claim); None }
                    None => Some("a message".to_string()),
                },
                Act::Map(at, count) => {
                    let mut maps: Vec<&mut Claim> = claims.iter_mut().filter(|claim| !claim.is_device).collect();
                    match maps.is_empty() {
                        true => None,
                        false => {
                            let at = at.index(maps.len());
                            maps[at].set_regions(count).err().map(|why| why.to_string())
                        }
                    }
                }
                Act::New => { claims.push(bounds.claim_no_regions()); None }
                Act::Drop(at) => {
                    if !claims.is_empty() {
                        drop(claims.swap_remove(at.index(claims.len())));
                    }
                    None
                }
                // A reload that removes and adds may have both for a moment.
                Act::Lend(queues) => {
                    let going = disk_of(queues.max(1));
                    bounds.lend((queues > 0).then_some(going));
                    is_lent |= queues > 0;
                    None
                }
            };
            let now = bounds.view();
            if let Some(why) = refused {
                prop_assert!(!why.is_empty());
                prop_assert_eq!(&now, &before, "a refusal changes nothing");
            }
            for (view, limit) in [(&now.descriptors, 400), (&now.mappings, 1000)] {
                prop_assert!(is_lent || view.promised + view.extra <= limit, "{:?}", view);
            }
            prop_assert_eq!(now.devices, claims.iter().filter(|claim| claim.is_device).count() as u64);
            let sum = |of: fn(&Amount) -> u64, is_device: bool| -> u64 {
                claims.iter().filter(|claim| claim.is_device == is_device).map(|claim| of(&claim.amount)).sum()
            };
            prop_assert_eq!(now.descriptors.promised, sum(|it| it.descriptors, true));
            prop_assert_eq!(now.descriptors.extra, sum(|it| it.descriptors, false));
            prop_assert_eq!(now.mappings.extra, sum(|it| it.mappings, false));
        }
        bounds.lend([]);
        claims.clear();
        prop_assert_eq!((bounds.view().devices, bounds.view().descriptors.promised, bounds.view().mappings.extra), (0, 0, 0));
    }
}
