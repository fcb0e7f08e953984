// SPDX-License-Identifier: Apache-2.0
//! Command-line arguments. Help, completions and the manual page are generated from them.

use std::{
    io::{self, Write},
    net::SocketAddr,
    path::PathBuf,
};

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use crate::exit::{End, Outcome, OutputError};

/// Kubernetes controllers in Rust: a demo without a cluster, and an API server for operators of any language.
#[derive(Debug, Parser)]
#[command(name = "steersman", version, max_term_width = 100, after_help = AFTER_HELP)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const AFTER_HELP: &str = "\
Examples:
  steersman demo                      an operator at work, with failover after kill -9, in 30 s
  steersman demo --fast --json        only the measurements
  steersman serve --port 6443         an API server for your own operator
  steersman completions bash          completions for your shell
  steersman man                       this text as a manual page

Exit codes:
  0    done, or stopped by Ctrl-C while it was waiting or serving
  1    failed; standard error shows the cause and the remedy
  2    invalid command line
  130  stopped by Ctrl-C before it was done (143: by SIGTERM)";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Shows Steersman with a real operator, two replicas of it and an API server, without a cluster
    Demo(Demo),
    /// Runs only the embedded API server, for operators of any language
    Serve(Serve),
    /// Writes completions for a shell to standard output
    #[command(
        after_help = "Example:\n  steersman completions bash > ~/.local/share/bash-completion/completions/steersman"
    )]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Writes the manual page to standard output
    #[command(
        after_help = "Examples:\n  steersman man > ~/.local/share/man/man1/steersman.1\n  steersman man | man -l -"
    )]
    Man,
    /// Runs a replica of the demo's operator. It ends when its standard input is closed.
    #[command(hide = true)]
    Replica(Replica),
    /// Creates a directory and removes it when its standard input is closed.
    #[command(hide = true)]
    Caretaker,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The demo starts an API server on a loopback port, and two replicas of an operator as separate processes. It creates and
deletes objects and CRDs, stops replicas, and measures the reactions. At the end it waits, so that you can use kubectl;
Ctrl-C stops all processes and removes all files.

Examples:
  steersman demo                      step by step, then wait
  steersman demo --fast               fewer repetitions, and no waiting at the end
  steersman demo --fast --json        one JSON object for each measurement on standard output")]
pub(crate) struct Demo {
    /// Runs fewer repetitions and does not wait at the end
    #[arg(long)]
    pub(crate) fast: bool,
    /// Prints plain lines, even on a terminal
    #[arg(long)]
    pub(crate) plain: bool,
    /// Prints measurements as JSON, one object per line, on standard output; all other output is on standard error
    #[arg(long)]
    pub(crate) json: bool,
    /// Port of the API server; 0 selects a free port
    #[arg(long, default_value_t = 0)]
    pub(crate) port: u16,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The first line on standard output is the path of a kubeconfig for the administrator. The server keeps its state in memory;
Ctrl-C stops the server, and the state is lost.

Examples:
  steersman serve --port 6443 --kubeconfig ./kubeconfig
  steersman serve --load crds/ --load samples.yaml --watch
  steersman serve --service-address default/hooks:443=127.0.0.1:9443
  KUBECONFIG=./kubeconfig kubectl get namespaces")]
pub(crate) struct Serve {
    /// Port on the loopback address; 0 selects a free port
    #[arg(long, default_value_t = 0)]
    pub(crate) port: u16,
    /// Path of the kubeconfig. Default: a temporary file that is removed when the process ends
    #[arg(long, value_name = "PATH")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Manifests to load at the start: a YAML or JSON file, or a directory of them. Can be repeated
    #[arg(long, value_name = "PATH")]
    pub(crate) load: Vec<PathBuf>,
    /// Prints each request: method, path, code, time, client
    #[arg(long)]
    pub(crate) watch: bool,
    /// Simulates workloads: Deployments and similar kinds become ready
    #[arg(long)]
    pub(crate) workloads: bool,
    /// Address at which webhooks reach a Service: NAMESPACE/NAME:PORT=ADDRESS. Can be repeated
    #[arg(long, value_name = "SERVICE=ADDRESS", value_parser = ServiceAddress::parse)]
    pub(crate) service_address: Vec<ServiceAddress>,
}

/// A port of a Service, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServiceAddress {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) port: u16,
    pub(crate) address: SocketAddr,
}

impl ServiceAddress {
    fn parse(text: &str) -> Result<Self, String> {
        let parts = || {
            let (service, address) = text.split_once('=')?;
            let (namespace, service) = service.split_once('/')?;
            let (name, port) = service.split_once(':')?;
            Some(Self {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                port: port.parse().ok()?,
                address: address.parse().ok()?,
            })
        };
        let example = "default/hooks:443=127.0.0.1:9443";
        parts().ok_or_else(|| format!("not a Service and its address; write it as `{example}`"))
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct Replica {
    /// Name of the replica in the lease
    #[arg(long)]
    pub(crate) name: String,
}

/// Writes the completions of a shell.
pub(crate) fn completions(shell: Shell) -> Outcome {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "steersman", &mut text);
    io::stdout().write_all(&text).map_err(OutputError::from)?;
    Ok(End::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_holds_together() {
        Args::command().debug_assert();
    }

    #[test]
    fn the_examples_parse() {
        let texts = [AFTER_HELP.to_owned()].into_iter();
        let subcommands = Args::command();
        let subcommands = subcommands.get_subcommands();
        let helps = subcommands.filter_map(|command| command.get_after_help().map(ToString::to_string));
        let mut examples = 0;
        for text in texts.chain(helps) {
            for line in text.lines().filter_map(|line| line.strip_prefix("  steersman ")) {
                let line = line.split("  ").next().unwrap();
                let line = line.split(['>', '|']).next().unwrap().trim_end();
                let words = ["steersman"].into_iter().chain(line.split(' '));
                Args::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}"));
                examples += 1;
            }
        }
        assert!(examples >= 12, "{examples}");
    }
}
