// SPDX-License-Identifier: Apache-2.0
//! Runs a test on a server. `#[steersman_testing::test]` calls it.

use std::{
    env,
    fmt::{self, Debug},
    fs,
    future::Future,
    io::Write,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::{Path, PathBuf},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use futures::FutureExt;
use serde::{Deserialize, Serialize};
use steersman_assets::{FindError, describe};
use tokio::{runtime, sync::OnceCell, time};

use crate::{EmbeddedServer, Endpoint, Fixture, Identity, RealServer, log::LogMark, skip::skip_real};

/// Environment variable with the path of the file that describes the server shared by all test binaries; `cargo xtask
/// test` sets it.
pub const SHARED_SERVER_VARIABLE: &str = "STEERSMAN_REAL_SERVER";

/// Timeout of a test. Default: 300 s; `STEERSMAN_TEST_LIMIT_SECONDS` overrides it for larger tests.
pub const TEST_LIMIT: Duration = Duration::from_secs(300);

/// Time after the timeout after which a test counts as blocking its threads.
const WATCHDOG_GRACE: Duration = Duration::from_secs(60);

fn limit() -> Duration {
    let asked = std::env::var("STEERSMAN_TEST_LIMIT_SECONDS").ok();
    let asked = asked.and_then(|asked| asked.parse().ok());
    asked.map_or(TEST_LIMIT, Duration::from_secs)
}

/// API servers that a test can run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServerKind {
    /// The embedded server in this process.
    Embedded,
    /// `kube-apiserver` with `etcd`.
    Real,
}

impl fmt::Display for ServerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Embedded => "the embedded API server",
            Self::Real => "the real kube-apiserver",
        })
    }
}

/// Description of a server that one process runs for others.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SharedServer {
    endpoint: Endpoint,
    admin: Identity,
    log: PathBuf,
}

impl SharedServer {
    /// Describes `server` for other processes.
    #[must_use]
    pub fn of(server: &RealServer) -> Self {
        Self {
            endpoint: server.endpoint().clone(),
            admin: server.admin().clone(),
            log: server.log_path(),
        }
    }

    fn read(path: &Path) -> Result<Self, String> {
        let hint = format!(
            "run `cargo xtask test`, or unset {SHARED_SERVER_VARIABLE} to start a server for this binary alone"
        );
        let text = fs::read(path).map_err(|error| {
            format!(
                "cannot read the shared server of {}: {error}; {hint}",
                path.display()
            )
        })?;
        serde_json::from_slice(&text)
            .map_err(|error| format!("{} does not describe a server: {error}; {hint}", path.display()))
    }
}

/// Return type of a test function: `()`, or a `Result` whose error fails the test.
pub trait Outcome {
    /// Returns the error as text, if there is one.
    fn failure(self) -> Option<String>;
}

impl Outcome for () {
    fn failure(self) -> Option<String> {
        None
    }
}

impl<E: Debug> Outcome for Result<(), E> {
    fn failure(self) -> Option<String> {
        self.err().map(|error| format!("{error:?}"))
    }
}

/// Runs `body` on a separate runtime with a new [`Fixture`], and prints the server's log if it fails.
///
/// If the binaries of the real server are missing, a test on it is skipped, unless
/// [`REQUIRE_REAL_VARIABLE`](crate::REQUIRE_REAL_VARIABLE) is set.
///
/// If a test blocks its threads, so that even its timeout cannot end it, the whole process exits one minute later.
/// Otherwise the run would hang without naming the test.
///
/// # Panics
/// When the test fails, when no server is available, and when the test takes longer than [`TEST_LIMIT`].
pub fn run<F, Fut>(kind: ServerKind, test: &str, body: F)
where
    F: FnOnce(Fixture) -> Fut,
    Fut: Future<Output: Outcome>,
{
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime starts where threads do");
    let _watchdog = Watchdog::of(kind, test);
    let result = catch_unwind(AssertUnwindSafe(|| runtime.block_on(run_on(kind, test, body))));
    if let Err(panic) = result {
        // Dropping it would wait for blocking code of the test, without a limit.
        runtime.shutdown_background();
        resume_unwind(panic);
    }
}

async fn run_on<F, Fut>(kind: ServerKind, test: &str, body: F)
where
    F: FnOnce(Fixture) -> Fut,
    Fut: Future<Output: Outcome>,
{
    let (fixture, log) = match kind {
        ServerKind::Embedded => {
            let server = EmbeddedServer::start(false).await;
            let server = server.unwrap_or_else(|error| panic!("no server for {test}: {}", describe(&error)));
            // The embedded server has no log.
            (Fixture::embedded(server).await, None)
        }
        ServerKind::Real => {
            let server = shared_server().await;
            let server = server.unwrap_or_else(|error| panic!("no server for {test}: {error}"));
            let Some(server) = server else {
                return;
            };
            let log = LogMark::now(&server.log);
            (
                Fixture::real(server.endpoint.clone(), server.admin.clone()).await,
                Some(log),
            )
        }
    };
    let clean_up = fixture.cleaner();
    let limit = limit();
    let result = AssertUnwindSafe(time::timeout(limit, body(fixture)))
        .catch_unwind()
        .await;
    let failure = match result {
        Ok(Ok(outcome)) => outcome.failure(),
        Ok(Err(_)) => Some(format!("it timed out after {limit:?}")),
        Err(panic) => {
            show(log.as_ref());
            resume_unwind(panic);
        }
    };
    if let Some(failure) = failure {
        show(log.as_ref());
        panic!("{test} on {kind}: {failure}");
    }
    clean_up.await;
}

/// Ends the process if the test does not end. Dropping this cancels it.
struct Watchdog {
    _test_runs: mpsc::Sender<()>,
}

impl Watchdog {
    fn of(kind: ServerKind, test: &str) -> Self {
        let (_test_runs, end) = mpsc::channel::<()>();
        let (test, limit) = (test.to_owned(), limit() + WATCHDOG_GRACE);
        thread::spawn(move || {
            if end.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                // Not with a macro: the output of a test that does not end is never shown.
                let line = format!("{test} on {kind} blocks its threads: still running after {limit:?}\n");
                _ = std::io::stderr().write_all(line.as_bytes());
                std::process::abort();
            }
        });
        Self { _test_runs }
    }
}

fn show(log: Option<&LogMark>) {
    if let Some(log) = log {
        log.show();
    }
}

/// Finds the server that all test binaries share, or starts one for this binary. Returns `None` if its binaries are
/// missing.
async fn shared_server() -> Result<Option<&'static SharedServer>, String> {
    // Never dropped: the watchdog stops the server when the process ends.
    static OWN: OnceCell<Option<(SharedServer, Option<RealServer>)>> = OnceCell::const_new();
    let start = || async {
        if let Some(path) = env::var_os(SHARED_SERVER_VARIABLE) {
            return SharedServer::read(Path::new(&path)).map(|shared| Some((shared, None)));
        }
        let assets = match steersman_assets::find() {
            Ok(assets) => assets,
            // If the variable is set, the real server is required.
            Err(error @ FindError::WrongVariable { .. }) => return Err(describe(&error)),
            Err(error) => return skip_real(&describe(&error)).map(|()| None),
        };
        let server = RealServer::builder().assets(assets).start().await;
        let server = server.map_err(|error| describe(&error))?;
        Ok(Some((SharedServer::of(&server), Some(server))))
    };
    let server = OWN.get_or_try_init(start).await?;
    Ok(server.as_ref().map(|(shared, _)| shared))
}
