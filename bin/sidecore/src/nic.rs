//! `nic`: the commands about NICs, and how a NIC is shown.

use std::path::Path;

use config::Target;
use config::api::{NicList, NicView, RunStateView, VlanView};
use config::routes::Method;
use config::spec::{Carrier, LinkChange, NicChange, Redirect, Spoof};

use crate::cli::{NicAddArgs, NicCommand, PrintArgs, force_query};
use crate::client::{Client, path_of};
use crate::disk::absolute;
use crate::failure::Failure;
use crate::output::Output;
use crate::overview;
use crate::table::{self, Align, Limits, Room, Table, duration, known, said};
use crate::vmm;

mod tables;

pub(crate) use tables::drops_text;
use tables::{counters_text, queues_text, vcpus_text};

/// `nic ...`
pub(crate) fn run(command: NicCommand, client: &Client, output: &Output) -> Result<(), Failure> {
    match command {
        NicCommand::Add(args) => add(*args, client, output),
        NicCommand::Ls => {
            let list: NicList = client.ask(Method::Get, "/v1/nics")?;
            output.show(&list, |list| match list.nics.is_empty() {
                true => "no nics; make one with `sidecore nic add`\n".to_string(),
                false => table(&list.nics, output.room) + &overview::of_nics(&list.nics),
            })
        }
        NicCommand::Rm { id, force } => {
            let nic: NicView =
                client.ask(Method::Delete, &path_of("nics", &id, force_query(force)))?;
            output.show(&nic, |nic| format!("removed nic {}\n", nic.id))
        }
        NicCommand::Set { id, change } => {
            let path = path_of("nics", &id, "");
            let nic: NicView = client.send(Method::Patch, &path, &change)?;
            output.show(&nic, |nic| set_text(nic, &change))
        }
        NicCommand::Link { id, state } => {
            let (path, body) = (path_of("nics", &id, "/link"), LinkChange { link: state });
            let nic: NicView = client.send(Method::Post, &path, &body)?;
            output.show(&nic, |nic| link_text(nic, state))
        }
        NicCommand::Move { id, wish } => {
            let path = path_of("nics", &id, "/move");
            let nic: NicView = client.send(Method::Post, &path, &wish)?;
            output.show(&nic, |nic| match wish.to {
                Target::Sidecore(to) => format!("nic {} is at sidecore {to} now\n", nic.id),
                Target::Auto => format!("nic {} is moved by the loads again\n", nic.id),
            })
        }
        NicCommand::Show { id, print } => {
            let nic: NicView = client.ask(Method::Get, &path_of("nics", &id, ""))?;
            present(&nic, &print, output)
        }
    }
}

fn add(args: NicAddArgs, client: &Client, output: &Output) -> Result<(), Failure> {
    let mut spec = args.nic;
    spec.socket = spec.socket.map(absolute).transpose()?;
    spec.qmp = spec.qmp.map(absolute).transpose()?;
    let nic: NicView = client.send(Method::Post, "/v1/nics", &spec)?;
    match args.print.print {
        Some(_) => present(&nic, &args.print, output),
        None => output.show(&nic, |nic| {
            format!(
                "added nic {}: {}, {}, socket {}\n",
                nic.id,
                connected(nic),
                nic.mac,
                known(nic.access.socket.as_ref())
            )
        }),
    }
}

/// One NIC, or what gives it to a guest.
pub(crate) fn present(nic: &NicView, args: &PrintArgs, output: &Output) -> Result<(), Failure> {
    match args.print {
        Some(vmm) => {
            let has_kvm = host::doctor::has_kvm(Path::new("/"));
            vmm::paste_nic(vmm, nic, args.memory, has_kvm)?.print("nic", nic, output)
        }
        None => output.show(nic, |nic| nic_text(nic, output.room)),
    }
}

/// What goes first of a list where there is too little room.
const GO: [&str; 12] = [
    "DECLARED",
    "SOCKET",
    "LIMIT",
    "PLACED",
    "QUEUE PAIRS",
    "GROUP",
    "TAKEN",
    "DELIVERED",
    "MAC",
    "DROPPED",
    "LINK",
    "CONNECTED",
];

