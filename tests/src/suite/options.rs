//! The command line of `suite`.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

/// What `suite --help` says.
pub const HELP: &str = "\
./x test [--all] [--shipped] [--stutter] [--json] [--lanes N] [GROUP[/CASE[/CHECK]]...]

  --list     the groups and their cases
  --all      also what is slow, and times and rates are judged; of the daemon as it is shipped
  --shipped  the daemon as it is shipped, and not a development build of it, which checks more
  --stutter  all that cases run stands still for up to 20 s, again and again: no case may mind
  --json     one JSON object a check, on standard output
  --lanes N  how many cases run at a time; as many as the machine bears if it is not said

A case that failed leaves its logs in build/test/GROUP/CASE.
";

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// To say how it is used.
    Help,
    /// The list of groups and cases.
    List,
    /// To run cases.
    Run(Options),
    /// To be a case: `GROUP/CASE`, in this folder, with those of its checks.
    Case(String, PathBuf, Vec<String>),
    /// To become this program, in a session of its own.
    Apart(Vec<String>),
}

/// How a run is to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Groups, cases and checks; none for all.
    pub words: Vec<String>,
    /// Also what is slow.
    pub all: bool,
    /// The daemon as it is shipped.
    pub shipped: bool,
    /// Cases are stopped now and then.
    pub stutter: bool,
    /// JSON on standard output.
    pub json: bool,
    /// How many cases run at a time.
    pub lanes: Option<usize>,
}

impl Options {
    /// Whether the daemon is the one that is shipped.
    pub fn is_shipped(&self) -> bool {
        self.shipped || self.all
    }
}

/// Reads the command line, without the program's name.
///
/// # Errors
/// A word is not understood.
pub fn read(words: impl IntoIterator<Item = String>) -> Result<Asked> {
    let mut words = words.into_iter();
    let mut options = Options::default();
    while let Some(word) = words.next() {
        match &*word {
            "--help" | "-h" => return Ok(Asked::Help),
            "--list" => return Ok(Asked::List),
            "--all" => options.all = true,
            "--shipped" => options.shipped = true,
            "--stutter" => options.stutter = true,
            "--json" => options.json = true,
            "--lanes" => {
                let number = words.next().context("--lanes: how many?")?;
                let lanes = number.parse().with_context(|| format!("--lanes {number}"))?;
                ensure!(lanes > 0, "--lanes {number}: at least one is needed");
                options.lanes = Some(lanes);
            }
            "--case" => {
                let name = words.next().context("--case: which?")?;
                let folder = words.next().context("--case: in which folder?")?;
                return Ok(Asked::Case(name, folder.into(), words.collect()));
            }
            "--apart" => return Ok(Asked::Apart(words.collect())),
            word if word.starts_with('-') => {
                bail!("./x test does not know {word}: ./x test --help")
            }
            _ => options.words.push(word),
        }
    }
    Ok(Asked::Run(options))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(line: &str) -> Result<Asked> {
        read(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_and_words_are_told_apart() {
        let wanted = Options {
            words: vec!["guest/fio".to_owned(), "unit".to_owned()],
            all: true,
            json: false,
            shipped: true,
            stutter: true,
            lanes: Some(3),
        };
        assert_eq!(
            asked("guest/fio --all --shipped --stutter --lanes 3 unit").unwrap(),
            Asked::Run(wanted)
        );
        assert_eq!(asked("").unwrap(), Asked::Run(Options::default()));
        assert_eq!(asked("--list").unwrap(), Asked::List);
        let case = Asked::Case("guest/fio".into(), "/tmp/a".into(), vec!["verify".into()]);
        assert_eq!(asked("--case guest/fio /tmp/a verify").unwrap(), case);
    }

    #[test]
    fn what_is_not_understood_is_said() {
        for (line, says) in [
            ("--al", "./x test does not know --al: ./x test --help"),
            ("--lanes", "--lanes: how many?"),
            ("--lanes two", "--lanes two"),
            ("--lanes 0", "--lanes 0: at least one is needed"),
        ] {
            assert_eq!(asked(line).unwrap_err().to_string(), says);
        }
    }
}
