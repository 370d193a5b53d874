//! Another block with the same checksum: XXH3-128 finds accidents, and does not prevent anyone from
//! making one.
//!
//! The hash takes 1,024 bytes at a time as 16 stripes of 8 words, and mixes its state only after
//! that. Until then each of the 8 lanes of the state is a sum of two things, whatever their order.
//! One is the sum of the words of the neighbouring lane. The other is the sum of the products of
//! the two halves of each own word after an exclusive or with a word of a known secret. So 12 of
//! the 16 words of a lane are free. Two more restore the sum of the products. The last two have
//! products of zero, and their remaining freedom restores the sum of the words.

use cairn_base::BLOCK_SIZE;
use cairn_device::{Block, BlockMut};

/// The hash's own secret, the part used for the words of a block.
const SECRET: [u8; 184] = [
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde,
    0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79,
    0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46,
    0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb,
    0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2,
    0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c,
    0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59,
    0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3,
    0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb, 0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3,
    0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8,
    0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28,
];

const STRIPES: usize = 16;
const LANES: usize = 8;
/// Freely chosen words of a lane.
const FREE: usize = 12;
/// Changeable stretches of a block: after the last one the hash reads the end once more.
const STRETCHES: usize = 3;
const LOW: u64 = u32::MAX as u64;

/// The word of the secret for a word of the input.
fn key(stripe: usize, lane: usize) -> u64 {
    word(&SECRET, stripe + lane)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut raw = [0; 8];
    raw.copy_from_slice(&bytes[at * 8..at * 8 + 8]);
    u64::from_le_bytes(raw)
}

fn product(word: u64, key: u64) -> u64 {
    let mixed = word ^ key;
    (mixed & LOW).wrapping_mul(mixed >> 32)
}

fn sum(terms: impl Iterator<Item = u64>) -> u64 {
    terms.fold(0, u64::wrapping_add)
}

/// A block that has the checksum of `original`, and three quarters of the content of `wanted` in
/// its first three quarters.
pub fn twin(original: &[u8], wanted: &[u8]) -> Block {
    let mut bytes = BlockMut::zeroed();
    bytes.copy_from_slice(&original[..BLOCK_SIZE]);
    for stretch in 0..STRETCHES {
        for lane in 0..LANES {
            let place = |stripe: usize| (stretch * STRIPES + stripe) * LANES + lane;
            let before: Vec<u64> = (0..STRIPES).map(|stripe| word(original, place(stripe))).collect();
            let wanted: Vec<u64> = (0..FREE).map(|stripe| word(wanted, place(stripe))).collect();
            let words = lane_with_the_sums_of(&before, wanted, lane);
            for (stripe, word) in words.into_iter().enumerate() {
                let at = place(stripe) * 8;
                bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
        }
    }
    bytes.freeze()
}

/// The words of a lane that begin with the wanted ones and have the sums of the old ones.
fn lane_with_the_sums_of(before: &[u64], mut words: Vec<u64>, lane: usize) -> Vec<u64> {
    let products =
        |words: &[u64]| sum(words.iter().enumerate().map(|(stripe, word)| product(*word, key(stripe, lane))));
    // As many times the largest half as go into it, and the rest once. The very largest numbers are
    // no such sum; another free word makes it another one.
    let (most, rest) = loop {
        let missing = products(before).wrapping_sub(products(&words));
        let (most, rest) = (missing / LOW, missing % LOW);
        if most <= LOW {
            break (most, rest);
        }
        words[0] = words[0].wrapping_add(1);
    };
    words.push((LOW << 32 | most) ^ key(12, lane));
    words.push((1 << 32 | rest) ^ key(13, lane));
    // One half of each equals the secret's, so that its product is zero; the other half is free.
    let (low, high) = (key(14, lane) & LOW, key(15, lane) >> 32 << 32);
    let missing = sum(before.iter().copied()).wrapping_sub(sum(words.iter().copied()));
    let free = missing.wrapping_sub(low).wrapping_sub(high);
    words.push((free >> 32 << 32) | low);
    words.push(high | (free & LOW));
    words
}

#[cfg(test)]
mod tests {
    use cairn_base::{Checksum, Rng};

    use super::*;

    #[test]
    fn twin_has_the_checksum_of_a_block_and_other_content() {
        let mut rng = Rng::new(7);
        for _ in 0..200 {
            let (mut original, mut wanted) = (vec![0; BLOCK_SIZE], vec![0; BLOCK_SIZE]);
            if !rng.one_in(8) {
                rng.fill(&mut original);
            }
            rng.fill(&mut wanted);
            let twin = twin(&original, &wanted);
            assert_eq!(Checksum::of(&twin[..]), Checksum::of(&original));
            assert_ne!(twin[..], original[..]);
            assert_eq!(twin[..FREE * 64], wanted[..FREE * 64]);
        }
    }
}
