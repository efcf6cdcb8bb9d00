//! `link`: keys of this machine, which need no daemon; and `remote`: what its links do.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use config::api::{LinkList, LinkRefusalView, LinkView};
use config::key;
use config::routes::Method;
use config::spec::LinkRole;
use rustix::rand::{GetRandomFlags, getrandom};
use serde::Serialize;

use crate::cli::LinkCommand;
use crate::client::Client;
use crate::failure::Failure;
use crate::output::Output;
use crate::table::{self, Align, Room, Table};

/// What `link key` prints with `--json`.
#[derive(Serialize)]
struct KeyView {
    file: String,
    public_key: String,
    made: bool,
}

/// `link ...`
pub(crate) fn run(command: &LinkCommand, output: &Output) -> Result<(), Failure> {
    match command {
        LinkCommand::Key { file } => {
            let view = keep(file)?;
            if view.made && !output.json {
                // Beside the key, which scripts take.
                output.note(&format!("a new private key was made in {}", view.file));
            }
            output.show(&view, |view| format!("{}\n", view.public_key))
        }
    }
}

/// `remote status`
pub(crate) fn status(client: &Client, output: &Output) -> Result<(), Failure> {
    let links: LinkList = client.ask(Method::Get, "/v1/links")?;
    output.show(&links, |links| text(links, output.room))
}

fn text(list: &LinkList, room: Room) -> String {
    if list.links.is_empty() {
        return "no links; the file declares them: [[link]]\n".to_string();
    }
    let (mut links, mut disks, mut nics) = (links_table(), disks_table(), nics_table());
    let mut problems = String::new();
    for link in &list.links {
        links.row(vec![
            link.id.clone(),
            link.role.to_string(),
            link.peer.clone().unwrap_or_else(|| link.addresses.join(", ")),
            link.sessions.to_string(),
            link.frames_in.to_string(),
            link.frames_out.to_string(),
            link.frames_dropped.to_string(),
            sidecores(link),
        ]);
        for disk in &link.disks {
            let user = match (&disk.client, disk.in_use, link.role) {
                (Some(client), ..) => client.clone(),
                (None, false, _) => "-".to_string(),
                (None, true, LinkRole::Client) => "a guest here".to_string(),
                (None, true, LinkRole::Iohost) => "a client".to_string(),
            };
            let mut row = vec![disk.id.clone(), link.id.clone(), user];
            row.extend([disk.requests, disk.errors, disk.in_flight].map(|count| count.to_string()));
            disks.row(row);
            if let Some(problem) = &disk.problem {
                // Whoever reads this has just asked that.
                let problem = problem.replace("; `sidecore remote status` has the link", "");
                problems += &format!("\ndisk {}: {problem}\n", disk.id);
            }
        }
        for nic in &link.nics {
            let mut row = vec![nic.id.clone(), link.id.clone(), yes(nic.in_use)];
            let counts = [nic.frames_in, nic.frames_out, nic.frames_dropped];
            row.extend(counts.map(|count| count.to_string()));
            nics.row(row);
        }
        for refusal in &link.refusals {
            problems += &format!("\nlink {}: {}\n", link.id, refusal_text(refusal));
        }
        // A daemon that does not say why.
        if link.refusals.is_empty() && link.hellos_refused > 0 {
            let (count, id) = (link.hellos_refused, &link.id);
            let plural = if count == 1 { "" } else { "s" };
            problems += &format!(
                "\nlink {id}: {count} hello{plural} refused: made with another `security` or `iohost_key`, of a client \
                 that the file does not name, or too many at once\n"
            );
        }
        if link.writes_again > 0 {
            let (count, id) = (link.writes_again, &link.id);
            let (plural, them) = if count == 1 { ("", "it") } else { ("s", "them") };
            problems += &format!(
                "\nlink {id}: {count} write{plural} sent again to a machine that had lost {them}\n"
            );
        }
        if let Some(problem) = &link.problem {
            problems += &format!("\nlink {}: {problem}\n", link.id);
        }
    }
    let has_nics = list.links.iter().any(|link| !link.nics.is_empty());
    let nics = if has_nics { format!("\n{}", nics.text(room)) } else { String::new() };
    format!("{}{}\n{}{nics}{problems}", links.text(room), ways_text(list, room), disks.text(room))
}

/// Hellos that were refused for one reason, and the last that is known of them.
pub(crate) fn refusal_text(refusal: &LinkRefusalView) -> String {
    let LinkRefusalView { reason, count, from, ago_s } = refusal;
    let plural = if *count == 1 { "" } else { "s" };
    let last = from.as_ref().zip(*ago_s);
    let last =
        last.map_or(String::new(), |(from, ago)| format!("; the last from {from}, {ago} s ago"));
    format!("{count} hello{plural} refused: {reason}{last}")
}

