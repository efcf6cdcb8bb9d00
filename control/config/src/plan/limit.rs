//! Limits, and the groups that have one together: resolved from their specs.

use super::names::{check_bounds, check_id};
use super::{Mistake, Origin, Path, Size};
use crate::schema::nearest;
use crate::spec::{
    BURST_MS_DEFAULT, BURST_MS_MAX, BURST_MS_MIN, GROUPS_MAX, GroupSpec, LIMIT_BYTES_MIN,
    LIMIT_IOPS_MAX,
};

/// At most so much a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitPlan {
    /// Requests a second, 1 to 10^9; `None` for no limit.
    pub iops: Option<u32>,
    /// Bytes a second, 4,096 to 2^63 - 1; `None` for no limit.
    pub bytes: Option<u64>,
    /// What may be used at once after a pause, as milliseconds of the full limit, 4 to 60,000.
    pub burst_ms: u32,
}

impl LimitPlan {
    /// Whether there is one.
    pub fn is_some(&self) -> bool {
        self.iops.is_some() || self.bytes.is_some()
    }
}

/// As a list of changes says it.
impl std::fmt::Display for LimitPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.iops, self.bytes.map(Size)) {
            (None, None) => f.write_str("no limit"),
            (Some(iops), None) => write!(f, "{iops} requests/s"),
            (None, Some(bytes)) => write!(f, "{bytes} bytes/s"),
            (Some(iops), Some(bytes)) => write!(f, "{iops} requests/s and {bytes} bytes/s"),
        }
    }
}

/// Disks that have a limit together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPlan {
    /// Its name.
    pub id: String,
    /// What they may do together.
    pub limit: LimitPlan,
}

/// What was written of a limit, for a disk or a group.
#[derive(Clone, Copy)]
pub(super) struct LimitSpec {
    pub(super) iops: Option<u32>,
    pub(super) bytes: Option<Size>,
    pub(super) burst_ms: Option<u32>,
}

impl LimitSpec {
    /// Fills in the default and checks each value.
    pub(super) fn resolve(self, at: &Path, mistakes: &mut Vec<Mistake>) -> LimitPlan {
        let LimitSpec { iops, bytes, burst_ms } = self;
        if let Some(iops) = iops {
            check_bounds(iops, (1, LIMIT_IOPS_MAX), &at.key("limit_iops"), mistakes);
        }
        if let Some(bytes) = bytes.filter(|bytes| bytes.0 < LIMIT_BYTES_MIN) {
            let wrong = format!("{bytes} bytes a second are too few");
            let right = format!("write {} or more, or leave it out", Size(LIMIT_BYTES_MIN));
            mistakes.push(Mistake::new(at.key("limit_bytes"), wrong, right));
        }
        if let Some(burst_ms) = burst_ms {
            let bounds = (BURST_MS_MIN, BURST_MS_MAX);
            check_bounds(burst_ms, bounds, &at.key("limit_burst_ms"), mistakes);
            if iops.is_none() && bytes.is_none() {
                let right = "add `limit_iops` or `limit_bytes`, or leave it out";
                let wrong = "there is a burst, and no limit";
                mistakes.push(Mistake::new(at.key("limit_burst_ms"), wrong, right));
            }
        }
        let burst_ms = burst_ms.unwrap_or(BURST_MS_DEFAULT);
        LimitPlan { iops, bytes: bytes.map(|bytes| bytes.0), burst_ms }
    }
}

/// The groups of a file.
pub(super) fn resolve_groups(specs: &[GroupSpec], mistakes: &mut Vec<Mistake>) -> Vec<GroupPlan> {
    let mut groups: Vec<GroupPlan> = Vec::new();
    if specs.len() > GROUPS_MAX {
        let wrong = format!("{} groups are too many", specs.len());
        let at = Path::item("group", GROUPS_MAX);
        mistakes.push(Mistake::new(at, wrong, format!("at most {GROUPS_MAX}")));
        return groups;
    }
    for (index, spec) in specs.iter().enumerate() {
        let at = Path::item("group", index);
        check_id(&spec.id, &at.key("id"), mistakes);
        if groups.iter().any(|other| other.id == spec.id) {
            let wrong = format!("there are two groups {:?}", spec.id);
            mistakes.push(Mistake::new(at.key("id"), wrong, "give each group a name of its own"));
        }
        let GroupSpec { limit_iops: iops, limit_bytes: bytes, limit_burst_ms: burst_ms, .. } =
            *spec;
        let limit = LimitSpec { iops, bytes, burst_ms }.resolve(&at, mistakes);
        groups.push(GroupPlan { id: spec.id.clone(), limit });
    }
    groups
}

/// Refuses a group that nobody declared.
pub(super) fn check_group(
    group: Option<&str>,
    groups: &[GroupPlan],
    origin: &Origin,
    at: &Path,
    mistakes: &mut Vec<Mistake>,
) {
    let Some(id) = group.filter(|id| groups.iter().all(|group| group.id != *id)) else { return };
    let known: Vec<&str> = groups.iter().map(|group| group.id.as_str()).collect();
    let right = match (nearest(id, &known), origin) {
        (Some(near), _) => format!("did you mean {near:?}?"),
        (None, Origin::File { .. }) => format!("declare it: [[group]] with id = {id:?}"),
        (None, Origin::Api) => {
            format!("declare it in the file: [[group]] with id = {id:?}; then `sidecore reload`")
        }
    };
    mistakes.push(Mistake::new(at.key("group"), format!("there is no group {id:?}"), right));
}

