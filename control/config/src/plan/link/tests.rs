//! Links of a file: what is right, and each mistake with its place.

use super::*;
use crate::mac::Mac;
use crate::plan::{HostPlan, Source, VlanPlan};
use crate::plan::{Plan, load};
use crate::spec::{DiskSpec, Spoof};
use crate::{Change, diff};
use cpus::HostCpus;

fn read(text: &str, running: Option<&Plan>) -> Result<Plan, String> {
    let host = HostCpus { online: vec![0, 1], auto: vec![1], auto_count: 1 };
    load(text, "f", "/etc", &host, running).map_err(|refusal| refusal.to_string())
}

fn key(byte: &str) -> String {
    byte.repeat(32)
}

fn iohost() -> String {
    format!(
        "[[disk]]\nid = \"db\"\npath = \"/db.img\"\n\n[[link]]\nid = \"rack\"\nrole = \"iohost\"\nudp = \
         \"0.0.0.0:7447\"\nkey_file = \"k\"\n[[link.client]]\nname = \"host7\"\nkey = \"{}\"\ndisks = \
         [\"db\"]\n",
        key("a1")
    )
}

fn client() -> String {
    format!(
        "[[link]]\nid = \"rack\"\nrole = \"client\"\niohosts = [\"10.0.0.1:7447\", \
         \"[fd00::1]:7447\"]\nkey_file = \"/k\"\niohost_key = \"{}\"\n[[disk]]\nid = \"root\"\nlink = \
         \"rack\"\nremote = \"db\"\n",
        key("b2")
    )
}

#[test]
fn both_ends_are_what_was_written() {
    let plan = read(&iohost(), None).unwrap();
    let link = &plan.links[0];
    assert_eq!((link.role(), link.key_file.as_deref()), (LinkRole::Iohost, Some("/etc/k")));
    let client7 = LinkClientPlan {
        name: "host7".into(),
        key: Some([0xa1; 32]),
        disks: vec!["db".into()],
        nics: Vec::new(),
    };
    let end = LinkEnd::Iohost {
        listen: LinkAt::Udp("0.0.0.0:7447".parse().unwrap()),
        lease_s: 10,
        memory_bytes: 256 << 20,
        sidecores: 16,
        clients: vec![client7],
    };
    assert_eq!(link.end, end);
    assert_eq!(plan.link_of("db").map(|link| link.id.as_str()), Some("rack"));
    let plan = read(&client(), None).unwrap();
    let end = LinkEnd::Client {
        interface: None,
        iohosts: ["10.0.0.1:7447", "[fd00::1]:7447"]
            .map(|at| LinkPeer::Udp(at.parse().unwrap()))
            .to_vec(),
        iohost_key: Some([0xb2; 32]),
        fail_after_s: None,
        keep_bytes: 64 << 20,
    };
    assert_eq!(plan.links[0].end, end);
    let source = Source::Remote { link: "rack".into(), name: "db".into() };
    assert_eq!(plan.disks[0].source, source);
    assert_eq!((plan.disks[0].source.size_bytes(), plan.disks[0].source.path()), (None, None));
    assert_eq!(plan.link_of("root"), None);
    let none = "[[link]]\nid = \"cable\"\nrole = \"client\"\nsecurity = \"none\"\niohosts = \
                [\"10.0.0.1:1\"]\nfail_after_s = 30\n";
    let plan = read(none, None).unwrap();
    assert_eq!(plan.links[0].key_file, None);
    assert!(matches!(
        plan.links[0].end,
        LinkEnd::Client { iohost_key: None, fail_after_s: Some(30), .. }
    ));
}

fn eth1(via: Via) -> LinkInterface {
    LinkInterface { name: "eth1".into(), via }
}

