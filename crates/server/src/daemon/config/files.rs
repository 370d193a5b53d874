//! Configuration files: the named one, and those in `conf.d` beside it.
//!
//! The files of `conf.d` whose names end in `.toml` come after the named one, in the order of their
//! names. The last file that sets a key wins, so the files of administrators and of tools need not
//! change the service's own file. A server reads them when it starts, and does not start if one has
//! a fault. [`check`] reports all faults at once, key by key with file and line, and the probably
//! intended value. It also reports keys that are set twice: that is allowed, but often a mistake.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use cairn_api::{ConfigCheck, ConfigFinding, Overridden};
use toml::de::{DeTable, DeValue};

use super::{Config, Settings};
use crate::daemon::error::DaemonError;
use crate::error::ServerError;

/// The folder beside the named file.
const FOLDER: &str = "conf.d";

/// The kind of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Address,
    Addresses,
    Texts,
    Flag,
    Time,
    Size,
}

/// All settings.
const KEYS: [(&str, Kind); 18] = [
    ("data", Kind::Text),
    ("http", Kind::Address),
    ("mirror", Kind::Address),
    ("nbd", Kind::Addresses),
    ("iscsi", Kind::Addresses),
    ("iscsi_advertise", Kind::Text),
    ("nfs", Kind::Addresses),
    ("nbd_tls_required", Kind::Flag),
    ("advertise", Kind::Text),
    ("mirror_patience", Kind::Time),
    ("tls", Kind::Flag),
    ("tls_cert", Kind::Text),
    ("tls_key", Kind::Text),
    ("tls_name", Kind::Texts),
    ("http_insecure", Kind::Flag),
    ("audit_syslog", Kind::Flag),
    ("dumps", Kind::Texts),
    ("cache", Kind::Size),
];

/// The files of a configuration, in the order in which they are read.
fn files_of(path: &Path) -> Result<Vec<PathBuf>, ServerError> {
    let folder = path.parent().unwrap_or(Path::new("")).join(FOLDER);
    let listing = match fs::read_dir(&folder) {
        Ok(listing) => listing,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(vec![path.to_owned()]);
        }
        Err(error) => return Err(ServerError::path("read", &folder)(error)),
    };
    let mut further = Vec::new();
    for found in listing {
        let found = found.map_err(ServerError::path("read", &folder))?.path();
        if found.extension().is_some_and(|extension| extension == "toml") {
            further.push(found);
        }
    }
    further.sort();
    Ok(std::iter::once(path.to_owned()).chain(further).collect())
}

fn read_text(path: &Path) -> Result<String, ServerError> {
    fs::read_to_string(path).map_err(ServerError::path("read", path))
}

impl Settings {
    /// Reads a configuration: the file, and those of `conf.d` beside it.
    pub fn read(path: &Path) -> Result<Self, ServerError> {
        let mut settings = Settings::default();
        for file in files_of(path)? {
            settings = Settings::parse(&file, &read_text(&file)?)?.over(settings);
        }
        Ok(settings)
    }
}

/// Checks a configuration without starting anything. Fails if a file can't be read.
pub fn check(path: &Path) -> Result<ConfigCheck, ServerError> {
    let mut report = ConfigCheck { files: files_of(path)?, ..ConfigCheck::default() };
    let mut said: BTreeMap<String, (PathBuf, usize, String)> = BTreeMap::new();
    let mut refused: Vec<ConfigFinding> = Vec::new();
    for path in report.files.clone() {
        let text = read_text(&path)?;
        let (table, errors) = DeTable::parse_recoverable(&text);
        let mut findings: Vec<ConfigFinding> = errors
            .iter()
            .map(|error| {
                let line = line_of(&text, error.span().map_or(0, |span| span.start));
                ConfigFinding {
                    path: path.clone(),
                    line,
                    key: None,
                    message: error.message().to_owned(),
                    meant: None,
                }
            })
            .collect();
        for (key, value) in table.get_ref() {
            let (name, place) = (key.get_ref().to_string(), key.span().start);
            let line = line_of(&text, place);
            let stands = text.get(value.span()).unwrap_or_default();
            // A line that is not valid TOML has only one finding.
            let is_told = findings.iter().any(|finding| finding.line == line);
            let wrong = (!is_told).then(|| wrong(&path, &name, value.get_ref(), stands)).flatten();
            // A later value overrides an earlier one that was understood and refused.
            refused.retain(|finding: &ConfigFinding| finding.key.as_deref() != Some(&name));
            if let Some(Wrong { message, meant, is_understood }) = wrong {
                let key = Some(name.clone());
                let finding = ConfigFinding { path: path.clone(), line, key, message, meant };
                if is_understood { refused.push(finding) } else { findings.push(finding) }
            }
            let before = said.insert(name.clone(), (path.clone(), line, stands.to_owned()));
            if let Some((path, by_path, line, by_line, value)) = before
                .filter(|(_, _, value)| value != stands)
                .map(|(before, at, value)| (before, path.clone(), at, line, value))
            {
                let by_value = stands.to_owned();
                report.overridden.push(Overridden {
                    key: name,
                    path,
                    line,
                    value,
                    by_path,
                    by_line,
                    by_value,
                });
            }
        }
        report.findings.append(&mut findings);
    }
    report.findings.append(&mut refused);
    // Each setting is valid, but not with the others.
    if report.findings.is_empty()
        && let Err(error) =
            Settings::read(path).and_then(Config::new).and_then(|config| config.refuse_in_the_clear())
    {
        let key = ["http", "tls_cert", "tls_key"].into_iter().find(|key| said.contains_key(*key));
        let (path, line) = key
            .and_then(|key| said.get(key))
            .map_or((path.to_owned(), 1), |(path, line, _)| (path.clone(), *line));
        let (key, message, meant) = (key.map(str::to_owned), format!("{error}: {}", error.next()), None);
        report.findings.push(ConfigFinding { path, line, key, message, meant });
    }
    let place = |path: &PathBuf| report.files.iter().position(|file| file == path);
    report.findings.sort_by_key(|finding| (place(&finding.path), finding.line));
    Ok(report)
}

