//! Ports that lead to the host. What is opened here is `null`, or not there at all: both need no rights.

use std::cell::Cell;
use std::rc::Rc;

use backend::link::{LinkOpenError, LinkShards, LinkSource};
use backend::net::{HostOpenError, HostPort, HostSource, NullMode, Silence};
use config::api::PortKind;
use config::spec::{Carrier, NullKind, UplinkSpec};
use control::mode::Mode;
use sidecore::{Event, HostKey, HostSpec};

use super::*;
use crate::network::NetworkError;
use crate::network::host_ports::HostPorts;
use crate::network::reload::NotDone;
use crate::network::switches::Holder;
use crate::network::uplink::Uplink;
use crate::simulated::{Machine, be_on};

/// An interface that no host has: a longer name than any can have is refused before.
const MISSING: &str = "nosuchif0";

fn with_uplink(name: &str) -> String {
    format!("{LAN}[[switch.uplink]]\ninterface = {name:?}\n")
}

fn uplinks(trial: &mut Trial) -> Vec<u32> {
    let network = &trial.rooms().network;
    network.uplinks.keys().copied().collect()
}

fn uplink(trial: &mut Trial, number: u32) -> &Uplink {
    trial.rooms().network.uplink(number).expect("an uplink")
}

/// What would be the interface's descriptor.
fn null(mode: NullMode) -> HostPorts {
    HostPorts::from(vec![(0, HostPort::open(&HostSource::Null { mode }).expect("nothing to open"))])
}

/// A switch with an uplink that is open, and its number.
fn opened(trial: &mut Trial) -> u32 {
    let plan = plan_of(trial);
    let (network, mut around) = trial.rooms().network();
    let added = network.add_uplink_to("lan", plan, Some(null(NullMode::Drop)), &mut around);
    added.expect("it has a port");
    trial.rest();
    uplinks(trial)[0]
}

/// The plan of an uplink on an interface, as a file has it.
fn plan_of(trial: &Trial) -> config::plan::UplinkPlan {
    let spec = SwitchSpec { uplink: vec![uplink_spec("eth7")], ..SwitchSpec::new("other") };
    let plan = trial.daemon.plan().switch_from_api(&spec).expect("a plan");
    plan.uplinks.into_iter().next().expect("its uplink")
}

fn uplink_spec(interface: &str) -> UplinkSpec {
    UplinkSpec { interface: Some(interface.to_string()), ..UplinkSpec::default() }
}

#[test]
fn an_uplink_without_its_interface_is_tried_again_each_second_and_says_why() {
    let mut trial = Trial::of(&format!("{}{}{}", with_uplink(MISSING), nic("a"), nic("b")));
    let shown = show(&mut trial, "lan");
    let port = &shown.ports[0];
    assert_eq!(
        (port.name.as_str(), port.kind, port.link),
        (MISSING, PortKind::Interface, Carrier::Down)
    );
    let why = port.problem.as_deref().expect("a reason");
    assert!(why.contains(MISSING), "{why}");
    assert_eq!(shown.problem, Some(format!("uplink {MISSING}: {why}")));
    assert_eq!(port.served_as, None);
    // Its guests have each other all the same.
    let (mut a, mut b) = (Vmm::of_nic(&mut trial, "a"), Vmm::of_nic(&mut trial, "b"));
    let own = trial.nic("a").mac.0;
    let seen = frame(BROADCAST, own, 1);
    assert_eq!(carries(&mut trial, &mut a, &mut b, &seen), Some(seen));
    // Once a second, and no more often.
    let rooms = trial.rooms();
    let now = rooms.turn.tick();
    let due = rooms.network.due_at().expect("another try");
    assert!(due > now && due <= now + Duration::from_secs(1), "{:?}", due - now);
    assert!(rooms.network.due(now).is_empty());
    assert_eq!(rooms.network.due(due).len(), 1);
    rooms.network.hasten(now);
    assert_eq!(rooms.network.due(now).len(), 1, "an operator who reloads does not wait");
}

