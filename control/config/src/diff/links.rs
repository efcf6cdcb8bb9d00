//! What a reload changes of links: who may come to an IOhost's, and what each may have.
//!
//! All else of a link takes an upgrade or a restart. Called by `diff`, and by whoever applies a difference.

use super::{Change, Differing};
use crate::plan::{LinkEnd, LinkPlan, Plan};

/// A link without its clients and its place in the file.
fn fixed(link: &LinkPlan) -> LinkPlan {
    let mut fixed = link.clone();
    fixed.origin = crate::plan::Origin::Api;
    if let LinkEnd::Iohost { clients, .. } = &mut fixed.end {
        clients.clear();
    }
    fixed
}

/// Links that come, go, or are otherwise but for their clients, by their names; lines may have moved.
pub(super) fn that_differ<'a>(
    running: &'a Plan,
    wanted: &'a Plan,
) -> impl Iterator<Item = &'a str> {
    let differs = |id: &str| running.link(id).map(fixed) != wanted.link(id).map(fixed);
    let is_new = |link: &&LinkPlan| running.link(&link.id).is_none();
    let all = running.links.iter().chain(wanted.links.iter().filter(is_new));
    all.map(|link| link.id.as_str()).filter(move |id| differs(id))
}

/// Links that have other clients and are the same but for that.
pub(super) fn others(running: &Plan, wanted: &Plan) -> impl Iterator<Item = Change> {
    let before = running.links.iter();
    let after = after(running, wanted);
    let differs = move |(old, new): (&LinkPlan, LinkPlan)| {
        let differs = Differing::of_clients(old, Some(&new));
        (!differs.is_empty()).then_some(Change::SetClients { differs, link: new.id })
    };
    before.zip(after).filter_map(differs)
}

/// The links that run when a reload has done what it can: those that run, with the clients that are wanted.
pub fn after(running: &Plan, wanted: &Plan) -> Vec<LinkPlan> {
    let after = |old: &LinkPlan| {
        let new = wanted.links.iter().find(|new| fixed(new) == fixed(old));
        new.unwrap_or(old).clone()
    };
    running.links.iter().map(after).collect()
}

/// The link by which clients may have a disk.
pub(super) fn of_disk<'a>(links: &'a [LinkPlan], disk: &str) -> Option<&'a str> {
    let has =
        |link: &&LinkPlan| link.clients().iter().any(|one| one.disks.iter().any(|id| id == disk));
    links.iter().find(has).map(|link| link.id.as_str())
}
