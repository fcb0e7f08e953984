// SPDX-License-Identifier: Apache-2.0
//! Formatting, clippy and documentation.

use crate::{
    Failure,
    step::{cargo, step, succeed},
};

pub(crate) fn run() -> Result<(), Failure> {
    step("formatting", || {
        succeed(cargo().args(["fmt", "--all", "--check"]))?;
        // A separate workspace that is not built here.
        succeed(cargo().args(["fmt", "--check", "--manifest-path", "bench/peers/rust/Cargo.toml"]))
    })?;
    step("clippy", || {
        succeed(cargo().args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))
    })?;
    step("documentation", || {
        succeed(
            cargo()
                .args(["doc", "--workspace", "--no-deps"])
                .env("RUSTDOCFLAGS", "-D warnings"),
        )
    })
}
