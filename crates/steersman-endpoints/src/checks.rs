// SPDX-License-Identifier: Apache-2.0
//! Named health checks behind `/healthz` and `/readyz`.
//!
//! The responses are byte for byte those of controller-runtime, because scripts parse them:
//!
//! | request | response |
//! |---|---|
//! | `/readyz`, all checks pass | 200 `ok` |
//! | `/readyz?verbose` | `[+]name ok` for each check, then `healthz check passed` |
//! | `/readyz`, a check fails | 500, as with `?verbose`, with `[-]name failed: reason withheld`, then `healthz check failed` |
//! | `/readyz?exclude=name` | skips that check: `[+]name excluded: ok` |
//! | `/readyz/name` | `ok`, or 500 `internal server error: ` and the reason |
//!
//! # Guarantees
//! 1. Every request runs all checks, concurrently. The list is sorted by name.
//! 2. The list, which is public, withholds the reason of a failure unless the check returns a
//!    [public](CheckError::public) one.
//! 3. Checks can be added and removed at any time.
//! 4. Without checks, the list has the check `ping`, which passes.
//! 5. A [hidden](Checks::hide) check runs only by its own path.
//! 6. [Details](Checks::add_details), such as `cluster far: degraded: …`, do not affect the result. `?verbose` lists them below
//!    the checks, without `[+]` or `[-]` and above the last line.
//! 7. Paths work with and without a slash at the end. There are no redirects.
//!
//! # Not promised
//! A time limit for checks: a check that hangs delays the response until the kubelet counts the probe as failed.

mod response;

use std::{
    collections::{BTreeMap, btree_map},
    fmt,
    future::{Future, ready},
    pin::Pin,
    sync::{Arc, Weak},
};

use steersman_core::{Mutex, error_chain};

use crate::{BoxError, HttpHandler, RegistrationGuard, RouteError, Routes};

type CheckFuture = Pin<Box<dyn Future<Output = Result<(), CheckError>> + Send>>;
type Check = Arc<dyn Fn() -> CheckFuture + Send + Sync>;
type Details = Arc<dyn Fn() -> Vec<String> + Send + Sync>;
type Entries = Mutex<BTreeMap<String, Entry>>;

#[derive(Clone)]
struct Entry {
    check: Check,
    /// Runs only by its own path.
    is_hidden: bool,
}

/// A set of named health checks. Clones share the set.
///
/// ```
/// use steersman_endpoints::{CheckError, Checks, Routes};
///
/// let ready = Checks::new();
/// ready.add("database", || async { ping_database().await })?.detach();
/// let caches = ready.add_sync("caches", || Err(CheckError::waiting_for(["pods/v1"])))?;
/// drop(caches); // Removes the check.
///
/// let mut routes = Routes::new();
/// ready.mount(&mut routes, "/readyz")?;
/// # async fn ping_database() -> Result<(), std::io::Error> { Ok(()) }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default)]
pub struct Checks {
    entries: Arc<Entries>,
    details: Arc<Mutex<Vec<Details>>>,
}

/// The reason why a health check failed.
///
/// Any error converts into one (`?` does it); the public list withholds its text.
#[derive(Debug)]
pub struct CheckError(Reason);

#[derive(Debug)]
enum Reason {
    Public(String),
    Withheld(BoxError),
}

/// A health check of the same name exists.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot add health check `{name}`: a check of this name exists; choose another name or remove the other check"
)]
pub struct DuplicateCheck {
    name: String,
}

impl DuplicateCheck {
    /// Returns the name of the check.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl CheckError {
    /// Creates an error with a public reason, which replaces `reason withheld`. Everyone who can connect can read it.
    pub fn public(reason: impl Into<String>) -> Self {
        // The list has one line per check.
        Self(Reason::Public(one_line(&reason.into())))
    }

    /// Creates an error with a public list: `waiting for pods/v1, webs.example.com/v1`.
    pub fn waiting_for(items: impl IntoIterator<Item = impl fmt::Display>) -> Self {
        let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
        Self::public(format!("waiting for {}", items.join(", ")))
    }

