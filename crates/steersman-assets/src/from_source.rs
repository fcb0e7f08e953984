// SPDX-License-Identifier: Apache-2.0
//! Builds the binaries from Go modules.
//!
//! `k8s.io/kubernetes` requires its staging modules as `v0.0.0`, so `go/kube/go.mod` replaces each of them with the
//! version of the same release. `tools.go` keeps `go mod tidy` from dropping the requirements. Both modules have their
//! `go.sum`, so the build uses exactly the checked-in versions.

use std::{
    fmt,
    fs::{self, File},
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{Assets, ETCD_VERSION, Environment, FindError, KUBERNETES_VERSION};

/// One of the two Go modules: its files and the packages to build from it.
struct Module {
    name: &'static str,
    files: [(&'static str, &'static str); 3],
    packages: &'static [&'static str],
    /// `go build` names a binary after its package's last element, which is `v3` for etcd.
    output: Option<&'static str>,
}

macro_rules! module_files {
    ($name:literal) => {
        [
            ("go.mod", include_str!(concat!("../go/", $name, "/go.mod"))),
            ("go.sum", include_str!(concat!("../go/", $name, "/go.sum"))),
            ("tools.go", include_str!(concat!("../go/", $name, "/tools.go"))),
        ]
    };
}

const MODULES: [Module; 2] = [
    Module {
        name: "etcd",
        files: module_files!("etcd"),
        packages: &["go.etcd.io/etcd/server/v3"],
        output: Some("etcd"),
    },
    Module {
        name: "kube",
        files: module_files!("kube"),
        packages: &[
            "k8s.io/kubernetes/cmd/kube-apiserver",
            "k8s.io/kubernetes/cmd/kube-controller-manager",
            "k8s.io/kubernetes/cmd/kubectl",
        ],
        output: None,
    },
];

/// Progress of a build, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// Another process builds the same binaries; this one waits for it.
    WaitingForOtherBuild,
    /// Modules are being downloaded: about 1 GB the first time.
    Downloading {
        /// Name of the Go module.
        module: &'static str,
        /// Number of downloads started so far.
        begun: usize,
    },
    /// Packages are being compiled.
    Compiling {
        /// Name of the Go module.
        module: &'static str,
        /// Number of packages compiled so far.
        done: usize,
        /// Total number of packages; packages in Go's cache are not counted in `done`.
        of: usize,
    },
    /// Everything is in place.
    Finished,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WaitingForOtherBuild => {
                write!(f, "waiting for another process that builds the same binaries")
            }
            Self::Downloading { module, begun } => {
                write!(f, "{module}: downloading Go modules, {begun} so far")
            }
            Self::Compiling { module, done, of } => {
                write!(f, "{module}: compiled {done} of at most {of} packages")
            }
            Self::Finished => write!(f, "kube {KUBERNETES_VERSION} and etcd {ETCD_VERSION} are built"),
        }
    }
}

/// The binaries could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The search failed.
    #[error(transparent)]
    Find(FindError),
    /// The Go toolchain is missing.
    #[error(
        "building kube-apiserver needs Go 1.26 or later, and no `go` is on the PATH: install Go, or set \
         KUBEBUILDER_ASSETS to a directory that holds kube-apiserver and etcd"
    )]
    NoGo,
    /// The disk is full.
    #[error("the disk is full: building kube-apiserver needs about 6 GB in {} and in Go's caches (`go env GOCACHE GOMODCACHE`)", dir.display())]
    DiskFull {
        /// Directory of the binaries.
        dir: PathBuf,
    },
    /// Go failed.
    #[error("`{command}` failed: {reason}")]
    Go {
        /// The command that failed.
        command: String,
        /// The last output of Go.
        reason: String,
    },
    /// A file could not be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
}

impl BuildError {
    fn write(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| match source.kind() {
            io::ErrorKind::StorageFull => Self::DiskFull {
                dir: path.to_path_buf(),
            },
            _ => Self::Write {
                path: path.to_path_buf(),
                source,
            },
        }
    }
}

/// Builds everything into `bin`, which is created only when the build is complete.
pub(crate) fn build(
    environment: &Environment,
    bin: PathBuf,
    progress: &mut dyn FnMut(Progress),
) -> Result<Assets, BuildError> {
    let dir = environment
        .version_dir()
        .ok_or(BuildError::Find(FindError::NoCacheDirectory))?;
    fs::create_dir_all(&dir).map_err(BuildError::write(&dir))?;
    let _lock = lock(&dir, progress)?;
    if Assets::missing_in(&bin).is_none() {
        return Ok(Assets { dir: bin }); // Another process built it while this one waited for the lock.
    }

    let partial = dir.join("bin.partial");
    fs::create_dir_all(&partial).map_err(BuildError::write(&partial))?;
    for module in &MODULES {
        build_module(environment.go(), module, &dir, &partial, progress)?;
    }
    fs::rename(&partial, &bin).map_err(BuildError::write(&bin))?;
    progress(Progress::Finished);
    Ok(Assets { dir: bin })
}

