//! Rust text with its comments and literals blanked, so that a rule about code does not trip over
//! prose.

/// Replaces comments and the inside of string and character literals by spaces; line ends stay, so
/// line numbers hold.
pub(crate) fn code_only(text: &str) -> String {
    let characters: Vec<char> = text.chars().collect();
    let at = |index: usize| characters.get(index).copied().unwrap_or('\0');
    let mut out = String::with_capacity(text.len());
    let mut index = 0;
    // Copies line ends and blanks the rest, up to `end`.
    let blank = |out: &mut String, from: usize, end: usize| {
        out.extend(
            characters[from..end.min(characters.len())].iter().map(|&c| if c == '\n' { c } else { ' ' }),
        );
    };
    while index < characters.len() {
        let start = index;
        let in_word = index > 0 && (at(index - 1).is_alphanumeric() || at(index - 1) == '_');
        match at(index) {
            '/' if at(index + 1) == '/' => {
                while index < characters.len() && at(index) != '\n' {
                    index += 1;
                }
                blank(&mut out, start, index);
            }
            '/' if at(index + 1) == '*' => {
                let mut depth = 0;
                while index < characters.len() {
                    match (at(index), at(index + 1)) {
                        ('/', '*') => (depth, index) = (depth + 1, index + 2),
                        ('*', '/') => (depth, index) = (depth - 1, index + 2),
                        _ => index += 1,
                    }
                    if depth == 0 {
                        break;
                    }
                }
                blank(&mut out, start, index);
            }
            'r' if !in_word || at(index.wrapping_sub(1)) == 'b' => match raw_string_end(&characters, index) {
                Some(end) => {
                    index = end;
                    blank(&mut out, start, index);
                }
                None => {
                    out.push('r');
                    index += 1;
                }
            },
            '"' => {
                index += 1;
                while index < characters.len() && at(index) != '"' {
                    index += if at(index) == '\\' { 2 } else { 1 };
                }
                index += 1;
                blank(&mut out, start, index);
            }
            // A character literal, not a lifetime.
            '\'' if at(index + 1) == '\\' || at(index + 2) == '\'' => {
                index += if at(index + 1) == '\\' { 3 } else { 2 };
                while index < characters.len() && at(index) != '\'' {
                    index += 1;
                }
                index += 1;
                blank(&mut out, start, index);
            }
            other => {
                out.push(other);
                index += 1;
            }
        }
    }
    out
}

/// The end of the raw string that starts at `index`, if one does.
fn raw_string_end(characters: &[char], index: usize) -> Option<usize> {
    let hashes = characters[index + 1..].iter().take_while(|&&c| c == '#').count();
    let open = index + 1 + hashes;
    if characters.get(open) != Some(&'"') {
        return None;
    }
    let closes = |at: usize| characters[at..].iter().take_while(|&&c| c == '#').count() >= hashes;
    let close = (open + 1..characters.len()).find(|&at| characters[at] == '"' && closes(at + 1))?;
    Some(close + 1 + hashes)
}

/// Whether `word` is in `line` with nothing word-like directly before or after it.
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    let wordlike = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        !line[..at].chars().next_back().is_some_and(wordlike)
            && !line[at + word.len()..].chars().next().is_some_and(wordlike)
    })
}

/// The texts between single backticks in a Markdown text.
pub(crate) fn backticked(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The cells of a Markdown table row, or `None` for another line.
pub(crate) fn cells(line: &str) -> Option<Vec<&str>> {
    let row = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    Some(row.split('|').map(str::trim).collect())
}

/// Whether these cells are the line of dashes under a table's head.
pub(crate) fn is_rule(cells: &[&str]) -> bool {
    cells.iter().all(|cell| !cell.is_empty() && cell.chars().all(|c| matches!(c, '-' | ':')))
}

/// The lines of a Markdown text that are not in a code fence, with their numbers from 1.
pub(crate) fn without_fences(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_fenced = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        !is_fenced && !is_fence
    })
}
