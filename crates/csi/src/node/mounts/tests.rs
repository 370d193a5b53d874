//! Tests of the list of mounts.

use super::*;

#[test]
fn mountinfo_is_read_with_escapes_and_the_last_mount_counts() {
    let text = "22 1 259:1 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
                40 22 7:3 / /a\\040b rw - ext4 /dev/loop3 rw\n\
                41 22 0:5 /loop3 /block rw - devtmpfs udev rw\n\
                42 22 7:4 /sub /a\\040b ro - xfs /dev/loop4 ro\n\
                broken\n";
    let mounts = Mounts::parse(text);
    assert_eq!(mounts.0.len(), 4);
    let last = mounts.at(Path::new("/a b")).expect("it is mounted");
    assert_eq!((last.device.as_str(), last.root.as_path()), ("7:4", Path::new("/sub")));
    assert_eq!(mounts.at(Path::new("/none")), None);
    assert_eq!(unescape("a\\134b\\0"), "a\\b\\0");
}
