// SPDX-License-Identifier: Apache-2.0
//! Runs a real `kube-apiserver` with its `etcd` for a test.
//!
//! # Guarantees
//! 1. [`Builder::start`] returns when the server is ready, or an error in one sentence.
//! 2. Every process stops and every file is removed when the handle is dropped, and when this process dies in any way,
//!    `SIGKILL` included.
//! 3. Each server has its own ports, certificates, tokens and data; any number run side by side.
//! 4. The address stays the same over [`RealServer::stop`] and [`RealServer::restart`], and no other program can take
//!    the port in between.
//!
//! # Not promised
//! Data might not survive a crash of the machine: etcd writes without fsync.

mod process;
mod start_error;
mod watchdog;

use std::{
    env,
    fs::{self, DirBuilder},
    net::SocketAddr,
    os::unix::fs::DirBuilderExt,
    path::{self, Path, PathBuf},
    thread,
    time::Duration,
};

use rcgen::KeyPair;
use rustix::process::Signal;
use steersman_assets::Assets;
use tokio::{net::TcpSocket, time};

pub use start_error::StartError;

use crate::{Endpoint, Identity, certificates::Authority, log::LogMark, token};
use process::Process;
use watchdog::Watchdog;

/// Timeout until a server is ready. It takes about four seconds on two idle cores.
const READY_LIMIT: Duration = Duration::from_secs(90);
const READY_POLL: Duration = Duration::from_millis(50);

/// Options of a server; from [`RealServer::builder`].
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Builder {
    assets: Option<Assets>,
    port: Option<u16>,
    controller_manager: bool,
    users: Vec<Identity>,
    flags: Vec<String>,
}

/// A running server. Dropping it stops all of its processes and removes its files.
#[derive(Debug)]
pub struct RealServer {
    endpoint: Endpoint,
    admin: Identity,
    dir: PathBuf,
    assets: Assets,
    flags: Vec<String>,
    // Fields are dropped in this order: first the watchdog ends the processes, then their handles collect them.
    _watchdog: Watchdog,
    etcd: Process,
    apiserver: Option<Process>,
    controller_manager: Option<Process>,
    // Bound but not listening: reserves the port for this server while the API server is stopped.
    _port: TcpSocket,
}

impl Builder {
    /// Sets the binaries instead of searching for them.
    pub fn assets(mut self, assets: Assets) -> Self {
        self.assets = Some(assets);
        self
    }

    /// Sets the port on the loopback address. Default: a free port.
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Also starts `kube-controller-manager`, with garbage collection, namespace deletion and quota usage.
    pub fn controller_manager(mut self) -> Self {
        self.controller_manager = true;
        self
    }

    /// Adds a user with a token. The user has no permissions until roles grant some.
    pub fn user(mut self, user: Identity) -> Self {
        self.users.push(user);
        self
    }

    /// Adds a flag to the command line of `kube-apiserver`, such as `--feature-gates=ShardedListAndWatch=true`.
    pub fn flag(mut self, flag: impl Into<String>) -> Self {
        self.flags.push(flag.into());
        self
    }

    /// Starts the server and waits until it is ready.
    ///
    /// # Errors
    /// When a binary is missing, the port is taken, a file cannot be written, a process ends, or the server is not
    /// ready in time.
    ///
    /// # Cancel safety
    /// If the future is dropped, everything started so far is stopped.
    pub async fn start(self) -> Result<RealServer, StartError> {
        let assets = match self.assets {
            Some(assets) => assets,
            None => steersman_assets::find().map_err(StartError::Assets)?,
        };
        let (socket, address) = reserve(self.port)?;
        let dir = unused_path()?;
        // Before the directory is created, so that the directory is watched at all times.
        let watchdog = Watchdog::start(&dir)?;
        make_private(&dir)?;
        let ca_pem = write_certificates(&dir)?;
        let admin = Identity::new("admin", token::random() + &token::random());
        write(&dir, "tokens.csv", &tokens(&admin, &self.users))?;
        let endpoint = Endpoint::new(format!("https://{address}"), ca_pem);

        let etcd = Process::start(&dir, "etcd", &assets.etcd(), &etcd_flags())?;
        let mut server = RealServer {
            endpoint,
            admin,
            dir,
            assets,
            flags: apiserver_flags(address, self.flags),
            _watchdog: watchdog,
            etcd,
            apiserver: None,
            controller_manager: None,
            _port: socket,
        };
        server.restart().await?;
        if self.controller_manager {
            server.start_controller_manager()?;
        }
        Ok(server)
    }
}

impl RealServer {
    /// Returns a builder with the default settings: a free port, no controller manager.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Returns the endpoint of the server.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Returns the administrator, who has all permissions.
    #[must_use]
    pub fn admin(&self) -> &Identity {
        &self.admin
    }

