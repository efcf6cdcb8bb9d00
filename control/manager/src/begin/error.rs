//! Errors of a start, each with what to do about it.
//!
//! Not here: what a start finds wrong with one device, which is shown instead (`opening`). Made by `begin`, printed by
//! the program.

use std::io;
use std::path::PathBuf;

use crate::network::NetworkError;
use crate::remote::error::LinkError;
use crate::state::StateError;

/// What to do about another daemon that has what is to be this one's.
pub const STOP_THAT_ONE: &str =
    "stop that one, or give this one its own `api`, `run_dir` and `state_dir` in [daemon]";

/// Failure to start. Nothing is left behind.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Failure of what the control loop is made of.
    #[error("the control loop: {0}")]
    Loop(#[source] io::Error),
    /// Rights that the control loop cannot drop.
    #[error("the control loop: {0}")]
    Confine(#[source] confine::Error),
    /// Failure to duplicate the API's sockets.
    #[error("the API's sockets: {0}")]
    ApiSockets(#[source] io::Error),
    /// Failure to make one of the API's sockets.
    #[error("the API socket {}: {source}", path.display())]
    ApiSocket {
        /// Its path.
        path: PathBuf,
        /// Reason.
        source: io::Error,
    },
    /// Failure to start the API's thread.
    #[error("the API's thread: {0}")]
    ApiThread(#[source] io::Error),
    /// Failure to start a sidecore.
    #[error("a sidecore: {0}")]
    Sidecore(#[source] io::Error),
    /// Path that another daemon serves at and the file has changed.
    #[error("another `{field}` takes a restart of the daemon: the file has {file}, not {told}")]
    Moved {
        /// Field of `[daemon]`.
        field: &'static str,
        /// Path that the file has.
        file: String,
        /// Path that the other daemon told.
        told: String,
    },
    /// Folder of another daemon, or kept devices that do not go with the file.
    #[error("{0}")]
    State(#[from] StateError),
    /// Link that cannot be taken in.
    #[error("{0}")]
    Link(#[from] LinkError),
    /// Switch that cannot be made.
    #[error("switch {id:?}: {source}")]
    Switch {
        /// Its name.
        id: String,
        /// Reason.
        source: NetworkError,
    },
    /// Device that another daemon serves and that is not open here.
    #[error("{name}: {problem}")]
    NotTakenOver {
        /// Its kind and name.
        name: String,
        /// Reason that `show` would give.
        problem: String,
    },
}

impl StartError {
    /// What to do, where the error does not say it.
    pub fn hint(&self) -> &'static str {
        match self {
            StartError::Loop(_)
            | StartError::ApiSockets(_)
            | StartError::ApiThread(_)
            | StartError::Sidecore(_) => {
                "see whether the unit lets it have enough: LimitNOFILE=, TasksMax=, MemoryMax="
            }
            StartError::Confine(_) => "see what `sidecore doctor` says of this kernel",
            StartError::ApiSocket { .. } => {
                "stop who has it, or move away what is there; or give this daemon its own `api`, `run_dir` and \
                 `state_dir` in [daemon]"
            }
            StartError::State(StateError::Held { .. }) => STOP_THAT_ONE,
            StartError::State(StateError::Device { .. }) => {
                "correct the file, so that both may be; or start it with the file as it was, remove what was made by \
                 command (`sidecore disk rm`, `nic rm`, ..), and reload then; nothing is left behind"
            }
            StartError::Moved { .. } => "put the former path back, or stop the daemon and start it",
            StartError::State(_)
            | StartError::Link(_)
            | StartError::Switch { .. }
            | StartError::NotTakenOver { .. } => {
                "put that right, and start it again; nothing is left behind"
            }
        }
    }
}
