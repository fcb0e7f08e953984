// SPDX-License-Identifier: Apache-2.0
//! Log output of a real server, printed when a test fails.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

/// Number of lines that are printed.
const LINES: usize = 40;

/// A position in a log, to print the lines after it later.
#[derive(Debug)]
pub(crate) struct LogMark {
    path: PathBuf,
    offset: u64,
}

impl LogMark {
    /// Returns the position at the start.
    pub(crate) fn start(path: &Path) -> Self {
        Self {
            path: path.to_path_buf(),
            offset: 0,
        }
    }

    /// Returns the current end.
    pub(crate) fn now(path: &Path) -> Self {
        let offset = fs::metadata(path)
            .map(|metadata| metadata.len())
            .unwrap_or_default();
        Self {
            path: path.to_path_buf(),
            offset,
        }
    }

    /// Prints the last lines, if there is a log.
    #[expect(
        clippy::print_stderr,
        reason = "the test harness captures it and shows it for failed tests only"
    )]
    pub(crate) fn show(&self) {
        let Ok(text) = self.text() else {
            return;
        };
        let lines: Vec<&str> = text.lines().collect();
        eprintln!("--- the last lines that the real kube-apiserver logged during the test");
        for line in &lines[lines.len().saturating_sub(LINES)..] {
            eprintln!("{line}");
        }
        eprintln!("---");
    }

    fn text(&self) -> io::Result<String> {
        let mut text = Vec::new();
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.offset))?;
        file.read_to_end(&mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}
