//! Figures as SVG: panels side by side, lines with marks, one legend.
//!
//! Not what they show (`scenarios`), nor where the file goes (the program).

use anyhow::{Result, anyhow};
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

const PANEL_WIDTH: u32 = 460;
const HEIGHT: u32 = 400;
const TITLE_PX: u32 = 24;
const LABEL_PX: u32 = 17;
const LEGEND_PX: i32 = 28;

/// Distinct for colour-blind readers too (Okabe and Ito); the marks differ as well.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 86, 86),
];

/// A line.
#[derive(Clone, Debug)]
pub struct Series {
    /// As in the legend.
    pub name: String,
    /// By x.
    pub points: Vec<(f64, f64)>,
}

/// One pair of axes.
#[derive(Clone, Debug)]
pub struct Panel {
    /// Above it.
    pub title: String,
    /// What is to the right, with its unit.
    pub x: String,
    /// What is up, with its unit.
    pub y: String,
    /// Whether the axes' steps are factors instead of sums.
    pub log: (bool, bool),
    /// In the order of the legend, the same in all panels.
    pub series: Vec<Series>,
}

/// A file.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Its name, without `.svg`.
    pub name: &'static str,
    /// Above all panels.
    pub title: String,
    /// From the left.
    pub panels: Vec<Panel>,
}

impl Figure {
    /// The file's content.
    ///
    /// # Errors
    /// What the plotting library says.
    pub fn svg(&self) -> Result<String> {
        let mut svg = String::new();
        let width = PANEL_WIDTH * self.panels.len() as u32;
        {
            let root = SVGBackend::with_string(&mut svg, (width, HEIGHT)).into_drawing_area();
            root.fill(&WHITE).map_err(said)?;
            let font = ("sans-serif", TITLE_PX).into_font();
            let body = root.titled(&self.title, font).map_err(said)?;
            let (legend, body) = body.split_vertically(LEGEND_PX);
            self.legend(&legend)?;
            for (area, panel) in body.split_evenly((1, self.panels.len())).iter().zip(&self.panels)
            {
                panel.draw(area)?;
            }
            root.present().map_err(said)?;
        }
        svg.push('\n');
        Ok(svg)
    }

    fn legend(&self, area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>) -> Result<()> {
        let Some(panel) = self.panels.first() else { return Ok(()) };
        let mut x = 60;
        let middle = LEGEND_PX / 2;
        for (number, series) in panel.series.iter().enumerate() {
            let colour = colour(number);
            let line =
                PathElement::new(vec![(x, middle), (x + 26, middle)], colour.stroke_width(2));
            area.draw(&line).map_err(said)?;
            area.draw(&mark(number, (x + 13, middle))).map_err(said)?;
            let font = ("sans-serif", LABEL_PX).into_font();
            area.draw(&Text::new(series.name.clone(), (x + 32, middle - 7), font)).map_err(said)?;
            x += 60 + 8 * series.name.len() as i32;
        }
        Ok(())
    }
}

