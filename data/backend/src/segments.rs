//! Parts of a request's segments, copied to and from memory of ours.
//!
//! Called where the guest's buffers cannot be handed on: `link::remote`, whose bytes travel in frames, and
//! `file::way`, whose disk takes aligned buffers only. And cut for `staged`, whose medium takes a part at a time.

use guest_memory::{GuestMap, Span};

/// Spans of a request at most: those of a chain (`virtqueue::CHAIN_SPANS_MAX`).
const SPANS_MAX: usize = 256;

/// The spans of `segments` behind the first `skip` bytes, `len` bytes in all, each with its place among those. False
/// when there are fewer.
fn each_span(
    segments: &[Span],
    mut skip: u64,
    len: usize,
    mut act: impl FnMut(Span, usize) -> bool,
) -> bool {
    let mut done = 0;
    for &segment in segments {
        let skipped = skip.min(segment.len().into()) as u32;
        skip -= u64::from(skipped);
        let span = segment.after(skipped).first((len - done) as u32);
        if !span.is_empty() && !act(span, done) {
            return false;
        }
        done += span.len() as usize;
        if done == len {
            return true;
        }
    }
    done == len
}

/// Copies bytes of the guest's.
pub(crate) fn fetch(memory: &GuestMap, segments: &[Span], skip: u64, into: &mut [u8]) -> bool {
    each_span(segments, skip, into.len(), |span, at| {
        into.get_mut(at..at + span.len() as usize).is_some_and(|into| memory.read(span, 0, into))
    })
}

/// Copies to the guest.
pub(crate) fn store(memory: &GuestMap, segments: &[Span], skip: u64, bytes: &[u8]) -> bool {
    each_span(segments, skip, bytes.len(), |span, at| {
        bytes.get(at..at + span.len() as usize).is_some_and(|from| memory.write(span, 0, from))
    })
}

/// Room for the spans of a part of a request, taken once.
#[derive(Debug)]
pub(crate) struct Part(Vec<Span>);

impl Part {
    pub(crate) fn new() -> Part {
        Part(Vec::with_capacity(SPANS_MAX))
    }

    /// The spans of `len` bytes behind the first `skip` of `segments`; none of a request that has none. `None` when
    /// there are fewer bytes, or more spans than a chain has.
    pub(crate) fn of(&mut self, segments: &[Span], skip: u64, len: u64) -> Option<&[Span]> {
        self.0.clear();
        let len = usize::try_from(len).ok()?;
        let all = segments.is_empty()
            || each_span(segments, skip, len, |span, _| {
                let fits = self.0.len() < SPANS_MAX;
                if fits {
                    self.0.push(span);
                }
                fits
            });
        all.then_some(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_request_has_its_spans_and_no_more() {
        let map = GuestMap::anonymous(1 << 16).expect("memory");
        let spans = [(0, 100), (1000, 0), (2000, 50), (3000, 500)];
        let spans = spans.map(|(gpa, len)| map.span(gpa, len).expect("within"));
        let mut part = Part::new();
        let lens = |spans: &[Span]| spans.iter().map(|span| span.len()).collect::<Vec<_>>();
        assert_eq!(part.of(&spans, 0, 650).map(lens), Some(vec![100, 50, 500]));
        assert_eq!(part.of(&spans, 99, 2).map(lens), Some(vec![1, 1]));
        assert_eq!(part.of(&spans, 120, 300).map(lens), Some(vec![30, 270]));
        assert_eq!(part.of(&spans, 600, 51), None, "one byte too many");
        assert_eq!(part.of(&[], 4096, 4096), Some([].as_slice()), "a discard has none");
    }

    #[test]
    fn a_part_is_what_lies_behind_those_before_it() {
        let map = GuestMap::anonymous(1 << 16).expect("memory");
        let spans = [(0, 100), (1000, 0), (2000, 50), (3000, 500)];
        let spans = spans.map(|(gpa, len)| map.span(gpa, len).expect("within"));
        let bytes: Vec<u8> = (0..650_u32).map(|at| at as u8).collect();
        for (skip, len) in [(0, 650), (0, 100), (99, 2), (100, 50), (120, 300), (649, 1)] {
            let part = &bytes[skip..skip + len];
            assert!(store(&map, &spans, skip as u64, part));
            let mut back = vec![0; len];
            assert!(fetch(&map, &spans, skip as u64, &mut back));
            assert!(back == part, "{skip} {len}");
        }
        let mut back = vec![0; 650];
        assert!(fetch(&map, &spans, 0, &mut back));
        assert!(back == bytes);
        assert!(!fetch(&map, &spans, 1, &mut back), "one byte too many");
    }
}
