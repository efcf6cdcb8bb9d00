//! Rows by experiment, load and configuration, and which configuration is compared with which.
//!
//! Not how they are shown (`table`, `html`). Used by all of the report.

use super::columns::Range;
use crate::rows::{Row, is_halt};

/// An experiment, and the loads it had.
#[derive(Debug)]
pub(super) struct Experiment {
    pub(super) name: String,
    pub(super) loads: Vec<Load>,
}

/// A load, and what each configuration came to.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) name: String,
    pub(super) lines: Vec<Line>,
}

/// A configuration's.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) who: String,
    /// Named without the load.
    values: Vec<Row>,
}

/// What a quota is in the name of a configuration.
pub(super) const QUOTA: &str = "es2-quota-";
const CAUSES: &str = "exits_per_op.";
/// Time outside the guest, by cause.
const OUTSIDE: &str = "outside_percent.";
/// Exits by cause below it are not told.
const LEAST: f64 = 0.005;
/// Nor is the cause of time outside below it, in percent.
const LEAST_PERCENT: f64 = 0.5;

/// In the order in which they come. Names that are none of the lab are left out.
pub(super) fn experiments(rows: &[Row]) -> Vec<Experiment> {
    let mut experiments: Vec<Experiment> = Vec::new();
    for row in rows {
        let Some((name, what)) = split(&row.name) else { continue };
        let experiment = found(
            &mut experiments,
            |one| one.name == row.experiment,
            || Experiment { name: row.experiment.clone(), loads: Vec::new() },
        );
        let load = found(
            &mut experiment.loads,
            |one| one.name == name,
            || Load { name: name.to_string(), lines: Vec::new() },
        );
        let line = found(
            &mut load.lines,
            |one| one.who == row.who,
            || Line { who: row.who.clone(), values: Vec::new() },
        );
        line.values.push(Row { name: what.to_string(), ..row.clone() });
    }
    experiments
}

/// The one that `is` it, or one that is `made` and comes last.
fn found<T>(all: &mut Vec<T>, is: impl Fn(&T) -> bool, made: impl FnOnce() -> T) -> &mut T {
    let at = all.iter().position(is).unwrap_or_else(|| {
        all.push(made());
        all.len() - 1
    });
    &mut all[at]
}

/// `lab.blk.randread.qd1.exits_per_op.hlt` is load `blk.randread.qd1`, value `exits_per_op.hlt`.
fn split(name: &str) -> Option<(&str, &str)> {
    let rest = name.strip_prefix("lab.")?;
    let cause = [CAUSES, OUTSIDE].iter().find_map(|kind| rest.find(&format!(".{kind}")));
    let at = cause.or_else(|| rest.rfind('.'))?;
    Some((rest.get(..at)?, rest.get(at + 1..)?))
}

impl Experiment {
    /// One of its loads.
    pub(super) fn load(&self, name: &str) -> Option<&Load> {
        self.loads.iter().find(|load| load.name == name)
    }
}

impl Load {
    /// What ratios are against: the first configuration that is not Sidecore, or if all are, the first.
    pub(super) fn baseline(&self) -> Option<&Line> {
        self.lines.iter().find(|line| !line.is_sidecore()).or(self.lines.first())
    }

    /// Sidecore as the papers have it, or the first of its configurations.
    pub(super) fn sidecore(&self) -> Option<&Line> {
        let papers = self.lines.iter().find(|line| line.who == "sidecore");
        papers.or_else(|| self.lines.iter().find(|line| line.is_sidecore()))
    }

    /// Of a configuration.
    pub(super) fn line(&self, who: &str) -> Option<&Line> {
        self.lines.iter().find(|line| line.who == who)
    }

    /// All its rows are of one turn.
    pub(super) fn is_of_one_turn(&self) -> bool {
        self.lines.iter().flat_map(|line| &line.values).all(|row| row.turns == 1)
    }

