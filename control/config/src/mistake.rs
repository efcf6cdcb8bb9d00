//! A mistake of the operator: what was wrong, where, and what would be right.
//!
//! A [`Mistake`] knows its place in the spec (`disk[1].size`); [`Refusal`] adds the line and column
//! of a file and is what the operator reads.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

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

    /// Whether it is a place of a list.
    pub(crate) fn is_item(&self) -> bool {
        matches!(self.0.last(), Some(Step::Index(_)))
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

    /// Several, each with what would be right.
    pub(crate) fn in_one_line(mistakes: &[Mistake]) -> String {
        let all = mistakes.iter().map(|mistake| match mistake.right.is_empty() {
            true => mistake.to_string(),
            false => format!("{mistake} ({})", mistake.right),
        });
        all.collect::<Vec<_>>().join("; ")
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
    /// The text of that line, or of a long one what is about the place.
    pub source: String,
    /// Characters of the line that are left out before that.
    pub skipped: usize,
    /// How many characters of it are meant; at least 1.
    pub width: usize,
    /// The mistake.
    pub mistake: Mistake,
}

/// Places of one kind of mistake that a refusal names besides the first.
const MORE_LINES_MAX: usize = 5;
/// Kinds of mistakes that a refusal shows.
pub(crate) const KINDS_MAX: usize = 50;
/// Longest piece of a line that is shown, in characters.
const SOURCE_MAX: usize = 200;

/// A kind of mistake, shown where it is made first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repeated {
    /// Where it is made first.
    pub first: Located,
    /// How often it is made besides.
    pub more: usize,
    /// On which lines, as far as they are told.
    pub lines: Vec<usize>,
}

/// A configuration that was refused whole, with its mistakes in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The file's name as the operator gave it.
    pub file: String,
    /// The mistakes by kind, at least one: [`KINDS_MAX`] of them at most.
    pub mistakes: Vec<Repeated>,
    /// Mistakes of further kinds, which are not shown.
    pub hidden: usize,
}

impl Refusal {
    /// Places mistakes in a text. `range_of` gives the bytes of a mistake. Takes time in proportion to the text and the
    /// number of mistakes.
    pub(crate) fn locate(
        file: &str,
        text: &str,
        mistakes: Vec<Mistake>,
        range_of: impl Fn(&Mistake) -> Range<usize>,
    ) -> Refusal {
        let lines = Lines::of(text);
        let mut placed: Vec<(Range<usize>, Mistake)> =
            mistakes.into_iter().map(|mistake| (range_of(&mistake), mistake)).collect();
        placed.sort_by_key(|(range, _)| range.start);
        let mut kinds: HashMap<String, usize> = HashMap::new();
        let mut refusal = Refusal { file: file.to_string(), mistakes: Vec::new(), hidden: 0 };
        for (range, mistake) in placed {
            match kinds.get(&mistake.kind()) {
                Some(at) => {
                    let Some(kind) = refusal.mistakes.get_mut(*at) else { continue };
                    kind.more += 1;
                    if kind.lines.len() < MORE_LINES_MAX {
                        kind.lines.push(lines.number(range.start));
                    }
                }
                None if refusal.mistakes.len() == KINDS_MAX => refusal.hidden += 1,
                None => {
                    kinds.insert(mistake.kind(), refusal.mistakes.len());
                    let first = lines.place(text, range, mistake);
                    refusal.mistakes.push(Repeated { first, more: 0, lines: Vec::new() });
                }
            }
        }
        refusal
    }
}

impl Mistake {
    /// What mistakes have in common that were made once and written many times: all but where they stand.
    fn kind(&self) -> String {
        let Mistake { path, in_name, wrong, right } = self;
        let anywhere = |text: &str| {
            let mut plain = String::with_capacity(text.len());
            let mut rest = text;
            while let Some((before, behind)) = rest.split_once('[') {
                plain.push_str(before);
                plain.push('[');
                rest = behind.trim_start_matches(|c: char| c.is_ascii_digit());
            }
            plain + rest
        };
        format!("{}\0{in_name}\0{}\0{right}", path.names(), anywhere(wrong))
    }
}

