//! Stages of a disk as they are shown, and what a trace has recorded.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize, Serializer};

use super::{ApiError, ErrorKind};
use crate::spec::StageKind;

/// Who has a stage be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StagedBy {
    /// The configuration file, with its disk.
    File,
    /// A command, of a disk of the file or of the API.
    Command,
}

/// One stage of a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StageView {
    /// What it does.
    pub kind: StageKind,
    /// Who has it be there.
    pub declared: StagedBy,
    /// `trace`: requests that are kept for each queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entries: Option<u32>,
    /// `fault`: microseconds by which each request is answered later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_us: Option<u32>,
    /// `fault`: microseconds of up to which besides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter_us: Option<u32>,
    /// `fault`: of a million requests so many fail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errors_per_million: Option<u32>,
    /// `fault`: what chooses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u32>,
    /// `fault`: which requests are meant, if not all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ops: Option<String>,
    /// `fault`: which bytes are meant, if not all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<String>,
    /// `fault`: requests that were answered later, since it is so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delayed: Option<u64>,
    /// `fault`: requests that were made to fail, since it is so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<u64>,
    /// `trace`: requests that were recorded since it is there, or since the daemon was started or replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<u64>,
    /// Queues that run and are served otherwise yet: requests of them do not end for long enough to change that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub late: Vec<u16>,
    /// Queues to which nothing is done: their driver was promised that requests end in the order in which it asks them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub in_order: Vec<u16>,
}

impl StageView {
    /// A stage of which nothing is known but what it is.
    pub fn new(kind: StageKind, declared: StagedBy) -> StageView {
        StageView {
            kind,
            declared,
            entries: None,
            delay_us: None,
            jitter_us: None,
            errors_per_million: None,
            seed: None,
            ops: None,
            range: None,
            delayed: None,
            failed: None,
            recorded: None,
            late: Vec::new(),
            in_order: Vec::new(),
        }
    }
}

/// The stages of a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StageList {
    /// Its name.
    pub disk: String,
    /// Its stages, in the order in which requests come by.
    pub stages: Vec<StageView>,
    /// Queues that run and are served otherwise yet, also where a stage was taken away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub late: Vec<u16>,
}

/// What a request was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TracedOp {
    /// Disk to guest.
    Read,
    /// Guest to disk.
    Write,
    /// Stable from here on.
    Flush,
    /// No longer of interest.
    Discard,
    /// Zeroes from here on.
    WriteZeroes,
}

impl TracedOp {
    /// All of them.
    pub const ALL: [TracedOp; 5] = [
        TracedOp::Read,
        TracedOp::Write,
        TracedOp::Flush,
        TracedOp::Discard,
        TracedOp::WriteZeroes,
    ];

    /// As it is written.
    pub fn word(self) -> &'static str {
        match self {
            TracedOp::Read => "read",
            TracedOp::Write => "write",
            TracedOp::Flush => "flush",
            TracedOp::Discard => "discard",
            TracedOp::WriteZeroes => "write-zeroes",
        }
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TracedEnd {
    /// It was done.
    Ok,
    /// It failed.
    Error,
    /// The disk's medium does not do that. What no disk does is not recorded.
    Unsupported,
}

impl TracedEnd {
    /// As it is written.
    pub fn word(self) -> &'static str {
        match self {
            TracedEnd::Ok => "ok",
            TracedEnd::Error => "error",
            TracedEnd::Unsupported => "unsupported",
        }
    }
}

/// A request that has ended. One that is answered before it comes to the disk is none: past the disk's end, a write to a
/// disk that is read-only, a question for the serial number, or of a kind that is unknown. Times are those of a sidecore's passes: what is shorter than one is 0, or one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TracedView {
    /// Its queue.
    pub queue: u16,
    /// When it was taken from its ring, nanoseconds on the machine's clock (`CLOCK_MONOTONIC`).
    pub at_ns: u64,
    /// What it was.
    pub op: TracedOp,
    /// First byte of the disk.
    pub offset: u64,
    /// Bytes of the disk.
    pub bytes: u64,
    /// How it ended.
    pub end: TracedEnd,
    /// It may have waited in its ring for so long before, nanoseconds.
    pub waited_ns: u64,
    /// A limit held its queue for so long before, nanoseconds.
    pub held_ns: u64,
    /// From when it was taken until the disk had done it, nanoseconds.
    pub disk_ns: u64,
    /// From then until its guest was answered, nanoseconds: what other stages made of it.
    pub stages_ns: u64,
}

