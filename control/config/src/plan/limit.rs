//! Limits: resolved from what was written of them. The groups that have one together: `group`.

use super::names::Origin;
use crate::mistake::{Mistake, Path};
use crate::number::none_of;
use crate::size::Size;
use crate::spec::{BURST_MS_DEFAULT, DiskSpec, GroupSpec, LIMIT_BYTES_MIN, NicSpec};
use crate::word::Word;

/// At most so much a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitPlan {
    /// Requests of disks a second, 1 to 10^9; `None` for no limit.
    pub iops: Option<u32>,
    /// Packets of NICs a second each way, 1 to 10^9; `None` for no limit.
    pub packets: Option<u32>,
    /// Bytes a second, 4,096 to 2^63 - 1; `None` for no limit.
    pub bytes: Option<u64>,
    /// What may be used at once after a pause, as milliseconds of the full limit, 4 to 60,000.
    pub burst_ms: u32,
}

impl LimitPlan {
    /// Whether there is one.
    pub fn is_some(&self) -> bool {
        self.iops.is_some() || self.packets.is_some() || self.bytes.is_some()
    }

    /// By each field's name what it is, as a list of changes says it.
    pub(crate) fn in_words(&self) -> Vec<(&'static str, Word)> {
        let LimitPlan { iops, packets, bytes, burst_ms } = self;
        vec![
            ("limit_iops", Word::or(*iops, "no limit")),
            ("limit_packets", Word::or(*packets, "no limit")),
            ("limit_bytes", Word::or(bytes.map(Size), "no limit")),
            ("limit_burst_ms", Word::of(burst_ms)),
        ]
    }
}

/// As a list of changes says it.
impl std::fmt::Display for LimitPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts = [
            self.iops.map(|iops| format!("{iops} requests/s")),
            self.packets.map(|packets| format!("{packets} packets/s")),
            self.bytes.map(|bytes| format!("{} bytes/s", Size(bytes))),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        match parts.is_empty() {
            true => f.write_str("no limit"),
            false => write!(f, "{}, bursts of {} ms", parts.join(", "), self.burst_ms),
        }
    }
}

/// What was written of a limit.
#[derive(Clone, Copy)]
pub(super) struct LimitSpec {
    /// The fields that are a limit where this was written.
    of: &'static str,
    iops: Option<u32>,
    packets: Option<u32>,
    bytes: Option<Size>,
    burst_ms: Option<u32>,
}

/// Takes the fields of a limit out of what can have one.
macro_rules! limits_of {
    ($($type:ident: $of:literal, $iops:expr, $packets:expr;)+) => {$(
        impl From<&$type> for LimitSpec {
            fn from(spec: &$type) -> LimitSpec {
                let (iops, packets): (fn(&$type) -> _, fn(&$type) -> _) = ($iops, $packets);
                LimitSpec {
                    of: $of,
                    iops: iops(spec),
                    packets: packets(spec),
                    bytes: spec.limit_bytes,
                    burst_ms: spec.limit_burst_ms,
                }
            }
        }
    )+};
}

limits_of! {
    DiskSpec: "`limit_iops` or `limit_bytes`", |disk| disk.limit_iops, |_| None;
    NicSpec: "`limit_packets` or `limit_bytes`", |_| None, |nic| nic.limit_packets;
    GroupSpec: "`limit_iops`, `limit_packets` or `limit_bytes`", |group| group.limit_iops,
        |group| group.limit_packets;
}

impl LimitSpec {
    /// Refuses a burst that was written without a limit. One that was left when a limit was taken away is no
    /// mistake: it waits for the next.
    pub(super) fn check_burst(self, at: &Path, mistakes: &mut Vec<Mistake>) {
        let LimitSpec { of, iops, packets, bytes, burst_ms } = self;
        if burst_ms.is_some() && iops.is_none() && packets.is_none() && bytes.is_none() {
            let right = format!("add {of}, or leave it out");
            let wrong = "there is a burst, and no limit";
            mistakes.push(Mistake::new(at.key("limit_burst_ms"), wrong, right));
        }
    }

    /// Fills in the default, and checks what is not a number of the tables.
    pub(super) fn resolve(
        self,
        origin: &Origin,
        at: &Path,
        mistakes: &mut Vec<Mistake>,
    ) -> LimitPlan {
        let LimitSpec { iops, packets, bytes, burst_ms, .. } = self;
        if let Some(bytes) = bytes.filter(|bytes| bytes.0 < LIMIT_BYTES_MIN) {
            let wrong = format!("{bytes} bytes a second are too few");
            let none = none_of("limit_bytes", false);
            let right = format!("write {} or more, such as 100M{none}", Size(LIMIT_BYTES_MIN));
            mistakes.push(Mistake::new(at.key("limit_bytes"), wrong, right));
        }
        if *origin != Origin::Api {
            self.check_burst(at, mistakes);
        }
        let burst_ms = burst_ms.unwrap_or(BURST_MS_DEFAULT);
        LimitPlan { iops, packets, bytes: bytes.map(|bytes| bytes.0), burst_ms }
    }
}

#[cfg(test)]
mod tests {
    use crate::mistake::Refusal;
    use crate::plan::{LimitPlan, Plan, load};
    use crate::spec::{DiskChange, DiskSpec};
    use crate::{Size, diff};
    use cpus::HostCpus;

