//! Disks and NICs that something is wrong with, as `ls` shows them.

use config::api::{DiskList, NicList};
use config::routes::Method;
use host::doctor::{Check, State};

use super::check;
use crate::client::Client;
use crate::failure::Failure;

/// What the daemon says of each that has a problem; of one that cannot be asked nothing is known, and others say so.
pub(super) fn checks(client: &Client) -> Vec<Check> {
    let listed = || -> Result<(DiskList, NicList), Failure> {
        Ok((client.ask(Method::Get, "/v1/disks")?, client.ask(Method::Get, "/v1/nics")?))
    };
    let Ok((disks, nics)) = listed() else { return Vec::new() };
    let disks = disks.disks.into_iter().filter_map(|disk| {
        Some(format!("disk {} is {}: {}", disk.id, disk.state.word(), disk.problem?))
    });
    let nics = nics.nics.into_iter().filter_map(|nic| {
        Some(format!("nic {} is {}: {}", nic.id, nic.state.word(), nic.problem?))
    });
    vec![told(&disks.chain(nics).collect::<Vec<_>>())]
}

fn told(problems: &[String]) -> Check {
    if problems.is_empty() {
        let means = "each disk and each NIC can be served, as far as the daemon knows";
        return check("devices", State::Ok, "none has a problem".to_string(), means, "");
    }
    let (found, means) = (problems.join("; "), "their guests wait, or get errors");
    check("devices", State::Warn, found, means, "put that right; `sidecore show` says more of each")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_problem_is_told() {
        assert_eq!(told(&[]).state, State::Ok);
        let two = told(&["disk a is failed: x".to_string(), "nic b is waiting: y".to_string()]);
        assert_eq!(two.state, State::Warn);
        assert_eq!(two.found, "disk a is failed: x; nic b is waiting: y");
    }
}
