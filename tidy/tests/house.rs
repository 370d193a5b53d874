//! The house rules, on this repository. `src/tests.rs` shows that each can fail.

use anyhow::Result;
use cairn_tidy::*;

/// Fails with every finding, one a line.
#[track_caller]
fn none(findings: Vec<Finding>) {
    let lines: Vec<String> = findings.iter().map(Finding::to_string).collect();
    assert!(lines.is_empty(), "\n{}\n", lines.join("\n"));
}

/// The file at `path`; an empty one when it is missing, on which every rule about it fails.
fn document(files: &[File], path: &str) -> File {
    let missing = File { path: path.to_owned(), length: 0, text: String::new() };
    files.iter().find(|file| file.path == path).cloned().unwrap_or(missing)
}

#[test]
fn imports_point_down() -> Result<()> {
    none(layers(&Repository::here().packages()?));
    Ok(())
}

#[test]
fn no_crate_has_a_larger_circle_of_imports_than_it_may() -> Result<()> {
    let repository = Repository::here();
    none(import_circles(&repository.packages()?, &repository.files()?));
    Ok(())
}

#[test]
fn command_line_names_the_server_in_one_file() -> Result<()> {
    none(Repository::here().files()?.iter().flat_map(doors).collect());
    Ok(())
}

#[test]
fn every_layer_of_the_table_exists() -> Result<()> {
    let packages = Repository::here().packages()?;
    for folder in LAYERS.iter().flat_map(|row| row.iter()) {
        assert!(packages.iter().any(|package| package.folder == *folder), "{folder} is in LAYERS only");
    }
    Ok(())
}

#[test]
fn sources_follow_the_house_style() -> Result<()> {
    none(Repository::here().files()?.iter().flat_map(source).collect());
    Ok(())
}

#[test]
fn folders_are_concepts_and_files_are_small() -> Result<()> {
    none(Repository::here().files()?.iter().flat_map(layout).collect());
    Ok(())
}

#[test]
fn links_lead_somewhere() -> Result<()> {
    let files = Repository::here().files()?;
    none(files.iter().flat_map(|document| links(document, &files)).collect());
    Ok(())
}

#[test]
fn readme_starts_with_one_sentence_one_picture_and_two_commands() -> Result<()> {
    none(readme(&document(&Repository::here().files()?, "README.md")));
    Ok(())
}

#[test]
fn architecture_links_to_every_crate() -> Result<()> {
    let repository = Repository::here();
    let architecture = document(&repository.files()?, "ARCHITECTURE.md");
    none(architecture_names_every_crate(&architecture, &repository.packages()?));
    Ok(())
}

#[test]
fn every_dependency_has_a_reason() -> Result<()> {
    let repository = Repository::here();
    none(dependencies(&document(&repository.files()?, "docs/dependencies.md"), &repository.packages()?));
    Ok(())
}

#[test]
fn every_guarantee_has_a_test() -> Result<()> {
    let files = Repository::here().files()?;
    let promises: Vec<&File> = files.iter().filter(|file| file.path.starts_with("docs/guarantees")).collect();
    assert!(promises.len() > 1, "the pages of promises have moved");
    none(promises.iter().flat_map(|document| guarantees(document, &files)).collect());
    Ok(())
}

#[test]
fn book_lists_its_pages_and_each_is_short_and_names_its_reader() -> Result<()> {
    let files = Repository::here().files()?;
    none(summary(&files));
    none(pages_are_short_and_name_their_reader(&files));
    Ok(())
}

#[test]
fn anchors_of_links_are_headings() -> Result<()> {
    let files = Repository::here().files()?;
    none(files.iter().flat_map(|document| anchors(document, &files)).collect());
    Ok(())
}

#[test]
fn documents_are_plain_english() -> Result<()> {
    none(Repository::here().files()?.iter().flat_map(english).collect());
    Ok(())
}

#[test]
fn comments_of_the_engine_are_plain_english() -> Result<()> {
    none(Repository::here().files()?.iter().flat_map(comments_are_plain).collect());
    Ok(())
}

#[test]
fn index_of_tests_has_the_tests_of_every_crate_with_code() -> Result<()> {
    let repository = Repository::here();
    let index = index_of_tests(&repository.files()?, &repository.packages()?);
    for folder in ["crates/volume", "crates/mirror", "crates/history", "sim", "tidy"] {
        assert!(index.get(folder).is_some_and(|tests| !tests.is_empty()), "{folder}");
    }
    Ok(())
}

#[test]
fn format_document_states_the_offsets_of_the_structs() -> Result<()> {
    let files = Repository::here().files()?;
    none(format_tables(&document(&files, "docs/format.md"), &files));
    Ok(())
}
