//! The page: for each load bars of the exits an operation costs, by cause, and its table.

use std::fmt::Write;

use super::table::Load;

/// Colours of causes, in the order in which a load's configurations bring them.
const COLOURS: [&str; 8] =
    ["#3366cc", "#dc8a1e", "#2a9d5c", "#b03060", "#7b52ab", "#4d9fb5", "#8a8a2b", "#777777"];
const BAR_WIDTH: f64 = 560.0;
const NAME_WIDTH: f64 = 170.0;
const LINE: f64 = 22.0;

/// All of it, without anything from elsewhere.
pub(super) fn page(loads: &[Load], emulated: bool) -> String {
    let mut page = String::from(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Sidecore: the lab</title><style>\
         body{font:15px/1.5 system-ui,sans-serif;max-width:64em;margin:2em auto;padding:0 1em;color:#222}\
         table{border-collapse:collapse;margin:.6em 0 2em}td,th{padding:.15em .8em;text-align:right;border-bottom:1px solid #ddd}\
         td:first-child,th:first-child,td:last-child,th:last-child{text-align:left}.note{background:#fff6dd;padding:.6em 1em}\
         </style><h1>What a guest's I/O costs on real KVM</h1>\
         <p>Exits an operation, counted by the kernel that runs the guest, between a load's first and last operation.</p>",
    );
    if emulated {
        page += "<p class=\"note\">KVM ran on an emulated machine: counts are KVM's own, times would be the emulator's, \
                 so none are shown.</p>";
    }
    for load in loads {
        let _ = write!(page, "<h2>{}</h2>", escaped(&load.name));
        page += &bars(load);
        page += &table(load, emulated);
    }
    page + "</html>\n"
}

fn bars(load: &Load) -> String {
    let total = |line: &super::table::Line| line.value("exits_per_op").map_or(0.0, |row| row.value);
    let most = load.lines.iter().map(total).fold(0.001, f64::max);
    let mut causes: Vec<&str> = Vec::new();
    for (cause, _) in load.lines.iter().flat_map(super::table::Line::causes) {
        if !causes.contains(&cause) {
            causes.push(cause);
        }
    }
    let colour = |cause: &str| {
        let at = causes.iter().position(|known| *known == cause).unwrap_or(COLOURS.len());
        COLOURS.get(at).or(COLOURS.last()).copied().unwrap_or("#777777")
    };
    let height = LINE * (load.lines.len() + 2) as f64;
    let width = NAME_WIDTH + BAR_WIDTH + 80.0;
    let mut svg = format!(
        "<svg width=\"{width}\" height=\"{height}\" role=\"img\" aria-label=\"exits an operation\">"
    );
    for (at, line) in load.lines.iter().enumerate() {
        let y = LINE * at as f64;
        let _ = write!(svg, "<text x=\"0\" y=\"{}\">{}</text>", y + 15.0, escaped(&line.who));
        let mut x = NAME_WIDTH;
        for (cause, value) in line.causes() {
            let wide = value / most * BAR_WIDTH;
            let _ = write!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{}\" width=\"{wide:.1}\" height=\"16\" fill=\"{}\"><title>{} {value:.3}</title></rect>",
                y + 3.0,
                colour(cause),
                escaped(cause)
            );
            x += wide;
        }
        let _ =
            write!(svg, "<text x=\"{:.1}\" y=\"{}\">{:.2}</text>", x + 5.0, y + 15.0, total(line));
    }
    let mut x = NAME_WIDTH;
    let y = LINE * (load.lines.len() as f64 + 0.5);
    for cause in &causes {
        let fill = colour(cause);
        let _ = write!(
            svg,
            "<rect x=\"{x}\" y=\"{y}\" width=\"11\" height=\"11\" fill=\"{fill}\"/><text x=\"{}\" y=\"{}\" \
             font-size=\"12\">{}</text>",
            x + 15.0,
            y + 10.0,
            escaped(cause)
        );
        x += 30.0 + 7.0 * cause.len() as f64;
    }
    svg + "</svg>"
}

fn table(load: &Load, emulated: bool) -> String {
    let line = |tag: &str, cells: &[String]| {
        let cells: String =
            cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect();
        format!("<tr>{cells}</tr>")
    };
    let heads: Vec<String> = Load::heads(emulated).iter().map(ToString::to_string).collect();
    let mut table = format!("<table>{}", line("th", &heads));
    for configuration in &load.lines {
        table += &line("td", &configuration.cells(emulated));
    }
    table + "</table>"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}
