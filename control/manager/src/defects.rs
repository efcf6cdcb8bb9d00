//! Faults of the daemon's own: what control counted on and did not find. Counted, said once, and shown.
//!
//! Three kinds of look-up find nothing. What others may cause is refused, with a typed reason. A word that comes
//! [`late`], of what has ended since, is normal. What is left cannot happen, and is noted here when it does.

use std::collections::BTreeMap;
use std::panic::Location;

use config::api::DefectView;
use tracing::error;

/// A place in the program: file and line.
type At = (&'static str, u32);

/// What there was to count on, and how often it was not there. As many entries as places, so bounded.
#[derive(Default)]
pub(crate) struct Defects(BTreeMap<At, (&'static str, u64)>);

impl Defects {
    /// Control counted on `expected`, and goes on without.
    #[track_caller]
    pub(crate) fn note(&mut self, expected: &'static str) {
        let place = Location::caller();
        let (_, count) = self.0.entry((place.file(), place.line())).or_insert((expected, 0));
        *count += 1;
        if *count == 1 {
            let at = format!("{}:{}", file_of(place.file()), place.line());
            error!(
                at,
                "a fault of the daemon's own: there is no {expected}; what it was needed for was left undone. \
                 Please report it with the log"
            );
        }
    }

    /// For operators.
    pub(crate) fn views(&self) -> Vec<DefectView> {
        let view = |((file, line), (expected, count)): (&At, &(&'static str, u64))| DefectView {
            at: format!("{}:{line}", file_of(file)),
            expected: (*expected).to_string(),
            count: *count,
        };
        self.0.iter().map(view).collect()
    }
}

/// Within the crate, wherever it was built.
fn file_of(file: &'static str) -> &'static str {
    file.rsplit_once("/src/").map_or(file, |(_, file)| file)
}

/// A word of what has ended since it was on its way: nothing is to be done. `of` names it for the reader.
pub(crate) const fn late(of: &'static str) {
    let _ = of;
}

/// What a look-up gives; a [defect](Defects::note) and a return of nothing, where it gives none.
macro_rules! found {
    ($defects:expr, $found:expr, $expected:literal) => {
        match $found {
            Some(found) => found,
            None => {
                $defects.note($expected);
                return Default::default();
            }
        }
    };
}
pub(crate) use found;

#[cfg(test)]
mod tests {
    use super::*;

    fn looked_up(defects: &mut Defects, table: &[u8], at: usize) -> Option<u8> {
        let found = found!(defects, table.get(at), "entry of that number");
        Some(*found)
    }

    #[test]
    fn a_defect_is_counted_at_its_place_and_what_is_found_is_none() {
        let mut defects = Defects::default();
        assert_eq!(looked_up(&mut defects, &[7], 0), Some(7));
        assert_eq!(defects.views(), []);
        assert_eq!(looked_up(&mut defects, &[7], 1), None);
        assert_eq!(looked_up(&mut defects, &[7], 2), None);
        defects.note("another");
        let views = defects.views();
        let seen: Vec<_> = views.iter().map(|it| (it.expected.as_str(), it.count)).collect();
        assert_eq!(seen, [("entry of that number", 2), ("another", 1)]);
        assert!(views[0].at.starts_with("defects.rs:"), "{}", views[0].at);
    }
}