/// A fault of a setting.
struct Wrong {
    message: String,
    /// The probably intended value.
    meant: Option<String>,
    /// A server can parse the value, and refuses it unless a later file overrides it.
    is_understood: bool,
}

/// The fault of a setting, if any.
fn wrong(path: &Path, name: &str, value: &DeValue<'_>, stands: &str) -> Option<Wrong> {
    let unknown = |message, meant| Some(Wrong { message, meant, is_understood: false });
    if matches!(value, DeValue::Table(_)) {
        return unknown(format!("`{name}` is a table: settings stand by themselves, in no section"), None);
    }
    let Some((_, kind)) = KEYS.iter().find(|(known, _)| *known == name) else {
        let meant = nearest(name).map(|known| format!("{known} = {stands}"));
        return unknown(format!("`{name}` is not a setting"), meant);
    };
    // Parsed alone, as the server parses it: an error then concerns this key.
    let outcome = Settings::parse(path, &format!("{name} = {stands}"));
    let (message, is_understood) = match outcome.map(Config::new) {
        Ok(Ok(_)) => return None,
        Ok(Err(error)) => (error.to_string(), true),
        Err(ServerError::Daemon(DaemonError::Config { source, .. })) => {
            (format!("`{name}`: {}", source.message()), false)
        }
        Err(error) => (error.to_string(), false),
    };
    let meant = likely(*kind, value).map(|value| format!("{name} = {value}"));
    let meant =
        meant.filter(|meant| Settings::parse(path, meant).is_ok_and(|said| Config::new(said).is_ok()));
    Some(Wrong { message, meant, is_understood })
}

/// A value of the right kind that is near to a wrong one.
fn likely(kind: Kind, value: &DeValue<'_>) -> Option<String> {
    let bare = match value {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Boolean(is_so) => is_so.to_string(),
        _ => return None,
    };
    let address = |text: &str| match text {
        "false" | "none" | "" => "off".to_owned(),
        port if port.parse::<u16>().is_ok() => format!("127.0.0.1:{port}"),
        path if path.starts_with('/') => format!("unix:{path}"),
        port if port.starts_with(':') => format!("0.0.0.0{port}"),
        other => other.to_owned(),
    };
    match kind {
        Kind::Text | Kind::Size => Some(format!("\"{}\"", bare.replace(' ', ""))),
        Kind::Texts => Some(format!("[\"{bare}\"]")),
        Kind::Address => Some(format!("\"{}\"", address(&bare))),
        Kind::Addresses => Some(format!("[\"{}\"]", address(&bare))),
        Kind::Flag => match bare.to_lowercase().as_str() {
            "true" | "yes" | "on" | "1" => Some("true".to_owned()),
            "false" | "no" | "off" | "0" => Some("false".to_owned()),
            _ => None,
        },
        // A number without a unit.
        Kind::Time => Some(format!("\"{}s\"", bare.trim())),
    }
}

/// The setting with the most similar name, if it is similar enough.
fn nearest(name: &str) -> Option<&'static str> {
    let plain = name.to_lowercase().replace('-', "_");
    let near = KEYS.iter().map(|(known, _)| (distance(&plain, known), *known)).min()?;
    let at_most = (plain.len() / 2).clamp(1, 3);
    (near.0 <= at_most).then_some(near.1)
}

/// The number of letters to insert, delete or change to turn one word into the other.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, left) in a.bytes().enumerate() {
        let mut corner = i;
        let mut last = i + 1;
        for (j, right) in b.bytes().enumerate() {
            let changed = corner + usize::from(left != right);
            let (above, before) = (row.get(j + 1).copied().unwrap_or_default(), last);
            corner = above;
            last = changed.min(above + 1).min(before + 1);
            if let Some(place) = row.get_mut(j) {
                *place = before;
            }
        }
        if let Some(end) = row.last_mut() {
            *end = last;
        }
    }
    row.last().copied().unwrap_or_default()
}