/// NICs, a line each.
pub(crate) fn table(nics: &[NicView], room: Room) -> String {
    let limits = Limits::of(nics.iter().map(|nic| nic.service.is_limited()));
    let mut columns = vec![
        ("NIC", Align::Left),
        ("STATE", Align::Left),
        ("LINK", Align::Left),
        ("CONNECTED", Align::Left),
        ("MAC", Align::Left),
        ("QUEUE PAIRS", Align::Right),
        ("TAKEN", Align::Right),
        ("DELIVERED", Align::Right),
        ("DROPPED", Align::Right),
    ];
    let has_hand = nics.iter().any(|nic| nic.by_hand);
    columns.extend(has_hand.then_some(("PLACED", Align::Left)));
    columns.extend(limits.columns());
    columns.extend([("DECLARED", Align::Left), ("SOCKET", Align::Left)]);
    let mut table = Table::new(&columns, &GO);
    for nic in nics {
        let mut row = vec![
            nic.id.clone(),
            nic.state.word().to_string(),
            nic.link.to_string(),
            connected(nic),
            nic.mac.to_string(),
            format!("{}/{}", nic.queue_pairs_attached(), nic.queue_pairs_max),
            nic.counters.taken_frames.to_string(),
            nic.counters.delivered_frames.to_string(),
            dropped(nic).to_string(),
        ];
        let placed = if nic.by_hand { "hand" } else { "auto" };
        row.extend(has_hand.then(|| placed.to_string()));
        row.extend(limits.cells(nic.service.group.as_ref(), nic.service.rates()));
        row.extend([nic.declared.clone(), known(nic.access.socket.as_ref())]);
        table.row(row);
    }
    table.text(room)
}

/// Frames that were dropped at it, and at the other end of its wire.
fn dropped(nic: &NicView) -> u64 {
    let other = nic.host.as_ref().map_or(0, |host| host.dropped_frames);
    nic.counters.dropped_frames.saturating_add(other)
}

/// What it is connected to.
fn connected(nic: &NicView) -> String {
    let via = nic.via.map(|via| format!(" ({via})")).unwrap_or_default();
    let switch = nic.switch.as_ref().map(|id| format!("switch {id}"));
    let tap = nic.tap.as_ref().map(|name| format!("tap {name}"));
    let interface = nic.interface.as_ref().map(|name| format!("interface {name}{via}"));
    let null = nic.null.map(|kind| format!("null {kind}"));
    let remote = nic.by_link.as_ref().map(|link| format!("link {link}"));
    switch.or(tap).or(interface).or(remote).or(null).unwrap_or_default()
}

/// What a NIC has after a change. What the change took away is said, too.
fn set_text(nic: &NicView, change: &NicChange) -> String {
    let target = nic.service.latency_target_us.map(|us| format!("latency target {us} us"));
    // Said only when it was asked for: each NIC has it.
    let wait = nic.service.moderate_us.filter(|_| change.moderate_us.is_some());
    let wait = wait.map(|us| format!("calls for sent frames may wait {us} us"));
    let limit = limit(nic).map(|limit| format!("at most {limit}"));
    let group = nic.service.group.as_ref().map(|group| format!("in group {group}"));
    let steered = nic.run_state.as_ref().map(|state| format!("redirect {}", redirect(state)));
    let steered = steered.filter(|_| change.redirect.is_some() || change.vcpus.is_some());
    let limits = change.limit_packets.is_some() || change.limit_bytes.is_some();
    let more = [
        said(target, change.latency_target_us.is_some(), "no latency target"),
        said(wait, change.moderate_us.is_some(), "calls do not wait"),
        said(steered, change.redirect.is_some(), "redirect off"),
        said(limit, limits, "no limit of its own"),
        said(group, change.group.is_some(), "in no group"),
        said(table::for_whom(&nic.access.rights(), change.sets_rights()), false, ""),
    ];
    let more: String = more.into_iter().flatten().collect();
    let NicView { id, macs_max, spoof, .. } = nic;
    let (policy, vlans) = (nic.service.policy_in_words(), vlans_text(&nic.vlans, ", "));
    format!(
        "nic {id} has share {}, policy {policy}, {macs_max} addresses, spoof \
         {spoof}{vlans}{more}\n",
        nic.service.share
    )
}

