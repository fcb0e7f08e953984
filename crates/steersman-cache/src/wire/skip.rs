// SPDX-License-Identifier: Apache-2.0
//! Finds the end of a JSON value without parsing it.
//!
//! It checks only what that requires. It never allocates and never recurses.

use super::block::{Block, Strings};

/// Reason why a scan ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The input ends inside the object: more bytes can help.
    Incomplete,
    /// The input is no JSON object.
    Malformed {
        /// Position of the error.
        at: usize,
    },
    /// The input can be well-formed, but a key or a header field needs a full parser: it is escaped, duplicated, or not of
    /// its Kubernetes type.
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

/// Returns the position after the value that starts at `at`.
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
    // A scalar ends at the next delimiter; at the end of the input it can continue.
    let length = rest
        .iter()
        .position(|byte| matches!(byte, b',' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t'));
    length.map(|length| at + length).ok_or(Stop::Incomplete)
}

/// Skips an object or a list with its contents, by counting opening and closing marks outside strings.
fn skip_nested(input: &[u8], at: usize) -> Walk<usize> {
    let mut at = at + 1;
    let mut depth = 1;
    let mut strings = Strings::default();
    while at < input.len() {
        let block = Block::at(input, at);
        let outside = !strings.follow(&block);
        let (opening, closing) = (block.opening() & outside, block.closing() & outside);
        // Most blocks have fewer closing marks than are open.
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

/// Returns the position in a block at which all open marks are closed.
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

/// Returns the position after the string that starts with the quote at `at`, and whether it has escapes.
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

/// Searches eight bytes at a time. Strings here are short, and a search in larger steps has a higher set-up cost.
#[inline]
fn find_quote_or_backslash(input: &[u8], mut at: usize) -> Walk<usize> {
    const EACH: u64 = u64::from_ne_bytes([1; 8]);
    // Sets the high bit of the first byte that is zero, and perhaps of some bytes after it.
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
