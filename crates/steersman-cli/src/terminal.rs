// SPDX-License-Identifier: Apache-2.0
//! Colours on terminals.

use std::{
    env,
    fmt::Display,
    io::{self, IsTerminal},
};

/// Colours text, unless the output is not a terminal or `NO_COLOR` is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Paint(bool);

impl Paint {
    /// Returns the colours for standard output.
    pub(crate) fn stdout() -> Self {
        Self::on(io::stdout().is_terminal())
    }

    /// Returns the colours for standard error.
    pub(crate) fn stderr() -> Self {
        Self::on(io::stderr().is_terminal())
    }

    fn on(is_terminal: bool) -> Self {
        let is_unwanted = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self(is_terminal && !is_unwanted)
    }

    /// Returns no colours.
    pub(crate) const fn none() -> Self {
        Self(false)
    }

    pub(crate) fn red(self, text: impl Display) -> String {
        self.with("31", text)
    }

    pub(crate) fn green(self, text: impl Display) -> String {
        self.with("32", text)
    }

    pub(crate) fn bold(self, text: impl Display) -> String {
        self.with("1", text)
    }

    pub(crate) fn dim(self, text: impl Display) -> String {
        self.with("2", text)
    }

    fn with(self, code: &str, text: impl Display) -> String {
        if self.0 {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_string()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_outside_of_a_terminal_has_no_colour() {
        assert_eq!(Paint::none().red("error:"), "error:");
        assert_eq!(Paint(true).red("error:"), "\x1b[31merror:\x1b[0m");
    }
}
