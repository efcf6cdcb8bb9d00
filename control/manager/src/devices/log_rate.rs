//! How much one disk's front-ends may write into the log.

use std::time::{Duration, Instant};

/// Lines of one disk in one [`WINDOW`]; the others are counted.
const LINES_MAX: u32 = 10;
const WINDOW: Duration = Duration::from_secs(1);

/// Counts the lines of one disk.
#[derive(Debug, Default)]
pub(crate) struct LogRate {
    ends_at: Option<Instant>,
    lines: u32,
    unsaid: u64,
}

impl LogRate {
    /// Whether one more line may be written; if not, it is counted.
    pub(crate) fn allows(&mut self, now: Instant) -> bool {
        if self.ends_at.is_none_or(|at| at <= now) {
            (self.ends_at, self.lines) = (Some(now + WINDOW), 0);
        }
        self.lines += 1;
        let allowed = self.lines <= LINES_MAX;
        if !allowed {
            (self.lines, self.unsaid) = (LINES_MAX, self.unsaid + 1);
        }
        allowed
    }

    /// When the count of unwritten lines is due; nothing when all were written.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        self.ends_at.filter(|_| self.unsaid > 0)
    }

    /// The count, when it is due: lines that were not written.
    pub(crate) fn take_unsaid(&mut self, now: Instant) -> Option<u64> {
        self.due_at().filter(|at| *at <= now)?;
        Some(std::mem::take(&mut self.unsaid))
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "any moment will do")]
mod tests {
    use super::*;

    #[test]
    fn ten_lines_a_second_then_a_count() {
        let (mut rate, start) = (LogRate::default(), Instant::now());
        let written = (0..1000).filter(|_| rate.allows(start)).count();
        assert_eq!(written, 10);
        assert_eq!(rate.take_unsaid(start), None);
        assert_eq!(rate.due_at(), Some(start + WINDOW));
        assert_eq!(rate.take_unsaid(start + WINDOW), Some(990));
        assert_eq!(rate.due_at(), None);
        assert!(rate.allows(start + WINDOW));
    }
}
