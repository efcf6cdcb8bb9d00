//! Files with switches and NICs, and what the API may add to them, to the letter.

use crate::mac::Mac;
use crate::plan::{
    HostPlan, NicPeer, NullPlan, Origin, Plan, PolicyPlan, UplinkPlan, VlanPlan, load,
};
use crate::spec::{
    Carrier, Mode, NIC_MODERATE_DEFAULT_US, NicChange, NicSpec, Redirect, Spoof, SwitchSpec,
    UplinkSpec, Via,
};
use cpus::HostCpus;

fn host() -> HostCpus {
    HostCpus { online: vec![0, 1], auto: vec![1], auto_count: 1 }
}

fn plan(text: &str) -> Plan {
    load(text, "f", "/etc", &host(), None).unwrap_or_else(|refusal| panic!("{refusal}"))
}

/// The first line of each mistake, without the file's name.
fn lines_after(text: &str, running: Option<&Plan>) -> Vec<String> {
    let refusal = load(text, "f", "/etc", &host(), running).unwrap_err();
    let line = |m: &crate::mistake::Located| format!("{}:{}: {}", m.line, m.column, m.mistake);
    refusal.mistakes.iter().map(|kind| line(&kind.first)).collect()
}

fn lines(text: &str) -> Vec<String> {
    lines_after(text, None)
}

fn nic_on(id: &str, switch: &str) -> NicSpec {
    NicSpec { switch: Some(switch.to_string()), ..NicSpec::new(id) }
}

#[test]
fn what_an_operator_writes_becomes_a_plan() {
    let plan = plan(
        "[sidecores]\npolicy = \"poll\"\n[[switch]]\nid = \"lan\"\n[[switch.uplink]]\ntap = \
         \"lan0\"\n[[switch.uplink]]\ninterface = \"eth1\"\nvia = \"xdp\"\ntrunk = [20, \
         10]\nnative = 1\nshare = 7\npolicy = \"notify\"\n[[nic]]\nid = \"vm1-net\"\nswitch = \
         \"lan\"\nvlan = 10\n[[nic]]\nid = \"vm2\"\ninterface = \"eth0\"\nmac = \
         \"52:54:00:00:00:01\"\nmtu = 9000\nqueues = 4\nlink = \"down\"\nmode = \"connect\"\n",
    );
    let switch = &plan.switches[0];
    assert_eq!((switch.id.as_str(), switch.ageing_s, switch.macs_max), ("lan", 300, 8192));
    assert_eq!(switch.origin, Origin::File { file: "f".into(), line: 3 });
    let tap = UplinkPlan {
        host: HostPlan::Tap { name: "lan0".into() },
        vlan: VlanPlan::None,
        macs_max: 8192,
        mac: None,
        spoof: Spoof::Allow,
        share: 100,
        policy: PolicyPlan::Poll,
    };
    let eth = UplinkPlan {
        host: HostPlan::Interface { name: "eth1".into(), via: Via::Xdp },
        vlan: VlanPlan::Trunk { native: Some(1), allowed: vec![10, 20] },
        share: 7,
        policy: PolicyPlan::Notify,
        ..tap.clone()
    };
    assert_eq!(switch.uplinks, [tap, eth]);
    let [first, second] = &plan.nics[..] else { panic!("two nics") };
    assert_eq!(first.peer, NicPeer::Switch("lan".into()));
    assert_eq!(first.socket, "/run/sidecore/vm1-net.sock");
    assert_eq!((first.mac, first.mtu, first.queues), (Mac::of_name("vm1-net"), 1500, 1));
    assert_eq!((&first.vlan, first.macs_max), (&VlanPlan::Access(10), 1024));
    assert_eq!((first.carrier, first.service.policy), (Carrier::Up, PolicyPlan::Poll));
    let eth0 = HostPlan::Interface { name: "eth0".into(), via: Via::Packet };
    assert_eq!(second.host(), Some(&eth0));
    assert_eq!((second.mac.to_string().as_str(), second.mtu), ("52:54:00:00:00:01", 9000));
    assert_eq!((second.carrier, second.mode), (Carrier::Down, Mode::Connect));
}

