//! How the queues of disks and NICs are served: what both have alike in a plan.

use super::defaults::{Defaults, check_group};
use super::limit::{LimitPlan, LimitSpec};
use super::names::Origin;
use super::policy::PolicyPlan;
use crate::mistake::{Mistake, Path};
use crate::spec::{DiskSpec, NIC_MODERATE_DEFAULT_US, NicSpec};
use crate::word::Word;

/// How the queues of a device are served, against those of others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServicePlan {
    /// 1 to 10,000.
    pub share: u32,
    /// When its queues are polled.
    pub policy: PolicyPlan,
    /// Microseconds that a request is to wait in its ring at most, 10 to 1,000,000; `None` for no target.
    pub latency_target_us: Option<u32>,
    /// Microseconds for which a call may wait (of a NIC that for sent frames), 1 to 1,000; `None` for no waiting.
    pub moderate_us: Option<u32>,
    /// What all its queues together may do; of a NIC each way.
    pub limit: LimitPlan,
    /// The group whose limit holds for it too.
    pub group: Option<String>,
}

impl ServicePlan {
    /// The latency target as a sidecore takes it.
    pub fn target_ns(&self) -> Option<u64> {
        self.latency_target_us.map(|target_us| u64::from(target_us) * 1000)
    }

    /// For how long calls may wait, as a sidecore takes it.
    pub fn moderate_ns(&self) -> u32 {
        self.moderate_us.map_or(0, |wait_us| wait_us.saturating_mul(1000))
    }

    /// By each field's name what it is, as a list of changes says it.
    pub(crate) fn in_words(&self) -> Vec<(&'static str, Word)> {
        let ServicePlan { share, policy, latency_target_us, moderate_us, limit, group } = self;
        let mut words = vec![
            ("share", Word::of(share)),
            ("policy", Word::of(policy)),
            ("latency_target_us", Word::or(*latency_target_us, "no target")),
            ("moderate_us", Word::or(*moderate_us, "no waiting")),
        ];
        words.extend(limit.in_words());
        words.push(("group", Word::or(group.as_ref(), "none")));
        words
    }
}

macro_rules! service_of {
    ($($spec:ident: $kind:literal, $policy:ident, $waits:expr;)+) => {$(
        impl $spec {
            /// Fills in the defaults of how it is served, and checks its limit and its group.
            pub(super) fn service(
                &self,
                defaults: &Defaults<'_>,
                origin: &Origin,
                at: &Path,
                mistakes: &mut Vec<Mistake>,
            ) -> ServicePlan {
                let limit = LimitSpec::from(self).resolve(origin, at, mistakes);
                check_group(($kind, self.group.as_deref()), defaults, origin, at, mistakes);
                let waits: fn(Option<u32>) -> Option<u32> = $waits;
                ServicePlan {
                    share: self.share,
                    policy: defaults.policies.$policy(self.policy),
                    latency_target_us: self.latency_target_us,
                    moderate_us: waits(self.moderate_us),
                    limit,
                    group: self.group.clone(),
                }
            }
        }
    )+};
}

service_of! {
    DiskSpec: "disk", of_disk, |us| us;
    NicSpec: "nic", of_nic, |us| us.or(Some(NIC_MODERATE_DEFAULT_US)).filter(|us| *us > 0);
}
