//! Policies with their numbers: what a device that names one gets.

use super::names::check_bounds;
use crate::mistake::{Mistake, Path};
use crate::spec::{ElvisSpec, Es2Spec, Policy, QUOTA, RATE, SidecoresSpec};

/// When a queue is polled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyPlan {
    /// As long as that pays.
    #[default]
    Adaptive,
    /// Always.
    Poll,
    /// Never.
    Notify,
    /// Until a look finds little.
    Es2 {
        /// Fewer requests or frames are little, 1 to 32.
        quota: u16,
    },
    /// By rates.
    Elvis {
        /// Kicks a second from which on it is polled, 1,000 to 10,000,000.
        rate_in: u32,
        /// Requests a second below which it is not, 1,000 to `rate_in`.
        rate_out: u32,
    },
}

impl PolicyPlan {
    /// Its name.
    pub fn policy(self) -> Policy {
        match self {
            PolicyPlan::Adaptive => Policy::Adaptive,
            PolicyPlan::Poll => Policy::Poll,
            PolicyPlan::Notify => Policy::Notify,
            PolicyPlan::Es2 { .. } => Policy::Es2,
            PolicyPlan::Elvis { .. } => Policy::Elvis,
        }
    }

    /// With its numbers, in words; nothing for one that has none.
    pub fn in_words(self) -> Option<String> {
        let has_numbers = matches!(self, PolicyPlan::Es2 { .. } | PolicyPlan::Elvis { .. });
        has_numbers.then(|| self.to_string())
    }
}

/// As a list of changes says it: with its numbers, which may be what has changed.
impl std::fmt::Display for PolicyPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PolicyPlan::Es2 { quota } => write!(f, "es2 (quota {quota})"),
            PolicyPlan::Elvis { rate_in, rate_out } => {
                write!(f, "elvis (in at {rate_in}/s, out below {rate_out}/s)")
            }
            other => other.policy().fmt(f),
        }
    }
}

/// What policies mean, and which one is that of devices that name none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policies {
    /// That of devices that name none.
    pub usual: Policy,
    /// The quotas of `es2`.
    pub es2: Es2Spec,
    /// The rates of `elvis`.
    pub elvis: ElvisSpec,
}

impl Policies {
    /// That of a disk that wrote this.
    pub fn of_disk(&self, written: Option<Policy>) -> PolicyPlan {
        self.of(written, self.es2.quota_disk)
    }

    /// That of a NIC or an uplink that wrote this.
    pub fn of_nic(&self, written: Option<Policy>) -> PolicyPlan {
        self.of(written, self.es2.quota_nic)
    }

    fn of(&self, written: Option<Policy>, quota: u16) -> PolicyPlan {
        let ElvisSpec { rate_in, rate_out } = self.elvis;
        match written.unwrap_or(self.usual) {
            Policy::Adaptive => PolicyPlan::Adaptive,
            Policy::Poll => PolicyPlan::Poll,
            Policy::Notify => PolicyPlan::Notify,
            Policy::Es2 => PolicyPlan::Es2 { quota },
            Policy::Elvis => PolicyPlan::Elvis { rate_in, rate_out },
        }
    }
}

/// Checks the numbers.
pub(super) fn resolve(spec: &SidecoresSpec, at: &Path, mistakes: &mut Vec<Mistake>) -> Policies {
    let SidecoresSpec { policy: usual, es2, elvis, .. } = *spec;
    let (at_es2, at_elvis) = (at.key("es2"), at.key("elvis"));
    check_bounds(es2.quota_disk.into(), QUOTA, &at_es2.key("quota_disk"), mistakes);
    check_bounds(es2.quota_nic.into(), QUOTA, &at_es2.key("quota_nic"), mistakes);
    check_bounds(elvis.rate_in, RATE, &at_elvis.key("rate_in"), mistakes);
    check_bounds(elvis.rate_out, RATE, &at_elvis.key("rate_out"), mistakes);
    if elvis.rate_out > elvis.rate_in {
        let ElvisSpec { rate_in, rate_out } = elvis;
        let wrong = format!("rate_out is {rate_out}, but rate_in is {rate_in}");
        let right = "make rate_out at most rate_in, or a queue is polled and armed in turns";
        mistakes.push(Mistake::new(at_elvis.key("rate_out"), wrong, right));
    }
    Policies { usual, es2, elvis }
}

