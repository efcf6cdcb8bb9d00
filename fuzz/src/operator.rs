//! Texts that an operator, a client of the API or a damaged disk may give: the configuration file,
//! bodies of the API, the saved state.
//!
//! What must hold: nothing panics; a refusal says something; a plan that is accepted keeps the
//! bounds, and does not differ from itself; what is written as saved state is read back.

use config::api::Call;
use config::plan::{GroupPlan, LimitPlan, load};
use config::routes::ROUTES;
use config::spec::{DISKS_MAX, GROUPS_MAX, GroupSpec, NICS_MAX, NicSpec, SWITCHES_MAX};
use config::{HostPlan, Mac, NicPlan, NullPlan, Plan, VlanPlan, diff, saved};
use cpus::HostCpus;

/// Makes one input happen: the first byte says what it is.
pub fn run(input: &[u8]) {
    let Some((kind, rest)) = input.split_first() else { return };
    let host = HostCpus { online: vec![0, 1, 2, 3], auto: vec![1, 2], auto_count: 1 };
    match kind % 4 {
        0 | 1 => {
            let Ok(text) = std::str::from_utf8(rest) else { return };
            // Two files, as before and after a reload.
            let (first, second) = text.split_once("\u{1}").unwrap_or((text, ""));
            let running = plan(first, &host, None);
            if let Some(running) = &running {
                assert!(diff(running, running).changes.is_empty(), "a plan differs from itself");
                if let Some(wanted) = plan(second, &host, Some(running)) {
                    let changes = diff(running, &wanted).changes;
                    assert!(changes.iter().all(|change| !change.to_string().is_empty()));
                }
            }
        }
        2 => {
            let (route, body) = rest.split_first().unwrap_or((&0, &[]));
            let route = &ROUTES[usize::from(*route) % ROUTES.len()];
            let Some(base) = plan("switch = [{ id = \"s\" }]", &host, None) else { return };
            match route.operation.call(&["id", "trace"], "", body) {
                Ok(call) => ask(base, call),
                Err(refusal) => assert!(!refusal.error.is_empty()),
            }
        }
        _ => {
            let Ok(text) = std::str::from_utf8(rest) else { return };
            match saved::read(text) {
                Ok(devices) => {
                    assert!(devices.disks.len() <= DISKS_MAX);
                    assert!(devices.nics.len() <= NICS_MAX);
                    assert!(devices.switches.len() <= SWITCHES_MAX);
                    assert!(devices.groups.len() <= GROUPS_MAX);
                    let again = saved::read(&saved::write(&devices));
                    assert_eq!(again.as_ref(), Ok(&devices), "saved and read are different");
                }
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        }
    }
}

/// What a request would make, beside what `base` has.
fn ask(mut base: Plan, call: Call) {
    match call {
        Call::AddDisk { spec, .. } => base.disk_from_api(&spec).iter().for_each(check_disk),
        Call::AddNic(spec) => base.nic_from_api(&spec).iter().for_each(check_nic),
        Call::AddSwitch(spec) => base.switch_from_api(&spec).iter().for_each(check_switch),
        Call::AddGroup(spec) => base.group_from_api(&spec).iter().for_each(check_group),
        Call::ChangeGroup { change, .. } => {
            let spec = GroupSpec { id: "id".to_string(), ..GroupSpec::default() };
            base.groups.extend(base.group_from_api(&spec));
            match base.group_changed("id", &change) {
                Ok(group) => check_group(&group),
                Err(refusal) => assert!(!refusal.error.is_empty()),
            }
        }
        Call::ChangeNic { change, .. } => {
            let spec = NicSpec { switch: Some("s".to_string()), ..NicSpec::new("id") };
            base.nics.extend(base.nic_from_api(&spec));
            match base.nic_changed("id", &change) {
                Ok(nic) => check_nic(&nic),
                Err(refusal) => assert!(!refusal.error.is_empty()),
            }
        }
        _ => {}
    }
}

fn plan(text: &str, host: &HostCpus, running: Option<&Plan>) -> Option<Plan> {
    match load(text, "sidecore.toml", "/etc/sidecore", host, running) {
        Ok(plan) => {
            assert!(!plan.sidecores.cpus.is_empty());
            assert!(plan.sidecores.cpus.iter().all(|cpu| host.online.contains(cpu)));
            assert!(plan.disks.len() <= DISKS_MAX);
            check_devices(&plan);
            Some(plan)
        }
        Err(refusal) => {
            assert!(!refusal.to_string().is_empty());
            None
        }
    }
}

fn check_devices(plan: &Plan) {
    let disks = plan.disks.iter().map(|disk| (disk.id.as_str(), disk.socket.as_str()));
    let nics = plan.nics.iter().map(|nic| (nic.id.as_str(), nic.socket.as_str()));
    let (ids, sockets): (Vec<&str>, Vec<&str>) = disks.chain(nics).unzip();
    distinct(ids, "two devices of one name");
    distinct(sockets, "two devices of one socket");
    let uplinks = plan.switches.iter().flat_map(|switch| &switch.uplinks);
    let wires = plan.nics.iter().filter_map(NicPlan::host);
    let hosts = uplinks.map(|uplink| &uplink.host).chain(wires);
    distinct(hosts.filter_map(HostPlan::interface).collect(), "an interface twice");
    let macs = plan.nics.iter().filter_map(|nic| Some((nic.switch()?, nic.mac)));
    distinct::<(&str, Mac)>(macs.collect(), "an address twice");
    let switches = plan.nics.iter().filter_map(NicPlan::switch);
    assert!(switches.into_iter().all(|id| plan.switch(id).is_some()), "a nic without its switch");
    plan.disks.iter().for_each(check_disk);
    plan.switches.iter().for_each(check_switch);
    plan.nics.iter().for_each(check_nic);
    plan.groups.iter().for_each(check_group);
    distinct(plan.groups.iter().map(|group| group.id.as_str()).collect(), "two groups of one name");
    let groups = plan.disks.iter().filter_map(|disk| disk.service.group.as_deref());
    let mut groups = groups.chain(plan.nics.iter().filter_map(|nic| nic.service.group.as_deref()));
    assert!(groups.all(|id| plan.group(id).is_some()), "a member without its group");
}

fn check_group(group: &GroupPlan) {
    assert!(!group.id.contains('/') && !group.id.is_empty());
    check_limit(&group.limit);
}

fn check_limit(limit: &LimitPlan) {
    assert!(limit.iops != Some(0) && limit.packets != Some(0));
    assert!(limit.bytes.is_none_or(|bytes| bytes >= 4096));
    assert!((4..=60_000).contains(&limit.burst_ms));
}

fn distinct<T: Ord>(mut all: Vec<T>, otherwise: &str) {
    all.sort_unstable();
    assert!(all.windows(2).all(|pair| pair[0] != pair[1]), "{otherwise}");
}

fn check_switch(switch: &config::SwitchPlan) {
    assert!(!switch.id.contains('/') && !switch.id.is_empty());
    assert!(switch.ageing_s >= 1 && switch.macs_max >= 1 && switch.macs_max <= 32_768);
    assert!(switch.uplinks.len() <= 16);
    for uplink in &switch.uplinks {
        assert!(!matches!(uplink.host, HostPlan::Null(_)));
        assert!((1..=15).contains(&uplink.name().len()), "{:?}", uplink.name());
        assert!(uplink.share >= 1 && uplink.macs_max >= 1);
        check_vlan(&uplink.vlan);
    }
}

fn check_nic(nic: &NicPlan) {
    assert!(nic.queues >= 1 && nic.queues <= 16 && nic.mtu >= 68 && nic.service.share >= 1);
    assert!(nic.socket.starts_with('/') && nic.socket.len() <= 107);
    assert!(!nic.id.contains('/') && !nic.id.is_empty());
    assert!(nic.mac.check().is_ok() && nic.macs_max >= 1);
    if let Some(HostPlan::Null(NullPlan::Generate { size, .. })) = nic.host() {
        assert!(*size >= 60 && *size <= u32::from(nic.mtu) + 14);
    }
    check_limit(&nic.service.limit);
    check_vlan(&nic.vlan);
    assert!(nic.switch().is_some() || nic.vlan == VlanPlan::None);
}

fn check_vlan(vlan: &VlanPlan) {
    let is_vlan = |vlan: &u16| (1..=4094).contains(vlan);
    match vlan {
        VlanPlan::None => {}
        VlanPlan::Access(vlan) => assert!(is_vlan(vlan)),
        VlanPlan::Trunk { native, allowed } => {
            assert!(native.iter().all(is_vlan) && allowed.iter().all(is_vlan));
            assert!(!allowed.is_empty() && allowed.windows(2).all(|pair| pair[0] < pair[1]));
        }
    }
}

fn check_disk(disk: &config::DiskPlan) {
    assert!(disk.queues >= 1 && disk.queues <= 64, "{} queues", disk.queues);
    assert!(disk.socket.starts_with('/') && disk.socket.len() <= 107);
    assert!(!disk.id.contains('/') && !disk.id.is_empty());
    assert!(disk.service.share >= 1);
    check_limit(&disk.service.limit);
    if let Some(bytes) = disk.source.size_bytes() {
        assert!(bytes >= 512 && bytes % 512 == 0, "{bytes} bytes");
    }
}
