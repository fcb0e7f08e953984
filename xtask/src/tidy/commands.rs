// SPDX-License-Identifier: Apache-2.0
//! Documents and workflows name only tasks and options of `cargo xtask` that exist.

use super::{Complaint, tree::Tree};
use crate::Task;

const COMMAND: &str = "cargo xtask";

pub(super) fn tasks_in_documents_and_workflows_exist(tree: &Tree) -> Vec<Complaint> {
    let files = tree.files.iter().filter(|file| {
        let is_document = [".md", ".yml", ".yaml", ".sh"]
            .iter()
            .any(|end| file.path.ends_with(end));
        // The changelog also names tasks that later versions removed.
        (is_document || file.path.starts_with(".ci/")) && file.path != "CHANGELOG.md"
    });
    let mut complaints = Vec::new();
    for file in files {
        for (number, line) in file.text.lines().enumerate() {
            for words in commands(line) {
                if let Err(failure) = Task::parse(&words) {
                    complaints.push(format!("{}:{}: {failure}", file.path, number + 1));
                }
            }
        }
    }
    complaints
}

/// Returns the arguments of each `cargo xtask` of a line, up to the end of the code.
fn commands(line: &str) -> Vec<Vec<&str>> {
    let after = line.split(COMMAND).skip(1);
    let arguments = after.filter(|rest| rest.is_empty() || rest.starts_with([' ', '`']));
    arguments
        .map(|rest| {
            let end = rest
                .find(['`', '#', '"', ';', '&', '|', '>'])
                .unwrap_or(rest.len());
            let words = rest[..end].split_whitespace();
            // A placeholder stands for a value.
            words
                .take_while(|word| !word.starts_with(['[', '…']) && !is_placeholder(word))
                .collect()
        })
        .collect()
}

fn is_placeholder(word: &str) -> bool {
    word.chars().all(|c| c.is_ascii_uppercase() || c == '…')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(path: &str, text: &str) -> Vec<Complaint> {
        tasks_in_documents_and_workflows_exist(&Tree::of(&[(path, text)]))
    }

    #[test]
    fn rejects_a_task_that_does_not_exist() {
        let text = "Run `cargo xtask test --real`, then `cargo xtask release-chek`.\n";
        let found = complaints("RELEASING.md", text);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with("RELEASING.md:1: unknown task `release-chek`"),
            "{found:?}"
        );
        let workflow = "      - run: cargo xtask release-check licences --hosted\n";
        assert_eq!(complaints(".github/workflows/a.yml", workflow).len(), 1);
    }

    #[test]
    fn accepts_comments_placeholders_and_other_words() {
        for text in [
            "cargo xtask soak --seeds 20       # two replicas\n",
            "cargo xtask COMMAND\n",
            "`cargo xtask` commands\n",
            "      - run: cargo xtask test\n",
            "cargo xtasks\n",
        ] {
            assert_eq!(complaints("a.md", text), Vec::<Complaint>::new(), "{text}");
        }
        assert_eq!(
            complaints("CHANGELOG.md", "`cargo xtask removed`\n"),
            Vec::<Complaint>::new()
        );
    }
}