#[test]
fn a_nic_for_measuring_says_what_it_makes() {
    let of = |text: &str| plan(&format!("[[nic]]\nid = \"n\"\n{text}")).nics.remove(0).peer;
    let null = |null| NicPeer::Host(HostPlan::Null(null));
    assert_eq!(of("null = \"drop\""), null(NullPlan::Drop));
    assert_eq!(of("null = \"echo\""), null(NullPlan::Echo));
    assert_eq!(of("null = \"generate\""), null(NullPlan::Generate { size: 60, rate: 0 }));
    assert_eq!(
        of("null = \"generate\"\nsize = 1514\nrate = 1000"),
        null(NullPlan::Generate { size: 1514, rate: 1000 })
    );
    for (text, line) in [
        ("size = 1515", "4:8: nic[1].size: 1515 is out of bounds"),
        ("size = 59", "4:8: nic[1].size: 59 is out of bounds"),
        ("vlan = 1", "4:8: nic[1].vlan: a nic with `null` has no `vlan`"),
        ("via = \"xdp\"", "4:7: nic[1].via: there is `via`, but no `interface`"),
    ] {
        let text = format!("[[nic]]\nid = \"n\"\nnull = \"generate\"\n{text}");
        assert_eq!(lines(&text), [line]);
    }
    let text = "[[nic]]\nid = \"n\"\nnull = \"echo\"\nsize = 60\nrate = 1";
    assert_eq!(
        lines(text),
        [
            "4:8: nic[1].size: only a nic with null = \"generate\" has `size`",
            "5:8: nic[1].rate: only a nic with null = \"generate\" has `rate`",
        ]
    );
}

#[test]
fn a_nic_is_connected_to_one_thing_that_is_there() {
    assert_eq!(lines("[[nic]]\nid = \"n\""), ["1:1: nic[1]: the nic is connected to nothing"]);
    assert_eq!(
        lines("[[nic]]\nid = \"n\"\nswitch = \"a\"\ntap = \"t\"\nnull = \"drop\""),
        [
            "4:7: nic[1].tap: there are both `switch` and `tap`",
            "5:8: nic[1].null: there are both `switch` and `null`",
        ]
    );
    let refusal = load(
        "[[switch]]\nid = \"wan\"\n[[nic]]\nid = \"n\"\nswitch = \"lan\"\n",
        "f",
        "/etc",
        &host(),
        None,
    );
    assert_eq!(
        refusal.unwrap_err().to_string(),
        "f:5:10: nic[1].switch: there is no switch \"lan\"\n  |\n5 | switch = \"lan\"\n  |          \
         ^^^^^\n  = declare it: [[switch]] with id = \"lan\"; or name one of wan"
    );
    // A switch that is there with a mistake of its own is there.
    assert_eq!(
        lines(
            "[[switch]]\nid = \"lan\"\nageing_s = 1\nuplink = [{}]\n[[nic]]\nid = \"n\"\nswitch = \"lan\""
        ),
        ["4:11: switch[1].uplink[1]: the uplink leads nowhere"]
    );
}