/// How the ways to other machines are; nothing without a session.
fn ways_text(list: &LinkList, room: Room) -> String {
    let columns = [
        ("WAY TO", Align::Left),
        ("LINK", Align::Left),
        ("ROUND TRIP", Align::Right),
        ("SENT", Align::Right),
        ("LOST", Align::Right),
        ("SENT AGAIN", Align::Right),
        ("UNDER WAY", Align::Right),
        ("WINDOW", Align::Right),
        ("CREDIT", Align::Right),
        ("SIDECORE", Align::Right),
    ];
    let go = &[
        "SIDECORE",
        "CREDIT",
        "WINDOW",
        "UNDER WAY",
        "SENT AGAIN",
        "SENT",
        "LINK",
        "LOST",
        "ROUND TRIP",
    ];
    let mut ways = Table::new(&columns, go);
    for (link, way) in
        list.links.iter().flat_map(|link| link.ways.iter().map(move |way| (link, way)))
    {
        ways.row(vec![
            way.peer.clone(),
            link.id.clone(),
            table::latency(way.round_trip_ns),
            way.frames_sent.to_string(),
            way.frames_lost.to_string(),
            way.records_again.to_string(),
            way.frames_under_way.to_string(),
            way.window_frames.to_string(),
            way.credit_frames.to_string(),
            table::known(way.sidecore),
        ]);
    }
    match list.links.iter().all(|link| link.ways.is_empty()) {
        true => String::new(),
        false => format!("\n{}", ways.text(room)),
    }
}

/// The one that has it, or those that serve it.
fn sidecores(link: &LinkView) -> String {
    match link.sidecores.is_empty() {
        true => table::known(link.sidecore),
        false => link.sidecores.iter().map(u16::to_string).collect::<Vec<_>>().join(","),
    }
}

fn yes(is_so: bool) -> String {
    if is_so { "yes" } else { "no" }.to_string()
}

fn links_table() -> Table {
    let columns = [
        ("LINK", Align::Left),
        ("ROLE", Align::Left),
        ("WITH", Align::Left),
        ("SESSIONS", Align::Right),
        ("FRAMES IN", Align::Right),
        ("OUT", Align::Right),
        ("DROPPED", Align::Right),
        ("SIDECORE", Align::Right),
    ];
    Table::new(&columns, &["SIDECORE", "FRAMES IN", "OUT", "DROPPED", "WITH", "SESSIONS"])
}

fn disks_table() -> Table {
    let columns = [
        ("DISK", Align::Left),
        ("LINK", Align::Left),
        ("IN USE BY", Align::Left),
        ("REQUESTS", Align::Right),
        ("ERRORS", Align::Right),
        ("IN FLIGHT", Align::Right),
    ];
    Table::new(&columns, &["REQUESTS", "IN FLIGHT", "LINK", "ERRORS"])
}

fn nics_table() -> Table {
    let columns = [
        ("NIC", Align::Left),
        ("LINK", Align::Left),
        ("IN USE", Align::Left),
        ("FRAMES IN", Align::Right),
        ("OUT", Align::Right),
        ("DROPPED", Align::Right),
    ];
    Table::new(&columns, &["FRAMES IN", "OUT", "LINK", "DROPPED"])
}

/// Reads the key in `file`, or makes one there.
fn keep(file: &Path) -> Result<KeyView, Failure> {
    let name = file.display();
    let in_own = "name a file in a folder of root's own";
    let private = match manager::read_key(file) {
        Ok(key) => Some(key),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        // Its words have the name of the file, and what to do about its mode.
        Err(error) if error.kind() == ErrorKind::InvalidData => {
            let hint = "name the file of a key, or one that is not there yet: a key is made in it";
            return Err(Failure::usage(error.to_string(), hint));
        }
        Err(error) => {
            return Err(Failure::usage(format!("{name}: it cannot be read: {error}"), in_own));
        }
    };
    let made = private.is_none();
    let private = match private {
        Some(private) => private,
        None => make(file).map_err(|error| {
            let hint = match error.kind() {
                ErrorKind::NotFound => {
                    "correct the path, or make its folder: a key has one of root's own"
                }
                _ => in_own,
            };
            Failure::usage(format!("{name}: it cannot be made: {error}"), hint)
        })?,
    };
    let public = remote::handshake::public_key(&private)
        .map_err(|error| Failure::usage(format!("{name}: {error}"), "make another one"))?;
    Ok(KeyView { file: name.to_string(), public_key: key::format(&public), made })
}