    fn read(text: &str, running: Option<&Plan>) -> Result<Plan, Refusal> {
        let host = HostCpus { online: vec![0, 1], auto: vec![1], auto_count: 1 };
        load(text, "f", "/etc", &host, running)
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
        let group = LimitPlan { iops: Some(5000), burst_ms: 20, ..LimitPlan::default() };
        let disk = LimitPlan { bytes: Some(100 << 20), burst_ms: 100, ..LimitPlan::default() };
        assert_eq!((plan.groups[0].limit, plan.disks[0].service.limit), (group, disk));
        assert_eq!(plan.disks[0].service.group.as_deref(), Some("tenant1"));
    }

    #[test]
    fn o06_what_is_no_limit_says_what_would_be() {
        for (line, wrong, right) in [
            ("limit_iops = 0", "0 is out of bounds", "from 1 to 1000000000"),
            ("limit_iops = -1", "-1 is out of bounds", "from 1 to 1000000000"),
            ("limit_iops = 1000000001", "1000000001 is out of bounds", "from 1 to 1000000000"),
            ("limit_iops = 9223372036854775808", "is too large a number", ""),
            ("limit_bytes = -4096", "-4096", ""),
            ("limit_bytes = 9223372036854775808", "is too large a number", ""),
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
            let refusal = read(&text, None).unwrap_err().to_string();
            assert!(refusal.contains(wrong) && refusal.contains(right), "{line}: {refusal}");
        }
        for (line, wrong, right) in [
            ("limit_packets = 0", "0 is out of bounds", "from 1 to 1000000000"),
            ("limit_bytes = 4095", "4095 bytes a second are too few", "write 4K or more"),
            ("limit_burst_ms = 4", "there is a burst, and no limit", "add `limit_packets`"),
            ("limit_iops = 9", "`limit_iops` is not a field of nic", ""),
            ("group = \"tenat1\"", "there is no group \"tenat1\"", "did you mean \"tenant1\"?"),
        ] {
            let group = "[[group]]\nid = \"tenant1\"\nlimit_packets = 7\n";
            let text = format!("{group}[[nic]]\nid = \"n\"\nnull = \"drop\"\n{line}\n");
            let refusal = read(&text, None).unwrap_err().to_string();
            assert!(refusal.contains(wrong) && refusal.contains(right), "{line}: {refusal}");
        }
        let twice =
            read("[[group]]\nid = \"g\"\n[[group]]\nid = \"g\"\n", None).unwrap_err().to_string();
        assert!(twice.contains("the name \"g\" is taken by group \"g\" (f:1)"), "{twice}");
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
                "set group tenant1: limit_iops 5000 becomes 6000",
                "set disk a: limit_bytes 100M becomes 1G",
            ]
        );
        assert_eq!(
            changes("[[disk]]\nid = \"a\"\npath = \"/a.img\"\n"),
            [
                "set disk a: limit_bytes 100M becomes no limit, group tenant1 becomes none",
                "removed group tenant1",
            ]
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
        let limit = LimitPlan { iops: Some(7), bytes: Some(8192), burst_ms: 100, packets: None };
        assert_eq!(set.service.limit, limit);
        let away =
            DiskChange { limit_iops: Some(0), group: Some(String::new()), ..DiskChange::default() };
        let set = plan.disk_changed("b", &away).unwrap();
        assert_eq!((set.service.limit.is_some(), set.service.group), (false, None));
        // The burst waits for the next limit.
        let at = plan.disks.iter().position(|disk| disk.id == "b").unwrap();
        let burst = DiskChange { limit_burst_ms: Some(20), ..DiskChange::default() };
        plan.disks[at] = plan.disk_changed("b", &burst).unwrap();
        let away = DiskChange { group: None, ..away };
        plan.disks[at] = plan.disk_changed("b", &away).unwrap();
        let left = plan.disks[at].clone();
        assert_eq!((left.service.limit.is_some(), left.service.limit.burst_ms), (false, 20));
        // What was left is no mistake, but what is written is.
        let error = plan.disk_changed("b", &burst).unwrap_err();
        assert_eq!(error.error, "limit_burst_ms: there is a burst, and no limit");
        plan.disks.remove(at);
        assert!(plan.disk_from_api(&left.spec).is_err());
        plan.disks.push(plan.disk_kept(&left.spec).unwrap());
        let again = DiskChange { limit_iops: Some(9), ..DiskChange::default() };
        let set = plan.disk_changed("b", &again).unwrap();
        assert_eq!((set.service.limit.iops, set.service.limit.burst_ms), (Some(9), 20));
        // What is wrong in a change is no place to leave something out.
        for (change, right) in [
            (
                DiskChange { limit_bytes: Some(Size(7)), ..DiskChange::default() },
                "write 4K or more, such as 100M; 0 for no limit",
            ),
            (
                DiskChange { latency_target_us: Some(7), ..DiskChange::default() },
                "write a number from 10 to 1000000 (microseconds, without a unit), such as 200; 0 for no \
                 target",
            ),
        ] {
            assert_eq!(plan.disk_changed("b", &change).unwrap_err().hint, right);
        }
        let few = DiskSpec { limit_bytes: Some(Size(7)), ..spec.clone() };
        let hint = plan.disk_from_api(&DiskSpec { id: "c".to_string(), ..few }).unwrap_err().hint;
        assert_eq!(hint, "write 4K or more, such as 100M; leave it out for no limit");
        let wrong = DiskChange { group: Some("x".to_string()), ..DiskChange::default() };
        let error = plan.disk_changed("b", &wrong).unwrap_err();
        assert_eq!(error.error, "group: there is no group \"x\"");
        assert!(plan.disk_changed("b", &DiskChange::default()).is_err());
        // A group that a disk of the API is in may not go.
        let refusal = read("", Some(&plan)).unwrap_err().to_string();
        assert!(refusal.contains("is in group \"tenant1\", which is gone"), "{refusal}");
    }
}
