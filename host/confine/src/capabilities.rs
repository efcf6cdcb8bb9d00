//! Capabilities: which are kept, and giving up the others.

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set,
    clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
};

/// What control may need later, and why, is in decision 11.
const KEPT: CapabilitySet = CapabilitySet::DAC_OVERRIDE
    .union(CapabilitySet::NET_ADMIN)
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::IPC_LOCK);

/// Reduces this thread's sets to what is kept of them; the right to give a file to another user only where it
/// is asked for. Gives what is left.
pub(crate) fn reduce(gives_sockets_away: bool) -> Result<CapabilitySet, Errno> {
    let chown = CapabilitySet::CHOWN;
    let kept = if gives_sockets_away { KEPT | chown } else { KEPT };
    let before = capabilities(None)?;
    for number in 0..u64::BITS {
        let one = CapabilitySet::from_bits_retain(1 << number);
        // Numbers that the kernel does not know are refused.
        let is_in = !kept.contains(one) && capability_is_in_bounding_set(one).unwrap_or(false);
        if is_in && before.effective.contains(CapabilitySet::SETPCAP) {
            remove_capability_from_bounding_set(one)?;
        }
    }
    let left = before.permitted & kept;
    give_up_all_but(left)?;
    Ok(left)
}

/// What a start of the daemon takes beyond what it keeps: to have given up the rest, to raise limits, and to see
/// which vCPUs run.
const OF_A_START: CapabilitySet = KEPT
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::SYS_RESOURCE)
    .union(CapabilitySet::SYS_NICE);

/// Reduces this process, and with it all that it starts, to what a start takes.
pub(crate) fn reduce_to_a_start() -> Result<(), Errno> {
    let before = capabilities(None)?;
    for number in 0..u64::BITS {
        let one = CapabilitySet::from_bits_retain(1 << number);
        let is_in =
            !OF_A_START.contains(one) && capability_is_in_bounding_set(one).unwrap_or(false);
        if is_in && before.effective.contains(CapabilitySet::SETPCAP) {
            remove_capability_from_bounding_set(one)?;
        }
    }
    let (permitted, inheritable) = (before.permitted & OF_A_START, before.inheritable & OF_A_START);
    let effective = before.effective & OF_A_START;
    set_capabilities(None, CapabilitySets { effective, permitted, inheritable })
}

/// This thread has none any more.
pub(crate) fn drop_all() -> Result<(), Errno> {
    give_up_all_but(CapabilitySet::empty())
}

/// This thread has those that files of others take, as far as it has them.
pub(crate) fn keep_for_files() -> Result<(), Errno> {
    give_up_all_but(capabilities(None)?.permitted & CapabilitySet::DAC_OVERRIDE)
}

fn give_up_all_but(left: CapabilitySet) -> Result<(), Errno> {
    // What is ambient is inheritable too, and goes with it; before Linux 4.3 there is none.
    let _ = clear_ambient_capability_set();
    let inheritable = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: left, permitted: left, inheritable })
}

/// What this thread may do.
pub(crate) fn of_this_thread() -> Result<CapabilitySet, Errno> {
    capabilities(None).map(|sets| sets.effective)
}

/// Their names without `CAP_`, in lower case, those that have one.
pub fn names(set: CapabilitySet) -> Vec<String> {
    set.iter_names().map(|(name, _)| name.to_ascii_lowercase()).collect()
}
