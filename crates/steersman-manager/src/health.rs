// SPDX-License-Identifier: Apache-2.0
//! Named checks behind `/healthz` and `/readyz`.
//!
//! The answers are, to the byte, those of controller-runtime, which people's scripts read:
//!
//! | asked | answer |
//! |---|---|
//! | `/readyz`, all well | 200 `ok` |
//! | `/readyz?verbose` | `[+]name ok` for each check, then `healthz check passed` |
//! | `/readyz`, a check fails | 500, as with `?verbose`, with `[-]name failed: reason withheld`, then `healthz check failed` |
//! | `/readyz?exclude=name` | that check is not asked: `[+]name excluded: ok` |
//! | `/readyz/name` | `ok`, or 500 `internal server error: ` and the reason |
//!
//! # Guarantees
//! 1. Checks are asked anew for each request, all at the same time, and shown by name in order.
//! 2. Why a check failed is withheld from the list, which anybody may read, unless the check makes it
//!    [public](Unready::public); then it is shown in place of `reason withheld`.
//! 3. A check may be added and removed at any time.
//! 4. Where there is no check, there is `ping`, which passes.
//! 5. A check that is set apart is asked by its own path only.
//! 6. Remarks decide nothing, such as `cluster far: degraded: …`. They stand below the checks of lists that are asked for
//!    with `?verbose`, as lines without `[+]` or `[-]`; the last line stays the last.
//! 7. Paths are answered with and without a slash at the end, and nothing is redirected.
//!
//! # Not promised
//! That a check ends: one that hangs keeps the probe waiting, which the kubelet takes for a failure.

mod answer;

