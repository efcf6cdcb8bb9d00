//! `switch`: the commands about switches, and how a switch is shown.

use config::api::{SwitchList, SwitchView};
use config::routes::Method;
use config::spec::SwitchSpec;

use crate::cli::SwitchCommand;
use crate::client::{Client, path_of};
use crate::failure::Failure;
use crate::nic::{drops_text, vlans_text};
use crate::output::Output;
use crate::table::{self, Align, Room, Table, known};

/// `switch ...`
pub(crate) fn run(command: SwitchCommand, client: &Client, output: &Output) -> Result<(), Failure> {
    match command {
        SwitchCommand::Add(spec) => add(&spec, client, output),
        SwitchCommand::Rm { id } => {
            let path = path_of("switches", &id, "");
            let switch: SwitchView = client.ask(Method::Delete, &path)?;
            output.show(&switch, |switch| format!("removed switch {}\n", switch.id))
        }
        SwitchCommand::Show { id: Some(id) } => {
            let path = path_of("switches", &id, "");
            let switch: SwitchView = client.ask(Method::Get, &path)?;
            output.show(&switch, |switch| switch_text(switch, output.room))
        }
        SwitchCommand::Ls | SwitchCommand::Show { id: None } => {
            let list: SwitchList = client.ask(Method::Get, "/v1/switches")?;
            output.show(&list, |list| list_text(list, output.room))
        }
    }
}

fn add(spec: &SwitchSpec, client: &Client, output: &Output) -> Result<(), Failure> {
    let switch: SwitchView = client.send(Method::Post, "/v1/switches", spec)?;
    output.show(&switch, |switch| {
        let uplinks: Vec<&str> = switch.ports.iter().map(|port| port.name.as_str()).collect();
        match uplinks.is_empty() {
            true => format!("added switch {}, with no uplink\n", switch.id),
            false => format!("added switch {}: uplinks {}\n", switch.id, uplinks.join(", ")),
        }
    })
}

fn list_text(list: &SwitchList, room: Room) -> String {
    if list.switches.is_empty() {
        return "no switches; make one with `sidecore switch add`\n".to_string();
    }
    let columns = [
        ("SWITCH", Align::Left),
        ("PORTS", Align::Right),
        ("TAKEN", Align::Right),
        ("DELIVERED", Align::Right),
        ("DROPPED", Align::Right),
        ("DECLARED", Align::Left),
        ("PROBLEM", Align::Left),
    ];
    let mut table = Table::new(&columns, &["DECLARED", "TAKEN", "DELIVERED", "PORTS", "DROPPED"]);
    for switch in &list.switches {
        let sum = |of: fn(&config::api::PortCountersView) -> u64| {
            switch.ports.iter().fold(0u64, |sum, port| sum.saturating_add(of(&port.counters)))
        };
        table.row(vec![
            switch.id.clone(),
            switch.ports.len().to_string(),
            sum(|counters| counters.taken_frames).to_string(),
            sum(|counters| counters.delivered_frames).to_string(),
            sum(|counters| counters.dropped_frames).to_string(),
            switch.declared.clone(),
            known(problem_of(switch)),
        ]);
    }
    table.text(room)
}

/// Its own problem, or its first port's.
fn problem_of(switch: &SwitchView) -> Option<String> {
    let of_port =
        |port: &config::api::PortView| Some(format!("{}: {}", port.name, port.problem.as_ref()?));
    switch.problem.clone().or_else(|| switch.ports.iter().find_map(of_port))
}

fn switch_text(switch: &SwitchView, room: Room) -> String {
    let macs = switch.macs.as_deref().unwrap_or_default();
    let mut facts = vec![("id", switch.id.clone()), ("declared", switch.declared.clone())];
    facts.extend(switch.problem.clone().map(|problem| ("problem", problem)));
    facts.push(("addresses", format!("{} of {}", macs.len(), switch.macs_max)));
    facts.push(("ageing", format!("{} s", switch.ageing_s)));
    let mut text = table::facts(&facts, room) + "\n" + &ports_text(switch, room);
    let ports = switch.ports.iter().map(|port| (port.name.as_str(), &port.counters));
    text.push_str(&drops_text(&ports.collect::<Vec<_>>(), room));
    if macs.is_empty() {
        return text;
    }
    let columns = [
        ("MAC", Align::Left),
        ("VLAN", Align::Right),
        ("PORT", Align::Left),
        ("SEEN", Align::Right),
    ];
    let mut table = Table::new(&columns, &["SEEN", "VLAN"]);
    for mac in macs {
        let vlan = known(mac.vlan);
        let seen = format!("{} s ago", mac.age_s);
        table.row(vec![mac.mac.clone(), vlan, mac.port.clone(), seen]);
    }
    text + "\n" + &table.text(room)
}

