//! `cairn-fuzz`: short runs of the targets on stable Rust, and the corpora.
//!
//! ```text
//! cairn-fuzz run TARGET [INPUTS [SEED]]     the corpus, then changed inputs
//! cairn-fuzz replay TARGET FILE             one input
//! cairn-fuzz corpus                         makes the seeds in fuzz/corpus what the targets begin with
//! cairn-fuzz list                           the names of the targets
//! ```

use std::path::Path;

use anyhow::{Context, Result, bail};
use cairn_fuzz::{seeds, short};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<u64>().with_context(|| format!("{text} is no number"));
    match arguments[..] {
        ["run", target] => told(target, short::run(target, None, 1)?),
        ["run", target, count] => told(target, short::run(target, Some(number(count)?), 1)?),
        ["run", target, count, seed] => {
            told(target, short::run(target, Some(number(count)?), number(seed)?)?)
        }
        ["replay", target, file] => short::replay(target, Path::new(file))?,
        ["corpus"] => seeds::write()?,
        ["list"] => println!("{}", short::names().join("\n")),
        _ => bail!("usage: cairn-fuzz run TARGET [INPUTS [SEED]] | replay TARGET FILE | corpus | list"),
    }
    Ok(())
}

fn told(target: &str, inputs: u64) {
    println!("{target}: {inputs} inputs, no failure");
}
