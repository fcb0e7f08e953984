// SPDX-License-Identifier: Apache-2.0
//! Documents agree with the code.

use super::{
    Complaint,
    manifests::{members, packages},
    tree::Tree,
};

const ARCHITECTURE: &str = "ARCHITECTURE.md";
const DECISIONS: &str = "docs/decisions/";

pub(super) fn every_crate_is_in_the_code_map(tree: &Tree) -> Vec<Complaint> {
    let text = tree
        .get(ARCHITECTURE)
        .map(|file| file.text.as_str())
        .unwrap_or_default();
    let map = text
        .split("\n## ")
        .find(|section| section.starts_with("Code map"))
        .unwrap_or_default();
    let missing = members(tree).into_iter().filter(|package| {
        let path = package.dir().trim_end_matches('/');
        !map.contains(&format!("`{path}`")) && !map.contains(&format!("`{}`", package.name))
    });
    missing
        .map(|package| format!("{ARCHITECTURE}: the code map does not name `{}`", package.name))
        .collect()
}

/// Checks that features named as "feature `name`" or "`name` feature" exist.
pub(super) fn features_in_documents_exist(tree: &Tree) -> Vec<Complaint> {
    let ours: Vec<String> = packages(tree)
        .into_iter()
        .flat_map(|package| package.features)
        .collect();
    let manifests: Vec<&str> = tree
        .with_extension("Cargo.toml")
        .map(|file| file.text.as_str())
        .collect();
    // Features of dependencies count if a manifest enables them.
    let exists = |name: &str| {
        ours.iter().any(|ours| ours == name)
            || manifests.iter().any(|text| text.contains(&format!("\"{name}\"")))
    };
    let mut complaints = Vec::new();
    for file in tree
        .files
        .iter()
        .filter(|file| file.path.ends_with(".md") || file.path.ends_with("/lib.rs"))
        // The changelog also names features that later versions removed.
        .filter(|file| file.path != "CHANGELOG.md")
    {
        for (number, line) in file.text.lines().enumerate() {
            for name in named_features(line).filter(|name| !exists(name)) {
                complaints.push(format!("{}:{}: unknown feature `{name}`", file.path, number + 1));
            }
        }
    }
    complaints
}

/// Checks that each decision has a unique number.
pub(super) fn decisions_have_numbers_of_their_own(tree: &Tree) -> Vec<Complaint> {
    let mut seen: Vec<(&str, &str)> = Vec::new();
    let mut complaints = Vec::new();
    for file in &tree.files {
        let name = file.path.strip_prefix(DECISIONS);
        let Some((number, _)) = name.and_then(|name| name.split_once('-')) else {
            continue;
        };
        if let Some((_, other)) = seen.iter().find(|(taken, _)| *taken == number) {
            complaints.push(format!(
                "{}: {number} is already the number of {other}",
                file.path
            ));
        }
        if !file.text.starts_with(&format!("# {number} ")) {
            complaints.push(format!("{}: its title does not begin with {number}", file.path));
        }
        seen.push((number, &file.path));
    }
    complaints
}

fn named_features(line: &str) -> impl Iterator<Item = &str> {
    // Every second piece between backticks is code; the text around it shows whether it is a feature.
    let pieces: Vec<&str> = line.split('`').collect();
    let code = (1..pieces.len().saturating_sub(1)).step_by(2);
    code.filter(move |at| {
        pieces[at - 1].to_lowercase().ends_with("feature ") || pieces[at + 1].starts_with(" feature")
    })
    .map(|at| line.split('`').nth(at).unwrap_or_default())
    .collect::<Vec<_>>()
    .into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: (&str, &str) = (
        "crates/a/Cargo.toml",
        "[package]\nname = \"a\"\n[features]\nfast = []\n[dependencies]\nb = { features = [\"c\"] }\n",
    );

    #[test]
    fn rejects_a_crate_outside_the_code_map() {
        let absent = Tree::of(&[MANIFEST, (ARCHITECTURE, "# A\n\n`a`\n\n## Code map\n\nnothing\n")]);
        assert_eq!(every_crate_is_in_the_code_map(&absent).len(), 1);
        let named = Tree::of(&[MANIFEST, (ARCHITECTURE, "# A\n\n## Code map\n\n`crates/a`\n")]);
        assert_eq!(every_crate_is_in_the_code_map(&named).len(), 0);
    }

    #[test]
    fn rejects_a_duplicate_number_of_a_decision() {
        let tree = Tree::of(&[
            ("docs/decisions/0001-a.md", "# 0001 A\n"),
            ("docs/decisions/0001-b.md", "# 0001 B\n"),
            ("docs/decisions/0002-c.md", "# 0001 C\n"),
        ]);
        let complaints = decisions_have_numbers_of_their_own(&tree);
        assert_eq!(complaints.len(), 2, "{complaints:?}");
        assert!(
            complaints[0].starts_with("docs/decisions/0001-b.md: "),
            "{complaints:?}"
        );
        assert!(
            complaints[1].starts_with("docs/decisions/0002-c.md: "),
            "{complaints:?}"
        );
    }

    #[test]
    fn rejects_an_unknown_feature() {
        let text = "The feature `fast`, the `c` feature, and feature `slow`; code `x` is none.\n";
        let complaints = features_in_documents_exist(&Tree::of(&[MANIFEST, ("README.md", text)]));
        assert_eq!(complaints, ["README.md:1: unknown feature `slow`"]);
    }
}