use std::{
    collections::{BTreeMap, btree_map},
    fmt,
    future::{Future, ready},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use crate::{BoxError, Handler, Registered, RouteError, Routes, serve::causes};

type Checking = Pin<Box<dyn Future<Output = Result<(), Unready>> + Send>>;
type Check = Arc<dyn Fn() -> Checking + Send + Sync>;
type Remark = Arc<dyn Fn() -> Vec<String> + Send + Sync>;
type Named = Mutex<BTreeMap<String, Entry>>;

#[derive(Clone)]
struct Entry {
    check: Check,
    /// Whether it is asked only by its own path.
    is_apart: bool,
}

/// Checks by name. Clones are the same set.
///
/// ```
/// use steersman_manager::{Checks, Routes, Unready};
///
/// let ready = Checks::new();
/// ready.add("database", || async { ping_database().await })?.forever();
/// let caches = ready.add_sync("caches", || Err(Unready::waiting_for(["pods/v1"])))?;
/// drop(caches); // No longer asked.
///
/// let mut routes = Routes::new();
/// ready.mount(&mut routes, "/readyz")?;
/// # async fn ping_database() -> Result<(), std::io::Error> { Ok(()) }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default)]
pub struct Checks {
    named: Arc<Named>,
    remarks: Arc<Mutex<Vec<Remark>>>,
}

/// Why a check failed.
///
/// Any error becomes one whose text is withheld from the public list: `?` does it.
#[derive(Debug)]
pub struct Unready(Reason);

#[derive(Debug)]
enum Reason {
    Public(String),
    Withheld(BoxError),
}

/// A check of that name is there already.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is a check `{name}` already: give this one another name, or drop the other one first")]
pub struct Duplicate {
    name: String,
}

impl Duplicate {
    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Unready {
    /// A reason that everybody may read who can reach the port, in place of `reason withheld`.
    pub fn public(reason: impl Into<String>) -> Self {
        // The list has one line for each check.
        Self(Reason::Public(one_line(&reason.into())))
    }

    /// Publicly waiting for these: `waiting for pods/v1, webs.example.com/v1`.
    pub fn waiting_for(these: impl IntoIterator<Item = impl fmt::Display>) -> Self {
        let these: Vec<String> = these.into_iter().map(|this| this.to_string()).collect();
        Self::public(format!("waiting for {}", these.join(", ")))
    }

    fn shown(&self) -> &str {
        match &self.0 {
            Reason::Public(reason) => reason,
            Reason::Withheld(_) => "reason withheld",
        }
    }

    fn in_full(&self) -> String {
        match &self.0 {
            Reason::Public(reason) => reason.clone(),
            Reason::Withheld(error) => causes(&**error),
        }
    }
}

impl<E: Into<BoxError>> From<E> for Unready {
    fn from(error: E) -> Self {
        Self(Reason::Withheld(error.into()))
    }
}

impl Checks {
    /// A set without checks.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a check, which is asked until the guard drops.
    ///
    /// # Errors
    /// If there is one of that name.
    pub fn add<F, Fut, E>(&self, name: impl Into<String>, check: F) -> Result<Registered, Duplicate>
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<Unready>,
    {
        let check = move || -> Checking {
            let checking = check();
            Box::pin(async move { checking.await.map_err(Into::into) })
        };
        self.insert(name.into(), Arc::new(check))
    }

    /// Adds a check that knows its answer without waiting.
    ///
    /// # Errors
    /// If there is one of that name.
    pub fn add_sync<F, E>(&self, name: impl Into<String>, check: F) -> Result<Registered, Duplicate>
    where
        F: Fn() -> Result<(), E> + Send + Sync + 'static,
        E: Into<Unready>,
    {
        let check = move || -> Checking { Box::pin(ready(check().map_err(Into::into))) };
        self.insert(name.into(), Arc::new(check))
    }

    /// Takes a check out of the list, so that it is asked by its own path only.
    pub(crate) fn set_apart(&self, name: &str) {
        if let Some(entry) = lock(&self.named).get_mut(name) {
            entry.is_apart = true;
        }
    }

    /// Shows lines with every verbose list, which decide nothing: what people want to know beside what probes have to.
    pub(crate) fn remark(&self, lines: impl Fn() -> Vec<String> + Send + Sync + 'static) {
        let mut remarks = self.remarks.lock().unwrap_or_else(PoisonError::into_inner);
        remarks.push(Arc::new(lines));
    }

    /// The remarks of now, one line each.
    fn remarks(&self) -> Vec<String> {
        let remarks = self
            .remarks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let lines = remarks.iter().flat_map(|lines| lines());
        lines.map(|line| one_line(&line)).collect()
    }

    /// Answers `path`, `path/` and `path/<check>`.
    ///
    /// # Errors
    /// If one of them is taken.
    pub fn mount(&self, routes: &mut Routes, path: &str) -> Result<(), RouteError> {
        let path = path.trim_end_matches('/').to_owned();
        let (checks, below) = (self.clone(), format!("{path}/"));
        let handler = Handler::new(move |request| {
            let checks = checks.clone();
            let uri = request.uri().clone();
            let name = uri.path().strip_prefix(&below).unwrap_or_default().to_owned();
            async move { answer::answer(&checks, &name, uri.query().unwrap_or_default()).await }
        });
        routes.add(format!("{path}/"), handler.clone())?;
        routes.add(path, handler)
    }

    fn insert(&self, name: String, check: Check) -> Result<Registered, Duplicate> {
        match lock(&self.named).entry(name.clone()) {
            btree_map::Entry::Occupied(_) => return Err(Duplicate { name }),
            btree_map::Entry::Vacant(vacant) => vacant.insert(Entry {
                check,
                is_apart: false,
            }),
        };
        let checks: Weak<Named> = Arc::downgrade(&self.named);
        Ok(Registered::new(move || {
            if let Some(checks) = checks.upgrade() {
                let removed = lock(&checks).remove(&name);
                // What the check holds may do anything when it drops, so it does it outside of the lock.
                drop(removed);
            }
        }))
    }

    /// Those that are there now. They are asked without the lock.
    fn all(&self) -> Vec<(String, Entry)> {
        let all = lock(&self.named);
        all.iter()
            .map(|(name, entry)| (name.clone(), entry.clone()))
            .collect()
    }
}

fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

fn lock(checks: &Named) -> MutexGuard<'_, BTreeMap<String, Entry>> {
    checks.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Checks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(lock(&self.named).keys()).finish()
    }
}
