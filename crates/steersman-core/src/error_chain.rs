// SPDX-License-Identifier: Apache-2.0
//! Prints an error with its sources.

use std::error::Error;

/// Returns an error and its sources in one line, separated by `: `.
///
/// A source is left out if the text already ends with it: many error types of other crates repeat their source.
///
/// ```
/// use std::io;
/// use steersman_core::error_chain;
///
/// let error = io::Error::new(io::ErrorKind::Other, "disk full");
/// assert_eq!(error_chain(&error), "disk full");
/// ```
#[must_use]
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let cause = error.to_string();
        if !text.ends_with(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    #[derive(Debug)]
    struct Layer(&'static str, Option<Box<Self>>);

    impl fmt::Display for Layer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Layer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|source| source as _)
        }
    }

    #[test]
    fn prints_each_source_once() {
        let disk = || Some(Box::new(Layer("disk full", None)));
        assert_eq!(
            error_chain(&Layer("write failed", disk())),
            "write failed: disk full"
        );
        // The outer error repeats its source.
        assert_eq!(
            error_chain(&Layer("write failed: disk full", disk())),
            "write failed: disk full"
        );
    }
}
