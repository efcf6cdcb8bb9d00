//! From the running plan to the wanted one: an ordered list of changes.
//!
//! Pure: who applies them is `manager`. A disk or NIC that cannot be changed in place is removed and
//! added again, so its guest sees the device go. A switch is never removed to be added again: what its
//! ports stand on changes under them. Whoever applies a difference also takes over the wanted
//! plan whole, for lines may have moved without any change.

use std::fmt;

mod links;
mod made;
mod words;

use crate::plan::{
    DeviceKind, DevicePlan, DiskPlan, GroupPlan, NicPlan, Plan, SwitchPlan, UplinkPlan,
};
use crate::size::Size;
use crate::spec::SocketRights;

pub use links::after as links_after;
pub use made::{MadeOf, is_made_of, made_of};
pub use words::Differing;

use made::{made_of_disk, made_of_nic};

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Detach the device's queues and close its socket.
    Remove {
        /// What it is.
        kind: DeviceKind,
        /// Its name.
        id: String,
    },
    /// Serve a running device otherwise: another share, policy, latency target, limit or group; a disk with other
    /// failures; a NIC with other VLANs, addresses or another state of its link.
    Set(Box<DevicePlan>, Differing),
    /// Let others open the socket of a device than before.
    SetRights {
        /// What it is.
        kind: DeviceKind,
        /// Its name.
        id: String,
        /// Who, before and after.
        differs: Differing,
    },
    /// Let others open the sockets of the API than before.
    SetApiRights(Differing),
    /// Make the socket of a device again, whose file was removed.
    Listen {
        /// What it is.
        kind: DeviceKind,
        /// Its name.
        id: String,
    },
    /// Make a group.
    AddGroup(GroupPlan),
    /// Give a group another limit.
    SetGroup(GroupPlan, Differing),
    /// Remove a group. Nothing is in it by then.
    RemoveGroup {
        /// Its name.
        id: String,
    },
    /// Give a running disk another capacity and tell its guest.
    Resize {
        /// Its name.
        id: String,
        /// Its capacity from now on, in bytes.
        size_bytes: u64,
    },
    /// Leave the capacity of a running disk to its image, which the file does not name any more. Whoever can look at the
    /// image makes a [`Change::Resize`] of it where the two differ.
    OwnSize {
        /// Its name.
        id: String,
        /// Its capacity until now, in bytes.
        before_bytes: u64,
    },
    /// Give a link of an IOhost other clients, or some of them other disks and NICs.
    SetClients {
        /// The link's name.
        link: String,
        /// Which of them, and in what.
        differs: Differing,
    },
    /// Make a device. A NIC's switch is there by then.
    Add(Box<DevicePlan>),
    /// Close a port of a switch that belongs to this host.
    RemoveUplink {
        /// The switch's name.
        switch: String,
        /// The interface's name.
        name: String,
    },
    /// Remove a switch and its uplinks. It has no NIC by then.
    RemoveSwitch {
        /// Its name.
        id: String,
    },
    /// Give a switch other limits. Its table of addresses begins anew; its ports stay.
    SetSwitch(Box<SwitchPlan>, Differing),
    /// Give an uplink other VLANs, addresses, share or policy.
    SetUplink {
        /// The switch's name.
        switch: String,
        /// The uplink from now on.
        uplink: Box<UplinkPlan>,
        /// In what.
        differs: Differing,
    },
    /// Make a switch with its uplinks.
    AddSwitch(Box<SwitchPlan>),
    /// Make a port of a switch that was there before.
    AddUplink {
        /// The switch's name.
        switch: String,
        /// The uplink.
        uplink: Box<UplinkPlan>,
    },
}

/// As a reload reports it that has done it.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(["removed", "added", "resized", "made"], f)
    }
}

/// A change that is not done.
struct ToDo<'a>(&'a Change);

impl fmt::Display for ToDo<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.write(["remove", "add", "resize", "make"], f)
    }
}

impl Change {
    /// The same of one that is not done, and may never be.
    pub fn to_do(&self) -> impl fmt::Display {
        ToDo(self)
    }