/// The lock is released when the process ends, however it ends.
fn lock(dir: &Path, progress: &mut dyn FnMut(Progress)) -> Result<File, BuildError> {
    let path = dir.join("lock");
    let file = File::create(&path).map_err(BuildError::write(&path))?;
    if file.try_lock().is_err() {
        progress(Progress::WaitingForOtherBuild);
        file.lock().map_err(BuildError::write(&path))?;
    }
    Ok(file)
}

fn build_module(
    go: &Path,
    module: &Module,
    dir: &Path,
    partial: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), BuildError> {
    let source = dir.join("src").join(module.name);
    fs::create_dir_all(&source).map_err(BuildError::write(&source))?;
    for (name, text) in module.files {
        let path = source.join(name);
        fs::write(&path, text).map_err(BuildError::write(&path))?;
    }

    let (mut begun, mut of) = (0, 0);
    progress(Progress::Downloading {
        module: module.name,
        begun,
    });
    let list = command(go, &source, &["list", "-deps"], module.packages);
    run(list, partial, Stream::Stdout, &mut |line| {
        if is_package(line) {
            of += 1;
        } else if line.starts_with("go: downloading ") {
            begun += 1;
            progress(Progress::Downloading {
                module: module.name,
                begun,
            });
        }
    })?;

    let output = partial.join(module.output.unwrap_or(""));
    let output = output.to_string_lossy();
    // Without the stamp the server reports version v0.0.0-master, and clients that check versions misbehave.
    let stamp = stamp();
    let compile = command(
        go,
        &source,
        &["build", "-v", "-ldflags", &stamp, "-o", &output],
        module.packages,
    );
    let mut done = 0;
    progress(Progress::Compiling {
        module: module.name,
        done,
        of,
    });
    run(compile, partial, Stream::Stderr, &mut |line| {
        if is_package(line) {
            done += 1;
            progress(Progress::Compiling {
                module: module.name,
                done,
                of,
            });
        }
    })
}

fn stamp() -> String {
    let mut parts = KUBERNETES_VERSION.split('.');
    let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let at = "k8s.io/component-base/version";
    format!(
        "-s -w -X {at}.gitVersion=v{KUBERNETES_VERSION} -X {at}.gitMajor={major} -X {at}.gitMinor={minor}"
    )
}

/// Reports whether a line is a package: `go build -v` prints the path of each compiled package; all of its other output
/// contains a space.
fn is_package(line: &str) -> bool {
    !line.is_empty() && !line.contains(' ')
}

fn command(go: &Path, source: &Path, args: &[&str], packages: &[&str]) -> Command {
    let mut command = Command::new(go);
    command
        .args(args)
        .args(packages)
        .current_dir(source)
        // The user's flags and workspaces are for the user's code.
        .env("GOFLAGS", "-trimpath -buildvcs=false")
        .env("GOWORK", "off")
        .env("CGO_ENABLED", "0")
        .stdin(Stdio::null());
    command
}

/// Output stream of a command that is read line by line.
#[derive(Clone, Copy)]
enum Stream {
    Stdout,
    Stderr,
}

fn run(
    mut command: Command,
    partial: &Path,
    stream: Stream,
    line: &mut dyn FnMut(&str),
) -> Result<(), BuildError> {
    let shown = format!(
        "go {}",
        command
            .get_args()
            .next()
            .map(|arg| arg.to_string_lossy().into_owned())
            .unwrap_or_default()
    );
    let failed = |reason: String| {
        if reason.contains("no space left on device") {
            BuildError::DiskFull {
                dir: partial.to_path_buf(),
            }
        } else {
            BuildError::Go {
                command: shown.clone(),
                reason,
            }
        }
    };
    // Both streams use one pipe: the last output of Go is the reason if it fails.
    let (reader, writer) = io::pipe().map_err(|error| failed(error.to_string()))?;
    match stream {
        Stream::Stdout => command.stdout(writer.try_clone().map_err(|error| failed(error.to_string()))?),
        Stream::Stderr => command.stdout(Stdio::null()),
    };
    command.stderr(writer);
    let mut child = command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => BuildError::NoGo,
        _ => failed(error.to_string()),
    })?;
    drop(command); // It holds the writing ends of the pipe, which must close for the reader to end.
    let mut last = String::new();
    for text in BufReader::new(reader).lines().map_while(Result::ok) {
        line(&text);
        if !text.trim().is_empty() && !is_package(&text) {
            last = text;
        }
    }
    let status = child.wait().map_err(|error| failed(error.to_string()))?;
    if status.success() {
        Ok(())
    } else if last.is_empty() {
        Err(failed(status.to_string()))
    } else {
        Err(failed(last))
    }
}
