//! docs/format.md against the structs of `crates/format`: each offset that the document states is
//! the struct's own.
//!
//! A table belongs to the struct that the heading before it names in backticks (`Name`, or its form
//! on disk `RawName`), and is compared when its head has the columns `offset` and `field`, and (if
//! it has one) `bytes`. A table with the columns `constant` and `value` is compared with the
//! constants of the format. Structs on disk have no implicit padding (zerocopy refuses to derive
//! for those that do), so a field's offset is the sum of the sizes before it.

use std::collections::HashMap;

use crate::text::{backticked, cells, code_only, has_word, is_rule};
use crate::{File, Finding};

/// Sizes in bytes of the structs' field types, other than the structs themselves.
const SIZES: &[(&str, u64)] = &[
    ("u8", 1),
    ("i8", 1),
    ("U16", 2),
    ("u16", 2),
    ("U32", 4),
    ("u32", 4),
    ("U64", 8),
    ("u64", 8),
    ("I64", 8),
    ("U128", 16),
    ("u128", 16),
];

/// Compares every table that names a struct; a document with no such table is a finding itself.
pub fn format_tables(document: &File, files: &[File]) -> Vec<Finding> {
    let layouts = Layouts::read(files.iter().filter(|file| file.is_rust() && !file.is_test()));
    let mut findings = Vec::new();
    let mut named: Option<&str> = None;
    let mut compared = 0;
    let mut lines = (1..).zip(document.text.lines()).peekable();
    while let Some((number, line)) = lines.next() {
        if line.starts_with('#') {
            named = backticked(line).next();
        }
        let Some(head) = cells(line) else { continue };
        let column = |word: &str| head.iter().position(|cell| cell.to_lowercase().starts_with(word));
        let columns = (column("offset"), column("field"), column("bytes"));
        let mut rows = Vec::new();
        while let Some((number, row)) = lines.next_if(|(_, line)| cells(line).is_some()) {
            rows.push((number, cells(row).unwrap_or_default()));
        }
        if let (Some(constant_at), Some(value_at)) = (column("constant"), column("value")) {
            compared += 1;
            for (number, row) in rows.iter().filter(|(_, row)| !is_rule(row)) {
                let Some(name) = row.get(constant_at).and_then(|cell| backticked(cell).next()) else {
                    continue;
                };
                let value = layouts.value(Seen { from: "", name }, 0);
                let stated = row.get(value_at).and_then(|cell| integer(cell));
                if value.is_none() || value != stated {
                    let message = format!("`{name}` is {value:?} in crates/format, and {stated:?} here");
                    findings.push(Finding::new(&document.path, *number, message));
                }
            }
        }
        let ((Some(offset_at), Some(field_at), bytes_at), Some(name)) = (columns, named) else { continue };
        let Some(layout) = layouts.fields(name) else {
            let message = format!(
                "a table for `{name}`, but crates/format has no struct of known layout by that name, or several: then write `file::Name`"
            );
            findings.push(Finding::new(&document.path, number, message));
            continue;
        };
        compared += 1;
        let mut described = Vec::new();
        for (number, row) in rows.iter().filter(|(_, row)| !is_rule(row)) {
            let cell = |index: usize| row.get(index).copied().unwrap_or_default();
            let Some(field) = backticked(cell(field_at)).next() else { continue };
            described.push(field);
            let Some(&(_, offset, bytes)) = layout.iter().find(|(name, ..)| name == field) else {
                findings.push(Finding::new(
                    &document.path,
                    *number,
                    format!("`{name}` has no field `{field}`"),
                ));
                continue;
            };
            let stated = |index: usize| integer(cell(index));
            if stated(offset_at) != Some(offset) {
                let message = format!("`{field}` is at {offset}, not at {}", cell(offset_at));
                findings.push(Finding::new(&document.path, *number, message));
            }
            if let Some(index) = bytes_at
                && stated(index) != Some(bytes)
            {
                let message = format!("`{field}` has {bytes} bytes, not {}", cell(index));
                findings.push(Finding::new(&document.path, *number, message));
            }
        }
        for (field, ..) in layout.iter().filter(|(field, ..)| !described.contains(&field.as_str())) {
            findings.push(Finding::new(
                &document.path,
                number,
                format!("`{name}` has a field `{field}` as well"),
            ));
        }
    }
    if compared == 0 {
        findings.push(Finding::new(&document.path, 0, "has no table with the columns offset and field"));
    }
    findings
}

