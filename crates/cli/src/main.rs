//! `cairn`: the commands. Each is a client of the server's API, but `serve`, which is the server,
//! and `demo`, which starts two.

mod arguments;
mod commands;
mod completion;
mod demo;
#[cfg(test)]
mod documents;
mod exit;
mod image_names;
mod instant;
mod log;
mod manual;
mod output;
mod secrets;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use cairn_api::{Address, DEFAULT_DATA};
use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches};
use tracing_subscriber::EnvFilter;

use arguments::{Arguments, Command, Global};
use cairn_api::ErrorKind;
use cairn_api::client::{Client, Place};
use exit::Failure;
use output::{Output, note_line};

/// The static program of a release. The allocator of musl has one lock, for which the threads of a
/// server queue: allocations of two threads cost 27 times the processor time.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    if words.first().is_some_and(|word| word == completion::COMMAND) {
        completion::names(&words[1..]).iter().for_each(|name| output::print_line(name));
        return ExitCode::from(exit::DONE);
    }
    if words.first().is_some_and(|word| word == cairn_csi::host::COMMAND) {
        return cairn_csi::host::run(&words[1..]);
    }
    let arguments = match parsed(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(error) if error.use_stderr() && asks_for_check(std::env::args_os().skip(1)) => {
            // A monitoring system that ignores the output gets the exit code.
            let _ = writeln!(std::io::stdout(), "UNKNOWN - the arguments are wrong, see standard error");
            let _ = write!(std::io::stderr(), "{error}");
            return ExitCode::from(exit::NOT_KNOWN);
        }
        Err(error) => with_better_tips(error).exit(),
    };
    let global = arguments.global;
    set_up_log(&global);
    if global.verbose > 0 {
        image_names::show_in_full();
    }
    let output = Output { json: global.json, quiet: global.quiet, yes: global.yes };
    let outcome = match arguments.command {
        Command::Serve(serve) => commands::serve::run(serve, global.data, output),
        Command::Csi(asked) => place(&global).and_then(|place| commands::csi::run(asked, place, &global)),
        Command::Config(command) => commands::config::run(&command, output),
        Command::Service(service) => commands::service::run(service, global.data, output),
        Command::Demo(demo) => demo::run(&demo, output),
        Command::Completions { shell } => {
            let text = completion::script(shell);
            match std::io::stdout().write_all(&text).map_err(output::unwritten) {
                Err(Some(failure)) => Err(failure),
                Ok(()) | Err(None) => Ok(()),
            }
        }
        Command::Man { dir } => manual::write(&dir).map(drop).map_err(|error| {
            let what = format!("{}: {error}", dir.display());
            Failure::new(ErrorKind::Failed, what, "make the directory first, or name another one")
        }),
        Command::Restore(restore) => commands::run_restore(&restore, output),
        Command::State(command) if command.is_local() => commands::state::run_local(command, &global, output),
        Command::Key(key) if key.is_local() => commands::run_key(&key, output),
        Command::Image(image) if image.is_local() => commands::run_local(image, output),
        Command::Trace(trace) if !matches!(trace, arguments::Trace::Record(_) | arguments::Trace::List) => {
            commands::trace::run(trace, output)
        }
        Command::Plan(plan) if plan.is_local() => commands::trace::run_plan(&plan, output),
        command => match connect(&global) {
            Ok(client) => commands::run(command, &client, output),
            // Monitoring knows four exit codes, and this is the one for an unknown state.
            Err(failure) if matches!(command, Command::Mirror(arguments::Mirror::Check { .. })) => {
                Err(commands::unknown_to_check(&failure.body.message, output))
            }
            Err(failure) => Err(failure),
        },
    };
    match outcome {
        Ok(()) => ExitCode::from(exit::DONE),
        Err(failure) => failure.report(output.json),
    }
}

