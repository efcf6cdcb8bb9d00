//! `group`: the commands about groups, and how a group is shown.

use std::time::Duration;

use config::Size;
use config::api::{GroupList, GroupUseView, GroupView};
use config::routes::Method;

use crate::cli::GroupCommand;
use crate::client::{Client, path_of};
use crate::failure::Failure;
use crate::output::Output;
use crate::overview::pause;
use crate::table::{self, Align, Room, Table, duration, known};

/// How long the use of a group is looked at.
const USE_TIME: Duration = Duration::from_millis(250);

/// `group ...`
pub(crate) fn run(command: GroupCommand, client: &Client, output: &Output) -> Result<(), Failure> {
    match command {
        GroupCommand::Add(spec) => {
            let group: GroupView = client.send(Method::Post, "/v1/groups", &spec)?;
            output.show(&group, |group| format!("added group {}: {}\n", group.id, limit(group)))
        }
        GroupCommand::Rm { id } => {
            let group: GroupView = client.ask(Method::Delete, &path_of("groups", &id, ""))?;
            output.show(&group, |group| format!("removed group {}\n", group.id))
        }
        GroupCommand::Set { id, change } => {
            let path = path_of("groups", &id, "");
            let group: GroupView = client.send(Method::Patch, &path, &change)?;
            output.show(&group, |group| format!("group {} has {} now\n", group.id, limit(group)))
        }
        GroupCommand::Show { id: Some(id) } => {
            let path = path_of("groups", &id, "");
            let look = || client.ask::<GroupView>(Method::Get, &path);
            let (before, now) = twice(look, output)?;
            output.show(&now, |now| group_text(before.as_ref(), now, output.room))
        }
        GroupCommand::Ls | GroupCommand::Show { id: None } => {
            let look = || client.ask::<GroupList>(Method::Get, "/v1/groups");
            let (before, now) = twice(look, output)?;
            output.show(&now, |now| list_text(&before.unwrap_or_default(), now, output.room))
        }
    }
}

/// Two looks with a time in between, for whoever reads what happened meanwhile; one for programs.
fn twice<T>(
    look: impl Fn() -> Result<T, Failure>,
    output: &Output,
) -> Result<(Option<T>, T), Failure> {
    if output.json {
        return Ok((None, look()?));
    }
    let before = look()?;
    pause(USE_TIME);
    Ok((Some(before), look()?))
}

