//! The commands, their options and their examples.
//!
//! The options of `disk add` and `disk set` are the fields of the configuration file; their texts
//! are in `config::spec`. Not here: the commands of disks (`disk`), of NICs, switches and groups (`net`, `group`), and
//! what only this machine's kernel needs (`machine`).

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

mod disk;
mod exits;
mod group;
mod machine;
mod net;
mod shared;
mod show;
mod stage;
mod top;

pub(crate) use disk::{AddArgs, DiskCommand};
pub(crate) use exits::ExitsArgs;
pub(crate) use group::GroupCommand;
pub(crate) use machine::{ClientArgs, VdpaCommand};
pub(crate) use net::{NicAddArgs, NicCommand, SwitchCommand};
pub(crate) use show::{PrintArgs, ShowArgs};
pub(crate) use stage::{StageCommand, TraceArgs};
pub(crate) use top::TopArgs;

/// Serve the disks and network cards of many virtual machines from a few cores.
#[derive(Parser, Debug)]
#[command(
    name = "sidecore",
    version = crate::version::TOLD,
    about,
    propagate_version = true,
    max_term_width = 98,
    after_help = "\
Examples:
  sidecore doctor                                      what this host offers and lacks
  sidecore serve --config sidecore.toml                run the daemon
  sidecore disk add vm1-root --path vm1.img --print qemu
  sidecore switch add lan --uplink tap=lan0
  sidecore nic add vm1-net --switch lan --print qemu
  sidecore ls

A path that is not whole begins in the folder in which the command is run; in the
configuration file, in the folder of that file.

Exit status: 0 done; 1 refused by the daemon, or something that the configuration
names is not there; 2 wrong usage, or a mistake in the configuration; 3 no daemon
reached, or one that gave no answer in time. `serve --check` finds what a start would
stumble over, and ends as that would. It is stricter than a start where that serves the
rest: with a device that cannot be opened, and with a `state_dir` that takes nothing more."
)]
pub(crate) struct Cli {
    /// Unix socket of the daemon's API [env: SIDECORE_API] [default: /run/sidecore/api.sock].
    // The variable is read in `main`: clap would count it as given, and show it as needed in usage lines.
    #[arg(long, global = true, value_name = "SOCKET", help_heading = "Global options")]
    pub(crate) api: Option<String>,
    /// How long the daemon's answer is waited for, such as 500ms, 5s or 2m [default: 80s for
    /// `upgrade`, 25s for all else].
    #[arg(long, global = true, value_name = "TIME", value_parser = shared::timeout, help_heading = "Global options")]
    pub(crate) timeout: Option<Duration>,
    /// Print JSON, errors too.
    #[arg(long, global = true, help_heading = "Global options")]
    pub(crate) json: bool,
    /// Print tables whole, however narrow the terminal is.
    #[arg(long, global = true, help_heading = "Global options")]
    pub(crate) wide: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// The table of commands, as helps, man pages and completions have it: each with those of the global options that do
    /// something there.
    pub(crate) fn told() -> clap::Command {
        shared::told(Cli::command())
    }

    /// What was written on a command line.
    pub(crate) fn read<T>(words: impl IntoIterator<Item = T>) -> Result<Cli, clap::Error>
    where
        T: Into<std::ffi::OsString> + Clone,
    {
        let matches = take_negative_numbers(Cli::told()).try_get_matches_from(words)?;
        Cli::from_arg_matches(&matches)
    }
}

impl Cli {
    /// The options of a command that are fields of the file: what the daemon says of a field is said of its option.
    pub(crate) fn fields(&self) -> Vec<String> {
        let path: &[&str] = match &self.command {
            Command::Disk(DiskCommand::Add(_)) => &["disk", "add"],
            Command::Disk(DiskCommand::Set { .. }) => &["disk", "set"],
            Command::Disk(DiskCommand::Stage(StageCommand::Add { .. })) => {
                &["disk", "stage", "add"]
            }
            Command::Disk(DiskCommand::Stage(StageCommand::Set { .. })) => {
                &["disk", "stage", "set"]
            }
            Command::Nic(NicCommand::Add(_)) => &["nic", "add"],
            Command::Nic(NicCommand::Set { .. }) => &["nic", "set"],
            Command::Switch(SwitchCommand::Add(_)) => &["switch", "add"],
            Command::Group(GroupCommand::Add(_)) => &["group", "add"],
            Command::Group(GroupCommand::Set { .. }) => &["group", "set"],
            _ => return Vec::new(),
        };
        let root = Cli::command();
        let command = path.iter().try_fold(&root, |command, name| command.find_subcommand(name));
        let arguments = command.into_iter().flat_map(clap::Command::get_arguments);
        arguments.filter_map(|argument| Some(argument.get_long()?.to_string())).collect()
    }
}

