//! What devices take from the rest of the spec, and what they may name of it.
//!
//! Whether links and devices agree is `link::agreement`'s matter.

use std::collections::HashSet;

use super::group::GroupPlan;
use super::link::LinkPlan;
use super::names::Origin;
use super::policy::Policies;
use crate::mistake::{Mistake, Path};
use crate::near::Near;
use crate::spec::{DaemonSpec, LinkRole};

/// What devices take from the rest of the spec.
pub(crate) struct Defaults<'a> {
    pub(crate) daemon: &'a DaemonSpec,
    pub(crate) policies: Policies,
    pub(crate) groups: &'a [GroupPlan],
    pub(crate) near_groups: Near<'a>,
    pub(crate) links: &'a [LinkPlan],
    /// Those whose role is that of a client.
    pub(crate) near_links: Near<'a>,
    /// Links of the file that have mistakes, and so are none of those.
    pub(crate) mistaken_links: HashSet<&'a str>,
}

impl<'a> Defaults<'a> {
    pub(super) fn of(
        (daemon, policies): (&'a DaemonSpec, Policies),
        groups: &'a [GroupPlan],
        (links, mistaken_links): (&'a [LinkPlan], HashSet<&'a str>),
    ) -> Defaults<'a> {
        let clients = links.iter().filter(|link| link.role() == LinkRole::Client);
        let near_links = Near::of(clients.map(|link| link.id.as_str()));
        let near_groups = Near::of(groups.iter().map(|group| group.id.as_str()));
        Defaults { daemon, policies, groups, near_groups, links, near_links, mistaken_links }
    }
}

/// Refuses a group that is not there, or will not be when what names it is read; `kind` is what that is.
pub(super) fn check_group(
    (kind, group): (&str, Option<&str>),
    defaults: &Defaults<'_>,
    origin: &Origin,
    at: &Path,
    mistakes: &mut Vec<Mistake>,
) {
    let Some(id) = group else { return };
    let found = defaults.groups.iter().find(|group| group.id == *id);
    let (wrong, right) = match (found, origin) {
        // What is of the file must find it there at the next start, before what the API made.
        (Some(group), Origin::File { .. }) if group.origin == Origin::Api => (
            format!("the group {id:?} was made through the API"),
            format!(
                "a {kind} of the file is in a group of the file: declare the group here under \
                 another name, or make the {kind} with `sidecore {kind} add`"
            ),
        ),
        (Some(_), _) => return,
        (None, _) => {
            let right = match (defaults.near_groups.to(id), origin) {
                (Some(near), _) => format!("did you mean {near:?}?"),
                (None, Origin::File { .. }) => format!("declare it: [[group]] with id = {id:?}"),
                (None, Origin::Api) => format!("make it: `sidecore group add {id}`"),
            };
            (format!("there is no group {id:?}"), right)
        }
    };
    mistakes.push(Mistake::new(at.key("group"), wrong, right));
}

/// Refuses a link that is not there, or is the wrong end; `at` names it. One that has mistakes of its own has been
/// refused for them.
pub(super) fn check_link(
    id: &str,
    defaults: &Defaults<'_>,
    at: &Path,
    mistakes: &mut Vec<Mistake>,
) {
    let links = defaults.links;
    if defaults.mistaken_links.contains(&id) {
        return;
    }
    let (wrong, right) = match links.iter().find(|link| link.id == *id) {
        Some(link) if link.role() == LinkRole::Client => return,
        Some(_) => (
            format!("link {id:?} has the role \"iohost\""),
            "a remote disk comes by a link with role = \"client\"".to_string(),
        ),
        None => (
            format!("there is no link {id:?}"),
            match defaults.near_links.to(id) {
                Some(near) => format!("did you mean {near:?}?"),
                None => format!(
                    "declare it in the file: [[link]] with id = {id:?} and role = \"client\""
                ),
            },
        ),
    };
    mistakes.push(Mistake::new(at.clone(), wrong, right));
}
