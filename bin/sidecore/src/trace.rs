//! `disk trace`: requests of a disk as they end, as lines or as a file for fio.
//!
//! Here: what is asked, which of it is shown, and when that is over. By time it is ordered in [`merge`], as lines it is
//! written in [`lines`], for fio in [`iolog`].

mod iolog;
mod lines;
mod merge;

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use config::api::{ErrorKind, StageList, TraceCursor, TraceFrom, TraceView, TracedView};
use config::routes::Method;
use config::spec::StageKind;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::cli::TraceArgs;
use crate::client::{Client, path_of};
use crate::failure::Failure;
use crate::machine;
use crate::output::Output;
use iolog::Iolog;
use lines::Lines;
use merge::Merge;

/// Between two questions, while there is no more.
const INTERVAL: Duration = Duration::from_millis(100);
/// A request is shown so long after it was taken; one that took longer is out of its order.
const SHOWN_AFTER_NS: u64 = 300_000_000;
/// The same in a file, which nobody waits for.
const WRITTEN_AFTER_NS: u64 = 2_000_000_000;
/// How often in succession a daemon may not answer, as while another process takes over from it.
const TRIES: u32 = 100;

/// Where requests go.
enum Sink {
    Lines(Lines),
    File(Iolog),
}

/// What was seen.
#[derive(Default)]
struct Seen {
    /// How many there were.
    all: u64,
    /// Of these, those that no filter left out.
    shown: u64,
    /// Of those before, how many passed but for `--one-in`.
    passed: u64,
    lost: u64,
}

/// `disk trace`
pub(crate) fn run(args: &TraceArgs, client: &Client, output: &Output) -> Result<(), Failure> {
    let path = path_of("disks", &args.id, "/trace");
    let start = if args.past { String::new() } else { "?cursor=now".to_string() };
    let begun = now();
    // Whether there is a trace is known before there is a file.
    let first: TraceView = client.ask(Method::Get, &(path.clone() + &start))?;
    check_queue(args, &first)?;
    let (mut sink, after_ns) = match &args.file {
        Some(file) => (Sink::File(Iolog::create(file, &args.id, args.force)?), WRITTEN_AFTER_NS),
        None => (Sink::Lines(Lines::begin(output)?), SHOWN_AFTER_NS),
    };
    let signals = machine::signals().map_err(|error| {
        Failure::usage(format!("signals cannot be awaited: {error}"), "report it")
    })?;
    say_unrecorded(args, client, output);
    let until = args.time.map(|time| now() + time);
    let (mut merge, mut seen) = (Merge::default(), Seen::default());
    let (mut view, mut asked, mut ended) = (first, begun, Ok(()));
    loop {
        let is_over = until.is_some_and(|until| now() >= until);
        if view.anew {
            // What was read of the one before comes before that is said.
            seen.shown += sink.take(merge.rest(), output)?;
            sink.anew(output)?;
            output.note(
                "from here on it is another trace: the daemon was started or replaced, or the stage was changed",
            );
        }
        seen.lost += view.lost;
        let came = now() - begun;
        for entry in std::mem::take(&mut view.entries) {
            seen.all += 1;
            if is_wanted(args, &entry, &mut seen.passed) {
                merge.add(entry, came);
            }
        }
        // Where there is more, others that were taken before may be in that.
        let asked_at = if view.more { Duration::ZERO } else { asked - begun };
        seen.shown += sink.take(merge.before(after_ns, asked_at), output)?;
        // Where there is more nobody waits, and whoever ends it is heard all the same.
        let left = if view.more { Duration::ZERO } else { time_left(until) };
        if is_over || is_told_to_end(&signals, left) {
            break;
        }
        asked = now();
        view = match ask(client, &format!("{path}?cursor={}", view.cursor), (&signals, output)) {
            Ok(view) => view,
            Err(why) => {
                ended = Err(why);
                break;
            }
        };
    }
    // What came before the stage, the disk or the daemon went is not lost by that.
    seen.shown += sink.take(merge.rest(), output)?;
    sink.end(&seen, args, output)?;
    ended
}