    /// Returns the private directory with certificates, data and logs. It is removed with the server.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the path of the API server's log.
    #[must_use]
    pub fn log_path(&self) -> PathBuf {
        process::log_path(&self.dir, "kube-apiserver")
    }

    /// Returns the process ids of the running programs, etcd first.
    #[must_use]
    pub fn process_ids(&self) -> Vec<u32> {
        let rest = [&self.apiserver, &self.controller_manager];
        std::iter::once(&self.etcd)
            .chain(rest.into_iter().flatten())
            .map(Process::id)
            .collect()
    }

    /// Stops the API server at once, like a crash. Its data are kept, and [`Self::restart`] starts it again.
    pub fn stop(&mut self) {
        self.apiserver = None;
    }

    /// Starts the API server again (stopping it first if it runs) and waits until it is ready.
    ///
    /// # Errors
    /// Same as [`Builder::start`].
    ///
    /// # Cancel safety
    /// If the future is dropped, the server continues to start.
    pub async fn restart(&mut self) -> Result<(), StartError> {
        self.stop();
        let binary = self.assets.kube_apiserver();
        self.apiserver = Some(Process::start(&self.dir, "kube-apiserver", &binary, &self.flags)?);
        self.ready().await
    }

    /// Suspends the API server: connections stay open and no request is answered, until [`Self::resume`].
    pub fn stall(&self) {
        self.signal(Signal::STOP);
    }

    /// Resumes a stalled API server.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        if let Some(apiserver) = &self.apiserver {
            apiserver.signal(signal);
        }
    }

    fn start_controller_manager(&mut self) -> Result<(), StartError> {
        let binary =
            self.assets
                .kube_controller_manager()
                .ok_or_else(|| StartError::NoControllerManager {
                    dir: self.assets.dir().to_path_buf(),
                })?;
        write(&self.dir, "kubeconfig", &self.endpoint.kubeconfig(&self.admin))?;
        let flags = controller_manager_flags();
        self.controller_manager = Some(Process::start(
            &self.dir,
            "kube-controller-manager",
            &binary,
            &flags,
        )?);
        Ok(())
    }

    /// Polls `/readyz` until it succeeds, while the processes run.
    async fn ready(&mut self) -> Result<(), StartError> {
        let client = self.endpoint.client(&self.admin).map_err(StartError::Client)?;
        until_ready(&client, || {
            let mut processes = std::iter::once(&mut self.etcd).chain(&mut self.apiserver);
            processes.try_for_each(Process::check)
        })
        .await
    }
}

impl Drop for RealServer {
    /// The log is removed with the directory, so a failed test prints it first.
    fn drop(&mut self) {
        if thread::panicking() {
            LogMark::start(&self.log_path()).show();
        }
    }
}

/// Polls `/readyz` until it succeeds, while `check` succeeds.
async fn until_ready(
    client: &kube::Client,
    mut check: impl FnMut() -> Result<(), StartError>,
) -> Result<(), StartError> {
    let mut last = "it did not answer".to_owned();
    let asking = async {
        loop {
            check()?;
            let request = http::Request::get("/readyz")
                .body(Vec::new())
                .expect("a fixed path makes a request");
            match client.request_text(request).await {
                Ok(_) => return Ok(()),
                Err(error) => last = error.to_string(),
            }
            time::sleep(READY_POLL).await;
        }
    };
    match time::timeout(READY_LIMIT, asking).await {
        Ok(answer) => answer,
        Err(_) => Err(StartError::NotReady {
            limit: READY_LIMIT,
            last,
        }),
    }
}

/// Binds the port without listening. `kube-apiserver` shares it with `--permit-port-sharing`; no other program can take
/// it.
fn reserve(port: Option<u16>) -> Result<(TcpSocket, SocketAddr), StartError> {
    let wanted = SocketAddr::from(([127, 0, 0, 1], port.unwrap_or(0)));
    let bind = || -> std::io::Result<(TcpSocket, SocketAddr)> {
        // If another program listens on the port and allows sharing, it would be shared: bind without sharing first.
        drop(std::net::TcpListener::bind(wanted)?);
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseport(true)?;
        socket.bind(wanted)?;
        let address = socket.local_addr()?;
        Ok((socket, address))
    };
    bind().map_err(|source| match source.kind() {
        std::io::ErrorKind::AddrInUse => StartError::PortTaken { address: wanted },
        _ => StartError::Bind {
            address: wanted,
            source,
        },
    })
}

