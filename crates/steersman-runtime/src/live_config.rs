// SPDX-License-Identifier: Apache-2.0
//! Configuration that changes while the process runs, from a ConfigMap or a file.
//!
//! # Guarantees
//! 1. A new value is visible in every replica, leader or standby, without a restart.
//! 2. An invalid value changes nothing: the last good value stays. It is logged once, counted, and is an event of the ConfigMap.
//!    It never ends the process.
//! 3. A new value enqueues every object of the controllers that use it, at low priority. A text that did not change does not.
//! 4. The log filter is part of the value: an invalid filter makes the value invalid.
//! 5. Without the ConfigMap or its entry, the initial value applies. A file that cannot be read is an invalid value.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::ObjectReference;
use serde::de::DeserializeOwned;
use steersman_cache::Object;
use steersman_cluster::{Cluster, ClusterName, EventType};
use steersman_core::{ObjectKey, error_chain};
use tokio::sync::watch;

use crate::{BoxError, Controller, LogHandle, RequestKey, RunContext, RunPolicy, Runnable, one_map};

/// Default name of the entry of a ConfigMap.
const ENTRY: &str = "config.yaml";

/// Default interval of reading a file.
const POLL_EVERY: Duration = Duration::from_secs(10);

/// A typed value that is read again when its ConfigMap or file changes. Clones share it.
///
/// ```no_run
/// use serde::Deserialize;
/// use steersman_core::ObjectKey;
/// use steersman_runtime::{Controller, LiveConfig, Logging, Manager, Reconciler};
/// use k8s_openapi::api::core::v1::ConfigMap;
///
/// #[derive(Default, Deserialize)]
/// #[serde(rename_all = "camelCase", default)]
/// struct Config {
///     image: String,
///     log_filter: Option<String>,
/// }
///
/// # async fn example<R: Reconciler>(reconciler: impl Fn(LiveConfig<Config>) -> R) -> Result<(), Box<dyn std::error::Error>> {
/// let logs = Logging::from_env().install()?;
/// let manager = Manager::builder().build().await?;
/// let config = LiveConfig::new(Config::default());
/// // The reconciler calls `config.current()`.
/// let webs = Controller::of::<ConfigMap>("web").add_to(&manager, reconciler(config.clone()))?;
/// let source = config
///     .config_map(&manager.cluster()?, ObjectKey::new("web-system", "web-operator"))
///     .resyncs(&webs)
///     .log_filter(logs, |config| config.log_filter.clone());
/// manager.add(source)?;
/// # Ok(())
/// # }
/// ```
pub struct LiveConfig<T> {
    value: Arc<watch::Sender<Arc<T>>>,
    initial: Arc<T>,
}

impl<T: Send + Sync + 'static> LiveConfig<T> {
    /// Creates a configuration with the value that applies until the first one is read, and without a ConfigMap.
    #[must_use]
    pub fn new(initial: T) -> Self {
        let initial = Arc::new(initial);
        Self {
            value: Arc::new(watch::Sender::new(Arc::clone(&initial))),
            initial,
        }
    }

    /// Returns the current value. Call it once in each reconcile, so that the reconcile sees one value.
    #[must_use]
    pub fn current(&self) -> Arc<T> {
        Arc::clone(&self.value.borrow())
    }

    /// Watches the value.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<T>> {
        self.value.subscribe()
    }

    /// Reads the value from the entry `config.yaml` of a ConfigMap, as YAML or JSON. Add the result to the manager.
    pub fn config_map(&self, cluster: &Cluster, map: ObjectKey) -> ConfigSource<T> {
        self.source(Origin::Map {
            cluster: cluster.clone(),
            map,
            entry: ENTRY.to_owned(),
        })
    }

    /// Reads the value from a file, as YAML or JSON, every 10 s. Add the result to the manager.
    pub fn file(&self, path: impl Into<PathBuf>) -> ConfigSource<T> {
        self.source(Origin::File {
            path: path.into(),
            every: POLL_EVERY,
        })
    }

    fn source(&self, origin: Origin) -> ConfigSource<T> {
        ConfigSource {
            name: "config".to_owned(),
            config: self.clone(),
            origin,
            resyncs: Vec::new(),
            log: None,
        }
    }
}

impl<T> Clone for LiveConfig<T> {
    fn clone(&self) -> Self {
        Self {
            value: Arc::clone(&self.value),
            initial: Arc::clone(&self.initial),
        }
    }
}

impl<T> fmt::Debug for LiveConfig<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LiveConfig")
    }
}

/// Reads the value of a [`LiveConfig`]; a runnable for the manager. It runs in every replica, and does not affect readiness.
#[must_use = "a configuration is read once this is added to a manager"]
pub struct ConfigSource<T> {
    name: String,
    config: LiveConfig<T>,
    origin: Origin,
    resyncs: Vec<Box<dyn Fn() + Send + Sync>>,
    log: Option<Log<T>>,
}

enum Origin {
    Map {
        cluster: Cluster,
        map: ObjectKey,
        entry: String,
    },
    File {
        path: PathBuf,
        every: Duration,
    },
}

/// Returns the log filter of a value.
type FilterOf<T> = Box<dyn Fn(&T) -> Option<String> + Send + Sync>;

/// The log filter that a value sets.
struct Log<T> {
    handle: LogHandle,
    filter: FilterOf<T>,
    /// Applies if the value sets none.
    original: String,
}

