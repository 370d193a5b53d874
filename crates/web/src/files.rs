//! The files of the page, as they are in the program, and as they are sent.
//!
//! The document names the other files below `/page/VERSION/`, where VERSION is a digest of all of
//! them. So a browser keeps each file for as long as it likes, and asks for the document alone when
//! it opens the page again. The relative imports of the scripts stay below the same version.
//!
//! The document has the style in it, so that the first paint waits for no second answer. The policy
//! of the page permits exactly this style, by its digest.

use std::io::Write;
use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;
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

/// The style of the page, and the line of the document that names it.
const STYLE: &str = include_str!("../page/page.css");
const STYLE_LINK: &str = "<link rel=\"stylesheet\" href=\"/page/page.css\">";

/// The source of styles that the policy permits beside files: this one.
pub(crate) fn style_source() -> String {
    format!("'sha256-{}'", STANDARD.encode(digest(STYLE.as_bytes())))
}

/// A file as it is sent.
pub(crate) struct Sent {
    pub(crate) name: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) plain: Form,
    /// By gzip.
    pub(crate) packed: Form,
}

/// The bytes of a file in one form.
pub(crate) struct Form {
    pub(crate) bytes: Vec<u8>,
    /// The entity tag: another one as soon as a byte is another one.
    pub(crate) tag: String,
}

/// The files as they are sent, made when the page is opened for the first time.
static SENT: LazyLock<Vec<Sent>> = LazyLock::new(|| FILES.iter().map(Sent::of).collect());

/// The digest of all files.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let all = FILES.iter().fold(Sha256::new(), |all, file| all.chain_update(digest(file.bytes)));
    all.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
});

impl Sent {
    fn of(file: &File) -> Self {
        let bytes = match std::str::from_utf8(file.bytes) {
            Ok(text) if file.name == "index.html" => {
                let text = text.replace(STYLE_LINK, &format!("<style>{STYLE}</style>"));
                text.replace("=\"/page/", &format!("=\"/page/{}/", version())).into_bytes()
            }
            _ => file.bytes.to_vec(),
        };
        let mut packer = GzEncoder::new(Vec::new(), Compression::best());
        // A vector takes all.
        let packed = packer.write_all(&bytes).and_then(|()| packer.finish()).unwrap_or_default();
        let Form { tag, .. } = Form::of(bytes.clone());
        let packed = Form { bytes: packed, tag: tag.replacen('"', "\"gz-", 1) };
        Self { name: file.name, kind: file.kind, plain: Form { bytes, tag }, packed }
    }
}

impl Form {
    fn of(bytes: Vec<u8>) -> Self {
        let text: String = digest(&bytes).iter().take(12).map(|byte| format!("{byte:02x}")).collect();
        Self { bytes, tag: format!("\"{text}\"") }
    }
}

fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// The version of the page.
pub(crate) fn version() -> &'static str {
    &VERSION
}

/// The file of that name.
pub(crate) fn find(name: &str) -> Option<&'static Sent> {
    SENT.iter().find(|file| file.name == name)
}
