// SPDX-License-Identifier: Apache-2.0
//! Random text for tokens and names.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Returns 64 random bits as 16 hexadecimal digits, from the keys that std draws for its hash maps.
pub(crate) fn random() -> String {
    format!("{:016x}", RandomState::new().build_hasher().finish())
}