/// Its own limit, in words.
fn limit(nic: &NicView) -> Option<String> {
    let (limit, burst_ms) = (nic.service.rates()?, nic.service.limit_burst_ms?);
    Some(format!("{limit} each way, bursts of {burst_ms} ms"))
}

/// The rule about VLANs in words, after `before`; nothing when there is none.
pub(crate) fn vlans_text(vlans: &VlanView, before: &str) -> String {
    let native = vlans.native.map(|native| format!(", native {native}")).unwrap_or_default();
    let list = |trunk: &Vec<u16>| trunk.iter().map(u16::to_string).collect::<Vec<_>>().join(",");
    match (vlans.vlan, &vlans.trunk) {
        (Some(vlan), _) => format!("{before}vlan {vlan}"),
        (None, Some(trunk)) => format!("{before}trunk {}{native}", list(trunk)),
        (None, None) => String::new(),
    }
}

/// That its cable is in or out, and what is in the way of frames all the same.
fn link_text(nic: &NicView, state: Carrier) -> String {
    let mut text = format!("the link of nic {} is {state} now\n", nic.id);
    if let Some(problem) = nic.problem.as_ref().filter(|_| nic.link != state) {
        text += &format!("{problem}\n");
    }
    text
}

fn nic_text(nic: &NicView, room: Room) -> String {
    let there = nic.remote.as_ref().map(|name| format!(", {name} there")).unwrap_or_default();
    let mut facts: Vec<(&str, String)> = vec![
        ("id", nic.id.clone()),
        ("declared", nic.declared.clone()),
        ("state", nic.state.word().to_string()),
    ];
    facts.extend(nic.problem.clone().map(|problem| ("problem", problem)));
    facts.extend([
        ("link", nic.link.to_string()),
        ("mac", nic.mac.to_string()),
        ("connected", connected(nic) + &there),
    ]);
    let vlans = vlans_text(&nic.vlans, "");
    if !vlans.is_empty() {
        facts.push(("vlans", vlans));
    }
    if nic.switch.is_some() {
        facts.push(match nic.spoof {
            Spoof::Allow => ("addresses", format!("at most {}", nic.macs_max)),
            Spoof::Deny => ("addresses", "its own".to_string()),
        });
    }
    facts.extend([("mtu", nic.mtu.to_string())]);
    if !nic.guest_offloads {
        facts.push(("offloads", "to the guest none: its frames are finished here".to_string()));
    }
    facts.extend([
        (
            "socket",
            table::socket(
                &known(nic.access.socket.as_ref()),
                nic.access.mode,
                &nic.access.rights(),
            ),
        ),
        (
            "queue pairs",
            format!("{} of {} attached", nic.queue_pairs_attached(), nic.queue_pairs_max),
        ),
    ]);
    let by_hand = match nic.by_hand {
        true => format!(", stays by hand; `sidecore nic move {} --to auto` lets it go", nic.id),
        false => String::new(),
    };
    facts.extend(nic.sidecore.map(|core| ("sidecore", format!("{core}{by_hand}"))));
    facts.extend(served(nic));
    if nic.allow_unsealed_memory {
        facts.push(("memory", "may be unsealed".to_string()));
    }
    facts.extend(nic.run_state.as_ref().map(|state| ("redirect", redirect(state))));
    let mut ports = vec![("guest", &nic.counters)];
    ports.extend(nic.host.iter().map(|host| ("host", host)));
    let mut text = table::facts(&facts, room) + "\n" + &counters_text(&ports, room);
    if !nic.queues.is_empty() {
        text.push('\n');
        text.push_str(&queues_text(nic, room));
    }
    if let Some(state) = nic.run_state.as_ref().filter(|state| !state.vcpus.is_empty()) {
        text.push('\n');
        text.push_str(&vcpus_text(&state.vcpus, room));
    }
    text
}

/// How its queues are served.
fn served(nic: &NicView) -> Vec<(&'static str, String)> {
    let service = &nic.service;
    let mut facts =
        vec![("share", service.share.to_string()), ("policy", service.policy_in_words())];
    let missed: u64 = nic.queues.iter().map(|queue| queue.missed).sum();
    facts.extend(
        service
            .latency_target_us
            .map(|target_us| ("target", format!("{target_us} us, missed by {missed} frames"))),
    );
    facts.extend(
        service.moderate_us.map(|us| ("calls", format!("for sent frames may wait {us} us"))),
    );
    facts.extend(limit(nic).map(|limit| ("limit", limit)));
    facts.extend(service.group.clone().map(|group| ("group", group)));
    facts.extend(table::held(&nic.held, service.is_limited()).map(|held| ("held", held)));
    facts
}

