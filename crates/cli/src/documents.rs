//! The documents name commands that exist, and the reference of commands is that of this program.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{Arg, Command, CommandFactory};

use super::arguments::Arguments;

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The pages whose commands people type: README, and every page of Start and Tasks.
fn pages() -> Vec<PathBuf> {
    let mut pages = vec![root().join("README.md")];
    for folder in ["docs/start", "docs/tasks"] {
        let entries = std::fs::read_dir(root().join(folder)).unwrap();
        pages.extend(entries.map(|entry| entry.unwrap().path()));
    }
    pages.sort();
    pages
}

/// The simple commands of a line of shell, as words. Comments, redirections and `&` are removed; a
/// quoted text is one word.
fn simple_commands(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let mut word = None::<String>;
    let mut quote = None;
    for character in line.chars() {
        match (quote, character) {
            (Some(open), close) if open == close => quote = None,
            (Some(_), inside) => word.get_or_insert_default().push(inside),
            (None, '\'' | '"') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, ' ' | '|' | ';' | '&' | '>' | '<') => {
                commands.last_mut().unwrap().extend(word.take());
                if character != ' ' {
                    commands.push(Vec::new());
                }
            }
            (None, other) => word.get_or_insert_default().push(other),
        }
    }
    commands.last_mut().unwrap().extend(word);
    commands
}

/// The calls of `cairn` in a line: after a prompt, `sudo` or `ssh host` as well.
fn calls(line: &str) -> Vec<Vec<String>> {
    let leads = ["sudo", "ssh", "host", "time"];
    let calls = simple_commands(line).into_iter().filter_map(|words| {
        let at = words.iter().position(|word| word == "cairn")?;
        let is_lead = |word: &String| leads.contains(&word.as_str()) || word.ends_with('$');
        words[..at].iter().all(is_lead).then(|| words[at..].to_vec())
    });
    calls.collect()
}

/// Why this program does not take `words`, if it does not.
fn refusal(words: &[String]) -> Option<clap::Error> {
    let error = super::parsed(words.iter().map(Into::into)).err()?;
    (!matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion)).then_some(error)
}

