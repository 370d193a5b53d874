//! Whether a file that came back is all there: who copies one to its place would have the first half of it opened, and written to.

use std::fs;
use std::path::Path;
use std::time::Duration;

/// How long a file was not written to that nobody copies any more.
const QUIET: Duration = Duration::from_secs(5);

/// True for a disk, and for a file that has not been written to for a moment; false for what is not there.
pub(crate) fn has_settled(path: &Path) -> bool {
    let Ok(found) = fs::metadata(path) else { return false };
    // A time that has not come says nothing.
    let age = found.modified().ok().and_then(|written| written.elapsed().ok());
    !found.is_file() || age.is_none_or(|age| age >= QUIET)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn file_that_is_being_copied_has_not_settled() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("file");
        assert!(!has_settled(&path), "it is not there");
        let file = File::create(&path).unwrap();
        assert!(!has_settled(&path));
        let now = SystemTime::now();
        for (time, settled) in [(now - QUIET, true), (now + QUIET, true), (now, false)] {
            file.set_modified(time).unwrap();
            assert_eq!(has_settled(&path), settled, "{time:?}");
        }
        assert!(has_settled(Path::new("/dev/null")));
    }
}
