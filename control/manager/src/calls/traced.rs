//! What a trace has recorded, as whoever asks for it is told. Read by the thread that answers, beside the sidecores that
//! write it.

use std::sync::Arc;

use backend::trace::{Asked, Cursor, Entry, Ring};
use config::api::{TRACED_MAX, TraceCursor, TraceFrom, TraceView, TracedEnd, TracedOp, TracedView};
use request::Status;

/// Reads trace `of` a disk on, as far as one answer goes. Each queue has its portion of it.
pub(crate) fn read(of: u64, rings: &[Option<Arc<Ring>>], from: &TraceFrom) -> TraceView {
    let (before, anew): (&[u64], bool) = match from {
        TraceFrom::Cursor(TraceCursor { of: its, read }) if *its == of => (read, false),
        TraceFrom::Cursor(_) => (&[], true),
        TraceFrom::Kept | TraceFrom::Now => (&[], false),
    };
    let mut view = TraceView { anew, ..TraceView::default() };
    let mut cursor = TraceCursor { of, read: Vec::with_capacity(rings.len()) };
    let mut left = rings.iter().flatten().count();
    for (queue, ring) in (0..).zip(rings) {
        let number = before.get(usize::from(queue)).copied().unwrap_or(0);
        let Some(ring) = ring else {
            cursor.read.push(number);
            continue;
        };
        let mut at = match from {
            TraceFrom::Now => ring.end(),
            TraceFrom::Kept => oldest(ring),
            // What was lost before somebody began to read is nothing that he lost.
            TraceFrom::Cursor(_) if anew => oldest(ring),
            TraceFrom::Cursor(_) => Cursor::at(number),
        };
        let portion = TRACED_MAX.saturating_sub(view.entries.len()) / left.max(1);
        left = left.saturating_sub(1);
        let lost = ring.read(&mut at, portion, |entry| view.entries.push(view_of(queue, &entry)));
        view.lost = view.lost.saturating_add(lost);
        view.more |= at.number() < ring.end().number();
        cursor.read.push(at.number());
    }
    view.cursor = cursor.to_string();
    view
}

fn oldest(ring: &Ring) -> Cursor {
    Cursor::at(ring.end().number().saturating_sub(ring.len()))
}

fn view_of(queue: u16, entry: &Entry) -> TracedView {
    TracedView {
        queue,
        at_ns: entry.taken_ns,
        op: match entry.asked {
            Asked::Read => TracedOp::Read,
            Asked::Write => TracedOp::Write,
            Asked::Flush => TracedOp::Flush,
            Asked::Discard => TracedOp::Discard,
            Asked::WriteZeroes => TracedOp::WriteZeroes,
        },
        offset: entry.offset,
        bytes: entry.len,
        end: match entry.status {
            Status::Ok => TracedEnd::Ok,
            Status::IoError => TracedEnd::Error,
            Status::Unsupported => TracedEnd::Unsupported,
        },
        waited_ns: entry.waited_ns,
        held_ns: entry.held_ns,
        disk_ns: entry.medium_ns,
        stages_ns: entry.stages_ns,
    }
}