#[test]
fn every_mistake_about_ports_has_its_place() {
    let text = "[[switch]]\nid = \"Lan\"\nageing_s = 0\nmacs_max = 32769\nuplinks = 1\n\
                [[nic]]\nid = \"n\"\nswitch = \"lan\"\nmac = \"01:00:00:00:00:01\"\nmtu = 67\n\
                queues = 17\nvlan = 4095\ntrunk = 7\nlink = \"upp\"\n";
    assert_eq!(
        lines(text),
        [
            "3:12: switch[1].ageing_s: 0 is out of bounds",
            "4:12: switch[1].macs_max: 32769 is out of bounds",
            "5:1: `uplinks` is not a field of switch[1]",
            "9:7: nic[1].mac: \"01:00:00:00:00:01\" is the address of a group, not of one card",
            "10:7: nic[1].mtu: 67 is out of bounds",
            "11:10: nic[1].queues: 17 is out of bounds",
            "12:8: nic[1].vlan: 4095 is out of bounds",
            "13:9: nic[1].trunk: a list is needed here, not a number",
            "14:8: nic[1].link: \"upp\" is not possible here",
        ]
    );
    let uplink = |fields: &str| {
        let text = format!("[[switch]]\nid = \"s\"\n[[switch.uplink]]\ntap = \"t0\"\n{fields}");
        lines(&text).remove(0)
    };
    let at = "5:8: switch[1].uplink[1]";
    assert_eq!(
        uplink("vlan = 1\ntrunk = [2]"),
        format!("{at}.vlan: there are both `vlan` and `trunk`")
    );
    let list = |text: &str| uplink(text).replace("5:9: switch[1].uplink[1].trunk: ", "");
    assert_eq!(list("trunk = [2, 1, 2]"), "VLAN 2 is named twice");
    assert_eq!(list("trunk = []"), "a trunk without a VLAN");
    assert_eq!(uplink("trunk = [1, 0]"), "5:13: switch[1].uplink[1].trunk[2]: 0 is out of bounds");
    assert_eq!(
        uplink("native = 1"),
        "5:10: switch[1].uplink[1].native: there is `native`, but no `trunk`"
    );
    assert_eq!(
        uplink("interface = \"e\""),
        "5:13: switch[1].uplink[1].interface: there are both `tap` and `interface`"
    );
    assert_eq!(
        lines("nic = 7\nswitch = [{ id = \"s\", uplink = 7 }]"),
        [
            "1:7: nic: a list of tables is needed here, not a number",
            "2:32: switch[1].uplink: a list of tables is needed here, not a number",
        ]
    );
    let refusal = load("switch = [{ id = \"s\", uplink = 7 }]", "f", "/", &host(), None);
    let right = refusal.unwrap_err().mistakes.remove(0).first.mistake.right;
    assert_eq!(right, "write it as `[[switch.uplink]]`");
}

#[test]
fn names_of_interfaces_are_those_that_linux_takes() {
    let of = |name: &str| {
        let text = format!("[[nic]]\nid = \"n\"\ntap = \"{name}\"");
        load(&text, "f", "/", &host(), None).is_ok()
    };
    for name in ["t", "tap0", "eth0.10", "a-b_c", "fifteen-letters"] {
        assert!(of(name), "{name}");
    }
    for name in ["", ".", "..", "sixteen-letters-", "a b", "a/b", "a:b", "tap%d", "ä", "a\\u0000"]
    {
        assert!(!of(name), "{name}");
    }
}

#[test]
fn ports_may_not_clash() {
    let text = "[[disk]]\nid = \"a\"\npath = \"/i\"\n\
                [[switch]]\nid = \"s\"\n[[switch.uplink]]\ntap = \"t\"\n[[switch.uplink]]\n\
                interface = \"t\"\n\
                [[switch]]\nid = \"s\"\n[[switch.uplink]]\ntap = \"t\"\n\
                [[nic]]\nid = \"a\"\nswitch = \"s\"\n\
                [[nic]]\nid = \"b\"\nswitch = \"s\"\nmac = \"02:00:00:00:00:01\"\n\
                socket = \"/run/sidecore/a.sock\"\n\
                [[nic]]\nid = \"c\"\nswitch = \"s\"\nmac = \"02:00:00:00:00:01\"\n\
                [[nic]]\nid = \"d\"\ninterface = \"t\"\n\
                [[nic]]\nid = \"e\"\ntap = \"u\"\nmac = \"02:00:00:00:00:01\"\n\
                [[nic]]\nid = \"f\"\ntap = \"u\"\n";
    assert_eq!(
        lines(text),
        [
            "9:13: switch[1].uplink[2].interface: the interface \"t\" is that of another uplink of \
             this switch",
            "11:6: switch[2].id: the name \"s\" is taken by switch \"s\" (f:4)",
            "13:7: switch[2].uplink[1].tap: the interface \"t\" is that of an uplink of switch \"s\" \
             (f:4)",
            "15:6: nic[1].id: the name \"a\" is taken by disk \"a\" (f:1)",
            "21:10: nic[2].socket: the socket \"/run/sidecore/a.sock\" is that of disk \"a\" (f:1)",
            "25:7: nic[3].mac: the address 02:00:00:00:00:01 is that of nic \"b\" (f:17)",
            "28:13: nic[4].interface: the interface \"t\" is that of an uplink of switch \"s\" (f:4)",
            "35:7: nic[6].tap: the interface \"u\" is that of nic \"e\" (f:29)",
        ]
    );
}

