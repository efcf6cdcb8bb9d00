//! `doctor`: what this host offers and lacks.

use std::fmt::Write as _;

use host::doctor::{Check, State, examine_this_host};
use serde::Serialize;

use crate::failure::Failure;
use crate::output::Output;

#[derive(Serialize)]
struct Report {
    checks: Vec<Check>,
}

pub(crate) fn run(output: &Output) -> Result<(), Failure> {
    output.show(&Report { checks: examine_this_host() }, |report| text(&report.checks))
}

fn text(checks: &[Check]) -> String {
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let blank = " ".repeat(width + "missing".len() + 4);
    let mut text = String::new();
    for Check { name, state, found, means, todo } in checks {
        let state = match state {
            State::Ok => "ok",
            State::Warn => "warn",
            State::Missing => "missing",
        };
        let _ = writeln!(text, "{state:<7}  {name:<width$}  {found}");
        let _ = writeln!(text, "{blank}{means}");
        if !todo.is_empty() {
            let _ = writeln!(text, "{blank}-> {todo}");
        }
    }
    let open = checks.iter().filter(|check| check.state != State::Ok).count();
    let _ = match open {
        0 => writeln!(text, "\nnothing to do"),
        _ => writeln!(text, "\n{open} of {} could be better", checks.len()),
    };
    text
}
