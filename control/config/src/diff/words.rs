//! Which fields of a thing that stays are different, and to what: words of a list of changes.
//!
//! A device has a [`Differing`] of what is changed in place alone. What it is made of is `made`'s, and is said by who
//! judges a reload.

use std::collections::BTreeSet;
use std::fmt;

use crate::plan::{
    DiskPlan, GroupPlan, LinkClientPlan, LinkPlan, NicPlan, Plan, SwitchPlan, UplinkPlan, VlanPlan,
};
use crate::spec::{SocketRights, Spoof};
use crate::word::Word;

/// Fields by their names in the file, and what each is; always the same fields of one kind of thing.
type Words = Vec<(&'static str, Word)>;

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
            vec![("ageing_s", Word::of(ageing_s)), ("macs_max", Word::of(macs_max))]
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

    /// Of who may come to an IOhost's link, and what each may have, in whatever order; a link that is gone has nobody.
    pub fn of_clients(before: &LinkPlan, after: Option<&LinkPlan>) -> Differing {
        let (old, new) = (before.clients(), after.map(LinkPlan::clients).unwrap_or_default());
        let named = |all: &[LinkClientPlan], name: &str| {
            all.iter().find(|client| client.name == name).cloned()
        };
        // One key is one machine, whatever it is called.
        let renamed = |to: &LinkClientPlan| {
            let is_it = |was: &&LinkClientPlan| to.key.is_some() && was.key == to.key;
            let was = old.iter().filter(|was| named(new, &was.name).is_none()).find(is_it);
            was.filter(|_| named(old, &to.name).is_none()).cloned()
        };
        let is_renamed = |was: &LinkClientPlan| {
            new.iter().filter_map(renamed).any(|renamed| renamed.name == was.name)
        };
        let gone = old.iter().filter(|client| named(new, &client.name).is_none());
        let gone = gone.filter(|client| !is_renamed(client));
        let mut words: Vec<String> =
            gone.map(|client| format!("client {} comes no more", client.name)).collect();
        for client in new {
            let LinkClientPlan { name, key, disks, nics } = client;
            let renamed = renamed(client);
            words.extend(renamed.iter().map(|was| format!("client {} is called {name}", was.name)));
            let Some(was) = renamed.or_else(|| named(old, name)) else {
                let (disks, nics) = (list(disks), list(nics));
                words.push(format!("client {name} may come, disks {disks}, nics {nics}"));
                continue;
            };
            let its = |what: &str| format!("{what} of client {name}");
            if was.key != *key {
                words.push(format!("{} becomes another", its("key")));
            }
            let lists = [("disks", &was.disks, disks), ("nics", &was.nics, nics)];
            let differ = lists.into_iter().filter(|(_, old, new)| !are_the_same(old, new));
            words
                .extend(differ.map(|(what, old, new)| becomes(&its(what), &list(old), &list(new))));
        }
        Differing(words)
    }
}

/// Whether two lists say the same, where their order says nothing.
pub(super) fn are_the_same(old: &[String], new: &[String]) -> bool {
    let set = |list: &[String]| list.iter().cloned().collect::<BTreeSet<String>>();
    old == new || set(old) == set(new)
}

fn becomes(name: &str, old: &Word, new: &Word) -> String {
    let sep = if name.is_empty() { "" } else { " " };
    format!("{name}{sep}{old} becomes {new}")
}

fn nic(nic: &NicPlan) -> Words {
    let NicPlan { vlan, macs_max, spoof, carrier, redirect, vcpus, qmp, .. } = nic;
    let mut words = nic.service.in_words();
    words.extend(rules(vlan, *macs_max, *spoof));
    words.extend([
        ("link", Word::of(carrier)),
        ("redirect", Word::of(redirect)),
        ("vcpus", list(vcpus)),
        ("qmp", Word::or(qmp.as_ref(), "none")),
    ]);
    words
}

fn uplink(uplink: &UplinkPlan) -> Words {
    let UplinkPlan { vlan, macs_max, mac, spoof, share, policy, .. } = uplink;
    let mut words = vec![("share", Word::of(share)), ("policy", Word::of(policy))];
    words.extend(rules(vlan, *macs_max, *spoof));
    words.push(("mac", Word::or(mac.as_ref(), "none")));
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
        ("vlan", Word::or(access, "none")),
        ("trunk", list(trunk)),
        ("native", Word::or(native, "none")),
        ("macs_max", Word::of(macs_max)),
        ("spoof", Word::of(spoof)),
    ]
}

fn of_whom(rights: &SocketRights) -> Word {
    Word::or(rights.in_words(), "the daemon's own user, mode 0600")
}