/// The structs and constants of the format, as written, each under the name of its file and its
/// own.
struct Layouts {
    structs: HashMap<(String, String), Vec<(String, String)>>,
    constants: HashMap<(String, String), String>,
}

/// A lookup: a name, as seen from a file.
#[derive(Clone, Copy)]
struct Seen<'a> {
    from: &'a str,
    name: &'a str,
}

impl Layouts {
    fn read<'a>(files: impl Iterator<Item = &'a File>) -> Self {
        let mut layouts = Self { structs: HashMap::new(), constants: HashMap::new() };
        let owners = ["crates/format/", "crates/base/"];
        for file in files.filter(|file| owners.iter().any(|owner| file.path.starts_with(owner))) {
            let stem =
                file.path.rsplit('/').next().and_then(|name| name.strip_suffix(".rs")).unwrap_or_default();
            let code = code_only(&file.text);
            for line in code.lines().filter(|line| has_word(line, "const")) {
                let Some((declared, value)) = line.split_once('=') else { continue };
                let Some((_, declared)) = declared.split_once("const ") else { continue };
                let Some((name, _)) = declared.split_once(':') else { continue };
                let value = value.split(';').next().unwrap_or_default().trim();
                // An associated constant that repeats one of its file adds nothing.
                if value != name.trim() {
                    layouts.constants.insert((stem.to_owned(), name.trim().to_owned()), value.to_owned());
                }
            }
            for body in code.split("struct ").skip(1) {
                layouts.take(stem, body);
            }
        }
        layouts
    }

    /// The entry for `seen`: that of its own file, or else the only one of that name. A qualified
    /// name contains the file.
    fn find<'a, T>(map: &'a HashMap<(String, String), T>, seen: Seen<'_>) -> Option<(&'a str, &'a T)> {
        let (from, name) = seen.name.rsplit_once("::").unwrap_or((seen.from, seen.name));
        let own = map.get_key_value(&(from.to_owned(), name.to_owned()));
        let mut others = map.iter().filter(|((_, other), _)| other == name);
        let found = own.or_else(|| others.next().filter(|_| others.next().is_none()));
        found.map(|((file, _), value)| (file.as_str(), value))
    }

    /// Takes the text after the word `struct`: a name and its fields.
    fn take(&mut self, stem: &str, body: &str) {
        let name: String = body.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let rest = body[name.len()..].trim_start();
        let (inner, close) = match rest.chars().next() {
            Some('{') => (&rest[1..], "\n}"),
            Some('(') => (&rest[1..], ");"),
            _ => return,
        };
        let Some(end) = inner.find(close).or_else(|| inner.find('}')) else { return };
        let mut fields = Vec::new();
        for (index, field) in inner[..end].split(",\n").flat_map(|line| line.split(", ")).enumerate() {
            // Attributes and visibility come first.
            let field = field.rsplit(']').next().filter(|_| !field.contains('[')).unwrap_or(field).trim();
            let field = field.rsplit("pub ").next().unwrap_or(field).trim_start_matches("pub(crate) ");
            let field = field.trim().trim_end_matches(',');
            if field.is_empty() {
                continue;
            }
            let (name, kind) = field.split_once(':').map_or((index.to_string(), field), |(name, kind)| {
                (name.trim().rsplit(char::is_whitespace).next().unwrap_or_default().to_owned(), kind)
            });
            fields.push((name, kind.trim().to_owned()));
        }
        self.structs.insert((stem.to_owned(), name), fields);
    }

    /// Name, offset and size of each field; none when a size is not known, or the name is that of
    /// several structs.
    fn fields(&self, name: &str) -> Option<Vec<(String, u64, u64)>> {
        let (from, last) = name.rsplit_once("::").unwrap_or(("", name));
        let on_disk = format!("Raw{last}");
        let seen = |name| Self::find(&self.structs, Seen { from, name });
        let (file, struct_fields) = seen(&on_disk).or_else(|| seen(last))?;
        let mut offset = 0;
        let mut fields = Vec::new();
        for (name, kind) in struct_fields {
            let bytes = self.size(Seen { from: file, name: kind }, 0)?;
            fields.push((name.clone(), offset, bytes));
            offset += bytes;
        }
        Some(fields)
    }

    fn size(&self, kind: Seen<'_>, depth: u32) -> Option<u64> {
        if depth > 16 {
            return None;
        }
        let Seen { from, name } = kind;
        if let Some(array) = name.strip_prefix('[').and_then(|kind| kind.strip_suffix(']')) {
            let (element, count) = array.rsplit_once(';')?;
            let element = self.size(Seen { from, name: element.trim() }, depth + 1)?;
            return Some(element * self.value(Seen { from, name: count.trim() }, depth + 1)?);
        }
        let name = name.split('<').next()?.rsplit("::").next()?.trim();
        if let Some((_, bytes)) = SIZES.iter().find(|(known, _)| *known == name) {
            return Some(*bytes);
        }
        let (from, fields) = Self::find(&self.structs, Seen { from, name })?;
        fields.iter().map(|(_, kind)| self.size(Seen { from, name: kind }, depth + 1)).sum()
    }

    /// The value of an integer expression of literals, constants, brackets, `+`, `-`, `*`, `/` and
    /// `<<`.
    fn value(&self, text: Seen<'_>, depth: u32) -> Option<u64> {
        if depth > 16 {
            return None;
        }
        let from = text.from;
        let text = text.name.replace(" as usize", "").replace(" as u64", "").replace(" as u32", "");
        let text = text.trim();
        let of = |name: &str| self.value(Seen { from, name }, depth + 1);
        // The operator that binds least splits first, the last of equals before the others.
        for operators in [&["<<"][..], &["+", "-"], &["*", "/"]] {
            let Some((left, operator, right)) = split_outside_brackets(text, operators) else { continue };
            let (left, right) = (of(left)?, of(right)?);
            return match operator {
                "<<" => left.checked_shl(u32::try_from(right).ok()?),
                "+" => left.checked_add(right),
                "-" => left.checked_sub(right),
                "*" => left.checked_mul(right),
                _ => left.checked_div(right),
            };
        }
        if let Some(inner) = text.strip_prefix('(').and_then(|text| text.strip_suffix(')')) {
            return of(inner);
        }
        if let Some((kind, _)) = text.split_once("size_of::<").and_then(|(_, rest)| rest.split_once(">(")) {
            return self.size(Seen { from, name: kind }, depth + 1);
        }
        integer(text).or_else(|| {
            let (file, value) = Self::find(&self.constants, Seen { from, name: text })?;
            self.value(Seen { from: file, name: value }, depth + 1)
        })
    }
}

/// The last of `operators` in `text` between spaces and outside brackets, and the texts left and
/// right of it.
fn split_outside_brackets<'a>(
    text: &'a str,
    operators: &[&'static str],
) -> Option<(&'a str, &'static str, &'a str)> {
    let mut depth = 0;
    let mut found = None;
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            ' ' if depth == 0 => {
                let rest = &text[at + 1..];
                let operator =
                    operators.iter().find(|op| rest.starts_with(**op) && rest[op.len()..].starts_with(' '));
                if let Some(operator) = operator {
                    found = Some((&text[..at], *operator, &rest[operator.len() + 1..]));
                }
            }
            _ => {}
        }
    }
    found
}

/// A number as a document or a program writes it: `4096`, `4_096`, `0x10`, `1 << 20` is not one.
fn integer(text: &str) -> Option<u64> {
    let digits = text.trim().trim_matches('`').replace(['_', ',', ' '], "");
    match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => digits.parse().ok(),
    }
}
