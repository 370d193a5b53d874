//! Manual pages: those that clap makes of the commands, with examples of the main ones.

use std::io;
use std::path::{Path, PathBuf};

use clap::CommandFactory;

use crate::arguments::Arguments;

/// Examples of a command: what they do, and the command line.
type Examples = &'static [(&'static str, &'static str)];

/// The examples, by command.
pub const EXAMPLES: [(&str, Examples); 23] = [
    (
        "cairn",
        &[
            ("See how the server is", "cairn status"),
            ("Create a volume with a disk in it", "cairn volume create vol0 --size 100G"),
            ("", "cairn lun create vol0/db --size 10G"),
        ],
    ),
    (
        "cairn serve",
        &[
            ("Serve with the configuration of the machine", "cairn serve --config /etc/cairn/cairn.toml"),
            ("Listen for mirrors on all interfaces", "cairn serve --data /srv/cairn --mirror 0.0.0.0:7420"),
        ],
    ),
    ("cairn status", &[("Print the same for programs", "cairn status --json")]),
    ("cairn top", &[("Print one screen, for a log", "cairn top --once")]),
    (
        "cairn job cancel",
        &[
            ("List what the server does", "cairn job list"),
            ("Cancel the job of that id", "cairn job cancel 3f2a"),
        ],
    ),
    (
        "cairn volume create",
        &[
            (
                "Create a volume in a sparse file of the data directory",
                "cairn volume create vol0 --size 100G",
            ),
            (
                "Create one on a disk, with its log on another",
                "cairn volume create vol0 --device /dev/sdb --log-device /dev/nvme0n1p1",
            ),
        ],
    ),
    (
        "cairn volume scrub",
        &[
            ("Show the last scrub", "cairn volume scrub vol0"),
            ("Start a scrub, and wait for its end", "cairn volume scrub vol0 --start --wait"),
            ("Scrub every week", "cairn volume scrub vol0 --every 7d"),
        ],
    ),
    ("cairn lun create", &[("Create a disk and export it", "cairn lun create vol0/db --size 10G")]),
    (
        "cairn export set",
        &[
            ("Let one initiator in", "cairn export set vol0/db --initiator iqn.2004-10.com.example:host1"),
            ("Refuse writes", "cairn export set vol0/db --read-only"),
            ("Allow them again", "cairn export set vol0/db --no-read-only"),
        ],
    ),
    (
        "cairn mount",
        &[("Mount the files of a volume", "cairn mount vol0 /mnt/vol0"), ("", "cairn unmount /mnt/vol0")],
    ),
    ("cairn snapshot create", &[("Create a snapshot", "cairn snapshot create vol0@before-upgrade")]),
    (
        "cairn snapshot rollback",
        &[
            ("Show what would happen", "cairn snapshot rollback vol0@before-upgrade -n"),
            ("Roll back", "cairn snapshot revert vol0 --to before-upgrade"),
        ],
    ),
    (
        "cairn snapshot schedule set",
        &[(
            "Keep a day of hours and a month of days",
            "cairn snapshot schedule set vol0 hourly --every 1h --keep-hourly 24 --keep-daily 30",
        )],
    ),
    (
        "cairn notify add",
        &[
            (
                "Send mails, with the password in a file",
                "cairn notify add ops mail --smtp smtp.example.org --user cairn --secret-file smtp.password --to ops@example.org",
            ),
            ("Post to Slack, with the address in a file", "cairn notify add chat slack --url-file slack.url"),
            (
                "Alarm elsewhere when this server falls silent",
                "cairn notify add alive ping --url-file ping.url --every 5m",
            ),
        ],
    ),
    (
        "cairn clone create",
        &[("Create a writable copy of a snapshot", "cairn clone create vol0@before-upgrade test")],
    ),
    (
        "cairn history revert",
        &[
            ("Show what would happen", "cairn history revert vol0 --to 14:03 -n"),
            ("Revert to the state of five minutes ago", "cairn history revert vol0 --to -5m"),
        ],
    ),
    (
        "cairn peer invite",
        &[("Invite a server that is to mirror vol0", "cairn peer invite --volume vol0 --name backup1")],
    ),
    ("cairn peer rename", &[("Rename a peer", "cairn peer rename 10.0.0.2 backup1")]),
    (
        "cairn mirror create",
        &[
            ("Mirror a volume every 15 minutes", "cairn mirror create vol0 @token --every 15m"),
            ("Follow it continuously", "cairn mirror create vol0 @token --continuous --rpo 10s"),
            (
                "Begin with a restored dump and send only changes",
                "cairn mirror create vol0 @token --from copy0",
            ),
        ],
    ),
    (
        "cairn mirror failover",
        &[
            ("Show what would be lost", "cairn mirror failover vol0 -n"),
            ("Make the mirror writable", "cairn mirror failover vol0"),
        ],
    ),
    ("cairn image dump", &[("Dump a volume into a file", "cairn image dump vol0 --to /backup/vol0.0")]),
    (
        "cairn image list",
        &[("List the files of a directory in a dump", "cairn image list /backup/vol0.0 /home")],
    ),
    (
        "cairn state backup",
        &[
            ("Back up the state of the server", "cairn state backup /root/cairn.state --data /var/lib/cairn"),
            (
                "Restore it on a new machine",
                "cairn state restore --from /root/cairn.state --data /var/lib/cairn",
            ),
        ],
    ),
];

/// Writes the pages of all commands into `dir`; their paths, sorted.
pub fn write(dir: &Path) -> io::Result<Vec<PathBuf>> {
    clap_mangen::generate_to(Arguments::command(), dir)?;
    for (command, examples) in EXAMPLES {
        let path = dir.join(format!("{}.1", command.replace(' ', "-")));
        let page = std::fs::read_to_string(&path)?;
        std::fs::write(&path, with_examples(&page, examples))?;
    }
    Ok(names().into_iter().map(|name| dir.join(name)).collect())
}

/// The names of all pages, sorted.
pub fn names() -> Vec<String> {
    fn collect(command: &clap::Command, name: &str, names: &mut Vec<String>) {
        names.push(format!("{name}.1"));
        for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
            collect(below, &format!("{name}-{}", below.get_name()), names);
        }
    }
    let mut names = Vec::new();
    let mut command = Arguments::command().disable_help_subcommand(true);
    command.build();
    collect(&command, "cairn", &mut names);
    names.sort();
    names
}

/// A page with its examples, before the section of its version.
fn with_examples(page: &str, examples: Examples) -> String {
    let mut section = String::from(".SH EXAMPLES\n");
    for (what, line) in examples {
        if !what.is_empty() {
            section.push_str(&format!(".PP\n{}:\n", escaped(what)));
        }
        section.push_str(&format!(".PP\n.RS 4\n\\fB{}\\fR\n.RE\n", escaped(line)));
    }
    match page.find(".SH VERSION") {
        Some(at) => format!("{}{section}{}", &page[..at], &page[at..]),
        None => format!("{page}{section}"),
    }
}

/// Text as roff takes it.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('-', "\\-")
}
