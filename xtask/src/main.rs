// SPDX-License-Identifier: Apache-2.0
//! The task runner: `cargo xtask COMMAND`.

fn main() {}
