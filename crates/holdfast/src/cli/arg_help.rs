//! What names and ids on the command line mean: said once for all verbs that take them.

use clap::{Arg, Command};

const WORDS: &[(&str, &str)] = &[
    ("VOLUME", "The volume: its name, its id or how that begins; `volume list` shows it"),
    ("NODE", "The node, by its name; `node list` shows it"),
    ("POOL", "The pool, by its name; `pool list` shows it"),
    ("SNAPSHOT", "The snapshot: its name, its id or how that begins; `snapshot list` shows it"),
    ("GROUP", "The group: its name, its id or how that begins; `group list` shows it"),
    ("REPLICA", "The copy, by its id; `volume get` and `replica list` show it"),
    ("TARGET", "The target, by its id; `target list` shows it"),
    ("HOST", "The host, by its name; `host list` shows it"),
    ("REBUILD", "The rebuild, by its id; `rebuild list` shows it"),
    ("WEBHOOK", "The webhook, by its name; `webhook list` shows it"),
];

/// The command, each of whose arguments says what it is.
pub(crate) fn explained(command: Command) -> Command {
    command.mut_args(with_help).mut_subcommands(explained)
}

fn with_help(arg: Arg) -> Arg {
    let said = arg.get_help().is_some() || !arg.is_positional();
    let name = arg.get_value_names().and_then(|names| names.first());
    let words = name.and_then(|name| WORDS.iter().find(|(word, _)| *name == *word));
    match words {
        Some((_, words)) if !said => arg.help(*words),
        _ => arg,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    /// Those of a command and of all below it that say nothing.
    fn silent(command: &Command, path: &str) -> Vec<String> {
        let path = format!("{path} {}", command.get_name());
        let mute = command.get_arguments().filter(|arg| arg.get_help().is_none());
        let mut found: Vec<String> = mute.map(|arg| format!("{path}: {}", arg.get_id())).collect();
        if command.get_about().is_none() {
            found.push(path.clone());
        }
        found.extend(command.get_subcommands().flat_map(|below| silent(below, &path)));
        found
    }

    #[test]
    fn every_command_and_argument_says_what_it_is() {
        let command = explained(crate::Cli::command());
        assert_eq!(silent(&command, ""), Vec::<String>::new());
    }
}
