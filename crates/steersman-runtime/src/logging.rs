// SPDX-License-Identifier: Apache-2.0
//! Log lines, set up by one call in `main`.
//!
//! # Guarantees
//! 1. On a terminal lines are text; elsewhere each is a flat JSON object with `ts`, `level`, `logger`, `msg` and the fields
//!    of the event and of its spans. Either can be chosen.
//! 2. What is logged is what `RUST_LOG` says, or the default (`info`), and can be changed while the program runs.
//! 3. A filter that makes no sense changes nothing and is an error.
//! 4. Lines go to standard error. Those of the `log` crate are among them.
//! 5. After [`install`](Logging::install) a panic is one line, with the fields of its spans, in place of the text that the standard
//!    library writes. The line has a backtrace if `RUST_BACKTRACE` asks for it. Where lines go to a writer, or the filter drops the
//!    line, the text stays. [`panics(false)`](Logging::panics) leaves panics alone.
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

/// The variable that says what is logged.
const VARIABLE: &str = "RUST_LOG";

/// How log lines look and which there are.
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
    /// What the environment says, which is stronger.
    from_env: Option<String>,
    /// Where lines go, if not to standard error.
    writer: Option<BoxMakeWriter>,
    panics: bool,
}

/// How a log line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    #[default]
    Auto,
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// Changes what is logged while the program runs. Clones change the same.
#[derive(Clone)]
pub struct LogHandle {
    filter: reload::Handle<EnvFilter, Registry>,
    tls: QuietTls,
}

/// The log could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoggingError {
    /// The filter makes no sense.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// Another log was set up before.
    #[error("this process has a log already: set it up once, in `main`")]
    Twice(#[source] tracing_subscriber::util::TryInitError),
}

/// A filter was not accepted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FilterError {
    /// It makes no sense.
    #[error(
        "`{filter}` is no log filter: write a level such as `debug`, or `target=level`, with commas between several"
    )]
    Invalid {
        /// What was given.
        filter: String,
        /// What is wrong with it.
        #[source]
        source: ParseError,
    },
    /// It says nothing, which would hide everything but errors.
    #[error("a log filter cannot be empty: write `error` to see nothing else, or `off`")]
    Empty,
    /// The log is no more.
    #[error("the log that this handle belongs to has ended")]
    Ended,
}

impl Logging {
    /// What the environment says: `RUST_LOG` for the filter, `NO_COLOR` to leave colours out.
    pub fn from_env() -> Self {
        Self {
            from_env: env::var(VARIABLE).ok().filter(|filter| !filter.trim().is_empty()),
            ..Self::new()
        }
    }

    /// `info` and above, whatever the environment says.
    pub fn new() -> Self {
        Self {
            format: LogFormat::Auto,
            filter: "info".to_owned(),
            from_env: None,
            writer: None,
            panics: true,
        }
    }

    /// How lines look. Default: text on a terminal, JSON elsewhere.
    pub fn format(mut self, format: LogFormat) -> Self {
        self.format = format;
        self
    }

    /// What is logged where the environment does not say. Default: `info`.
    pub fn filter(mut self, filter: impl Into<String>) -> Self {
        self.filter = filter.into();
        self
    }

    /// Where lines go. Default: standard error.
    pub fn writer<W>(mut self, writer: W) -> Self
    where
        W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
    {
        self.writer = Some(BoxMakeWriter::new(writer));
        self
    }

    /// Whether [`install`](Self::install) sets a panic hook that logs panics. Default: `true`.
    pub fn panics(mut self, panics: bool) -> Self {
        self.panics = panics;
        self
    }

    /// Makes this the log of the process, also for panics.
    ///
    /// The panic hook of this log replaces the one that was set before, which is called only for panics that are not logged, or if
    /// lines go to a [writer](Self::writer). Set a hook that reports panics or aborts the process after this call, and let it call
    /// the hook that it replaces. Or turn the hook of this log off with [`panics(false)`](Self::panics).
    ///
    /// # Errors
    /// If the filter makes no sense, or the process has a log.
    pub fn install(self) -> Result<LogHandle, LoggingError> {
        let (has_writer, panics) = (self.writer.is_some(), self.panics);
        let (dispatch, handle) = self.build()?;
        dispatch.try_init().map_err(LoggingError::Twice)?;
        if panics {
            panics::log_panics(has_writer);
        }
        Ok(handle)
    }

    /// The log as a value, to be used where it is wanted; see [`tracing::dispatcher::with_default`].
    ///
    /// # Errors
    /// If the filter makes no sense.
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
    /// Changes what is logged, from now on.
    ///
    /// # Errors
    /// If the filter makes no sense; then nothing changes.
    pub fn set_filter(&self, filter: &str) -> Result<(), FilterError> {
        let filter = parse(filter)?;
        let changed = self.filter.modify(|current| {
            self.tls.follow(&filter);
            *current = filter;
        });
        changed.map_err(|_| FilterError::Ended)
    }

    /// What is logged; nothing if the log has ended.
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