/// What a trace has recorded from a place on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TraceView {
    /// From where to read on: `?cursor=` of the next request.
    pub cursor: String,
    /// The trace is another one than the cursor is of: the daemon was started or replaced, or the stage was taken away
    /// or changed meanwhile. What was not read of that one is gone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub anew: bool,
    /// Requests that others have taken the place of before they were read.
    pub lost: u64,
    /// There is more: ask at once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
    /// Requests, at most 3584 (less than 1 MiB); those of one queue in the order in which they ended.
    pub entries: Vec<TracedView>,
}

/// Requests of one answer.
pub const TRACED_MAX: usize = 3584;

/// Whoever reads what a trace has recorded, when the answer is written: not control.
#[derive(Clone)]
pub struct TraceReader(Arc<dyn Fn() -> TraceView + Send + Sync>);

impl TraceReader {
    /// One that reads so.
    pub fn new(read: impl Fn() -> TraceView + Send + Sync + 'static) -> TraceReader {
        TraceReader(Arc::new(read))
    }

    /// Reads.
    pub fn read(&self) -> TraceView {
        (self.0)()
    }
}

impl fmt::Debug for TraceReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TraceReader")
    }
}

impl PartialEq for TraceReader {
    fn eq(&self, other: &TraceReader) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Serialize for TraceReader {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.read().serialize(serializer)
    }
}

impl JsonSchema for TraceReader {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        TraceView::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        TraceView::json_schema(generator)
    }
}

/// From where a trace is read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TraceFrom {
    /// From the oldest request that is kept.
    #[default]
    Kept,
    /// What comes from now on.
    Now,
    /// What was not read before.
    Cursor(TraceCursor),
}

/// How far a trace was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceCursor {
    /// Which trace it was.
    pub of: u64,
    /// Of each queue, how many of its requests were.
    pub read: Vec<u64>,
}

/// Queues of a disk.
const QUEUES_MAX: usize = 64;

impl fmt::Display for TraceCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.of)?;
        self.read.iter().try_for_each(|number| write!(f, ".{number}"))
    }
}

/// `now`, or what an answer gave.
impl FromStr for TraceFrom {
    type Err = ApiError;

    fn from_str(text: &str) -> Result<TraceFrom, ApiError> {
        if text == "now" {
            return Ok(TraceFrom::Now);
        }
        let numbers = text.split('.').take(QUEUES_MAX + 2).map(str::parse::<u64>);
        let numbers: Option<Vec<u64>> = numbers.map(Result::ok).collect();
        match numbers.as_deref() {
            Some([of, read @ ..]) if read.len() <= QUEUES_MAX => {
                Ok(TraceFrom::Cursor(TraceCursor { of: *of, read: read.to_vec() }))
            }
            _ => Err(ApiError::new(
                ErrorKind::Malformed,
                "`cursor` is none that an answer gave",
                "give the `cursor` of the answer before, `now`, or leave it out",
            )),
        }
    }
}

impl ApiError {
    /// Stages have no such kind.
    pub fn no_such_stage(kind: &str) -> ApiError {
        let names = StageKind::ALL.map(StageKind::word);
        let all = names.join(", ");
        let hint = match crate::near::nearest(kind, &names) {
            Some(name) => format!("did you mean {name:?}? Kinds: {all}"),
            None => format!("kinds: {all}"),
        };
        ApiError::new(ErrorKind::NotFound, format!("{kind:?} is no kind of stage"), hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reads_back_and_nothing_else_is_one() {
        let cursor = TraceCursor { of: 7, read: vec![0, u64::MAX] };
        assert_eq!(cursor.to_string(), "7.0.18446744073709551615");
        assert_eq!(cursor.to_string().parse(), Ok(TraceFrom::Cursor(cursor)));
        assert_eq!("now".parse(), Ok(TraceFrom::Now));
        assert_eq!("7".parse(), Ok(TraceFrom::Cursor(TraceCursor { of: 7, read: vec![] })));
        let long = vec!["1"; QUEUES_MAX + 2].join(".");
        for text in ["", ".", "7.", "x", "7.-1", "7.18446744073709551616", &long] {
            assert!(text.parse::<TraceFrom>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_whole_answer_is_less_than_a_mebibyte() {
        let longest = TracedView {
            queue: u16::MAX,
            at_ns: u64::MAX,
            op: TracedOp::WriteZeroes,
            offset: u64::MAX,
            bytes: u64::MAX,
            end: TracedEnd::Unsupported,
            waited_ns: u64::MAX,
            held_ns: u64::MAX,
            disk_ns: u64::MAX,
            stages_ns: u64::MAX,
        };
        let bytes = serde_json::to_vec(&longest).unwrap().len() + 1;
        assert!(TRACED_MAX * bytes + 4096 < 1 << 20, "{bytes}");
    }
}
