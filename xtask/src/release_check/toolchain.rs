// SPDX-License-Identifier: Apache-2.0
//! Toolchains that rustup has installed.

use std::process::Command;

use crate::step::{command, without_variables_of_this_package};

pub(super) struct Toolchain {
    name: String,
}

impl Toolchain {
    /// Returns a toolchain if it is installed. Installs nothing.
    pub(super) fn find(name: &str) -> Option<Self> {
        let toolchain = Self {
            name: name.to_owned(),
        };
        let output = toolchain.cargo().arg("--version").output().ok()?;
        output.status.success().then_some(toolchain)
    }

    /// Returns a command that runs the cargo of this toolchain in the root of the repository.
    pub(super) fn cargo(&self) -> Command {
        let mut rustup = command("rustup");
        without_variables_of_this_package(&mut rustup);
        rustup.env("RUSTUP_AUTO_INSTALL", "0");
        rustup.args(["run", &self.name, "cargo"]);
        rustup
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_toolchain_is_not_found() {
        assert!(Toolchain::find("0.0.0-none").is_none());
    }
}
