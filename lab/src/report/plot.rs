//! Lines in a frame with axes, as SVG that needs nothing from elsewhere.
//!
//! Not what is drawn (`series`). Used by `html`.

use std::fmt::Write;

use super::columns::Range;
use super::html::escaped;

/// Lines, and what the axes are.
#[derive(Debug)]
pub(super) struct Plot {
    pub(super) title: String,
    /// Of the axis across, with its unit.
    pub(super) across: String,
    /// Of the axis that goes up, with its unit.
    pub(super) up: String,
    /// Each doubling is as wide as the next.
    pub(super) doubles: bool,
    pub(super) series: Vec<Series>,
}

/// A line.
#[derive(Debug)]
pub(super) struct Series {
    pub(super) name: String,
    /// By `x`.
    pub(super) points: Vec<Point>,
}

/// A median, with its ends, at a number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    pub(super) x: f64,
    pub(super) y: Range,
}

/// Told apart without red beside green; the ninth line has the first one's again, broken.
pub(super) const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#b8860b", "#444444", "#8c6bb1"];

const WIDTH: f64 = 620.0;
const HEIGHT: f64 = 310.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = 420.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 256.0;
/// Lines across, about.
const TICKS: f64 = 5.0;

impl Plot {
    /// As SVG.
    pub(super) fn svg(&self) -> String {
        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" role=\"img\" aria-label=\"{0}\">\
             <text x=\"{LEFT}\" y=\"18\" font-weight=\"bold\">{0}</text>",
            escaped(&self.title)
        );
        let frame = Frame::of(self);
        self.axes(&frame, &mut svg);
        for (at, series) in self.series.iter().enumerate() {
            series.draw(at, &frame, &mut svg);
        }
        svg + "</svg>"
    }

    fn axes(&self, frame: &Frame, svg: &mut String) {
        let mut y = 0.0;
        while y <= frame.top + frame.step / 2.0 {
            let at = frame.y(y);
            let _ = write!(
                svg,
                "<line x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" font-size=\"12\">{y:.*}</text>",
                LEFT - 6.0,
                at + 4.0,
                frame.digits
            );
            y += frame.step;
        }
        for x in self.numbers() {
            let at = frame.x(x);
            let _ = write!(
                svg,
                "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{BOTTOM}\" y2=\"{}\" stroke=\"#222\"/>\
                 <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\" font-size=\"12\">{x}</text>",
                BOTTOM + 5.0,
                BOTTOM + 19.0
            );
        }
        let [middle, centre] = [f64::midpoint(LEFT, RIGHT), f64::midpoint(TOP, BOTTOM)];
        let _ = write!(
            svg,
            "<path d=\"M{LEFT} {TOP}V{BOTTOM}H{RIGHT}\" fill=\"none\" stroke=\"#222\"/>\
             <text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\" font-size=\"13\">{}</text>\
             <text transform=\"translate(15 {centre}) rotate(-90)\" text-anchor=\"middle\" font-size=\"13\">{}</text>",
            BOTTOM + 40.0,
            escaped(&self.across),
            escaped(&self.up)
        );
    }

    /// Each number across once, the least first.
    fn numbers(&self) -> Vec<f64> {
        let points = self.series.iter().flat_map(|series| &series.points);
        let mut numbers: Vec<f64> = points.map(|point| point.x).collect();
        numbers.sort_by(f64::total_cmp);
        numbers.dedup();
        numbers
    }
}

impl Series {
    fn draw(&self, at: usize, frame: &Frame, svg: &mut String) {
        let colour = COLOURS[at % COLOURS.len()];
        let dashes = if at < COLOURS.len() { "" } else { " stroke-dasharray=\"5 3\"" };
        let at_of = |point: &Point| (frame.x(point.x), frame.y(point.y.median));
        let line: Vec<String> = self
            .points
            .iter()
            .map(|point| {
                let (x, y) = at_of(point);
                format!("{x:.1},{y:.1}")
            })
            .collect();
        let _ = write!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dashes}/>",
            line.join(" ")
        );
        for point in &self.points {
            let (x, y) = at_of(point);
            let (least, most) = (frame.y(point.y.least), frame.y(point.y.most));
            let told = escaped(&format!("{}, {}: {}", self.name, point.x, point.y.shown()));
            let _ = write!(
                svg,
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{least:.1}\" y2=\"{most:.1}\" stroke=\"{colour}\"/>\
                 <circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{colour}\"><title>{told}</title></circle>"
            );
        }
        let y = TOP + 8.0 + 18.0 * at as f64;
        let _ = write!(
            svg,
            "<line x1=\"{}\" x2=\"{}\" y1=\"{y}\" y2=\"{y}\" stroke=\"{colour}\" stroke-width=\"3\"{dashes}/>\
             <text x=\"{}\" y=\"{}\" font-size=\"12\">{}</text>",
            RIGHT + 16.0,
            RIGHT + 38.0,
            RIGHT + 44.0,
            y + 4.0,
            escaped(&self.name)
        );
    }
}

