//! Which fields of a thing that stays are different, and to what: words of a list of changes.
//!
//! A device has a [`Differing`] of what is changed in place alone. What it is made of is `made`'s, and is said by who
//! judges a reload.

use std::fmt;

use crate::plan::{
    DiskPlan, GroupPlan, LinkClientPlan, LinkPlan, NicPlan, Plan, SwitchPlan, UplinkPlan, VlanPlan,
};
use crate::spec::{SocketRights, Spoof};

/// Fields by their names in the file, and what each is, in a word; always the same fields of one kind of thing.
type Words = Vec<(&'static str, String)>;

/// What is different about a thing that stays: each field with its value before and from now on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Differing(Vec<String>);

/// As a list of changes says it.
impl fmt::Display for Differing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(", "))
    }
}

impl Differing {
    /// Whether nothing is.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn of(before: Words, after: Words) -> Differing {
        let both = before.into_iter().zip(after).filter(|(old, new)| old != new);
        Differing(both.map(|((name, old), (_, new))| becomes(name, &old, &new)).collect())
    }

    /// Of a disk, in what a running one follows.
    pub(super) fn of_disks(before: &DiskPlan, after: &DiskPlan) -> Differing {
        Differing::of(before.in_words(), after.in_words())
    }

    /// Of a NIC, the same.
    pub(super) fn of_nics(before: &NicPlan, after: &NicPlan) -> Differing {
        Differing::of(nic(before), nic(after))
    }

    /// Of a group.
    pub(super) fn of_groups(before: &GroupPlan, after: &GroupPlan) -> Differing {
        Differing::of(before.limit.in_words(), after.limit.in_words())
    }

    /// Of a switch, apart from its uplinks.
    pub(super) fn of_switches(before: &SwitchPlan, after: &SwitchPlan) -> Differing {
        let words = |switch: &SwitchPlan| {
            let SwitchPlan { ageing_s, macs_max, .. } = switch;
            vec![("ageing_s", ageing_s.to_string()), ("macs_max", macs_max.to_string())]
        };
        Differing::of(words(before), words(after))
    }

    /// Of an uplink that leads where it did.
    pub(super) fn of_uplinks(before: &UplinkPlan, after: &UplinkPlan) -> Differing {
        Differing::of(uplink(before), uplink(after))
    }

    /// Of who may open a socket.
    pub(super) fn of_rights(before: &SocketRights, after: &SocketRights) -> Differing {
        let words = |rights: &SocketRights| vec![("", of_whom(rights))];
        Differing::of(words(before), words(after))
    }

    /// Of who may open the API's sockets.
    pub(super) fn of_api(before: &Plan, after: &Plan) -> Differing {
        let words = |Plan { daemon, .. }: &Plan| {
            let (api, read) = (daemon.api_rights(), daemon.api_read_rights());
            vec![("api", of_whom(&api)), ("api_read", of_whom(&read))]
        };
        Differing::of(words(before), words(after))
    }

    /// Of who may come to an IOhost's link, and what each may have; a link that is gone has nobody.
    pub fn of_clients(before: &LinkPlan, after: Option<&LinkPlan>) -> Differing {
        let (old, new) = (before.clients(), after.map(LinkPlan::clients).unwrap_or_default());
        let named = |all: &[LinkClientPlan], name: &str| {
            all.iter().find(|client| client.name == name).cloned()
        };
        let gone = old.iter().filter(|client| named(new, &client.name).is_none());
        let mut words: Vec<String> =
            gone.map(|client| format!("client {} comes no more", client.name)).collect();
        for client in new {
            let LinkClientPlan { name, key, disks, nics } = client;
            let Some(was) = named(old, name) else {
                let (disks, nics) = (list(disks), list(nics));
                words.push(format!("client {name} may come, disks {disks}, nics {nics}"));
                continue;
            };
            let its = |what: &str| format!("{what} of client {name}");
            if was.key != *key {
                words.push(format!("{} becomes another", its("key")));
            }
            let lists = [("disks", &was.disks, disks), ("nics", &was.nics, nics)];
            let differ = lists.into_iter().filter(|(_, old, new)| old != new);
            words
                .extend(differ.map(|(what, old, new)| becomes(&its(what), &list(old), &list(new))));
        }
        Differing(words)
    }
}

fn becomes(name: &str, old: &str, new: &str) -> String {
    let sep = if name.is_empty() { "" } else { " " };
    format!("{name}{sep}{old} becomes {new}")
}

fn nic(nic: &NicPlan) -> Words {
    let NicPlan { vlan, macs_max, spoof, carrier, redirect, vcpus, qmp, .. } = nic;
    let mut words = nic.service.in_words();
    words.extend(rules(vlan, *macs_max, *spoof));
    words.extend([
        ("link", carrier.to_string()),
        ("redirect", redirect.to_string()),
        ("vcpus", list(vcpus)),
        ("qmp", or_none(qmp.as_ref())),
    ]);
    words
}

fn uplink(uplink: &UplinkPlan) -> Words {
    let UplinkPlan { vlan, macs_max, mac, spoof, share, policy, .. } = uplink;
    let mut words = vec![("share", share.to_string()), ("policy", policy.to_string())];
    words.extend(rules(vlan, *macs_max, *spoof));
    words.push(("mac", or_none(mac.as_ref())));
    words
}