/// Whatever its cable is, no frame passes it.
#[test]
fn a_nic_without_its_interface_has_no_link() {
    let wired = format!("[[nic]]\nid = \"w\"\ninterface = {MISSING:?}\n");
    let mut trial = Trial::of(&format!("{LAN}{}{wired}", nic("a")));
    let [a, w] = ["a", "w"].map(|id| trial.nic(id));
    assert_eq!((a.link, w.link), (Carrier::Up, Carrier::Down));
    assert!(w.problem.is_some_and(|why| why.contains(MISSING)));
}

/// A machine with every interface, all of which do the same with frames.
#[derive(Default)]
struct Everything {
    silence: Cell<Option<Silence>>,
}

impl Machine for Everything {
    fn open_link(&self, _: &LinkSource, _: usize) -> Result<LinkShards, LinkOpenError> {
        unreachable!("there is no link")
    }

    fn open_port(&self, _: &HostSource) -> Result<HostPort, HostOpenError> {
        HostPort::open(&HostSource::Null { mode: NullMode::Drop })
    }

    fn silence_of(&self, _: &str) -> Option<Silence> {
        self.silence.get()
    }

    fn fill(&self, bytes: &mut [u8]) {
        bytes.fill(7);
    }

    fn boot(&self) -> u64 {
        1
    }
}

/// An operator looks at LINK first, and an interface that was set down takes no frame.
#[test]
fn what_is_open_and_down_is_told_to_be_down() {
    let machine = Rc::new(Everything::default());
    be_on(Some(Rc::clone(&machine) as Rc<dyn Machine>));
    let wired = "[[nic]]\nid = \"w\"\ntap = \"tap0\"\n";
    let mut trial = Trial::of(&format!("{}{}{wired}", with_uplink("eth7"), nic("a")));
    trial.rest();
    let mut seen = || {
        let uplink = show(&mut trial, "lan").ports.remove(0);
        let [a, w] = ["a", "w"].map(|id| trial.nic(id));
        assert_eq!((a.link, a.problem), (Carrier::Up, None), "it has the switch");
        ([uplink.link, w.link], [uplink.problem, w.problem])
    };
    assert_eq!(seen(), ([Carrier::Up; 2], [None, None]));
    machine.silence.set(Some(Silence::Down));
    let (links, [of_uplink, of_nic]) = seen();
    let up = |name: &str| format!("is down, and no frame passes: `ip link set dev {name} up`");
    assert_eq!(links, [Carrier::Down; 2]);
    assert_eq!(of_uplink, Some(format!("interface eth7 {}", up("eth7"))));
    let expected = format!("tap tap0 {}; its guest sees a carrier all the same", up("tap0"));
    assert_eq!(of_nic, Some(expected));
    machine.silence.set(Some(Silence::NoCarrier));
    let (links, [of_uplink, _]) = seen();
    let expected =
        "interface eth7 has no carrier, and no frame passes: see to its cable or its other end";
    assert_eq!((links, of_uplink.as_deref()), ([Carrier::Down; 2], Some(expected)));
    machine.silence.set(None);
    assert_eq!(seen(), ([Carrier::Up; 2], [None, None]));
    drop(trial);
    be_on(None);
}

#[test]
fn a_switch_whose_uplink_does_not_open_is_not_added() {
    let mut trial = Trial::of(LAN);
    let spec = SwitchSpec { uplink: vec![uplink_spec(MISSING)], ..SwitchSpec::new("dmz") };
    let (why_kind, why) = refused(trial.ask(Call::AddSwitch(spec)));
    assert_eq!(why_kind, ErrorKind::Refused);
    assert!(why.starts_with("switch \"dmz\": ") && why.contains(MISSING), "{why}");
    assert!(why.ends_with("put that right, or name another interface"), "{why}");
    assert_eq!(kind(trial.ask(Call::ShowSwitch { id: "dmz".into() })), ErrorKind::NotFound);
    assert_eq!((uplinks(&mut trial), trial.daemon.loads()), (vec![], vec![0, 0]));
}