/// Has `-5` reach who reads an option's value, and says what would be right.
fn take_negative_numbers(command: clap::Command) -> clap::Command {
    let take = |arg: clap::Arg| match arg.get_action().takes_values() {
        true => arg.allow_negative_numbers(true),
        false => arg,
    };
    command.mut_args(take).mut_subcommands(take_negative_numbers)
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Run the daemon in the foreground.
    Serve(ServeArgs),
    /// Make, change, and remove disks while the daemon runs.
    #[command(
        subcommand,
        after_help = "\
Examples:
  sidecore disk add vm1-root --path vm1.img
  sidecore disk resize vm1-root 20G
  sidecore disk set vm1-root --share 200
  sidecore disk rm vm1-root

A disk that the configuration file declares is changed there; then `sidecore reload`."
    )]
    Disk(DiskCommand),
    /// Make, change, and remove NICs while the daemon runs.
    #[command(
        subcommand,
        after_help = "\
Examples:
  sidecore nic add vm1-net --switch lan
  sidecore nic set vm1-net --vlan 10
  sidecore nic link vm1-net down
  sidecore nic rm vm1-net

A NIC that the configuration file declares is changed there; then `sidecore reload`."
    )]
    Nic(NicCommand),
    /// Make, show, and remove the switches that NICs are ports of.
    #[command(
        subcommand,
        after_help = "\
Examples:
  sidecore switch add lan --uplink tap=lan0
  sidecore switch show lan
  sidecore switch rm lan"
    )]
    Switch(SwitchCommand),
    /// Make, show, change, and remove groups: disks and NICs that have a limit together.
    #[command(
        subcommand,
        after_help = "\
Examples:
  sidecore group add tenant1 --limit-iops 5000 --limit-packets 100000
  sidecore disk set vm1-root --group tenant1
  sidecore nic set vm1-net --group tenant1
  sidecore group show

A group that the configuration file declares is changed there; then `sidecore reload`."
    )]
    Group(GroupCommand),
    /// Make keys for links, by which disks are served to other machines.
    #[command(
        subcommand,
        after_help = "\
Examples:
  sidecore link key /etc/sidecore/host7.key
  sidecore link key /etc/sidecore/host7.key --json | jq -r .public_key"
    )]
    Link(LinkCommand),
    /// Show links: sessions with other machines, round trips, what was lost.
    #[command(
        subcommand,
        after_help = "\
Examples:
  sidecore remote status
  sidecore remote status --json | jq '.links[] | select(.problem) | .id, .problem'"
    )]
    Remote(RemoteCommand),
    /// Give this machine's own kernel disks and NICs of an IOhost.
    Client(ClientArgs),
    /// List the disks and the NICs.
    #[command(
        visible_alias = "status",
        alias = "list",
        after_help = "\
Examples:
  sidecore ls
  sidecore ls --json | jq -r '.disks[] | select(.state == \"failed\") | .id'

STATE is `waiting` while no front-end is connected, or while its guest waits for what a line
below the tables names; `connected` before its driver has set a queue up; `running`;
`no space` and `failing` while requests of its guest wait for space or for a medium that fails;
`failed` when it cannot be opened, a queue or the session broke the rules, or what it is wired
to is gone. A line below the tables says why."
    )]
    Ls,
    /// Show one disk or NIC with its queues.
    Show(ShowArgs),
    /// List the sidecores and what they do.
    #[command(after_help = "\
Examples:
  sidecore sidecores
  sidecore sidecores --json

STATE: `in use` has queues, or gets the next ones; `leaving` has too little to do, and its
queues are being moved to others; then it is `parked`: it has no queue and sleeps until the
load asks for it or a queue is moved there. QUEUES are those it serves now: of disks one for
each ring, of NICs both of each pair.

