//! What is said of errors that guests are given and can do nothing about: no space, or a medium that fails.
//!
//! A line in the log when a disk gives its guest the first, and one when there was none for a minute. Not here: who looks (`looks`),
//! requests that wait instead (`stalls`), and what a guest does wrong itself, which its counters show.

use std::time::{Duration, Instant};

use backend::FaultSnapshot;

/// After so long without an error the next one is told again.
const QUIET: Duration = Duration::from_secs(60);

/// What was seen of one disk's errors.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Failures {
    /// As they were counted at the last look.
    seen: FaultSnapshot,
    /// Those that were told of, and when there was one last.
    told: Option<(u64, Instant)>,
}

/// What is to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// The guest was given these after a time without any.
    Begun(FaultSnapshot),
    /// It was given so many, and none for a minute.
    Over(u64),
}

impl Failures {
    /// Of a disk that has counted so many until now.
    pub(crate) fn from(seen: FaultSnapshot) -> Failures {
        Failures { seen, told: None }
    }

    /// Those since the last look were told of by somebody else.
    pub(crate) fn were_told(&mut self, faults: FaultSnapshot, now: Instant) {
        let _ = self.look(faults, now);
    }

    pub(crate) fn look(&mut self, faults: FaultSnapshot, now: Instant) -> Option<News> {
        let came = since(faults, std::mem::replace(&mut self.seen, faults));
        match (errors(came), &mut self.told) {
            (0, Some((count, last))) if now.saturating_duration_since(*last) >= QUIET => {
                let over = News::Over(*count);
                self.told = None;
                Some(over)
            }
            (0, _) => None,
            (count, Some((sum, last))) => {
                (*sum, *last) = (sum.saturating_add(count), now);
                None
            }
            (count, None) => {
                self.told = Some((count, now));
                Some(News::Begun(came))
            }
        }
    }
}

/// Errors that guests were given.
fn errors(faults: FaultSnapshot) -> u64 {
    faults.enospc + faults.eio + faults.other
}

/// What was counted between the two. A disk that was opened anew may have begun from nothing.
pub(crate) fn since(faults: FaultSnapshot, before: FaultSnapshot) -> FaultSnapshot {
    let of = |count: fn(&FaultSnapshot) -> u64| count(&faults).saturating_sub(count(&before));
    FaultSnapshot {
        eio: of(|faults| faults.eio),
        enospc: of(|faults| faults.enospc),
        other: of(|faults| faults.other),
        other_code: faults.other_code,
        ..FaultSnapshot::default()
    }
}

/// What an operator reads.
pub(crate) fn words(news: News) -> String {
    match news {
        News::Begun(FaultSnapshot { eio, enospc, other, other_code, .. }) => {
            let last = std::io::Error::from_raw_os_error(other_code);
            let kinds = [
                (enospc, "for want of space".to_string()),
                (eio, "since its medium failed".to_string()),
                (other, format!("since the kernel said: {last}")),
            ];
            let kinds = kinds.into_iter().filter(|(count, _)| *count > 0);
            let kinds: Vec<String> = kinds.map(|(count, why)| format!("{count} {why}")).collect();
            format!(
                "its guest was given I/O errors: {}; more of them are counted, and told of again \
                 once there was none for {} s",
                kinds.join(", "),
                QUIET.as_secs()
            )
        }
        News::Over(count) => format!(
            "its guest was given no I/O error for {} s; there were {count} since that was told",
            QUIET.as_secs()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(enospc: u64, eio: u64) -> FaultSnapshot {
        FaultSnapshot { enospc, eio, syncs: 7, short: 3, ..FaultSnapshot::default() }
    }

    #[test]
    fn errors_are_told_once_until_there_was_none_for_a_minute() {
        let start = crate::clock::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut failures = Failures::from(faults(5, 0));
        assert_eq!(failures.look(faults(5, 0), at(0)), None, "an earlier process told of them");
        assert_eq!(
            failures.look(faults(7, 1), at(1)),
            Some(News::Begun(since(faults(2, 1), faults(0, 0))))
        );
        for second in 2..100 {
            assert_eq!(failures.look(faults(7 + second, 1), at(second)), None);
        }
        for second in 100..159 {
            assert_eq!(failures.look(faults(106, 1), at(second)), None);
        }
        assert_eq!(failures.look(faults(106, 1), at(159)), Some(News::Over(102)));
        assert_eq!(failures.look(faults(106, 1), at(160)), None);
        let again = failures.look(faults(106, 2), at(161)).expect("news");
        assert_eq!(
            words(again),
            "its guest was given I/O errors: 1 since its medium failed; more of them are counted, \
             and told of again once there was none for 60 s"
        );
    }

    #[test]
    fn what_others_told_of_and_short_transfers_are_no_news() {
        let now = crate::clock::now();
        let mut failures = Failures::default();
        failures.were_told(faults(36, 0), now);
        assert_eq!(failures.look(faults(36, 0), now), None);
        let mut failures = Failures::from(faults(36, 0));
        // Opened anew, and counted from nothing.
        assert_eq!(failures.look(faults(0, 0), now), None);
        assert!(failures.look(faults(1, 0), now).is_some());
    }
}
