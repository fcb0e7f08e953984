// SPDX-License-Identifier: Apache-2.0
//! Reproducible random numbers.

use std::{
    hash::{BuildHasher, RandomState},
    sync::atomic::{AtomicU64, Ordering},
};

/// A small random number generator that returns the same numbers for the same seed.
///
/// It is SplitMix64: its state is a counter, so that drawing needs no lock. It is good enough for jitter, not for
/// secrets. It does not use the `rand` crates, because they can change their small generators between versions, and a
/// recorded seed has to reproduce the same run later.
///
/// ```
/// use steersman_core::Random;
///
/// let (one, other) = (Random::from_seed(7), Random::from_seed(7));
/// assert_eq!(one.next_u64(), other.next_u64());
/// assert!((0.0..1.0).contains(&one.fraction()));
/// ```
#[derive(Debug)]
pub struct Random {
    state: AtomicU64,
}

impl Random {
    /// Creates a generator that always returns the same numbers for the same `seed`.
    #[must_use]
    pub const fn from_seed(seed: u64) -> Self {
        Self {
            state: AtomicU64::new(seed),
        }
    }

    /// Creates a generator with a different seed in each process, from the standard library's seed for maps.
    #[must_use]
    pub fn from_entropy() -> Self {
        Self::from_seed(RandomState::new().hash_one(0_u8))
    }

    /// Returns the next number.
    pub fn next_u64(&self) -> u64 {
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut z = self
            .state
            .fetch_add(GOLDEN, Ordering::Relaxed)
            .wrapping_add(GOLDEN);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns the next number between zero (included) and one (excluded).
    pub fn fraction(&self) -> f64 {
        // The mantissa has 53 bits.
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_the_published_generator() {
        // The first values of SplitMix64 for seed 1234567, as in https://rosettacode.org/wiki/Pseudo-random_numbers/Splitmix64.
        let random = Random::from_seed(1_234_567);
        let drawn = [random.next_u64(), random.next_u64(), random.next_u64()];
        assert_eq!(
            drawn,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }
}