    /// `blk.guests2.mixed4k` is 2 `guests` of `blk.mixed4k`, `mixed.streams0.udp_rr` no `streams` of
    /// `mixed.udp_rr`. Others have no number.
    pub(super) fn number(&self) -> Option<(String, &'static str, u32)> {
        let (before, rest) = self.name.split_once('.')?;
        let (counted, after) = rest.split_once('.')?;
        let word = ["guests", "streams"].into_iter().find(|word| counted.starts_with(word))?;
        let number = counted.strip_prefix(word)?.parse().ok()?;
        Some((format!("{before}.{after}"), word, number))
    }
}

impl Line {
    /// Sidecore serves it.
    pub(super) fn is_sidecore(&self) -> bool {
        self.who.starts_with("sidecore") || self.who.starts_with(QUOTA)
    }

    /// The first there is of these.
    pub(super) fn value(&self, names: &[&str]) -> Option<&Row> {
        names.iter().find_map(|name| self.values.iter().find(|row| row.name == *name))
    }

    /// Exits by cause, most first; those of less than half a hundredth are left out.
    pub(super) fn causes(&self) -> Vec<(&str, f64)> {
        let mut causes: Vec<(&str, f64)> =
            self.kinds(CAUSES).filter(|(_, row)| row.value >= LEAST).map(valued).collect();
        causes.sort_by(|one, other| other.1.total_cmp(&one.1));
        causes
    }

    /// Of its vCPUs' time, while the guest waited for something to do. None where it is not known.
    pub(super) fn halted(&self) -> Option<Range> {
        self.kinds(OUTSIDE).next()?;
        let halt = self.kinds(OUTSIDE).find(|(cause, _)| is_halt(cause));
        Some(halt.map_or(Range::new(0.0, 0.0, 0.0), |(_, row)| Range::of(row)))
    }

    /// Of its vCPUs' time, while exits were served for which the guest did not choose to wait: all of it in percent, and
    /// the cause that took most if it took half a percent. None where it is not known.
    pub(super) fn serving(&self) -> Option<(f64, Option<(&str, f64)>)> {
        self.kinds(OUTSIDE).next()?;
        let causes = || self.kinds(OUTSIDE).filter(|(cause, _)| !is_halt(cause)).map(valued);
        let most = causes().max_by(|one, other| one.1.total_cmp(&other.1));
        let all = causes().map(|(_, value)| value).sum();
        Some((all, most.filter(|(_, value)| *value >= LEAST_PERCENT)))
    }

    fn kinds<'a>(&'a self, kind: &'static str) -> impl Iterator<Item = (&'a str, &'a Row)> {
        self.values.iter().filter_map(move |row| Some((row.name.strip_prefix(kind)?, row)))
    }
}