/// Its limit, in words.
fn limit(group: &GroupView) -> String {
    let GroupView { limit_iops, limit_packets, limit_bytes, limit_burst_ms, .. } = group;
    let parts = [
        limit_iops.map(|iops| format!("{iops} requests/s")),
        limit_packets.map(|packets| format!("{packets} packets/s")),
        limit_bytes.map(|bytes| format!("{} bytes/s", Size(bytes))),
        limit_burst_ms.map(|burst_ms| format!("bursts of {burst_ms} ms")),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() { "no limit".to_string() } else { parts.join(", ") }
}

/// What was used between two looks, a second. A member that left took its totals along.
fn rates(before: &GroupUseView, now: &GroupUseView) -> GroupUseView {
    let rate = |of: fn(&GroupUseView) -> u64| {
        let done = u128::from(of(now).saturating_sub(of(before)));
        u64::try_from(done * 1000 / USE_TIME.as_millis()).unwrap_or(u64::MAX)
    };
    GroupUseView {
        requests: rate(|used| used.requests),
        disk_bytes: rate(|used| used.disk_bytes),
        sent_packets: rate(|used| used.sent_packets),
        sent_bytes: rate(|used| used.sent_bytes),
        received_packets: rate(|used| used.received_packets),
        received_bytes: rate(|used| used.received_bytes),
        held: rate(|used| used.held),
        held_ns: rate(|used| used.held_ns),
        over_limit_packets: rate(|used| used.over_limit_packets),
    }
}

/// A rate that is not exact, of bytes.
fn about(bytes: u64) -> String {
    match bytes {
        0..10_000 => bytes.to_string(),
        10_000..10_000_000 => format!("{}K", bytes >> 10),
        _ => format!("{}M", bytes >> 20),
    }
}

/// What goes first of a list where there is too little room.
const GO: [&str; 9] = [
    "DECLARED",
    "DISKS",
    "NICS",
    "LIMIT",
    "BYTES/S",
    "RECEIVED/S",
    "HELD/S",
    "SENT/S",
    "REQUESTS/S",
];

fn list_text(before: &GroupList, now: &GroupList, room: Room) -> String {
    if now.groups.is_empty() {
        return "no groups; make one with `sidecore group add`\n".to_string();
    }
    let columns = [
        ("GROUP", Align::Left),
        ("DISKS", Align::Right),
        ("NICS", Align::Right),
        ("REQUESTS/S", Align::Right),
        ("SENT/S", Align::Right),
        ("BYTES/S", Align::Right),
        ("RECEIVED/S", Align::Right),
        ("BYTES/S", Align::Right),
        ("HELD/S", Align::Right),
        ("DECLARED", Align::Left),
        ("LIMIT", Align::Left),
    ];
    let mut table = Table::new(&columns, &GO);
    for group in &now.groups {
        let earlier = before.groups.iter().find(|earlier| earlier.id == group.id);
        let used = earlier.map(|earlier| rates(&earlier.used, &group.used));
        let used = |of: fn(&GroupUseView) -> String| known(used.as_ref().map(of));
        table.row(vec![
            group.id.clone(),
            group.disks.len().to_string(),
            group.nics.len().to_string(),
            used(|used| used.requests.to_string()),
            used(|used| used.sent_packets.to_string()),
            used(|used| about(used.disk_bytes.saturating_add(used.sent_bytes))),
            used(|used| used.received_packets.to_string()),
            used(|used| about(used.received_bytes)),
            used(|used| duration(used.held_ns)),
            group.declared.clone(),
            limit(group),
        ]);
    }
    table.text(room)
}

fn group_text(before: Option<&GroupView>, now: &GroupView, room: Room) -> String {
    let used = before.map(|before| rates(&before.used, &now.used)).unwrap_or_default();
    // A member may be called `none`.
    let names = |list: &[String]| known((!list.is_empty()).then(|| list.join(", ")));
    let facts = [
        ("id", now.id.clone()),
        ("declared", now.declared.clone()),
        ("limit", limit(now)),
        ("disks", names(&now.disks)),
        ("nics", names(&now.nics)),
        (
            "used",
            format!(
                "{} requests/s, {} packets/s, {} bytes/s ({} of disks, {} sent)",
                used.requests,
                used.sent_packets,
                about(used.disk_bytes.saturating_add(used.sent_bytes)),
                about(used.disk_bytes),
                about(used.sent_bytes)
            ),
        ),
        (
            "received",
            format!(
                "{} packets/s, {} bytes/s, {} packets/s dropped over a limit",
                used.received_packets,
                about(used.received_bytes),
                used.over_limit_packets
            ),
        ),
        (
            "held",
            format!("{} times/s by its limit, {} a second", used.held, duration(used.held_ns)),
        ),
    ];
    table::facts(&facts, room)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(scale: u64) -> GroupView {
        GroupView {
            id: "tenant1".to_string(),
            declared: "api".to_string(),
            limit_iops: Some(5000),
            limit_bytes: Some(100 << 20),
            limit_burst_ms: Some(100),
            disks: vec!["a".to_string(), "b".to_string()],
            nics: vec!["n".to_string()],
            used: GroupUseView {
                requests: 1000 * scale,
                disk_bytes: 4096 * scale,
                sent_packets: 10 * scale,
                sent_bytes: 1500 * scale,
                received_packets: 0,
                received_bytes: 25_000_000 * scale,
                held: 200 * scale,
                held_ns: 240_000_000 * scale,
                over_limit_packets: 3 * scale,
            },
            ..GroupView::default()
        }
    }

    #[test]
    fn a_group_is_shown_with_what_it_uses_now() {
        assert_eq!(
            group_text(Some(&group(1)), &group(2), Room::Whole),
            "id          tenant1\n\
             declared    api\n\
             limit       5000 requests/s, 100M bytes/s, bursts of 100 ms\n\
             disks       a, b\n\
             nics        n\n\
             used        4000 requests/s, 40 packets/s, 21K bytes/s (16K of disks, 6000 sent)\n\
             received    0 packets/s, 95M bytes/s, 12 packets/s dropped over a limit\n\
             held        800 times/s by its limit, 960.0 ms a second\n"
        );
        let list = |scale| GroupList { groups: vec![group(scale)] };
        assert_eq!(
            list_text(&list(1), &list(2), Room::Whole),
            "GROUP    DISKS  NICS  REQUESTS/S  SENT/S  BYTES/S  RECEIVED/S  BYTES/S    HELD/S  DECLARED  LIMIT\n\
             tenant1      2     1        4000      40      21K           0      95M  960.0 ms  api       \
             5000 requests/s, 100M bytes/s, bursts of 100 ms\n"
        );
        assert!(
            list_text(&GroupList::default(), &GroupList::default(), Room::Whole)
                .starts_with("no groups; ")
        );
        let none = GroupView::default();
        let text = group_text(None, &none, Room::Whole);
        assert!(text.contains("limit       no limit\n") && text.contains("disks       -\n"));
        let of_one = GroupView { disks: vec!["none".to_string()], ..none };
        assert!(group_text(None, &of_one, Room::Whole).contains("disks       none\n"));
    }
}
