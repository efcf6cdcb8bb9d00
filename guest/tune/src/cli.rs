//! The commands, their options and their examples.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Look at what in a guest costs exits, and change it; whatever was changed can be taken back.
#[derive(Parser, Debug)]
#[command(
    name = "sidecore-tune",
    version,
    about,
    max_term_width = 98,
    after_help = "\
Run it in the guest, as root. `check` and `ls` change nothing.

Examples:
  sidecore-tune check                          what is not as it should be, and why that matters here
  sidecore-tune apply                          set what helps whatever the load is
  sidecore-tune try --rule gro-timers --measure nic:eth0
                                               measure with and without, keep what is better
  sidecore-tune ls                             what was changed since the guest started
  sidecore-tune undo                           put it all back
  sidecore-tune check --root /mnt/image --json look at a tree that stands for a guest's /

Exit status: 0 done; of `check`: nothing is left for `apply`. 1 `check`: `apply` would set
something; others: something could not be set, or was left, and is said. 2 wrong usage, or a
journal that is not understood. 3 nothing may be changed here: no guest, a container, /sys
read-only, no rights."
)]
pub struct Cli {
    /// Print JSON, errors too.
    #[arg(long, global = true)]
    pub json: bool,
    /// A tree that stands for the guest's /, such as an image that is mounted.
    #[arg(long, global = true, value_name = "DIR", default_value = "/")]
    pub root: PathBuf,
    /// The journal of what was changed [default: var/lib/sidecore-tune/journal below the root].
    #[arg(long, global = true, value_name = "FILE")]
    pub journal: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// A command.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Say what is not as it should be, and why it matters in this guest. Changes nothing.
    #[command(after_help = "\
Examples:
  sidecore-tune check
  sidecore-tune check --json | jq '.findings[] | select(.state == \"settable\")'")]
    Check(RulesArgs),
    /// Set what helps whatever the load is; with --rule also what depends on it.
    #[command(after_help = "\
Each old value is on disk before its setting is changed. Settings last until the guest starts
again; run `apply` at each start to have them always (docs/tune.md has a unit for systemd).

Examples:
  sidecore-tune apply
  sidecore-tune apply --rule soft-watchdog --rule gro-timers")]
    Apply(RulesArgs),
    /// Measure with and without a rule in turns, and keep it if it is better beyond the spread.
    #[command(after_help = "\
What is measured (--measure), more being better:
  block:DISK  random reads of 4 KiB, one at a time, by this program; it only reads
  timer       sleeps of 50 us, by this program
  clock       looks at the clock, by this program
  disk:DISK   requests that the disk did, of a load of your own that runs meanwhile
  nic:NIC     frames that came and went, of a load of your own that runs meanwhile

Examples:
  sidecore-tune try --rule clocksource --measure clock
  sidecore-tune try --rule block-scheduler --measure block:vda --rounds 9
  sidecore-tune try --measure nic:eth0 --seconds 10      each rule that could be set, one by one")]
    Try(TryArgs),
    /// Put back what was there before, the last change first.
    #[command(after_help = "\
What somebody else has changed since is said and left, and stays in the journal for --force.

Examples:
  sidecore-tune undo
  sidecore-tune undo --force")]
    Undo(UndoArgs),
    /// List what was changed since the guest started, and what is there now.
    #[command(after_help = "\
Examples:
  sidecore-tune ls
  sidecore-tune ls --json")]
    Ls,
    /// Write the page of rules into a folder.
    #[command(hide = true)]
    Docs {
        /// The folder.
        folder: PathBuf,
    },
}

/// Which rules.
#[derive(Args, Debug, Default)]
pub struct RulesArgs {
    /// Only this rule; can be given several times.
    #[arg(long = "rule", value_name = "NAME")]
    pub rules: Vec<String>,
}

/// How to try.
#[derive(Args, Debug)]
pub struct TryArgs {
    /// Which rules.
    #[command(flatten)]
    pub rules: RulesArgs,
    /// What is measured: block:DISK, timer, clock, disk:DISK or nic:NIC.
    #[arg(long, value_name = "WHAT")]
    pub measure: String,
    /// Rounds, each with one turn of either.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(4..=1000))]
    pub rounds: u16,
    /// Seconds of each turn.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=600))]
    pub seconds: u16,
    /// A number from which the order of turns is made.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// How to undo.
#[derive(Args, Debug)]
pub struct UndoArgs {
    /// Also put back what somebody else has changed since.
    #[arg(long)]
    pub force: bool,
}
