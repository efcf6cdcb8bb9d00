//! A picture as a browser reads it: its frames, and nothing that a guest wrote but text.

use exits::{Check, Edge, Report, Row};

use super::*;

fn row(function: &str, reason: &str, detail: &str, handling_ns: u64) -> Row {
    Row {
        function: function.to_string(),
        module: None,
        addresses: Vec::new(),
        reason: reason.to_string(),
        detail: detail.to_string(),
        device: None,
        exits: 10,
        handling_ns,
        halted_ns: 0,
        displaced_ns: 0,
        rule: None,
    }
}

fn report(rows: Vec<Row>) -> Report {
    Report {
        process: 7,
        name: Some("vm<1>".to_string()),
        period_ns: 2_000_000_000,
        vcpus: 1,
        exits: 30,
        handling_ns: rows.iter().map(|row| row.handling_ns).sum(),
        halted_ns: 0,
        displaced_ns: 0,
        rows,
        lost: Vec::new(),
        edge: Edge { begun_before: 0, begun_before_ns: 0, unfinished: 0, unfinished_ns: 0 },
        without_time: 0,
        check: Check::Same { least: 30, most: 30 },
        notes: Vec::new(),
    }
}

/// The frames of a picture: tooltip, x, y, width.
fn boxes(picture: &str) -> Vec<(String, f64, f64, f64)> {
    let number = |line: &str, name: &str| -> f64 {
        let from = line.split_once(&format!(" {name}=\"")).expect(name).1;
        from.split_once('"').expect("an end").0.parse().expect("a number")
    };
    let frames = picture.lines().filter(|line| line.starts_with("<g>"));
    frames
        .map(|line| {
            let tip =
                line.split_once("<title>").expect("tip").1.split_once("</title>").expect("end").0;
            (tip.to_string(), number(line, "x"), number(line, "y"), number(line, "width"))
        })
        .collect()
}

#[test]
fn frames_are_as_wide_as_their_time_and_lie_on_what_they_are_of() {
    let rows = vec![
        row("f_out", "port I/O", "0x608", 3_000_000),
        row("f_out", "HLT", "", 1_000_000),
        row("f_mmio", "NPF", "0x6000f0", 4_000_000),
    ];
    let picture = drawn(&report(rows));
    let boxes = boxes(&picture);
    let tips: Vec<&str> = boxes.iter().map(|it| it.0.as_str()).collect();
    assert_eq!(
        tips,
        [
            "all: 30 exits, 8.0 ms, 100.0%",
            "f_mmio: 10 exits, 4.0 ms, 50.0%",
            "NPF: 10 exits, 4.0 ms, 50.0%",
            "0x6000f0: 10 exits, 4.0 ms, 50.0%",
            "f_out: 20 exits, 4.0 ms, 50.0%",
            "port I/O: 10 exits, 3.0 ms, 37.5%",
            "0x608: 10 exits, 3.0 ms, 37.5%",
            "HLT: 10 exits, 1.0 ms, 12.5%",
        ]
    );
    let all = boxes[0].3;
    let levels = [0, 1, 2, 3, 1, 2, 3, 2];
    let parts = [1.0, 0.5, 0.5, 0.5, 0.5, 0.375, 0.375, 0.125];
    for ((frame, level), part) in boxes.iter().zip(levels).zip(parts) {
        assert!((frame.3 - all * part).abs() < 0.02, "{frame:?}");
        assert!((boxes[0].2 - frame.2 - LINE * f64::from(level)).abs() < 0.1, "{frame:?}");
        assert!(frame.1 >= boxes[0].1 && frame.1 + frame.3 <= boxes[0].1 + all + 0.02);
    }
}

#[test]
fn names_of_a_guest_are_text_and_nothing_else() {
    let hostile = "</text><script>alert(1)</script>\u{1b}[31m\u{0}\u{ffff}&\"";
    let rows = vec![row(hostile, hostile, hostile, 5), row("next", "HLT", "", 5)];
    let picture = drawn(&report(rows));
    assert!(!picture.contains("<script"), "{picture}");
    let is_allowed = |letter: char| letter == '\n' || !letter.is_control() && letter != '\u{ffff}';
    assert!(picture.chars().all(is_allowed));
    assert!(picture.contains("vm&lt;1&gt; (process 7)"));
    assert_eq!(picture.matches("<g>").count(), picture.matches("</g>").count());
    assert_eq!(picture.matches("<text").count(), picture.matches("</text>").count());
}

#[test]
fn what_is_too_narrow_to_be_seen_is_left_out_and_nothing_is_a_picture_too() {
    let mut rows: Vec<Row> = (0..50_000).map(|n| row(&format!("f{n}"), "HLT", "", 10)).collect();
    rows.push(row("wide", "HLT", "", 10_000_000));
    let picture = drawn(&report(rows));
    assert_eq!(boxes(&picture).len(), 3, "all, wide, and its reason");
    let empty = drawn(&report(Vec::new()));
    assert_eq!(boxes(&empty).len(), 1);
    assert!(empty.ends_with("</svg>\n") && !empty.contains("NaN"));
}
