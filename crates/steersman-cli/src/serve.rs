// SPDX-License-Identifier: Apache-2.0
//! `steersman serve`: only the embedded API server.

mod load;

use std::{
    error::Error,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use steersman_apiserver::{Exchange, Workloads};
use steersman_runtime::Signals;

use crate::{
    args::Serve,
    caretaker::Caretaker,
    exit::{End, Outcome, OutputError},
    server::{self, Server},
    terminal::Paint,
};

/// Number of nodes for simulated workloads.
const NODES: usize = 3;

pub(crate) fn main(options: &Serve) -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(options))
}

async fn serve(options: &Serve) -> Outcome {
    let mut signals = Signals::install()?;
    let mut builder = server::builder();
    if options.workloads {
        builder = builder.workloads(Workloads::default().nodes(NODES));
    }
    for service in &options.service_address {
        let (namespace, name) = (&service.namespace, &service.name);
        builder = builder.service_address(namespace, name, service.port, service.address);
    }
    let is_open = Arc::new(AtomicBool::new(false));
    if options.watch {
        let is_open = Arc::clone(&is_open);
        builder = builder.observe(move |exchange| {
            // Requests of the loading phase are not shown.
            if is_open.load(Ordering::Acquire) {
                // If the output is closed, further lines are dropped.
                let _ = writeln!(io::stdout(), "{}", line(exchange, Paint::stdout()));
            }
        });
    }
    let server = Server::start(builder, options.port).await?;
    let place = Place::write(options.kubeconfig.as_deref(), server.kubeconfig())?;
    let loaded = tokio::select! {
        biased;
        signal = signals.stop() => return Ok(End::Interrupted(signal)),
        loaded = load::load(&server, &options.load) => loaded?,
    };
    writeln!(io::stdout(), "{}", place.path.display()).map_err(OutputError::from)?;
    is_open.store(true, Ordering::Release);
    introduce(&server, &place, loaded).map_err(OutputError::from)?;
    signals.stop().await;
    Ok(End::Done)
}

/// Prints the address and a command to try.
fn introduce(server: &Server, place: &Place, loaded: usize) -> io::Result<()> {
    let mut stderr = io::stderr();
    let paint = Paint::stderr();
    writeln!(stderr, "{} {}", paint.green("serving"), server.url())?;
    if loaded > 0 {
        writeln!(stderr, "loaded  {loaded} objects")?;
    }
    writeln!(
        stderr,
        "try     kubectl --kubeconfig {} get namespaces",
        place.path.display()
    )?;
    writeln!(stderr, "{}", paint.dim("Ctrl-C ends it, and nothing is kept"))
}

/// Path of the kubeconfig, which is removed when this is dropped.
struct Place {
    path: PathBuf,
    /// `None` if the user chose the path.
    caretaker: Option<Caretaker>,
}

impl Place {
    fn write(wanted: Option<&Path>, text: &str) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let (path, caretaker) = match wanted {
            Some(path) => (path.to_path_buf(), None),
            None => {
                let caretaker = Caretaker::start()?;
                (caretaker.dir().join("kubeconfig"), Some(caretaker))
            }
        };
        // Only a file that was written here is removed.
        server::write_kubeconfig(&path, text)?;
        Ok(Self { path, caretaker })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.caretaker.is_none() {
            // The file is useless now. If it cannot be removed, it can be overwritten later.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Formats a request as a line.
fn line(exchange: &Exchange<'_>, paint: Paint) -> String {
    let status = match exchange.status {
        Some(status) if status.is_success() => paint.green(status.as_u16()),
        Some(status) => paint.red(status.as_u16()),
        None => paint.red("---"),
    };
    let verb = if exchange.is_watch {
        "WATCH"
    } else {
        exchange.method.as_str()
    };
    let agent = exchange.user_agent.split(' ').next().unwrap_or_default();
    let took = exchange.took.as_secs_f64() * 1e3;
    format!(
        "{verb:6} {status} {took:7.1} ms  {}  {}",
        exchange.uri,
        paint.dim(agent)
    )
}
