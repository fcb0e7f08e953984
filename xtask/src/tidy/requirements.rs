// SPDX-License-Identifier: Apache-2.0
//! `docs/requirements.md`: each requirement with the tests that cite it.
//!
//! A test cites a requirement in a comment before it or in it that begins with the number (`// R42`, `// R9, R12–R14`),
//! or in its name (`r42_…`).

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
const LAST: u32 = 177;
/// What the column says where no test cites a requirement.
const NONE: &str = "–";

type Citations = BTreeMap<u32, BTreeSet<String>>;

pub(super) fn the_column_of_tests_is_true(tree: &Tree) -> Vec<Complaint> {
    let Some(document) = tree.get(DOCUMENT) else {
        return vec![format!("{DOCUMENT}: it is missing")];
    };
    let citations = citations(tree);
    let mut complaints: Vec<Complaint> = citations
        .iter()
        .filter(|(number, _)| !(1..=LAST).contains(*number))
        .map(|(number, tests)| format!("there is no R{number}, which is cited by {}", join(tests)))
        .collect();
    let rows: Vec<Row<'_>> = document.text.lines().filter_map(Row::parse).collect();
    for number in 1..=LAST {
        match rows
            .iter()
            .filter(|row| row.number == number)
            .collect::<Vec<_>>()
            .as_slice()
        {
            [row] if row.tests == column(&citations, number) => {}
            [_] => complaints.push(format!(
                "{DOCUMENT}: the tests of R{number} are not those that cite it; run `cargo xtask tidy --fix`"
            )),
            rows => complaints.push(format!(
                "{DOCUMENT}: R{number} has {} rows instead of one",
                rows.len()
            )),
        }
    }
    complaints
}

/// Writes the column anew.
pub(super) fn fix(tree: &Tree) -> Result<(), Failure> {
    let Some(document) = tree.get(DOCUMENT) else {
        return Err(format!("{DOCUMENT} is missing"));
    };
    let citations = citations(tree);
    let mut text = String::new();
    for line in document.text.lines() {
        match Row::parse(line) {
            Some(row) => {
                let tests = column(&citations, row.number);
                text.push_str(&format!("| R{} | {} | {tests} |", row.number, row.sentence));
            }
            None => text.push_str(line),
        }
        text.push('\n');
    }
    let path = tree.root.join(DOCUMENT);
    fs::write(&path, text).map_err(|error| format!("cannot write {DOCUMENT}: {error}"))?;
    Ok(())
}

/// `| R1 | sentence | tests |`
struct Row<'a> {
    number: u32,
    sentence: &'a str,
    tests: &'a str,
}

impl<'a> Row<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let cells: Vec<&str> = line
            .strip_prefix('|')?
            .trim_end()
            .strip_suffix('|')?
            .split('|')
            .map(str::trim)
            .collect();
        let [number, sentence, tests] = cells.as_slice() else {
            return None;
        };
        Some(Self {
            number: number.strip_prefix('R')?.parse().ok()?,
            sentence,
            tests,
        })
    }
}

fn column(citations: &Citations, number: u32) -> String {
    citations.get(&number).map_or_else(|| NONE.to_owned(), join)
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
        // Its tests have examples of citations.
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

/// `crates/steersman-queue/tests/fairness.rs` is `queue/tests/fairness` to a reader.
fn short(path: &str) -> &str {
    let path = path.trim_end_matches(".rs");
    path.strip_prefix("crates/steersman-")
        .or_else(|| path.strip_prefix("crates/"))
        .unwrap_or(path)
}

/// The citations of a file, each with the name of its test.
///
/// Formatted code tells where a function ends: by a brace as far from the margin as its first line.
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

/// `// R9, R12–R14: why` is 9, 12, 13 and 14.
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
    fn citations_before_in_and_by_name_are_found() {
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

    #[test]
    fn a_column_that_is_not_true_is_found() {
        let rows = |tests: &str| {
            (2..=LAST).fold(format!("| R1 | Says so. | {tests} |\n"), |text, number| {
                format!("{text}| R{number} | Says so. | – |\n")
            })
        };
        let test = (
            "crates/steersman-queue/tests/fair.rs",
            "// R1\n#[test]\nfn one() {\n}\n",
        );
        let wrong = Tree::of(&[(DOCUMENT, &rows("–")), test]);
        assert_eq!(the_column_of_tests_is_true(&wrong).len(), 1);
        let right = Tree::of(&[(DOCUMENT, &rows("`queue/tests/fair::one`")), test]);
        assert_eq!(the_column_of_tests_is_true(&right), Vec::<String>::new());
    }

    #[test]
    fn a_number_that_does_not_exist_is_found() {
        let test = ("crates/a/tests/b.rs", "// R900\n#[test]\nfn one() {\n}\n");
        let rows = (1..=LAST).fold(String::new(), |text, number| {
            format!("{text}| R{number} | Says so. | – |\n")
        });
        let complaints = the_column_of_tests_is_true(&Tree::of(&[(DOCUMENT, &rows), test]));
        assert_eq!(
            complaints,
            ["there is no R900, which is cited by `a/tests/b::one`"]
        );
    }
}