#[test]
fn a_switch_has_ports_for_so_many_and_no_more() {
    let mut text = "[[switch]]\nid = \"s\"\nuplink = [{ tap = \"t\" }]\n".to_string();
    for n in 0..1024 {
        text.push_str(&format!("[[nic]]\nid = \"n{n}\"\nswitch = \"s\"\n"));
    }
    assert_eq!(
        lines(&text),
        [format!("{}:10: nic[1024].switch: the switch \"s\" has 1024 ports already", 3 + 3 * 1024)]
    );
}

#[test]
fn the_api_makes_nics_and_switches_beside_those_of_the_file() {
    let mut running = plan("[[switch]]\nid = \"lan\"\n[[nic]]\nid = \"a\"\nswitch = \"lan\"\n");
    let refused = |plan: &Plan, spec: &NicSpec| {
        let error = plan.nic_from_api(spec).unwrap_err();
        (error.kind.status(), error.error, error.hint)
    };
    let (status, error, hint) = refused(&running, &nic_on("b", "wan"));
    assert_eq!((status, error.as_str()), (409, "switch: there is no switch \"wan\""));
    assert_eq!(hint, "make it with `sidecore switch add wan`; or name one of lan");
    let (status, error, _) = refused(&running, &nic_on("a", "lan"));
    assert_eq!(status, 409);
    assert_eq!(
        error, "id: the name \"a\" is taken by nic \"a\" (f:3)",
        "nor is it said again of its address"
    );
    let wild = NicSpec { mtu: 1, queues: 0, mac: Some(Mac([1; 6])), ..nic_on("b", "lan") };
    let (status, error, _) = refused(&running, &wild);
    assert_eq!(
        (status, error.as_str()),
        (
            422,
            "queues: 0 is out of bounds; mtu: 1 is out of bounds; mac: \"01:01:01:01:01:01\" is the \
             address of a group, not of one card"
        )
    );
    running.nics.push(running.nic_from_api(&nic_on("b", "lan")).unwrap());
    let uplink = UplinkSpec { tap: Some("t".into()), ..UplinkSpec::default() };
    let spec = SwitchSpec { uplink: vec![uplink.clone()], ..SwitchSpec::new("wan") };
    running.switches.push(running.switch_from_api(&spec).unwrap());
    running.nics.push(running.nic_from_api(&nic_on("c", "wan")).unwrap());
    let again = SwitchSpec { uplink: vec![uplink], ..SwitchSpec::new("other") };
    let error = running.switch_from_api(&again).unwrap_err();
    assert_eq!(
        error.error,
        "uplink[1].tap: the interface \"t\" is that of an uplink of switch \"wan\" (api)"
    );
    let error = running.check_switch_is_free("lan").unwrap_err();
    assert_eq!(
        (error.kind.status(), error.error.as_str()),
        (409, "switch \"lan\" has 2 nics: a, b")
    );
    assert_eq!(running.check_switch_is_free("none"), Ok(()));
    let disk = crate::DiskSpec { path: Some("/x".into()), ..crate::DiskSpec::new("b") };
    let error = running.disk_from_api(&disk).unwrap_err();
    assert_eq!(error.error, "id: the name \"b\" is taken by nic \"b\" (api)");
    assert!(error.hint.ends_with("`sidecore nic rm b`"), "{}", error.hint);
}

