//! Live migration between two daemons under load.
//!
//! | module | what |
//! |---|---|
//! | `announced` | what the network hears of where a guest is |
//! | `moving` | the guest, and its work |
//! | `pause` | how long it stands still, beside QEMU's own devices |
//! | `saved` | it is kept in a file, or as a snapshot |
//! | `site` | the two daemons |
//! | `steps` | moves, those that are called off, and deaths |

mod announced;
mod moving;
mod pause;
mod saved;
mod site;
mod steps;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use testing::bed::{Bed, Need};

use crate::suite::{Case, Group, names};
use moving::{Devices, Moving, Traffic};

/// The group.
pub(super) const GROUP: Group = Group::new(
    "migrate",
    "live migration between two daemons under load: back and forth, called off, with a death at each \
     step (root)",
    &[
        Case::raw("migrate", "migrate").usually(60),
        Case::run("shared", shared).parts(&NAMES).needs(&[Need::Root]).within(1200).usually(90),
        Case::run("packed", packed).needs(&[Need::Root]).usually(30),
        Case::run("pause", pause::case).needs(&[Need::Root]).only_all("takes minutes"),
    ],
);

/// What is done to a guest under load.
type Part = fn(&Bed, &Moving, &Traffic<'_>) -> Result<()>;

/// Each by its name. The last one's guest has lost its connections.
const PARTS: [(&str, Part); 5] = [
    ("moves", steps::moves),
    ("called-off", steps::called_off),
    ("deaths", steps::deaths),
    ("saved", saved::saved),
    (SNAPSHOT, saved::snapshot),
];
const NAMES: [&str; PARTS.len()] = names(&PARTS);
/// What is kept of a guest that failed has other names than what is kept of the next.
const APART: usize = 100;
const SNAPSHOT: &str = "snapshot";

/// One guest with split rings for all parts. One that fails takes its guest with it, and the next one boots another.
fn shared(bed: &Bed) -> Result<()> {
    parts(bed, Devices::Split, &PARTS)
}

/// Another one with packed rings.
fn packed(bed: &Bed) -> Result<()> {
    parts(bed, Devices::Packed, &PARTS[..1])
}

fn parts(bed: &Bed, devices: Devices, parts: &[(&str, Part)]) -> Result<()> {
    let mut ready: Option<Moving> = None;
    let mut first = 1;
    for (name, part) in parts.iter().filter(|(name, _)| bed.wants(name)) {
        bed.say(name);
        let part_bed = bed.part(name)?;
        let moving = match ready.take() {
            Some(moving) => moving,
            None => Moving::new(bed.folder(), devices, first).context("a guest for it")?,
        };
        let done = under_traffic(&part_bed, &moving, name, *part);
        if done.is_err() {
            bed.say(moving.told());
            first += APART;
        }
        if part_bed.check("", done.map(|()| "")) {
            ready = Some(moving);
        }
    }
    ready.map_or(Ok(()), |moving| moving.end(bed))
}

fn under_traffic(bed: &Bed, moving: &Moving, name: &str, part: Part) -> Result<()> {
    let traffic = moving.traffic()?;
    part(bed, moving, &traffic)?;
    if name == SNAPSHOT { Ok(()) } else { traffic.end(bed) }
}

/// The median, the least and the most of some numbers, and what 99 of 100 are not over.
fn spread(mut numbers: Vec<u64>) -> Value {
    numbers.sort_unstable();
    let at =
        |part: f64| numbers.get(((numbers.len() as f64 * part).ceil() as usize).saturating_sub(1));
    json!({
        "median": numbers.get(numbers.len() / 2), "p99": at(0.99), "least": numbers.first(),
        "most": numbers.last(), "all": numbers,
    })
}
