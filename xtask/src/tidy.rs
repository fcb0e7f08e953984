// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask tidy`: checks of the repository. They also run as a test, so that `cargo test` enforces them.

mod commands;
mod documents;
mod features;
mod layers;
mod manifests;
mod modules;
mod published;
mod requirements;
mod text;
mod tree;

use crate::{Failure, root};
use tree::Tree;

/// Report problems, or also write generated files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Check,
    Fix,
}

/// A violation of a rule: `place: problem and remedy`.
type Complaint = String;

const RULES: [fn(&Tree) -> Vec<Complaint>; 14] = [
    modules::every_file_is_reached,
    layers::crates_depend_downwards,
    layers::layers_are_those_of_the_tree,
    layers::no_cycle_stops_publishing,
    documents::every_crate_is_in_the_code_map,
    documents::features_in_documents_exist,
    documents::decisions_have_numbers_of_their_own,
    published::published_crates_describe_themselves,
    commands::tasks_in_documents_and_workflows_exist,
    requirements::each_requirement_has_one_row_and_its_tests,
    text::no_path_of_a_machine,
    text::no_unfinished_mark_without_a_link,
    text::no_file_is_too_long,
    text::plain_words,
];

pub(crate) fn run(mode: Mode) -> Result<(), Failure> {
    let tree = Tree::read(&root())?;
    if mode == Mode::Fix {
        requirements::fix(&tree)?;
        return run(Mode::Check);
    }
    let complaints: Vec<Complaint> = RULES.iter().flat_map(|rule| rule(&tree)).collect();
    if complaints.is_empty() {
        return Ok(());
    }
    Err(format!("tidy found problems:\n  {}", complaints.join("\n  ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    // R30
    #[test]
    fn the_tree_is_tidy() {
        run(Mode::Check).unwrap_or_else(|failure| panic!("{failure}"));
    }
}
