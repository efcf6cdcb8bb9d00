//! Requests that wait for space or for a medium that fails, and end with an error when their queue stops, as for an
//! upgrade or a resize.
//!
//! What waits is found again in the in-flight record that a front-end keeps; where one keeps none, whoever stops the
//! queue ends it. Not here: requests that wait in their ring, which are found there.

use std::fmt;

use config::api::{ApiError, ErrorKind};
use tracing::warn;

use crate::devices::device::Device;
use crate::insist::INSIST;

/// How many there are, of which disks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unrecorded(Vec<(String, u64)>);

impl Unrecorded {
    /// Those of these devices, if there are some.
    pub(crate) fn of<'a>(devices: impl IntoIterator<Item = &'a Device>) -> Option<Unrecorded> {
        let all = devices.into_iter().map(|it| (it.facts().id.clone(), it.waiting_unrecorded()));
        let waiting: Vec<(String, u64)> = all.filter(|(_, count)| *count > 0).collect();
        (!waiting.is_empty()).then_some(Unrecorded(waiting))
    }

    /// An operator insists: the log says which end.
    pub(crate) fn say_they_end(&self) {
        for (id, count) in &self.0 {
            let requests = counted(*count);
            warn!(disk = id, "{requests} will end with an error: no in-flight record has them");
        }
    }

    /// What an operator is told who has not insisted: what is not done, the word that does it, and what is as it was.
    pub(crate) fn refusal(&self, not_done: &str, does: &str, as_it_was: &str) -> ApiError {
        let hint = format!(
            "make room, or mend the medium (`sidecore ls` says of what), and {does} when none waits; {INSIST} does it all \
             the same; {as_it_was}"
        );
        ApiError::new(ErrorKind::Conflict, format!("{not_done}: {self}"), hint)
    }
}

impl fmt::Display for Unrecorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = |(id, count): &(String, u64)| format!("{} of disk {id:?}", counted(*count));
        let all: Vec<String> = self.0.iter().map(one).collect();
        write!(
            f,
            "{} would end with an error: they are in no in-flight record, in which what waits is found again",
            all.join(", ")
        )
    }
}

impl std::error::Error for Unrecorded {}

fn counted(requests: u64) -> String {
    match requests {
        1 => "1 request that waits".to_string(),
        count => format!("{count} requests that wait"),
    }
}

#[cfg(test)]
mod tests;
