//! The groups of `./x test` and their cases: what each one is, and what it takes to run it.
//!
//! Run by `suite` (`tests/src/bin/suite.rs`). The cases stand in `cases`, a file a group.
//!
//! | module | what |
//! |---|---|
//! | `build` | what is built first, by cargo, and how far that is |
//! | `cases` | the table of groups, and the cases that are functions |
//! | `host` | programs of the host that cases run |
//! | `child` | a case as a process: started, bounded, ended with all that it started |
//! | `choose` | which cases the words of the command line ask for |
//! | `found` | what a case has found: its outcomes, or what its program printed |
//! | `lanes` | which case begins next |
//! | `options` | the command line |
//! | `programs` | where the built programs are |
//! | `run` | a whole run |
//! | `screen` | progress, on a terminal and in a log |
//! | `session` | processes of a case, found by their session |
//! | `shelf` | what is kept between cases and runs: logs, times |
//! | `summary` | the table at the end |
//! | `tools` | commands and programs of tests that a case runs as its checks |

pub mod build;
pub mod cases;
pub mod child;
pub mod choose;
pub mod found;
pub mod host;
pub mod lanes;
pub mod options;
pub mod programs;
pub mod run;
pub mod screen;
pub mod session;
pub mod shelf;
pub mod stutter;
pub mod summary;
pub mod tools;

use anyhow::Result;
use testing::bed::{Bed, Need};

/// Seconds after which a case is ended, unless it says more.
const BOUND_SECONDS: u64 = 600;

/// A group of cases, as it is named on the command line.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    name: &'static str,
    about: &'static str,
    cases: &'static [Case],
    by_name: bool,
}

impl Group {
    /// A group of `cases`; `about` is its line in `./x test --list`.
    pub const fn new(name: &'static str, about: &'static str, cases: &'static [Case]) -> Group {
        Group { name, about, cases, by_name: false }
    }

    /// Left out of a run that names no group, unless all is asked for.
    pub const fn only_by_name(mut self) -> Group {
        self.by_name = true;
        self
    }

    /// Its name.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// What it shows, in a line.
    pub const fn about(&self) -> &'static str {
        self.about
    }

    /// Its cases, in no particular order.
    pub const fn cases(&self) -> &'static [Case] {
        self.cases
    }
}

/// What a case is.
#[derive(Clone, Copy, Debug)]
pub enum What {
    /// A function, called in a process of its own.
    Run(fn(&Bed) -> Result<()>),
    /// Tests of a program that cargo makes.
    Raw(Raw),
    /// A command with its words.
    Command(&'static [&'static str]),
    /// A case that is still shell: `x.d/test/GROUP.sh`.
    Shell,
}

/// Tests of a program that cargo makes, in a process of their own.
#[derive(Clone, Copy, Debug)]
pub struct Raw {
    /// A crate.
    package: &'static str,
    /// One of its programs of tests; the crate's own name for those in its library.
    program: &'static str,
    /// A module, all of whose tests are run; empty for all modules.
    module: &'static str,
    /// More words for the program.
    words: &'static [&'static str],
    /// How many tests run at a time; as many as there are processors if it is not said.
    threads: Option<u32>,
}

/// What must be built before a case can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Built {
    /// Nothing.
    Nothing,
    /// The tests of all crates.
    Crates,
    /// The daemon, and the programs that cases start.
    Daemon,
    /// The same, and the tests of the daemon.
    Tests,
    /// What counts the instructions of a request, optimised as what is shipped.
    Pass,
    /// The daemon, and the program for guests as it is shipped.
    Tune,
}

/// What a case takes of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Next to nothing: it waits for most of its time.
    Little,
    /// One lane: a guest, or tests of a daemon.
    Lane,
    /// The whole machine: it compares rates.
    Machine,
}

/// One case of a group.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    name: &'static str,
    what: What,
    takes: Takes,
    built: Built,
    needs: &'static [Need],
    only_all: Option<&'static str>,
    bound_seconds: u64,
    usual_seconds: u64,
    parts: &'static [&'static str],
}

impl Case {
    const fn new(name: &'static str, what: What) -> Case {
        Case {
            name,
            what,
            takes: Takes::Lane,
            built: Built::Daemon,
            needs: &[],
            only_all: None,
            bound_seconds: BOUND_SECONDS,
            usual_seconds: 15,
            parts: &[],
        }
    }

    /// Its name; empty if it is all of its group.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// A case that is a function. An error of it is a failure of the case.
    pub const fn run(name: &'static str, run: fn(&Bed) -> Result<()>) -> Case {
        Case::new(name, What::Run(run))
    }

    /// A case of the tests of module `name` in `program`.
    pub const fn raw(program: &'static str, name: &'static str) -> Case {
        let raw = Raw { package: "tests", program, module: name, words: &[], threads: None };
        Case::new(name, What::Raw(raw)).needs_built(Built::Tests)
    }

    /// A case of tests of a crate, in `program` of it, which need no daemon; `words` choose them.
    pub const fn of_crate(
        name: &'static str,
        package: &'static str,
        program: &'static str,
        words: &'static [&'static str],
    ) -> Case {
        let raw = Raw { package, program, module: "", words, threads: None };
        Case::new(name, What::Raw(raw)).needs_built(Built::Crates)
    }

    /// A case that is a command, which needs nothing built.
    pub const fn command(name: &'static str, words: &'static [&'static str]) -> Case {
        Case::new(name, What::Command(words)).needs_built(Built::Nothing)
    }

    /// A case that is still shell: `case_NAME` of `x.d/test/GROUP.sh`.
    pub const fn shell(name: &'static str) -> Case {
        Case::new(name, What::Shell)
    }

    /// Of a raw case: the module, where it is not named as the case is.
    pub const fn module(mut self, module: &'static str) -> Case {
        if let What::Raw(raw) = &mut self.what {
            raw.module = module;
        }
        self
    }

    /// Of a raw case: how many tests run at a time.
    pub const fn threads(mut self, threads: u32) -> Case {
        if let What::Raw(raw) = &mut self.what {
            raw.threads = Some(threads);
        }
        self
    }

    /// Says what it takes of the machine; a lane if it does not.
    pub const fn takes(mut self, takes: Takes) -> Case {
        self.takes = takes;
        self
    }

    /// Says what must be built before; the daemon if it does not.
    pub const fn needs_built(mut self, built: Built) -> Case {
        self.built = built;
        self
    }

    /// Says what the machine must have; without it the case is skipped.
    pub const fn needs(mut self, needs: &'static [Need]) -> Case {
        self.needs = needs;
        self
    }

    /// Leaves it to `--all` and to its name; `why` it is not run otherwise.
    pub const fn only_all(mut self, why: &'static str) -> Case {
        self.only_all = Some(why);
        self
    }

    /// Says after how many seconds it is ended; with `--all` it has longer.
    pub const fn within(mut self, seconds: u64) -> Case {
        self.bound_seconds = seconds;
        self
    }

    /// Names its parts: `GROUP/PART` asks for one of them.
    pub const fn parts(mut self, parts: &'static [&'static str]) -> Case {
        self.parts = parts;
        self
    }

    /// Says how many seconds it usually takes: the longest cases are begun first.
    pub const fn usually(mut self, seconds: u64) -> Case {
        self.usual_seconds = seconds;
        self
    }
}

/// The names of a case's parts.
pub const fn names<T: Copy, const N: usize>(parts: &[(&'static str, T); N]) -> [&'static str; N] {
    let mut names = [""; N];
    let mut at = 0;
    while at < N {
        names[at] = parts[at].0;
        at += 1;
    }
    names
}