/// Where frames went by what vCPUs did.
fn redirect(state: &RunStateView) -> String {
    let rule = state.redirect;
    if rule == Redirect::Off {
        return rule.to_string();
    }
    if let Some(problem) = &state.problem {
        return format!("{rule}, but {problem}");
    }
    let avoided = match state.avoided_us {
        0 => String::new(),
        us => format!("; by an estimate {} of waiting avoided", duration(us.saturating_mul(1000))),
    };
    let (redirected, stayed) = (state.redirected, state.stayed);
    format!(
        "{rule}; {redirected} frames went to a vCPU that runs instead, {stayed} had to wait{avoided}"
    )
}

#[cfg(test)]
mod tests {
    use config::api::{DropView, HeldView, NicQueueView, NicServiceView, PortCountersView};

    use super::*;

    fn in_group() -> NicServiceView {
        NicServiceView { group: Some("tenant".to_string()), ..nic().service }
    }

    fn nic() -> NicView {
        serde_json::from_value(serde_json::json!({
            "id": "vm1-net", "declared": "api", "state": "running", "link": "up",
            "mac": "52:54:00:12:34:56", "switch": "lan", "trunk": [10, 20], "native": 1,
            "macs_max": 1024, "mtu": 1500, "socket": "/s", "mode": "listen", "queue_pairs_max": 1,
            "queues_attached": 2, "share": 100, "policy": "adaptive", "sidecore": 0,
            "allow_unsealed_memory": false,
            "counters": { "taken_frames": 12, "taken_bytes": 1200, "taken_multicast": 1,
                "delivered_frames": 9, "delivered_bytes": 900, "delivered_multicast": 2,
                "slow_frames": 0, "dropped_frames": 3, "drops": [
                    { "reason": "NoBuffer", "frames": 3, "means": "the guest had no buffers" },
                ] },
        }))
        .unwrap()
    }

    #[test]
    fn a_nic_that_stays_by_hand_is_seen_and_so_is_how_to_let_go() {
        let held = NicView { by_hand: true, ..nic() };
        let text = nic_text(&held, Room::Whole);
        let said =
            "sidecore     0, stays by hand; `sidecore nic move vm1-net --to auto` lets it go\n";
        assert!(text.contains(said), "{text}");
        assert!(!table(&[nic()], Room::Whole).contains("PLACED"));
        let list = table(&[held, nic()], Room::Whole);
        for placed in ["  PLACED  DECLARED", "  hand    api", "  auto    api"] {
            assert!(list.contains(placed), "{placed}: {list}");
        }
    }

    #[test]
    fn a_list_fits_the_terminal() {
        let long = NicView { id: "tenant-42-of-rack-7-vm-17-net".to_string(), ..nic() };
        let list = [nic(), long];
        for room in [40, 60, 80, 100, 120] {
            let text = table(&list, Room::Columns(room));
            let states = text.lines().filter(|line| line.contains("running"));
            assert_eq!(states.count(), 2, "{text}");
            assert!(text.lines().all(|line| line.chars().count() <= room), "{room}:\n{text}");
        }
        let text = table(&list, Room::Columns(80));
        let head = text.lines().next().unwrap();
        let names: Vec<_> = head.split_whitespace().collect();
        assert_eq!(names, ["NIC", "STATE", "LINK", "CONNECTED", "DROPPED"], "{text}");
    }