fn list(all: &[impl fmt::Display]) -> Word {
    let words: Vec<String> = all.iter().map(ToString::to_string).collect();
    Word::or((!words.is_empty()).then(|| words.join(",")), "none")
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
    fn a_name_that_reads_as_none_is_a_value_of_disks_of_nics_and_of_clients() {
        let of = |disk: &str, nic: &str| {
            plan(&format!(
                "[[group]]\nid = \"none\"\nlimit_iops = 9\n[[group]]\nid = \"g\"\n\
                 [[disk]]\nid = \"a\"\npath = \"/a\"\n{disk}\n[[nic]]\nid = \"n\"\nnull = \"drop\"\n{nic}\n"
            ))
        };
        let none = "group = \"none\"";
        let (out, into, other) = (of("", ""), of(none, none), of("group = \"g\"", "group = \"g\""));
        for (before, after, becomes) in [
            (&out, &into, "group none becomes \"none\""),
            (&into, &out, "group \"none\" becomes none"),
            (&other, &into, "group g becomes \"none\""),
            (&other, &out, "group g becomes none"),
        ] {
            let set = ["nic n", "disk a"].map(|what| format!("set {what}: {becomes}"));
            assert_eq!(said(before, after), set);
        }
        assert_eq!(said(&into, &into), Vec::<String>::new());
    }

    #[test]
    fn lists_whose_order_says_nothing_are_the_same_in_another_one() {
        let disk = |id: &str| format!("[[disk]]\nid = \"{id}\"\npath = \"/i/{id}\"\n");
        let of = |folders: &str, clients: [(&str, &str); 2]| {
            let daemon = format!("[daemon]\nimage_folders = [{folders}]\n");
            let link = "[[link]]\nid = \"out\"\nrole = \"iohost\"\nudp = \"1.2.3.4:1\"\nkey_file = \"/k\"\n";
            let client = |(name, disks): (&str, &str)| {
                let key = name.repeat(32);
                format!("[[link.client]]\nname = \"{name}\"\nkey = \"{key}\"\ndisks = [{disks}]\n")
            };
            let clients = clients.map(client).concat();
            plan(&[daemon, disk("a"), disk("b"), disk("c"), link.into(), clients].concat())
        };
        let before = of("\"/i\", \"/j\"", [("c1", "\"a\", \"b\""), ("c2", "\"c\"")]);
        let after = of("\"/j\", \"/i\"", [("c2", "\"c\""), ("c1", "\"b\", \"a\"")]);
        assert_eq!(crate::diff(&before, &after), crate::Difference::default());
        let other = of("\"/j\", \"/i\"", [("c2", "\"c\""), ("c1", "\"b\"")]);
        assert_eq!(
            said(&before, &other)[1..],
            ["set the clients of link out: disks of client c1 a,b becomes b", "added disk a"]
        );
    }

    #[test]
    fn a_client_that_is_called_otherwise_is_the_machine_that_it_was() {
        let of = |clients: [(&str, &str, &str); 2]| {
            let disk = |id: &str| format!("[[disk]]\nid = \"{id}\"\npath = \"/i/{id}\"\n");
            let link = "[[link]]\nid = \"out\"\nrole = \"iohost\"\nudp = \"1.2.3.4:1\"\nkey_file = \"/k\"\n";
            let client = |(name, key, disks): (&str, &str, &str)| {
                let key = key.repeat(64);
                format!("[[link.client]]\nname = \"{name}\"\nkey = \"{key}\"\ndisks = [{disks}]\n")
            };
            plan(&[disk("a"), disk("b"), link.into(), clients.map(client).concat()].concat())
        };
        let before = of([("c1", "1", "\"a\""), ("c2", "2", "")]);
        for (after, words) in [
            ([("host1", "1", "\"a\""), ("c2", "2", "")], "client c1 is called host1"),
            (
                [("host1", "1", "\"a\", \"b\""), ("c2", "2", "")],
                "client c1 is called host1, disks of client host1 a becomes a,b",
            ),
            // Another machine.
            (
                [("host1", "3", "\"a\""), ("c2", "2", "")],
                "client c1 comes no more, client host1 may come, disks a, nics none",
            ),
            // They have changed their names.
            (
                [("c2", "1", "\"a\""), ("c1", "2", "")],
                "key of client c2 becomes another, disks of client c2 none becomes a, key of client c1 becomes \
                 another, disks of client c1 a becomes none",
            ),
        ] {
            let told = said(&before, &of(after));
            let its = told.iter().find_map(|it| it.strip_prefix("set the clients of link out: "));
            assert_eq!(its, Some(words), "{told:?}");
        }
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