#[cfg(test)]
mod tests {
    use crate::diff;
    use crate::mistake::Refusal;
    use crate::plan::{Plan, PolicyPlan, load};
    use crate::spec::DiskSpec;
    use cpus::HostCpus;

    fn read(text: &str, running: Option<&Plan>) -> Result<Plan, Refusal> {
        let host = HostCpus { online: vec![0, 1], auto: vec![1], auto_count: 1 };
        load(text, "f", "/etc", &host, running)
    }

    const DEVICES: &str = r#"
disk = [
    { id = "a", path = "/a.img" },
    { id = "b", path = "/b.img", policy = "elvis" },
    { id = "c", path = "/c.img", policy = "poll" },
]
switch = [{ id = "s", uplink = [{ tap = "t" }] }]
nic = [{ id = "n", switch = "s" }, { id = "m", switch = "s", policy = "elvis" }]
"#;

    #[test]
    fn quotas_are_of_a_class_of_device_and_have_their_defaults() {
        let plan = read(&format!("sidecores.policy = \"es2\"\n{DEVICES}"), None).unwrap();
        assert_eq!(plan.disks[0].service.policy, PolicyPlan::Es2 { quota: 4 });
        assert_eq!(plan.nics[0].service.policy, PolicyPlan::Es2 { quota: 8 });
        assert_eq!(plan.switches[0].uplinks[0].policy, PolicyPlan::Es2 { quota: 8 });
        let elvis = PolicyPlan::Elvis { rate_in: 10_000, rate_out: 5_000 };
        assert_eq!((plan.disks[1].service.policy, plan.nics[1].service.policy), (elvis, elvis));
        assert_eq!(plan.disks[2].service.policy, PolicyPlan::Poll);
    }

    #[test]
    fn what_cannot_be_says_what_can() {
        for (line, wrong, right) in [
            ("[sidecores.es2]\nquota_disk = 0", "0 is out of bounds", "from 1 to 32"),
            ("[sidecores.es2]\nquota_nic = 33", "33 is out of bounds", "from 1 to 32"),
            ("[sidecores.elvis]\nrate_in = 999", "999 is out of bounds", "from 1000 to 10000000"),
            ("[sidecores.elvis]\nrate_out = 0", "0 is out of bounds", "from 1000 to 10000000"),
            (
                "[sidecores.elvis]\nrate_out = 20000",
                "but rate_in is 10000",
                "make rate_out at most",
            ),
            ("[sidecores.es2]\nquota = 4", "`quota` is not a field of", "quota_disk"),
        ] {
            let refusal = read(line, None).unwrap_err().to_string();
            assert!(refusal.contains(wrong) && refusal.contains(right), "{line}: {refusal}");
        }
    }

    #[test]
    fn a_reload_changes_those_whom_a_number_concerns_in_place() {
        let usual = format!("sidecores.policy = \"es2\"\n{DEVICES}");
        let mut running = read(&usual, None).unwrap();
        let spec = DiskSpec { path: Some("/d.img".to_string()), ..DiskSpec::new("made") };
        running.disks.push(running.disk_from_api(&spec).unwrap());
        let changes = |more: &str| {
            let wanted = read(&format!("{more}\n{usual}"), Some(&running)).unwrap();
            let difference = diff(&running, &wanted);
            assert!(difference.restart_needed.is_empty());
            difference.changes.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(
            changes("sidecores.es2.quota_disk = 6"),
            [
                "set disk a: policy es2 (quota 4) becomes es2 (quota 6)",
                "set disk made: policy es2 (quota 4) becomes es2 (quota 6)",
            ]
        );
        assert_eq!(
            changes("sidecores.es2.quota_nic = 6"),
            [
                "set uplink t of switch s: policy es2 (quota 8) becomes es2 (quota 6)",
                "set nic n: policy es2 (quota 8) becomes es2 (quota 6)",
            ]
        );
        let elvis = "policy elvis (in at 10000/s, out below 5000/s) becomes elvis (in at 20000/s, out below 5000/s)";
        assert_eq!(
            changes("sidecores.elvis.rate_in = 20000"),
            [format!("set nic m: {elvis}"), format!("set disk b: {elvis}")]
        );
        assert_eq!(changes(""), Vec::<String>::new());
    }
}