    #[test]
    fn a_nic_is_shown_with_what_it_dropped() {
        let queue = |index| NicQueueView {
            index,
            sidecore: Some(0),
            busy_percent: 12,
            size: 256,
            format: "split".to_string(),
            calls: 7,
            ..NicQueueView::default()
        };
        let nic = NicView { queues: vec![queue(0), queue(1)], ..nic() };
        assert_eq!(
            nic_text(&nic, Room::Whole),
            "id           vm1-net\n\
             declared     api\n\
             state        running\n\
             link         up\n\
             mac          52:54:00:12:34:56\n\
             connected    switch lan\n\
             vlans        trunk 10,20, native 1\n\
             addresses    at most 1024\n\
             mtu          1500\n\
             socket       /s (listen)\n\
             queue pairs  1 of 1 attached\n\
             sidecore     0\n\
             share        100\n\
             policy       adaptive\n\
             \n\
             PORT   TAKEN  BYTES  MULTICAST  DELIVERED  BYTES  MULTICAST  SLOW  DROPPED\n\
             guest     12   1200          1          9    900          2     0        3\n\
             \n\
             PORT   DROPPED  REASON    MEANS\n\
             guest        3  NoBuffer  the guest had no buffers\n\
             \n\
             QUEUE  DOES      CORE  BUSY       RING  KICKS  CALLS  VISITS\n    \
                 0  receive      0   12%  256 split      0      7       0\n    \
                 1  transmit     0   12%  256 split      0      7       0\n"
        );
    }

    #[test]
    fn a_nic_with_a_limit_is_shown_with_what_it_waited_for_it() {
        let held = HeldView { held: 7, held_ns: 1_500_000, ..HeldView::default() };
        let queue = |index, held| NicQueueView { index, held, ..NicQueueView::default() };
        let queues = vec![queue(0, HeldView::default()), queue(1, held)];
        let service = in_group();
        let nic = NicView { held, queues, service, ..nic() };
        let text = nic_text(&nic, Room::Whole);
        assert!(text.contains("held         7 times by its limits, 1.5 ms in all\n"), "{text}");
        let last = |line: &str| line.split("  ").last().map(|cell| cell.trim().to_string());
        let column: Vec<String> = queues_text(&nic, Room::Whole).lines().filter_map(last).collect();
        assert_eq!(column, ["HELD", "0 ns", "1.5 ms"]);
    }

    #[test]
    fn a_change_says_what_is_so_and_what_is_so_no_longer() {
        let change = NicChange { limit_packets: Some(0), ..NicChange::default() };
        let service = NicServiceView { latency_target_us: Some(100), ..nic().service };
        let nic = NicView { service, ..nic() };
        assert_eq!(
            set_text(&nic, &change),
            "nic vm1-net has share 100, policy adaptive, 1024 addresses, spoof allow, trunk 10,20, \
             native 1, latency target 100 us, no limit of its own\n"
        );
    }

    #[test]
    fn a_nic_by_a_link_names_that_and_what_it_is_there() {
        let by_link = Some("rack".to_string());
        let nic = NicView { switch: None, by_link, remote: Some("web".to_string()), ..nic() };
        let text = nic_text(&nic, Room::Whole);
        let line = text.lines().find(|line| line.starts_with("connected")).unwrap();
        assert_eq!(line.split_once(' ').unwrap().1.trim(), "link rack, web there");
    }

    #[test]
    fn a_list_has_a_line_for_each() {
        let host = PortCountersView {
            dropped_frames: 1,
            drops: vec![DropView::default()],
            ..PortCountersView::default()
        };
        let wired = NicView {
            id: "b".into(),
            switch: None,
            interface: Some("eth1".into()),
            via: Some(config::spec::Via::Xdp),
            host: Some(host),
            ..nic()
        };
        assert_eq!(
            table(&[nic(), wired], Room::Whole),
            "NIC      STATE    LINK  CONNECTED             MAC                QUEUE PAIRS  TAKEN  \
             DELIVERED  DROPPED  DECLARED  SOCKET\n\
             vm1-net  running  up    switch lan            52:54:00:12:34:56          1/1     12          \
             9        3  api       /s\n\
             b        running  up    interface eth1 (xdp)  52:54:00:12:34:56          1/1     12          \
             9        4  api       /s\n"
        );
        let service =
            NicServiceView { limit_packets: Some(1000), limit_burst_ms: Some(100), ..in_group() };
        let limited = NicView { service, ..nic() };
        let text = table(&[nic(), limited], Room::Whole);
        let after = |line: &str| line.split_once("DROPPED  ").map(|(_, after)| after.to_string());
        assert_eq!(
            text.lines().find_map(after).unwrap(),
            "GROUP   LIMIT           DECLARED  SOCKET"
        );
        assert!(text.contains("        3  -       -               api       /s\n"), "{text}");
        assert!(text.contains("        3  tenant  1000 packets/s  api       /s\n"), "{text}");
    }
}
