//! Groups as the API makes, changes and removes them.

use super::{changed, check_burst, check_room, fitting, sound};
use crate::api::{ApiError, ErrorKind};
use crate::mistake::Path;
use crate::number::of_a_change;
use crate::plan::Plan;
use crate::plan::group::GroupPlan;
use crate::plan::names::{Named, Origin, shorten};
use crate::spec::{GROUPS_MAX, GroupChange, GroupSpec};

impl Plan {
    /// The group of that name.
    pub fn group(&self, id: &str) -> Option<&GroupPlan> {
        self.groups.iter().find(|group| group.id == id)
    }

    /// What a group asked for through the API would be, beside those of this plan.
    pub fn group_from_api(&self, spec: &GroupSpec) -> Result<GroupPlan, ApiError> {
        check_burst(spec)?;
        self.group_kept(spec)
    }

    /// The same for one that was made so before, and saved.
    pub fn group_kept(&self, spec: &GroupSpec) -> Result<GroupPlan, ApiError> {
        check_room("group", "groups", self.groups.len(), GROUPS_MAX)?;
        let (mut mistakes, at) = (Vec::new(), Path::root());
        let made = GroupPlan::resolve(spec, Origin::Api, &at, &mut mistakes);
        let made = sound(Some(made), &mistakes)?;
        let named: Vec<Named<'_>> = self.groups.iter().map(GroupPlan::named).collect();
        made.named().clashes(&named, None, &at, &mut mistakes);
        fitting(made, &mistakes)
    }

    /// What a group made through the API would be with that change.
    pub fn group_changed(&self, id: &str, change: &GroupChange) -> Result<GroupPlan, ApiError> {
        let old = self.group(id).ok_or_else(|| ApiError::no_such_group(id))?;
        let spec = changed(&old.spec, change)?;
        if change.limit_burst_ms.is_some() {
            check_burst(&spec)?;
        }
        let mut mistakes = Vec::new();
        let made = GroupPlan::resolve(&spec, old.origin.clone(), &Path::root(), &mut mistakes);
        of_a_change(&mut mistakes);
        sound(Some(made), &mistakes)
    }

    /// The names of the disks and of the NICs that are in a group.
    pub fn members(&self, group: &str) -> (Vec<&str>, Vec<&str>) {
        let is_in = |name: &Option<String>| name.as_deref() == Some(group);
        let disks = self.disks.iter().filter(|disk| is_in(&disk.service.group));
        let nics = self.nics.iter().filter(|nic| is_in(&nic.service.group));
        (disks.map(|disk| disk.id.as_str()).collect(), nics.map(|nic| nic.id.as_str()).collect())
    }

