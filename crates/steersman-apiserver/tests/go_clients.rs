// SPDX-License-Identifier: Apache-2.0
//! A program in Go (client-go's typed clients, informers and leader election, controller-runtime's manager) works on
//! both servers and says the same.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

use std::{
    path::{Path, PathBuf},
    sync::OnceLock,
};

use steersman_testing::{Fixture, ServerKind};
use tokio::process::Command;

const EXPECTED: &str = "\
created typed with map[a:1]
exists already: true
updated to map[a:2]
conflict: true
patched to map[a:2 b:3]
listed 1
deployment defaults: RollingUpdate, Always
scaled to 5
not found: true
discovered: true
definition is stored as sent: true
informer: added first
informer: added second
informer: changed second
informer: deleted second
leading
not leading any more
released: true
manager: child created with 1
manager: child updated with 2
manager ended
";

/// The program, built once; nothing where it cannot be built.
fn program() -> Option<&'static PathBuf> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/go_client"));
    let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join("go-client");
    let build = || steersman_testing::go_program(source, &output);
    PROGRAM.get_or_init(build).as_ref()
}

/// Not by the attribute: the first build takes longer than a test may.
mod operators_in_go_work {
    use super::*;

    #[test]
    fn on_embedded() {
        on(ServerKind::Embedded);
    }

    #[test]
    fn on_real() {
        on(ServerKind::Real);
    }
}

fn on(server: ServerKind) {
    if let Some(program) = program() {
        steersman_testing::run(server, "operators_in_go_work", |fixture| work(fixture, program));
    }
}

async fn work(fixture: Fixture, program: &Path) {
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = dir.path().join("kubeconfig");
    std::fs::write(&kubeconfig, fixture.endpoint().kubeconfig(fixture.admin())).unwrap();
    let output = Command::new(program)
        .env("KUBECONFIG", &kubeconfig)
        .env("NAMESPACE", fixture.namespace())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said == EXPECTED && output.status.success(),
        "{said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
