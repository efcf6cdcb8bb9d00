//! The commands, their options and their examples.
//!
//! The options of `disk add` and `disk set` are the fields of the configuration file; their texts
//! are in `config::spec`.

use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use config::Size;
use config::spec::{DiskChange, DiskMove, DiskSpec};

use crate::vmm::Vmm;

mod group;
mod machine;
mod net;
mod shared;
mod top;

pub(crate) use group::GroupCommand;
pub(crate) use machine::{ClientArgs, VdpaCommand};
pub(crate) use net::{NicAddArgs, NicCommand, SwitchCommand};
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
reached. `serve`, `serve --check` and a reload find the same, and the first two end
alike."
)]
pub(crate) struct Cli {
    /// Unix socket of the daemon's API [env: SIDECORE_API] [default: /run/sidecore/api.sock].
    // The variable is read in `main`: clap would count it as given, and show it as needed in usage lines.
    #[arg(long, global = true, value_name = "SOCKET", help_heading = "Global options")]
    pub(crate) api: Option<String>,
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
        let path = match self.command {
            Command::Disk(DiskCommand::Add(_)) => ["disk", "add"],
            Command::Disk(DiskCommand::Set { .. }) => ["disk", "set"],
            Command::Nic(NicCommand::Add(_)) => ["nic", "add"],
            Command::Nic(NicCommand::Set { .. }) => ["nic", "set"],
            Command::Switch(SwitchCommand::Add(_)) => ["switch", "add"],
            Command::Group(GroupCommand::Add(_)) => ["group", "add"],
            Command::Group(GroupCommand::Set { .. }) => ["group", "set"],
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
below the tables names; `connected` before its driver has set a queue up; `running`; `failed`
when a queue or the session broke the rules, or what it is wired to is gone, which a line below
the tables says."
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
    /// Let the daemon read its configuration file again.
    #[command(after_help = "\
Examples:
  sidecore reload --dry-run
  sidecore reload
  sidecore reload --force                              also what takes a device from a guest

A mistake in the file is refused whole and changes nothing; so is an image, an interface or a
key that cannot be opened. Disks that did not change are not disturbed, nor are NICs; what was
made with `add` stays. What takes a device from the guest that uses it, makes it anew or makes a
disk smaller under it is refused, too: --dry-run says what that is, and --force does it. A reload
by SIGHUP never does. Devices that could not be opened before are tried again; if some are
still not open, they are named, and the status is 1, though all else was done.")]
    Reload(ReloadArgs),
    /// Replace the daemon by the program as it is installed now; no guest notices.
    #[command(after_help = "\
Examples:
  sidecore serve --config /etc/sidecore/sidecore.toml --check && sidecore upgrade

Install the new program in the place of the old one first. It also puts fields into force that
otherwise take a restart. A new process of the program that was started as the daemon takes over
its sockets, its guests' memory, rings, images and taps; each queue stands still for a moment. It
reads the configuration file anew, and refuses one that would take a device from its guest:
`sidecore reload --force` does that. If it cannot take over, the daemon goes on as it is, and
says why.")]
    Upgrade,
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
    /// Write docs/config.md and docs/api.md into a folder.
    #[command(hide = true, after_help = "Examples:\n  sidecore docs docs")]
    Docs {
        /// The folder.
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

It tells systemd when it is ready (Type=notify), reads its file again on SIGHUP or
`sidecore reload`, and ends on SIGTERM or SIGINT when nothing is in flight any more.")]
pub(crate) struct ServeArgs {
    /// The configuration file.
    #[arg(long, value_name = "FILE", default_value = "/etc/sidecore/sidecore.toml")]
    pub(crate) config: PathBuf,
    /// Check the file against this host and end; 0 if it is right, otherwise 2.
    #[arg(long)]
    pub(crate) check: bool,
    /// Take over from the daemon at the standard input.
    #[arg(long, hide = true, conflicts_with = "check")]
    pub(crate) heir: bool,
    /// End when the process ends that started this one.
    #[arg(long, hide = true)]
    pub(crate) with_parent: bool,
}

#[derive(Subcommand, Debug)]
pub(crate) enum DiskCommand {
    /// Make a disk. It survives a restart of the daemon.
    Add(AddArgs),
    /// List the disks.
    #[command(
        alias = "list",
        after_help = "Examples:\n  sidecore disk ls\n  sidecore disk ls --json"
    )]
    Ls,
    /// Show one disk with its queues.
    #[command(after_help = "\
Examples:
  sidecore disk show vm1-root
  sidecore disk show vm1-root --print qemu --memory 4G")]
    Show {
        /// Name of the disk.
        id: String,
        #[command(flatten)]
        print: PrintArgs,
    },
    /// Remove a disk. Its image stays.
    #[command(
        alias = "remove",
        after_help = "\
Examples:
  sidecore disk rm vm1-root
  sidecore disk rm vm1-root --force                    also while a guest uses it"
    )]
    Rm {
        /// Name of the disk.
        id: String,
        /// Do it also while a guest uses the disk.
        #[arg(long)]
        force: bool,
    },
    /// Give a disk another capacity; its guest is told.
    #[command(after_help = "\