BUSY is the share of the last quarter of a second that went into passes which found work, and
POLL that of passes which found none: the cpu was taken for looking at empty queues. What both
leave of 100% it slept. busy_percent and poll_percent of --json are about the time between the
daemon's own last two looks; the looks at empty queues in passes that found work are polling
there, so busy_percent is lower where many are polled. ASLEEP counts sleeps that have ended.
LOST, from 5% on, is the time in which others had the cpu of a sidecore that would have run.
It and what follows QUEUES are totals since the daemon started. AVOIDED are requests and
frames that needed no kick: those taken from rings, less the kicks. IN, OUT and STAYED count
queues that came from another sidecore, went to one, or were to go and stayed; PAUSE is how
long nobody looked at those that came: 99 of 100 for no longer than that.")]
    Sidecores,
    /// Show who is at work now, again and again.
    Top(TopArgs),
    /// Show where a guest's exits come from: its functions, reasons, and how long they took.
    Exits(ExitsArgs),
    /// Let the daemon read its configuration file again.
    #[command(after_help = "\
Examples:
  sidecore reload --dry-run
  sidecore reload
  sidecore reload --force                              also what takes a device from a guest

A mistake in the file is refused whole and changes nothing; so is an image, an interface or a
key that cannot be opened. Disks that did not change are not disturbed, nor are NICs; what was
made with `add` stays. What takes a device from the guest that uses it, makes it anew or makes a
disk smaller under it is refused, too, and so is another size by which requests that wait end with
an error: --dry-run says what that is, and --force does it. A reload
by SIGHUP never does. --dry-run ends with 0 for such a file, too: with --json, needs_force is true
then. Devices that could not be opened before are tried again; if some are
still not open, they are named, and the status is 1, though all else was done.")]
    Reload(ReloadArgs),
    /// Replace the daemon by the program as it is installed now; no guest notices.
    #[command(after_help = "\
Examples:
  sidecore serve --config /etc/sidecore/sidecore.toml --check && sidecore upgrade
  sidecore reload --dry-run                            what is different in the file, and for whom
  sidecore upgrade --force                             also what ends requests that wait

Install the new program in the place of the old one first. A new process of the program that was
started as the daemon takes over its sockets, its guests' memory, rings, images and taps; each
queue stands still for a moment. It reads the configuration file anew, and the command says what
was different, as a reload does. It also puts fields into force that otherwise take a restart.

What a guest would lose is refused, as by a reload: a file that takes a device from its guest,
makes it anew, or makes a disk smaller. The way out: put the old value back into the file, or stop
that guest, or have `sidecore reload --force` do it first, and upgrade then. Another `api` or
`state_dir`, and an `api_read` that changes or goes, takes a restart; one that is new is made. If
the new process cannot take over, the daemon goes on as it is, and says why.

Requests that wait for space or for a medium that fails wait on in the new process, if their
front-end keeps an in-flight record, as QEMU does. Those of another one would end with an error:
while there are some, an upgrade is refused, and says of which disk. --force does it all the
same, as it does for a new disk whose size its image or file system does not fit.")]
    Upgrade(UpgradeArgs),
    /// Internal: starts a daemon's successor. Run by the daemon only.
    #[command(hide = true)]
    Launcher {
        /// The daemon's own words.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<std::ffi::OsString>,
    },
    /// Internal: prints the names that may follow these words. Run by completion scripts only.
    #[command(hide = true)]
    Complete {
        /// What stands before the cursor.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<std::ffi::OsString>,
    },
    /// Internal: asks the kernel's vDPA bus. Run by `sidecore client` only.
    #[command(subcommand, hide = true)]
    Vdpa(VdpaCommand),
    /// Say what this host offers and lacks, and what to do about it.
    #[command(after_help = "\
Examples:
  sidecore doctor
  sudo sidecore doctor --json | jq '.checks[] | select(.state != \"ok\")'
  sudo sidecore doctor --vmm libvirt-qemu              does that user reach each socket?

Run it as the user that the daemon runs as: limits and rights are looked at for this process.")]
    Doctor(DoctorArgs),
    /// Internal: tries as a user what that one may open. Run by `sidecore doctor --vmm` only.
    #[command(hide = true)]
    Reach {
        /// The user's number.
        uid: u32,
        /// The numbers of the user's groups, the own one first.
        #[arg(value_delimiter = ',')]
        groups: Vec<u32>,
        /// The sockets.
        #[arg(last = true)]
        sockets: Vec<PathBuf>,
    },
    /// Print a completion script for a shell.
    #[command(after_help = "\
