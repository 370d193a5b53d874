//! `cairn config`.

use cairn_api::{ConfigCheck, ConfigFinding, ErrorKind, Overridden};

use crate::arguments::ConfigFile;
use crate::exit::Failure;
use crate::output::Output;

/// Checks a configuration. A fault in it is an error; a setting in two places is not.
pub fn run(command: &ConfigFile, output: Output) -> Result<(), Failure> {
    let ConfigFile::Check { file } = command;
    let report = super::serve::check(file)?;
    output.show(&report, people);
    match report.findings.len() {
        0 => Ok(()),
        count => Err(Failure::new(
            ErrorKind::Usage,
            format!("a server does not start on this configuration: {count} of its settings are wrong"),
            "correct them; `cairn serve --help` describes each",
        )),
    }
}

fn people(report: &ConfigCheck) -> String {
    let wrong = |finding: &ConfigFinding| {
        let meant = finding.meant.as_ref().map(|meant| format!("\n  probably meant: {meant}"));
        let (path, line) = (finding.path.display(), finding.line);
        format!("{path}:{line}: {}{}", finding.message, meant.unwrap_or_default())
    };
    let twice = |it: &Overridden| {
        let (path, by_path) = (it.path.display(), it.by_path.display());
        format!(
            "{by_path}:{}: {} = {} goes before {} at {path}:{}",
            it.by_line, it.key, it.by_value, it.value, it.line
        )
    };
    let mut lines: Vec<String> = report.findings.iter().map(wrong).collect();
    lines.extend(report.overridden.iter().map(twice));
    if report.findings.is_empty() {
        let files: Vec<String> = report.files.iter().map(|file| file.display().to_string()).collect();
        lines.push(format!("a server starts on {}", files.join(", ")));
    }
    lines.join("\n")
}
