//! Groups: disks and NICs that have a limit together.
//!
//! As the API makes them they are `from_api::groups`' matter.

use super::limit::{LimitPlan, LimitSpec};
use super::names::{Named, Origin, check_id, check_numbers};
use crate::mistake::{Mistake, Path};
use crate::read::Document;
use crate::spec::{GROUPS_MAX, GroupSpec};

/// Disks and NICs that have a limit together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPlan {
    /// Its name.
    pub id: String,
    /// Where it was declared.
    pub origin: Origin,
    /// What they may do together.
    pub limit: LimitPlan,
    /// What was written; with it the group is saved, and planned again.
    pub spec: GroupSpec,
}

impl GroupPlan {
    pub(super) fn resolve(
        spec: &GroupSpec,
        origin: Origin,
        at: &Path,
        mistakes: &mut Vec<Mistake>,
    ) -> Self {
        check_id(&spec.id, &at.key("id"), mistakes);
        check_numbers(spec, at, mistakes);
        let limit = LimitSpec::from(spec).resolve(&origin, at, mistakes);
        GroupPlan { id: spec.id.clone(), origin, limit, spec: spec.clone() }
    }

    /// As other groups see it.
    pub(super) fn named(&self) -> Named<'_> {
        Named { kind: "group", id: &self.id, origin: &self.origin, socket: None }
    }
}

/// The groups of a file, then those that the API made.
pub(super) fn resolve_all(
    document: &Document,
    running: &[GroupPlan],
    mistakes: &mut Vec<Mistake>,
) -> Vec<GroupPlan> {
    let specs = &document.spec.group;
    if specs.len() > GROUPS_MAX {
        let wrong = format!("{} groups are too many", specs.len());
        let at = Path::item("group", GROUPS_MAX);
        mistakes.push(Mistake::new(at, wrong, format!("at most {GROUPS_MAX}")));
        return Vec::new();
    }
    let kept: Vec<&GroupPlan> =
        running.iter().filter(|group| group.origin == Origin::Api).collect();
    let mut groups: Vec<GroupPlan> = Vec::new();
    for (index, spec) in specs.iter().enumerate() {
        let at = Path::item("group", index);
        let (file, line) = (document.file().to_string(), document.line_of(&at));
        let group = GroupPlan::resolve(spec, Origin::File { file, line }, &at, mistakes);
        let others: Vec<Named<'_>> =
            groups.iter().chain(kept.iter().copied()).map(GroupPlan::named).collect();
        group.named().clashes(&others, None, &at, mistakes);
        groups.push(group);
    }
    groups.extend(kept.into_iter().cloned());
    groups
}
