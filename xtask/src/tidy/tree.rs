// SPDX-License-Identifier: Apache-2.0
//! The text files of the repository, or those of a test.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::Failure;

/// Directories and files to skip. In a worktree, `.git` is a file.
const SKIPPED: [&str; 3] = [".git", "target", "node_modules"];

#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) root: PathBuf,
    pub(super) files: Vec<File>,
}

#[derive(Debug)]
pub(super) struct File {
    /// Path relative to the root of the repository, with `/` as separator.
    pub(super) path: String,
    pub(super) text: String,
}

impl Tree {
    pub(super) fn read(root: &Path) -> Result<Self, Failure> {
        let mut tree = Self {
            root: root.to_path_buf(),
            files: Vec::new(),
        };
        tree.add(root)
            .map_err(|error| format!("cannot read {}: {error}", root.display()))?;
        tree.files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(tree)
    }

    fn add(&mut self, dir: &Path) -> io::Result<()> {
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let (path, kind) = (entry.path(), entry.file_type()?);
            if SKIPPED.iter().any(|name| entry.file_name() == *name) {
                continue;
            }
            if kind.is_dir() {
                self.add(&path)?;
            } else if kind.is_file()
                // Binary files are not checked.
                && let Ok(text) = fs::read_to_string(&path)
            {
                let relative = path.strip_prefix(&self.root).unwrap_or(&path);
                self.files.push(File {
                    path: relative.to_string_lossy().replace('\\', "/"),
                    text,
                });
            }
        }
        Ok(())
    }

    pub(super) fn get(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    pub(super) fn with_extension<'a>(&'a self, extension: &'a str) -> impl Iterator<Item = &'a File> {
        self.files
            .iter()
            .filter(move |file| file.path.ends_with(extension))
    }

    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Self {
        let file = |(path, text): &(&str, &str)| File {
            path: (*path).to_owned(),
            text: (*text).to_owned(),
        };
        Self {
            root: PathBuf::from("/nowhere"),
            files: files.iter().map(file).collect(),
        }
    }
}
