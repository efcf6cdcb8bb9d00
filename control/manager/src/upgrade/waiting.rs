//! Requests that wait for space or for a medium that fails, and that an upgrade would end with an error.
//!
//! Another process finds what waits in the in-flight record that a front-end keeps; where one keeps none, whoever stops
//! the queue ends them. Not here: requests that wait in their ring, which every process finds.

use config::api::{ApiError, ErrorKind};
use tracing::warn;

use crate::devices::Devices;
use crate::insist::INSIST;

/// That an upgrade ends no request that waits, unless an operator insists: then the log says which.
///
/// # Errors
/// How many there are, of which disks.
pub(crate) fn check(devices: &Devices, force: bool) -> Result<(), ApiError> {
    let all = devices.values().map(|it| (it.facts().id.clone(), it.waiting_unrecorded()));
    let waiting: Vec<(String, u64)> = all.filter(|(_, count)| *count > 0).collect();
    if !force && !waiting.is_empty() {
        return Err(refused_for(&waiting));
    }
    for (id, count) in &waiting {
        let requests = counted(*count);
        warn!(disk = id, "{requests} will end with an error: no in-flight record has them");
    }
    Ok(())
}

/// An upgrade that would end these.
fn refused_for(waiting: &[(String, u64)]) -> ApiError {
    let one = |(id, count): &(String, u64)| format!("{} of disk {id:?}", counted(*count));
    let all: Vec<String> = waiting.iter().map(one).collect();
    let error = format!(
        "the daemon was not replaced: {} would end with an error: they are in no in-flight record, in which another \
         process finds what waits",
        all.join(", ")
    );
    let hint = format!(
        "make room, or mend the medium (`sidecore ls` says of what), and upgrade when none waits; {INSIST} does it all the \
         same; it goes on as it is"
    );
    ApiError::new(ErrorKind::Conflict, error, hint)
}

fn counted(requests: u64) -> String {
    match requests {
        1 => "1 request that waits".to_string(),
        count => format!("{count} requests that wait"),
    }
}
