//! Rules on sentences: their length, their mean, and phrases that are not English.
//!
//! The rules take paragraphs, so that the same ones can look at documents, help texts and comments.
//! Extend [`PHRASES`] when a review finds another phrase.

use crate::text::{is_rule, without_fences};
use crate::{File, Finding};

/// Words of a sentence, past which it is two.
const SENTENCE_WORDS_MAX: usize = 40;

/// Words of a sentence, on average over a document.
const SENTENCE_WORDS_MEAN: f64 = 20.0;

/// Sentences that a document needs for a meaningful mean.
const SENTENCES_FOR_A_MEAN: usize = 5;

/// Phrases that read as translated, in lower case, and their replacements.
pub(crate) const PHRASES: &[(&str, &str)] = &[
    ("as ever", "as usual"),
    ("as is wanted", "within the limit"),
    ("behind nobody's back", "only on request"),
    ("breaks a rule", "the rule itself"),
    ("comes round", "makes progress"),
    ("come round", "make progress"),
    ("gives way", "yields, or becomes the destination"),
    ("go on with", "resume, continue"),
    ("goes on", "resumes, continues"),
    ("going on with", "resuming"),
    ("gone on with", "resumed"),
    ("is gone on", "resumes"),
    ("is let go", "is released, is discarded"),
    ("is no address", "invalid address"),
    ("is no time", "invalid time"),
    ("is said", "reports"),
    ("is told", "reports, receives"),
    ("are told", "report, receive"),
    ("was told", "learned, received"),
    ("let go of", "release, discard"),
    ("lets go of", "releases, discards"),
    ("nobody", "no client, no user, or the passive"),
    ("over and over", "repeatedly"),
    ("somebody", "a user, another program"),
    ("someone", "a user, another program"),
    ("takes it back", "reverts it"),
    ("the clock that is never set", "the monotonic clock"),
    ("told apart", "distinguished"),
    ("unless told", "by default"),
    ("when not given", "by default"),
    ("whoever", "the client, the user, anyone who"),
];

/// Phrases that comments avoid as well. Some are right in a document, in another sense.
pub(crate) const COMMENT_PHRASES: &[(&str, &str)] = &[
    ("anybody", "any client, any user"),
    ("are asked", "get a request"),
    ("are met", "are found"),
    ("became of", "the outcome of"),
    ("become of", "the outcome of"),
    ("becomes of", "the outcome of"),
    ("behind that", "after that"),
    ("behind them", "after them"),
    ("brought back", "restored"),
    ("came of", "the outcome of"),
    ("come of", "the outcome of"),
    ("comes behind", "follows"),
    ("comes of", "the outcome of"),
    ("for good", "permanently"),
    ("for want of", "for lack of"),
    ("from behind", "after"),
    ("given out", "assigned"),
    ("go on", "continue, resume"),
    ("going on", "continuing"),
    ("gone on", "continued"),
    ("he", "it, the user"),
    ("hear of", "get, learn of"),
    ("hears of", "gets, learns of"),
    ("him", "it, the user"),
    ("his", "its, the user's"),
    ("how many-th", "the number of"),
    ("is had", "exists"),
    ("is met", "is found"),
    ("knows of", "knows"),
    ("let go", "release"),
    ("lets go", "releases"),
    ("lie in", "are in"),
    ("lies before", "is before"),
    ("lies behind", "is after"),
    ("lies in", "is in"),
    ("lies on", "is on"),
    ("makes way", "is replaced"),
    ("one and the same", "the same"),
    ("put back", "restored, set back"),
    ("right behind", "directly after"),
    ("rots", "is damaged"),
    ("rotted", "damaged"),
    ("said so", "reported it"),
    ("stand for", "represent"),
    ("stands behind", "follows"),
    ("stands for", "represents"),
    ("stands in", "is in"),
    ("takes away", "removes"),
    ("tell of", "report"),
    ("tells of", "reports"),
    ("the ones before", "the earlier ones"),
    ("time and again", "repeatedly"),
    ("told by", "known from"),
    ("told in", "reported in"),
    ("told of", "informed of"),
    ("took away", "removed"),
    ("was met", "was found"),
    ("went on", "continued"),
    ("what are", "a noun"),
    ("what can", "a noun"),
    ("what can't", "a noun"),
    ("what comes", "a noun"),
    ("what had", "a noun"),
    ("what is", "a noun"),
    ("what may", "a noun"),
    ("what must", "a noun"),
    ("what others", "a noun"),
    ("what was", "a noun"),
    ("what were", "a noun"),
    ("who asks", "the caller"),
    ("who has", "the holder"),
    ("whom", "a noun"),
    ("written anew", "rewritten"),
    ("written down", "saved"),
];

