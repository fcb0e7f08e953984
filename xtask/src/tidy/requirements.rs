// SPDX-License-Identifier: Apache-2.0
//! `docs/requirements.md` has one row for each requirement; `docs/requirements-tests.md` lists the tests that cite each of them.
//!
//! A test cites a requirement in a comment before it or in it that begins with the number (`// R42`, `// R9, R12–R14`),
//! or in its name (`r42_…`). `cargo xtask tidy --fix` writes the list of tests.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use super::{
    Complaint,
    tree::{File, Tree},
};
use crate::Failure;

const DOCUMENT: &str = "docs/requirements.md";
const TEST_LIST: &str = "docs/requirements-tests.md";
const LAST: u32 = 177;
/// Shown for a requirement that no test cites.
const NONE: &str = "–";
/// Text of [`TEST_LIST`] before its rows.
const HEAD: &str = "\
# Tests of each requirement

`cargo xtask tidy --fix` writes this file; do not edit it. `cargo xtask tidy` fails if it is out of date.
[requirements.md](requirements.md) has the text of each requirement. A test is named as file and function:
`queue/tests/fair::one` is the function `one` in `crates/steersman-queue/tests/fair.rs`. A dash means that no test cites the
requirement yet.

| R | Tests |
|---|---|
";

type Citations = BTreeMap<u32, BTreeSet<String>>;

pub(super) fn each_requirement_has_one_row_and_its_tests(tree: &Tree) -> Vec<Complaint> {
    let Some(document) = tree.get(DOCUMENT) else {
        return vec![format!("{DOCUMENT}: the file is missing")];
    };
    let citations = citations(tree);
    let mut complaints: Vec<Complaint> = citations
        .iter()
        .filter(|(number, _)| !(1..=LAST).contains(*number))
        .map(|(number, tests)| format!("unknown requirement R{number}, cited by {}", join(tests)))
        .collect();
    let rows: Vec<u32> = document.text.lines().filter_map(requirement).collect();
    for number in 1..=LAST {
        let count = rows.iter().filter(|row| **row == number).count();
        if count != 1 {
            complaints.push(format!(
                "{DOCUMENT}: R{number} has {count} rows `| R{number} | sentence |` instead of one"
            ));
        }
    }
    if tree
        .get(TEST_LIST)
        .is_none_or(|file| file.text != table(&citations))
    {
        complaints.push(format!("{TEST_LIST}: out of date; run `cargo xtask tidy --fix`"));
    }
    complaints
}

/// Writes [`TEST_LIST`].
pub(super) fn fix(tree: &Tree) -> Result<(), Failure> {
    fs::write(tree.root.join(TEST_LIST), table(&citations(tree)))
        .map_err(|error| format!("cannot write {TEST_LIST}: {error}"))
}

/// Returns the number of a row `| R1 | sentence |`.
fn requirement(line: &str) -> Option<u32> {
    let cells: Vec<&str> = line
        .strip_prefix('|')?
        .trim_end()
        .strip_suffix('|')?
        .split('|')
        .map(str::trim)
        .collect();
    let [number, sentence] = cells.as_slice() else {
        return None;
    };
    number
        .strip_prefix('R')?
        .parse()
        .ok()
        .filter(|_| !sentence.is_empty())
}

/// Returns the text of [`TEST_LIST`]: a row `| R1 | tests |` for each requirement.
fn table(citations: &Citations) -> String {
    (1..=LAST).fold(HEAD.to_owned(), |text, number| {
        let tests = citations.get(&number).map_or_else(|| NONE.to_owned(), join);
        format!("{text}| R{number} | {tests} |\n")
    })
}

fn join(tests: &BTreeSet<String>) -> String {
    tests
        .iter()
        .map(|test| format!("`{test}`"))
        .collect::<Vec<_>>()
        .join(", ")
}

fn citations(tree: &Tree) -> Citations {
    let mut citations = Citations::new();
    for file in tree
        .with_extension(".rs")
        // This file contains examples of citations.
        .filter(|file| file.path != "xtask/src/tidy/requirements.rs")
    {
        for (number, test) in cited_in(file) {
            citations
                .entry(number)
                .or_default()
                .insert(format!("{}::{test}", short(&file.path)));
        }
    }
    citations
}

/// Returns the short name of a file: `queue/tests/fairness` for `crates/steersman-queue/tests/fairness.rs`.
fn short(path: &str) -> &str {
    let path = path.trim_end_matches(".rs");
    path.strip_prefix("crates/steersman-")
        .or_else(|| path.strip_prefix("crates/"))
        .unwrap_or(path)
}

/// Returns the citations of a file, each with the name of its test.
///
/// A function ends at the first closing brace with the indentation of its first line; the code is formatted by rustfmt.
fn cited_in(file: &File) -> Vec<(u32, String)> {
    let mut found = Vec::new();
    let mut before: Vec<u32> = Vec::new();
    let mut is_test = false;
    let mut inside: Option<(&str, usize)> = None;
    for line in file.text.lines() {
        let margin = line.len() - line.trim_start().len();
        let line = line.trim();
        if let Some((test, start)) = inside {
            if line.starts_with("//") {
                found.extend(numbers(line).into_iter().map(|number| (number, test.to_owned())));
            } else if line == "}" && margin == start {
                inside = None;
            }
        } else if line.starts_with("//") {
            before.extend(numbers(line));
        } else if line.starts_with("#[") {
            is_test |= is_test_attribute(line);
        } else if let Some(name) = function_name(line).filter(|_| is_test) {
            before.extend(
                name.split('_')
                    .filter_map(|word| word.strip_prefix('r')?.parse::<u32>().ok()),
            );
            found.extend(before.drain(..).map(|number| (number, name.to_owned())));
            inside = (!line.ends_with('}')).then_some((name, margin));
            is_test = false;
        } else {
            before.clear();
            is_test = false;
        }
    }
    found
}