/// The arguments of the program, which come after its own name.
fn parsed(given: impl Iterator<Item = OsString>) -> Result<Arguments, clap::Error> {
    let mut command = with_habits(Arguments::command());
    let matches = command.try_get_matches_from_mut(given)?;
    let mut arguments = Arguments::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
    let global = &mut arguments.global;
    if global.server.is_some() && global.data.is_some() {
        // An option on the command line takes precedence over an environment variable.
        let is_typed = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
        match (is_typed("server"), is_typed("data")) {
            (true, false) => global.data = None,
            (false, true) => global.server = None,
            (typed, _) => {
                let which = match typed {
                    true => "--server and --data both name a server: give one of them\n",
                    false => {
                        "CAIRN_SERVER and CAIRN_DATA are both set, and each names a server: unset one, or give --server or --data\n"
                    }
                };
                return Err(command.error(clap::error::ErrorKind::ArgumentConflict, which));
            }
        }
    }
    Ok(arguments)
}

/// Accepts `ls` as well as `list`, and `rm` and `destroy` as well as `delete`, as in other
/// programs. The help names one word for each.
fn with_habits(command: clap::Command) -> clap::Command {
    let command = command.mut_subcommands(with_habits);
    match command.get_name() {
        "list" => command.alias("ls"),
        "delete" => command.aliases(["rm", "destroy"]),
        _ => command,
    }
}

/// Verbs of nouns, which are not commands of their own.
const VERBS: [&str; 6] = ["list", "ls", "show", "create", "delete", "rm"];

