// SPDX-License-Identifier: Apache-2.0
//! The error with which a program ends.

use std::fmt;

use crate::BoxError;
use steersman_core::error_chain;

/// Whatever ends a program, shown as people read it: what failed and why, in one line. It is made for `main`, which shows
/// the `Debug` of what it returns, and takes every error by `?`.
///
/// ```
/// use steersman_runtime::{MainError, Logging};
///
/// fn main() -> Result<(), MainError> {
///     Logging::from_env().install()?;
///     Ok(())
/// }
/// ```
pub struct MainError(BoxError);

impl<E: Into<BoxError>> From<E> for MainError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl fmt::Debug for MainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for MainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&error_chain(&*self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_shown_with_all_causes_in_one_line() {
        let source: BoxError = "the disk is full".into();
        let failed = crate::RunError::Runnable {
            name: "web".to_owned(),
            source,
        };
        assert_eq!(
            format!("{:?}", MainError::from(failed)),
            "`web` failed: the disk is full"
        );
    }
}