    fn write(
        &self,
        [removed, added, resized, made]: [&str; 4],
        f: &mut fmt::Formatter<'_>,
    ) -> fmt::Result {
        match self {
            Change::Remove { kind, id } => write!(f, "{removed} {} {id}", kind.word()),
            Change::Set(device, differs) => write!(f, "set {}: {differs}", device.title()),
            Change::SetRights { kind, id, differs } => {
                write!(f, "set who may open the socket of {} {id}: {differs}", kind.word())
            }
            Change::Listen { kind, id } => {
                write!(f, "{made} the socket of {} {id} again, which was removed", kind.word())
            }
            Change::SetApiRights(differs) => {
                write!(f, "set who may open the API's sockets: {differs}")
            }
            Change::AddGroup(GroupPlan { id, limit, .. }) if limit.is_some() => {
                write!(f, "{added} group {id}: at most {limit}")
            }
            Change::AddGroup(GroupPlan { id, .. }) => write!(f, "{added} group {id}: no limit"),
            Change::SetGroup(group, differs) => write!(f, "set group {}: {differs}", group.id),
            Change::RemoveGroup { id } => write!(f, "{removed} group {id}"),
            Change::Resize { id, size_bytes } => {
                write!(f, "{resized} disk {id} to {}", Size(*size_bytes))
            }
            Change::OwnSize { id, before_bytes } => {
                write!(f, "set disk {id}: size {} becomes that of its image", Size(*before_bytes))
            }
            Change::SetClients { link, differs } => {
                write!(f, "set the clients of link {link}: {differs}")
            }
            Change::Add(device) => write!(f, "{added} {}", device.title()),
            Change::RemoveUplink { switch, name } => {
                write!(f, "{removed} uplink {name} of switch {switch}")
            }
            Change::RemoveSwitch { id } => write!(f, "{removed} switch {id}"),
            Change::SetSwitch(switch, differs) => write!(f, "set switch {}: {differs}", switch.id),
            Change::SetUplink { switch, uplink, differs } => {
                write!(f, "set uplink {} of switch {switch}: {differs}", uplink.name())
            }
            Change::AddSwitch(switch) => write!(f, "{added} switch {}", switch.id),
            Change::AddUplink { switch, uplink } => {
                write!(f, "{added} uplink {} to switch {switch}", uplink.name())
            }
        }
    }
}

/// Everything that is different.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// In this order: removals first, so that what is added finds sockets, images and interfaces
    /// free; NICs go before their switches and come after them.
    pub changes: Vec<Change>,
    /// What only a restart of the daemon changes, in words.
    pub restart_needed: Vec<String>,
}

/// What makes `wanted` of `running`.
pub fn diff(running: &Plan, wanted: &Plan) -> Difference {
    let mut difference = Difference::default();
    let (mut removed, mut kept, mut added) = (Vec::new(), Vec::new(), Vec::new());
    network(running, wanted, (&mut removed, &mut kept, &mut added));
    difference.changes.append(&mut removed);
    // Before what comes into it, and after what leaves it.
    kept.extend(wanted.groups.iter().filter_map(|group| match running.group(&group.id) {
        None => Some(Change::AddGroup(group.clone())),
        Some(old) => {
            let differs = Differing::of_groups(old, group);
            (!differs.is_empty()).then(|| Change::SetGroup(group.clone(), differs))
        }
    }));
    disks(running, wanted, (&mut difference.changes, &mut kept, &mut added));
    let of_api = Differing::of_api(running, wanted);
    if !of_api.is_empty() {
        kept.push(Change::SetApiRights(of_api));
    }
    kept.extend(links::others(running, wanted));
    let is_gone = |old: &&GroupPlan| wanted.groups.iter().all(|group| group.id != old.id);
    let gone = running.groups.iter().filter(is_gone);
    kept.extend(gone.map(|group| Change::RemoveGroup { id: group.id.clone() }));
    difference.changes.extend(kept);
    difference.changes.extend(added);
    difference.restart_needed = restart_needed(running, wanted);
    difference
}