/// Improves three tips of clap. For `cairn image dump --to FILE VOLUME`, where the volume was taken
/// for another file, the tip names the right order. For an unknown option, the tip that shows how
/// to pass it as a value is dropped: no command takes such a value.
fn with_better_tips(mut error: clap::Error) -> clap::Error {
    use clap::error::{ContextKind, ContextValue};
    if let Some(ContextValue::StyledStrs(mut tips)) = error.remove(ContextKind::Suggested) {
        tips.retain(|tip| !tip.to_string().contains("as a value, use"));
        if !tips.is_empty() {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
        }
    }
    let given: Vec<_> = std::env::args_os().skip(1).collect();
    let has = |word: &str| given.iter().any(|argument| argument == word);
    // `cairn list`: each noun has that, and no noun is like it.
    if error.kind() == clap::error::ErrorKind::InvalidSubcommand
        && let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand)
        && let Some(verb) = VERBS.iter().find(|verb| *verb == word)
    {
        let tip = format!("name what it is about first, as in `cairn volume {verb}`");
        error.remove(ContextKind::SuggestedSubcommand);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    if error.kind() == clap::error::ErrorKind::MissingRequiredArgument && has("dump") && has("--to") {
        let tip = "--to takes all words after it as files: name the volume before it, as in `cairn image dump vol0 --to FILE`";
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// Whether arguments that are wrong were meant for `mirror check`, which monitoring runs.
fn asks_for_check(arguments: impl Iterator<Item = OsString>) -> bool {
    let words: Vec<OsString> = arguments.collect();
    words.windows(2).any(|pair| pair[0] == "mirror" && pair[1] == "check")
}

fn set_up_log(global: &Global) {
    let level = match (global.quiet, global.verbose) {
        (true, _) => "error",
        (false, 0) => "info",
        (false, 1) => "debug",
        (false, _) => "trace",
    };
    let filter = EnvFilter::try_from_env("CAIRN_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    log::start(filter);
}

/// The server that the options name.
fn place(global: &Global) -> Result<Place, Failure> {
    let usage = |message: &str, next: &str| Failure::new(ErrorKind::Usage, message, next);
    match &global.server {
        None => Ok(Place::Data(global.data.clone().unwrap_or_else(|| DEFAULT_DATA.into()))),
        Some(Address::Unix(path)) => Ok(Place::Unix(path.clone())),
        Some(Address::Tcp(address)) => {
            let file = global.token_file.as_ref().ok_or_else(|| {
                Failure::new(
                    ErrorKind::Unauthorized,
                    "a server at HOST:PORT wants a token",
                    "give --token-file FILE with a token of `cairn token create`, or a copy of DIR/http-token of the server",
                )
            })?;
            let token = std::fs::read_to_string(file).map_err(|error| {
                Failure::new(ErrorKind::Usage, format!("{}: {error}", file.display()), "check --token-file")
            })?;
            Ok(Place::Tcp(address.clone(), token.trim().to_owned()))
        }
        Some(Address::Off) => Err(usage("`off` is not a server", "give HOST:PORT or unix:PATH")),
    }
}

fn connect(global: &Global) -> Result<Client, Failure> {
    let mut client = Client::new(place(global)?, note_line)?;
    if let Some(root) = global.tls_root.as_ref().filter(|_| matches!(client.place(), Place::Tcp(..))) {
        let text = std::fs::read(root).map_err(|error| {
            Failure::new(ErrorKind::Usage, format!("{}: {error}", root.display()), "check --tls-root")
        })?;
        client.use_tls(&text)?;
    }
    Ok(client)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed_of(given: &[&str]) -> Result<Arguments, clap::Error> {
        parsed(std::iter::once("cairn").chain(given.iter().copied()).map(OsString::from))
    }

    #[test]
    fn words_of_other_programs_are_understood() {
        use arguments::{Lun, Snapshot, Volume};
        let command = |given: &[&str]| parsed_of(given).unwrap().command;
        assert!(matches!(command(&["volume", "ls"]), Command::Volume(Volume::List)));
        assert!(matches!(command(&["lun", "rm", "vol0/a"]), Command::Lun(Lun::Delete { .. })));
        let destroyed = command(&["snapshot", "destroy", "vol0@a"]);
        assert!(matches!(destroyed, Command::Snapshot(Snapshot::Delete { .. })));
        assert!(matches!(command(&["umount", "/mnt"]), Command::Unmount(_)));
        assert!(parsed_of(&["volume", "lst"]).is_err());
    }

    #[test]
    fn boolean_option_works_with_a_value_and_without() {
        use arguments::{Export, Mirror};
        let read_only = |given: &[&str]| match parsed_of(&[&["export", "set"], given].concat())?.command {
            Command::Export(Export::Set(asked)) => Ok::<_, clap::Error>(asked.read_only),
            _ => unreachable!(),
        };
        assert_eq!(read_only(&["v/a", "--read-only"]).unwrap(), Some(true));
        assert_eq!(read_only(&["v/a", "--read-only", "--removable"]).unwrap(), Some(true));
        assert_eq!(read_only(&["v/a", "--read-only", "true"]).unwrap(), Some(true));
        assert_eq!(read_only(&["--read-only", "false", "v/a"]).unwrap(), Some(false));
        assert_eq!(read_only(&["v/a", "--read-only=false"]).unwrap(), Some(false));
        assert_eq!(read_only(&["v/a", "--removable"]).unwrap(), None);
        // A name in the place of the value is refused, and not taken for one.
        assert!(read_only(&["--read-only", "v/a"]).is_err());
        let spread = |given: &[&str]| match parsed_of(&[&["mirror", "set", "v"], given].concat()) {
            Ok(Arguments { command: Command::Mirror(Mirror::Set { link, .. }), .. }) => link.spread,
            _ => unreachable!(),
        };
        assert_eq!([spread(&["--spread"]), spread(&["--spread", "off"])], [Some(true), Some(false)]);
    }

    #[test]
    fn unknown_option_is_not_explained_as_a_value() {
        let error = parsed_of(&["volume", "create", "v", "--bytes", "1G"]).map(drop).unwrap_err();
        let text = with_better_tips(error).to_string();
        assert!(text.contains("'--bytes'") && !text.contains("as a value"), "{text}");
    }

    #[test]
    fn verb_without_its_noun_is_no_command_that_looks_like_it() {
        let error = parsed_of(&["list"]).map(drop).unwrap_err();
        let text = with_better_tips(error).to_string();
        assert!(text.contains("cairn volume list") && !text.contains("history"), "{text}");
        let text = parsed_of(&["serve", "--nbd", "127.0.0.1:99999"]).map(drop).unwrap_err().to_string();
        assert!(text.contains("a port is 1 to 65535"), "{text}");
    }

    #[test]
    fn one_word_goes_back_everywhere_and_the_old_words_stay() {
        use arguments::{History, Mirror, Snapshot};
        let command = |given: &[&str]| parsed_of(given).unwrap().command;
        for word in ["rollback", "revert"] {
            for goal in [&["v@a"][..], &["v", "--to", "a"]] {
                let given = [&["snapshot", word], goal, &["-n"]].concat();
                assert!(matches!(command(&given), Command::Snapshot(Snapshot::Rollback { .. })));
            }
        }
        for (noun, word) in [("history", "revert"), ("mirror", "rewind"), ("mirror", "revert")] {
            for goal in [["--at", "-5m"], ["--mark", "m"], ["--to", "-5m"], ["--to", "m"]] {
                let given = [&[noun, word, "v"][..], &goal, &["-n"]].concat();
                match command(&given) {
                    Command::History(History::Revert { .. }) | Command::Mirror(Mirror::Rewind { .. }) => {}
                    other => panic!("{given:?}: {other:?}"),
                }
            }
        }
    }

    #[test]
    fn every_noun_can_be_listed_and_shown() {
        let command = with_habits(Arguments::command());
        let nouns = ["volume", "lun", "export", "snapshot", "device", "history", "group", "clone", "peer"];
        for noun in nouns.into_iter().chain(["mirror", "image", "bucket", "key", "quota"]) {
            let noun = command.find_subcommand(noun).unwrap();
            for verb in ["list", "show"] {
                assert!(noun.find_subcommand(verb).is_some(), "{} {verb}", noun.get_name());
            }
        }
        assert!(parsed_of(&["mount"]).is_ok() && parsed_of(&["mount", "v"]).is_err());
        for noun in ["mount", "trace", "state"] {
            assert!(command.find_subcommand(noun).unwrap().find_subcommand("list").is_some(), "{noun}");
        }
    }

    #[test]
    fn booleans_have_a_flag_for_either_answer() {
        use arguments::{Export, Mirror};
        for (given, answer) in [("--read-only", false), ("--no-read-only", true)] {
            let parsed = parsed_of(&["export", "set", "v/a", given]).unwrap().command;
            assert!(matches!(parsed, Command::Export(Export::Set(set)) if set.no_read_only == answer));
        }
        assert!(parsed_of(&["export", "set", "v/a", "--read-only", "--no-read-only"]).is_err());
        let parsed = parsed_of(&["mirror", "set", "v", "--no-spread"]).unwrap().command;
        assert!(matches!(parsed, Command::Mirror(Mirror::Set { link, .. }) if link.no_spread));
    }

    #[test]
    fn options_of_a_new_mirror_have_headings() {
        let mut command = Arguments::command();
        command.build();
        let create = command.find_subcommand("mirror").unwrap().find_subcommand("create").unwrap();
        for option in create.get_arguments().filter(|one| !one.is_global_set() && one.get_long().is_some()) {
            let heading = option.get_help_heading();
            assert!(
                heading.is_some() || ["help", "version"].map(Some).contains(&option.get_long()),
                "{:?}",
                option.get_long()
            );
        }
    }

    #[test]
    fn snapshots_that_are_compared_are_named_with_their_volume_or_behind_it() {
        let names =
            |given: &[&str]| match parsed_of(&[&["snapshot", "diff"], given].concat()).unwrap().command {
                Command::Snapshot(arguments::Snapshot::Diff(asked)) => {
                    let own =
                        |(volume, from, to): (&str, &str, Option<&str>)| format!("{volume} {from} {to:?}");
                    asked.of_one_volume().map(own).unwrap_or_default()
                }
                _ => unreachable!(),
            };
        let (one, two) = ("v a None", "v a Some(\"b\")");
        assert_eq!([names(&["v", "a"]), names(&["v@a"])], [one, one]);
        for given in [&["v", "a", "b"][..], &["v@a", "v@b"], &["v@a", "b"], &["v", "v@a", "v@b"]] {
            assert_eq!(names(given), two, "{given:?}");
        }
        for given in [&["v"][..], &["v@a", "w@b"], &["v@a", "b", "c"], &["v", "w@a"]] {
            assert_eq!(names(given), "", "{given:?}");
        }
    }
}