#[test]
fn a_reload_that_needs_what_does_not_open_changes_nothing() {
    let mut trial = Trial::of(&format!("{LAN}{}", nic("a")));
    let mut vmm = Vmm::of_nic(&mut trial, "a");
    let whole = format!("{}[[switch]]\nid = \"dmz\"\n", with_uplink(MISSING));
    for (text, whose) in [
        (whole, "switch \"lan\": "),
        (format!("{LAN}{}[[nic]]\nid = \"w\"\ntap = \"{MISSING}/x\"\n", nic("a")), ""),
        (format!("{LAN}{}[[nic]]\nid = \"w\"\ninterface = {MISSING:?}\n", nic("a")), "nic \"w\" "),
    ] {
        let (why_kind, why) = refused(trial.reload(&text, true));
        assert_eq!(why_kind, ErrorKind::Refused, "{why}");
        assert!(why.starts_with(whose), "{why}");
        if !whose.is_empty() {
            assert!(why.ends_with("put that right and reload again; nothing was changed"), "{why}");
        }
        let Ok(Answer::Switches(all)) = trial.ask(Call::ListSwitches) else { panic!("no list") };
        assert_eq!(all.switches.len(), 1);
        assert!(!vmm.is_cut_off(&mut trial));
        assert!(uplinks(&mut trial).is_empty());
    }
}

#[test]
fn an_uplink_that_is_open_is_served_and_one_whose_interface_goes_is_opened_anew() {
    let mut trial = Trial::of(LAN);
    let number = opened(&mut trial);
    let home = uplink(&mut trial, number).home();
    let shown = show(&mut trial, "lan");
    assert_eq!((shown.problem, shown.ports[0].link), (None, Carrier::Up));
    assert_eq!(shown.ports[0].sidecore, Some(home as u16));
    assert_eq!(shown.ports[0].served_as.as_deref(), Some("null, drop"));
    assert_eq!(trial.daemon.loads().iter().sum::<usize>(), 1);
    // Its sidecore finds that nothing comes there any more; what it gives back is whole, and served again.
    let key = key_of(&mut trial, number);
    let rooms = trial.rooms();
    rooms.network.uplink_failed(key, &mut rooms.cores);
    assert!(rooms.network.is_asked_back());
    trial.rest();
    assert_eq!(show(&mut trial, "lan").ports[0].link, Carrier::Up);
    // Once more, and it is of no use: what would be opened in its place is not there.
    let spec = taken_back(&mut trial, number);
    let (network, mut around) = trial.rooms().network();
    network.uplink_is_back(spec, Some("it is torn".to_string()), Mode::Serving, &mut around);
    let port = show(&mut trial, "lan").ports.remove(0);
    assert_eq!((port.link, port.served_as), (Carrier::Down, None));
    assert_eq!(port.problem.as_deref(), Some("it is torn"));
    trial.pass(ms(1_100));
    let why = show(&mut trial, "lan").ports.remove(0).problem.expect("a reason");
    assert!(why.contains("eth7"), "it was tried again: {why}");
    assert_eq!(trial.daemon.loads().iter().sum::<usize>(), 1, "its place is kept");
    // One of which nothing is known any more is a late word, no defect.
    let rooms = trial.rooms();
    let unknown = HostKey { bridge: sidecore::BridgeId(77), ..key };
    rooms.network.uplink_failed(unknown, &mut rooms.cores);
}

fn key_of(trial: &mut Trial, number: u32) -> HostKey {
    let place = uplink(trial, number).place();
    HostKey { bridge: place.bridge, port: place.port, queue: 0 }
}