/// Refuses a queue that the disk has not: the cursor has a number for each.
fn check_queue(args: &TraceArgs, view: &TraceView) -> Result<(), Failure> {
    let Ok(TraceFrom::Cursor(TraceCursor { read, .. })) = view.cursor.parse() else {
        return Ok(());
    };
    match (args.queue, read.len()) {
        (Some(queue), queues) if usize::from(queue) >= queues => {
            let error = format!("disk {:?} has no queue {queue}", args.id);
            let hint = match queues {
                1 => "it has queue 0 alone".to_string(),
                queues => format!("it has queues 0 to {}", queues.saturating_sub(1)),
            };
            Err(Failure::usage(error, hint))
        }
        _ => Ok(()),
    }
}

/// Asks until it is answered: a daemon that another process takes over from is there again soon.
fn ask(
    client: &Client,
    path: &str,
    (signals, output): (&UnixStream, &Output),
) -> Result<TraceView, Failure> {
    for attempt in 0..TRIES {
        match client.ask(Method::Get, path) {
            Err(Failure::Unreachable { .. }) => {}
            Err(Failure::Refused(error)) if error.kind == ErrorKind::Busy => {}
            answer => return answer,
        }
        if attempt == 1 {
            output.note(
                "the daemon does not answer; it is awaited for some seconds, and Ctrl-C ends that",
            );
        }
        if is_told_to_end(signals, INTERVAL) {
            break;
        }
    }
    client.ask(Method::Get, path)
}

/// Says of which queues nothing is known. What the disk does not say is not told.
fn say_unrecorded(args: &TraceArgs, client: &Client, output: &Output) {
    let path = path_of("disks", &args.id, "/stages");
    let Ok(StageList { stages, late, .. }) = client.ask(Method::Get, &path) else { return };
    let trace = stages.into_iter().find(|stage| stage.kind == StageKind::Trace);
    let in_order = trace.map(|stage| stage.in_order).unwrap_or_default();
    if !late.is_empty() || !in_order.is_empty() {
        output.note(&unrecorded(&late, &in_order));
    }
}

/// Queues whose requests are not recorded, and why.
fn unrecorded(late: &[u16], in_order: &[u16]) -> String {
    let part = |queues: &[u16], why: &str| {
        let numbers: Vec<String> = queues.iter().map(u16::to_string).collect();
        let plural = if queues.len() == 1 { "" } else { "s" };
        (!queues.is_empty()).then(|| format!("queue{plural} {} ({why})", numbers.join(", ")))
    };
    let parts = [
        part(in_order, "the driver asks that requests end in their order"),
        part(
            late,
            "requests of it do not end, and it is served as before the last change of stages",
        ),
    ];
    let parts = parts.into_iter().flatten().collect::<Vec<_>>().join(" and ");
    format!("not recorded: {parts}")
}

/// Whether a request is one of those that are asked for. `passed` counts those of which each so manieth is.
fn is_wanted(args: &TraceArgs, entry: &TracedView, passed: &mut u64) -> bool {
    // For how long it waited in its ring is known as a bound alone.
    let times = [entry.held_ns, entry.disk_ns, entry.stages_ns];
    let time_ns = times.into_iter().fold(0, u64::saturating_add);
    let passes = args.queue.is_none_or(|queue| queue == entry.queue)
        && (args.op.is_empty() || args.op.iter().any(|ops| ops.0.contains(&entry.op)))
        && args.slower_than.is_none_or(|least| time_ns > least);
    if !passes {
        return false;
    }
    let is_it = passed.is_multiple_of(args.one_in);
    *passed += 1;
    is_it
}

impl Sink {
    /// Writes them; how many there were.
    fn take(&mut self, entries: Vec<TracedView>, output: &Output) -> Result<u64, Failure> {
        match self {
            Sink::Lines(lines) => lines.write(&entries, output)?,
            Sink::File(file) => file.write(&entries)?,
        }
        Ok(entries.len() as u64)
    }

    /// What follows is of another trace.
    fn anew(&self, output: &Output) -> Result<(), Failure> {
        match self {
            Sink::Lines(lines) => lines.anew(output),
            Sink::File(_) => Ok(()),
        }
    }

    fn end(self, seen: &Seen, args: &TraceArgs, output: &Output) -> Result<(), Failure> {
        let left_out = seen.all - seen.shown;
        match self {
            Sink::Lines(lines) => lines.end((seen.shown, left_out, seen.lost), output),
            Sink::File(file) => {
                file.end()?;
                let file = args.file.as_deref().unwrap_or_else(|| "".as_ref()).display();
                let json = serde_json::json!({
                    "file": file.to_string(), "written": seen.shown, "left_out": left_out, "lost": seen.lost,
                });
                output.show(&json, |_| {
                    let counts = lines::counts(left_out, seen.lost);
                    format!("wrote {} to {file}{counts}\n", lines::requests(seen.shown))
                })
            }
        }
    }
}