#[cfg(test)]
mod tests {
    use crate::plan::{HostCpus, LimitPlan, Plan, load};
    use crate::spec::{DiskChange, DiskSpec};
    use crate::{Size, diff};

    fn read(text: &str, running: Option<&Plan>) -> Result<Plan, String> {
        let host = HostCpus { online: vec![0, 1], auto: vec![1], auto_count: 1 };
        load(text, "f", "/etc", &host, running).map_err(|refusal| refusal.to_string())
    }

    const FILE: &str = r#"
[[group]]
id = "tenant1"
limit_iops = 5000
limit_burst_ms = 20
[[disk]]
id = "a"
path = "/a.img"
group = "tenant1"
limit_bytes = "100M"
"#;

    #[test]
    fn a_limit_has_its_defaults() {
        let plan = read(FILE, None).unwrap();
        let group = LimitPlan { iops: Some(5000), bytes: None, burst_ms: 20 };
        let disk = LimitPlan { iops: None, bytes: Some(100 << 20), burst_ms: 100 };
        assert_eq!((plan.groups[0].limit, plan.disks[0].limit), (group, disk));
        assert_eq!(plan.disks[0].group.as_deref(), Some("tenant1"));
    }

    #[test]
    fn what_is_no_limit_says_what_would_be() {
        for (line, wrong, right) in [
            ("limit_iops = 0", "0 is out of bounds", "from 1 to 1000000000"),
            ("limit_bytes = 0", "0 bytes a second are too few", "write 4K or more"),
            ("limit_bytes = \"4095\"", "4095 bytes a second are too few", "write 4K or more"),
            ("limit_iops = 9\nlimit_burst_ms = 3", "3 is out of bounds", "from 4 to 60000"),
            ("limit_burst_ms = 4", "there is a burst, and no limit", "add `limit_iops`"),
            ("group = \"tenat1\"", "there is no group \"tenat1\"", "did you mean \"tenant1\"?"),
            ("group = \"other\"", "there is no group \"other\"", "declare it: [[group]]"),
            ("limit_iop = 9", "`limit_iop` is not a field of disk", "did you mean `limit_iops`?"),
        ] {
            let group = "[[group]]\nid = \"tenant1\"\n";
            let text = format!("{group}[[disk]]\nid = \"a\"\npath = \"/a\"\n{line}\n");
            let refusal = read(&text, None).unwrap_err();
            assert!(refusal.contains(wrong) && refusal.contains(right), "{line}: {refusal}");
        }
        let twice = read("[[group]]\nid = \"g\"\n[[group]]\nid = \"g\"\n", None).unwrap_err();
        assert!(twice.contains("there are two groups \"g\""), "{twice}");
    }

    #[test]
    fn a_reload_changes_limits_in_place() {
        let running = read(FILE, None).unwrap();
        let text = FILE.replace("5000", "6000").replace("100M", "1G");
        let changes = |text: &str| {
            let difference = diff(&running, &read(text, Some(&running)).unwrap());
            difference.changes.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(
            changes(&text),
            [
                "set group tenant1 to at most 6000 requests/s",
                "set disk a to share 100 and policy adaptive, at most 1G bytes/s, in group tenant1",
            ]
        );
        assert_eq!(
            changes("[[disk]]\nid = \"a\"\npath = \"/a.img\"\n"),
            ["set disk a to share 100 and policy adaptive", "removed group tenant1"]
        );
        assert_eq!(changes(FILE), Vec::<String>::new());
    }

    #[test]
    fn the_api_sets_and_takes_away() {
        let mut plan = read(FILE, None).unwrap();
        let spec = DiskSpec {
            path: Some("/b.img".to_string()),
            group: Some("tenant1".to_string()),
            limit_iops: Some(7),
            ..DiskSpec::new("b")
        };
        plan.disks.push(plan.disk_from_api(&spec).unwrap());
        let change = DiskChange { limit_bytes: Some(Size(8192)), ..DiskChange::default() };
        let set = plan.disk_changed("b", &change).unwrap();
        assert_eq!(set.limit, LimitPlan { iops: Some(7), bytes: Some(8192), burst_ms: 100 });
        let away =
            DiskChange { limit_iops: Some(0), group: Some(String::new()), ..DiskChange::default() };
        let set = plan.disk_changed("b", &away).unwrap();
        assert_eq!((set.limit.is_some(), set.group), (false, None));
        let wrong = DiskChange { group: Some("x".to_string()), ..DiskChange::default() };
        let error = plan.disk_changed("b", &wrong).unwrap_err();
        assert_eq!(error.error, "group: there is no group \"x\"");
        assert!(plan.disk_changed("b", &DiskChange::default()).is_err());
        // A group that a disk of the API is in may not go.
        let refusal = read("", Some(&plan)).unwrap_err();
        assert!(refusal.contains("is in group \"tenant1\", which is gone"), "{refusal}");
    }
}
