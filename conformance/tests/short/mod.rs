//! Runs a scenario in a folder of its own. A missing program is a named skip, and an error in CI if
//! a package would help.

use cairn_conformance::{Facts, SCENARIOS, Verdict, World, find_cairn};

/// Runs `rounds` rounds with small sizes, with kills that lose unflushed data if wanted; returns
/// the counts, or `None` when this machine cannot run it.
pub fn run(name: &str, rounds: u32, power_cuts: bool) -> Option<Facts> {
    let scenario = SCENARIOS.iter().find(|scenario| scenario.name == name).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let cairn = find_cairn().unwrap();
    let world = World { cairn, folder: folder.path().to_owned(), seed: 1, short: true, power_cuts };
    match (scenario.run)(&world, rounds) {
        Ok(Verdict::Passed(facts)) => {
            println!("{name}: {facts}");
            Some(facts)
        }
        Ok(Verdict::Skipped { needs, kernel }) => {
            assert!(kernel || std::env::var_os("CI").is_none(), "needed in CI: {needs}");
            println!("SKIPPED: {name}: {needs}");
            None
        }
        Err(error) => panic!("{name}, seed {}: {error:#}", world.seed),
    }
}
