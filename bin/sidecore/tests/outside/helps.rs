//! The commands there are and their examples, as their helps say. Used by `examples` and `troubles`.

use std::process::Command;

use crate::harness::{PROGRAM, run};

/// A command that has no commands of its own.
pub(crate) struct Leaf {
    /// Such as `disk add`.
    pub(crate) words: String,
    pub(crate) help: String,
}

/// Every one that a help names.
pub(crate) fn leaves() -> Vec<Leaf> {
    let mut leaves = Vec::new();
    let mut open = vec![Vec::<String>::new()];
    while let Some(words) = open.pop() {
        let (code, help, error) = run(Command::new(PROGRAM).args(&words).arg("--help"));
        assert_eq!((code, error.as_str()), (0, ""), "{words:?}");
        let below = commands(&help);
        if below.is_empty() {
            leaves.push(Leaf { words: words.join(" "), help });
            continue;
        }
        open.extend(below.into_iter().map(|name| [&words[..], &[name]].concat()));
    }
    leaves.sort_by(|one, two| one.words.cmp(&two.words));
    leaves
}

fn commands(help: &str) -> Vec<String> {
    let Some((_, list)) = help.split_once("\nCommands:\n") else { return Vec::new() };
    let lines = list.lines().take_while(|line| !line.is_empty());
    // Names stand two blanks in; what goes on of their texts, further in.
    let names = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names.filter(|name| !name.is_empty() && *name != "help").map(str::to_string).collect()
}

impl Leaf {
    /// Its examples, as they are to be typed.
    pub(crate) fn examples(&self) -> Vec<String> {
        let Some((_, examples)) = self.help.split_once("Examples:\n") else { return Vec::new() };
        let lines = examples.lines().take_while(|line| line.starts_with("  "));
        lines.map(|line| typed(line.trim_start())).collect()
    }
}

/// Without the remark behind it.
pub(crate) fn typed(line: &str) -> String {
    let line = line.split_once("   ").map_or(line, |(typed, _)| typed);
    line.split_once(" #").map_or(line, |(typed, _)| typed).trim().to_string()
}