impl<T: DeserializeOwned + Send + Sync + 'static> ConfigSource<T> {
    /// Name in logs and metrics. Default: `config`.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Entry of the ConfigMap. Default: `config.yaml`. It has no effect on a file.
    pub fn entry(mut self, name: impl Into<String>) -> Self {
        if let Origin::Map { entry, .. } = &mut self.origin {
            *entry = name.into();
        }
        self
    }

    /// Interval of reading a file. Default: 10 s; at least 1 ms. A ConfigMap is watched instead.
    pub fn poll_every(mut self, interval: Duration) -> Self {
        if let Origin::File { every, .. } = &mut self.origin {
            *every = interval.max(Duration::from_millis(1));
        }
        self
    }

    /// Enqueues every object of this controller, at low priority, when the value changes.
    pub fn resyncs<R: RequestKey>(mut self, controller: &Controller<R>) -> Self {
        let controller = controller.clone();
        self.resyncs.push(Box::new(move || controller.replay()));
        self
    }

    /// Sets the log filter from the value. `None` means the filter that applies now.
    pub fn log_filter(
        mut self,
        logs: LogHandle,
        filter: impl Fn(&T) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.log = Some(Log {
            original: logs.filter(),
            handle: logs,
            filter: Box::new(filter),
        });
        self
    }

    /// Makes a text the value, or returns why it is invalid. `None` means the initial value.
    fn apply(&self, text: Option<&str>) -> Result<(), BoxError> {
        let value = match text {
            Some(text) => Arc::new(serde_saphyr::from_str::<T>(text)?),
            None => Arc::clone(&self.config.initial),
        };
        if let Some(log) = &self.log {
            let filter = (log.filter)(&value);
            log.handle
                .set_filter(filter.as_deref().unwrap_or(&log.original))?;
        }
        self.config.value.send_replace(value);
        self.resyncs.iter().for_each(|resync| resync());
        Ok(())
    }

    /// Applies a text, and logs and counts the result. Returns the error.
    fn update(&self, text: Option<&str>, cx: &RunContext) -> Option<String> {
        let applied = self.apply(text);
        cx.metrics().config_read(&self.name, applied.is_ok());
        match applied {
            Ok(()) => {
                tracing::info!(config = self.name, origin = %self.origin, "configuration changed");
                None
            }
            Err(error) => Some(self.rejected(&error_chain(&*error))),
        }
    }

    fn rejected(&self, error: &str) -> String {
        tracing::warn!(
            config = self.name,
            origin = %self.origin,
            error,
            "invalid configuration; keeping the last good one"
        );
        error.to_owned()
    }

    async fn follow_map(&self, cluster: &Cluster, map: &ObjectKey, entry: &str, cx: &RunContext) {
        let mut last = None;
        let recorder = cluster.recorder(&self.name);
        one_map::follow(cluster, map, &self.name, cx, |object| {
            let text = object
                .as_ref()
                .and_then(|object| one_map::entry_of(object, entry));
            if text == last {
                return;
            }
            let error = self.update(text.as_deref(), cx);
            if let (Some(error), Some(object)) = (error, &object) {
                let note = format!("entry {entry} is not used, the last good value stays: {error}");
                let about = recorder.about_reference(reference(object));
                about.event(EventType::Warning, "InvalidConfig", "Reload", &note);
            }
            last = text;
        })
        .await;
    }

    async fn follow_file(&self, path: &Path, every: Duration, cx: &RunContext) {
        let mut last = None;
        loop {
            let read = std::fs::read_to_string(path).map_err(|error| error.to_string());
            if last.as_ref() != Some(&read) {
                match &read {
                    Ok(text) => _ = self.update(Some(text), cx),
                    Err(error) => {
                        cx.metrics().config_read(&self.name, false);
                        self.rejected(error);
                    }
                }
                last = Some(read);
            }
            tokio::select! {
                biased;
                _ = cx.stop().requested() => return,
                () = cx.clock().sleep_until(cx.clock().now() + every) => {}
            }
        }
    }
}

/// Names a ConfigMap in an event.
fn reference(map: &Object) -> ObjectReference {
    let key = map.key();
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("ConfigMap".to_owned()),
        name: Some(key.name().to_owned()),
        namespace: Some(key.namespace().to_owned()),
        uid: Some(map.uid().to_owned()),
        ..ObjectReference::default()
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Map { map, entry, .. } => write!(f, "entry {entry} of ConfigMap {map}"),
            Self::File { path, .. } => write!(f, "file {}", path.display()),
        }
    }
}

impl<T: DeserializeOwned + Send + Sync + 'static> Runnable for ConfigSource<T> {
    fn name(&self) -> &str {
        &self.name
    }

    fn run_policy(&self) -> RunPolicy {
        RunPolicy::AllReplicas
    }

    fn clusters(&self) -> Vec<ClusterName> {
        match &self.origin {
            Origin::Map { cluster, .. } => vec![cluster.name().clone()],
            Origin::File { .. } => Vec::new(),
        }
    }

    async fn run(&self, cx: RunContext) -> Result<(), BoxError> {
        cx.ready();
        match &self.origin {
            Origin::Map { cluster, map, entry } => self.follow_map(cluster, map, entry, &cx).await,
            Origin::File { path, every } => self.follow_file(path, *every, &cx).await,
        }
        Ok(())
    }
}

impl<T> fmt::Debug for ConfigSource<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfigSource")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
