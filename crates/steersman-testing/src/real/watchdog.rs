// SPDX-License-Identifier: Apache-2.0
//! A small process that stops a server's programs and removes its files when this process ends.
//!
//! It reads from a pipe whose other end only this process holds. The kernel closes that end however the process dies.
//! Destructors of statics do not run then, and a death signal would be tied to the thread that requested it.

use std::{
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
};

use super::{StartError, process::RUN_DIR};

/// Moving the directory first ends registration: a program that is just being started either has its id in there
/// already, or cannot write it and does not run. Removal is repeated, because a killed program can still be finishing a
/// write.
const SCRIPT: &str = r#"
trap '' HUP INT QUIT TERM
cat > /dev/null
mv "$1" "$1.ending" || exit 0
for file in "$1.ending/$2"/*; do
    case $file in *.new | */\*) continue ;; esac
    kill -KILL "$(cat "$file")" 2> /dev/null
done
for _ in 1 2 3 4 5 6 7 8 9 10; do
    rm -rf "$1.ending" 2> /dev/null && break
    sleep 0.1
done
"#;

#[derive(Debug)]
pub(super) struct Watchdog(Child);

impl Watchdog {
    /// Watches the programs that are registered in `dir`, and `dir` itself, which does not have to exist yet.
    pub(super) fn start(dir: &Path) -> Result<Self, StartError> {
        let sh = Path::new("sh");
        Command::new(sh)
            .args(["-c", SCRIPT, "steersman-watchdog"])
            .arg(dir)
            .arg(RUN_DIR)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map(Self)
            .map_err(|source| StartError::Run {
                program: sh.to_path_buf(),
                source,
            })
    }
}

impl Drop for Watchdog {
    /// A regular end uses the same way as a crash.
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
