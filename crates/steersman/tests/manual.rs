// SPDX-License-Identifier: Apache-2.0
//! The tests that the manual and the README show: here they are run, there they are only compiled.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(
    unreachable_pub,
    clippy::large_futures,
    reason = "it is the code of those who write operators"
)]

#[path = "manual/controllers.rs"]
mod controllers;
#[path = "manual/getting_started.rs"]
mod getting_started;
#[path = "manual/readme.rs"]
mod readme;
#[path = "manual/table.rs"]
mod table;
#[path = "manual/whole.rs"]
mod whole;

/// The code without comments, line breaks, and what stands before lines that a page does not show.
fn words(text: &str) -> String {
    let lines = text.lines().map(|line| match line.strip_prefix('#') {
        Some(hidden) if hidden.is_empty() || hidden.starts_with(' ') => hidden,
        _ => line,
    });
    let code: String = lines
        .map(|line| line.split("//").next().unwrap_or_default())
        .flat_map(str::chars)
        .filter(|letter| !letter.is_whitespace())
        .collect();
    code.replace(",)", ")").replace(",}", "}").replace(",]", "]")
}

fn assert_shows(page: &str, test: &str) {
    assert!(
        words(page).contains(&words(test)),
        "the page and the test differ: {test}"
    );
}

#[test]
fn the_pages_show_the_tests_that_are_run() {
    let (first, testing) = (
        include_str!("../src/manual/getting_started.md"),
        include_str!("../src/manual/testing.md"),
    );
    assert_shows(first, include_str!("manual/getting_started.rs"));
    assert_shows(testing, include_str!("manual/table.rs"));
    assert_shows(testing, include_str!("manual/whole.rs"));
    assert_shows(testing, include_str!("manual/controllers.rs"));
    assert_shows(
        include_str!("../../../README.md"),
        include_str!("manual/readme.rs"),
    );
}