    /// The text for the list.
    fn public_text(&self) -> &str {
        match &self.0 {
            Reason::Public(reason) => reason,
            Reason::Withheld(_) => "reason withheld",
        }
    }

    /// The text for the path of the check, and for the log.
    fn full_text(&self) -> String {
        match &self.0 {
            Reason::Public(reason) => reason.clone(),
            Reason::Withheld(error) => error_chain(&**error),
        }
    }
}

impl<E: Into<BoxError>> From<E> for CheckError {
    fn from(error: E) -> Self {
        Self(Reason::Withheld(error.into()))
    }
}

impl Checks {
    /// Creates an empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a check. Dropping the guard removes it.
    ///
    /// # Errors
    /// If a check of this name exists.
    pub fn add<F, Fut, E>(
        &self,
        name: impl Into<String>,
        check: F,
    ) -> Result<RegistrationGuard, DuplicateCheck>
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<CheckError>,
    {
        let check = move || -> CheckFuture {
            let result = check();
            Box::pin(async move { result.await.map_err(Into::into) })
        };
        self.insert(name.into(), Arc::new(check))
    }

    /// Adds a check that does not wait for anything. Dropping the guard removes it.
    ///
    /// # Errors
    /// If a check of this name exists.
    pub fn add_sync<F, E>(
        &self,
        name: impl Into<String>,
        check: F,
    ) -> Result<RegistrationGuard, DuplicateCheck>
    where
        F: Fn() -> Result<(), E> + Send + Sync + 'static,
        E: Into<CheckError>,
    {
        let check = move || -> CheckFuture { Box::pin(ready(check().map_err(Into::into))) };
        self.insert(name.into(), Arc::new(check))
    }

    /// Removes a check from the list; it still runs by its own path. Unknown names are ignored.
    pub fn hide(&self, name: &str) {
        if let Some(entry) = self.entries.lock().get_mut(name) {
            entry.is_hidden = true;
        }
    }

    /// Adds lines to every verbose list, for people to read. They do not affect the result.
    pub fn add_details(&self, lines: impl Fn() -> Vec<String> + Send + Sync + 'static) {
        self.details.lock().push(Arc::new(lines));
    }

    /// Mounts the checks at `path`, `path/` and `path/<check>`.
    ///
    /// # Errors
    /// If one of these paths already has a handler.
    pub fn mount(&self, routes: &mut Routes, path: &str) -> Result<(), RouteError> {
        let path = path.trim_end_matches('/').to_owned();
        let (checks, prefix) = (self.clone(), format!("{path}/"));
        let handler = HttpHandler::new(move |request| {
            let checks = checks.clone();
            let uri = request.uri().clone();
            let name = uri.path().strip_prefix(&prefix).unwrap_or_default().to_owned();
            async move { response::respond(&checks, &name, uri.query().unwrap_or_default()).await }
        });
        routes.add(format!("{path}/"), handler.clone())?;
        routes.add(path, handler)
    }

    fn insert(&self, name: String, check: Check) -> Result<RegistrationGuard, DuplicateCheck> {
        match self.entries.lock().entry(name.clone()) {
            btree_map::Entry::Occupied(_) => return Err(DuplicateCheck { name }),
            btree_map::Entry::Vacant(vacant) => vacant.insert(Entry {
                check,
                is_hidden: false,
            }),
        };
        let entries: Weak<Entries> = Arc::downgrade(&self.entries);
        Ok(RegistrationGuard::new(move || {
            if let Some(entries) = entries.upgrade() {
                let removed = entries.lock().remove(&name);
                // Dropping the check can run user code, so the lock is released first.
                drop(removed);
            }
        }))
    }

    /// Returns the present checks. They run without the lock.
    fn entries(&self) -> Vec<(String, Entry)> {
        let entries = self.entries.lock();
        entries
            .iter()
            .map(|(name, entry)| (name.clone(), entry.clone()))
            .collect()
    }

    /// Returns the detail lines.
    fn details(&self) -> Vec<String> {
        let details = self.details.lock().clone();
        let lines = details.iter().flat_map(|lines| lines());
        lines.map(|line| one_line(&line)).collect()
    }
}

fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

impl fmt::Debug for Checks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.entries.lock().keys()).finish()
    }
}