A smaller one is refused while a guest uses the disk, and so is one that is larger than the
file system of its image; --force does it.

Examples:
  sidecore disk resize vm1-root 20G
  sidecore disk resize vm1-root 21474836480 --json
  sidecore disk resize vm1-root 10G --force            also under its guest")]
    Resize {
        /// Name of the disk.
        id: String,
        /// The new capacity, such as 20G (powers of 1024); a multiple of 512 bytes.
        #[arg(value_parser = config::number::size)]
        size: Size,
        /// Do it also when it is smaller and a guest uses the disk, and when it is larger than the image's file system.
        #[arg(long)]
        force: bool,
    },
    /// Let a disk flush again that could not make data stable. Check its data first.
    #[command(after_help = "\
The kernel tells of lost data once. A disk that was told so refuses every flush, also
after a restart of the daemon, until this command says that you know what was lost:
check the file system in the guest (or restore a backup), then clear the disk.

Examples:
  sidecore disk clear vm1-root")]
    Clear {
        /// Name of the disk.
        id: String,
    },
    /// Have the guest of a disk go on with the image that is there, though it was on another one.
    #[command(after_help = "\
A guest whose driver was running is served only from the image that it was on. When
another one is there (another `path`, a restored file, another disk of the IOhost), its
requests wait, and `sidecore show` says which image it was on and which one is there.
Put the right image back, or restart the guest. This command says that both hold the
same data; if they do not, the guest's file system is destroyed.

Examples:
  sidecore show vm1-root
  sidecore disk accept vm1-root")]
    Accept {
        /// Name of the disk.
        id: String,
    },
    /// Move queues of a running disk to another sidecore.
    #[command(after_help = "\
Its guest goes on: nothing is lost, and the queue stands still for less than a millisecond
if the sidecores have their cpus to themselves. A queue whose requests take longer to end
stays where it is; try again. Any disk can be moved, also one that the configuration file
declares. `sidecore show` says where its queues are, `sidecore sidecores` what each
sidecore has to do.

They stay there, whatever the loads, until they are moved again, are let go, or their
front-end starts them anew; meanwhile that sidecore is not parked. `--to auto` lets them go:
they are where they were, and may be moved by the loads from then on.

Examples:
  sidecore disk move vm1-root --to 1
  sidecore disk move vm1-data --queue 3 --to 0
  sidecore disk move vm1-data --to auto")]
    Move {
        /// Name of the disk.
        id: String,
        #[command(flatten)]
        wish: DiskMove,
    },
    /// Change a disk while it runs.
    #[command(
        override_usage = "sidecore disk set [OPTIONS] <ID>",
        after_help = "\
Examples:
  sidecore disk set vm1-root --share 200
  sidecore disk set vm1-root --policy poll
  sidecore disk set vm1-root --limit-iops 2000 --limit-bytes 100M
  sidecore disk set vm1-root --limit-iops 0 --group tenant1"
    )]
    Set {
        /// Name of the disk.
        id: String,
        #[command(flatten)]
        change: DiskChange,
    },
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