Examples:
  sidecore completions bash > /etc/bash_completion.d/sidecore
  sidecore completions zsh > \"${fpath[1]}/_sidecore\"
  sidecore completions fish > ~/.config/fish/completions/sidecore.fish")]
    Completions {
        /// Which shell.
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Write the man pages into a folder.
    #[command(after_help = "\
Examples:
  sidecore man /usr/local/share/man/man1")]
    Man {
        /// The folder; it is made if need be.
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
    /// Write the manual into a folder: operating.md leads, config.md has each field of the file, api.md each call.
    #[command(after_help = "\
Examples:
  sidecore docs /usr/local/share/doc/sidecore")]
    Docs {
        /// The folder; it is made if need be.
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
}

/// What `doctor` is asked for besides.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Whether a VMM of that user reaches the socket of each disk and NIC, and what helps if not. Needs root.
    #[arg(long, value_name = "USER")]
    pub(crate) vmm: Option<String>,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  sidecore serve --config sidecore.toml --check     check the file, and what a reload would do
  sidecore serve --config sidecore.toml
  SIDECORE_LOG=debug sidecore serve

--check changes nothing. It looks at what is there, and at what another process has: images
that are locked, taps that are up, UDP ports of links, sockets, `state_dir`. A tap that is down
looks free to it, whoever has it open. What the daemon that runs with this file has is right, and
it says so.

It tells systemd when it is ready (Type=notify), reads its file again on SIGHUP or
`sidecore reload`, and ends on SIGTERM or SIGINT when nothing is in flight any more,
or when a disk has not answered for a moment: the next daemon does those requests again.")]
pub(crate) struct ServeArgs {
    /// The configuration file.
    #[arg(long, value_name = "FILE", default_value = "/etc/sidecore/sidecore.toml")]
    pub(crate) config: PathBuf,
    /// Check the file against this host and end; 0 if it is right, 2 if the file has a
    /// mistake, 1 if this host lacks what it names.
    #[arg(long)]
    pub(crate) check: bool,
    /// Take over from the daemon at the standard input.
    #[arg(long, hide = true, conflicts_with = "check")]
    pub(crate) heir: bool,
    /// End when the process ends that started this one.
    #[arg(long, hide = true)]
    pub(crate) with_parent: bool,
}

/// What follows the path of a request that may be one that a guest loses by.
pub(crate) fn force_query(force: bool) -> &'static str {
    if force { "?force=true" } else { "" }
}

#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct ReloadArgs {
    /// Say what would be done, to which disks and NICs, and which of them a guest uses. Change
    /// nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do also what takes a device from a guest that uses it.
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) force: bool,
}

#[derive(Args, Debug)]
pub(crate) struct UpgradeArgs {
    /// Do it also where requests that wait end with an error, and where a new disk does not fit
    /// its image.
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Subcommand, Debug)]
pub(crate) enum RemoteCommand {
    /// Show every link: sessions, how the ways to other machines are, disks and NICs.
    #[command(after_help = "\
DROPPED are frames of strangers, that were not authentic, or were seen before: some are usual
after a session has ended. Of each way, from here to there: SENT are frames that are
acknowledged, LOST those taken for lost. SENT AGAIN are parts that went again for that, or since
no acknowledgement came in time, as on a machine that is busy: with LOST at 0 nothing was lost.
As many may be UNDER WAY as WINDOW (halved by losses) and CREDIT (the other end's memory) allow.

Examples:
  sidecore remote status
  sidecore remote status --json")]
    Status,
}

#[derive(Subcommand, Debug)]
pub(crate) enum LinkCommand {
    /// Print the public key that belongs to a private one; make that if there is none.
    #[command(after_help = "\
The private key stays in the file, which only its owner may read; `key_file` in [[link]] names
it. The public one is for the other machine's file: `key` of a [[link.client]] at the IOhost,
`iohost_key` at a client.

Examples:
  sidecore link key /etc/sidecore/host7.key")]
    Key {
        /// The file.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

#[cfg(test)]
mod tests;
