//! What links, disks, NICs and switches must agree about.
//!
//! Not a link's own fields (`link`), nor a device's. Called by `load`.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::LinkPlan;
use crate::mistake::{Mistake, Path};
use crate::near::Near;
use crate::plan::disk::{DiskPlan, Source};
use crate::plan::names::Origin;
use crate::plan::switch::SwitchPlan;
use crate::spec::LinkSpec;

/// What links and disks must agree about: a remote disk's link is there and a client's; a disk that clients
/// may have is there, is of the file, and is not a remote one itself. `at_disk` says where in the file a disk is.
pub(in crate::plan) fn check_disks(
    links: &[LinkPlan],
    disks: &[DiskPlan],
    specs: &[LinkSpec],
    mistakes: &mut Vec<Mistake>,
) {
    let near = Near::of(disks.iter().map(|disk| disk.id.as_str()));
    // The first of a name: that another has it was said.
    let named: HashMap<&str, &DiskPlan> =
        disks.iter().rev().map(|disk| (disk.id.as_str(), disk)).collect();
    let mut of_link: BTreeMap<&str, &str> = BTreeMap::new();
    for link in links {
        let Some(index) = specs.iter().position(|spec| spec.id == link.id) else { continue };
        for (place, client) in link.clients().iter().enumerate() {
            let at = Path::item("link", index).key("client").index(place).key("disks");
            for (number, id) in client.disks.iter().enumerate() {
                let at = at.index(number);
                let found = named.get(id.as_str()).copied();
                let mistake = match found {
                    None => {
                        let right = match near.to(id) {
                            Some(near) => format!("did you mean {near:?}?"),
                            None => format!("declare it: [[disk]] with id = {id:?}"),
                        };
                        Some((format!("there is no disk {id:?}"), right))
                    }
                    Some(DiskPlan { source: Source::Remote { .. }, .. }) => Some((
                        format!("disk {id:?} is itself a disk of another machine"),
                        "let clients go to the IOhost that has it".to_string(),
                    )),
                    Some(DiskPlan { origin: Origin::Api, .. }) => Some((
                        format!("disk {id:?} was made through the API"),
                        "a disk that clients may have is declared in the file".to_string(),
                    )),
                    Some(_) => None,
                };
                if let Some((wrong, right)) = mistake {
                    mistakes.push(Mistake::new(at.clone(), wrong, right));
                }
                let before = of_link.insert(id, &link.id);
                if before.is_some_and(|before| before != link.id) {
                    let wrong = format!(
                        "disk {id:?} is already that of link {:?}",
                        before.unwrap_or_default()
                    );
                    let right = "let clients have a disk by one link";
                    mistakes.push(Mistake::new(at, wrong, right));
                }
            }
        }
    }
}

/// A NIC that clients may have is a port of one switch, and goes by one link.
pub(in crate::plan) fn check_nics(
    links: &[LinkPlan],
    switches: &[SwitchPlan],
    specs: &[LinkSpec],
    mistakes: &mut Vec<Mistake>,
) {
    let uplinks = || switches.iter().flat_map(|switch| &switch.uplinks);
    let names: HashSet<&str> = uplinks().filter_map(|uplink| uplink.host.lent()).collect();
    let near = Near::of(uplinks().filter_map(|uplink| uplink.host.lent()));
    let mut of_link: BTreeMap<&str, &str> = BTreeMap::new();
    for link in links {
        let Some(index) = specs.iter().position(|spec| spec.id == link.id) else { continue };
        for (place, client) in link.clients().iter().enumerate() {
            let at = Path::item("link", index).key("client").index(place).key("nics");
            for (number, name) in client.nics.iter().enumerate() {
                let at = at.index(number);
                if !names.contains(name.as_str()) {
                    let right = match near.to(name) {
                        Some(near) => format!("did you mean {near:?}?"),
                        None => format!("declare it: a [[switch.uplink]] with remote = {name:?}"),
                    };
                    let wrong = format!("no switch has an uplink for the nic {name:?}");
                    mistakes.push(Mistake::new(at.clone(), wrong, right));
                }
                let before = of_link.insert(name, &link.id);
                if let Some(before) = before.filter(|before| before != &link.id) {
                    let wrong = format!("nic {name:?} is already that of link {before:?}");
                    let right = "let clients have a nic by one link";
                    mistakes.push(Mistake::new(at, wrong, right));
                }
            }
        }
    }
}
