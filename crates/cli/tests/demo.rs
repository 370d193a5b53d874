//! The demonstration, small: what it shows is what users see first.

mod running;

use serde_json::Value;

#[test]
fn demo_proves_that_the_mirror_is_the_last_image() {
    let dir = tempfile::tempdir().unwrap();
    let output = running::cairn()
        .args(["demo", "--budget", "40M", "--json"])
        .current_dir(dir.path())
        .env("TMPDIR", dir.path())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}\n{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_str(&told).expect("one report in JSON");
    assert_eq!(report["proved"], true, "{report:#}");
}
