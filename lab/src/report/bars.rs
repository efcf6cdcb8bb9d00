//! A bar for each configuration of a load: the exits an operation costs, by cause, as SVG.
//!
//! Used by `html`.

use std::fmt::Write;

use super::columns::EXITS;
use super::groups::{Line, Load};
use super::html::escaped;
use super::plot::COLOURS;

const NAMES: f64 = 170.0;
const BARS: f64 = 560.0;
const LINE: f64 = 22.0;
/// Of causes beyond the colours there are.
const OTHER: &str = "#999999";
/// What a letter of the legend is wide, at most.
const LETTER: f64 = 7.0;

/// Bars and a legend. `causes` are all of the page: each has its colour on all of it. Nothing where no exits are known.
pub(super) fn svg(load: &Load, causes: &[&str]) -> String {
    let total = |line: &Line| EXITS.of(line).map_or(0.0, |row| row.value);
    if !EXITS.is_in(load) {
        return String::new();
    }
    let most = load.lines.iter().map(total).fold(0.001, f64::max);
    let height = LINE * (load.lines.len() as f64 + 1.6);
    let width = NAMES + BARS + 80.0;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {width} {height}\" width=\"{width}\" role=\"img\" aria-label=\"{}: exits an operation by cause\">",
        escaped(&load.name)
    );
    for (at, line) in load.lines.iter().enumerate() {
        let y = LINE * at as f64;
        let _ = write!(
            svg,
            "<text x=\"0\" y=\"{}\" font-size=\"13\">{}</text>",
            y + 15.0,
            escaped(&line.who)
        );
        let mut x = NAMES;
        for (cause, value) in line.causes() {
            let wide = value / most * BARS;
            let _ = write!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{}\" width=\"{wide:.1}\" height=\"16\" fill=\"{}\"><title>{}: {} {value:.3}</title></rect>",
                y + 3.0,
                colour(cause, causes),
                escaped(&line.who),
                escaped(cause)
            );
            x += wide;
        }
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\" font-size=\"13\">{:.2}</text>",
            x + 5.0,
            y + 15.0,
            total(line)
        );
    }
    legend(load, causes, &mut svg);
    svg + "</svg>"
}

/// Causes that this load has.
fn legend(load: &Load, causes: &[&str], svg: &mut String) {
    let mut x = NAMES;
    let y = LINE * (load.lines.len() as f64 + 0.5);
    let has = |cause: &&&str| {
        load.lines.iter().any(|line| line.causes().iter().any(|(one, _)| one == *cause))
    };
    for cause in causes.iter().filter(has) {
        let _ = write!(
            svg,
            "<rect x=\"{x}\" y=\"{y}\" width=\"11\" height=\"11\" fill=\"{}\"/>\
             <text x=\"{}\" y=\"{}\" font-size=\"12\">{}</text>",
            colour(cause, causes),
            x + 15.0,
            y + 10.0,
            escaped(cause)
        );
        x += 30.0 + LETTER * cause.len() as f64;
    }
}

fn colour(cause: &str, causes: &[&str]) -> &'static str {
    let at = causes.iter().position(|known| *known == cause);
    at.and_then(|at| COLOURS.get(at)).copied().unwrap_or(OTHER)
}

#[cfg(test)]
mod tests {
    use super::super::groups::{experiments, tests::measured};
    use super::*;

    #[test]
    fn bars_are_as_long_as_there_are_exits_and_a_cause_has_one_colour() {
        let found = experiments(&measured());
        let svg = svg(&found[0].loads[0], &["vintr", "npf", "hlt"]);
        // 0.95 of 2.43, of 560.
        assert!(svg.contains("width=\"218.9\" height=\"16\" fill=\"#009e73\""), "{svg}");
        assert!(svg.contains("fill=\"#d55e00\"><title>qemu: npf 1.000</title>"), "{svg}");
        assert!(!svg.contains("vintr"), "not of this load: {svg}");
        assert!(svg.contains(">2.43<") && svg.contains(">1.40<"), "{svg}");
    }
}
