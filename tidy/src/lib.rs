//! The house rules that a machine can check, each a function from texts to findings.
//!
//! `tests/house.rs` runs them on this repository; `tests.rs` runs each on a tiny bad example, to
//! prove that a rule without findings can find something. The tables that a rule uses are at the
//! head of its file.

mod book;
mod circles;
mod documents;
mod doors;
mod english;
mod format_tables;
mod index;
mod layers;
mod layout;
mod preprocessor;
mod repository;
mod source;
mod text;

#[cfg(test)]
mod tests;

pub use book::{anchors, pages_are_short_and_name_their_reader, summary};
pub use circles::{circles, import_circles};
pub use documents::{architecture_names_every_crate, dependencies, guarantees, links, readme};
pub use doors::doors;
pub use english::{
    Paragraph, comments_are_plain, english, english_of_comments, paragraphs, sentences_are_plain,
};
pub use format_tables::format_tables;
pub use index::tests as index_of_tests;
pub use layers::{LAYERS, Package, layers};
pub use layout::layout;
pub use preprocessor::{mend_links, preprocess};
pub use repository::{File, Repository};
pub use source::source;

/// One place where a rule does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The file, from the root of the repository.
    pub path: String,
    /// The line, from 1; 0 when the finding concerns the whole file.
    pub line: usize,
    /// The fault, and the remedy.
    pub message: String,
}

impl Finding {
    fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, message: message.into() }
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}