/// Beginnings of paths whose comments are still to be rewritten.
const COMMENTS_TO_REWRITE: &[&str] = &[
    "crates/api/src/images.rs",
    "crates/api/src/jobs.rs",
    "crates/api/src/mirrors.rs",
    "crates/api/src/peers.rs",
    "crates/api/src/status.rs",
    "crates/cli/src/arguments",
    "crates/server/src/http.rs",
    "crates/server/src/http/mirrors.rs",
];

/// Words that must not begin a statement; "What" or "Who" as a subject hides the acting thing.
const NO_SUBJECTS: &[&str] = &["What", "Who", "Whoever", "Nobody"];

/// Documents that are not judged, and why.
const OTHER_RULES: &[(&str, &str)] = &[
    ("docs/format.md", "the norm is written in tables and definitions"),
    ("docs/SUMMARY.md", "a list"),
    ("bench/results/", "raw runs"),
];

/// A stretch of text of one kind, with the line at which it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paragraph {
    /// From 1.
    pub line: usize,
    /// Without markup; code is one word, `_`.
    pub text: String,
    /// Of running text, which counts for the mean; cells of tables do not.
    pub is_prose: bool,
}

/// The rules on the sentences of a Markdown document.
pub fn english(document: &File) -> Vec<Finding> {
    let is_judged = !OTHER_RULES.iter().any(|(path, _)| document.path.starts_with(path));
    if !document.path.ends_with(".md") || !is_judged {
        return Vec::new();
    }
    sentences_are_plain(&document.path, &paragraphs(&document.text))
}

/// The rules on the comments of a Rust file, in the folders that follow them already.
pub fn comments_are_plain(file: &File) -> Vec<Finding> {
    let waits = COMMENTS_TO_REWRITE.iter().any(|folder| file.path.starts_with(folder));
    if waits { Vec::new() } else { english_of_comments(file) }
}

/// The same rules, and [`COMMENT_PHRASES`], on the comments of any Rust file, for counts.
pub fn english_of_comments(file: &File) -> Vec<Finding> {
    if !file.is_rust() {
        return Vec::new();
    }
    let marks = ["//!", "///", "//"];
    let mut found = Vec::new();
    let mut lines = (1..).zip(file.text.lines()).peekable();
    let comment = |line: &str| {
        let line = line.trim_start();
        marks.into_iter().find_map(|mark| Some((mark, line.strip_prefix(mark)?.to_owned())))
    };
    while let Some((first, line)) = lines.next() {
        let Some((mark, mut text)) = comment(line) else { continue };
        while let Some((_, line)) =
            lines.next_if(|(_, line)| comment(line).is_some_and(|(other, _)| other == mark))
        {
            let (_, more) = comment(line).unwrap_or_default();
            text = format!("{text}\n{more}");
        }
        let numbered = |paragraph: Paragraph| Paragraph { line: paragraph.line + first - 1, ..paragraph };
        found.extend(paragraphs(&text).into_iter().map(numbered));
    }
    let mut findings = sentences_are_plain(&file.path, &found);
    // The mean of short remarks is meaningless.
    findings.retain(|finding| finding.line > 0);
    findings.extend(found.iter().flat_map(|paragraph| phrases_in(&file.path, paragraph, COMMENT_PHRASES)));
    findings
}

