// SPDX-License-Identifier: Apache-2.0
use super::*;

#[test]
fn guarantee_5_truncates_text_between_characters() {
    assert_eq!(cut("short", 128), "short");
    assert_eq!(cut("aé", 2), "a");
    assert_eq!(cut(&"é".repeat(1000), NOTE_MAX).len(), NOTE_MAX);
}
