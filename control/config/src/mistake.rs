//! A mistake of the operator: what was wrong, where, and what would be right.
//!
//! A [`Mistake`] knows its place in the spec (`disk[1].size`); [`Refusal`] adds the line and column
//! of a file and is what the operator reads.

use std::fmt;

/// One step from the top of a spec to a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// A key of a table.
    Key(String),
    /// A place in a list, from 0.
    Index(usize),
}

/// A place in a spec, such as `disk[1].size`. Written with counting from 1, as people count:
/// the second disk is `disk 2`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Path(pub Vec<Step>);

impl Path {
    /// The top.
    pub fn root() -> Path {
        Path::default()
    }

    /// The place of that disk.
    pub fn disk(index: usize) -> Path {
        Path::item("disk", index)
    }

    /// The place of that table of a list at the top.
    pub fn item(list: &str, index: usize) -> Path {
        Path::root().key(list).index(index)
    }

    /// Its keys alone, as the header of a table has them: `switch.uplink`.
    pub fn names(&self) -> String {
        let names = self.0.iter().filter_map(|step| match step {
            Step::Key(key) => Some(key.as_str()),
            Step::Index(_) => None,
        });
        names.collect::<Vec<_>>().join(".")
    }

    /// One key further in.
    pub fn key(&self, key: &str) -> Path {
        self.and(Step::Key(key.to_string()))
    }

    /// One place of a list further in.
    pub fn index(&self, index: usize) -> Path {
        self.and(Step::Index(index))
    }

    /// One step less; nothing at the top.
    pub fn parent(&self) -> Option<Path> {
        self.0.split_last().map(|(_, rest)| Path(rest.to_vec()))
    }

    /// The field that it is, or is in a list of; nothing at the top.
    pub(crate) fn field(&self) -> &str {
        let keys = self.0.iter().rev().filter_map(|step| match step {
            Step::Key(key) => Some(key.as_str()),
            Step::Index(_) => None,
        });
        keys.into_iter().next().unwrap_or_default()
    }

    fn and(&self, step: Step) -> Path {
        let mut steps = self.0.clone();
        steps.push(step);
        Path(steps)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (depth, step) in self.0.iter().enumerate() {
            match step {
                Step::Key(key) if depth == 0 => write!(f, "{key}")?,
                Step::Key(key) => write!(f, ".{key}")?,
                Step::Index(index) => write!(f, "[{}]", index.saturating_add(1))?,
            }
        }
        Ok(())
    }
}

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Where.
    pub path: Path,
    /// The name itself is wrong, not its value.
    pub in_name: bool,
    /// What is wrong.
    pub wrong: String,
    /// What would be right; may be empty when `wrong` says it.
    pub right: String,
}

impl Mistake {
    /// A mistake in a value.
    pub fn new(path: Path, wrong: impl Into<String>, right: impl Into<String>) -> Mistake {
        Mistake { path, in_name: false, wrong: wrong.into(), right: right.into() }
    }

    /// A mistake in the name of a key.
    pub fn in_name(path: Path, wrong: impl Into<String>, right: impl Into<String>) -> Mistake {
        Mistake { in_name: true, ..Mistake::new(path, wrong, right) }
    }
}

/// In one line, with its place in the spec: for whoever has no file to point at.
impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.0.is_empty() || self.in_name {
            true => write!(f, "{}", self.wrong),
            false => write!(f, "{}: {}", self.path, self.wrong),
        }
    }
}

/// A mistake with its place in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The text of that line.
    pub source: String,
    /// How many characters of it are meant; at least 1.
    pub width: usize,
    /// The mistake.
    pub mistake: Mistake,
}

/// A configuration that was refused whole, with all its mistakes in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The file's name as the operator gave it.
    pub file: String,
    /// The mistakes; at least one.
    pub mistakes: Vec<Located>,
}

impl Refusal {
    /// Places mistakes in a text. `range_of` gives the bytes of a mistake.
    pub(crate) fn locate(
        file: &str,
        text: &str,
        mistakes: Vec<Mistake>,
        range_of: impl Fn(&Mistake) -> std::ops::Range<usize>,
    ) -> Refusal {
        let mut mistakes: Vec<Located> =
            mistakes.into_iter().map(|mistake| place(text, range_of(&mistake), mistake)).collect();
        mistakes.sort_by_key(|located| (located.line, located.column));
        Refusal { file: file.to_string(), mistakes }
    }
}

impl std::error::Error for Refusal {}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, located) in self.mistakes.iter().enumerate() {
            let Located { line, column, source, width, mistake } = located;
            let margin = " ".repeat(line.to_string().len());
            if nth > 0 {
                writeln!(f, "\n")?;
            }
            writeln!(f, "{}:{line}:{column}: {mistake}", self.file)?;
            writeln!(f, "{margin} |")?;
            writeln!(f, "{line} | {source}")?;
            let blank = " ".repeat(column.saturating_sub(1));
            write!(f, "{margin} | {blank}{}", "^".repeat(*width))?;
            if !mistake.right.is_empty() {
                write!(f, "\n{margin} = {}", mistake.right)?;
            }
        }
        Ok(())
    }
}

/// The line and column of a range of bytes; a range outside the text means its end.
fn place(text: &str, range: std::ops::Range<usize>, mistake: Mistake) -> Located {
    let start = text.floor_char_boundary(range.start);
    let before = text.get(..start).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |at| at.saturating_add(1));
    let rest = text.get(line_start..).unwrap_or("");
    let source = rest.lines().next().unwrap_or("");
    let column = before.get(line_start..).unwrap_or("").chars().count().saturating_add(1);
    let room = source.chars().count().saturating_sub(column.saturating_sub(1));
    let meant = text.get(start..text.floor_char_boundary(range.end)).unwrap_or("");
    let width = meant.lines().next().unwrap_or("").chars().count().min(room).max(1);
    Located {
        line: before.matches('\n').count().saturating_add(1),
        column,
        // One tab is one column here and in the line of marks below.
        source: source.replace('\t', " "),
        width,
        mistake,
    }
}