/// Returns the token file of the server: token, name, uid, groups.
fn tokens(admin: &Identity, users: &[Identity]) -> String {
    let lines = users
        .iter()
        .map(|user| format!("{},{},{1}\n", user.token(), user.name()));
    let admin = format!("{},{},{1},system:masters\n", admin.token(), admin.name());
    std::iter::once(admin).chain(lines).collect()
}

/// Returns an unused path: its name contains 64 random bits.
fn unused_path() -> Result<PathBuf, StartError> {
    let parent = env::temp_dir();
    // Each program runs in another working directory.
    let parent = path::absolute(&parent).map_err(|source| StartError::write(parent, source))?;
    Ok(parent.join(format!("steersman-{}", token::random())))
}

/// Creates the private directory, and in it the directory where programs register.
fn make_private(dir: &Path) -> Result<(), StartError> {
    for dir in [dir, &dir.join(process::RUN_DIR)] {
        let made = DirBuilder::new().mode(0o700).create(dir);
        made.map_err(|source| StartError::write(dir.to_path_buf(), source))?;
    }
    Ok(())
}

/// Writes the serving certificate and the key for service account tokens; returns the certificate authority.
fn write_certificates(dir: &Path) -> Result<String, StartError> {
    let authority = Authority::new("steersman test authority").map_err(StartError::Certificates)?;
    let serving = authority.serving().map_err(StartError::Certificates)?;
    let service_accounts = KeyPair::generate().map_err(StartError::Certificates)?;
    write(dir, "server.crt", &serving.certificate.pem())?;
    write(dir, "server.key", &serving.key.serialize_pem())?;
    write(dir, "service-account.key", &service_accounts.serialize_pem())?;
    write(dir, "service-account.pub", &service_accounts.public_key_pem())?;
    Ok(authority.pem())
}

fn write(dir: &Path, name: &str, text: &str) -> Result<(), StartError> {
    let path = dir.join(name);
    fs::write(&path, text).map_err(|source| StartError::write(path, source))
}

/// All paths are relative: each process runs in the private directory. Sockets of etcd are files in it, whose names
/// must look like a host and a port.
fn etcd_flags() -> Vec<String> {
    [
        "--data-dir=etcd-data",
        "--unsafe-no-fsync",
        "--log-level=warn",
        "--listen-client-urls=unix://etcd.sock:0",
        "--advertise-client-urls=unix://etcd.sock:0",
        "--listen-peer-urls=unix://peer.sock:0",
        "--initial-advertise-peer-urls=unix://peer.sock:0",
        "--initial-cluster=default=unix://peer.sock:0",
    ]
    .map(str::to_owned)
    .to_vec()
}

fn apiserver_flags(address: SocketAddr, extra: Vec<String>) -> Vec<String> {
    let mut flags = [
        "--etcd-servers=unix://etcd.sock:0",
        "--bind-address=127.0.0.1",
        "--permit-port-sharing",
        // The loopback address must not be advertised, so nothing is.
        "--endpoint-reconciler-type=none",
        "--tls-cert-file=server.crt",
        "--tls-private-key-file=server.key",
        "--token-auth-file=tokens.csv",
        "--authorization-mode=RBAC",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--service-account-key-file=service-account.pub",
        "--service-account-signing-key-file=service-account.key",
        // Without a controller manager no namespace gets its default service account, and the server would reject Pods.
        "--disable-admission-plugins=ServiceAccount",
        "--allow-privileged=true",
        "--service-cluster-ip-range=10.0.0.0/24",
    ]
    .map(str::to_owned)
    .to_vec();
    flags.push(format!("--secure-port={}", address.port()));
    flags.extend(extra);
    flags
}

fn controller_manager_flags() -> Vec<String> {
    [
        "--kubeconfig=kubeconfig",
        "--authentication-kubeconfig=kubeconfig",
        "--authorization-kubeconfig=kubeconfig",
        "--service-account-private-key-file=service-account.key",
        "--use-service-account-credentials=false",
        "--leader-elect=false",
        "--secure-port=0",
        "--controllers=garbage-collector-controller,namespace-controller,resourcequota-controller,validatingadmissionpolicy-status-controller",
    ]
    .map(str::to_owned)
    .to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With paused time, the clock jumps ahead whenever all tasks wait only for time.
    #[tokio::test(start_paused = true)]
    async fn gives_up_on_a_silent_server() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://{}", silent.local_addr().unwrap());
        let authority = Authority::new("nobody").unwrap();
        let client = Endpoint::new(url, authority.pem()).client(&Identity::new("me", "secret"));
        let began = time::Instant::now();
        let error = until_ready(&client.unwrap(), || Ok(())).await.unwrap_err();
        assert!(matches!(error, StartError::NotReady { .. }), "{error}");
        assert!(began.elapsed() < READY_LIMIT * 2, "{:?}", began.elapsed());
    }
}
