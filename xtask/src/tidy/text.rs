// SPDX-License-Identifier: Apache-2.0
//! Text that no file is allowed to contain.

use std::{env, path::Path};

use super::{Complaint, tree::Tree};

/// Maximum number of lines of a Rust file.
const LONGEST: usize = 800;

pub(super) fn no_path_of_a_machine(tree: &Tree) -> Vec<Complaint> {
    // Joined here, so that this file does not violate the rule.
    let mut forbidden: Vec<String> = ["home", "root", "Users", "work", "mnt"]
        .iter()
        .map(|dir| format!("/{dir}/"))
        .collect();
    // A home directory of root or of a container is not specific to a machine.
    let is_own = |home: &String| home.len() > 1 && Path::new(home) != env::temp_dir();
    forbidden.extend(env::var("HOME").ok().filter(is_own));
    forbidden.push(tree.root.to_string_lossy().into_owned());
    find(tree, |line| {
        let path = forbidden.iter().find(|path| is_path(line, path))?;
        Some(format!("`{path}` is a path of one machine"))
    })
}

/// Reports whether `line` contains `path` as the beginning of a path, not within a longer path or a URL.
fn is_path(line: &str, path: &str) -> bool {
    let is_of_name = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_');
    line.match_indices(path).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + path.len()..]);
        !before.ends_with(|c: char| is_of_name(c) || matches!(c, '}' | '/'))
            && (path.ends_with('/') || !after.starts_with(is_of_name))
    })
}

pub(super) fn no_unfinished_mark_without_a_link(tree: &Tree) -> Vec<Complaint> {
    let marks = [
        ["TO", "DO"].concat(),
        ["FIX", "ME"].concat(),
        ["XX", "X"].concat(),
    ];
    find(tree, |line| {
        let mark = marks.iter().find(|mark| {
            line.match_indices(mark.as_str()).any(|(at, _)| {
                let is_word = |c: char| c.is_alphanumeric() || c == '_';
                !line[..at].ends_with(is_word) && !line[at + mark.len()..].starts_with(is_word)
            })
        })?;
        (!line.contains("https://")).then(|| format!("add a link to the issue of this {mark}"))
    })
}

/// Phrases that do not name their subject. `CONTRIBUTING.md` says what to write instead.
const STOCK_PHRASES: [&str; 5] = ["somebody", "nobody", "whoever", "those who", "may not"];

/// Words that do not begin a sentence of rustdoc.
const STOCK_BEGINNINGS: [&str; 4] = ["What ", "Who ", "Whoever ", "Those "];

/// Rejects stock phrases in rustdoc, errors and log lines of the crates.
pub(super) fn plain_words(tree: &Tree) -> Vec<Complaint> {
    let sources = tree.with_extension(".rs").filter(|file| {
        let is_test = file.path.contains("/tests/") || file.path.ends_with("tests.rs");
        file.path.starts_with("crates/") && file.path.contains("/src/") && !is_test
    });
    let lines = sources.flat_map(|file| {
        let lines = file.text.lines().enumerate();
        lines.map(move |(number, line)| (&file.path, number + 1, line))
    });
    lines
        .filter_map(|(path, number, line)| {
            let phrase = stock_phrase(line)?;
            Some(format!("{path}:{number}: name the subject instead of `{phrase}`"))
        })
        .collect()
}

fn stock_phrase(line: &str) -> Option<&'static str> {
    let line = line.trim_start();
    let doc = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
    let is_message = ["#[error(", "info!(", "warn!(", "error!(", "debug!("]
        .iter()
        .any(|start| line.contains(start));
    if doc.is_none() && !is_message {
        return None;
    }
    let beginning = |text: &str| {
        STOCK_BEGINNINGS
            .into_iter()
            .find(|word| text.trim_start().starts_with(word))
    };
    let lower = line.to_lowercase();
    let is_word = |phrase: &&str| {
        lower.match_indices(*phrase).any(|(at, _)| {
            let is_letter = |c: char| c.is_alphanumeric() || c == '_';
            !lower[..at].ends_with(is_letter) && !lower[at + phrase.len()..].starts_with(is_letter)
        })
    };
    let phrase = STOCK_PHRASES.into_iter().find(is_word);
    phrase.or_else(|| doc.and_then(beginning))
}

pub(super) fn no_file_is_too_long(tree: &Tree) -> Vec<Complaint> {
    let long = tree
        .with_extension(".rs")
        .map(|file| (file, file.text.lines().count()));
    long.filter(|(_, lines)| *lines > LONGEST)
        .map(|(file, lines)| format!("{}: {lines} lines; split it before {LONGEST}", file.path))
        .collect()
}

/// Returns complaints about single lines. Skips generated files, such as lock files.
fn find(tree: &Tree, complaint: impl Fn(&str) -> Option<String>) -> Vec<Complaint> {
    let written = tree
        .files
        .iter()
        .filter(|file| !file.path.ends_with(".lock") && !file.path.ends_with("go.sum"));
    written
        .flat_map(|file| {
            file.text
                .lines()
                .enumerate()
                .map(move |(number, line)| (file, number, line))
        })
        .filter_map(|(file, number, line)| {
            complaint(line).map(|what| format!("{}:{}: {what}", file.path, number + 1))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_stock_phrases_in_docs_and_messages() {
        let found = |line: &str| {
            let tree = Tree::of(&[("crates/a/src/lib.rs", line)]);
            plain_words(&tree).len()
        };
        assert_eq!(found("/// An informer that nobody holds."), 1);
        assert_eq!(found("//! What a cluster has."), 1);
        assert_eq!(found("    tracing::warn!(name, \"it may not start\");"), 1);
        assert_eq!(found("    #[error(\"somebody else has it\")]"), 1);
        assert_eq!(found("/// Whatever the user is, such as `nobody_else`."), 0);
        assert_eq!(found("    let user = \"nobody\";"), 0);
        let in_test = Tree::of(&[("crates/a/tests/it.rs", "/// An informer that nobody holds.")]);
        assert!(plain_words(&in_test).is_empty());
    }

    #[test]
    fn rejects_a_path_of_one_machine() {
        let path = ["/ho", "me/somebody/src"].concat();
        let text = format!("see {path}\nhttps://example.com{path}\n");
        assert_eq!(no_path_of_a_machine(&Tree::of(&[("a.md", &text)])).len(), 1);
    }

    #[test]
    fn accepts_a_path_that_only_starts_like_the_repository() {
        let mut tree = Tree::of(&[(
            "a.md",
            "x /nowhere/tree-fkZK/config\nx /nowhere/tree/a\n`/nowhere/tree`\n",
        )]);
        tree.root = "/nowhere/tree".into();
        let complaints = no_path_of_a_machine(&tree);
        assert_eq!(complaints.len(), 2, "{complaints:?}");
        assert!(
            complaints
                .iter()
                .all(|complaint| !complaint.starts_with("a.md:1:"))
        );
    }

    #[test]
    fn rejects_an_unfinished_mark_without_a_link() {
        let mark = ["TO", "DO"].concat();
        let text = format!("// {mark}: later\n// {mark}: https://example.com/1\nlet {mark}S = 1;\n");
        let complaints = no_unfinished_mark_without_a_link(&Tree::of(&[("a.rs", &text)]));
        assert_eq!(complaints.len(), 1);
        assert!(complaints[0].starts_with("a.rs:1: "));
    }

    #[test]
    fn rejects_a_long_file() {
        assert_eq!(
            no_file_is_too_long(&Tree::of(&[("a.rs", &"\n".repeat(LONGEST + 1))])).len(),
            1
        );
    }
}
