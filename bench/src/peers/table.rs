//! The table of a run, and its place between two marks of `docs/performance.md`.
//!
//! A test compares what stands there with what the kept data says, so nobody writes it by hand.

use std::path::Path;

use anyhow::{Context, Result};

use super::report::{Compared, One, Outcome, Report};

const BEGIN: &str = "<!-- peers: begin, written by `./x bench peers --write` -->\n";
const END: &str = "<!-- peers: end -->\n";
/// What stands there before a run was kept.
#[cfg(test)]
const NOTHING: &str = "No run has been kept yet.\n";

/// Keeps a run, and puts its table into the docs.
pub(super) fn write(docs: &Path, report: &Report) -> Result<()> {
    let (data, page) = (docs.join("performance/peers.json"), docs.join("performance.md"));
    let text = std::fs::read_to_string(&page).with_context(|| page.display().to_string())?;
    let text = replaced(&text, &markdown(report)).with_context(|| page.display().to_string())?;
    std::fs::create_dir_all(docs.join("performance"))?;
    std::fs::write(&data, serde_json::to_string_pretty(report)? + "\n")
        .with_context(|| data.display().to_string())?;
    std::fs::write(&page, text).with_context(|| page.display().to_string())
}

/// A page with another block between its marks.
fn replaced(page: &str, block: &str) -> Result<String> {
    let (before, rest) = page.split_once(BEGIN).with_context(|| format!("no line {BEGIN:?}"))?;
    let (_, after) = rest.split_once(END).with_context(|| format!("no line {END:?}"))?;
    Ok(format!("{before}{BEGIN}{block}{END}{after}"))
}

/// A run as Markdown.
pub(super) fn markdown(report: &Report) -> String {
    let machine = &report.machine;
    let mut text = format!(
        "{}, {} processors, Linux {}; medians of {} rounds in turns.\n\n\
         | work | sidecore | others, the best first | ratio | wanted | free, % |\n|---|---|---|---|---|---|\n",
        machine.processor, machine.processors, machine.kernel, report.rounds
    );
    let (shown, left): (Vec<&Compared>, Vec<&Compared>) =
        report.rows.iter().partition(|row| matches!(row.outcome, Outcome::Kept | Outcome::Marked));
    for row in shown {
        text += &line(row);
    }
    let mut notes: Vec<String> = Vec::new();
    for row in left {
        let why = match (row.outcome, &row.share) {
            (Outcome::Disturbed, Some(share)) => {
                let percent = share.least() * 100.0;
                format!("thrown away: others worked ({percent:.0}% of a core was free)")
            }
            _ => format!(
                "not run: {}",
                first_line(row.why.as_deref().unwrap_or("no reason is known"))
            ),
        };
        notes.push(format!("- `{}`: {why}\n", row.name));
    }
    for lacking in &report.lacking {
        notes.push(format!("- {}: not measured: {}\n", lacking.who, first_line(&lacking.why)));
    }
    if !notes.is_empty() {
        text += "\n";
        text += &notes.concat();
    }
    text
}

fn line(row: &Compared) -> String {
    let ours = row.ours().map_or("none".to_owned(), |one| rate(one, &row.unit));
    let others = row.others();
    let others = others.iter().map(|one| format!("{} {}", one.who, rate(one, &row.unit)));
    let others = others.collect::<Vec<_>>().join(", ");
    let ratio = row.ratio().map_or(String::new(), |ratio| format!("{ratio:.2}"));
    let ratio = if row.is_met() == Some(false) { format!("**{ratio}**") } else { ratio };
    let wanted = match (row.wanted, row.is_met()) {
        (Some(wanted), Some(true)) => format!("{wanted:.1}: met"),
        (Some(wanted), Some(false)) => format!("{wanted:.1}: not met"),
        _ => String::new(),
    };
    let free = row.share.map_or(String::new(), |share| {
        let percent = |[server, client]: [f64; 2]| {
            format!("{:.0}/{:.0}", server.min(1.0) * 100.0, client.min(1.0) * 100.0)
        };
        format!("{}, {}", percent(share.before), percent(share.after))
    });
    let mark = if row.outcome == Outcome::Marked { " (others worked)" } else { "" };
    format!("| {}{mark} | {ours} | {others} | {ratio} | {wanted} | {free} |\n", row.what)
}