/// Without IP: an interface here, and stations there.
#[test]
fn a_link_may_be_an_interface() {
    let here = iohost().replace("udp = \"0.0.0.0:7447\"", "interface = \"eth1\"");
    let plan = read(&here, None).unwrap();
    assert!(matches!(
        &plan.links[0].end,
        LinkEnd::Iohost { listen: LinkAt::Interface(on), .. } if *on == eth1(Via::Packet)
    ));
    let by_xdp = here.replace("\"eth1\"", "\"eth1\"\nvia = \"xdp\"\nmtu = 3826");
    assert_eq!(read(&by_xdp, None).unwrap().links[0].interface(), Some(&eth1(Via::Xdp)));
    // An XDP port takes all frames of its interface.
    let port = |via: &str| {
        format!(
            "{here}[[nic]]\nid = \"n\"\ninterface = \"eth1\"\nvia = \"{via}\"\n[[switch]]\nid = \"s\"\n[[switch.uplink]]\ninterface = \"eth1\"\nvia = \"{via}\"\n"
        )
    };
    let refusal = read(&port("xdp"), None).expect_err("it takes the link's frames");
    for place in ["nic[1].via", "switch[1].uplink[1].via"] {
        let wrong = format!("{place}: link \"rack\" is on \"eth1\", and would get no frames");
        assert!(refusal.contains(&wrong), "{wrong}: {refusal}");
    }
    let refusal = read(&port("packet"), None).expect_err("two ports");
    assert!(!refusal.contains("would get no frames"), "{refusal}");
    let addresses = "\"10.0.0.1:7447\", \"[fd00::1]:7447\"";
    let there = client()
        .replace(addresses, "\"02:00:00:00:00:01\", \"02:00:00:00:00:02\"")
        .replace("key_file", "interface = \"eth1\"\nkey_file");
    let plan = read(&there, None).unwrap();
    let LinkEnd::Client { interface, iohosts, .. } = &plan.links[0].end else { panic!("{plan:?}") };
    assert_eq!(*interface, Some(eth1(Via::Packet)));
    let station = |last| LinkPeer::Station(Mac([2, 0, 0, 0, 0, last]));
    assert_eq!(*iohosts, [station(1), station(2)]);
    let again =
        here.replace("[[disk]]\nid = \"db\"\npath = \"/db.img\"\n", "").replace("rack", "row");
    for (text, wrong) in [
        (here.replace("eth1", "no/name"), "\"no/name\""),
        (here.replace("interface", "udp = \"10.0.0.1:1\"\ninterface"), "are two ways"),
        (format!("{here}{again}"), "eth1 is where link \"rack\""),
        (by_xdp.replace("3826", "3827"), "10:7: link[1].mtu: 3827 is too large for via = \"xdp\""),
        (by_xdp.replace("xdp", "dpdk"), "\"dpdk\""),
        (
            iohost().replace("key_file", "via = \"packet\"\nkey_file"),
            "9:7: link[1].via: there is `via`, but no `interface`",
        ),
        (
            client().replace("key_file", "via = \"xdp\"\nkey_file"),
            "5:7: link[1].via: there is `via`, but no `interface`",
        ),
        (
            format!(
                "{by_xdp}{}",
                there.replace("rack", "row").replace("\"eth1\"", "\"eth1\"\nvia = \"xdp\"")
            ),
            "link[2].via: link \"rack\" (f:5) goes by AF_XDP on the same interface",
        ),
        (there.replace("02:00:00:00:00:01", "10.0.0.1:7447"), "is not an Ethernet address"),
        (there.replace("02:00:00:00:00:01", "ff:ff:ff:ff:ff:ff"), "the address of a group"),
    ] {
        let refusal = read(&text, None).expect_err(&text);
        assert!(refusal.contains(wrong), "{wrong}: {refusal}");
    }
}