#[test]
fn a_reload_may_not_take_away_what_the_api_stands_on() {
    let mut running = plan("[[switch]]\nid = \"lan\"\n");
    running.nics.push(running.nic_from_api(&nic_on("b", "lan")).unwrap());
    running.switches.push(running.switch_from_api(&SwitchSpec::new("wan")).unwrap());
    assert_eq!(
        lines_after("", Some(&running)),
        ["1:1: nic \"b\" (api) is on switch \"lan\", which is gone"]
    );
    assert_eq!(
        lines_after(
            "[[switch]]\nid = \"lan\"\n[[nic]]\nid = \"x\"\nswitch = \"wan\"\n\
             [[nic]]\nid = \"b\"\ntap = \"t\"\n[[switch]]\nid = \"wan\"\n",
            Some(&running)
        ),
        [
            "7:6: nic[2].id: the name \"b\" is taken by nic \"b\" (api)",
            "10:6: switch[2].id: the name \"wan\" is taken by switch \"wan\" (api)",
        ]
    );
    assert_eq!(
        lines_after(
            "[[switch]]\nid = \"lan\"\n[[nic]]\nid = \"x\"\nswitch = \"wan\"\n",
            Some(&running)
        ),
        ["5:10: nic[1].switch: the switch \"wan\" was made through the API"]
    );
    let text = "sidecores.policy = \"poll\"\n[[switch]]\nid = \"lan\"\n";
    let kept = load(text, "f", "/etc", &host(), Some(&running)).unwrap();
    assert_eq!(kept.nics.len(), 1);
    assert_eq!(kept.nics[0].service.policy, PolicyPlan::Poll, "what it inherits follows the file");
    assert_eq!(kept.switches.iter().map(|s| s.id.as_str()).collect::<Vec<_>>(), ["lan", "wan"]);
}

#[test]
fn calls_for_sent_frames_wait_unless_that_is_said() {
    let of = |words: &str| {
        let text =
            format!("[[switch]]\nid = \"lan\"\n[[nic]]\nid = \"b\"\nswitch = \"lan\"\n{words}");
        plan(&text).nics[0].service.moderate_us
    };
    assert_eq!((of(""), NIC_MODERATE_DEFAULT_US), (Some(64), 64));
    assert_eq!((of("moderate_us = 0"), of("moderate_us = 1000")), (None, Some(1000)));
    let mut running = plan("[[switch]]\nid = \"lan\"\n");
    running.nics.push(running.nic_from_api(&nic_on("b", "lan")).unwrap());
    let wait = |us| NicChange { moderate_us: Some(us), ..NicChange::default() };
    let nic = running.nic_changed("b", &wait(0)).unwrap();
    assert_eq!((nic.service.moderate_us, nic.spec.moderate_us), (None, Some(0)));
    running.nics = vec![nic];
    let share = NicChange { share: Some(7), ..NicChange::default() };
    assert_eq!(running.nic_changed("b", &share).map(|nic| nic.service.moderate_us), Ok(None));
    assert_eq!(
        running.nic_changed("b", &wait(64)).map(|nic| nic.service.moderate_us),
        Ok(Some(64))
    );
}

#[test]
fn which_queue_gets_a_frame_may_be_changed_by_command() {
    let mut running = plan("[[switch]]\nid = \"lan\"\n");
    let spec = NicSpec { queues: 4, ..nic_on("b", "lan") };
    running.nics.push(running.nic_from_api(&spec).unwrap());
    let change = NicChange {
        redirect: Some(Redirect::Always),
        vcpus: Some(vec![3, 2, 1, 0]),
        ..NicChange::default()
    };
    let nic = running.nic_changed("b", &change).unwrap();
    assert_eq!((nic.redirect, &nic.vcpus[..]), (Redirect::Always, &[3, 2, 1, 0][..]));
    assert_eq!(nic.spec.vcpus, Some(vec![3, 2, 1, 0]), "it is kept so");
    running.nics = vec![nic];
    let home = NicChange { vcpus: Some(vec![]), ..NicChange::default() };
    let nic = running.nic_changed("b", &home).unwrap();
    assert_eq!((nic.redirect, nic.vcpus.len()), (Redirect::Always, 0));
    let off = NicChange { redirect: Some(Redirect::Off), ..NicChange::default() };
    assert_eq!(running.nic_changed("b", &off).map(|nic| nic.redirect), Ok(Redirect::Off));
    // More than there are pairs.
    let many = NicChange { vcpus: Some(vec![0; 5]), ..NicChange::default() };
    assert!(running.nic_changed("b", &many).is_err());
}

