//! Randomness is a parameter: secrets and salts come from the operating system, or from a test.

/// A source of random bytes: the operating system, or the generator of a test.
pub trait Entropy: Send + Sync {
    /// Fills all bytes. Each call gives others.
    fn fill(&self, bytes: &mut [u8]);
}

/// Random bytes.
pub(super) fn random<const N: usize>(entropy: &dyn Entropy) -> [u8; N] {
    let mut bytes = [0; N];
    entropy.fill(&mut bytes);
    bytes
}
