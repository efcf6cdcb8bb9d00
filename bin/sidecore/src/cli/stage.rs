//! The commands of stages of disks, and of what a trace has recorded.
//!
//! Not here: what they do (`crate::stage`, `crate::trace`).

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use config::api::TracedOp;
use config::spec::{StageChange, StageKind};

use super::shared;

#[derive(Subcommand, Debug)]
pub(crate) enum StageCommand {
    /// List the stages of a disk, and what each did.
    #[command(
        alias = "list",
        after_help = "\
Examples:
  sidecore disk stage ls vm1-root
  sidecore disk stage ls vm1-root --json"
    )]
    Ls {
        /// Name of the disk.
        id: String,
    },
    /// Add a stage to a disk while it runs.
    #[command(after_help = "\
Its guest goes on, and the command ends when all queues have the stage. A queue whose requests do
not end within a millisecond gets it later. Any disk can have one, also one that the configuration
file declares; it stays over a restart, a kill, an upgrade and a reload, until it is removed, or
the file has one of its kind.

Examples:
  sidecore disk stage add vm1-root trace
  sidecore disk stage add vm1-root trace --entries 65536
  sidecore disk stage add vm1-root fault --errors-per-million 100 --ops read+write")]
    Add {
        /// Name of the disk.
        id: String,
        /// What the stage does.
        #[arg(value_enum)]
        kind: StageKind,
        #[command(flatten)]
        change: StageChange,
    },
    /// Change a stage of a disk while it runs.
    #[command(
        override_usage = "sidecore disk stage set [OPTIONS] <ID> <KIND>",
        after_help = "\
Of a trace that gets another size nothing is kept of what it had recorded.

Examples:
  sidecore disk stage set vm1-root trace --entries 65536"
    )]
    Set {
        /// Name of the disk.
        id: String,
        /// Which stage.
        #[arg(value_enum)]
        kind: StageKind,
        #[command(flatten)]
        change: StageChange,
    },
    /// Take a stage away from a disk while it runs.
    #[command(
        alias = "remove",
        after_help = "\
Examples:
  sidecore disk stage rm vm1-root trace"
    )]
    Rm {
        /// Name of the disk.
        id: String,
        /// Which stage.
        #[arg(value_enum)]
        kind: StageKind,
    },
}

/// What is shown of a trace.
#[derive(Args, Debug)]
#[command(after_help = "\
The disk needs a stage `trace`: `sidecore disk stage add ID trace` adds one while it runs.

TIME is when a request was taken from its ring, in seconds since the first that is shown. It may
have WAITED in the ring for so long before, since that was last found empty or served, and no
longer: much of that may be from before its guest asked, so --slower-than leaves it out. A limit
HELD its queue for so long; DISK is from when it was taken until the disk had done it, STAGES from
then until its guest was answered. Times are those of a sidecore's passes: what is shorter than
one is 0, or one. The last line says how many were lost: those that were not read before others
took their place. With --json it is an object without `op`.

It goes on over a restart and an upgrade of the daemon, which is awaited for some 10 s. A note
says that it is another trace from there; with --json that is also a line {\"anew\":true}. Another
says which queues are not recorded. What is answered before it comes to the disk is in no trace: a
request past its end, a write to one that is read-only, one of an unknown kind.

With -w the requests are written into a file that `fio --read_iolog` replays (its version 3), by
the times at which they were taken. The disk is the file ID there: name another by
`--replay_redirect`. A request that writes zeroes is a trim there, as fio has none of its own.

Examples:
  sidecore disk trace vm1-root
  sidecore disk trace vm1-root --op write,flush --slower-than 10ms
  sidecore disk trace vm1-root --past --for 1s --json | jq 'select(.op).disk_ns'
  sidecore disk trace vm1-root -w vm1.iolog --for 60s")]
pub(crate) struct TraceArgs {
    /// Name of the disk.
    pub(crate) id: String,
    /// Only requests of this queue.
    #[arg(long, value_name = "N")]
    pub(crate) queue: Option<u16>,
    /// Only these: read, write, flush, discard, write-zeroes; several joined by `,` or `+`.
    #[arg(long, value_name = "OPS", value_parser = ops)]
    pub(crate) op: Vec<TracedOps>,
    /// Only those for which HELD, DISK and STAGES together are longer, such as 250us or 1ms.
    #[arg(long, value_name = "TIME", value_parser = nanoseconds)]
    pub(crate) slower_than: Option<u64>,
    /// Of those that are left, each so manieth.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) one_in: u64,
    /// Begin with what the trace has recorded before.
    #[arg(long)]
    pub(crate) past: bool,
    /// End after that time, such as 500ms, 10s or 2m; a number alone is of seconds [default: at Ctrl-C].
    #[arg(long = "for", value_name = "TIME", value_parser = shared::timeout)]
    pub(crate) time: Option<Duration>,
    /// Write them into this file, for fio.
    #[arg(short = 'w', long = "write", value_name = "FILE", value_parser = file)]
    pub(crate) file: Option<PathBuf>,
    /// Write also over a file that is there, if it is empty or was written so.
    #[arg(long, requires = "file")]
    pub(crate) force: bool,
}

/// Some kinds of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TracedOps(pub(crate) Vec<TracedOp>);

fn ops(text: &str) -> Result<TracedOps, String> {
    let op = |text: &str| {
        let found = TracedOp::ALL.into_iter().find(|op| op.word() == text.trim());
        found.ok_or_else(|| {
            "some of read, write, flush, discard, write-zeroes are wanted, joined by `,` or `+`"
                .to_string()
        })
    };
    text.split([',', '+']).map(op).collect::<Result<_, _>>().map(TracedOps)
}

/// The name of a file, where `-` would be taken for the output.
fn file(text: &str) -> Result<PathBuf, String> {
    match text {
        "-" => Err("the name of a file is wanted; ./- is a file of that name".to_string()),
        text => Ok(text.into()),
    }
}

/// A time as a whole number with its unit: `ns`, `us`, `ms` or `s`.
fn nanoseconds(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let unit_ns = match text.strip_prefix(digits) {
        Some("ns") => Some(1),
        Some("us") => Some(1_000),
        Some("ms") => Some(1_000_000),
        Some("s") => Some(1_000_000_000),
        _ => None,
    };
    let number = digits.parse::<u64>().ok().zip(unit_ns);
    let time = number.and_then(|(number, unit)| number.checked_mul(unit));
    time.ok_or_else(|| "a time with its unit is wanted, such as 250us, 1ms or 2s".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_operations_are_read_as_they_are_written() {
        for (text, ns) in
            [("7ns", 7), ("250us", 250_000), ("1ms", 1_000_000), ("2s", 2_000_000_000)]
        {
            assert_eq!(nanoseconds(text), Ok(ns), "{text}");
        }
        for text in ["", "1", "ms", "-1ms", "1.5ms", "1h", "99999999999999999999s", "18446744074s"]
        {
            assert!(nanoseconds(text).is_err(), "{text}");
        }
        for known in TracedOp::ALL {
            assert_eq!(ops(known.word()), Ok(TracedOps(vec![known])));
        }
        let both = Ok(TracedOps(vec![TracedOp::Write, TracedOp::WriteZeroes]));
        assert_eq!((ops("write,write-zeroes"), ops("write+write-zeroes")), (both.clone(), both));
        assert!(ops("Read").is_err() && ops("read,").is_err() && ops("").is_err());
        assert!(file("-").is_err() && file("./-").is_ok());
    }
}
