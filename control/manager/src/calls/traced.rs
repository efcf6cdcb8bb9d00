//! What a trace has recorded, as whoever asks for it is told. Read by the thread that answers, beside the sidecores that
//! write it.

use std::sync::Arc;

use backend::trace::{Asked, Cursor, Entry, Ring};
use config::api::{TRACED_MAX, TraceCursor, TraceFrom, TraceView, TracedEnd, TracedOp, TracedView};
use request::Status;

/// Reads trace `of` a disk on, as far as one answer goes. Each queue has its portion of it, and what some leave of theirs
/// is the others'.
pub(crate) fn read(of: u64, rings: &[Option<Arc<Ring>>], from: &TraceFrom) -> TraceView {
    let (before, anew): (&[u64], bool) = match from {
        TraceFrom::Cursor(TraceCursor { of: its, read }) if *its == of => (read, false),
        TraceFrom::Cursor(_) => (&[], true),
        TraceFrom::Kept | TraceFrom::Now => (&[], false),
    };
    let mut view = TraceView { anew, ..TraceView::default() };
    let number = |queue: usize| before.get(queue).copied().unwrap_or(0);
    let start = |number: u64, ring: &Ring| match from {
        TraceFrom::Now => ring.end(),
        TraceFrom::Kept => oldest(ring),
        // What was lost before somebody began to read is nothing that he lost.
        TraceFrom::Cursor(_) if anew => oldest(ring),
        TraceFrom::Cursor(_) => Cursor::at(number),
    };
    let mut cursor = TraceCursor { of, read: (0..rings.len()).map(number).collect() };
    let places = (0..).zip(&mut cursor.read).zip(rings);
    let mut backlogs: Vec<Backlog> = places
        .filter_map(|((queue, number), ring)| {
            let ring = ring.as_deref()?;
            let at = start(*number, ring);
            Some(Backlog { queue, ring, at, number })
        })
        .collect();
    // The shortest first: those behind it share what it leaves.
    backlogs.sort_by_key(|backlog| backlog.ring.end().number().saturating_sub(backlog.at.number()));
    let mut left = backlogs.len();
    for Backlog { queue, ring, mut at, number } in backlogs {
        let portion = TRACED_MAX.saturating_sub(view.entries.len()) / left.max(1);
        left = left.saturating_sub(1);
        let lost = ring.read(&mut at, portion, |entry| view.entries.push(view_of(queue, &entry)));
        view.lost = view.lost.saturating_add(lost);
        view.more |= at.number() < ring.end().number();
        *number = at.number();
    }
    view.entries.sort_by_key(|entry| entry.queue);
    view.cursor = cursor.to_string();
    view
}

/// What is to be read of a queue.
struct Backlog<'a> {
    queue: u16,
    ring: &'a Ring,
    at: Cursor,
    /// Where the next answer begins.
    number: &'a mut u64,
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

#[cfg(test)]
mod tests {
    use backend::trace::Tracer;

    use super::*;

    fn write(ring: &Arc<Ring>, count: u64) {
        let mut tracer = Tracer::new(Arc::clone(ring));
        for taken_ns in 0..count {
            let (asked, status) = (Asked::Read, Status::Ok);
            let entry = Entry {
                taken_ns,
                offset: 0,
                len: 512,
                asked,
                status,
                waited_ns: 0,
                held_ns: 0,
                medium_ns: 0,
                stages_ns: 0,
            };
            tracer.add(&entry, 0);
        }
    }

    fn of_queues(view: &TraceView, queues: usize) -> Vec<usize> {
        let of = |queue| view.entries.iter().filter(move |entry| usize::from(entry.queue) == queue);
        (0..queues).map(|queue| of(queue).count()).collect()
    }

    fn next(view: &TraceView) -> TraceFrom {
        view.cursor.parse().unwrap()
    }

    #[test]
    fn what_idle_queues_leave_of_an_answer_goes_to_the_busy_ones() {
        let rings: Vec<_> = (0..64).map(|_| Some(Ring::new(4_096))).collect();
        write(rings[0].as_ref().unwrap(), TRACED_MAX as u64);
        let view = read(7, &rings, &TraceFrom::Kept);
        assert_eq!((view.entries.len(), view.more, view.lost), (TRACED_MAX, false, 0));
        assert!(view.entries.iter().map(|entry| entry.at_ns).eq(0..TRACED_MAX as u64));
        assert_eq!(read(7, &rings, &next(&view)).entries, []);
    }

    #[test]
    fn busy_queues_share_an_answer_and_each_goes_on_where_it_was() {
        let mut rings: Vec<_> = (0..4).map(|_| Some(Ring::new(4_096))).collect();
        rings[1] = None;
        for (queue, count) in [(0, 4_000), (2, 84), (3, 4_000)] {
            write(rings[queue].as_ref().unwrap(), count);
        }
        let first = read(7, &rings, &TraceFrom::Kept);
        assert_eq!((of_queues(&first, 4), first.more), (vec![1_750, 0, 84, 1_750], true));
        let second = read(7, &rings, &next(&first));
        assert_eq!((of_queues(&second, 4), second.more), (vec![1_792, 0, 0, 1_792], true));
        let third = read(7, &rings, &next(&second));
        assert_eq!((of_queues(&third, 4), third.more), (vec![458, 0, 0, 458], false));
        assert_eq!(first.lost + second.lost + third.lost, 0);
        assert_eq!(third.cursor, "7.4000.0.84.4000");
    }
}
