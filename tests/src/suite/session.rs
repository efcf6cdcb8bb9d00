//! The processes of a case. Each case has a session of its own, so they are found however they were started, if only
//! they made no session themselves.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use testing::daemon::pause;

/// How often what is left of a session is looked for once more: what was killed takes a moment to go.
const LOOKS: u32 = 100;
/// Between two looks.
const MOMENT: Duration = Duration::from_millis(20);

/// The sessions that run now, to end them all.
#[derive(Debug, Default)]
pub struct Sessions {
    leaders: Mutex<BTreeSet<i32>>,
}

impl Sessions {
    /// Notes a session.
    pub fn add(&self, leader: Pid) {
        self.leaders().insert(leader.as_raw_nonzero().get());
    }

    /// Forgets one that has ended.
    pub fn remove(&self, leader: Pid) {
        self.leaders().remove(&leader.as_raw_nonzero().get());
    }

    /// Sends a signal to every process of every session.
    pub fn signal(&self, signal: Signal) {
        let leaders: Vec<i32> = self.leaders().iter().copied().collect();
        for leader in leaders.into_iter().filter_map(Pid::from_raw) {
            signal_all(leader, signal);
        }
    }

    fn leaders(&self) -> std::sync::MutexGuard<'_, BTreeSet<i32>> {
        self.leaders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Kills what is left of a session, whose leader has not been waited for yet: until then its number is nobody else's.
pub fn kill_rest(leader: Pid) {
    for _ in 0..LOOKS {
        if signal_all(leader, Signal::KILL) == 0 {
            return;
        }
        pause(MOMENT);
    }
}

/// Sends a signal to each process of a session that has not ended; to how many.
pub fn signal_all(leader: Pid, signal: Signal) -> usize {
    let members = members(leader);
    for member in &members {
        // Its number may be another's by now; it is not, while this is open.
        let Ok(process) = pidfd_open(*member, PidfdFlags::empty()) else { continue };
        if is_member(leader, *member) {
            let _ = pidfd_send_signal(&process, signal);
        }
    }
    members.len()
}

fn is_member(leader: Pid, of: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", of.as_raw_nonzero()));
    stat.is_ok_and(|stat| session_of(&stat) == Some(leader.as_raw_nonzero().get()))
}

fn members(leader: Pid) -> Vec<Pid> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let members = entries.flatten().filter_map(|entry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        Pid::from_raw(number).filter(|number| is_member(leader, *number))
    });
    members.collect()
}

/// The seconds that processors have worked for a process that has ended, and for all that was waited for below it.
pub fn worked_seconds(process: Pid) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero()));
    let ticks = stat.ok().and_then(|stat| ticks_of(&stat)).unwrap_or(0);
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// User and system time of a process and its children, from its `/proc/PID/stat`.
fn ticks_of(stat: &str) -> Option<u64> {
    // Behind the name are eleven fields before them.
    let fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11).take(4);
    fields.map(|field| field.parse::<u64>().ok()).sum()
}

/// The session of a process that has not ended, from its `/proc/PID/stat`.
fn session_of(stat: &str) -> Option<i32> {
    // The name, in parentheses, may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    // Of the parent and the process group.
    let session = fields.nth(2)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(session)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_read_behind_any_name() {
        assert_eq!(session_of("42 (a) b) (c) S 1 40 39 0 -1"), Some(39));
        assert_eq!(session_of("42 (gone) Z 1 40 39 0 -1"), None);
        assert_eq!(session_of("42 (short) S 1"), None);
    }

    #[test]
    fn work_is_counted_of_a_process_and_its_children() {
        let stat = "42 (a) b) Z 1 40 39 0 -1 4 100 200 3 4 50 6 700 8 20 0 1";
        assert_eq!(ticks_of(stat), Some(764));
        assert_eq!(ticks_of("42 (short) S 1 2 3 4 5 6 7 8 9 10 x"), None);
    }

    #[test]
    fn what_a_leader_leaves_behind_is_found_and_killed() {
        let mut leader = std::process::Command::new("setsid")
            .args(["sh", "-c", "sleep 1000 & echo started; exec sleep 1001"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = [0; 8];
        std::io::Read::read_exact(&mut leader.stdout.take().unwrap(), &mut said).unwrap();
        let pid = Pid::from_child(&leader);
        assert_eq!(members(pid).len(), 2);
        kill_rest(pid);
        assert_eq!(members(pid).len(), 0);
        leader.wait().unwrap();
    }
}