fn valued<'a>((cause, row): (&'a str, &'a Row)) -> (&'a str, f64) {
    (cause, row.value)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A row of three turns, 10% apart to each side.
    pub(in crate::report) fn row(load: &str, what: &str, who: &str, value: f64, unit: &str) -> Row {
        Row {
            experiment: "exits".into(),
            spread: [value * 0.9, value * 1.1],
            turns: 3,
            ..Row::new(format!("lab.{load}.{what}"), who, value, unit)
        }
    }

    /// What a disk and a NIC came to, about as on a quiet host.
    pub(in crate::report) fn measured() -> Vec<Row> {
        let disk = |what, who, value, unit| row("blk.randread.qd1", what, who, value, unit);
        let nic = |what, who, value, unit| row("net.udp_rr", what, who, value, unit);
        vec![
            disk("doorbell_exits_per_op", "qemu", 1.0, "1/op"),
            disk("exits_per_op", "qemu", 2.43, "1/op"),
            disk("exits_per_op.hlt", "qemu", 0.95, "1/op"),
            disk("exits_per_op.npf", "qemu", 1.0, "1/op"),
            disk("exits_per_s", "qemu", 4321.0, "1/s"),
            disk("iops", "qemu", 1880.0, "1/s"),
            disk("p50_us", "qemu", 460.0, "us"),
            disk("exits_per_op", "sidecore", 1.4, "1/op"),
            disk("iops", "sidecore", 2820.0, "1/s"),
            disk("p50_us", "sidecore", 345.0, "us"),
            nic("exits_per_op", "vhost-net", 4.86, "1/op"),
            nic("exits_per_op", "sidecore", 4.4, "1/op"),
        ]
    }

    #[test]
    fn rows_are_grouped_by_experiment_load_and_configuration() {
        let mut rows = measured();
        rows.push(Row { experiment: "smoke".into(), ..rows[0].clone() });
        rows.push(Row::new("another.thing".into(), "qemu", 1.0, "1"));
        let found = experiments(&rows);
        let names: Vec<&str> = found.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["exits", "smoke"]);
        assert_eq!(found[0].loads.len(), 2);
        let disk = &found[0].loads[0];
        assert_eq!(disk.name, "blk.randread.qd1");
        assert_eq!(disk.lines[0].causes(), [("npf", 1.0), ("hlt", 0.95)]);
        assert_eq!(disk.lines[1].value(&["ops_per_s", "iops"]).map(|row| row.value), Some(2820.0));
    }

    /// Where the time of a NIC's vCPUs went, of two makers' processors, and of one that is not known.
    pub(in crate::report) fn timed() -> Vec<Row> {
        let of = |what, who, value| row("net.udp_send_256", what, who, value, "%");
        vec![
            of("tig_percent", "vhost-net", 66.0),
            of("tig_of_not_halted_percent", "vhost-net", 73.3),
            of("outside_percent.hlt", "vhost-net", 10.0),
            of("outside_percent.npf", "vhost-net", 19.0),
            of("outside_percent.msr", "vhost-net", 5.0),
            of("tig_percent", "sidecore", 18.0),
            of("outside_percent.HLT", "sidecore", 81.7),
            of("outside_percent.CPUID", "sidecore", 0.3),
            of("tig_percent", "qemu", 30.0),
        ]
    }

    #[test]
    fn time_outside_is_halted_or_serves_exits() {
        let found = experiments(&timed());
        let load = &found[0].loads[0];
        assert_eq!(load.name, "net.udp_send_256");
        let of = |who| {
            let line = load.line(who)?;
            Some((line.halted().map(|range| range.median), line.serving()))
        };
        assert_eq!(of("vhost-net"), Some((Some(10.0), Some((24.0, Some(("npf", 19.0)))))));
        assert_eq!(of("sidecore"), Some((Some(81.7), Some((0.3, None)))));
        assert_eq!(of("qemu"), Some((None, None)));
    }

    #[test]
    fn the_baseline_is_the_first_that_is_not_sidecore() {
        let of = |names: &[&str]| {
            let rows: Vec<Row> =
                names.iter().map(|who| row("a", "iops", who, 1.0, "1/s")).collect();
            let found = experiments(&rows);
            let load = &found[0].loads[0];
            [load.baseline(), load.sidecore()].map(|line| line.map(|line| line.who.clone()))
        };
        let both = |one: &str, other: &str| [Some(one.to_string()), Some(other.to_string())];
        assert_eq!(of(&["sidecore-es2", "ide", "qemu", "sidecore"]), both("ide", "sidecore"));
        assert_eq!(of(&["es2-quota-2", "es2-quota-4"]), both("es2-quota-2", "es2-quota-2"));
        assert_eq!(of(&["qemu"]), [Some("qemu".to_string()), None]);
    }

    #[test]
    fn a_load_says_how_many_guests_or_streams_it_has() {
        let of = |name: &str| Load { name: name.into(), lines: Vec::new() }.number();
        assert_eq!(of("blk.guests4.mixed4k"), Some(("blk.mixed4k".into(), "guests", 4)));
        assert_eq!(of("mixed.streams0.udp_rr"), Some(("mixed.udp_rr".into(), "streams", 0)));
        assert_eq!(of("blk.randread.qd1"), None);
    }
}
