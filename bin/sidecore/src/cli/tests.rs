//! What is promised of command lines: what is written in helps works, and what makes no sense is refused.

use config::spec::{DiskSpec, NicSpec};

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
