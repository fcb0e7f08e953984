// SPDX-License-Identifier: Apache-2.0
//! Scans JSON in blocks of 64 bytes: one bit for each relevant byte, as in simdjson.
//!
//! Kubernetes JSON has a brace or a quote in every fourth byte. To jump from one to the next costs an unpredictable branch;
//! the bits of a whole block are counted without branches.

use wide::u8x16;

/// 64 bytes of JSON.
pub(super) struct Block([u8x16; 4]);

impl Block {
    pub(super) const LENGTH: usize = 64;

    /// Loads the bytes from `at` on, padded with spaces after the end of the input.
    #[inline]
    pub(super) fn at(input: &[u8], at: usize) -> Self {
        let rest = input.get(at..).unwrap_or_default();
        match rest.first_chunk() {
            Some(bytes) => Self::new(bytes),
            None => {
                let mut bytes = [b' '; Self::LENGTH];
                bytes[..rest.len()].copy_from_slice(rest);
                Self::new(&bytes)
            }
        }
    }

    #[inline]
    fn new(bytes: &[u8; Self::LENGTH]) -> Self {
        let (parts, _) = bytes.as_chunks();
        Self([parts[0], parts[1], parts[2], parts[3]].map(u8x16::new))
    }

    /// Returns the positions of `{` and `[`, which differ in one bit.
    #[inline]
    pub(super) fn opening(&self) -> u64 {
        self.places(|part| (part | u8x16::splat(0x20)).simd_eq(u8x16::splat(b'{')))
    }

    /// Returns the positions of `}` and `]`, which differ in one bit.
    #[inline]
    pub(super) fn closing(&self) -> u64 {
        self.places(|part| (part | u8x16::splat(0x20)).simd_eq(u8x16::splat(b'}')))
    }

    #[inline]
    fn of(&self, byte: u8) -> u64 {
        self.places(|part| part.simd_eq(u8x16::splat(byte)))
    }

    #[inline]
    fn places(&self, is_it: impl Fn(u8x16) -> u8x16) -> u64 {
        let bits = |part: usize| u64::from(is_it(self.0[part]).to_bitmask()) << (16 * part);
        bits(0) | bits(1) | bits(2) | bits(3)
    }
}

/// Tracks across blocks which bytes are in strings. The first block begins outside a string.
#[derive(Default)]
pub(super) struct Strings {
    /// All bits set if the last block ended in a string.
    inside: u64,
    /// One if the last byte was a backslash that escapes the first byte of the next block.
    escapes: u64,
}

impl Strings {
    /// Returns the bytes of the next block inside strings: from the opening quote to the byte before the closing one.
    #[inline]
    pub(super) fn follow(&mut self, block: &Block) -> u64 {
        let mut quotes = block.of(b'"');
        let backslashes = block.of(b'\\');
        if backslashes | self.escapes != 0 {
            quotes &= !self.escaped(backslashes);
        }
        let inside = parity(quotes) ^ self.inside;
        self.inside = if inside >> 63 == 1 { u64::MAX } else { 0 };
        inside
    }

    /// Returns the bytes after a backslash that is not escaped itself.
    fn escaped(&mut self, backslashes: u64) -> u64 {
        let mut escaped = std::mem::take(&mut self.escapes);
        let mut left = backslashes & !escaped;
        while left != 0 {
            let backslash = left & left.wrapping_neg();
            let behind = backslash << 1;
            escaped |= behind;
            self.escapes |= backslash >> 63;
            left &= !(backslash | behind);
        }
        escaped
    }
}

/// Sets each bit for which the number of bits up to and including it is odd.
#[inline]
fn parity(mut bits: u64) -> u64 {
    for distance in [1, 2, 4, 8, 16, 32] {
        bits ^= bits << distance;
    }
    bits
}
