//! Small runs say what is checked in under `tests/golden`: a change of the scheduler, of the engine
//! or of a cost shows here as a difference that a reviewer reads.
//!
//! `SIM_GOLDEN=write cargo test -p sim --test small_runs` writes the files anew.

use std::path::Path;

use sim::scenarios::{ALL, Effort};

const SEED: u64 = 7;

#[test]
fn small_runs_are_as_checked_in() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let write = std::env::var_os("SIM_GOLDEN").is_some_and(|word| word == "write");
    let mut differ = Vec::new();
    for (name, scenario) in ALL {
        let tables = scenario(SEED, Effort::Small).tables;
        let text: Vec<String> = tables.iter().map(|table| table.text()).collect();
        let text = text.join("\n");
        let path = folder.join(format!("{name}.txt"));
        if write {
            std::fs::write(&path, &text).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        for (got, expected) in text.lines().zip(expected.lines()).filter(|(a, b)| a != b) {
            differ.push(format!("{name}.txt\n  was {expected}\n  is  {got}"));
        }
        if text.lines().count() != expected.lines().count() {
            differ.push(format!("{name}.txt has another number of lines"));
        }
    }
    assert!(
        differ.is_empty(),
        "{}\nif that is meant: SIM_GOLDEN=write cargo test -p sim --test small_runs, and \
         ./x sim schedule --out docs/scheduling",
        differ.join("\n")
    );
}

#[test]
fn every_figure_can_be_drawn() {
    for (name, scenario) in ALL {
        for figure in scenario(SEED, Effort::Small).figures {
            let svg = figure.svg().unwrap();
            assert!(svg.contains("</svg>"), "{name}");
            for panel in &figure.panels {
                assert!(!panel.series.is_empty(), "{name}, {}: no lines", panel.title);
            }
        }
    }
}
