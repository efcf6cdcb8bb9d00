//! What is drawn as lines: exits against a quota, and rates, latencies and exits against a number of guests or streams.
//!
//! Not how (`plot`). Times are in parts of the baseline's with the fewest guests, so nothing is presented as a time
//! that may be none.

use super::columns::{Column, DOORBELLS, EXITS, P50, RATE, Range};
use super::groups::{Experiment, Load, QUOTA};
use super::plot::{Plot, Point, Series};

/// Of an experiment; most have none.
pub(super) fn plots(experiment: &Experiment) -> Vec<Plot> {
    let mut plots: Vec<Plot> =
        [&DOORBELLS, &EXITS].into_iter().filter_map(|column| quotas(experiment, column)).collect();
    for family in families(experiment) {
        plots.extend([&RATE, &P50, &EXITS].into_iter().filter_map(|column| family.plot(column)));
    }
    plots
}

/// A line for each load.
fn quotas(experiment: &Experiment, column: &Column) -> Option<Plot> {
    let of = |load: &Load| {
        let point = |line: &super::groups::Line| {
            let x: f64 = line.who.strip_prefix(QUOTA)?.parse().ok()?;
            Some(Point { x, y: Range::of(column.of(line)?) })
        };
        Series {
            name: load.name.clone(),
            points: sorted(load.lines.iter().filter_map(point).collect()),
        }
    };
    Plot {
        title: format!("{} by quota", column.head),
        across: "quota (frames of a visit)".to_string(),
        up: column.head.to_string(),
        doubles: true,
        series: experiment.loads.iter().map(of).collect(),
    }
    .worth_it()
}

/// Loads that differ in a number only.
struct Family<'a> {
    name: String,
    word: &'static str,
    /// The least number first.
    loads: Vec<(u32, &'a Load)>,
}

fn families(experiment: &Experiment) -> Vec<Family<'_>> {
    let mut families: Vec<Family<'_>> = Vec::new();
    for load in &experiment.loads {
        let Some((name, word, number)) = load.number() else { continue };
        match families.iter_mut().find(|family| family.name == name && family.word == word) {
            Some(family) => family.loads.push((number, load)),
            None => families.push(Family { name, word, loads: vec![(number, load)] }),
        }
    }
    for family in &mut families {
        family.loads.sort_by_key(|(number, _)| *number);
    }
    families
}

impl Family<'_> {
    /// A line for each configuration.
    fn plot(&self, column: &Column) -> Option<Plot> {
        let (least, first) = self.loads.first()?;
        let baseline = first.baseline()?;
        let base = column.of(baseline);
        let mut names: Vec<&str> = Vec::new();
        for line in self.loads.iter().flat_map(|(_, load)| &load.lines) {
            if !names.contains(&line.who.as_str()) {
                names.push(&line.who);
            }
        }
        let series = names.into_iter().map(|who| {
            let point = |(number, load): &(u32, &Load)| {
                let range = Range::of(column.of(load.line(who)?)?);
                let y = if column.is_time { range.against(base?)? } else { range };
                Some(Point { x: f64::from(*number), y })
            };
            Series { name: who.to_string(), points: self.loads.iter().filter_map(point).collect() }
        });
        let up = match column.ratio {
            Some(ratio) => format!("{ratio} x {} ({}: {least})", baseline.who, self.word),
            None => column.head.to_string(),
        };
        Plot {
            title: format!("{}: {}", self.name, column.ratio.unwrap_or(column.head)),
            across: self.word.to_string(),
            up,
            doubles: false,
            series: series.collect(),
        }
        .worth_it()
    }
}

fn sorted(mut points: Vec<Point>) -> Vec<Point> {
    points.sort_by(|one, other| one.x.total_cmp(&other.x));
    points
}

impl Plot {
    /// Itself without lines that have no points, if some line has two.
    fn worth_it(mut self) -> Option<Plot> {
        self.series.retain(|series| !series.points.is_empty());
        self.series.iter().any(|series| series.points.len() > 1).then_some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::super::groups::{experiments, tests::row};
    use super::*;

    #[test]
    fn quotas_have_a_line_for_each_load_in_the_order_of_the_quota() {
        let of = |load, quota: &str, value| {
            row(load, "exits_per_op", &format!("{QUOTA}{quota}"), value, "1/op")
        };
        let rows = [
            of("net.udp_send_256", "8", 0.1),
            of("net.udp_send_256", "2", 0.05),
            of("net.tcp_send_256", "2", 0.2),
        ];
        let plots = plots(&experiments(&rows)[0]);
        assert_eq!(plots.len(), 1, "no doorbells are known: {plots:?}");
        assert_eq!(plots[0].title, "exits/op by quota");
        let of = |series: &Series| {
            let points = series.points.iter().map(|point| (point.x, point.y.median));
            (series.name.clone(), points.collect::<Vec<_>>())
        };
        let lines: Vec<_> = plots[0].series.iter().map(of).collect();
        assert_eq!(lines[0], ("net.udp_send_256".to_string(), vec![(2.0, 0.05), (8.0, 0.1)]));
        assert_eq!(lines[1], ("net.tcp_send_256".to_string(), vec![(2.0, 0.2)]));
    }

    #[test]
    fn guests_have_a_line_for_each_configuration_in_parts_of_the_baseline_with_one() {
        let of = |guests: u32, who, value| {
            row(&format!("blk.guests{guests}.mixed4k"), "ops_per_s", who, value, "1/s")
        };
        let rows = [
            of(2, "sidecore", 4000.0),
            of(1, "qemu", 1000.0),
            of(1, "sidecore", 2000.0),
            of(2, "qemu", 1500.0),
        ];
        let plots = plots(&experiments(&rows)[0]);
        assert_eq!(plots.len(), 1);
        assert_eq!(plots[0].title, "blk.mixed4k: rate");
        assert_eq!(plots[0].up, "rate x qemu (guests: 1)");
        let of = |at: usize| -> Vec<(f64, f64)> {
            plots[0].series[at].points.iter().map(|point| (point.x, point.y.median)).collect()
        };
        assert_eq!(of(0), [(1.0, 1.0), (2.0, 1.5)]);
        assert_eq!(of(1), [(1.0, 2.0), (2.0, 4.0)]);
    }

    #[test]
    fn one_number_of_guests_is_no_line() {
        let rows = [row("blk.guests1.mixed4k", "ops_per_s", "qemu", 1.0, "1/s")];
        assert!(plots(&experiments(&rows)[0]).is_empty());
    }
}
