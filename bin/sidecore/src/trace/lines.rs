//! Requests as lines whose columns align, or as lines of JSON.

use config::api::TracedView;

use crate::failure::Failure;
use crate::output::Output;
use crate::table::duration;

/// Lines between two headers.
const PAGE: u64 = 1_000;

pub(super) struct Lines {
    /// When the first one was taken, nanoseconds.
    start_ns: Option<u64>,
    count: u64,
}

impl Lines {
    pub(super) fn begin(output: &Output) -> Result<Lines, Failure> {
        if !output.json {
            output.text(&header())?;
        }
        Ok(Lines { start_ns: None, count: 0 })
    }

    pub(super) fn write(&mut self, entries: &[TracedView], output: &Output) -> Result<(), Failure> {
        let mut text = String::new();
        for entry in entries {
            if output.json {
                text += &json(entry)?;
                continue;
            }
            let start_ns = *self.start_ns.get_or_insert(entry.at_ns);
            self.count += 1;
            if self.count.is_multiple_of(PAGE) {
                text += &header();
            }
            text += &line(entry, start_ns);
        }
        if text.is_empty() {
            return Ok(());
        }
        output.text(&text)
    }

    /// What follows is of another trace: a mark amid lines of JSON, where a note beside them has no place.
    pub(super) fn anew(&self, output: &Output) -> Result<(), Failure> {
        match output.json {
            true => output.text("{\"anew\":true}\n"),
            false => Ok(()),
        }
    }

    pub(super) fn end(
        self,
        (shown, left_out, lost): (u64, u64, u64),
        output: &Output,
    ) -> Result<(), Failure> {
        if output.json {
            let end = serde_json::json!({ "shown": shown, "left_out": left_out, "lost": lost });
            return output.text(&format!("{end}\n"));
        }
        output.text(&format!("{}{}\n", requests(shown), counts(left_out, lost)))
    }
}

/// So many, in words.
pub(super) fn requests(count: u64) -> String {
    format!("{count} request{}", if count == 1 { "" } else { "s" })
}

/// What else there was.
pub(super) fn counts(left_out: u64, lost: u64) -> String {
    let left_out = match left_out {
        0 => String::new(),
        count => format!(", {count} more left out"),
    };
    let lost = match lost {
        0 => "none lost".to_string(),
        count => format!("{count} lost: give the trace more `entries`, or read less of it"),
    };
    format!("{left_out}; {lost}")
}

fn header() -> String {
    columns(["TIME", "QUEUE", "OP", "OFFSET", "BYTES", "WAITED", "HELD", "DISK", "STAGES", "END"])
}

fn line(entry: &TracedView, start_ns: u64) -> String {
    let at_us = i128::from(entry.at_ns / 1_000) - i128::from(start_ns / 1_000);
    let sign = if at_us < 0 { "-" } else { "" };
    let at_us = at_us.unsigned_abs();
    let time = |ns: u64| if ns == 0 { "-".to_string() } else { duration(ns) };
    columns([
        &format!("{sign}{}.{:06}", at_us / 1_000_000, at_us % 1_000_000),
        &entry.queue.to_string(),
        entry.op.word(),
        &entry.offset.to_string(),
        &entry.bytes.to_string(),
        &time(entry.waited_ns),
        &time(entry.held_ns),
        &time(entry.disk_ns),
        &time(entry.stages_ns),
        entry.end.word(),
    ])
}

fn columns(
    [time, queue, op, offset, bytes, waited, held, disk, stages, end]: [&str; 10],
) -> String {
    format!(
        "{time:>12}  {queue:>5}  {op:<12}  {offset:>14}  {bytes:>9}  {waited:>9}  {held:>9}  {disk:>9}  {stages:>9}  {end}\n"
    )
}

fn json(entry: &TracedView) -> Result<String, Failure> {
    let json = serde_json::to_string(entry);
    let json = json
        .map_err(|error| Failure::usage(format!("no JSON could be made: {error}"), "report it"))?;
    Ok(json + "\n")
}

#[cfg(test)]
mod tests {
    use config::api::{TracedEnd, TracedOp};

    use super::super::tests::entry;
    use super::*;

    #[test]
    fn columns_align_whatever_is_in_them() {
        let failed = TracedView {
            queue: 63,
            end: TracedEnd::Error,
            waited_ns: 1_500,
            held_ns: 2_000_000,
            ..entry(12_345_678_000, TracedOp::WriteZeroes, 1 << 40, 1 << 20)
        };
        let early = entry(999_000, TracedOp::Read, 0, 512);
        assert_eq!(
            header() + &line(&failed, 1_000_000) + &line(&early, 1_000_000),
            "        TIME  QUEUE  OP                    OFFSET      BYTES     WAITED       HELD       DISK     STAGES  END\n   \
             12.344678     63  write-zeroes   1099511627776    1048576     1.5 us     2.0 ms     1.0 us          -  error\n   \
             -0.000001      0  read                       0        512          -          -     1.0 us          -  ok\n"
        );
        assert_eq!(requests(1) + &counts(0, 0), "1 request; none lost");
        let lost = "2 requests, 3 more left out; 4 lost: give the trace more `entries`, or read less of it";
        assert_eq!(requests(2) + &counts(3, 4), lost);
        let json = json(&early).unwrap();
        assert!(
            json.starts_with("{\"queue\":0,\"at_ns\":999000,\"op\":\"read\",")
                && json.ends_with("}\n")
        );
    }
}
