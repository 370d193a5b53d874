//! The house rules on this repository, from the command line: every finding a line, exit code 1
//! when there is one. `tests/house.rs` has the same as tests. With the argument `tests` it prints
//! the index of all tests instead. With `comments` it prints the findings of the rules on sentences
//! in all comments, also in the folders that need not follow them yet. With `book` it is a
//! preprocessor of mdBook.

use std::process::ExitCode;

use anyhow::Result;
use cairn_tidy::{
    File, Finding, Repository, anchors, architecture_names_every_crate, comments_are_plain, dependencies,
    doors, english, english_of_comments, format_tables, guarantees, import_circles, index_of_tests, layers,
    layout, links, pages_are_short_and_name_their_reader, preprocess, readme, source, summary,
};

fn main() -> Result<ExitCode> {
    let repository = Repository::here();
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some("book") {
        // mdBook asks first whether the preprocessor knows its renderer: any will do.
        if arguments.next().is_none() {
            preprocess(|path| repository.read(path))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let (files, packages) = (repository.files()?, repository.packages()?);
    let asked = std::env::args().nth(1);
    if asked.as_deref() == Some("comments") {
        let findings: Vec<Finding> = files.iter().flat_map(english_of_comments).collect();
        findings.iter().for_each(|finding| println!("{finding}"));
        println!("{} findings", findings.len());
        return Ok(ExitCode::SUCCESS);
    }
    if asked.as_deref() == Some("tests") {
        for (folder, tests) in index_of_tests(&files, &packages) {
            println!("\n{folder} ({} tests)", tests.len());
            for (name, sentence) in tests {
                println!("  {}", sentence.map_or(name.clone(), |sentence| format!("{name}: {sentence}")));
            }
        }
        return Ok(ExitCode::SUCCESS);
    }
    let document = |path: &str| {
        let missing = File { path: path.to_owned(), length: 0, text: String::new() };
        files.iter().find(|file| file.path == path).cloned().unwrap_or(missing)
    };
    let mut findings: Vec<Finding> = layers(&packages);
    findings.extend(import_circles(&packages, &files));
    findings.extend(files.iter().flat_map(source));
    findings.extend(files.iter().flat_map(doors));
    findings.extend(files.iter().flat_map(layout));
    findings.extend(files.iter().flat_map(|document| links(document, &files)));
    findings.extend(readme(&document("README.md")));
    findings.extend(architecture_names_every_crate(&document("ARCHITECTURE.md"), &packages));
    findings.extend(dependencies(&document("docs/dependencies.md"), &packages));
    let promises = files.iter().filter(|file| file.path.starts_with("docs/guarantees"));
    findings.extend(promises.flat_map(|document| guarantees(document, &files)));
    findings.extend(summary(&files));
    findings.extend(pages_are_short_and_name_their_reader(&files));
    findings.extend(files.iter().flat_map(|document| anchors(document, &files)));
    findings.extend(files.iter().flat_map(english));
    findings.extend(files.iter().flat_map(comments_are_plain));
    findings.extend(format_tables(&document("docs/format.md"), &files));
    findings.iter().for_each(|finding| eprintln!("{finding}"));
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
