//! The files of the page, as they are in the program.

use sha2::{Digest, Sha256};

/// A file.
pub(crate) struct File {
    /// Below `/page/`.
    pub name: &'static str,
    /// The media type.
    pub kind: &'static str,
    /// The content.
    pub bytes: &'static [u8],
}

const SCRIPT: &str = "text/javascript; charset=utf-8";

macro_rules! file {
    ($name:literal, $kind:expr) => {
        File { name: $name, kind: $kind, bytes: include_bytes!(concat!("../page/", $name)) }
    };
}

/// All of them. A script that is not listed here is not served.
pub(crate) const FILES: &[File] = &[
    file!("index.html", "text/html; charset=utf-8"),
    file!("page.css", "text/css; charset=utf-8"),
    file!("icon.svg", "image/svg+xml"),
    file!("app.js", SCRIPT),
    file!("access.js", SCRIPT),
    file!("api.js", SCRIPT),
    file!("bucket.js", SCRIPT),
    file!("dialog.js", SCRIPT),
    file!("dom.js", SCRIPT),
    file!("dumps.js", SCRIPT),
    file!("exports.js", SCRIPT),
    file!("files.js", SCRIPT),
    file!("fleet.js", SCRIPT),
    file!("history.js", SCRIPT),
    file!("instant.js", SCRIPT),
    file!("line.js", SCRIPT),
    file!("log.js", SCRIPT),
    file!("mirror.js", SCRIPT),
    file!("overview.js", SCRIPT),
    file!("paths.js", SCRIPT),
    file!("plot.js", SCRIPT),
    file!("price.js", SCRIPT),
    file!("source.js", SCRIPT),
    file!("volume.js", SCRIPT),
    file!("words.js", SCRIPT),
];

/// The file of that name.
pub(crate) fn find(name: &str) -> Option<&'static File> {
    FILES.iter().find(|file| file.name == name)
}

/// The entity tag of a file: another one as soon as a byte of it is another one.
pub(crate) fn tag(file: &File) -> String {
    let digest = Sha256::digest(file.bytes);
    let text: String = digest.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
    format!("\"{text}\"")
}
