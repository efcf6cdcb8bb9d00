//! NICs and switches beside one another: which switch is there, and what no two ports may have.

use super::names::Origin;
use super::nic::{NicPeer, NicPlan};
use super::port::HostPlan;
use super::switch::{SwitchPlan, UplinkPlan};
use crate::mistake::{Mistake, Path};
use crate::spec::PORTS_MAX;

/// Who has an interface, in a message.
fn holder_of<'a>(
    interface: &str,
    nics: &[&'a NicPlan],
    switches: &[&'a SwitchPlan],
) -> Option<String> {
    let has = |host: &HostPlan| host.interface().or(host.lent()) == Some(interface);
    let nic = nics.iter().find(|nic| nic.host().is_some_and(has));
    let switch = switches.iter().find(|switch| switch.uplinks.iter().any(|up| has(&up.host)));
    nic.map(|nic| nic.named().text())
        .or_else(|| switch.map(|switch| format!("an uplink of {}", switch.named().text())))
}

/// Who has the interface of an uplink that is written twice.
const OF_THIS_SWITCH: &str = "another uplink of this switch";

fn check_host(host: &HostPlan, holder: Option<String>, at: &Path, mistakes: &mut Vec<Mistake>) {
    if let (Some(name), Some(holder)) = (host.lent(), &holder) {
        let wrong = format!("the name {name:?} is that of {holder}");
        let right = "give each nic of other machines a name that no other uplink has";
        mistakes.push(Mistake::new(at.key(host.field()), wrong, right));
    }
    if let (Some(name), Some(holder)) = (host.interface(), holder) {
        let wrong = format!("the interface {name:?} is that of {holder}");
        let right = match holder.as_str() {
            // They are connected to one already.
            OF_THIS_SWITCH => "give each an interface of its own, or take one of them out",
            _ => "give each an interface of its own, or connect both to one `switch`",
        };
        mistakes.push(Mistake::new(at.key(host.field()), wrong, right));
    }
}

impl SwitchPlan {
    /// What this switch's uplinks cannot share with others.
    pub(super) fn clashes(
        &self,
        nics: &[&NicPlan],
        others: &[&SwitchPlan],
        at: &Path,
        mistakes: &mut Vec<Mistake>,
    ) {
        for (index, uplink) in self.uplinks.iter().enumerate() {
            let (before, _) = self.uplinks.split_at(index);
            let mine = |other: &UplinkPlan| other.name() == uplink.name();
            let holder = match before.iter().any(mine) {
                true => Some(OF_THIS_SWITCH.to_string()),
                false => holder_of(uplink.name(), nics, others),
            };
            let at = at.key("uplink").index(index);
            check_host(&uplink.host, holder, &at, mistakes);
            // Of one name it was said that it is taken, and an address may be made of it.
            let mut others = before.iter().filter(|other| other.name() != uplink.name());
            let same = others.find(|other| uplink.mac.is_some() && other.mac == uplink.mac);
            if let (Some(other), Some(mac)) = (same, uplink.mac) {
                let wrong = format!("the address {mac} is that of the nic {:?}", other.name());
                let right = "give each nic of a switch an address of its own";
                mistakes.push(Mistake::new(at.key("mac"), wrong, right));
            }
        }
    }
}

impl NicPlan {
    /// Whether this NIC's switch is there and has a port left, and what the NIC cannot share with
    /// others.
    pub(super) fn clashes(
        &self,
        nics: &[&NicPlan],
        switches: &[&SwitchPlan],
        at: &Path,
        mistakes: &mut Vec<Mistake>,
    ) {
        let id = match &self.peer {
            NicPeer::Switch(id) => id,
            NicPeer::Host(HostPlan::Remote { link, name }) => {
                if let Some(other) = nics.iter().find(|other| other.peer == self.peer) {
                    let theirs = other.named().text();
                    let wrong = format!("the nic {name:?} of link {link:?} is that of {theirs}");
                    let right = "let each have one of its own there: `remote`";
                    mistakes.push(Mistake::new(at.key("by_link"), wrong, right));
                }
                return;
            }
            NicPeer::Host(host) => {
                let holder = host.interface().and_then(|name| holder_of(name, nics, switches));
                return check_host(host, holder, at, mistakes);
            }
        };
        let Some(switch) = switches.iter().find(|switch| switch.id == *id) else {
            return mistakes.push(no_such_switch(id, &self.origin, switches, at));
        };
        // A NIC of the file must find its switch there at the next start, before what the API made.
        if self.origin != Origin::Api && switch.origin == Origin::Api {
            let wrong = format!("the switch {id:?} was made through the API");
            let right = "a nic of the file is on a switch of the file: declare the switch here under \
                         another name, or make the nic with `sidecore nic add`";
            return mistakes.push(Mistake::new(at.key("switch"), wrong, right));
        }
        let on_it = || nics.iter().filter(|nic| nic.switch() == Some(id));
        if on_it().count() + switch.uplinks.len() >= PORTS_MAX {
            let wrong = format!("the switch {id:?} has {PORTS_MAX} ports already");
            let right = "that is the most; make another switch, and join both with a tap each";
            mistakes.push(Mistake::new(at.key("switch"), wrong, right));
        }
        let is_same = |other: &&&NicPlan| other.id != self.id && other.mac == self.mac;
        if let Some(other) = on_it().find(is_same) {
            let theirs = other.named().text();
            let wrong = format!("the address {} is that of {theirs}", self.mac);
            let right = "give each nic of a switch an address of its own";
            mistakes.push(Mistake::new(at.key("mac"), wrong, right));
        } else if let Some(other) = switch.uplinks.iter().find(|it| it.mac == Some(self.mac)) {
            let wrong = format!("the address {} is that of the nic {:?}", self.mac, other.name());
            let right = "give each nic of a switch an address of its own";
            mistakes.push(Mistake::new(at.key("mac"), wrong, right));
        }
    }
}

fn no_such_switch(id: &str, of: &Origin, switches: &[&SwitchPlan], at: &Path) -> Mistake {
    let known: Vec<&str> = switches.iter().map(|switch| switch.id.as_str()).collect();
    let make = match of {
        Origin::Api => format!("make it with `sidecore switch add {id}`"),
        Origin::File { .. } => format!("declare it: [[switch]] with id = {id:?}"),
    };
    let right = match known.is_empty() {
        true => make,
        false => format!("{make}; or name one of {}", known.join(", ")),
    };
    Mistake::new(at.key("switch"), format!("there is no switch {id:?}"), right)
}

#[cfg(test)]
mod tests;
