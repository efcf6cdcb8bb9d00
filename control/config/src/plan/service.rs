//! How the queues of disks and NICs are served: what both have alike in a plan.

use super::group::check_group;
use super::limit::{LimitPlan, LimitSpec};
use super::{Defaults, DiskSpec, Mistake, Origin, Path, PolicyPlan};
use crate::spec::{NIC_MODERATE_DEFAULT_US, NicSpec};

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
}

/// As a list of changes says it.
impl std::fmt::Display for ServicePlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ServicePlan { share, policy, latency_target_us, moderate_us, limit, group } = self;
        write!(f, "share {share} and policy {policy}")?;
        if let Some(target_us) = latency_target_us {
            write!(f, ", latency target {target_us} us")?;
        }
        if let Some(wait_us) = moderate_us {
            write!(f, ", calls may wait {wait_us} us")?;
        }
        if limit.is_some() {
            write!(f, ", at most {limit}")?;
        }
        group.iter().try_for_each(|group| write!(f, ", in group {group}"))
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
