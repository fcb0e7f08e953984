// SPDX-License-Identifier: Apache-2.0
//! Every Rust file is part of a target. A file without a `mod` declaration is never compiled.

use std::collections::HashSet;

use super::{
    Complaint,
    manifests::{Package, packages},
    tree::{File, Tree},
};

pub(super) fn every_file_is_reached(tree: &Tree) -> Vec<Complaint> {
    let packages = packages(tree);
    let mut reached = HashSet::new();
    for package in &packages {
        for root in tree
            .with_extension(".rs")
            .filter(|file| is_target(package, &file.path))
        {
            reach(tree, root, true, &mut reached);
        }
    }
    let orphans = tree
        .with_extension(".rs")
        .filter(|file| !reached.contains(file.path.as_str()));
    orphans
        .map(|file| {
            format!(
                "{}: no module reaches this file; declare it with `mod`, or delete it",
                file.path
            )
        })
        .collect()
}

/// Reports whether cargo compiles this file as the root of a target.
fn is_target(package: &Package, path: &str) -> bool {
    let Some(inside) = path.strip_prefix(package.dir()) else {
        return false;
    };
    matches!(inside, "src/lib.rs" | "src/main.rs" | "build.rs")
        || ["src/bin/", "tests/", "examples/", "benches/"].iter().any(|dir| {
            inside.strip_prefix(dir).is_some_and(|rest| {
                !rest.contains('/') || rest.ends_with("/main.rs") && rest.matches('/').count() == 1
            })
        })
}

fn reach<'a>(tree: &'a Tree, file: &'a File, is_root: bool, reached: &mut HashSet<&'a str>) {
    if !reached.insert(&file.path) {
        return;
    }
    let (dir, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
    let stem = name.trim_end_matches(".rs");
    // Modules of a root are files beside it; modules of another file are in a directory with the name of that file.
    let inner = if is_root || stem == "mod" {
        dir.to_owned()
    } else {
        format!("{dir}/{stem}")
    };
    for declared in declarations(&file.text) {
        let candidates = match declared {
            Declared::Module(name) => vec![format!("{inner}/{name}.rs"), format!("{inner}/{name}/mod.rs")],
            Declared::Path(path) => vec![format!("{dir}/{path}")],
        };
        for found in candidates.iter().filter_map(|path| tree.get(path)) {
            reach(tree, found, false, reached);
        }
    }
}

enum Declared {
    Module(String),
    Path(String),
}

/// Returns the modules that `mod name;` lines declare, with their `#[path]` if any.
fn declarations(text: &str) -> Vec<Declared> {
    let mut found = Vec::new();
    let mut path = None;
    for line in text.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("#[path = \"") {
            path = rest.split('"').next().map(str::to_owned);
        } else if let Some(name) = module_name(line) {
            found.push(
                path.take()
                    .map_or_else(|| Declared::Module(name.to_owned()), Declared::Path),
            );
        }
    }
    found
}

fn module_name(line: &str) -> Option<&str> {
    let line = line.split("//").next()?.trim().strip_suffix(';')?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let (name, before) = words.split_last()?;
    let (word, visibility) = before.split_last()?;
    (*word == "mod" && visibility.first().is_none_or(|first| first.starts_with("pub"))).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: (&str, &str) = ("crates/a/Cargo.toml", "[package]\nname = \"a\"\n");

    #[test]
    fn rejects_a_file_without_a_mod_declaration() {
        let tree = Tree::of(&[
            MANIFEST,
            (
                "crates/a/src/lib.rs",
                "mod one;\npub(crate) mod two;\n// mod four;\n",
            ),
            ("crates/a/src/one.rs", "mod three;\n"),
            ("crates/a/src/one/three.rs", ""),
            ("crates/a/src/two/mod.rs", ""),
            ("crates/a/src/four.rs", ""),
            (
                "crates/a/tests/it.rs",
                "#[path = \"shared/five.rs\"]\nmod five;\n",
            ),
            ("crates/a/tests/shared/five.rs", ""),
            ("crates/a/tests/shared/six.rs", ""),
        ]);
        let complaints = every_file_is_reached(&tree);
        assert_eq!(complaints.len(), 2, "{complaints:?}");
        assert!(complaints[0].starts_with("crates/a/src/four.rs: "));
        assert!(complaints[1].starts_with("crates/a/tests/shared/six.rs: "));
    }
}
