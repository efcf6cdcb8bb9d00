//! What commands show: tables ([`fit`]), facts, and words for what many of them have.

mod cells;
mod fit;

pub(crate) use fit::{Align, Room, Table};

use config::api::HeldView;
use config::spec::{Mode, SocketRights};

/// What a device has after a change; or, if the change named it, that it has it no longer.
pub(crate) fn said(value: Option<String>, is_named: bool, none: &str) -> Option<String> {
    value.or_else(|| is_named.then(|| none.to_string())).map(|text| format!(", {text}"))
}

/// For whom a device's socket is, if that is asked for.
pub(crate) fn for_whom(rights: &SocketRights, is_asked: bool) -> Option<String> {
    let words = || rights.in_words().unwrap_or_else(|| "the daemon's user alone".to_string());
    is_asked.then(|| format!("its socket for {}", words()))
}

/// A device's socket: who opens it, and who may.
pub(crate) fn socket(path: &str, mode: Mode, rights: &SocketRights) -> String {
    let rights = rights.in_words().map(|words| format!(", for {words}"));
    format!("{path} ({mode}{})", rights.unwrap_or_default())
}

/// Names and what they stand for, aligned; what has no room in a line goes on below.
pub(crate) fn facts(facts: &[(&str, String)], room: Room) -> String {
    let width = facts.iter().map(|(name, _)| name.len()).max().unwrap_or(0).max(10);
    let fact = |fact: &str| room.wrapped(&plain(fact), width + 2);
    facts.iter().map(|(name, text)| format!("{name:<width$}  {}\n", fact(text))).collect()
}

/// A cell without what would break the table or steer a terminal.
pub(crate) fn plain(cell: &str) -> String {
    cell.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Nanoseconds in the unit that fits, such as `12.3 us`.
pub(crate) fn duration(ns: u64) -> String {
    for (unit, scale) in [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)] {
        if ns >= scale {
            return format!("{:.1} {unit}", ns as f64 / scale as f64);
        }
    }
    format!("{ns} ns")
}

/// A latency; `-` while nothing was measured.
pub(crate) fn latency(ns: Option<u64>) -> String {
    known(ns.map(duration))
}

/// What is known, or `-`.
pub(crate) fn known(what: Option<impl ToString>) -> String {
    what.map_or("-".to_string(), |what| what.to_string())
}

/// What a list of one device's has, or `-`.
pub(crate) fn named(text: &str) -> String {
    known(Some(text).filter(|text| !text.is_empty()))
}

/// Two columns for the groups and limits of devices, in a list of which some has one or the other.
pub(crate) struct Limits(bool);

impl Limits {
    /// `is_limited` is about each device of the list.
    pub(crate) fn of(mut is_limited: impl Iterator<Item = bool>) -> Limits {
        Limits(is_limited.any(|is_limited| is_limited))
    }

    pub(crate) fn columns(&self) -> impl Iterator<Item = (&'static str, Align)> {
        self.0.then_some([("GROUP", Align::Left), ("LIMIT", Align::Left)]).into_iter().flatten()
    }

    pub(crate) fn cells(
        &self,
        group: Option<&String>,
        limit: Option<String>,
    ) -> impl Iterator<Item = String> {
        let none = || "-".to_string();
        let cells = [group.cloned().unwrap_or_else(none), limit.unwrap_or_else(none)];
        self.0.then_some(cells).into_iter().flatten()
    }
}

/// What was waited for limits, in words, where there is a limit or was one.
pub(crate) fn held(held: &HeldView, is_limited: bool) -> Option<String> {
    let HeldView { held: times, held_ns, group_held, group_held_ns } = *held;
    let group = match group_held {
        0 => String::new(),
        _ => format!("; {group_held} of them by its group's, {}", duration(group_held_ns)),
    };
    let is_shown = is_limited || times > 0;
    let times = match times {
        1 => "once".to_string(),
        _ => format!("{times} times"),
    };
    is_shown.then(|| format!("{times} by its limits, {} in all{group}", duration(held_ns)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_shown_where_there_is_a_limit_or_was_one() {
        let mut view = HeldView::default();
        assert_eq!(held(&view, false), None);
        assert_eq!(held(&view, true).unwrap(), "0 times by its limits, 0 ns in all");
        (view.held, view.held_ns) = (3, 2_500_000);
        assert_eq!(held(&view, false).unwrap(), "3 times by its limits, 2.5 ms in all");
        (view.held, view.held_ns) = (1, 1_000_000);
        assert_eq!(held(&view, false).unwrap(), "once by its limits, 1.0 ms in all");
        (view.group_held, view.group_held_ns) = (1, 1_000_000);
        assert!(held(&view, true).unwrap().ends_with("; 1 of them by its group's, 1.0 ms"));
    }

    #[test]
    fn durations_read_well() {
        for (ns, text) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_500, "1.5 us"),
            (2_000_000, "2.0 ms"),
            (u64::MAX, "18446744073.7 s"),
        ] {
            assert_eq!(duration(ns), text);
        }
    }
}