/// The same rules on any text: `path` and the lines of `paragraphs` are for the findings.
pub fn sentences_are_plain(path: &str, paragraphs: &[Paragraph]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let (mut sentences, mut words) = (0, 0);
    for paragraph in paragraphs {
        for sentence in split(&paragraph.text) {
            let length = words_of(sentence).count();
            if length > SENTENCE_WORDS_MAX {
                let message = format!("a sentence of {length} words: {}", head(sentence));
                findings.push(Finding::new(path, paragraph.line, message));
            }
            if paragraph.is_prose && length > 2 {
                (sentences, words) = (sentences + 1, words + length);
            }
            let first = sentence.split(' ').next().unwrap_or_default();
            if length > 3 && NO_SUBJECTS.contains(&first) && !sentence.ends_with('?') {
                let message = format!("`{first}` as a subject; name the thing: {}", head(sentence));
                findings.push(Finding::new(path, paragraph.line, message));
            }
        }
        findings.extend(phrases_in(path, paragraph, PHRASES));
    }
    #[expect(clippy::cast_precision_loss, reason = "a document has less than 2^52 words")]
    let mean = words as f64 / f64::max(sentences as f64, 1.0);
    if sentences >= SENTENCES_FOR_A_MEAN && mean >= SENTENCE_WORDS_MEAN {
        let message = format!("{mean:.1} words a sentence; keep the mean below {SENTENCE_WORDS_MEAN}");
        findings.push(Finding::new(path, 0, message));
    }
    findings
}

/// A finding for each phrase of `table` in a paragraph.
fn phrases_in(path: &str, paragraph: &Paragraph, table: &[(&str, &str)]) -> Vec<Finding> {
    let lower = format!(" {} ", words_of(&paragraph.text.to_lowercase()).collect::<Vec<_>>().join(" "));
    let found = table.iter().filter(|(phrase, _)| lower.contains(&format!(" {phrase} ")));
    let message = |(phrase, instead): &(&str, &str)| format!("`{phrase}`: write {instead}");
    found.map(|row| Finding::new(path, paragraph.line, message(row))).collect()
}

/// The paragraphs, items and cells of a Markdown text, without code and headings.
pub fn paragraphs(markdown: &str) -> Vec<Paragraph> {
    let mut found: Vec<Paragraph> = Vec::new();
    let mut is_open = false;
    for (line, text) in without_fences(markdown) {
        let trimmed = text.trim();
        if let Some(cells) = crate::text::cells(trimmed) {
            is_open = false;
            if !is_rule(&cells) {
                let texts = cells.iter().map(|cell| plain(cell)).filter(|text| !text.is_empty());
                found.extend(texts.map(|text| Paragraph { line, text, is_prose: false }));
            }
            continue;
        }
        if trimmed.is_empty() || trimmed.starts_with('#') {
            is_open = false;
            continue;
        }
        let item = trimmed.strip_prefix("- ").or_else(|| trimmed.strip_prefix("* ")).or_else(|| {
            let (number, rest) = trimmed.split_once(". ")?;
            number.chars().all(|c| c.is_ascii_digit()).then_some(rest)
        });
        match (item, found.last_mut()) {
            (None, Some(last)) if is_open => {
                last.text.push(' ');
                last.text.push_str(&plain(trimmed));
            }
            (item, _) => {
                let text = plain(item.unwrap_or(trimmed));
                found.push(Paragraph { line, text, is_prose: true });
            }
        }
        is_open = true;
    }
    found
}

/// A line without marks: code is `_`, a link is its text.
fn plain(line: &str) -> String {
    let mut out = String::new();
    for (index, part) in line.split('`').enumerate() {
        if index % 2 == 1 {
            out.push('_');
            continue;
        }
        let mut rest = part;
        while let Some((before, after)) = rest.split_once("](") {
            out.push_str(before);
            rest = after.split_once(')').map_or("", |(_, after)| after);
        }
        out.push_str(rest);
    }
    out.replace(['*', '['], "")
}

/// The sentences of a paragraph.
fn split(text: &str) -> Vec<&str> {
    let mut sentences = Vec::new();
    let mut from = 0;
    for (at, _) in text.match_indices([' ', '\n']) {
        let ends = text[..at].ends_with(['.', '!', '?']) || text[..at].ends_with(".)");
        let next = text[at..].trim_start().chars().next();
        if ends && next.is_some_and(|c| c.is_uppercase() || matches!(c, '_' | '-' | '/')) {
            sentences.push(text[from..at].trim());
            from = at;
        }
    }
    sentences.push(text[from..].trim());
    sentences.retain(|sentence| !sentence.is_empty());
    sentences
}

/// The words of a text, without surrounding punctuation.
fn words_of(text: &str) -> impl Iterator<Item = &str> {
    text.split_whitespace()
        .map(|word| word.trim_matches(|c: char| !c.is_alphanumeric() && c != '_'))
        .filter(|word| !word.is_empty())
}

/// The first words, to find a sentence by.
fn head(sentence: &str) -> String {
    sentence.split(' ').take(8).collect::<Vec<_>>().join(" ")
}