#[derive(Subcommand, Debug)]
pub(crate) enum RemoteCommand {
    /// Show every link: sessions, how the ways to other machines are, disks and NICs.
    #[command(after_help = "\
DROPPED are frames of strangers, that were not authentic, or were seen before: some are usual
after a session has ended. Of each way, from here to there: SENT are frames that are
acknowledged, LOST those taken for lost, SENT AGAIN their parts that went again; as many may be
UNDER WAY as WINDOW (halved by losses) and CREDIT (the other end's memory) allow.

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

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  sidecore disk add vm1-root --path vm1.img --print qemu
  sidecore disk add vm1-data --path /dev/vg0/vm1 --queues 4 --serial DATA1
  sidecore disk add vm2-root --path golden.img --readonly --print libvirt
  sidecore disk add scratch --backend memory --size 1G --print cloud-hypervisor
  sidecore disk add vm3-root --path vm3.img --size 20G      make the image if it is not there")]
pub(crate) struct AddArgs {
    #[command(flatten)]
    pub(crate) disk: DiskSpec,
    #[command(flatten)]
    pub(crate) print: PrintArgs,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  sidecore show vm1-root
  sidecore show vm1-root --json | jq .counters.latency_p99_ns
  sidecore show vm1-root --print qemu --memory 4G
  sidecore show vm1-net

BUSY is what a queue took of its sidecore's time at the daemon's last look, which is not older
than a second.

P50 and P99 of a disk: half, and 99 of 100, of its requests took no longer, from when the
daemon took them from the ring to their completion. Waiting in the ring, also for a limit, is
not in them.

held, and HELD of each queue, is that: how often a queue had something and had to wait for a
limit, and how long, since the disk or NIC was made. A guest whose held grows by about the
time that goes by has more to do than it is allowed. What comes for a NIC does not wait: what
is too much is dropped, as over_limit. MULTICAST are frames to a multicast address, or to all.")]
pub(crate) struct ShowArgs {
    /// Name of the disk or NIC.
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) print: PrintArgs,
}

#[derive(Args, Debug)]
pub(crate) struct PrintArgs {
    /// Print what gives the device to a guest, to be pasted into that VMM's command line or file.
    #[arg(long, value_enum, value_name = "VMM")]
    pub(crate) print: Option<Vmm>,
    /// The guest's memory in what `--print` prints; the same as the VMM is given otherwise.
    #[arg(long, value_name = "SIZE", default_value = "2G", requires = "print",
          value_parser = guest_memory)]
    pub(crate) memory: Size,
}

