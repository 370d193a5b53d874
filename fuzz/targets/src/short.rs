//! A short run of a target on stable Rust: the corpus, then changed inputs of it from a fixed seed.
//!
//! Without a sanitizer and without coverage, so it finds little that a long run does not. It keeps
//! earlier findings fixed, and checks that the targets still reach their code.

use std::panic::PanicHookInfo;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context, Result, bail};
use cairn_base::{ByteSize, Rng};

use crate::{TARGETS, seeds};

/// Address space of a run: a larger one is a finding. Most of it is never touched (stacks of
/// threads).
pub const MEMORY_MAX: ByteSize = ByteSize(4 << 30);
/// Longest input that is made here.
const INPUT_MAX: usize = 1 << 16;

/// The present input, for the report of a panic.
static TRIED: Mutex<(&str, Vec<u8>)> = Mutex::new(("", Vec::new()));

/// Runs `target`: its seeds, its corpus, and `count` changed inputs; with `None`, the number in its
/// table. Returns how many inputs were tried.
///
/// A panic in any thread ends the process: the input is left in the current folder under the name
/// that is printed.
pub fn run(target: &str, count: Option<u64>, seed: u64) -> Result<u64> {
    let Some(target) = TARGETS.iter().find(|known| known.name == target) else {
        bail!("there is no target {target}; they are {}", names().join(", "));
    };
    limit_memory()?;
    let mut corpus = (target.seeds)();
    corpus.extend(seeds::read(target.name)?.into_iter().map(|(_, input)| input));
    fail_on_any_panic();
    let count = count.unwrap_or(target.short_inputs);
    for input in &corpus {
        attempt(target.name, target.run, input.clone());
    }
    let mut rng = Rng::new(seed);
    for _ in 0..count {
        let input = changed(&corpus, &mut rng);
        attempt(target.name, target.run, input);
    }
    Ok(corpus.len() as u64 + count)
}

/// Runs one input, from a file.
pub fn replay(target: &str, file: &Path) -> Result<()> {
    let input = std::fs::read(file).with_context(|| file.display().to_string())?;
    limit_memory()?;
    crate::run(target, &input);
    Ok(())
}

/// The names of all targets.
pub fn names() -> Vec<&'static str> {
    TARGETS.iter().map(|target| target.name).collect()
}

fn limit_memory() -> Result<()> {
    let limit = rustix::process::Rlimit { current: Some(MEMORY_MAX.0), maximum: Some(MEMORY_MAX.0) };
    rustix::process::setrlimit(rustix::process::Resource::As, limit).context("a limit of memory can be set")
}

fn attempt(name: &'static str, run: fn(&[u8]), input: Vec<u8>) {
    *tried() = (name, input.clone());
    run(&input);
}

fn tried() -> std::sync::MutexGuard<'static, (&'static str, Vec<u8>)> {
    TRIED.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Otherwise a thread that panics would die alone, and the next input would be tried.
fn fail_on_any_panic() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic: &PanicHookInfo<'_>| {
        before(panic);
        let (name, input) = &*tried();
        let path = PathBuf::from(format!("crash-{name}-{:?}", cairn_base::Checksum::of(input)));
        match std::fs::write(&path, input) {
            Ok(()) => eprintln!("{name}: failed on {} ({} bytes)", path.display(), input.len()),
            Err(error) => eprintln!("{name}: failed on {} bytes that can't be kept: {error}", input.len()),
        }
        std::process::exit(101);
    }));
}

/// An input of the corpus with one to six changes, or two of them joined.
fn changed(corpus: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let pick = |rng: &mut Rng| match corpus.len() {
        0 => Vec::new(),
        length => corpus[rng.below(length as u64) as usize].clone(),
    };
    let mut input = pick(rng);
    for _ in 0..1 + rng.below(6) {
        change(&mut input, &pick, rng);
    }
    input.truncate(INPUT_MAX);
    input
}

fn change(input: &mut Vec<u8>, pick: &dyn Fn(&mut Rng) -> Vec<u8>, rng: &mut Rng) {
    const NUMBERS: [u64; 12] =
        [0, 1, 2, 0x7f, 0xff, 0x100, 0xffff, 1 << 31, (1 << 32) - 1, 1 << 40, u64::MAX / 2 + 1, u64::MAX];
    let at = rng.below(input.len() as u64 + 1) as usize;
    let length = (1 + rng.below(16) as usize).min(input.len() - at);
    match rng.below(9) {
        0 if at < input.len() => input[at] ^= 1 << rng.below(8),
        1 if at < input.len() => input[at] = rng.below(256) as u8,
        2 | 3 => {
            let number =
                NUMBERS[rng.below(NUMBERS.len() as u64) as usize].wrapping_add(rng.below(3)).wrapping_sub(1);
            let width = [1, 2, 4, 8][rng.below(4) as usize];
            let bytes = if rng.one_in(2) {
                number.to_le_bytes()
            } else {
                number.rotate_left(64 - 8 * width as u32).to_be_bytes()
            };
            let bytes = if rng.one_in(2) { &bytes[..width] } else { &bytes[8 - width..] };
            input[at..].iter_mut().zip(bytes).for_each(|(place, byte)| *place = *byte);
        }
        4 => drop(input.drain(at..at + length)),
        5 => {
            let piece = input[at..at + length].to_vec();
            let to = rng.below(input.len() as u64 + 1) as usize;
            input.splice(to..to, piece);
        }
        6 => {
            let mut noise = vec![0; 1 + rng.below(16) as usize];
            rng.fill(&mut noise);
            input.splice(at..at, noise);
        }
        7 => input.truncate(at),
        _ => {
            let other = pick(rng);
            let from = rng.below(other.len() as u64 + 1) as usize;
            input.truncate(at);
            input.extend_from_slice(&other[from..]);
        }
    }
}

#[cfg(test)]
mod tests;
