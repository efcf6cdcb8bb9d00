//! What the papers found beside what was found here, as a table.
//!
//! Not what they found (`papers`).

use super::columns::{Column, DOORBELLS, EXITS, Range};
use super::groups::{Experiment, Line, Load};
use super::papers::{Here, Mirror, Number};
use super::table::{NONE, Table, ratio};

/// A line for each number of the papers.
pub(super) fn table(mirror: &Mirror, experiment: &Experiment) -> Table {
    let line = |number: &Number| {
        let here = here(&number.here, experiment).unwrap_or_else(|| NONE.to_string());
        vec![number.what.to_string(), number.said.to_string(), number.source.to_string(), here]
    };
    let heads = ["in the papers", "they found", "source", "here"].map(String::from).to_vec();
    Table { heads, lines: mirror.numbers.iter().map(line).collect(), words: [4, 0] }
}

fn here(here: &Here, experiment: &Experiment) -> Option<String> {
    match here {
        Here::Nothing => None,
        Here::Value(load, column) => value(experiment.load(load)?, column),
        Here::Doorbells(load) => {
            let load = experiment.load(load)?;
            let baseline = load.baseline()?;
            let [doorbells, exits] = [&DOORBELLS, &EXITS].map(|column| column.of(baseline));
            let part = Range::of(doorbells?).against(exits?)?.median * 100.0;
            Some(format!("{}: {}: {part:.1}%", load.name, baseline.who))
        }
        Here::Of(load, who, column) => {
            let load = experiment.load(load)?;
            let row = column.of(load.line(who)?)?;
            Some(format!("{}: {who}: {} {}", load.name, shown(row.value), column.head))
        }
        Here::Between(load, [one, other], column) => {
            let load = experiment.load(load)?;
            between(load, load.line(one)?, load.line(other)?, column)
        }
    }
}

/// Sidecore's and the baseline's; of a time only in parts of the baseline's.
fn value(load: &Load, column: &Column) -> Option<String> {
    let [ours, theirs] = [load.sidecore()?, load.baseline()?];
    if column.is_time {
        return between(load, ours, theirs, column);
    }
    let of = |line: &Line| Some(format!("{}: {}", line.who, shown(column.of(line)?.value)));
    Some(format!("{}: {}, {} {}", load.name, of(theirs)?, of(ours)?, column.head))
}

fn between(load: &Load, one: &Line, other: &Line, column: &Column) -> Option<String> {
    let times = ratio(column, one, Some(other))?.median;
    Some(format!("{}: {}: {times:.2} x {}'s {}", load.name, one.who, other.who, column.ratio?))
}

fn shown(value: f64) -> String {
    Range::new(value, value, value).shown()
}

#[cfg(test)]
mod tests {
    use super::super::columns::{P50, RATE};
    use super::super::groups::{experiments, tests::measured};
    use super::*;

    #[test]
    fn times_stand_beside_the_papers_only_as_ratios() {
        let found = experiments(&measured());
        let of = |what: Here| here(&what, &found[0]);
        let rate = of(Here::Value("blk.randread.qd1", RATE));
        assert_eq!(rate.as_deref(), Some("blk.randread.qd1: sidecore: 1.50 x qemu's rate"));
        let p50 = of(Here::Value("blk.randread.qd1", P50));
        assert_eq!(p50.as_deref(), Some("blk.randread.qd1: sidecore: 0.75 x qemu's p50"));
        let turned = of(Here::Between("blk.randread.qd1", ["qemu", "sidecore"], P50));
        assert_eq!(turned.as_deref(), Some("blk.randread.qd1: qemu: 1.33 x sidecore's p50"));
    }

    #[test]
    fn counts_stand_beside_them_as_they_are() {
        let found = experiments(&measured());
        let of = |what: Here| here(&what, &found[0]);
        let exits = of(Here::Value("net.udp_rr", EXITS));
        assert_eq!(
            exits.as_deref(),
            Some("net.udp_rr: vhost-net: 4.860, sidecore: 4.400 exits/op")
        );
        let part = of(Here::Doorbells("blk.randread.qd1"));
        assert_eq!(part.as_deref(), Some("blk.randread.qd1: qemu: 41.2%"));
        let one = of(Here::Of("blk.randread.qd1", "qemu", DOORBELLS));
        assert_eq!(one.as_deref(), Some("blk.randread.qd1: qemu: 1.000 doorbells/op"));
        assert_eq!(of(Here::Value("blk.of.another.run", EXITS)), None);
        assert_eq!(of(Here::Nothing), None);
    }
}
