//! Temporal distances: from a write to the next one of its block (2007 paper, section 3.1). Exact
//! while there are few enough to keep, then to one part in 4096.

/// Distances that are kept at most: 256 MiB.
const EXACT_MAX: usize = 32 << 20;
const SUB_BITS: u32 = 12;
const BUCKETS: usize = ((64 - SUB_BITS as usize) + 1) << SUB_BITS;

/// Distances.
#[derive(Clone)]
pub(crate) struct Distances {
    exact: Option<Vec<u64>>,
    buckets: Vec<u64>,
    pub(crate) count: u64,
}

impl Distances {
    pub(crate) fn new() -> Self {
        Self { exact: Some(Vec::new()), buckets: vec![0; BUCKETS], count: 0 }
    }

    /// Collects nothing.
    pub(crate) fn none() -> Self {
        Self { exact: Some(Vec::new()), buckets: Vec::new(), count: 0 }
    }

    pub(crate) fn memory(&self) -> u64 {
        let exact = self.exact.as_ref().map_or(0, Vec::capacity);
        ((exact + self.buckets.len()) * size_of::<u64>()) as u64
    }

    pub(crate) fn add(&mut self, distance: u64) {
        self.count += 1;
        self.buckets[bucket(distance)] += 1;
        if let Some(exact) = &mut self.exact {
            if exact.len() < EXACT_MAX {
                exact.push(distance);
            } else {
                self.exact = None;
            }
        }
    }

    /// All are kept.
    pub(crate) fn is_exact(&self) -> bool {
        self.exact.is_some()
    }

    /// As after too many.
    #[cfg(test)]
    pub(crate) fn forget(&mut self) {
        self.exact = None;
    }

    /// Sorts the stored distances; before [`smallest`](Self::smallest).
    pub(crate) fn sort(&mut self) {
        if let Some(exact) = &mut self.exact {
            exact.sort_unstable();
        }
    }

    /// The k-th smallest, from 1; 0 for none.
    pub(crate) fn smallest(&self, k: u64) -> u64 {
        let Some(index) = k.checked_sub(1) else { return 0 };
        if let Some(exact) = &self.exact {
            return exact.get(index as usize).copied().unwrap_or(u64::MAX);
        }
        let mut before = 0;
        for (at, count) in self.buckets.iter().enumerate() {
            if before + count > index {
                // Within a bucket they are assumed to be evenly distributed.
                let (low, high) = (floor(at), floor(at + 1));
                return low + ((high - low) as f64 * ((index - before) as f64 + 0.5) / *count as f64) as u64;
            }
            before += count;
        }
        u64::MAX
    }

    /// How many are up to `limit`.
    pub(crate) fn up_to(&self, limit: u64) -> u64 {
        match &self.exact {
            Some(exact) => exact.partition_point(|distance| *distance <= limit) as u64,
            None => self.buckets[..=bucket(limit)].iter().sum(),
        }
    }

    /// The sum of those below `limit`, and how many they are.
    pub(crate) fn below(&self, limit: u64) -> (u128, u64) {
        match &self.exact {
            Some(exact) => {
                let count = exact.partition_point(|distance| *distance < limit);
                (exact[..count].iter().map(|distance| u128::from(*distance)).sum(), count as u64)
            }
            None => {
                let buckets = self.buckets[..bucket(limit)].iter().enumerate();
                let middle = |at| u128::from(floor(at)) + u128::from(floor(at + 1) - floor(at)) / 2;
                buckets.fold((0, 0), |(sum, all), (at, count)| {
                    (sum + middle(at) * u128::from(*count), all + count)
                })
            }
        }
    }

    /// The value at `fraction`, as numpy interpolates it.
    pub(crate) fn quantile(&self, fraction: f64) -> Option<f64> {
        let last = self.count.checked_sub(1)?;
        let at = fraction * last as f64;
        let below = self.smallest(at.floor() as u64 + 1) as f64;
        let above = self.smallest((at.floor() as u64 + 2).min(self.count)) as f64;
        Some(below + (above - below) * (at - at.floor()))
    }
}

fn bucket(value: u64) -> usize {
    if value < 1 << SUB_BITS {
        return value as usize;
    }
    let exponent = 63 - value.leading_zeros() - SUB_BITS;
    ((exponent as usize + 1) << SUB_BITS) + ((value >> exponent) as usize & ((1 << SUB_BITS) - 1))
}

/// The smallest value of a bucket.
fn floor(bucket: usize) -> u64 {
    let exponent = (bucket >> SUB_BITS) as u32;
    if exponent == 0 {
        return bucket as u64;
    }
    let mantissa = (bucket & ((1 << SUB_BITS) - 1)) as u64 | 1 << SUB_BITS;
    mantissa.checked_shl(exponent - 1).unwrap_or(u64::MAX)
}
