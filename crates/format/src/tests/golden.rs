//! The bytes of each sample, as a hash. When this fails, the format changed: read "Changing the
//! format" in docs/format.md first.

use super::*;

#[test]
fn bytes_of_every_struct_are_those_of_its_version() {
    let golden: &[(&str, &str)] = &[
        ("superblock", "c2380f89f38acf4bcd4a5dea8c294073"),
        ("superblock of a destination", "049ed72ed4217f345e99edb24df716be"),
        ("superblock with an external log", "8702f62743013ec342dfbfc91b2382a3"),
        ("log device", "bcba8f1d1798ef514f31d1d9f65657be"),
        ("node", "2c07dbc65ead0970090268772536aff3"),
        ("inode", "4dc7507c7c854c21768ab3a6bf04343b"),
        ("directory entry", "466dd5f965b377cef6b4683bcd6a7775"),
        ("inode of the tree of names", "938d51a727dcacdcac1f1d1c210f598a"),
        ("top leaf", "421bb7874c4e5029f77755fb55e8c82b"),
        ("leaf", "c300f2a38564d1ae207ce7d2a12a6d2e"),
        ("extended attributes", "1f0e48da835d71d6682e6e08fa3e1eec"),
        ("quota tree", "f72ad6dda3ca6727e675bbe592d347a7"),
        ("snapshot table block", "97cb988ecf9759d9d7860b5dcb7b7707"),
        ("redirect map block", "ac4cdfd5c07e3a4c1c769a73ad619873"),
        ("label index block", "f42aa5f1921d49236be11cbe73285120"),
        ("log record", "2af89504e75afa69edc69abc9d29fd1c"),
        ("log record with inodes", "730bd36b53f982807f781943a0d8ae84"),
        ("history superblock", "72d71cfc41089646cdde61995a4c9cec"),
        ("history superblock with a reduction", "ff714bdeda87ef3b4eef4a0fa0fbb745"),
        ("end of a history segment", "2a31de01a0c6323b79d0c1224cd2d01e"),
        ("history record", "42478c5178fe7bb4cdf729cdb15a2404"),
    ];
    let now: Vec<(&str, String)> =
        samples().iter().map(|sample| (sample.name, format!("{:?}", Checksum::of(&sample.bytes)))).collect();
    let now: Vec<(&str, &str)> = now.iter().map(|(name, hash)| (*name, hash.as_str())).collect();
    assert_eq!(now, golden);
}