#[test]
fn a_change_touches_what_it_names() {
    let mut running = plan("[[switch]]\nid = \"lan\"\n");
    running.nics.push(running.nic_from_api(&nic_on("b", "lan")).unwrap());
    let deny = NicChange { spoof: Some(Spoof::Deny), ..NicChange::default() };
    assert_eq!(running.nic_changed("b", &deny).map(|nic| nic.spoof), Ok(Spoof::Deny));
    let mut change = |change: NicChange| {
        let made = running.nic_changed("b", &change);
        if let Ok(made) = &made {
            running.nics[0] = made.clone();
        }
        made.map(|nic| (nic.service.share, nic.vlan.clone(), nic.macs_max, nic.spec.native))
    };
    let none = NicChange::default();
    let share = NicChange { share: Some(7), ..none.clone() };
    assert_eq!(change(share), Ok((7, VlanPlan::None, 1024, None)));
    let access = NicChange { vlan: Some(10), macs_max: Some(2), ..none.clone() };
    assert_eq!(change(access), Ok((7, VlanPlan::Access(10), 2, None)));
    let trunk = NicChange { trunk: Some(vec![3, 2]), native: Some(1), ..none.clone() };
    let allowed = vec![2, 3];
    let expected = VlanPlan::Trunk { native: Some(1), allowed: allowed.clone() };
    assert_eq!(change(trunk), Ok((7, expected, 2, Some(1))));
    let native = NicChange { native: Some(5), ..none.clone() };
    let expected = VlanPlan::Trunk { native: Some(5), allowed };
    assert_eq!(change(native.clone()), Ok((7, expected, 2, Some(5))));
    let plain = NicChange { vlan: Some(0), ..none.clone() };
    assert_eq!(change(plain), Ok((7, VlanPlan::None, 2, None)));
    let errors = [
        (none.clone(), "nothing is to be changed"),
        (native, "native: there is `native`, but no `trunk`"),
        (NicChange { vlan: Some(4095), ..none.clone() }, "vlan: 4095 is out of bounds"),
        (
            NicChange { vlan: Some(1), trunk: Some(vec![2]), ..none.clone() },
            "vlan: there are both `vlan` and `trunk`",
        ),
    ];
    for (wrong, why) in errors {
        let error = change(wrong).unwrap_err();
        assert_eq!((error.kind.status(), error.error.as_str()), (422, why));
    }
    assert_eq!(running.nic_changed("x", &none).unwrap_err().error, "there is no nic \"x\"");
    running.nics[0] =
        running.nic_from_api(&NicSpec { tap: Some("t".into()), ..NicSpec::new("c") }).unwrap();
    let error = running.nic_changed("c", &NicChange { vlan: Some(1), ..none }).unwrap_err();
    assert_eq!(error.error, "vlan: a nic with `tap` has no `vlan`");
}

#[test]
fn uplinks_are_written_on_a_command_line_too() {
    let uplink: UplinkSpec = "interface=eth1,via=xdp,trunk=10+20,native=1,share=7".parse().unwrap();
    assert_eq!(
        uplink,
        UplinkSpec {
            interface: Some("eth1".into()),
            via: Some(Via::Xdp),
            trunk: Some(vec![10, 20]),
            native: Some(1),
            share: 7,
            ..UplinkSpec::default()
        }
    );
    assert_eq!("tap=1".parse::<UplinkSpec>().unwrap().tap.as_deref(), Some("1"));
    for (text, why) in [
        ("", "\"\" is not NAME=VALUE, such as tap=lan0"),
        ("lan0", "\"lan0\" is not NAME=VALUE, such as tap=lan0"),
        ("tap=a,tap=b", "`tap` is given twice"),
        ("tap=a,trunk=1-2", "\"1-2\" is not a list of VLANs, such as 10+20"),
        (
            "tap=a,vlan=x",
            "vlan: a number is needed here, not a text (write a number from 1 to 4094, such as 10)",
        ),
        ("tap=a,vlans=1", "`vlans` is not a field here (did you mean `vlan`?)"),
    ] {
        assert_eq!(text.parse::<UplinkSpec>().unwrap_err().to_string(), why);
    }
}
