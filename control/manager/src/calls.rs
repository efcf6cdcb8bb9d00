//! What operators ask for: each call is answered at once, or when what it waits for is over.
//!
//! | module | |
//! |---|---|
//! | `answer` | who answers which call |
//! | `waiting`, `overdue` | calls that wait, and wait no longer |
//! | `disks`, `nics`, `groups` | what is asked of them |
//! | `changes` | a device's other plan, kept and in force |
//! | `resizing`, `removal` | what is done when queues are back |
//! | `stages`, `traced` | what is done to requests of a disk, and what was recorded of them |
//! | `shown` | what is shown |

use config::api::{Answer, ApiError, ErrorKind};
use config::plan::{Origin, Plan};

pub(crate) mod answer;
mod changes;
pub(crate) mod disks;
pub(crate) mod groups;
pub(crate) mod nics;
pub(crate) mod overdue;
pub(crate) mod removal;
pub(crate) mod resizing;
pub(crate) mod shown;
pub(crate) mod stages;
mod traced;
pub(crate) mod waiting;

pub(crate) type Answered = Result<Answer, ApiError>;

/// What to do when a change was taken back.
pub(crate) const UNDONE: &str =
    "nothing was changed; make room in the state directory, and make it writable";
/// That a change which was kept, and could not be done, is done by the next start, since that it is taken back cannot be
/// kept.
pub(crate) const UNKEPT: &str = "the next start would do it all the same unless the state directory has room and may be \
                                 written to, and any change is made, which keeps all of them";

/// What whoever asks for a change is told by a daemon that has been told to end.
pub(crate) const STOPPING: &str = "the daemon is being stopped";
/// Why one is not answered by a process whose heir serves.
pub(crate) const TAKEN_OVER: &str = "another process is taking over from this daemon";

pub(crate) fn not_kept(error: &std::io::Error, hint: &str) -> ApiError {
    ApiError::new(ErrorKind::Internal, format!("the change cannot be kept: {error}"), hint)
}

/// Refuses to change what the file declares; `what` is its kind and name.
pub(crate) fn check_origin(what: &str, origin: &Origin) -> Result<(), ApiError> {
    match origin {
        Origin::File { file, line } => Err(ApiError::new(
            ErrorKind::Conflict,
            format!("{what} is declared in {file}, line {line}"),
            "change it there, then run `sidecore reload`",
        )),
        Origin::Api => Ok(()),
    }
}

/// Refuses to change a disk that the file declares, or that is none.
pub(crate) fn check_disk_made_by_api(id: &str, plan: &Plan) -> Result<(), ApiError> {
    let disk = plan.disk(id).ok_or_else(|| plan.no_such_disk(id))?;
    check_origin(&format!("disk {id:?}"), &disk.origin)
}