fn line_of(text: &str, place: usize) -> usize {
    text.bytes().take(place).filter(|byte| *byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_that_settings_have() {
        let refused = Settings::parse(Path::new("x"), "nonsense = 1").unwrap_err().to_string();
        for (key, _) in KEYS {
            assert!(refused.contains(&format!("`{key}`")), "{refused}");
        }
        let listed = refused.split("expected one of").nth(1).unwrap();
        assert_eq!(listed.matches('`').count(), 2 * KEYS.len(), "{refused}");
    }

    #[test]
    fn distance_is_that_of_levenshtein() {
        for (a, b, apart) in [
            ("", "", 0),
            ("nbd", "", 3),
            ("", "nbd", 3),
            ("nbd", "nbds", 1),
            ("kitten", "sitting", 3),
            ("flaw", "lawn", 2),
        ] {
            assert_eq!(distance(a, b), apart, "{a} {b}");
        }
        assert_eq!(nearest("nbd-tls-required"), Some("nbd_tls_required"));
        assert_eq!(nearest("Cashe"), Some("cache"));
        assert_eq!(nearest("cahce"), Some("cache"));
        assert_eq!(nearest("colour"), None);
    }

    #[test]
    fn every_wrong_key_is_told_with_its_line_and_what_was_meant() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cairn.toml");
        let text = "data = \"/srv\"\nnbds = [\"0.0.0.0:1\"]\nmirror = 7420\niscsi = \"0.0.0.0:3260\"\nnbd_tls_required = \"yes\"\n\
                    mirror_patience = 120\ncache = \"1 Q\"\nhttp = \"unix:/run/x\"\nadvertise = \"here\"\n[server]\nnbd = []\n";
        fs::write(&path, text).unwrap();
        let report = check(&path).unwrap();
        let told: Vec<(usize, Option<&str>)> =
            report.findings.iter().map(|finding| (finding.line, finding.meant.as_deref())).collect();
        let expected = [
            (2, Some("nbd = [\"0.0.0.0:1\"]")),
            (3, Some("mirror = \"127.0.0.1:7420\"")),
            (4, Some("iscsi = [\"0.0.0.0:3260\"]")),
            (5, Some("nbd_tls_required = true")),
            (6, Some("mirror_patience = \"120s\"")),
            (7, None),
            (8, None),
            (9, None),
            (10, None),
        ];
        assert_eq!(told, expected, "{:#?}", report.findings);
        assert!(report.findings.iter().all(|finding| finding.path == path && finding.message.len() > 10));
        // Invalid TOML, and a key that is set twice in one file.
        fs::write(&path, "data = /srv\ncache = \"1G\"\ncache = \"2G\"\n").unwrap();
        let lines: Vec<usize> = check(&path).unwrap().findings.iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [1, 3]);
    }

    #[test]
    fn later_files_win_by_key_and_what_differs_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cairn.toml");
        fs::write(&path, "# mine\ndata = \"/srv\"\ncache = \"1G\"\nmirror = \"off\"\n").unwrap();
        assert_eq!(check(&path).unwrap().files, std::slice::from_ref(&path));
        let folder = dir.path().join(FOLDER);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("20-b.toml"), "cache = \"3G\"\n").unwrap();
        fs::write(folder.join("10-a.toml"), "\ncache = \"2G\"\nmirror = \"off\"\n").unwrap();
        fs::write(folder.join("30.toml~"), "no toml").unwrap();
        let settings = Settings::read(&path).unwrap();
        assert_eq!(settings.cache.unwrap().0, 3 << 30);
        assert_eq!(settings.data, Some("/srv".into()));
        let report = check(&path).unwrap();
        assert_eq!(report.files, [path.clone(), folder.join("10-a.toml"), folder.join("20-b.toml")]);
        assert_eq!(report.findings, []);
        let told: Vec<(usize, &str, usize, &str)> = report
            .overridden
            .iter()
            .map(|it| (it.line, it.value.as_str(), it.by_line, it.by_value.as_str()))
            .collect();
        assert_eq!(told, [(3, "\"1G\"", 2, "\"2G\""), (2, "\"2G\"", 1, "\"3G\"")]);
        // A value that a server refuses, and that a later file overrides: the server starts.
        fs::write(&path, "# mine\ndata = \"/srv\"\nhttp = \"unix:/run/x\"\n").unwrap();
        assert!(Config::new(Settings::read(&path).unwrap()).is_err());
        assert_eq!(check(&path).unwrap().findings.len(), 1);
        fs::write(folder.join("25.toml"), "http = \"off\"\n").unwrap();
        assert!(Config::new(Settings::read(&path).unwrap()).is_ok());
        assert_eq!(check(&path).unwrap().findings, []);
        // A server does not start with a fault in a file of the folder, and names that file.
        fs::write(folder.join("15.toml"), "cahce = 1\n").unwrap();
        assert!(Settings::read(&path).unwrap_err().to_string().contains("15.toml"));
        assert!(check(&dir.path().join("none.toml")).is_err());
    }
}