/// How long it may be waited until the next question.
fn time_left(until: Option<Instant>) -> Duration {
    until.map_or(INTERVAL, |until| until.saturating_duration_since(now()).min(INTERVAL))
}

/// Waits so long, and ends before if it is told to. Whether it is.
fn is_told_to_end(signals: &UnixStream, time: Duration) -> bool {
    let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
    let mut polled = [PollFd::new(signals, PollFlags::IN)];
    // What interrupts it is that signal, or nothing that matters: the next question comes a moment sooner.
    matches!(poll(&mut polled, Some(&time)), Ok(1..))
}

#[expect(clippy::disallowed_methods, reason = "a command ends by the time that passed")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use config::api::{TracedEnd, TracedOp};

    use super::*;
    use crate::cli::{Cli, Command, DiskCommand};

    pub(super) fn entry(at_ns: u64, op: TracedOp, offset: u64, bytes: u64) -> TracedView {
        TracedView {
            queue: 0,
            at_ns,
            op,
            offset,
            bytes,
            end: TracedEnd::Ok,
            waited_ns: 0,
            held_ns: 0,
            disk_ns: 1_000,
            stages_ns: 0,
        }
    }

    fn args(line: &str) -> TraceArgs {
        let words = ["sidecore", "disk", "trace", "a"].into_iter().chain(line.split_whitespace());
        match Cli::parse_from(words).command {
            Command::Disk(DiskCommand::Trace(args)) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn filters_leave_out_what_is_not_asked_for() {
        let all = [
            entry(1, TracedOp::Read, 0, 512),
            TracedView { queue: 1, ..entry(2, TracedOp::Write, 0, 512) },
            TracedView { disk_ns: 5_000_000, ..entry(3, TracedOp::Write, 0, 512) },
            TracedView { held_ns: 999_999, ..entry(4, TracedOp::WriteZeroes, 0, 512) },
            // It came after a pause, which is none of its own.
            TracedView { waited_ns: 5_000_000, ..entry(5, TracedOp::Flush, 0, 0) },
        ];
        for (line, wanted) in [
            ("", &[1, 2, 3, 4, 5][..]),
            ("--queue 1", &[2]),
            ("--op write", &[2, 3]),
            ("--op write,write-zeroes --op flush", &[2, 3, 4, 5]),
            ("--op write+flush", &[2, 3, 5]),
            ("--slower-than 1ms", &[3, 4]),
            ("--one-in 2", &[1, 3, 5]),
            ("--one-in 2 --op write", &[2]),
            ("--op read --slower-than 1s", &[]),
        ] {
            let (args, mut passed) = (args(line), 0);
            let it: Vec<u64> = all
                .iter()
                .filter(|entry| is_wanted(&args, entry, &mut passed))
                .map(|entry| entry.at_ns)
                .collect();
            assert_eq!(it, wanted, "{line}");
        }
    }

    #[test]
    fn a_queue_that_is_none_is_refused_and_those_that_are_not_recorded_are_told_of() {
        let view = |cursor: &str| TraceView { cursor: cursor.to_string(), ..TraceView::default() };
        let refused = |line: &str, cursor: &str| {
            check_queue(&args(line), &view(cursor)).err().map(|why| why.in_a_sentence())
        };
        assert_eq!(refused("--queue 0", "9.7"), None);
        assert_eq!(refused("", "9.7"), None);
        let said = "disk \"a\" has no queue 1: it has queue 0 alone";
        assert_eq!(refused("--queue 1", "9.7").as_deref(), Some(said));
        let said = "disk \"a\" has no queue 3: it has queues 0 to 1";
        assert_eq!(refused("--queue 3", "9.7.0").as_deref(), Some(said));
        let in_order = "the driver asks that requests end in their order";
        assert_eq!(unrecorded(&[], &[0, 2]), format!("not recorded: queues 0, 2 ({in_order})"));
        let both = unrecorded(&[1], &[0]);
        assert!(both.contains(&format!("queue 0 ({in_order}) and queue 1 (requests")), "{both}");
    }
}
