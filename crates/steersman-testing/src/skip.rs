// SPDX-License-Identifier: Apache-2.0
//! Tests that need a program which is not installed.

use std::{env, io};

/// Environment variable that makes a missing real API server an error.
///
/// By default, tests on the real API server are skipped if its binaries are missing, and one line on standard error reports it.
/// Set this variable to any value, for example in your CI, to fail those tests instead.
pub const REQUIRE_REAL_VARIABLE: &str = "STEERSMAN_REQUIRE_REAL";

/// Reports that `what` is skipped because a tool is missing. The line is shown even if the test passes.
///
/// # Panics
/// If the environment variable `CI` is set: a build server must have every tool, so that no test is skipped unnoticed.
pub fn skip_without_tool(what: &str, reason: &str) {
    let line = line(what, reason);
    assert!(
        env::var_os("CI").is_none(),
        "{line}; CI is set, so this is an error"
    );
    show(&line);
}

/// Reports that the tests on the real API server are skipped, or returns the reason as an error if they are required.
pub(crate) fn skip_real(reason: &str) -> Result<(), String> {
    if env::var_os(REQUIRE_REAL_VARIABLE).is_some() {
        return Err(format!("{REQUIRE_REAL_VARIABLE} is set, but {reason}"));
    }
    show(&line("tests on the real API server", reason));
    Ok(())
}

fn line(what: &str, reason: &str) -> String {
    format!("skipped {what}: {reason}")
}

/// Not with a macro: the test harness captures the output of macros and drops it if the test passes.
fn show(line: &str) {
    let _ = io::Write::write_fmt(&mut io::stderr(), format_args!("{line}\n"));
}
