// SPDX-License-Identifier: Apache-2.0
//! Content that varies and is the same in every run.

use std::fmt::Write;

/// SplitMix64.
pub(super) struct Chance(u64);

impl Chance {
    pub(super) fn new(seed: usize) -> Self {
        Self((seed as u64).wrapping_mul(0xA24B_AED4_963E_E407) ^ 0x5851_F42D_4C95_7F2D)
    }

    pub(super) fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.number() % end
    }

    pub(super) fn one_of<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        let at = self.below(choices.len() as u64);
        choices[usize::try_from(at).unwrap_or_default()]
    }

    pub(super) fn hex(&mut self, digits: usize) -> String {
        let mut text = String::with_capacity(digits + 16);
        while text.len() < digits {
            // Writing to a string cannot fail.
            let _ = write!(text, "{:016x}", self.number());
        }
        text.truncate(digits);
        text
    }

    pub(super) fn uid(&mut self) -> String {
        let hex = self.hex(32);
        let part = |from: usize, to: usize| &hex[from..to];
        [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-")
    }

    /// A time within one day.
    pub(super) fn time(&mut self) -> String {
        let second = self.below(86_400);
        format!(
            "2026-10-14T{:02}:{:02}:{:02}Z",
            second / 3600,
            second / 60 % 60,
            second % 60
        )
    }
}
