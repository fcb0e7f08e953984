// SPDX-License-Identifier: Apache-2.0
//! Prints the payload of a panic.

use std::any::Any;

/// Returns the message of a panic, or `no message` if the payload is not text.
///
/// ```
/// use std::panic::catch_unwind;
/// use steersman_core::panic_message;
///
/// let panic = catch_unwind(|| panic!("disk full")).unwrap_err();
/// assert_eq!(panic_message(&*panic), "disk full");
/// ```
#[must_use]
pub fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "no message".to_owned())
}
