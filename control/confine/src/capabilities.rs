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

/// Reduces this thread's sets to what is kept of them. Gives what is left.
pub(crate) fn reduce() -> Result<CapabilitySet, Errno> {
    let before = capabilities(None)?;
    for number in 0..u64::BITS {
        let one = CapabilitySet::from_bits_retain(1 << number);
        // Numbers that the kernel does not know are refused.
        let is_in = !KEPT.contains(one) && capability_is_in_bounding_set(one).unwrap_or(false);
        if is_in && before.effective.contains(CapabilitySet::SETPCAP) {
            remove_capability_from_bounding_set(one)?;
        }
    }
    let left = before.permitted & KEPT;
    give_up_all_but(left)?;
    Ok(left)
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