fn ports_text(switch: &SwitchView, room: Room) -> String {
    if switch.ports.is_empty() {
        return "no ports; `sidecore nic add ID --switch` makes one\n".to_string();
    }
    let columns = [
        ("PORT", Align::Left),
        ("KIND", Align::Left),
        ("LINK", Align::Left),
        ("VLANS", Align::Left),
        ("CORE", Align::Right),
        ("TAKEN", Align::Right),
        ("DELIVERED", Align::Right),
        ("SLOW", Align::Right),
        ("DROPPED", Align::Right),
    ];
    let go = &["SLOW", "CORE", "KIND", "TAKEN", "DELIVERED", "VLANS", "DROPPED"];
    let mut table = Table::new(&columns, go);
    for port in &switch.ports {
        let counters = &port.counters;
        let vlans = vlans_text(&port.vlans, "");
        table.row(vec![
            port.name.clone(),
            port.served_as.clone().unwrap_or_else(|| port.kind.word().to_string()),
            port.link.to_string(),
            if vlans.is_empty() { "-".to_string() } else { vlans },
            known(port.sidecore),
            counters.taken_frames.to_string(),
            counters.delivered_frames.to_string(),
            counters.slow_frames.to_string(),
            counters.dropped_frames.to_string(),
        ]);
    }
    let problems = switch
        .ports
        .iter()
        .filter_map(|port| Some(format!("{}: {}\n", port.name, port.problem.as_ref()?)));
    table.text(room) + &problems.collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn switch() -> SwitchView {
        let counters = |taken: u64, drops: serde_json::Value| {
            serde_json::json!({ "taken_frames": taken, "taken_bytes": 0, "taken_multicast": 0,
                "delivered_frames": 5, "delivered_bytes": 0, "delivered_multicast": 0,
                "slow_frames": 1, "dropped_frames": 2, "drops": drops })
        };
        let drops = serde_json::json!([{ "reason": "Vlan", "frames": 2, "means": "another VLAN" }]);
        serde_json::from_value(serde_json::json!({
            "id": "lan", "declared": "f:1", "ageing_s": 300, "macs_max": 8192,
            "ports": [
                { "name": "lan0", "kind": "tap", "link": "down", "problem": "no right to make it",
                  "sidecore": 0, "counters": counters(1, serde_json::json!([])) },
                { "name": "vm1-net", "kind": "nic", "link": "up", "vlan": 10,
                  "counters": counters(100, drops) },
            ],
            "macs": [{ "mac": "52:54:00:12:34:56", "vlan": 10, "port": "vm1-net", "age_s": 3 }],
        }))
        .unwrap()
    }

    #[test]
    fn a_switch_is_shown_with_ports_drops_and_addresses() {
        assert_eq!(
            switch_text(&switch(), Room::Whole),
            "id          lan\n\
             declared    f:1\n\
             addresses   1 of 8192\n\
             ageing      300 s\n\
             \n\
             PORT     KIND  LINK  VLANS    CORE  TAKEN  DELIVERED  SLOW  DROPPED\n\
             lan0     tap   down  -           0      1          5     1        2\n\
             vm1-net  nic   up    vlan 10     -    100          5     1        2\n\
             lan0: no right to make it\n\
             \n\
             PORT     DROPPED  REASON  MEANS\n\
             vm1-net        2  Vlan    another VLAN\n\
             \n\
             MAC                VLAN  PORT        SEEN\n\
             52:54:00:12:34:56    10  vm1-net  3 s ago\n"
        );
    }

    #[test]
    fn a_list_adds_up_and_names_what_is_wrong() {
        let list = SwitchList { switches: vec![switch()] };
        assert_eq!(
            list_text(&list, Room::Whole),
            "SWITCH  PORTS  TAKEN  DELIVERED  DROPPED  DECLARED  PROBLEM\n\
             lan         2    101         10        4  f:1       lan0: no right to make it\n"
        );
        assert!(list_text(&SwitchList::default(), Room::Whole).starts_with("no switches; "));
    }
}