/// Which frames a port has.
fn rules(vlan: &VlanPlan, macs_max: u16, spoof: Spoof) -> Words {
    let (access, trunk, native) = match vlan {
        VlanPlan::None => (None, &[][..], None),
        VlanPlan::Access(vlan) => (Some(vlan), &[][..], None),
        VlanPlan::Trunk { native, allowed } => (None, &allowed[..], native.as_ref()),
    };
    vec![
        ("vlan", or_none(access)),
        ("trunk", list(trunk)),
        ("native", or_none(native)),
        ("macs_max", macs_max.to_string()),
        ("spoof", spoof.to_string()),
    ]
}

fn of_whom(rights: &SocketRights) -> String {
    rights.in_words().unwrap_or_else(|| "the daemon's own user, mode 0600".to_string())
}

fn or_none(value: Option<impl fmt::Display>) -> String {
    value.map_or_else(|| "none".to_string(), |value| value.to_string())
}

fn list(all: &[impl fmt::Display]) -> String {
    let words: Vec<String> = all.iter().map(ToString::to_string).collect();
    if words.is_empty() { "none".to_string() } else { words.join(",") }
}

#[cfg(test)]
mod tests {
    use crate::Change;
    use crate::plan::{Plan, load};

    fn plan(text: &str) -> Plan {
        let host = cpus::HostCpus { online: vec![0, 1], auto: vec![1], auto_count: 1 };
        load(text, "f", "/etc", &host, None).unwrap_or_else(|why| panic!("{text}: {why}"))
    }

    fn said(from: &Plan, to: &Plan) -> Vec<String> {
        crate::diff(from, to).changes.iter().map(Change::to_string).collect()
    }

    #[test]
    fn each_field_that_differs_is_told_of_nics_and_uplinks_and_no_other() {
        let of = |uplink: &str, nic: &str| {
            plan(&format!(
                "switch = [{{ id = \"s\", uplink = [{{ tap = \"t\", {uplink} }}] }}]\n\
                 nic = [{{ id = \"n\", switch = \"s\", {nic} }}]"
            ))
        };
        let nic = "trunk = [4, 5], native = 4, spoof = \"deny\", link = \"down\", redirect = \"auto\", \
                   vcpus = [1], limit_packets = 9, qmp = \"/q\"";
        let (before, after) = (of("", ""), of("vlan = 5", nic));
        assert_eq!(
            said(&before, &after),
            [
                "set uplink t of switch s: vlan none becomes 5",
                "set nic n: limit_packets no limit becomes 9, trunk none becomes 4,5, native none becomes 4, spoof \
                 allow becomes deny, link up becomes down, redirect off becomes auto, vcpus none becomes 1, qmp none \
                 becomes /q",
            ]
        );
        // What is taken out of the file is told as well.
        assert_eq!(
            said(&after, &before),
            [
                "set uplink t of switch s: vlan 5 becomes none",
                "set nic n: limit_packets 9 becomes no limit, trunk 4,5 becomes none, native 4 becomes none, spoof \
                 deny becomes allow, link down becomes up, redirect auto becomes off, vcpus 1 becomes none, qmp /q \
                 becomes none",
            ]
        );
    }

    #[test]
    fn a_limit_that_is_taken_away_is_told_and_so_is_all_else_of_a_disk() {
        let of = |group: &str, disk: &str| {
            plan(&format!(
                "[[group]]\nid = \"g\"\n{group}\n[[disk]]\nid = \"a\"\npath = \"/a\"\n{disk}\n"
            ))
        };
        let disk = "limit_iops = 5000\nlimit_bytes = \"1M\"\nlimit_burst_ms = 20\ngroup = \"g\"\nlatency_target_us = 90\n\
                    moderate_us = 7\non_full = \"error\"\non_error = \"wait\"\ndrain_timeout = 5\nformat = \"raw\"\n\
                    policy = \"poll\"\nshare = 7";
        let (before, after) = (of("limit_iops = 9", disk), of("", ""));
        assert_eq!(
            said(&before, &after),
            [
                "set group g: limit_iops 9 becomes no limit",
                "set disk a: share 7 becomes 100, policy poll becomes adaptive, latency_target_us 90 becomes no target, \
                 moderate_us 7 becomes no waiting, limit_iops 5000 becomes no limit, limit_bytes 1M becomes no limit, \
                 limit_burst_ms 20 becomes 100, group g becomes none, on_full error becomes wait, on_error wait \
                 becomes error, drain_timeout 5 becomes 60, format raw becomes not said",
            ]
        );
    }

    #[test]
    fn who_may_open_sockets_is_told_before_and_after() {
        let of = |daemon: &str, disk: &str| {
            plan(&format!("[daemon]\n{daemon}\n[[disk]]\nid = \"a\"\npath = \"/a\"\n{disk}\n"))
        };
        let (before, after) = (of("", ""), of("api_group = \"ops\"", "socket_owner = \"vm1\""));
        assert_eq!(
            said(&before, &after),
            [
                "set who may open the socket of disk a: the daemon's own user, mode 0600 becomes user vm1, mode 0600",
                "set who may open the API's sockets: api the daemon's own user, mode 0600 becomes group ops, mode \
                 0660",
            ]
        );
        let back = said(&after, &before);
        assert!(back[0].ends_with("user vm1, mode 0600 becomes the daemon's own user, mode 0600"));
    }
}