    /// Refuses to let a group go that disks or NICs are in.
    pub fn check_group_is_free(&self, id: &str) -> Result<(), ApiError> {
        let (disks, nics) = self.members(id);
        let (first, kind) = match (disks.first(), nics.first()) {
            (Some(disk), _) => (*disk, "disk"),
            (None, Some(nic)) => (*nic, "nic"),
            (None, None) => return Ok(()),
        };
        let names: Vec<&str> = disks.into_iter().chain(nics).collect();
        let error = format!("group {id:?} has members: {}", shorten(&names));
        let hint = format!("take them out first, such as: `sidecore {kind} set {first} --group=`");
        Err(ApiError::new(ErrorKind::Conflict, error, hint))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mistake::Refusal;
    use crate::plan::LimitPlan;
    use crate::plan::load;
    use crate::spec::{DiskChange, DiskSpec, NicChange, NicSpec, NullKind};
    use crate::{Size, diff};
    use cpus::HostCpus;

    fn read(text: &str, running: Option<&Plan>) -> Result<Plan, Refusal> {
        let host = HostCpus { online: vec![0, 1], auto: vec![1], auto_count: 1 };
        load(text, "f", "/etc", &host, running)
    }

    const FILE: &str = "[[group]]\nid = \"file\"\nlimit_packets = 7\n";

    /// A plan with a group of the file, one of the API, and a disk and a NIC of the API in that.
    fn plan() -> Plan {
        let mut plan = read(FILE, None).unwrap();
        let spec =
            GroupSpec { id: "api".into(), limit_bytes: Some(Size(1 << 20)), ..Default::default() };
        plan.groups.push(plan.group_from_api(&spec).unwrap());
        let group = Some("api".to_string());
        let path = Some("/d.img".to_string());
        let disk = DiskSpec { path, group: group.clone(), ..DiskSpec::new("d") };
        plan.disks.push(plan.disk_from_api(&disk).unwrap());
        let nic = NicSpec {
            null: Some(NullKind::Drop),
            group,
            limit_packets: Some(9),
            ..NicSpec::new("n")
        };
        plan.nics.push(plan.nic_from_api(&nic).unwrap());
        plan
    }

    #[test]
    fn a_group_of_the_api_is_changed_and_goes_when_it_is_empty() {
        let mut plan = plan();
        let change = GroupChange { limit_iops: Some(5), ..GroupChange::default() };
        let set = plan.group_changed("api", &change).unwrap();
        let limit = LimitPlan { iops: Some(5), packets: None, bytes: Some(1 << 20), burst_ms: 100 };
        assert_eq!(set.limit, limit);
        let away = GroupChange { limit_bytes: Some(Size(0)), ..GroupChange::default() };
        assert!(!plan.group_changed("api", &away).unwrap().limit.is_some());
        for (id, change, wrong) in [
            ("api", GroupChange::default(), "nothing is to be changed"),
            ("ap", change.clone(), "there is no group \"ap\""),
            (
                "api",
                GroupChange { limit_bytes: Some(Size(9)), ..GroupChange::default() },
                "limit_bytes: 9 bytes a second are too few",
            ),
            (
                "file",
                GroupChange {
                    limit_packets: Some(0),
                    limit_burst_ms: Some(9),
                    ..Default::default()
                },
                "limit_burst_ms: there is a burst, and no limit",
            ),
        ] {
            assert_eq!(plan.group_changed(id, &change).unwrap_err().error, wrong);
        }
        let twice = GroupSpec { id: "file".into(), ..GroupSpec::default() };
        let error = plan.group_from_api(&twice).unwrap_err();
        assert_eq!(error.error, "id: the name \"file\" is taken by group \"file\" (f:1)");
        let error = plan.check_group_is_free("api").unwrap_err();
        assert_eq!(error.error, "group \"api\" has members: d, n");
        assert!(error.hint.contains("`sidecore disk set d --group=`"), "{}", error.hint);
        let out = DiskChange { group: Some(String::new()), ..DiskChange::default() };
        plan.disks = vec![plan.disk_changed("d", &out).unwrap()];
        assert_eq!(plan.members("api"), (vec![], vec!["n"]));
        let out = NicChange { group: Some(String::new()), ..NicChange::default() };
        plan.nics = vec![plan.nic_changed("n", &out).unwrap()];
        assert_eq!(plan.nics[0].service.limit.packets, Some(9));
        plan.check_group_is_free("api").unwrap();
    }

    #[test]
    fn a_reload_keeps_what_the_api_made_apart() {
        let running = plan();
        // Lines that moved are no change.
        let wanted = read(&format!("# moved\n{FILE}"), Some(&running)).unwrap();
        assert_eq!(diff(&running, &wanted).changes, []);
        let changes = |text: &str| {
            let changes = diff(&running, &read(text, Some(&running)).unwrap()).changes;
            changes.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(changes(""), ["removed group file"]);
        assert_eq!(changes(&FILE.replace('7', "8")), ["set group file: limit_packets 7 becomes 8"]);
        for (text, wrong) in [
            ("[[group]]\nid = \"api\"\n", "the name \"api\" is taken by group \"api\" (api)"),
            (
                "[[nic]]\nid = \"m\"\nnull = \"drop\"\ngroup = \"api\"\n",
                "the group \"api\" was made through the API",
            ),
        ] {
            let refusal = read(text, Some(&running)).unwrap_err().to_string();
            assert!(refusal.contains(wrong), "{refusal}");
        }
        // Nor may one of the file go that something of the API is in.
        let mut running = running;
        let into = NicChange { group: Some("file".to_string()), ..NicChange::default() };
        running.nics = vec![running.nic_changed("n", &into).unwrap()];
        let refusal = read("", Some(&running)).unwrap_err().to_string();
        assert!(
            refusal.contains("nic \"n\" (api) is in group \"file\", which is gone"),
            "{refusal}"
        );
    }
}
