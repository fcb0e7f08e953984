// SPDX-License-Identifier: Apache-2.0
//! Random uids and generated names from a seed.
//!
//! # Guarantees
//! 1. The same seed and the same calls give the same values.
//! 2. A request that is handled again draws the same values again.

/// A small generator (splitmix64): its output must be well distributed, not secret.
#[derive(Clone, Debug)]
pub(crate) struct Random {
    state: u64,
    /// The values drawn since [`Self::start_tape`].
    tape: Option<Tape>,
}

/// Values that are drawn again when a request is handled again.
#[derive(Clone, Debug)]
struct Tape {
    values: Vec<u64>,
    /// The next value to repeat.
    next: usize,
}

/// Characters of generated names: no vowels, so that no words result, and no characters that look alike.
const SUFFIX: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            state: seed,
            tape: None,
        }
    }

    /// Draws the values of an earlier attempt again, and records those that follow.
    pub(crate) fn start_tape(&mut self, values: Vec<u64>) {
        self.tape = Some(Tape { values, next: 0 });
    }

    /// Ends the recording and returns it.
    pub(crate) fn take_tape(&mut self) -> Vec<u64> {
        self.tape.take().map(|tape| tape.values).unwrap_or_default()
    }

    /// Returns the next value of the tape, or else a fresh one, which is recorded.
    pub(crate) fn repeated(&mut self, fresh: impl FnOnce(&mut Self) -> u64) -> u64 {
        if let Some(tape) = &mut self.tape
            && let Some(value) = tape.values.get(tape.next)
        {
            tape.next += 1;
            return *value;
        }
        let value = fresh(self);
        if let Some(tape) = &mut self.tape {
            tape.values.push(value);
            tape.next += 1;
        }
        value
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.repeated(|random| {
            random.state = random.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = random.state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        })
    }

    /// Returns a version 4 UUID.
    pub(crate) fn uid(&mut self) -> String {
        let high = (self.next() & 0xffff_ffff_ffff_0fff) | 0x4000;
        let low = (self.next() & 0x3fff_ffff_ffff_ffff) | 0x8000_0000_0000_0000;
        format!(
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            high >> 32,
            (high >> 16) & 0xffff,
            high & 0xffff,
            low >> 48,
            low & 0xffff_ffff_ffff
        )
    }

    /// Returns `base`, cut to 58 characters, with five random characters appended.
    pub(crate) fn name(&mut self, base: &str) -> String {
        let mut name: String = base.chars().take(58).collect();
        for _ in 0..5 {
            let index = usize::try_from(self.next() % SUFFIX.len() as u64).unwrap_or_default();
            name.push(char::from(SUFFIX[index]));
        }
        name
    }

    /// Fills `bytes` for secrets, which are only as secret as the seed.
    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let next = self.next().to_le_bytes();
            chunk.copy_from_slice(&next[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guarantee_1_same_seed_gives_same_values() {
        let (mut a, mut b) = (Random::new(7), Random::new(7));
        assert_eq!(a.uid(), b.uid());
        assert_eq!(a.name("web-"), b.name("web-"));
    }

    #[test]
    fn a_uid_is_a_version_4_uuid() {
        let uid = Random::new(1).uid();
        assert_eq!(uid.len(), 36);
        assert_eq!(&uid[14..15], "4");
        assert!(matches!(&uid[19..20], "8" | "9" | "a" | "b"), "{uid}");
    }
}