/// Each of these changes one line of a good file.
#[test]
fn each_mistake_is_refused_with_its_place() {
    let bad_key = "key = \"12\"";
    for (file, from, to, place, wrong) in [
        (iohost(), "udp = \"0.0.0.0:7447\"\n", "", "link", "the IOhost listens nowhere"),
        (iohost(), "0.0.0.0:7447", "localhost:7447", "udp", "is not an address with a port"),
        (iohost(), "0.0.0.0:7447", "10.0.0.1:0", "udp", "is not an address with a port"),
        (iohost(), "key_file = \"k\"\n", "", "link", "the link has no key"),
        (iohost(), "role = \"iohost\"", "role = \"host\"", "role", "\"host\""),
        (iohost(), "disks = [\"db\"]", "disks = [\"dc\"]", "disks", "did you mean \"db\"?"),
        (iohost(), "name = \"host7\"", "name = \"Host7\"", "name", "not possible in a name"),
        (iohost(), &format!("key = \"{}\"", key("a1")), bad_key, "key", "that is no public key"),
        (iohost(), &format!("key = \"{}\"\n", key("a1")), "", "client", "has no key"),
        (iohost(), "key_file = \"k\"", "key_file = \"k\"\nlease_s = 0", "lease_s", "0"),
        (iohost(), "key_file = \"k\"", "key_file = \"k\"\nsidecores = 17", "sidecores", "17"),
        (iohost(), "key_file = \"k\"", "key_file = \"k\"\nmemory = \"1M\"", "memory", "too little"),
        (
            iohost(),
            "key_file = \"k\"",
            "key_file = \"k\"\niohosts = [\"1.1.1.1:1\"]",
            "iohosts",
            "has no `iohosts`",
        ),
        (
            iohost(),
            "key_file = \"k\"",
            "key_file = \"k\"\nsecurity = \"none\"",
            "key_file",
            "there is no `key_file`",
        ),
        (
            client(),
            "iohosts = [\"10.0.0.1:7447\", \"[fd00::1]:7447\"]\n",
            "",
            "link",
            "knows no IOhost",
        ),
        (client(), "10.0.0.1:7447", "0.0.0.0:7447", "iohosts", "no address that can be sent to"),
        (
            client(),
            &format!("iohost_key = \"{}\"\n", key("b2")),
            "",
            "link",
            "the IOhost's key is not known",
        ),
        (client(), "link = \"rack\"", "link = \"rock\"", "link", "did you mean \"rack\"?"),
        (client(), "link = \"rack\"", "link = \"rack\"\nsize = \"1G\"", "size", "takes no `size`"),
        (
            client(),
            "link = \"rack\"",
            "link = \"rack\"\npath = \"/x\"\nbackend = \"remote\"",
            "path",
            "takes no `path`",
        ),
        (client(), "link = \"rack\"\n", "backend = \"remote\"\n", "disk", "needs a `link`"),
        (
            client(),
            "link = \"rack\"",
            "link = \"rack\"\nmigratable = true",
            "migratable",
            "no locks of its own",
        ),
    ] {
        let text = file.replacen(from, to, 1);
        assert_ne!(text, file, "{from}");
        let refusal = read(&text, None).expect_err(&text);
        assert!(refusal.contains(wrong), "{to}: {refusal}");
        assert!(refusal.contains(place), "{to}: {refusal}");
    }
}

#[test]
fn links_and_disks_agree() {
    let twice = format!(
        "{}{}",
        iohost(),
        iohost().replace("[[disk]]\nid = \"db\"\npath = \"/db.img\"\n", "")
    );
    let refusal = read(&twice, None).unwrap_err();
    assert!(refusal.contains("the name \"rack\" is taken by link \"rack\" (f:5)"), "{refusal}");
    assert!(refusal.contains("0.0.0.0:7447 is where link \"rack\" (f:5) listens"), "{refusal}");
    let other = twice.replacen("id = \"rack\"", "id = \"row\"", 1).replacen(":7447", ":7448", 1);
    let refusal = read(&other, None).unwrap_err();
    assert!(refusal.contains("disk \"db\" is already that of link \"row\""), "{refusal}");
    let both = format!(
        "{}{}",
        client(),
        iohost().replace("\"rack\"", "\"row\"").replace("[\"db\"]", "[\"root\"]")
    );
    let refusal = read(&both, None).unwrap_err();
    assert!(refusal.contains("disk \"root\" is itself a disk of another machine"), "{refusal}");
    let wrong_end = format!("{}[[disk]]\nid = \"r\"\nlink = \"rack\"\n", iohost());
    let refusal = read(&wrong_end, None).unwrap_err();
    assert!(refusal.contains("link \"rack\" has the role \"iohost\""), "{refusal}");
}

