// SPDX-License-Identifier: Apache-2.0
//! Logging, set up by one call in `main`.
//!
//! # Guarantees
//! 1. On a terminal, lines are text; elsewhere each line is a flat JSON object with `ts`, `level`, `logger`, `msg` and the
//!    fields of the event and of its spans. Either format can be chosen.
//! 2. The filter is `RUST_LOG`, or the default (`info`), and can be changed at run time.
//! 3. An invalid filter is an error and changes nothing.
//! 4. Lines are written to standard error, including lines of the `log` crate.
//! 5. After [`install`](Logging::install), a panic is one line, with the fields of its spans, instead of the text of the
//!    standard library. The line has a backtrace if `RUST_BACKTRACE` is set. If a writer is set, or the filter drops the
//!    line, the text of the standard library is still written. [`panics(false)`](Logging::panics) leaves panics unchanged.
//! 6. A TLS certificate that is rejected is logged by the component that connects, not once more by the verifier at each attempt.

mod json;
mod panics;
mod route;
mod tls;

use std::{
    env, fmt,
    io::{self, IsTerminal},
};

use tracing::Dispatch;
use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    filter::ParseError,
    fmt::writer::{BoxMakeWriter, MakeWriter},
    layer::SubscriberExt,
    reload,
    util::SubscriberInitExt,
};

use json::Json;
use tls::QuietTls;

/// Environment variable of the filter.
const VARIABLE: &str = "RUST_LOG";

/// Format and filter of log lines.
///
/// ```
/// use steersman_runtime::Logging;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let logs = Logging::from_env().install()?;
/// tracing::info!(web = "front", "reconciled");
/// logs.set_filter("info,steersman=debug")?;
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is logged before `install`"]
pub struct Logging {
    format: LogFormat,
    filter: String,
    /// Filter of the environment, which takes precedence.
    from_env: Option<String>,
    /// Writer of lines instead of standard error.
    writer: Option<BoxMakeWriter>,
    panics: bool,
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    #[default]
    Auto,
    /// Text, for people.
    Text,
    /// JSON, for programs.
    Json,
}

/// Changes the log filter at run time. Clones change the same filter.
#[derive(Clone)]
pub struct LogHandle {
    filter: reload::Handle<EnvFilter, Registry>,
    tls: QuietTls,
}

/// Error of [`Logging::install`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoggingError {
    /// The filter is invalid.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// The process already has a logger.
    #[error("cannot install logging: this process already has a logger; install it once, in `main`")]
    Twice(#[source] tracing_subscriber::util::TryInitError),
}

/// Error of a log filter.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FilterError {
    /// The filter is invalid.
    #[error(
        "`{filter}` is not a valid log filter: write a level such as `debug`, or `target=level`, with commas between several"
    )]
    Invalid {
        /// The filter.
        filter: String,
        /// The parse error.
        #[source]
        source: ParseError,
    },
    /// The filter is empty, which would hide everything except errors.
    #[error("a log filter cannot be empty: write `error` to see nothing else, or `off`")]
    Empty,
    /// The logger of this handle was dropped.
    #[error("the logger of this handle was dropped")]
    Ended,
}

impl Logging {
    /// Reads the environment: `RUST_LOG` for the filter, `NO_COLOR` to turn colours off.
    pub fn from_env() -> Self {
        Self {
            from_env: env::var(VARIABLE).ok().filter(|filter| !filter.trim().is_empty()),
            ..Self::new()
        }
    }

    /// Logs `info` and above, and ignores the environment.
    pub fn new() -> Self {
        Self {
            format: LogFormat::Auto,
            filter: "info".to_owned(),
            from_env: None,
            writer: None,
            panics: true,
        }
    }

    /// Format of lines. Default: text on a terminal, JSON elsewhere.
    pub fn format(mut self, format: LogFormat) -> Self {
        self.format = format;
        self
    }