/// A size that a guest can have.
fn guest_memory(text: &str) -> Result<Size, String> {
    let size = config::number::size(text).map_err(|refused| refused.to_string())?;
    match size.0 >= 1 << 20 {
        true => Ok(size),
        false => Err("a guest has at least 1M of memory".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use config::spec::NicSpec;

    use super::*;

    fn each(command: &clap::Command, visit: &mut dyn FnMut(&clap::Command)) {
        visit(command);
        command.get_subcommands().for_each(|sub| each(sub, visit));
    }

    #[test]
    fn the_table_is_sound_and_every_help_has_examples() {
        Cli::told().debug_assert();
        each(&Cli::told(), &mut |command| {
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            // What nobody is to run needs none.
            let is_shown = !command.is_hide_set();
            let has_some = after.contains("Examples:\n  sidecore ");
            assert!(has_some || !is_shown, "{}", command.get_name());
        });
    }

    #[test]
    fn no_line_of_a_help_is_longer_than_98_columns() {
        let mut whole = Cli::told();
        whole.build();
        each(&whole, &mut |command| {
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let help = command.clone().render_long_help().to_string();
            for line in after.lines().chain(help.lines()) {
                assert!(line.chars().count() <= 98, "{}: {line}", command.get_name());
            }
        });
    }

    #[test]
    fn the_socket_s_default_in_the_help_is_the_daemon_s() {
        let help = Cli::told().render_long_help().to_string();
        let api = config::spec::DaemonSpec::default().api;
        assert!(help.contains(&format!("[env: SIDECORE_API] [default: {api}]")), "{help}");
    }

    #[test]
    fn a_refused_line_shows_no_option_as_needed_that_is_not() {
        for line in ["sidecore disk move a", "sidecore --json disk move a"] {
            let error = Cli::read(line.split(' ')).unwrap_err().to_string();
            assert!(!error.contains("--api <SOCKET>"), "{error}");
        }
    }

    #[test]
    fn a_guest_without_memory_is_printed_for_nobody() {
        for size in ["0", "1", "1000K"] {
            let line = ["sidecore", "show", "a", "--print", "qemu", "--memory", size];
            let error = Cli::read(line).unwrap_err().to_string();
            assert!(error.contains("at least 1M"), "{error}");
        }
    }

    #[test]
    fn every_example_is_a_command_that_parses() {
        each(&Cli::told(), &mut |command| {
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for line in after.lines().filter(|line| line.starts_with("  ")) {
                let words: Vec<&str> = line
                    .trim_start_matches("  SIDECORE_LOG=debug")
                    .trim_start_matches("  sudo")
                    .split("   ")
                    .find(|part| !part.is_empty())
                    .unwrap_or_default()
                    .split_whitespace()
                    .take_while(|word| !matches!(*word, "|" | ">" | "&&"))
                    .collect();
                Cli::read(&words).unwrap_or_else(|error| panic!("{line}: {error}"));
            }
        });
    }

    #[test]
    fn the_manual_s_commands_parse_and_do_on_a_host_with_one_sidecore() {
        let texts = ["../../README.md", "../../docs/operating.md"]
            .map(|file| std::fs::read_to_string(file).unwrap())
            .concat();
        // Prose may begin a line with the name, too: commands stand in fences.
        let mut is_code = false;
        let commands = texts.lines().filter(|line| {
            is_code ^= line.starts_with("```");
            is_code && line.trim_start_matches("sudo ").starts_with("sidecore ")
        });
        let mut moves = 0;
        for line in commands {
            let words = line.trim_start_matches("sudo ");
            let words = words.split_whitespace().take_while(|word| !word.starts_with('#'));
            let cli = Cli::read(words).unwrap_or_else(|error| panic!("{line}: {error}"));
            let to = match cli.command {
                Command::Disk(DiskCommand::Move { wish, .. }) => wish.to,
                Command::Nic(NicCommand::Move { wish, .. }) => wish.to,
                _ => continue,
            };
            assert_eq!(to, config::Target::Sidecore(0), "{line}");
            moves += 1;
        }
        assert_eq!(moves, 2);
    }

    #[test]
    fn options_make_the_same_spec_as_the_file() {
        let line = "sidecore disk add a --path /a.img --size 1G --readonly --serial S --queues 4 \
                    --share 7 --policy poll --cache page --mode connect --socket /s \
                    --allow-unsealed-memory";
        let cli = Cli::read(line.split_whitespace()).unwrap();
        let Command::Disk(DiskCommand::Add(args)) = cli.command else { panic!("not an add") };
        let file = "[[disk]]\nid='a'\npath='/a.img'\nsize='1G'\nreadonly=true\nserial='S'\nqueues=4\n\
                    share=7\npolicy='poll'\ncache='page'\nmode='connect'\nsocket='/s'\n\
                    allow_unsealed_memory=true";
        let document = config::read::Document::parse(file, "f").unwrap();
        assert_eq!(document.spec.disk, [args.disk]);
        let cli = Cli::read("sidecore disk add a".split(' ')).unwrap();
        let Command::Disk(DiskCommand::Add(args)) = cli.command else { panic!("not an add") };
        assert_eq!(args.disk, DiskSpec::new("a"));
    }

    #[test]
    fn a_nic_s_options_make_the_same_spec_as_the_file() {
        let line = "sidecore nic add a --switch s --mac 02:00:00:00:00:01 --trunk 10,20 --native 1 \
                    --macs-max 4 --queues 2 --mtu 9000 --share 7 --policy poll --link down --mode \
                    connect --socket /s --allow-unsealed-memory --limit-packets 9 --limit-bytes 1M \
                    --limit-burst-ms 20 --group g --guest-offloads false";
        let cli = Cli::read(line.split_whitespace()).unwrap();
        let Command::Nic(NicCommand::Add(args)) = cli.command else { panic!("not an add") };
        let file = "[[nic]]\nid='a'\nswitch='s'\nmac='02:00:00:00:00:01'\ntrunk=[10,20]\nnative=1\n\
                    macs_max=4\nqueues=2\nmtu=9000\nshare=7\npolicy='poll'\nlink='down'\n\
                    mode='connect'\nsocket='/s'\nallow_unsealed_memory=true\nlimit_packets=9\n\
                    limit_bytes='1M'\nlimit_burst_ms=20\ngroup='g'\nguest_offloads=false";
        let document = config::read::Document::parse(file, "f").unwrap();
        assert_eq!(document.spec.nic, [args.nic]);
        let line = "sidecore group add g --limit-iops 1 --limit-packets 2 --limit-bytes 4K \
                    --limit-burst-ms 5";
        let cli = Cli::read(line.split_whitespace()).unwrap();
        let Command::Group(GroupCommand::Add(spec)) = cli.command else { panic!("not an add") };
        let file = "[[group]]\nid='g'\nlimit_iops=1\nlimit_packets=2\nlimit_bytes='4K'\n\
                    limit_burst_ms=5";
        let document = config::read::Document::parse(file, "f").unwrap();
        assert_eq!(document.spec.group, [spec]);
        let line = "sidecore nic add a --null generate --size 64 --rate 7";
        let cli = Cli::read(line.split(' ')).unwrap();
        let Command::Nic(NicCommand::Add(args)) = cli.command else { panic!("not an add") };
        let file = "[[nic]]\nid='a'\nnull='generate'\nsize=64\nrate=7";
        let document = config::read::Document::parse(file, "f").unwrap();
        assert_eq!(document.spec.nic, [args.nic]);
        let line = "sidecore switch add s --ageing-s 9 --macs-max 7 --uplink tap=t,vlan=3 --uplink \
                    interface=e";
        let cli = Cli::read(line.split_whitespace()).unwrap();
        let Command::Switch(SwitchCommand::Add(spec)) = cli.command else { panic!("not an add") };
        let file = "[[switch]]\nid='s'\nageing_s=9\nmacs_max=7\n[[switch.uplink]]\ntap='t'\nvlan=3\n\
                    [[switch.uplink]]\ninterface='e'";
        let document = config::read::Document::parse(file, "f").unwrap();
        assert_eq!(document.spec.switch, [spec]);
        let cli = Cli::read("sidecore nic add a".split(' ')).unwrap();
        let Command::Nic(NicCommand::Add(args)) = cli.command else { panic!("not an add") };
        assert_eq!(args.nic, NicSpec::new("a"));
    }

    #[test]
    fn a_number_that_cannot_be_is_refused_in_one_style() {
        let share = "write a number from 1 to 10000, such as 200";
        for (line, said) in [
            ("disk set a --limit-iops -5", "from 0 to 1000000000, such as 5000; 0 for no limit"),
            ("disk add a --limit-iops -5", "1000000000, such as 5000; leave it out for no limit"),
            ("disk set a --share -5", share),
            ("nic add a --share 5k", share),
            ("nic set a --share 10001", share),
            ("disk add a --queues 65", "write a number from 1 to 64, such as 4"),
            ("nic add a --trunk 10,-2", "write a number from 1 to 4094, such as 10"),
            ("disk set a --limit-bytes -1", "\"-1\" is not a size; write bytes, or a whole number"),
            ("disk resize a -1", "\"-1\" is not a size; write bytes, or a whole number"),
            ("disk move a --to -1", "write the number of a sidecore, such as 0, or \"auto\""),
        ] {
            let words = std::iter::once("sidecore").chain(line.split(' '));
            let error = Cli::read(words).unwrap_err().to_string();
            assert!(error.starts_with("error: invalid value '"), "{line}: {error}");
            assert!(error.contains(said), "{line}: {error}");
        }
        assert!(Cli::read(["sidecore", "disk", "resize", "a", "--json", "1"]).is_ok());
    }

    #[test]
    fn nonsense_is_refused() {
        for line in [
            "sidecore disk set a",
            "sidecore disk set a --limit-iops 5k",
            "sidecore disk set a --latency-target-us 200us",
            "sidecore disk set a --limit-burst-ms 3",
            "sidecore nic set a --limit-bytes 100Mbit",
            "sidecore disk add a --queues 65",
            "sidecore disk add a --size 1X",
            "sidecore show a --memory 1G",
            "sidecore disk add a --policy fast",
            "sidecore nic add a --mac 01:00:00:00:00:00",
            "sidecore nic add a --vlan 4095",
            "sidecore nic add a --mtu 67",
            "sidecore nic link a sideways",
            "sidecore nic set a --limit-packets -1",
            "sidecore group set a",
            "sidecore group add a --limit-burst-ms 3",
            "sidecore switch add a --uplink lan0",
            "sidecore switch add a --uplink tap=lan0,vlan=0",
        ] {
            assert!(Cli::read(line.split(' ')).is_err(), "{line}");
        }
    }
}