/// What only a restart puts into force: fields and links, by their names.
fn restart_needed(running: &Plan, wanted: &Plan) -> Vec<String> {
    let (old, new) = (&running.sidecores, &wanted.sidecores);
    let has_others = old.cpus != new.cpus;
    let is_named = |differs: bool| differs && has_others;
    let max = is_named(old.max != new.max);
    let min = old.min != new.min;
    // What is left is the host's: `auto` finds other cpus than at the start.
    let cpus = is_named(old.candidates != new.candidates || !(max || min));
    let folders = [running, wanted].map(|plan| &plan.daemon.image_folders);
    let fields = [
        ("daemon.api", running.daemon.api != wanted.daemon.api),
        ("daemon.api_read", running.daemon.api_read != wanted.daemon.api_read),
        ("daemon.run_dir", running.daemon.run_dir != wanted.daemon.run_dir),
        ("daemon.state_dir", running.daemon.state_dir != wanted.daemon.state_dir),
        ("daemon.image_folders", !words::are_the_same(folders[0], folders[1])),
        ("sidecores.cpus", cpus),
        ("sidecores.min", min),
        ("sidecores.max", max),
        ("sidecores.urgency", old.urgency != new.urgency),
    ];
    let differing = fields.into_iter().filter(|(_, differs)| *differs);
    let links = links::that_differ(running, wanted).map(|id| format!("link {id}"));
    differing.map(|(name, _)| name.to_string()).chain(links).collect()
}

/// Removals, changes in place, additions.
type Lists<'a> = (&'a mut Vec<Change>, &'a mut Vec<Change>, &'a mut Vec<Change>);

fn disks(running: &Plan, wanted: &Plan, (removed, kept, added): Lists<'_>) {
    // A disk that clients may have from now on, or no more, is another device: it has no socket, or has one.
    let after = links::after(running, wanted);
    let stays = |old: &DiskPlan, new: &DiskPlan| {
        let its = |links| links::of_disk(links, &old.id);
        changes_in_place(old, new) && its(&running.links) == its(&after)
    };
    for old in &running.disks {
        let new = wanted.disk(&old.id);
        if new.is_none_or(|new| !stays(old, new)) {
            removed.push(Change::Remove { kind: DeviceKind::Disk, id: old.id.clone() });
        }
    }
    for new in &wanted.disks {
        match running.disk(&new.id) {
            Some(old) if stays(old, new) => kept.extend(in_place(old, new)),
            _ => added.push(Change::Add(Box::new(DevicePlan::Disk(new.clone())))),
        }
    }
}

fn network(running: &Plan, wanted: &Plan, (removed, kept, added): Lists<'_>) {
    for old in &running.nics {
        if wanted.nic(&old.id).is_none_or(|new| !nic_changes_in_place(old, new)) {
            removed.push(Change::Remove { kind: DeviceKind::Nic, id: old.id.clone() });
        }
    }
    for old in &running.switches {
        match wanted.switch(&old.id) {
            Some(new) => {
                let stays = |uplink: &&UplinkPlan| {
                    new.uplink(uplink.name()).is_some_and(|now| now.host == uplink.host)
                };
                let gone = old.uplinks.iter().filter(|uplink| !stays(uplink));
                removed.extend(gone.map(|uplink| Change::RemoveUplink {
                    switch: old.id.clone(),
                    name: uplink.name().to_string(),
                }));
            }
            None => removed.push(Change::RemoveSwitch { id: old.id.clone() }),
        }
    }
    for new in &wanted.switches {
        let Some(old) = running.switch(&new.id) else {
            added.push(Change::AddSwitch(Box::new(new.clone())));
            continue;
        };
        let differs = Differing::of_switches(old, new);
        if !differs.is_empty() {
            kept.push(Change::SetSwitch(Box::new(new.clone()), differs));
        }
        for uplink in &new.uplinks {
            let (switch, boxed) = (new.id.clone(), Box::new(uplink.clone()));
            match old.uplink(uplink.name()).filter(|was| was.host == uplink.host) {
                Some(was) if was == uplink => {}
                Some(was) => {
                    let differs = Differing::of_uplinks(was, uplink);
                    kept.push(Change::SetUplink { switch, uplink: boxed, differs });
                }
                None => added.push(Change::AddUplink { switch, uplink: boxed }),
            }
        }
    }
    for new in &wanted.nics {
        match running.nic(&new.id) {
            Some(old) if nic_changes_in_place(old, new) => {
                kept.extend(rights(DeviceKind::Nic, &new.id, (&old.rights, &new.rights)));
                let differs = Differing::of_nics(old, new);
                if !differs.is_empty() {
                    kept.push(Change::Set(Box::new(DevicePlan::Nic(new.clone())), differs));
                }
            }
            _ => added.push(Change::Add(Box::new(DevicePlan::Nic(new.clone())))),
        }
    }
}

/// Whether a front-end that is connected may stay.
fn nic_changes_in_place(old: &NicPlan, new: &NicPlan) -> bool {
    made_of_nic(old) == made_of_nic(new)
}