/// A new key, in a file that was not there; whole or not at all.
fn make(file: &Path) -> std::io::Result<[u8; key::KEY_BYTES]> {
    let mut private = [0; key::KEY_BYTES];
    // So few bytes come at once, and whole.
    getrandom(&mut private, GetRandomFlags::empty())?;
    let mut options = OpenOptions::new();
    let mut made = options.write(true).create_new(true).mode(0o600).open(file)?;
    let written = writeln!(made, "{}", key::format(&private)).and_then(|()| made.sync_all());
    if written.is_err() {
        std::fs::remove_file(file)?;
    }
    written.map(|()| private)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_that_were_sent_again_are_told() {
        let link = |writes_again: u64| -> LinkView {
            serde_json::from_value(serde_json::json!({
                "id": "rack", "declared": "f:1", "role": "client", "security": "noise",
                "addresses": ["10.0.0.1:7447"], "sidecore": 0, "sessions": 1, "round_trip_ns": 0,
                "frames_in": 0, "frames_out": 0, "frames_dropped": 0, "handshakes": 1,
                "mismatches": 0, "violations": 0, "leases_over": 0, "disks": [],
                "writes_again": writes_again,
            }))
            .unwrap()
        };
        let text = |count| super::text(&LinkList { links: vec![link(count)] }, Room::Whole);
        assert!(!text(0).contains("again to"), "{}", text(0));
        let expected = "\nlink rack: 400 writes sent again to a machine that had lost them\n";
        assert!(text(400).ends_with(expected), "{}", text(400));
        assert!(text(1).ends_with("1 write sent again to a machine that had lost it\n"));
    }

    #[test]
    fn what_is_wrong_is_told_and_hellos_that_were_refused() {
        let told = "its IOhost has been silent for 3 s: requests wait; `sidecore remote status` has the link";
        let mut link: LinkView = serde_json::from_value(serde_json::json!({
            "id": "rack", "declared": "f:1", "role": "iohost", "security": "noise", "addresses": [],
            "sidecore": 0, "sessions": 1, "round_trip_ns": 0, "frames_in": 0, "frames_out": 0,
            "frames_dropped": 0, "handshakes": 1, "mismatches": 0, "violations": 0, "leases_over": 0,
            "hellos_refused": 9, "problem": "a hello was refused",
            "disks": [{
                "id": "db", "in_use": false, "requests": 0, "errors": 0, "in_flight": 0, "problem": told,
            }],
        }))
        .unwrap();
        let text = super::text(&LinkList { links: vec![link.clone()] }, Room::Whole);
        let expected = "\ndisk db: its IOhost has been silent for 3 s: requests wait\n\
             \nlink rack: 9 hellos refused: made with another `security` or `iohost_key`, of a client that the file \
             does not name, or too many at once\n\
             \nlink rack: a hello was refused\n";
        assert!(text.ends_with(expected), "{text}");
        let refusals = serde_json::json!([
            { "reason": "a stranger", "count": 8, "from": "10.0.0.7:555", "ago_s": 12 },
            { "reason": "malformed", "count": 1 },
        ]);
        link.refusals = serde_json::from_value(refusals).unwrap();
        let text = super::text(&LinkList { links: vec![link] }, Room::Whole);
        let expected = "\nlink rack: 8 hellos refused: a stranger; the last from 10.0.0.7:555, 12 s ago\n\
             \nlink rack: 1 hello refused: malformed\n\
             \nlink rack: a hello was refused\n";
        assert!(text.ends_with(expected), "{text}");
    }

    #[test]
    fn who_has_a_disk_is_told_at_either_end() {
        let link = |role: &str, disk: serde_json::Value| -> String {
            let link = serde_json::from_value(serde_json::json!({
                "id": "rack", "declared": "f:1", "role": role, "security": "noise",
                "addresses": [], "sidecore": 0, "sessions": 1, "round_trip_ns": 0,
                "frames_in": 0, "frames_out": 0, "frames_dropped": 0, "handshakes": 1,
                "mismatches": 0, "violations": 0, "leases_over": 0, "disks": [disk],
            }));
            let text = text(&LinkList { links: vec![link.unwrap()] }, Room::Whole);
            let words = text.lines().last().unwrap().split("  ");
            words.filter(|word| !word.is_empty()).nth(2).unwrap().trim().to_string()
        };
        let disk = |in_use: bool, client: Option<&str>| {
            serde_json::json!({
                "id": "db", "in_use": in_use, "client": client, "requests": 0, "errors": 0, "in_flight": 0,
            })
        };
        assert_eq!(link("client", disk(true, None)), "a guest here");
        assert_eq!(link("iohost", disk(true, Some("host7"))), "host7");
        // By an older daemon, or of a client that the file no longer has.
        assert_eq!(link("iohost", disk(true, None)), "a client");
        assert_eq!(link("iohost", disk(false, None)), "-");
    }
}