#[test]
fn clients_of_an_iohost_change_in_place() {
    let running = read(&iohost(), None).unwrap();
    let more = "[[disk]]\nid = \"more\"\nbackend = \"null\"\nsize = \"1M\"\n";
    let text = format!("{more}{}", iohost().replace("[\"db\"]", "[\"db\", \"more\"]"));
    let wanted = read(&text, Some(&running)).unwrap();
    let difference = diff(&running, &wanted);
    assert!(difference.restart_needed.is_empty(), "{difference:?}");
    let what: Vec<String> = difference.changes.iter().map(Change::to_string).collect();
    let clients = "set the clients of link rack: disks of client host7";
    assert_eq!(what, [format!("{clients} db becomes db,more").as_str(), "added disk more"]);
    assert_eq!(crate::links_after(&running, &wanted)[0].clients(), wanted.links[0].clients());
    // A disk that clients may have no more is another device: it has a socket then.
    let text = format!("{more}{}", iohost().replace("[\"db\"]", "[\"more\"]"));
    let wanted = read(&text, Some(&running)).unwrap();
    let changes = diff(&running, &wanted).changes;
    let what: Vec<String> = changes.iter().map(Change::to_string).collect();
    let clients = format!("{clients} db becomes more");
    let expected = ["removed disk db", clients.as_str(), "added disk db", "added disk more"];
    assert!(what.iter().all(|one| expected.contains(&one.as_str())) && what.len() == 4, "{what:?}");
    // What else is different takes a restart, and nothing of that link is changed before.
    let text = iohost().replace(":7447", ":7448").replace("[\"db\"]", "[]");
    let wanted = read(&text, Some(&running)).unwrap();
    let difference = diff(&running, &wanted);
    assert_eq!(
        (difference.changes.len(), &difference.restart_needed[..]),
        (0, &["link rack".to_string()][..])
    );
}

#[test]
fn links_change_with_a_restart_and_remote_disks_in_their_way() {
    let running = read(&client(), None).unwrap();
    let moved = read(&format!("# moved\n{}", client()), Some(&running)).unwrap();
    assert_eq!(diff(&running, &moved), crate::Difference::default());
    let other = client().replace("10.0.0.1", "10.0.0.2");
    let wanted = read(&other, Some(&running)).unwrap();
    assert_eq!(diff(&running, &wanted).restart_needed, ["link rack"]);
    let renamed = client().replace("remote = \"db\"", "remote = \"web\"");
    let changes = diff(&running, &read(&renamed, Some(&running)).unwrap()).changes;
    assert!(matches!(&changes[..], [Change::Remove { .. }, Change::Add(_)]), "{changes:?}");
    let twice = format!("{}[[disk]]\nid = \"again\"\nlink = \"rack\"\nremote = \"db\"\n", client());
    let refusal = read(&twice, None).unwrap_err();
    assert!(refusal.contains("the disk there is already that of disk \"root\""), "{refusal}");
    // A disk of the API may be remote, by a link that runs.
    let spec = DiskSpec { link: Some("rack".into()), ..DiskSpec::new("later") };
    let made = running.disk_from_api(&spec).unwrap();
    assert_eq!(made.source, Source::Remote { link: "rack".into(), name: "later".into() });
    let spec = DiskSpec { link: Some("rock".into()), ..DiskSpec::new("later") };
    assert!(running.disk_from_api(&spec).unwrap_err().hint.contains("did you mean \"rack\"?"));
}

/// An IOhost whose switch has a port for a NIC, and the guest's NIC at the other end.
fn with_nic() -> [String; 2] {
    let lan = "[[switch]]\nid = \"lan\"\n[[switch.uplink]]\ntap = \"lan0\"\n[[switch.uplink]]\nremote = \
               \"web\"\nvlan = 10\nspoof = \"deny\"\n";
    let nics = "disks = [\"db\"]\nnics = [\"web\"]";
    let nic = "[[nic]]\nid = \"vm1-net\"\nby_link = \"rack\"\nremote = \"web\"\nmtu = 9000\n";
    [iohost().replace("disks = [\"db\"]", nics) + lan, client() + nic]
}

