// SPDX-License-Identifier: Apache-2.0
//! `steersman serve`: the embedded API server alone.

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

/// How many nodes pretended workloads run on.
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
    let is_open = Arc::new(AtomicBool::new(false));
    if options.watch {
        let is_open = Arc::clone(&is_open);
        builder = builder.observe(move |exchange| {
            // Loading is nobody's concern.
            if is_open.load(Ordering::Acquire) {
                // Who closed the output does not want to see more.
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

/// Says what there is, and what one can do with it.
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

/// Where the kubeconfig was written. It goes when this drops.
struct Place {
    path: PathBuf,
    /// None where the user chose the place.
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
        // Only what was written here is removed.
        server::write_kubeconfig(&path, text)?;
        Ok(Self { path, caretaker })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.caretaker.is_none() {
            // It leads nowhere now. If it cannot be removed, it can be written over.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A request as a line.
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
