//! `completions`: a script for a shell, and the names in it, which the daemon is asked for when a line is completed.
//!
//! The script is clap's, without what is internal, and with a call of `sidecore complete` where a name is wanted. Not
//! here: the commands (`cli`).

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Duration;

use clap::{Arg, Command};
use clap_complete::Shell;
use config::routes::Method;
use serde_json::Value;

use crate::cli::Cli;
use crate::client::Client;
use crate::failure::Failure;

/// How long a shell waits for names at most.
const NAMES_TIME_MAX: Duration = Duration::from_millis(500);

/// Added to clap's script for bash: names are candidates beside the options.
const BASH: &str = r#"
_sidecore_with_names() {
    _sidecore "$@"
    local word=${COMP_WORDS[COMP_CWORD]} name
    [[ $word == -* ]] && return
    while read -r name; do
        [[ $name == "$word"* ]] && COMPREPLY+=("$name")
    done < <(sidecore complete -- "${COMP_WORDS[@]:1:COMP_CWORD-1}" 2>/dev/null)
}
complete -F _sidecore_with_names -o bashdefault -o default sidecore
"#;
/// The same for zsh, whose words are those of the innermost command: the line is asked instead.
const ZSH: &str = r#"
_sidecore_names() {
    local -a before names
    before=(${(z)LBUFFER})
    [[ $LBUFFER == *' ' ]] || shift -p before
    names=(${(f)"$(sidecore complete -- ${before[2,-1]} 2>/dev/null)"})
    compadd -a names
}
"#;
const FISH: &str =
    "complete -c sidecore -f -a \"(sidecore complete -- (commandline -opc)[2..] 2>/dev/null)\"\n";

/// `completions`
pub(crate) fn print(shell: Shell) -> Result<(), Failure> {
    match std::io::stdout().lock().write_all(script(shell).as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::usage(
            format!("the output cannot be written: {error}"),
            "see to where it goes",
        )),
        _ => Ok(()),
    }
}

fn script(shell: Shell) -> String {
    let mut bytes = Vec::new();
    clap_complete::generate(shell, &mut shown(&Cli::told()), "sidecore", &mut bytes);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    match shell {
        Shell::Bash => text + BASH,
        Shell::Fish => text + FISH,
        Shell::Zsh => {
            let mut named = String::new();
            for line in text.lines() {
                let is_name = ["':id -- ", "'::id -- "].iter().any(|start| line.starts_with(start));
                let line = if is_name {
                    line.replace(":_default'", ":_sidecore_names'")
                } else {
                    line.to_string()
                };
                let _ = writeln!(named, "{line}");
                if line == "autoload -U is-at-least" {
                    named.push_str(ZSH);
                }
            }
            named
        }
        _ => text,
    }
}

/// A command without what is hidden.
fn shown(command: &Command) -> Command {
    let arguments = command.get_arguments().filter(|argument| !argument.is_hide_set());
    let commands = command.get_subcommands().filter(|command| !command.is_hide_set());
    let about = command.get_about().cloned().unwrap_or_default();
    // clap keeps names for as long as the program runs, which ends when the script is printed.
    let kept = |name: &str| -> &'static str { name.to_string().leak() };
    let aliases: Vec<&str> = command.get_visible_aliases().map(kept).collect();
    Command::new(kept(command.get_name()))
        .about(about)
        .visible_aliases(aliases)
        .version(crate::version::TOLD)
        .args(arguments.cloned())
        .subcommands(commands.map(shown))
}

/// `complete`: the names that may follow these words, a line each. Nothing when none may, or no daemon says one soon:
/// whoever completes a line wants no message.
pub(crate) fn names(words: &[OsString], client: &Client) -> String {
    let kinds = kinds_after(words);
    let lists = kinds.iter().filter_map(|kind| {
        let list: Value =
            client.ask_soon(Method::Get, &format!("/v1/{kind}"), NAMES_TIME_MAX).ok()?;
        Some(
            list[*kind]
                .as_array()?
                .iter()
                .filter_map(|one| Some(one["id"].as_str()?.to_string() + "\n"))
                .collect::<String>(),
        )
    });
    lists.collect()
}

/// Whose names are wanted behind these words, as the API's paths call them.
fn kinds_after(words: &[OsString]) -> &'static [&'static str] {
    let root = Cli::told();
    let (mut command, mut path, mut positions, mut is_value) = (&root, Vec::new(), 0, false);
    for word in words {
        let word = word.to_string_lossy();
        if std::mem::take(&mut is_value) {
            continue;
        }
        if let Some(option) = word.strip_prefix("--") {
            let takes = |argument: &&Arg| {
                argument.get_long() == Some(option) && argument.get_action().takes_values()
            };
            is_value = command.get_arguments().chain(root.get_arguments()).any(|one| takes(&one));
        } else if let Some(letter) = word.strip_prefix('-') {
            let takes = |argument: &Arg| {
                let short = argument.get_short().is_some_and(|short| letter == short.to_string());
                short && argument.get_action().takes_values()
            };
            is_value = command.get_arguments().any(takes);
        } else if let Some(sub) = command.find_subcommand(&*word) {
            path.push(sub.get_name());
            command = sub;
        } else {
            positions += 1;
        }
    }
    let takes_id = command.get_positionals().nth(positions).is_some_and(|it| it.get_id() == "id");
    match path.first() {
        _ if !takes_id || is_value => &[],
        Some(&"disk") => &["disks"],
        Some(&"nic") => &["nics"],
        Some(&"switch") => &["switches"],
        Some(&"group") => &["groups"],
        Some(&"show") => &["disks", "nics"],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_asked_for_where_one_is_wanted() {
        for (line, kinds) in [
            ("disk rm", &["disks"][..]),
            ("disk rm --force", &["disks"]),
            ("--api /a.sock --json disk resize", &["disks"]),
            ("disk set --share 7", &["disks"]),
            ("disk stage rm", &["disks"]),
            ("disk stage rm a", &[]),
            ("disk trace", &["disks"]),
            ("disk trace -w f --op read", &["disks"]),
            ("disk trace -w", &[]),
            ("show --print qemu", &["disks", "nics"]),
            ("nic link", &["nics"]),
            ("switch show", &["switches"]),
            ("group rm", &["groups"]),
            ("disk rm a", &[]),
            ("nic link a", &[]),
            ("disk set --share", &[]),
            ("disk ls", &[]),
            ("disk", &[]),
            ("ls", &[]),
            ("", &[]),
            ("nonsense rm", &[]),
        ] {
            let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            assert_eq!(kinds_after(&words), kinds, "{line}");
        }
    }

    #[test]
    fn scripts_offer_nothing_that_is_internal_and_ask_for_names() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = script(shell);
            for internal in ["launcher", "vdpa", "--heir", "with-parent", "Internal"] {
                assert!(!script.contains(internal), "{shell}: {internal}");
            }
            assert!(script.contains("sidecore complete -- "), "{shell}");
            assert!(script.contains("resize") && script.contains("dry-run"), "{shell}");
        }
        let zsh = script(Shell::Zsh);
        assert!(zsh.contains("Name of the disk:_sidecore_names'"), "no name is asked for");
    }
}
