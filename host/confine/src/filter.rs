//! The filters: from lists of calls to programs that the kernel runs.
//!
//! Three, one upon the other; the kernel takes the harshest of their answers. The first two kill and
//! tell the C library to do without `clone3`; they are the process's. The third is a thread's list.

use std::collections::BTreeMap;

use rustix::thread::CapabilitySet;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter,
};

use crate::calls::{self, Check};
use crate::{Confined, Error, Kind, Mode};

/// Rules of one filter; a call without any is meant whatever its arguments are.
type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Kills whoever makes a call that only an attacker makes, from now on.
pub(crate) fn process() -> Result<(), Error> {
    let rules = calls::FATAL.iter().map(|call| (*call, Vec::new())).collect();
    install(rules, SeccompAction::Allow, SeccompAction::KillProcess)?;
    let clone3 = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    install(clone3, SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS as u32))
}

/// The same for a process that starts programs which are to have the rights of a start.
pub(crate) fn launcher() -> Result<(), Error> {
    let fatal = calls::FATAL.iter().filter(|call| !calls::OF_A_START.contains(call));
    let rules = fatal.map(|call| (*call, Vec::new())).collect();
    install(rules, SeccompAction::Allow, SeccompAction::KillProcess)
}

/// Refuses this thread what is not on its list, from now on.
pub(crate) fn thread(kind: Kind, confined: &Confined) -> Result<(), Error> {
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let mut rules = rules(kind, confined)?;
    if confined.mode != Mode::Strict {
        return install(rules, refuse, SeccompAction::Allow);
    }
    if !matches!(kind, Kind::Control | Kind::Opener) {
        let tried: Rules = calls::TRIED.iter().map(|call| (*call, Vec::new())).collect();
        rules.extend(tried.clone());
        install(tried, SeccompAction::Allow, refuse)?;
    }
    install(rules, SeccompAction::KillProcess, SeccompAction::Allow)
}

fn rules(kind: Kind, confined: &Confined) -> Result<Rules, Error> {
    let mut rules = Rules::new();
    let networks = confined.capabilities.contains(CapabilitySet::NET_RAW);
    let programs = confined.capabilities.contains(CapabilitySet::BPF);
    for call in calls::of(kind, networks, programs) {
        rules.insert(call, Vec::new());
    }
    // After the calls without conditions: those with some take their place.
    let families = (networks, confined.speaks_ip);
    for Check { call, argument, mask, values } in calls::checked(kind, families, confined.pid) {
        let one = |value: &u64| condition(argument, mask, *value).and_then(|c| rule(vec![c]));
        rules.insert(call, values.iter().map(one).collect::<Result<_, _>>()?);
    }
    Ok(rules)
}

fn condition(argument: u8, mask: Option<u64>, value: u64) -> Result<SeccompCondition, Error> {
    let operator = mask.map_or(SeccompCmpOp::Eq, SeccompCmpOp::MaskedEq);
    let length = SeccompCmpArgLen::Dword;
    SeccompCondition::new(argument, length, operator, value).map_err(wrong)
}

fn rule(conditions: Vec<SeccompCondition>) -> Result<SeccompRule, Error> {
    SeccompRule::new(conditions).map_err(wrong)
}

fn install(rules: Rules, mismatch: SeccompAction, hit: SeccompAction) -> Result<(), Error> {
    let program = program(rules, mismatch, hit)?;
    apply_filter(&program).map_err(|error| Error::Filter(error.to_string()))
}

fn program(rules: Rules, mismatch: SeccompAction, hit: SeccompAction) -> Result<BpfProgram, Error> {
    let architecture = std::env::consts::ARCH.try_into().map_err(wrong)?;
    let filter = SeccompFilter::new(rules, mismatch, hit, architecture).map_err(wrong)?;
    filter.try_into().map_err(wrong)
}

fn wrong(error: seccompiler::BackendError) -> Error {
    Error::Filter(error.to_string())
}

#[cfg(test)]
mod tests;
