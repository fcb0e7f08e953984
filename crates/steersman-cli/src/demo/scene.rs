// SPDX-License-Identifier: Apache-2.0
//! What is going on at this moment, for those who watch.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use steersman_cache::Query;
use steersman_cluster::Client;
use steersman_demo::{Ready, Web};
use tokio::sync::watch;

use crate::replica::State;

/// Replicas by name, and what they say.
type Replicas = Vec<(String, watch::Receiver<State>)>;

/// A look at the stage that can be taken while somebody works on it. Clones see the same.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    replicas: Arc<Mutex<Replicas>>,
    client: Client,
}

impl Scene {
    /// Objects are read from the cache of this client.
    pub(crate) fn new(client: Client) -> Self {
        Self {
            replicas: Arc::default(),
            client,
        }
    }

    /// Another replica is there.
    pub(crate) fn enter(&self, name: &str, state: watch::Receiver<State>) {
        self.lock().push((name.to_owned(), state));
    }

    /// A replica is gone.
    pub(crate) fn leave(&self, name: &str) {
        self.lock().retain(|(present, _)| present != name);
    }

    /// The scene in three lines.
    pub(crate) async fn lines(&self, title: &str, elapsed: Duration) -> Vec<String> {
        let webs = self.client.list::<Web>(&Query::new()).await.unwrap_or_default();
        let ready = webs.iter().filter(|web| web.is_ready()).count();
        let replicas = self.lock().clone();
        let told: Vec<String> = replicas
            .iter()
            .map(|(name, state)| format!("{name}: {}", describe(&state.borrow())))
            .collect();
        vec![
            String::new(),
            format!("     … {title}  {:.1} s", elapsed.as_secs_f64()),
            format!("     replicas  {}", told.join(" | ")),
            format!("     webs      {ready} of {} ready", webs.len()),
        ]
    }

    fn lock(&self) -> MutexGuard<'_, Replicas> {
        self.replicas.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A replica's state in a few words.
fn describe(state: &State) -> String {
    let mut words = vec![match (state.leads, state.warm) {
        (true, _) => "leads",
        (false, true) => "stands by, warm",
        (false, false) => "is starting",
    }];
    if state.edge {
        words.push("on two clusters");
    }
    if state.dormant.iter().any(|name| name == "banner") {
        words.push("no banners");
    }
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_told_in_words() {
        let mut state = State::default();
        assert_eq!(describe(&state), "is starting");
        state.warm = true;
        assert_eq!(describe(&state), "stands by, warm");
        (state.leads, state.edge, state.dormant) = (true, true, vec!["banner".to_owned()]);
        assert_eq!(describe(&state), "leads, on two clusters, no banners");
    }
}