#[test]
fn commands_of_the_documents_parse() {
    let mut wrong = String::new();
    let mut tried = 0;
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        let mut is_fenced = false;
        for (number, line) in (1..).zip(text.lines()) {
            if line.trim_start().starts_with("```") {
                is_fenced = !is_fenced;
                continue;
            }
            // A command in a sentence may leave out its subject.
            let in_words = line.split('`').skip(1).step_by(2).flat_map(calls);
            let found: Vec<_> = if is_fenced { calls(line.trim()) } else { in_words.collect() };
            for words in found {
                tried += 1;
                let is_left_out = |error: &clap::Error| {
                    let kind = error.kind();
                    !is_fenced
                        && matches!(
                            kind,
                            ErrorKind::MissingRequiredArgument
                                | ErrorKind::MissingSubcommand
                                | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
                        )
                };
                if let Some(error) = refusal(&words).filter(|error| !is_left_out(error)) {
                    let page = page.file_name().unwrap().to_string_lossy();
                    let reason = error.to_string().lines().next().unwrap_or_default().to_owned();
                    writeln!(wrong, "{page}:{number}: {}: {reason}", words.join(" ")).unwrap();
                }
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
    assert!(tried > 300, "only {tried} commands were found");
}

#[test]
fn examples_of_manual_pages_parse_and_their_pages_exist() {
    let pages = crate::manual::names();
    for (command, examples) in crate::manual::EXAMPLES {
        assert!(pages.contains(&format!("{}.1", command.replace(' ', "-"))), "{command}");
        for (_, line) in examples {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            assert!(refusal(&words).is_none(), "{line}");
        }
    }
}

#[test]
fn wrong_command_of_a_document_is_found() {
    let found = calls("source$ sudo cairn volume create 'my vol' --size 1G # a comment | cairn");
    assert_eq!(found, [["cairn", "volume", "create", "my vol", "--size", "1G"]]);
    assert!(refusal(&found[0]).is_none());
    let found = calls("cairn image dump vol0 | ssh host cairn volume --no-such-option");
    assert_eq!(found.len(), 2);
    assert!(refusal(&found[0]).is_none());
    assert!(refusal(&found[1]).is_some());
}

#[test]
fn page_of_the_configuration_has_every_option_of_a_server() {
    let page = std::fs::read_to_string(root().join("docs/reference/configuration.md")).unwrap();
    let command = Arguments::command();
    let serve = command.find_subcommand("serve").unwrap();
    for option in serve.get_arguments().filter_map(Arg::get_long).filter(|option| *option != "config") {
        assert!(page.contains(&format!("| `{}` |", option.replace('-', "_"))), "no row for {option}");
    }
}

/// The paragraphs of a help text on one line: the first one has no full stop of its own.
fn sentences(help: &str) -> String {
    help.split("\n\n").map(str::trim).collect::<Vec<_>>().join(". ")
}

/// A line of a table for an argument: how it is written, and its help.
fn row(argument: &Arg) -> String {
    let mut spelled = match (argument.get_short(), argument.get_long()) {
        (Some(short), Some(long)) => format!("-{short}, --{long}"),
        (Some(short), None) => format!("-{short}"),
        (None, Some(long)) => format!("--{long}"),
        (None, None) => String::new(),
    };
    if argument.get_action().takes_values() {
        let names = argument.get_value_names().unwrap_or_default();
        let names: Vec<_> = names.iter().map(|name| format!("<{name}>")).collect();
        spelled = format!("{spelled} {}", names.join(" ")).trim().to_owned();
    }
    let words = argument.get_long_help().or(argument.get_help()).map(ToString::to_string);
    let mut help = words.map(|words| sentences(&words)).unwrap_or_default();
    let choices = argument.get_possible_values();
    let choices = choices.iter().filter(|value| !value.is_hide_set());
    let choices: Vec<_> = choices.map(|value| format!("`{}`", value.get_name())).collect();
    if argument.get_action().takes_values() && !choices.is_empty() {
        write!(help, " ({})", choices.join(", ")).unwrap();
    }
    let defaults: Vec<_> =
        argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if argument.get_action().takes_values() && !defaults.is_empty() {
        write!(help, " [default: {}]", defaults.join(", ")).unwrap();
    }
    let help = help.replace('|', "\\|").replace('<', "&lt;").replace('\n', " ");
    format!("| `{}` | {help} |\n", spelled.replace('|', "\\|"))
}

fn table(text: &mut String, arguments: &[&Arg]) {
    if !arguments.is_empty() {
        text.push_str("| argument | meaning |\n|---|---|\n");
        text.extend(arguments.iter().map(|argument| row(argument)));
        text.push('\n');
    }
}

/// A section for `command` and one for each below it.
fn sections(text: &mut String, command: &mut Command, path: &str) {
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string);
    writeln!(text, "## {path}\n\n{}\n", about.unwrap_or_default().replace('<', "&lt;")).unwrap();
    let usage = command.render_usage().to_string();
    let usage: Vec<_> = usage.trim_start_matches("Usage:").lines().map(str::trim).collect();
    writeln!(text, "```text\n{}\n```\n", usage.join("\n")).unwrap();
    let is_shown = |argument: &&Arg| {
        !argument.is_hide_set()
            && !argument.is_global_set()
            && !["help", "version"].contains(&argument.get_id().as_str())
    };
    let arguments: Vec<&Arg> = command.get_arguments().filter(is_shown).collect();
    table(text, &arguments);
    let below =
        command.get_subcommands_mut().filter(|below| !below.is_hide_set() && below.get_name() != "help");
    for below in below {
        let path = format!("{path} {}", below.get_name());
        sections(text, below, &path);
    }
}

/// `docs/reference/commands.md`.
fn reference() -> String {
    let mut command = Arguments::command();
    command.build();
    let mut text = String::from(
        "# Commands\n\nFor people who look up a command. This page is generated from the program: it lists every \
         command and option.\n\n`cairn COMMAND --help` prints the same. Commands that destroy something ask first; \
         `-n` shows what they would do. Sizes take `K`, `M`,\n`G` and `T` (powers of 1024); times take `ms`, `s`, \
         `m`, `h` and `d`.\n\n## Options of all commands\n\n",
    );
    let global: Vec<&Arg> = command.get_arguments().filter(|argument| argument.is_global_set()).collect();
    table(&mut text, &global);
    for below in command.get_subcommands_mut().filter(|below| below.get_name() != "help") {
        let path = format!("cairn {}", below.get_name());
        sections(&mut text, below, &path);
    }
    format!("{}\n", text.trim_end())
}

#[test]
fn reference_of_commands_is_up_to_date() {
    let path = root().join("docs/reference/commands.md");
    let described = reference();
    if std::env::var_os("CAIRN_WRITE_COMMANDS").is_some() {
        std::fs::write(&path, &described).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == described,
        "run `CAIRN_WRITE_COMMANDS=1 cargo test -p cairn-cli --bin cairn reference` and commit docs/reference/commands.md"
    );
}
