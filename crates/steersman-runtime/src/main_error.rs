// SPDX-License-Identifier: Apache-2.0
//! The error of `main`.

use std::fmt;

use crate::BoxError;
use steersman_core::error_chain;

/// An error for `main`, shown on one line with all its causes. `main` prints the `Debug` text of the error that it returns.
/// Converts from every error with `?`.
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
    fn the_error_is_shown_with_all_causes_in_one_line() {
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