/// Where numbers lie.
struct Frame {
    from: f64,
    to: f64,
    doubles: bool,
    /// The greatest up, a multiple of `step`.
    top: f64,
    step: f64,
    digits: usize,
}

impl Frame {
    fn of(plot: &Plot) -> Frame {
        let numbers = plot.numbers();
        let ends = [numbers.first(), numbers.last()];
        let [from, to] = ends.map(|end| end.copied().unwrap_or(1.0));
        let points = plot.series.iter().flat_map(|series| &series.points);
        let most = points.map(|point| point.y.most).fold(0.0, f64::max);
        let (step, digits) = step_of(most);
        let top = (most / step).ceil().max(1.0) * step;
        Frame { from, to, doubles: plot.doubles, top, step, digits }
    }

    fn x(&self, x: f64) -> f64 {
        // No number is below 1 where doublings are counted.
        let of = |x: f64| if self.doubles { x.max(1.0).log2() } else { x };
        let wide = of(self.to) - of(self.from);
        let part = if wide > 0.0 { (of(x) - of(self.from)) / wide } else { 0.5 };
        // A little away from both ends.
        LEFT + 16.0 + part * (RIGHT - LEFT - 32.0)
    }

    fn y(&self, y: f64) -> f64 {
        BOTTOM - y / self.top * (BOTTOM - TOP)
    }
}

/// 1, 2 or 5 of some power of ten, about [`TICKS`] of them to `most`; and its digits after the point.
fn step_of(most: f64) -> (f64, usize) {
    let most = if most > 0.0 { most } else { 1.0 };
    let power = (most / TICKS).log10().floor();
    let ten = 10f64.powf(power);
    let parts = most / TICKS / ten;
    let (factor, power) = match parts {
        parts if parts <= 1.0 => (1.0, power),
        parts if parts <= 2.0 => (2.0, power),
        parts if parts <= 5.0 => (5.0, power),
        _ => (1.0, power + 1.0),
    };
    (factor * 10f64.powf(power), (-power).max(0.0) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(doubles: bool, points: &[(f64, f64)]) -> Plot {
        let point = |(x, y): &(f64, f64)| Point { x: *x, y: Range::new(*y, *y, *y) };
        let series = Series { name: "<a> & b".into(), points: points.iter().map(point).collect() };
        let words = ["title", "quota", "exits/op"].map(String::from);
        let [title, across, up] = words;
        Plot { title, across, up, doubles, series: vec![series] }
    }

    #[test]
    fn steps_are_round() {
        let near = |most, step: f64, digits| {
            let found = step_of(most);
            assert!((found.0 - step).abs() < step / 1e6 && found.1 == digits, "{most}: {found:?}");
        };
        near(0.0, 0.2, 1);
        near(1.0, 0.2, 1);
        near(4.86, 1.0, 0);
        near(0.043, 0.01, 2);
        near(31.0, 10.0, 0);
        near(5.1, 2.0, 0);
    }

    #[test]
    fn a_plot_has_its_axes_ticks_and_legend_and_loads_nothing() {
        let svg = plot(true, &[(2.0, 0.1), (4.0, 0.2), (64.0, 0.9)]).svg();
        for part in [">quota<", ">exits/op<", ">64<", ">0.8<", "&lt;a> &amp; b<", "title"] {
            assert!(svg.contains(part), "{part} not in {svg}");
        }
        assert_eq!(svg.matches("<circle").count(), 3);
        assert!(!svg.contains("http") && !svg.contains("href"));
        assert_eq!(svg.matches("NaN").count() + svg.matches("inf").count(), 0, "{svg}");
    }

    #[test]
    fn numbers_lie_where_they_should() {
        let points = [(2.0, 0.0), (8.0, 1.0), (32.0, 1.0)];
        let of = |doubles| {
            let frame = Frame::of(&plot(doubles, &points));
            [2.0, 8.0, 32.0].map(|x| (frame.x(x) - frame.x(2.0)) / (frame.x(32.0) - frame.x(2.0)))
        };
        assert_eq!(of(true), [0.0, 0.5, 1.0]);
        assert_eq!(of(false), [0.0, 0.2, 1.0]);
        let frame = Frame::of(&plot(true, &points));
        assert_eq!((frame.y(0.0), frame.y(frame.top)), (BOTTOM, TOP));
        assert!(frame.x(2.0) > LEFT && frame.x(32.0) < RIGHT);
    }
}
