//! The house rules on this repository, from the command line: every finding a line, exit code 1 when there is one. `tests/house.rs` has the same as tests.

use std::process::ExitCode;

use anyhow::Result;
use cairn_tidy::{
    File, Finding, Repository, architecture_names_every_crate, circles, dependencies, doors, format_tables,
    guarantees, layers, layout, links, readme, source,
};

fn main() -> Result<ExitCode> {
    let repository = Repository::here();
    let (files, packages) = (repository.files()?, repository.packages()?);
    let document = |path: &str| {
        let missing = File { path: path.to_owned(), length: 0, text: String::new() };
        files.iter().find(|file| file.path == path).cloned().unwrap_or(missing)
    };
    let mut findings: Vec<Finding> = layers(&packages);
    findings.extend(files.iter().flat_map(source));
    findings.extend(circles(&files));
    findings.extend(files.iter().flat_map(doors));
    findings.extend(files.iter().flat_map(layout));
    findings.extend(files.iter().flat_map(|document| links(document, &files)));
    findings.extend(readme(&document("README.md")));
    findings.extend(architecture_names_every_crate(&document("ARCHITECTURE.md"), &packages));
    findings.extend(dependencies(&document("docs/dependencies.md"), &packages));
    findings.extend(guarantees(&document("docs/guarantees.md"), &files));
    findings.extend(format_tables(&document("docs/format.md"), &files));
    findings.iter().for_each(|finding| eprintln!("{finding}"));
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