impl Panel {
    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>) -> Result<()> {
        let (mut x, y) =
            (self.range(|point| point.0, self.log.0), self.range(|point| point.1, self.log.1));
        let first = self.points().map(|point| point.0).fold(f64::MAX, f64::min);
        // Half of the width for points that nobody asked for is too much.
        if !self.log.0 && first >= x.end / 3.0 {
            x.start = first - x.end * 0.03;
        }
        match self.log {
            (false, false) => self.draw_in::<RangedCoordf64, RangedCoordf64, _, _>(area, x, y),
            (false, true) => self.draw_in(area, x, y.log_scale()),
            (true, false) => self.draw_in(area, x.log_scale(), y),
            (true, true) => self.draw_in(area, x.log_scale(), y.log_scale()),
        }
    }

    fn draw_in<X, Y, XR, YR>(
        &self,
        area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
        x: XR,
        y: YR,
    ) -> Result<()>
    where
        XR: AsRangedCoord<CoordDescType = X, Value = f64>,
        YR: AsRangedCoord<CoordDescType = Y, Value = f64>,
        X: Ranged<ValueType = f64> + ValueFormatter<f64>,
        Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, ("sans-serif", LABEL_PX + 2))
            .margin(8)
            .margin_right(18)
            .x_label_area_size(42)
            .y_label_area_size(64)
            .build_cartesian_2d(x, y)
            .map_err(said)?;
        chart
            .configure_mesh()
            .x_desc(&self.x)
            .y_desc(&self.y)
            .axis_desc_style(("sans-serif", LABEL_PX))
            .label_style(("sans-serif", LABEL_PX - 2))
            .bold_line_style(RGBColor(210, 210, 210))
            .x_labels(8)
            .y_labels(6)
            .max_light_lines(1)
            .light_line_style(RGBColor(240, 240, 240))
            .x_label_formatter(&|value| number(*value))
            .y_label_formatter(&|value| number(*value))
            .draw()
            .map_err(said)?;
        for (number, series) in self.series.iter().enumerate() {
            let points = self.shown(series);
            let line = LineSeries::new(points.clone(), colour(number).stroke_width(2));
            chart.draw_series(line).map_err(said)?;
            let from = area.get_base_pixel();
            for point in &points {
                let at = chart.plotting_area().map_coordinate(point);
                area.draw(&mark(number, (at.0 - from.0, at.1 - from.1))).map_err(said)?;
            }
        }
        Ok(())
    }

    fn points(&self) -> impl Iterator<Item = (f64, f64)> {
        self.series.iter().flat_map(|series| self.shown(series))
    }

    /// An axis of factors has no place for what is not above 0.
    fn shown(&self, series: &Series) -> Vec<(f64, f64)> {
        let fits =
            |point: &&(f64, f64)| (!self.log.0 || point.0 > 0.0) && (!self.log.1 || point.1 > 0.0);
        series.points.iter().filter(fits).copied().collect()
    }

    /// What an axis shows: from 0, or from the power of ten below what is least.
    fn range(&self, of: impl Fn(&(f64, f64)) -> f64, log: bool) -> std::ops::Range<f64> {
        let shown = || self.points().map(|point| of(&point));
        let most = shown().fold(f64::MIN_POSITIVE, f64::max);
        if !log {
            return 0.0..most * 1.06;
        }
        let least = shown().fold(most, f64::min);
        let mut from = 1.0;
        while from > least {
            from /= 10.0;
        }
        while from * 10.0 <= least {
            from *= 10.0;
        }
        from..most * 1.5
    }
}

fn colour(number: usize) -> RGBColor {
    COLOURS[number % COLOURS.len()]
}

fn mark<'a>(number: usize, at: (i32, i32)) -> DynElement<'static, SVGBackend<'a>, (i32, i32)> {
    let style = colour(number).filled();
    match number % 3 {
        0 => Circle::new(at, 4, style).into_dyn(),
        1 => TriangleMarker::new(at, 5, style).into_dyn(),
        _ => Rectangle::new([(at.0 - 3, at.1 - 3), (at.0 + 3, at.1 + 3)], style).into_dyn(),
    }
}

/// Few digits, and thousands and millions by letter.
fn number(value: f64) -> String {
    let (scaled, letter) = match value.abs() {
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = if scaled.abs() < 0.1 { 3 } else { 1 };
    let text = format!("{scaled:.digits$}");
    let short = text.trim_end_matches('0').trim_end_matches('.');
    format!("{}{letter}", if short.is_empty() { "0" } else { short })
}

fn said(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("cannot plot: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_short() {
        let labels = [0.0, 0.05, 0.5, 3.0, 100.0, 20_000.0, 2_500_000.0].map(number);
        assert_eq!(labels, ["0", "0.05", "0.5", "3", "100", "20k", "2.5M"]);
    }

    #[test]
    fn a_figure_has_its_words_and_the_same_bytes_each_time() {
        let series = vec![
            Series { name: "one".to_owned(), points: vec![(0.0, 1.0), (3.0, 250.0)] },
            Series { name: "two".to_owned(), points: vec![(0.0, 0.0), (3.0, 2.0)] },
        ];
        let panel = |log| Panel {
            title: "panel".to_owned(),
            x: "guests".to_owned(),
            y: "latency, us".to_owned(),
            log,
            series: series.clone(),
        };
        let panels = vec![panel((false, false)), panel((false, true)), panel((true, true))];
        let figure = Figure { name: "f", title: "A figure".to_owned(), panels };
        let svg = figure.svg().unwrap();
        for word in ["A figure", "panel", "guests", "latency, us", "one", "two", "polyline"] {
            assert!(svg.contains(word), "{word} is not in {svg}");
        }
        assert_eq!(svg, figure.svg().unwrap());
    }
}
