//! What `./x demo` shows to a person: guests on daemons that are killed meanwhile. The program is `tests/src/bin/demo.rs`.
//!
//! | module | what |
//! |---|---|
//! | `local` | two guests of one daemon |
//! | `screen` | what a person sees |

pub mod local;
pub mod screen;

/// Sets the lines of a table in, so that they stand under what is said.
pub fn table(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(|line| format!("       {line}")).collect();
    lines.iter().map(|line| line.trim_end()).collect::<Vec<_>>().join("\n")
}
