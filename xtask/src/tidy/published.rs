// SPDX-License-Identifier: Apache-2.0
//! Crates that are published tell crates.io and their users what they are.

use toml::{Table, Value};

use super::{Complaint, tree::Tree};

/// Categories of crates.io that crates use. crates.io rejects a name that it does not know: look it up at
/// <https://crates.io/category_slugs> before you add it.
const CATEGORIES: [&str; 12] = [
    "api-bindings",
    "asynchronous",
    "caching",
    "command-line-utilities",
    "concurrency",
    "config",
    "data-structures",
    "development-tools",
    "development-tools::procedural-macro-helpers",
    "development-tools::testing",
    "simulation",
    "web-programming::http-server",
];

/// Limits of crates.io.
const MOST_KEYWORDS: usize = 5;
const LONGEST_KEYWORD: usize = 20;

/// Checks description, README, keywords and categories of each crate that is published.
pub(super) fn published_crates_describe_themselves(tree: &Tree) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for file in tree.with_extension("/Cargo.toml") {
        let Ok(manifest) = file.text.parse::<Table>() else {
            continue;
        };
        let Some(package) = manifest.get("package").and_then(Value::as_table) else {
            continue;
        };
        if package.get("publish").and_then(Value::as_bool) == Some(false) {
            continue;
        }
        let dir = file.path.trim_end_matches("Cargo.toml");
        let problems = missing_keys(package)
            .into_iter()
            .chain(keywords(package))
            .chain(categories(package))
            .chain(readme(tree, dir, package));
        complaints.extend(problems.map(|problem| format!("{}: {problem}", file.path)));
    }
    complaints
}

fn missing_keys(package: &Table) -> Vec<Complaint> {
    let keys = [
        "description",
        "license",
        "repository",
        "rust-version",
        "readme",
        "keywords",
        "categories",
    ];
    keys.into_iter()
        .filter(|key| !package.contains_key(*key))
        .map(|key| format!("add `{key}`, or `publish = false`"))
        .collect()
}

fn keywords(package: &Table) -> Vec<Complaint> {
    let keywords = strings(package, "keywords");
    let mut complaints = Vec::new();
    if keywords.len() > MOST_KEYWORDS {
        complaints.push(format!(
            "{} keywords; crates.io accepts {MOST_KEYWORDS}",
            keywords.len()
        ));
    }
    let is_valid = |word: &&str| {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '+');
        word.len() <= LONGEST_KEYWORD
            && word.starts_with(|c: char| c.is_ascii_alphanumeric())
            && word.chars().all(is_allowed)
    };
    let invalid = keywords.into_iter().filter(|word| !is_valid(word));
    complaints.extend(invalid.map(|word| format!("crates.io does not accept the keyword `{word}`")));
    complaints
}

fn categories(package: &Table) -> Vec<Complaint> {
    let unknown = strings(package, "categories")
        .into_iter()
        .filter(|name| !CATEGORIES.contains(name));
    unknown
        .map(|name| format!("the category `{name}` is not listed in xtask/src/tidy/published.rs"))
        .collect()
}

/// Checks that the README exists, begins with the name of the crate, and leads to the documentation.
fn readme(tree: &Tree, dir: &str, package: &Table) -> Option<Complaint> {
    let name = package.get("name")?.as_str()?;
    let path = format!("{dir}{}", package.get("readme")?.as_str()?);
    let Some(file) = tree.get(&path) else {
        return Some(format!("{path} does not exist"));
    };
    if !file.text.starts_with(&format!("# {name}\n")) {
        return Some(format!("{path} does not begin with `# {name}`"));
    }
    let docs = format!("https://docs.rs/{name}");
    // The program has no library, so docs.rs has no pages of it.
    let is_program = tree.get(&format!("{dir}src/lib.rs")).is_none();
    (!is_program && !file.text.contains(&docs)).then(|| format!("{path} has no link to {docs}"))
}

fn strings<'a>(package: &'a Table, key: &str) -> Vec<&'a str> {
    let values = package.get(key).and_then(Value::as_array).into_iter().flatten();
    values.filter_map(Value::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = r#"
[package]
name = "a"
description = "A crate"
license.workspace = true
repository.workspace = true
rust-version.workspace = true
readme = "README.md"
keywords = ["kubernetes"]
categories = ["caching"]
"#;

    fn complaints(manifest: &str, readme: &str) -> Vec<Complaint> {
        let tree = Tree::of(&[
            ("crates/a/Cargo.toml", manifest),
            ("crates/a/README.md", readme),
            ("crates/a/src/lib.rs", ""),
        ]);
        published_crates_describe_themselves(&tree)
    }

    #[test]
    fn accepts_a_complete_crate_and_an_unpublished_one() {
        let readme = "# a\n\n[docs](https://docs.rs/a)\n";
        assert_eq!(complaints(MANIFEST, readme), Vec::<Complaint>::new());
        let unpublished = "[package]\nname = \"a\"\npublish = false\n";
        assert_eq!(complaints(unpublished, ""), Vec::<Complaint>::new());
    }

    #[test]
    fn rejects_missing_keys_and_values_that_crates_io_rejects() {
        let readme = "# a\n\n[docs](https://docs.rs/a)\n";
        let rejected = |from: &str, to: &str| complaints(&MANIFEST.replace(from, to), readme);
        assert_eq!(
            rejected("description = \"A crate\"\n", ""),
            ["crates/a/Cargo.toml: add `description`, or `publish = false`"]
        );
        assert_eq!(rejected("\"kubernetes\"", "\"with a space\"").len(), 1);
        assert_eq!(
            rejected("\"kubernetes\"", "\"a\", \"b\", \"c\", \"d\", \"e\", \"f\"").len(),
            1
        );
        assert_eq!(rejected("\"caching\"", "\"cashing\"").len(), 1);
        assert_eq!(rejected("README.md", "READ.md").len(), 1);
    }

    #[test]
    fn rejects_a_readme_of_another_crate_or_without_a_link() {
        assert_eq!(
            complaints(MANIFEST, "# b\n\n[docs](https://docs.rs/a)\n").len(),
            1
        );
        assert_eq!(complaints(MANIFEST, "# a\n").len(), 1);
    }
}
