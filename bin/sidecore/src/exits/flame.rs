//! The same as a flame graph, a file of its own: functions, on each its reasons, on these what they were about. As wide
//! as the time that the host was at work for them.
//!
//! SVG 1.1 without a script: what a frame is called in full, and its numbers, is its tooltip.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use exits::{Report, Row};

use crate::table::{duration, plain};

/// Units of the picture's width; it is shown as wide as there is room.
const WIDTH: f64 = 1200.0;
/// Of a frame's height, and of the title's.
const LINE: f64 = 22.0;
const HEAD: f64 = 34.0;
const MARGIN: f64 = 8.0;
/// Of a letter: those of each fixed-width font are narrower.
const LETTER: f64 = 7.4;
/// Narrower frames are left out: nobody sees them.
const LEAST: f64 = 0.3;
/// Fewer letters say nothing.
const LETTERS_MIN: usize = 3;

/// What is one frame: how long, how often, and what is on it.
#[derive(Default)]
struct Frame {
    ns: u64,
    exits: u64,
    on: BTreeMap<String, Frame>,
}

/// The picture.
pub(crate) fn drawn(report: &Report) -> String {
    let all = frames(&report.rows);
    let levels = depth(&all);
    let height = HEAD + LINE * levels as f64 + MARGIN;
    let who = report.name.as_deref().map_or_else(
        || format!("process {}", report.process),
        |name| format!("{} (process {})", plain(name), report.process),
    );
    let title = format!(
        "{who}: {} exits in {}, {} at work for them",
        report.exits,
        duration(report.period_ns),
        duration(report.handling_ns)
    );
    let mut picture = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"100%\" \
         role=\"img\" aria-label=\"{0}\" font-family=\"monospace\" font-size=\"12\">\n{STYLE}\
         <rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\"/>\n\
         <text x=\"{MARGIN}\" y=\"22\" class=\"ink\" font-size=\"14\">{0}</text>\n",
        escaped(&title)
    );
    let drawing = Drawing { whole: all.ns, floor: height - MARGIN - LINE };
    drawing.frame(&mut picture, ("all", &all), (MARGIN, WIDTH - 2.0 * MARGIN), 0);
    picture + "</svg>\n"
}

/// Paper and ink by what the viewer prefers.
const STYLE: &str = "<style>\
    .paper{fill:#fff}.ink{fill:#222}.frame{stroke:#fff;stroke-width:1}.frame:hover{stroke:#000}\
    .name{fill:#111;pointer-events:none}\
    @media (prefers-color-scheme:dark){.paper{fill:#16181c}.ink{fill:#ddd}.frame{stroke:#16181c}\
    .frame:hover{stroke:#fff}}</style>\n";

fn frames(rows: &[Row]) -> Frame {
    let mut all = Frame::default();
    for row in rows {
        let module = row.module.as_ref().map(|module| format!(" [{module}]")).unwrap_or_default();
        let about = [row.detail.as_str(), row.device.unwrap_or_default()];
        let about: Vec<&str> = about.into_iter().filter(|text| !text.is_empty()).collect();
        let path = [row.function.clone() + &module, row.reason.clone(), about.join(" ")];
        all.add(row);
        let mut frame = &mut all;
        for name in path.into_iter().filter(|name| !name.is_empty()) {
            frame = frame.on.entry(name).or_default();
            frame.add(row);
        }
    }
    all
}

impl Frame {
    fn add(&mut self, row: &Row) {
        self.ns = self.ns.saturating_add(row.handling_ns);
        self.exits = self.exits.saturating_add(row.exits);
    }
}

/// How many frames lie on each other at most.
fn depth(frame: &Frame) -> usize {
    1 + frame.on.values().map(depth).max().unwrap_or(0)
}

/// How it is drawn: what all is, and where the lowest frame lies.
struct Drawing {
    whole: u64,
    floor: f64,
}

impl Drawing {
    /// Draws a frame and what is on it, from `x` on, `width` wide. Bounded by the four levels of a path.
    fn frame(
        &self,
        picture: &mut String,
        (name, frame): (&str, &Frame),
        (x, width): (f64, f64),
        level: usize,
    ) {
        if width < LEAST {
            return;
        }
        let y = self.floor - LINE * level as f64;
        let name = plain(name);
        let share = 100.0 * part(frame.ns, self.whole);
        let tip = format!("{name}: {} exits, {}, {share:.1}%", frame.exits, duration(frame.ns));
        let _ = write!(
            picture,
            "<g><title>{}</title><rect class=\"frame\" x=\"{x:.2}\" y=\"{y:.1}\" width=\"{width:.2}\" \
             height=\"{LINE}\" rx=\"2\" fill=\"{}\"/>",
            escaped(&tip),
            color(&name, level)
        );
        let letters = ((width - 6.0) / LETTER).max(0.0) as usize;
        if letters >= LETTERS_MIN {
            let _ = write!(
                picture,
                "<text class=\"name\" x=\"{:.2}\" y=\"{:.1}\">{}</text>",
                x + 3.0,
                y + 15.0,
                escaped(&cut(&name, letters))
            );
        }
        picture.push_str("</g>\n");
        let mut on: Vec<(&String, &Frame)> = frame.on.iter().collect();
        on.sort_by_key(|(_, frame)| std::cmp::Reverse(frame.ns));
        let mut at = x;
        for (name, above) in on {
            let wide = width * part(above.ns, frame.ns);
            self.frame(picture, (name, above), (at, wide), level + 1);
            at += wide;
        }
    }
}

fn part(of: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { of as f64 / whole as f64 }
}

/// As many letters as there is room for; two dots stand for the rest.
fn cut(name: &str, letters: usize) -> String {
    if name.chars().count() <= letters {
        return name.to_string();
    }
    name.chars().take(letters.saturating_sub(2)).chain("..".chars()).collect()
}

/// The same name has the same color: warm ones are functions, cool ones reasons.
fn color(name: &str, level: usize) -> &'static str {
    let colors = match level {
        0 => ["#c8c8c8"; 6],
        1 => ["#f2b27a", "#f0a35f", "#f4c088", "#eeb04f", "#f3c56d", "#eb9a70"],
        2 => ["#8fc1e3", "#7fb3dd", "#9ad0e0", "#86c5d8", "#a3b8e8", "#93abdf"],
        _ => ["#a8d8a0", "#98cf92", "#b7dfa5", "#a5d4b4", "#c0dd9c", "#9fd3a8"],
    };
    let hash = name.bytes().fold(0_usize, |hash, it| hash.wrapping_mul(31).wrapping_add(it.into()));
    colors.get(hash % colors.len()).copied().unwrap_or("#c8c8c8")
}

/// As text of XML has it.
fn escaped(text: &str) -> String {
    let mut whole = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => whole.push_str("&amp;"),
            '<' => whole.push_str("&lt;"),
            '>' => whole.push_str("&gt;"),
            '"' => whole.push_str("&quot;"),
            // No document may have these (XML 1.0, 2.2).
            '\0'..='\u{8}' | '\u{b}' | '\u{c}' | '\u{e}'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => {
                whole.push('\u{fffd}');
            }
            letter => whole.push(letter),
        }
    }
    whole
}

#[cfg(test)]
mod tests;
