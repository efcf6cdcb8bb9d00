//! What disks and NICs show alike: who may open their sockets, and how their queues are served.
//!
//! Each is part of the table that it stands in, and has no table of its own.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::plan::ServicePlan;
use crate::size::Size;
use crate::spec::{Mode, Policy, SocketMode, SocketRights};

/// A device's socket, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AccessView {
    /// Its Unix socket; null where it has none, since clients of a link have the device.
    #[serde(default)]
    pub socket: Option<String>,
    /// Who opens the socket.
    pub mode: Mode,
    /// Whose it is, if another user's than the daemon's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket_owner: Option<String>,
    /// Of which group it is, if another than the daemon's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket_group: Option<String>,
    /// Who of them may open it.
    #[serde(default)]
    pub socket_mode: SocketMode,
}

impl AccessView {
    /// Of what a plan says.
    pub fn new(socket: &str, mode: Mode, rights: &SocketRights) -> AccessView {
        let SocketRights { owner, group, mode: socket_mode, .. } = rights.clone();
        AccessView {
            socket: Some(socket.to_string()),
            mode,
            socket_owner: owner,
            socket_group: group,
            socket_mode,
        }
    }

    /// The socket's path; empty where there is none.
    pub fn path(&self) -> &str {
        self.socket.as_deref().unwrap_or_default()
    }

    /// Who may open the socket.
    pub fn rights(&self) -> SocketRights {
        let (owner, group) = (self.socket_owner.clone(), self.socket_group.clone());
        SocketRights { owner, group, mode: self.socket_mode, lets_all_in: false }
    }
}

macro_rules! service_view {
    (
        $(#[$view_doc:meta])* $view:ident in $unit:literal;
        $(#[$share_doc:meta])* share;
        $(#[$policy_doc:meta])* policy_as;
        $(#[$target_doc:meta])* latency_target_us;
        $(#[$moderate_doc:meta])* moderate_us;
        $(#[$rate_doc:meta])* $rate:ident of $of_limit:ident;
        $(#[$bytes_doc:meta])* limit_bytes;
    ) => {
        $(#[$view_doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        pub struct $view {
            $(#[$share_doc])*
            pub share: u32,
            /// When its queues are polled.
            pub policy: Policy,
            $(#[$policy_doc])*
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub policy_as: Option<String>,
            $(#[$target_doc])*
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub latency_target_us: Option<u32>,
            $(#[$moderate_doc])*
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub moderate_us: Option<u32>,
            $(#[$rate_doc])*
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub $rate: Option<u32>,
            $(#[$bytes_doc])*
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub limit_bytes: Option<u64>,
            /// What may be used at once after a pause, as milliseconds of the full limit; absent without one.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub limit_burst_ms: Option<u32>,
            /// The group whose limit holds for it too.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub group: Option<String>,
        }

        impl From<&ServicePlan> for $view {
            fn from(plan: &ServicePlan) -> $view {
                $view {
                    share: plan.share,
                    policy: plan.policy.policy(),
                    policy_as: plan.policy.in_words(),
                    latency_target_us: plan.latency_target_us,
                    moderate_us: plan.moderate_us,
                    $rate: plan.limit.$of_limit,
                    limit_bytes: plan.limit.bytes,
                    limit_burst_ms: plan.limit.is_some().then_some(plan.limit.burst_ms),
                    group: plan.group.clone(),
                }
            }
        }

        impl $view {
            /// The policy with its numbers.
            pub fn policy_in_words(&self) -> String {
                self.policy_as.clone().unwrap_or_else(|| self.policy.to_string())
            }

            /// The limit without its burst, in words.
            pub fn rates(&self) -> Option<String> {
                let rate = self.$rate.map(|rate| format!(concat!("{} ", $unit, "/s"), rate));
                let bytes = self.limit_bytes.map(|bytes| format!("{} bytes/s", Size(bytes)));
                let rates = [rate, bytes].into_iter().flatten().collect::<Vec<_>>();
                (!rates.is_empty()).then(|| rates.join(", "))
            }

            /// Whether a limit holds for it: its own, or its group's.
            pub fn is_limited(&self) -> bool {
                self.limit_burst_ms.is_some() || self.group.is_some()
            }
        }
    };
}

service_view! {
    /// How the queues of a disk are served.
    DiskServiceView in "requests";
    /// Share of a busy core, for each queue.
    share;
    /// That policy with its numbers, in words, such as `es2 (quota 4)`; absent where it has none.
    policy_as;
    /// Most microseconds that a request is to wait in its queue; absent without a target.
    latency_target_us;
    /// Microseconds for which the call for a completion may wait for others; absent where none waits.
    moderate_us;
    /// Most requests a second; absent without a limit.
    limit_iops of iops;
    /// Most bytes a second; absent without a limit.
    limit_bytes;
}

service_view! {
    /// How the queues of a NIC are served.
    NicServiceView in "packets";
    /// Share of a busy core, for each transmit queue.
    share;
    /// That policy with its numbers, in words, such as `es2 (quota 8)`; absent where it has none.
    policy_as;
    /// Most microseconds that a frame is to wait in a transmit queue; absent without a target.
    latency_target_us;
    /// Microseconds for which the call for sent frames may wait; absent where none waits.
    moderate_us;
    /// Most packets a second that it sends, and that it receives; absent without a limit.
    limit_packets of packets;
    /// Most bytes a second that it sends, and that it receives; absent without a limit.
    limit_bytes;
}
