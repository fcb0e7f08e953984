// SPDX-License-Identifier: Apache-2.0
//! Finds the end of a JSON value without parsing it.
//!
//! Nothing is checked beyond what is needed for that. It never allocates and never recurses.

use super::block::{Block, Strings};

/// Why a walk ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The input ends inside the object: more bytes may help.
    Incomplete,
    /// This is no JSON object.
    Malformed {
        /// Where it goes wrong.
        at: usize,
    },
    /// It may be well-formed, but a key or a header field is written in a way that needs a full parser: with escapes,
    /// twice, or not as the type that it has in Kubernetes.
    Unusual,
}

pub(super) type Walk<T> = Result<T, Stop>;

pub(super) fn byte(input: &[u8], at: usize) -> Walk<&u8> {
    input.get(at).ok_or(Stop::Incomplete)
}

#[inline]
pub(crate) fn skip_space(input: &[u8], mut at: usize) -> usize {
    while let Some(b' ' | b'\n' | b'\r' | b'\t') = input.get(at) {
        at += 1;
    }
    at
}

/// Behind the value that starts at `at`.
pub(crate) fn skip_value(input: &[u8], at: usize) -> Walk<usize> {
    match *byte(input, at)? {
        b'"' => skip_string(input, at).map(|(end, _)| end),
        b'{' | b'[' => skip_nested(input, at),
        b'-' | b'0'..=b'9' | b't' | b'f' | b'n' => skip_scalar(input, at),
        _ => Err(Stop::Malformed { at }),
    }
}

fn skip_scalar(input: &[u8], at: usize) -> Walk<usize> {
    let rest = &input[at..];
    // A scalar ends where something else begins; at the end of the input it may go on.
    let length = rest
        .iter()
        .position(|byte| matches!(byte, b',' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t'));
    length.map(|length| at + length).ok_or(Stop::Incomplete)
}

/// Skips an object or a list with all that is in it, by counting what opens and closes outside of strings.
fn skip_nested(input: &[u8], at: usize) -> Walk<usize> {
    let mut at = at + 1;
    let mut depth = 1;
    let mut strings = Strings::default();
    while at < input.len() {
        let block = Block::at(input, at);
        let outside = !strings.follow(&block);
        let (opening, closing) = (block.opening() & outside, block.closing() & outside);
        // Most blocks do not have as many that close as are open.
        if depth <= closing.count_ones() {
            let end = where_it_closes(depth, opening, closing);
            if let Some(end) = end {
                return Ok(at + end + 1);
            }
        }
        depth = depth + opening.count_ones() - closing.count_ones();
        at += Block::LENGTH;
    }
    Err(Stop::Incomplete)
}

/// The place in a block where everything is closed that is open.
fn where_it_closes(depth: u32, opening: u64, mut closing: u64) -> Option<usize> {
    let mut closed = 0;
    while closing != 0 {
        let place = closing.trailing_zeros();
        closed += 1;
        let opened = (opening & ((1 << place) - 1)).count_ones();
        if depth + opened == closed {
            return Some(place as usize);
        }
        closing &= closing - 1;
    }
    None
}

/// Behind the string that starts with the quote at `at`, and whether it has escapes.
#[inline]
pub(super) fn skip_string(input: &[u8], at: usize) -> Walk<(usize, bool)> {
    let mut at = at + 1;
    let mut escaped = false;
    loop {
        at = find_quote_or_backslash(input, at)?;
        if input[at] == b'"' {
            return Ok((at + 1, escaped));
        }
        escaped = true;
        at += 2;
    }
}

/// Eight bytes at a time. Strings here are short, and a search by larger steps spends more on setting itself up.
#[inline]
fn find_quote_or_backslash(input: &[u8], mut at: usize) -> Walk<usize> {
    const EACH: u64 = u64::from_ne_bytes([1; 8]);
    // Sets the high bit of the first byte that is zero, and perhaps of some behind it.
    let zeros = |word: u64| word.wrapping_sub(EACH) & !word & (EACH << 7);
    while let Some(bytes) = input.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        let word = u64::from_le_bytes(*bytes);
        let found = zeros(word ^ (EACH * u64::from(b'"'))) | zeros(word ^ (EACH * u64::from(b'\\')));
        if found != 0 {
            return Ok(at + found.trailing_zeros() as usize / 8);
        }
        at += 8;
    }
    let rest = input.get(at..).unwrap_or_default();
    let near = rest.iter().position(|byte| matches!(byte, b'"' | b'\\'));
    near.map(|near| at + near).ok_or(Stop::Incomplete)
}