fn is_test_attribute(line: &str) -> bool {
    let path = line
        .trim_start_matches("#[")
        .split(['(', ']'])
        .next()
        .unwrap_or_default();
    path == "test" || path.ends_with("::test")
}

fn function_name(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    before
        .split_whitespace()
        .all(|word| matches!(word, "pub" | "async" | "const" | "unsafe"))
        .then_some(())?;
    after.split(['(', '<']).next()
}

/// Parses a citation: `// R9, R12–R14: why` is 9, 12, 13 and 14.
fn numbers(comment: &str) -> Vec<u32> {
    let text = comment.trim_start_matches(['/', '!']);
    let mut found = Vec::new();
    for part in text
        .split([',', ':', ' ', '.', ';'])
        .filter(|part| !part.is_empty())
    {
        let number = |text: &str| text.strip_prefix('R')?.parse::<u32>().ok();
        match part.split_once(['–', '-']) {
            Some((first, last)) => match (number(first), number(last)) {
                (Some(first), Some(last)) => found.extend(first..=last),
                _ => break,
            },
            None => match number(part) {
                Some(number) => found.push(number),
                None => break,
            },
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const TESTS: &str = "\
// R1, R3–R4: why this matters
#[test]
fn one() {
    // R7
    if true {
    }
    // Remember R8 does not count.
}

// R9

fn helper() {}

mod inner {
    /// Says what it does.
    #[steersman_testing::test]
    async fn r5_in_its_name(fixture: Fixture) {}
}
";

    fn numbers_of(text: &str) -> Vec<(u32, String)> {
        cited_in(&File {
            path: String::new(),
            text: text.to_owned(),
        })
    }

    #[test]
    fn finds_citations_before_in_and_by_name() {
        let expected = [
            (1, "one"),
            (3, "one"),
            (4, "one"),
            (7, "one"),
            (5, "r5_in_its_name"),
        ];
        assert_eq!(
            numbers_of(TESTS),
            expected.map(|(number, test)| (number, test.to_owned()))
        );
    }

    const CITING: (&str, &str) = (
        "crates/steersman-queue/tests/fair.rs",
        "// R1\n#[test]\nfn one() {\n}\n",
    );

    fn sentences() -> String {
        (1..=LAST).fold(String::new(), |text, number| {
            format!("{text}| R{number} | A sentence. |\n")
        })
    }

    fn tests_of_the_first(tests: &str) -> String {
        table(&Citations::new()).replacen(&format!("| R1 | {NONE} |"), &format!("| R1 | {tests} |"), 1)
    }

    #[test]
    fn accepts_the_tests_that_cite_a_requirement() {
        let tests = tests_of_the_first("`queue/tests/fair::one`");
        let tree = Tree::of(&[(DOCUMENT, &sentences()), (TEST_LIST, &tests), CITING]);
        assert_eq!(
            each_requirement_has_one_row_and_its_tests(&tree),
            Vec::<String>::new()
        );
    }

    #[test]
    fn rejects_a_list_of_tests_that_is_out_of_date_or_missing() {
        let expected = ["docs/requirements-tests.md: out of date; run `cargo xtask tidy --fix`"];
        let tests = tests_of_the_first(NONE);
        let outdated = Tree::of(&[(DOCUMENT, &sentences()), (TEST_LIST, &tests), CITING]);
        assert_eq!(each_requirement_has_one_row_and_its_tests(&outdated), expected);
        let missing = Tree::of(&[(DOCUMENT, &sentences()), CITING]);
        assert_eq!(each_requirement_has_one_row_and_its_tests(&missing), expected);
    }

    #[test]
    fn rejects_a_requirement_without_a_sentence_with_two_or_with_a_third_cell() {
        let tests = tests_of_the_first("`queue/tests/fair::one`");
        let document = sentences()
            .replace("| R2 | A sentence. |", "| R2 |  |")
            .replace("| R3 | A sentence. |", "| R3 | A sentence. |\n| R3 | Another. |")
            .replace("| R4 | A sentence. |", "| R4 | A sentence. | – |");
        let tree = Tree::of(&[(DOCUMENT, &document), (TEST_LIST, &tests), CITING]);
        assert_eq!(
            each_requirement_has_one_row_and_its_tests(&tree),
            [
                "docs/requirements.md: R2 has 0 rows `| R2 | sentence |` instead of one",
                "docs/requirements.md: R3 has 2 rows `| R3 | sentence |` instead of one",
                "docs/requirements.md: R4 has 0 rows `| R4 | sentence |` instead of one",
            ]
        );
    }

    #[test]
    fn rejects_a_number_that_does_not_exist() {
        let test = ("crates/a/tests/b.rs", "// R900\n#[test]\nfn one() {\n}\n");
        let tests = table(&Citations::new());
        let tree = Tree::of(&[(DOCUMENT, &sentences()), (TEST_LIST, &tests), test]);
        assert_eq!(
            each_requirement_has_one_row_and_its_tests(&tree),
            ["unknown requirement R900, cited by `a/tests/b::one`"]
        );
    }
}