/// The same for a disk. An heir takes another `allow_user_folder` in place, so that a disk is not made of it.
fn changes_in_place(old: &DiskPlan, new: &DiskPlan) -> bool {
    made_of_disk(old) == made_of_disk(new)
        && old.spec.allow_user_folder == new.spec.allow_user_folder
}

fn in_place(old: &DiskPlan, new: &DiskPlan) -> Vec<Change> {
    let mut changes = Vec::new();
    let differs = Differing::of_disks(old, new);
    if !differs.is_empty() {
        changes.push(Change::Set(Box::new(DevicePlan::Disk(new.clone())), differs));
    }
    changes.extend(rights(DeviceKind::Disk, &new.id, (&old.rights, &new.rights)));
    let id = new.id.clone();
    match (old.source.size_bytes(), new.source.size_bytes()) {
        (before, Some(size_bytes)) if before != Some(size_bytes) => {
            changes.push(Change::Resize { id, size_bytes });
        }
        (Some(before_bytes), None) => changes.push(Change::OwnSize { id, before_bytes }),
        _ => {}
    }
    changes
}

/// Who may open the socket of a device that stays.
fn rights(
    kind: DeviceKind,
    id: &str,
    (old, new): (&SocketRights, &SocketRights),
) -> Option<Change> {
    let differs = Differing::of_rights(old, new);
    (!differs.is_empty()).then(|| Change::SetRights { kind, id: id.to_string(), differs })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::load;
    use cpus::HostCpus;

    fn plan(text: &str, running: Option<&Plan>) -> Plan {
        let host = HostCpus { online: vec![0, 1], auto: vec![1], auto_count: 1 };
        load(text, "f", "/etc", &host, running).unwrap_or_else(|refusal| panic!("{refusal}"))
    }

    fn words(difference: &Difference) -> Vec<String> {
        difference.changes.iter().map(Change::to_string).collect()
    }

    const BASE: &str = r#"
disk = [
    { id = "a", path = "/a.img" },
    { id = "b", backend = "memory", size = "1G" },
    { id = "c", path = "/c.img", size = "1G" },
    { id = "d", path = "/d.img" },
]
"#;

    #[test]
    fn the_same_file_changes_nothing_even_when_lines_moved() {
        let running = plan(BASE, None);
        let wanted = plan(&format!("\n\n# moved\n{BASE}"), Some(&running));
        assert_ne!(running.disks, wanted.disks);
        assert_eq!(diff(&running, &wanted), Difference::default());
    }

    #[test]
    fn removals_come_first_and_additions_last() {
        let running = plan(BASE, None);
        let text = r#"
sidecores.cpus = "0-1"
sidecores.min = 2
daemon.run_dir = "/elsewhere"
disk = [
    { id = "new", path = "/a.img" },
    { id = "b", backend = "memory", size = "2G", share = 7 },
    { id = "c", path = "/c.img" },
    { id = "d", path = "/d.img", queues = 2 },
]
"#;
        let difference = diff(&running, &plan(text, Some(&running)));
        assert_eq!(
            words(&difference),
            [
                "removed disk a",
                "removed disk d",
                "set disk b: share 100 becomes 7",
                "resized disk b to 2G",
                "set disk c: size 1G becomes that of its image",
                "added disk new",
                "added disk d",
            ]
        );
        assert_eq!(
            difference.restart_needed,
            ["daemon.run_dir", "sidecores.cpus", "sidecores.min"]
        );
    }

    #[test]
    fn what_needs_a_restart_is_named_by_its_field() {
        let needed = |before: &str, after: &str| {
            let running = plan(before, None);
            diff(&running, &plan(after, Some(&running))).restart_needed.join(" ")
        };
        let both = "sidecores.cpus = \"0-1\"\n";
        let of = |fields: &str| format!("{both}{fields}");
        assert_eq!(needed(both, &of("sidecores.max = 1")), "sidecores.max");
        assert_eq!(needed(&of("sidecores.max = 1"), both), "sidecores.max");
        assert_eq!(needed(both, &of("sidecores.min = 2")), "sidecores.min");
        assert_eq!(needed(both, "sidecores.cpus = \"0\""), "sidecores.cpus");
        // The cores that are used stay the same.
        assert_eq!(needed(both, &of("sidecores.max = 2")), "");
        assert_eq!(needed(both, "sidecores.cpus = \"0,1\""), "");
        assert_eq!(needed("sidecores.cpus = \"0\"", &of("sidecores.max = 1")), "");
    }

    #[test]
    fn disks_of_the_api_stay_and_follow_the_default_policy() {
        let mut running = plan(BASE, None);
        let spec =
            crate::DiskSpec { path: Some("/api.img".to_string()), ..crate::DiskSpec::new("made") };
        running.disks.push(running.disk_from_api(&spec).unwrap());
        let wanted = plan("sidecores.policy = \"poll\"", Some(&running));
        let difference = diff(&running, &wanted);
        assert_eq!(
            words(&difference),
            [
                "removed disk a",
                "removed disk b",
                "removed disk c",
                "removed disk d",
                "set disk made: policy adaptive becomes poll",
            ]
        );
    }

    const NETWORK: &str = r#"
switch = [
    { id = "lan", uplink = [{ tap = "t0" }, { tap = "t1" }, { interface = "e0" }] },
    { id = "old", uplink = [{ tap = "t2" }] },
]
nic = [
    { id = "stays", switch = "lan" },
    { id = "moves", switch = "lan" },
    { id = "goes", switch = "old" },
    { id = "tuned", switch = "lan" },
]
"#;

    #[test]
    fn nics_go_before_their_switches_and_come_after_them() {
        let running = plan(NETWORK, None);
        let text = r#"
switch = [
    { id = "new", uplink = [{ tap = "t2" }] },
    { id = "lan", ageing_s = 60, uplink = [
        { tap = "t0" }, { tap = "t1", vlan = 5 }, { interface = "e0", via = "xdp" }, { tap = "t3" },
    ] },
]
nic = [
    { id = "tuned", switch = "lan", share = 7 },
    { id = "stays", switch = "lan" },
    { id = "moves", switch = "new" },
    { id = "wired", tap = "t4", link = "down" },
]
"#;
        let wanted = plan(text, Some(&running));
        assert_eq!(
            words(&diff(&running, &wanted)),
            [
                "removed nic moves",
                "removed nic goes",
                "removed uplink e0 of switch lan",
                "removed switch old",
                "set switch lan: ageing_s 300 becomes 60",
                "set uplink t1 of switch lan: vlan none becomes 5",
                "set nic tuned: share 100 becomes 7",
                "added switch new",
                "added uplink e0 to switch lan",
                "added uplink t3 to switch lan",
                "added nic moves",
                "added nic wired",
            ]
        );
        assert_eq!(diff(&wanted, &wanted), Difference::default());
    }

    #[test]
    fn only_what_a_guest_does_not_know_changes_under_it() {
        let of = |fields: &str| {
            let text = format!("switch = [{{ id = \"s\" }}]\nnic = [{{ id = \"n\", {fields} }}]");
            plan(&text, None)
        };
        let before = of("switch = \"s\"");
        for fields in [
            "vlan = 4",
            "trunk = [4]",
            "macs_max = 1",
            "spoof = \"deny\"",
            "policy = \"poll\"",
            "latency_target_us = 100",
            "moderate_us = 20",
            "moderate_us = 0",
            "limit_packets = 9",
            "limit_bytes = \"1M\"",
            "link = \"down\"",
        ] {
            let after = of(&format!("switch = \"s\", {fields}"));
            let words = words(&diff(&before, &after)).concat();
            let field = fields.split(' ').next().unwrap_or_default();
            assert!(words.starts_with(&format!("set nic n: {field} ")), "{fields}: {words}");
        }
        let as_is = of("switch = \"s\", moderate_us = 64");
        assert_eq!(words(&diff(&before, &as_is)), Vec::<String>::new(), "that is the default");
        for fields in [
            "mtu = 9000",
            "queues = 2",
            "guest_offloads = false",
            "mac = \"02:00:00:00:00:01\"",
            "socket = \"/s\"",
            "mode = \"connect\"",
            "allow_unsealed_memory = true",
        ] {
            let after = of(&format!("switch = \"s\", {fields}"));
            assert_eq!(words(&diff(&before, &after)), ["removed nic n", "added nic n"], "{fields}");
        }
        let wired = of("tap = \"t\"");
        assert_eq!(words(&diff(&before, &wired)), ["removed nic n", "added nic n"]);
    }
}