    /// Filter, unless the environment sets one. Default: `info`.
    pub fn filter(mut self, filter: impl Into<String>) -> Self {
        self.filter = filter.into();
        self
    }

    /// Writer of lines. Default: standard error.
    pub fn writer<W>(mut self, writer: W) -> Self
    where
        W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
    {
        self.writer = Some(BoxMakeWriter::new(writer));
        self
    }

    /// Sets a panic hook in [`install`](Self::install) that logs panics. Default: `true`.
    pub fn panics(mut self, panics: bool) -> Self {
        self.panics = panics;
        self
    }

    /// Installs the logger of the process, and its panic hook.
    ///
    /// The panic hook replaces the earlier one. The earlier hook is called only for panics that are not logged, or if a
    /// [writer](Self::writer) is set. Set a hook that reports panics or aborts the process after this call, and let it call
    /// the hook that it replaces. Or turn the hook of this log off with [`panics(false)`](Self::panics).
    ///
    /// # Errors
    /// If the filter is invalid, or the process already has a logger.
    pub fn install(self) -> Result<LogHandle, LoggingError> {
        let (has_writer, panics) = (self.writer.is_some(), self.panics);
        let (dispatch, handle) = self.build()?;
        dispatch.try_init().map_err(LoggingError::Twice)?;
        if panics {
            panics::log_panics(has_writer);
        }
        Ok(handle)
    }

    /// Builds the logger as a value, for use in a scope; see [`tracing::dispatcher::with_default`].
    ///
    /// # Errors
    /// If the filter is invalid.
    pub fn build(self) -> Result<(Dispatch, LogHandle), FilterError> {
        let filter = parse(self.from_env.as_deref().unwrap_or(&self.filter))?;
        let tls = QuietTls::default();
        tls.follow(&filter);
        let (filter, handle) = reload::Layer::new(filter);
        let is_terminal = self.writer.is_none() && io::stderr().is_terminal();
        let writer = self.writer.unwrap_or_else(|| BoxMakeWriter::new(io::stderr));
        let is_text = match self.format {
            LogFormat::Auto => is_terminal,
            LogFormat::Text => true,
            LogFormat::Json => false,
        };
        let lines = if is_text {
            let has_colours = is_terminal && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
            tracing_subscriber::fmt::layer()
                .with_ansi(has_colours)
                .with_writer(writer)
                .boxed()
        } else {
            Json::new(writer).boxed()
        };
        let subscriber = tracing_subscriber::registry().with(filter);
        let subscriber = subscriber.with(tls.clone()).with(lines);
        let handle = LogHandle { filter: handle, tls };
        Ok((Dispatch::new(subscriber), handle))
    }
}

impl Default for Logging {
    fn default() -> Self {
        Self::new()
    }
}

impl LogHandle {
    /// Changes the log filter.
    ///
    /// # Errors
    /// If the filter is invalid; then nothing changes.
    pub fn set_filter(&self, filter: &str) -> Result<(), FilterError> {
        let filter = parse(filter)?;
        let changed = self.filter.modify(|current| {
            self.tls.follow(&filter);
            *current = filter;
        });
        changed.map_err(|_| FilterError::Ended)
    }

    /// Returns the current filter; empty if the logger was dropped.
    #[must_use]
    pub fn filter(&self) -> String {
        self.filter.with_current(ToString::to_string).unwrap_or_default()
    }
}

fn parse(filter: &str) -> Result<EnvFilter, FilterError> {
    let filter = filter.trim();
    if filter.is_empty() {
        return Err(FilterError::Empty);
    }
    EnvFilter::builder()
        .parse(filter)
        .map_err(|source| FilterError::Invalid {
            filter: filter.to_owned(),
            source,
        })
}

impl fmt::Debug for Logging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Logging")
            .field("format", &self.format)
            .field("filter", self.from_env.as_ref().unwrap_or(&self.filter))
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for LogHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LogHandle").field(&self.filter()).finish()
    }
}