/// What a sidecore gives back that was told of a failure.
fn taken_back(trial: &mut Trial, number: u32) -> HostSpec {
    let (key, home) = (key_of(trial, number), uplink(trial, number).home());
    let rooms = trial.rooms();
    rooms.network.uplink_failed(key, &mut rooms.cores);
    while trial.pass_cores() {}
    match trial.rooms().cores.take_event(home) {
        Some(Event::HostDetached(served)) => served.into_spec(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_descriptor_that_comes_back_without_being_asked_for_is_a_defect_and_is_closed() {
    let mut trial = Trial::of(LAN);
    trial.expects_defects = true;
    let number = opened(&mut trial);
    let spec = taken_back(&mut trial, number);
    let (network, mut around) = trial.rooms().network();
    network.remove_uplink(number, &mut around);
    network.uplink_is_back(spec, None, Mode::Serving, &mut around);
    assert!(network.uplink(number).is_none());
    let (key, port) =
        (HostKey { queue: 3, ..key_at(5) }, null(NullMode::Drop).into_ports().remove(0).1);
    let spec =
        HostSpec { key, port, share: 1, policy: Default::default(), counters: Default::default() };
    let (network, mut around) = trial.rooms().network();
    network.uplink_is_back(spec, None, Mode::Serving, &mut around);
    let defects = trial.daemon.defects();
    assert_eq!(defects[0].expected, "uplink that came back");
}

fn key_at(bridge: u16) -> HostKey {
    HostKey { bridge: sidecore::BridgeId(bridge), port: switch::PortId(0), queue: 0 }
}

#[test]
fn an_uplink_that_is_removed_goes_when_its_descriptor_is_back() {
    let mut trial = Trial::of(LAN);
    let number = opened(&mut trial);
    let (network, mut around) = trial.rooms().network();
    network.remove_uplink(number, &mut around);
    assert!(network.uplink(number).is_some_and(|it| it.is_leaving() && it.is_asked_back()));
    assert_eq!(network.uplink_on("lan", "eth7"), None, "another one of its name may come");
    // Asked once more, as the wire of a NIC that goes is.
    network.remove_uplink(number, &mut around);
    trial.rest();
    assert!(uplinks(&mut trial).is_empty());
    assert_eq!(trial.daemon.loads(), [0, 0]);
    let (network, mut around) = trial.rooms().network();
    network.remove_uplink(number, &mut around);
}

#[test]
fn an_uplink_s_share_changes_while_it_is_served() {
    let mut trial = Trial::of(LAN);
    let number = opened(&mut trial);
    let mut plan = uplink(&mut trial, number).plan().clone();
    plan.share += 1;
    let (network, mut around) = trial.rooms().network();
    network.change_uplink(number, plan.clone(), &mut around);
    assert!(network.is_asked_back(), "it comes back, and goes again with its new share");
    trial.rest();
    assert_eq!(uplink(&mut trial, number).plan(), &plan);
    assert!(uplink(&mut trial, number).is_attached());
    // What is no matter of its share is said at once.
    plan.macs_max += 1;
    let (network, mut around) = trial.rooms().network();
    network.change_uplink(number, plan, &mut around);
    assert!(!network.is_asked_back() && network.is_attached());
}

#[test]
fn uplinks_move_to_the_switch_that_takes_their_switch_s_place() {
    let mut trial = Trial::of(&format!("{LAN}{}", nic("a")));
    let number = opened(&mut trial);
    let mut a = Vmm::of_nic(&mut trial, "a");
    let before = uplink(&mut trial, number).place().bridge;
    // The uplink of this test is none of the file's, so only limits are changed.
    let mut plan = trial.daemon.plan().switch("lan").expect("a switch").clone();
    plan.macs_max = 77;
    let mut calls = trial.rooms().switch_calls();
    let done = calls.apply(
        &config::Change::SetSwitch(Box::new(plan), Default::default()),
        &mut Default::default(),
    );
    done.expect("there are bridges left");
    assert!(trial.rooms().network.is_losing_a_switch());
    trial.pass(ms(50));
    assert!(!trial.rooms().network.is_losing_a_switch());
    let shown = show(&mut trial, "lan");
    let names: Vec<&str> = shown.ports.iter().map(|port| port.name.as_str()).collect();
    assert_eq!((names, shown.macs_max), (vec!["eth7", "a"], 77));
    assert!(uplink(&mut trial, number).place().bridge != before);
    assert!(uplink(&mut trial, number).is_attached() && !a.is_cut_off(&mut trial));
    assert_eq!(trial.daemon.loads().iter().sum::<usize>(), 3);
}

#[test]
fn a_wire_s_guest_has_back_what_it_sends_and_its_host_s_end_stays_with_it() {
    let wire = "[[nic]]\nid = \"w\"\nnull = \"echo\"\n";
    let mut trial = Trial::of(wire);
    assert_eq!(trial.nic("w").null, Some(NullKind::Echo));
    let mut vmm = Vmm::of_nic(&mut trial, "w");
    let own = trial.nic("w").mac.0;
    let far = [2, 5, 5, 5, 5, 5];
    vmm.guest.offer(0);
    vmm.guest.transmit(1, &frame(far, own, 3));
    trial.pass(ms(10));
    assert_eq!(vmm.guest.frame(0), Some(frame(own, far, 3)), "its two addresses swapped");
    let number = uplinks(&mut trial)[0];
    let (home, nic) = (uplink(&mut trial, number).home(), trial.nic("w"));
    assert_eq!(nic.sidecore, Some(home as u16));
    assert_eq!(nic.host.map(|counters| counters.delivered_frames), Some(1));
    // Two rings; its end is counted with them.
    assert_eq!(trial.daemon.loads().iter().sum::<usize>(), 2);
    trial.reload("", true).expect("it is done");
    assert!(vmm.is_cut_off(&mut trial));
    assert_eq!((uplinks(&mut trial), trial.daemon.loads()), (vec![], vec![0, 0]));
}

#[test]
fn as_many_wires_as_there_are_bridges_and_no_more() {
    let mut trial = Trial::of("");
    let network = &mut trial.rooms().network;
    let taken = std::iter::from_fn(|| network.name_bridge().ok()).count();
    assert_eq!(taken, usize::from(sidecore::BRIDGES_MAX));
    let said = network.name_bridge().unwrap_err().to_string();
    assert_eq!(said, "there are 4096 switches and wires already, the most one daemon has");
    // A NIC that comes then waits, and says so.
    let added =
        trial.ask(Call::AddNic(NicSpec { null: Some(NullKind::Drop), ..NicSpec::new("w") }));
    let (_, why) = refused(added);
    assert!(why.contains("there are 4096 switches and wires already"), "{why}");
    assert_eq!(trial.daemon.loads(), [0, 0]);
    trial.rooms().network.bridges.give_back(7);
    nic_in(trial.ask(Call::AddNic(NicSpec { null: Some(NullKind::Drop), ..NicSpec::new("w") })));
}

/// What is not there is in no plan, so that the next reload finds it again.
#[test]
fn an_uplink_that_gets_no_port_is_refused_and_planned_no_more() {
    let mut trial = Trial::of(LAN);
    let uplink = plan_of(&trial);
    let (network, mut around) = trial.rooms().network();
    let lan = &mut network.switches[0];
    let taken: Vec<_> = std::iter::from_fn(|| lan.take_port(Holder::Uplink(7))).collect();
    let mut add = |switch: &str| {
        let opened = Some(null(NullMode::Drop));
        network.add_uplink_to(switch, uplink.clone(), opened, &mut around)
    };
    assert_eq!(add("lan"), Err(NetworkError::Ports("lan".to_string())));
    assert_eq!(add("dmz"), Err(NetworkError::NoSwitch("dmz".to_string())));
    taken.iter().for_each(|place| trial.rooms().network.switches[0].give_port(place.port));
    assert!(uplinks(&mut trial).is_empty());

    let before = vec![trial.daemon.plan().switch("lan").cloned().expect("it is planned")];
    let mut wanted = before.clone();
    wanted[0].uplinks.push(uplink.clone());
    let (switch, name) = ("lan".to_string(), uplink.name().to_string());
    let why = NetworkError::Ports("lan".to_string());
    let not_added = NotDone::AddUplink { switch: switch.clone(), name: name.clone(), why };
    let mut planned = wanted.clone();
    not_added.plan_as_before(&before, &mut planned);
    assert_eq!(planned, before);
    let (old, mut planned) = (wanted.clone(), wanted);
    (planned[0].uplinks[0].share, planned[0].macs_max) = (7, 99);
    NotDone::SetUplink { switch, name }.plan_as_before(&old, &mut planned);
    assert_eq!((&planned[0].uplinks, planned[0].macs_max), (&old[0].uplinks, 99));
}