/// A number with its unit, and the spread of the rounds.
fn rate(one: &One, unit: &str) -> String {
    let (divisor, unit) = match unit {
        "1/s" if one.value >= 1e6 => (1e6, "M/s"),
        "1/s" => (1e3, "k/s"),
        "M/s" => (1.0, "Mpps"),
        other => (1.0, other),
    };
    let [value, least, most] =
        [one.value, one.spread[0], one.spread[1]].map(|number| digits(number / divisor));
    format!("{value} {unit} ({least} to {most})")
}

/// Three digits, or all before the point.
fn digits(number: f64) -> String {
    match number {
        number if number >= 100.0 => format!("{number:.0}"),
        number if number >= 10.0 => format!("{number:.1}"),
        number => format!("{number:.2}"),
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::report::tests::row;
    use crate::peers::report::{Lacking, Machine};

    fn report() -> Report {
        let kept = row(&[("sidecore", 14.4e6), ("spdk", 8.13e6), ("qemu-storage-daemon", 651e3)]);
        let slow = row(&[("sidecore", 729e3), ("spdk", 981e3)]);
        let thrown = row(&[]);
        let share =
            thrown.share.map(|share| super::super::share::Share { after: [0.4, 1.0], ..share });
        let thrown = Compared { outcome: Outcome::Disturbed, share, ..thrown };
        let lacking =
            Lacking { who: "fio".to_owned(), why: "it is not there\nand more".to_owned() };
        let machine =
            Machine { processor: "A".to_owned(), processors: 2, kernel: "6.1".to_owned() };
        Report { machine, rounds: 3, rows: vec![kept, slow, thrown], lacking: vec![lacking] }
    }

    #[test]
    fn a_run_is_a_table_with_what_is_missing_below() {
        let expected = "\
A, 2 processors, Linux 6.1; medians of 3 rounds in turns.

| work | sidecore | others, the best first | ratio | wanted | free, % |
|---|---|---|---|---|---|
| null, our driver, depth 32 | 14.4 M/s (14.4 to 14.4) | spdk 8.13 M/s (8.13 to 8.13), \
qemu-storage-daemon 651 k/s (651 to 651) | 1.77 | 1.5: met | 100/99, 98/100 |
| null, our driver, depth 32 | 729 k/s (729 to 729) | spdk 981 k/s (981 to 981) | **0.74** | \
1.5: not met | 100/99, 98/100 |

- `blk.null.own.read.32`: thrown away: others worked (40% of a core was free)
- fio: not measured: it is not there
";
        assert_eq!(markdown(&report()), expected);
    }

    #[test]
    fn only_what_is_between_the_marks_is_replaced() {
        let page = format!("before\n{BEGIN}old\n{END}after\n");
        assert_eq!(replaced(&page, "new\n").unwrap(), format!("before\n{BEGIN}new\n{END}after\n"));
        assert!(replaced("no marks", "new\n").unwrap_err().to_string().contains("no line"));
    }

    #[test]
    fn a_run_is_kept_as_it_was_and_written_twice_is_the_same() {
        let docs = testing::scratch::Scratch::new(&std::env::temp_dir(), "peers-docs").unwrap();
        let page = docs.path().join("performance.md");
        std::fs::write(&page, format!("a\n{BEGIN}{END}b\n")).unwrap();
        write(docs.path(), &report()).unwrap();
        let once = std::fs::read_to_string(&page).unwrap();
        let data = std::fs::read_to_string(docs.path().join("performance/peers.json")).unwrap();
        let read: Report = serde_json::from_str(&data).unwrap();
        assert_eq!(read, report());
        write(docs.path(), &read).unwrap();
        assert_eq!(std::fs::read_to_string(&page).unwrap(), once);
    }

    #[test]
    fn the_docs_show_what_the_data_says() {
        let docs = super::super::docs();
        let page = std::fs::read_to_string(docs.join("performance.md")).unwrap();
        let block = match std::fs::read_to_string(docs.join("performance/peers.json")) {
            Ok(data) => markdown(&serde_json::from_str(&data).unwrap()),
            Err(_) => NOTHING.to_owned(),
        };
        let right = replaced(&page, &block).unwrap();
        assert!(
            page == right,
            "docs/performance.md: the table of `./x bench peers` is not its data's"
        );
    }
}
