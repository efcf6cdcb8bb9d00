//! The page: each experiment with what the papers found, bars of exits by cause, lines where a number grows, tables.
//!
//! Not what is told (`table`, `beside`, `notes`), nor how lines and bars are drawn (`plot`, `bars`).

use std::fmt::Write;

use super::groups::{Experiment, Load};
use super::table::Table;
use super::{Conditions, bars, beside, causes, notes, series, spread, title};

const HEAD: &str = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
    <meta name=\"viewport\" content=\"width=device-width\"><title>Sidecore: the lab</title><style>\
    body{font:15px/1.5 system-ui,sans-serif;max-width:72em;margin:2em auto;padding:0 1em;color:#222;background:#fff}\
    .wide{overflow-x:auto}table{border-collapse:collapse;margin:.6em 0 1.4em}\
    td,th{padding:.15em .8em;text-align:right;border-bottom:1px solid #ddd;vertical-align:top}\
    .w{text-align:left}svg{max-width:100%;height:auto;margin:.4em 0}.note{background:#fff6dd;padding:.6em 1em}\
    .hidden{color:#8a4b00}h2{margin-top:2.4em;border-top:2px solid #222;padding-top:.6em}</style>\
    <h1>What a guest's I/O costs on real KVM</h1>\
    <p>Counted by the kernel that runs the guests, between a load's first and last operation. A value is the median of \
    its turns, with the least and the greatest where they lie apart.</p>";

/// All of it, without anything from elsewhere.
pub(super) fn page(experiments: &[Experiment], conditions: &Conditions) -> String {
    let mut page = String::from(HEAD);
    for note in notes::notes(conditions, experiments) {
        let _ = write!(page, "<p class=\"note\">{}</p>", escaped(&note));
    }
    if experiments.len() > 1 {
        let link = |(at, one): (usize, &Experiment)| {
            format!("<li><a href=\"#e{at}\">{}</a></li>", escaped(&title(one)))
        };
        let links: String = experiments.iter().enumerate().map(link).collect();
        let _ = write!(page, "<ul>{links}</ul>");
    }
    let all_causes = causes::causes(experiments);
    for (at, experiment) in experiments.iter().enumerate() {
        let _ = write!(page, "<h2 id=\"e{at}\">{}</h2>", escaped(&title(experiment)));
        if let Some(mirror) = super::papers::mirror(&experiment.name) {
            let _ = write!(page, "<p>{}</p>", escaped(mirror.sees));
            page += &html(&beside::table(mirror, experiment));
        }
        for plot in series::plots(experiment) {
            page += &plot.svg();
        }
        for load in &experiment.loads {
            page += &section(load, &all_causes, conditions.emulated);
        }
    }
    if let Some(legend) = causes::legend(experiments) {
        let _ = write!(page, "<h2>Causes of exits</h2>{}", html(&legend));
    }
    page + "</html>\n"
}

fn section(load: &Load, causes: &[&str], emulated: bool) -> String {
    let mut section = format!("<h3>{}</h3>", escaped(&load.name));
    section += &bars::svg(load, causes);
    for table in [Table::of(load, emulated), Table::of_time(load)].iter().flatten() {
        section += &html(table);
    }
    for words in spread::words(load, emulated) {
        let _ = write!(section, "<p class=\"hidden\">{}</p>", escaped(&words));
    }
    section
}

fn html(table: &Table) -> String {
    let line = |tag: &str, cells: &[String]| {
        let cell = |(at, cell): (usize, &String)| {
            let class = if table.is_of_words(at) { " class=\"w\"" } else { "" };
            format!("<{tag}{class}>{}</{tag}>", escaped(cell))
        };
        let cells: String = cells.iter().enumerate().map(cell).collect();
        format!("<tr>{cells}</tr>")
    };
    let lines: String = table.lines.iter().map(|cells| line("td", cells)).collect();
    format!("<div class=\"wide\"><table>{}{lines}</table></div>", line("th", &table.heads))
}

/// Text as it stands in a page.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::groups::{experiments, tests::measured, tests::row};
    use super::*;
    use crate::rows::Row;

    fn of(rows: &[Row], emulated: bool) -> String {
        page(&experiments(rows), &Conditions { emulated, waited: Some(3.0), retried: 0 })
    }

    #[test]
    fn where_time_is_emulated_no_time_is_anywhere_in_the_page() {
        let mut rows = measured();
        for (guests, rate, us) in [(1, 91_234.0, 87_654.0), (2, 81_234.0, 97_654.0)] {
            let load = format!("blk.guests{guests}.mixed4k");
            let of = |what, value, unit| Row {
                experiment: "block-guests".into(),
                spread: [value; 2],
                ..row(&load, what, "qemu", value, unit)
            };
            rows.extend([of("ops_per_s", rate, "1/s"), of("p50_us", us, "us")]);
            rows.push(of("exits_per_s", rate, "1/s"));
        }
        let page = of(&rows, true);
        for hidden in
            ["1880", "2820", "4321", ">460", ">345", "91234", "87654", "81234", "97654", "p50 us"]
        {
            assert!(!page.contains(hidden), "{hidden} is shown");
        }
        assert!(page.contains("Its time is not time"));
        assert!(page.contains("<th>rate x qemu</th>") && page.contains("rate x qemu (guests: 1)"));
        let page = of(&rows, false);
        for shown in ["1880", "4321", "91234", "<th>p50 us</th>", "<th>p50 x qemu</th>"] {
            assert!(page.contains(shown), "{shown} is not shown");
        }
        assert!(!page.contains("Its time is not time"));
    }

    #[test]
    fn a_page_names_what_it_mirrors_and_loads_nothing() {
        let page = of(&measured(), true);
        assert!(page.contains(">exits: Exits by cause, one guest (ES2, table I and figure 5;"));
        assert!(page.contains("<td class=\"w\">ES2, table I</td>"));
        assert!(page.contains("<td class=\"w\">net.udp_rr: vhost-net: 4.860, sidecore: 4.400"));
        assert!(page.contains("<h2>Causes of exits</h2>"));
        assert!(page.contains("their turns overlap in exits/op"));
        for elsewhere in ["http", "src=", "@import", "url("] {
            assert!(!page.contains(elsewhere), "{elsewhere}");
        }
    }

    #[test]
    fn names_cannot_break_the_page() {
        let page = of(&[row("a.<b>\"&", "exits_per_op", "<i>", 1.0, "1/op")], true);
        assert!(page.contains("<h3>a.&lt;b>&quot;&amp;</h3>"));
        assert!(!page.contains("<i>") && !page.contains("a.<b>"));
    }
}
