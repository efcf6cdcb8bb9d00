//! Rates that the docs quote: each is in data that a command wrote, or its line says that it is not.
//!
//! Data is `docs/performance/*.json`. Pages of decisions keep what was measured when they were written,
//! and are left alone. Times and ratios are too: their units stand for much that is not measured.

use crate::tidy::Finding;
use crate::tidy::source::Source;

/// Of numbers that only measuring gives, and what one of them is in the data's units.
const UNITS: [(&str, f64); 11] = [
    ("Mpps", 1.0),
    ("M/s", 1e6),
    ("k/s", 1e3),
    ("M IOPS", 1e6),
    ("k IOPS", 1e3),
    ("IOPS", 1.0),
    ("GB/s", 1.0),
    ("MB/s", 1.0),
    ("M a second", 1e6),
    ("ns a frame", 1.0),
    ("ns a request", 1.0),
];
/// On a line whose numbers were measured once and are in no data: what was run is beside it.
const MARK: &str = "<!-- by hand -->";
const DATA: &str = "docs/performance/";

pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    let is_data = |source: &&Source| source.is_in(&[DATA]) && source.path.ends_with(".json");
    let data: Vec<f64> =
        sources.iter().filter(is_data).flat_map(|source| numbers(&source.text)).collect();
    let is_page = |source: &&Source| {
        source.path.ends_with(".md")
            && source.is_in(&["README.md", "docs"])
            && !source.is_in(&["docs/decisions"])
    };
    sources.iter().filter(is_page).flat_map(|page| of_page(page, &data)).collect()
}

fn of_page(page: &Source, data: &[f64]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(page.text.lines()) {
        if line.contains(MARK) {
            continue;
        }
        for (word, value, half, unit) in rates(line) {
            if !data.iter().any(|known| (known - value).abs() <= half) {
                let message = format!(
                    "`{word} {unit}` is in no data of {DATA}: let a command write it, or say `{MARK}`"
                );
                findings.push(page.finding("measured", number, message));
            }
        }
    }
    findings
}

/// Numbers with such a unit: the word, its value in the data's unit, half of its last digit, the unit.
fn rates(line: &str) -> Vec<(&str, f64, f64, &'static str)> {
    let mut found = Vec::new();
    for (unit, scale) in UNITS {
        for (at, _) in line.match_indices(unit) {
            let after = line[at + unit.len()..].chars().next();
            if after.is_some_and(char::is_alphanumeric) {
                continue;
            }
            let before = line[..at].trim_end();
            let begin = before.rfind(|c: char| !(c.is_ascii_digit() || ",.".contains(c)));
            let word = before[begin.map_or(0, |begin| begin + 1)..].trim_start_matches([',', '.']);
            let digits = word.replace(',', "");
            let Ok(value) = digits.parse::<f64>() else { continue };
            let decimals = digits.split_once('.').map_or(0, |(_, part)| part.len());
            // A little more, for what rounding of binary fractions leaves.
            let half = 0.500_001 * scale / 10f64.powi(decimals as i32);
            found.push((word, value * scale, half, unit));
        }
    }
    found
}

/// All numbers of a JSON text that are no part of a word.
fn numbers(json: &str) -> impl Iterator<Item = f64> {
    let words = json.split(|c: char| c.is_whitespace() || "[]{}:,".contains(c));
    words.filter_map(|word| word.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, page: &str) -> Vec<String> {
        let data = "{\"of\": [{\"value\": 14412345.5, \"spread\": [729000, 8.13]}]}";
        let sources = [Source::new("docs/performance/peers.json", data), Source::new(path, page)];
        check(&sources).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_the_data_says_may_be_quoted_as_it_is_rounded() {
        let page = "14.4 M/s, (14.41 M a second), 729 k/s; 729,000 IOPS | 8.1 Mpps | in 20 ms\n";
        assert_eq!(messages("docs/performance.md", page), [""; 0]);
    }

    #[test]
    fn another_number_is_found_unless_its_line_says_so() {
        let message = |word: &str| {
            format!(
                "docs/a.md:1: `{word}` is in no data of docs/performance/: let a command write it, \
                 or say `<!-- by hand -->` [measured]"
            )
        };
        assert_eq!(messages("docs/a.md", "it does 14.5 M/s\n"), [message("14.5 M/s")]);
        assert_eq!(messages("docs/a.md", "8.13, 8.2 GB/s\n"), [message("8.2 GB/s")]);
        assert_eq!(messages("docs/a.md", "it does 14.5 M/s <!-- by hand -->\n"), [""; 0]);
        assert_eq!(messages("docs/decisions/0001-a.md", "it does 14.5 M/s\n"), [""; 0]);
        // Units without a number, and words that only begin so.
        assert_eq!(messages("docs/a.md", "M/s, and 5 IOPSes, GB/s of it\n"), [""; 0]);
    }
}
