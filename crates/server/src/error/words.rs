//! Words that errors of several rooms share.

use std::path::Path;

/// A next step with the name that is known in the place of `VOLUME` or `DEVICE`: `name` begins with
/// it.
pub(crate) fn in_place(next: &str, name: &str) -> String {
    let owner = name.split(['@', '/', ':', ' ']).next().filter(|owner| !owner.is_empty());
    match owner {
        // The others have to be made up by the reader.
        Some(owner) if !next.contains("NEWVOLUME") => next.replace("VOLUME", owner).replace("DEVICE", owner),
        _ => next.to_owned(),
    }
}

/// The remedy for an error of the operating system at a path.
pub(crate) fn io_next(error: &std::io::Error, path: &Path) -> String {
    use std::io::ErrorKind as Io;
    match error.kind() {
        Io::StorageFull | Io::QuotaExceeded => "free some space on that file system".into(),
        Io::ReadOnlyFilesystem => "choose a writable directory with --data".into(),
        Io::PermissionDenied => {
            format!("give this user write access to {}, or choose another with --data", path.display())
        }
        Io::NotFound => "check the path".into(),
        _ => "correct it and run the command again".into(),
    }
}
