//! What is to become of a process, as far as whoever serves its guests has to know.
//!
//! Control's rooms are told it with what they are to settle. Not here: the course of an upgrade.
//!
//! | | devices are settled | images come and go | loads move queues | a queue that comes back goes on |
//! |---|---|---|---|---|
//! | inheriting | when it serves | yes | yes | yes |
//! | on probation | what was handed over, served | which the one before had, or had given up | yes | yes |
//! | serving | yes | yes | yes | yes |
//! | an heir is expected, or waits | yes | no | no | yes |
//! | frozen | no | no | no | no: whoever has it next goes on |
//! | stopping | yes | yes | no | no: its device goes (`device::Existence`) |

/// What is to become of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It begins with what another process serves until now.
    Inheriting,
    /// It serves, and the process that it took over from takes all back if it ends.
    OnProbation,
    /// Nothing but to serve.
    Serving,
    /// An heir was asked for, and has not said a word.
    HeirExpected,
    /// An heir is there, and is told all as soon as nothing is under way.
    HeirWaits,
    /// Another process is being told what there is, or has it: it stays so.
    Frozen,
    /// It ends, and nobody is to be served any more.
    Stopping,
}

impl Mode {
    /// Another process is being told what there is, or has it.
    pub fn is_frozen(self) -> bool {
        self == Mode::Frozen
    }

    /// It ends, and nobody comes after it.
    pub fn is_stopping(self) -> bool {
        self == Mode::Stopping
    }

    /// Another process has what there is until this one serves.
    pub fn is_inheriting(self) -> bool {
        self == Mode::Inheriting
    }

    /// Another process may go on with what there was, and does not know of what begins here: no ring starts that was not
    /// handed over as one that is served, no image is let go, and none is taken that was not given up.
    pub fn may_be_taken_back(self) -> bool {
        matches!(self, Mode::Inheriting | Mode::OnProbation)
    }

    /// An heir is to find where it is what there is now: no image is let go, none is taken, but one that was given up for
    /// a process that died: what is open still is to be closed and opened again before an heir is told of it.
    pub fn has_heir(self) -> bool {
        matches!(self, Mode::HeirExpected | Mode::HeirWaits | Mode::Frozen)
    }

    /// What cannot be handed over must not begin.
    pub fn heir_waits(self) -> bool {
        matches!(self, Mode::HeirWaits | Mode::Frozen)
    }

    /// Queues may go from one sidecore to another.
    pub fn may_move(self) -> bool {
        !self.has_heir() && !self.is_stopping()
    }
}

#[cfg(test)]
mod tests {
    use super::Mode::{
        self, Frozen, HeirExpected, HeirWaits, Inheriting, OnProbation, Serving, Stopping,
    };

    #[test]
    fn what_each_mode_allows() {
        let all = [Inheriting, OnProbation, Serving, HeirExpected, HeirWaits, Frozen, Stopping];
        let which = |ask: fn(Mode) -> bool| all.map(ask).map(u8::from);
        assert_eq!(which(Mode::is_inheriting), [1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(which(Mode::may_be_taken_back), [1, 1, 0, 0, 0, 0, 0]);
        assert_eq!(which(Mode::has_heir), [0, 0, 0, 1, 1, 1, 0]);
        assert_eq!(which(Mode::heir_waits), [0, 0, 0, 0, 1, 1, 0]);
        assert_eq!(which(Mode::is_frozen), [0, 0, 0, 0, 0, 1, 0]);
        assert_eq!(which(Mode::is_stopping), [0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(which(Mode::may_move), [1, 1, 1, 0, 0, 0, 0]);
    }
}
