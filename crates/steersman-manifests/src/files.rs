// SPDX-License-Identifier: Apache-2.0
//! Generated files.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// A generated file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct File {
    /// Path below the output directory.
    pub path: PathBuf,
    /// Content.
    pub text: String,
    /// True for files that people edit. They are never overwritten.
    pub is_for_editing: bool,
}

/// A generated file cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}; name another directory with `--output`, or make it writable", path.display())]
pub struct WriteError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl File {
    pub(crate) fn generated(path: impl Into<PathBuf>, text: String) -> Self {
        Self {
            path: path.into(),
            text,
            is_for_editing: false,
        }
    }

    pub(crate) fn for_editing(path: impl Into<PathBuf>, text: String) -> Self {
        Self {
            is_for_editing: true,
            ..Self::generated(path, text)
        }
    }
}

/// Writes files below a directory, which is created if it does not exist. Returns the paths that changed. Files for editing that
/// exist stay as they are.
///
/// # Errors
/// When a directory or a file cannot be written. Each file is written as a whole or not at all.
pub fn write_files(directory: &Path, files: &[File]) -> Result<Vec<PathBuf>, WriteError> {
    let mut written = Vec::new();
    for file in files {
        let path = directory.join(&file.path);
        let is_done = match fs::read_to_string(&path) {
            Ok(text) => file.is_for_editing || text == file.text,
            Err(_) => false,
        };
        if is_done {
            continue;
        }
        let wrote = write(&path, &file.text);
        wrote.map_err(|source| WriteError {
            path: path.clone(),
            source,
        })?;
        written.push(path);
    }
    Ok(written)
}

/// Writes a file under another name and renames it, so that no reader sees a part of it.
fn write(path: &Path, text: &str) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    fs::write(&partial, text)
        .and_then(|()| fs::rename(&partial, path))
        .inspect_err(|_| {
            // The first error is the one to report.
            let _ = fs::remove_file(&partial);
        })
}
