// SPDX-License-Identifier: Apache-2.0
//! Current state of the demo, for display.

use std::{sync::Arc, time::Duration};

use steersman_core::Mutex;

use steersman_cache::Query;
use steersman_cluster::Client;
use steersman_demo::{Ready, Web};
use tokio::sync::watch;

use crate::replica::State;

/// Replicas by name, and the states that they report.
type Replicas = Vec<(String, watch::Receiver<State>)>;

/// View of the stage while a step changes it. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    replicas: Arc<Mutex<Replicas>>,
    client: Client,
}

impl Scene {
    /// Creates a scene that reads objects from the cache of this client.
    pub(crate) fn new(client: Client) -> Self {
        Self {
            replicas: Arc::default(),
            client,
        }
    }

    /// Adds a replica.
    pub(crate) fn enter(&self, name: &str, state: watch::Receiver<State>) {
        self.replicas.lock().push((name.to_owned(), state));
    }

    /// Removes a replica.
    pub(crate) fn leave(&self, name: &str) {
        self.replicas.lock().retain(|(present, _)| present != name);
    }

    /// Returns the scene as three lines.
    pub(crate) async fn lines(&self, title: &str, elapsed: Duration) -> Vec<String> {
        let webs = self.client.list::<Web>(&Query::new()).await.unwrap_or_default();
        let ready = webs.iter().filter(|web| web.is_ready()).count();
        let replicas = self.replicas.lock().clone();
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
}

/// Describes a replica's state in a few words.
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
