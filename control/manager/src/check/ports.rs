//! Whether this process may open what a port is to be on, as far as a look tells.
//!
//! Nothing is opened. Not here: whether an interface is there, and is a tap (`check`). Called by `check` and by the
//! program.

use backend::net::{HostOpenError, Why};
use config::HostPlan;
use config::spec::Via;
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::process::{getegid, geteuid, getgroups};
use rustix::thread::{CapabilitySet, capabilities};

use super::{CheckError, index_of, kernel_shows};

/// That this process has the right to open what a port is to be on, and to make a tap that is not there.
///
/// # Errors
/// What a start by this process's user would say.
pub fn may_open(host: &HostPlan) -> Result<(), CheckError> {
    #[cfg(any(test, feature = "simulated"))]
    if crate::simulated::machine().is_some() {
        return Ok(());
    }
    match host {
        HostPlan::Tap { name } => may_open_tap(name),
        HostPlan::Interface { name, via } => may_open_interface(name, *via),
        HostPlan::Remote { .. } | HostPlan::Lent { .. } | HostPlan::Null(_) => Ok(()),
    }
}

fn may_open_tap(name: &str) -> Result<(), CheckError> {
    let refused =
        |why| CheckError::from(HostOpenError { kind: "tap", interface: name.into(), why });
    let wanted = Access::READ_OK | Access::WRITE_OK;
    accessat(CWD, "/dev/net/tun", wanted, AtFlags::EACCESS)
        .map_err(|errno| refused(Why::NoTun(errno)))?;
    let not_allowed = Why::NotAllowed { what: "open or make it", needs: "CAP_NET_ADMIN" };
    match index_of(name)? {
        _ if has(CapabilitySet::NET_ADMIN) => Ok(()),
        None => Err(refused(not_allowed)),
        Some(index) if kernel_shows(name, index) && !is_ours(name) => Err(refused(not_allowed)),
        Some(_) => Ok(()),
    }
}

/// Whether a tap was made for this process's user and group, or for nobody (`tun_not_capable` of the kernel).
fn is_ours(name: &str) -> bool {
    let of = |file: &str| {
        let text = names::kernel_text(format!("/sys/class/net/{name}/{file}")).ok()?;
        // -1: nobody's.
        text.trim().parse::<u32>().ok()
    };
    let mut groups = getgroups().unwrap_or_default();
    groups.push(getegid());
    let is_user = of("owner").is_none_or(|owner| owner == geteuid().as_raw());
    let is_group = of("group").is_none_or(|group| groups.iter().any(|it| it.as_raw() == group));
    is_user && is_group
}

fn may_open_interface(name: &str, via: Via) -> Result<(), CheckError> {
    let (needed, needs) = match via {
        Via::Packet => (CapabilitySet::NET_RAW, "CAP_NET_RAW"),
        // CAP_SYS_ADMIN does for CAP_BPF, and an older kernel knows it alone.
        Via::Xdp if has(CapabilitySet::SYS_ADMIN) => (
            CapabilitySet::NET_RAW | CapabilitySet::NET_ADMIN,
            "CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF",
        ),
        Via::Xdp => (
            CapabilitySet::NET_RAW | CapabilitySet::NET_ADMIN | CapabilitySet::BPF,
            "CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF",
        ),
    };
    match has(needed) {
        true => Ok(()),
        false => {
            let why = Why::NotAllowed { what: "open it", needs };
            Err(HostOpenError { kind: "interface", interface: name.into(), why }.into())
        }
    }
}

/// Whether this thread has all of them. What cannot be told is left to who opens.
fn has(needed: CapabilitySet) -> bool {
    capabilities(None).map_or(true, |sets| sets.effective.contains(needed))
}