#[test]
fn a_nic_of_another_machine_is_an_uplink_there_and_a_wire_here() {
    let [there, here] = with_nic();
    let there = read(&there, None).unwrap();
    assert_eq!(there.links[0].clients()[0].nics, ["web"]);
    let uplink = there.switches[0].uplink("web").unwrap();
    assert_eq!(uplink.host, HostPlan::Lent { name: "web".into() });
    assert_eq!((uplink.mac, uplink.spoof), (Some(Mac::of_name("web")), Spoof::Deny));
    assert_eq!((uplink.macs_max, &uplink.vlan), (1024, &VlanPlan::Access(10)));
    let here = read(&here, None).unwrap();
    let peer = HostPlan::Remote { link: "rack".into(), name: "web".into() };
    assert_eq!(here.nics[0].host(), Some(&peer));
    assert_eq!((here.nics[0].mac, here.nics[0].mtu), (Mac::of_name("web"), 9000));
    let plain = with_nic()[1].replace("remote = \"web\"\n", "");
    let here = read(&plain, None).unwrap();
    let peer = HostPlan::Remote { link: "rack".into(), name: "vm1-net".into() };
    assert_eq!((here.nics[0].host(), here.nics[0].mac), (Some(&peer), Mac::of_name("vm1-net")));
}

#[test]
fn each_mistake_about_a_nic_of_another_machine_is_refused_with_its_place() {
    for (end, from, to, place, wrong) in [
        (0, "remote = \"web\"", "remote = \"wed\"", "nics[1]", "did you mean \"wed\"?"),
        (
            0,
            "remote = \"web\"",
            "tap = \"web\"",
            "spoof",
            "only an uplink with `remote` has `spoof`",
        ),
        (0, "remote = \"web\"", "remote = \"web\"\ntap = \"t\"", "remote", "beside `tap`"),
        (0, "remote = \"web\"", "remote = \"Web\"", "remote", "\"Web\""),
        (0, "spoof = \"deny\"", "mac = \"01:00:00:00:00:01\"", "mac", "01:00:00:00:00:01"),
        (
            0,
            "spoof = \"deny\"",
            "[[switch.uplink]]\nremote = \"web\"",
            "remote",
            "the name \"web\" is that of another uplink of this switch",
        ),
        (
            0,
            "spoof = \"deny\"",
            "mac = \"52:54:00:00:00:01\"\n[[nic]]\nid = \"n\"\nswitch = \"lan\"\nmac = \
             \"52:54:00:00:00:01\"",
            "mac",
            "is that of the nic \"web\"",
        ),
        (1, "by_link = \"rack\"", "by_link = \"rock\"", "by_link", "there is no link \"rock\""),
        (
            1,
            "by_link = \"rack\"\n",
            "tap = \"t\"\n",
            "remote",
            "there is `remote`, but no `by_link`",
        ),
        (1, "by_link = \"rack\"", "by_link = \"rack\"\nvlan = 3", "vlan", "has no `vlan`"),
        (1, "by_link = \"rack\"", "by_link = \"rack\"\ntap = \"t\"", "by_link", "both `tap` and"),
        (1, "mtu = 9000", "mtu = 9001", "mtu", "9001"),
        (
            1,
            "mtu = 9000",
            "[[nic]]\nid = \"b\"\nby_link = \"rack\"\nremote = \"web\"",
            "by_link",
            "the nic \"web\" of link \"rack\" is that of",
        ),
    ] {
        let file = with_nic()[end].clone();
        assert!(file.contains(from), "{from}");
        let said = read(&file.replace(from, to), None).unwrap_err();
        assert!(said.contains(place) && said.contains(wrong), "{to}: {said}");
    }
}

#[test]
fn a_mistake_in_a_link_is_told_once() {
    let file = with_nic()[1].replace("iohosts = [", "iohosts = [\"10.0.0.1\", ");
    let said = read(&file, None).unwrap_err();
    assert!(said.contains("is not an address with a port"), "{said}");
    assert!(!said.contains("there is no link"), "{said}");
    // One that is not written at all is still missed, and so is one that a running daemon has not got.
    let said = read(&file.replace("by_link = \"rack\"", "by_link = \"rock\""), None).unwrap_err();
    assert!(said.contains("there is no link \"rock\""), "{said}");
    let running = read("[sidecores]\ncpus = \"1\"\n", None).unwrap();
    let said = read(&with_nic()[1], Some(&running)).unwrap_err();
    assert!(said.contains("there is no link \"rack\""), "{said}");
}
