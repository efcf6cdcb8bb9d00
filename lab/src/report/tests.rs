//! The report as a whole: files in, text, JSON and page out.

use super::groups::experiments;
use super::groups::tests::measured;
use super::*;

fn emulated() -> Conditions {
    Conditions { emulated: true, waited: None, retried: 0 }
}

#[test]
fn the_terminal_has_the_papers_the_tables_and_what_the_spread_hides() {
    let text = terminal(&experiments(&measured()), &emulated());
    let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("no {part} in {text}"));
    let order = [
        "Its time is not time",
        "== exits: Exits by cause, one guest (ES2, table I and figure 5; ELVIS, 4.3; vRIO, table 3)",
        "53.6% (70,082 of 130,840 a second)",
        "\nblk.randread.qd1\n",
        "rate x qemu",
        "qemu  npf 1.00, hlt 0.95",
        "\nnet.udp_rr\n",
        "sidecore and vhost-net: their turns overlap in exits/op (3.960-4.840, 4.374-5.346): \
         this run shows no difference",
        "\ncauses of exits\n",
    ];
    let places: Vec<usize> = order.iter().map(|part| at(part)).collect();
    assert!(places.is_sorted(), "{places:?} in {text}");
    for hidden in ["1880", "4321", " 460", " 345", "p50 us"] {
        assert!(!text.contains(hidden), "{hidden} in {text}");
    }
}

#[test]
fn an_experiment_that_nobody_described_is_shown_by_its_name() {
    let mut rows = measured();
    rows.iter_mut().for_each(|row| row.experiment = "new".into());
    let text = terminal(&experiments(&rows), &emulated());
    assert!(text.contains("\n== new\n\nblk.randread.qd1\n"), "{text}");
}

#[test]
fn rows_of_emulated_time_say_so() -> Result<()> {
    let rows = measured();
    let of = |what: &str, emulated| -> Result<Row> {
        let row = rows.iter().find(|row| row.name.ends_with(what)).context("no such row")?;
        Ok(serde_json::from_str(&json(row, emulated)?)?)
    };
    assert_eq!(of(".p50_us", true)?.unit, "emulated us");
    assert_eq!(of(".iops", true)?.unit, "emulated 1/s");
    assert_eq!(of(".exits_per_op", true)?.unit, "1/op");
    assert_eq!(of(".p50_us", false)?.unit, "us");
    Ok(())
}

#[test]
fn rows_become_a_page_and_no_rows_are_an_error() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (rows, html) = (dir.path().join("rows.json"), dir.path().join("report.html"));
    let lines: Vec<String> =
        measured().iter().map(|row| json(row, false)).collect::<Result<_>>()?;
    std::fs::write(&rows, lines.join("\n"))?;
    let arguments = |rows: &PathBuf| ReportArguments {
        rows: rows.clone(),
        html: html.clone(),
        json: true,
        conditions: emulated(),
    };
    show(&arguments(&rows))?;
    assert!(std::fs::read_to_string(&html)?.ends_with("</html>\n"));
    std::fs::write(&rows, "")?;
    let error = show(&arguments(&rows)).map_err(|error| error.to_string());
    let said = format!(
        "{} has no rows: does `--only` name a configuration of these experiments?",
        rows.display()
    );
    assert_eq!(error, Err(said));
    Ok(())
}

#[test]
fn sentences_are_broken_between_words() {
    assert_eq!(wrapped("short"), "short\n");
    let long = format!("{} {} c", "a".repeat(60), "b".repeat(49));
    assert_eq!(wrapped(&long), format!("{} {}\nc\n", "a".repeat(60), "b".repeat(49)));
    let word = "a".repeat(200);
    assert_eq!(wrapped(&format!("{word} b")), format!("{word}\nb\n"));
}