impl Refusal {
    /// The mistakes with their places in one line, without what would be right.
    pub fn in_a_line(&self) -> String {
        let one =
            |Repeated { first: Located { line, column, mistake, .. }, more, .. }: &Repeated| {
                let more = if *more > 0 { format!(" (and {more} like it)") } else { String::new() };
                format!("{}:{line}:{column}: {mistake}{more}", self.file)
            };
        self.mistakes.iter().map(one).collect::<Vec<_>>().join("; ")
    }
}

/// Where the lines of a text begin.
#[derive(Clone, Debug)]
pub(crate) struct Lines(Vec<usize>);

impl Lines {
    pub(crate) fn of(text: &str) -> Lines {
        let behind = text.match_indices('\n').map(|(at, _)| at.saturating_add(1));
        Lines(std::iter::once(0).chain(behind).collect())
    }

    /// The line of a byte, from 1.
    pub(crate) fn number(&self, byte: usize) -> usize {
        self.0.partition_point(|start| *start <= byte).max(1)
    }

    /// The line and column of a range of bytes; a range outside the text means its end.
    fn place(&self, text: &str, range: Range<usize>, mistake: Mistake) -> Located {
        let start = text.floor_char_boundary(range.start);
        let line = self.number(start);
        let line_start = self.0.get(line - 1).copied().unwrap_or(0);
        let before = text.get(line_start..start).unwrap_or("");
        let column = before.chars().count().saturating_add(1);
        let rest = text.get(start..).unwrap_or("").lines().next().unwrap_or("");
        // Of a long line only what is about the place is shown, which has a column of its own there.
        let skipped = column.saturating_sub(1).saturating_sub(SOURCE_MAX / 2);
        let shown = before.chars().skip(skipped).chain(rest.chars().take(SOURCE_MAX / 2));
        // One tab is one column here and in the line of marks below.
        let source: String = shown.map(|c| if c == '\t' { ' ' } else { c }).collect();
        let room = source.chars().count().saturating_sub(column.saturating_sub(1) - skipped);
        let meant = text.get(start..text.floor_char_boundary(range.end)).unwrap_or("");
        let meant = meant.lines().next().unwrap_or("").chars().take(SOURCE_MAX).count();
        Located { line, column, source, skipped, width: meant.min(room).max(1), mistake }
    }
}

impl std::error::Error for Refusal {}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, Repeated { first, more, lines }) in self.mistakes.iter().enumerate() {
            let Located { line, column, source, skipped, width, mistake } = first;
            let margin = " ".repeat(line.to_string().len());
            if nth > 0 {
                writeln!(f, "\n")?;
            }
            writeln!(f, "{}:{line}:{column}: {mistake}", self.file)?;
            writeln!(f, "{margin} |")?;
            writeln!(f, "{line} | {source}")?;
            let blank = " ".repeat(column.saturating_sub(1).saturating_sub(*skipped));
            write!(f, "{margin} | {blank}{}", "^".repeat(*width))?;
            if !mistake.right.is_empty() {
                write!(f, "\n{margin} = {}", mistake.right)?;
            }
            if *more > 0 {
                let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
                let rest = if *more > lines.len() { ", ..." } else { "" };
                let on = if *more == 1 { "line" } else { "lines" };
                let times = if *more == 1 { "once" } else { "times" };
                let count = if *more == 1 { String::new() } else { format!("{more} ") };
                write!(
                    f,
                    "\n{margin} = the same {count}{times} more, on {on} {}{rest}",
                    lines.join(", ")
                )?;
            }
        }
        match self.hidden {
            0 => Ok(()),
            1 => write!(f, "\n\nand 1 mistake more"),
            hidden => write!(f, "\n\nand {hidden} mistakes more"),
        }
    }
}
