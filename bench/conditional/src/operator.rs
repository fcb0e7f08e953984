// SPDX-License-Identifier: Apache-2.0
//! The operator that is measured: one conditional controller.

use std::{collections::HashSet, sync::Arc};

use kube::Config;
use steersman_cluster::Cluster;
use steersman_core::{Action, Spawner, Task};
use steersman_runtime::{
    BoxError, Context, Controller, Manager, Request, RunnableStatus, dynamic, reconcile_fn,
};
use tokio::sync::watch;

use crate::{widgets, words};

/// It runs until this drops.
pub(crate) struct Operator {
    manager: Manager,
    seen: Arc<watch::Sender<HashSet<String>>>,
    _task: Task,
}

impl Operator {
    pub(crate) async fn start(config: Config) -> Result<Self, String> {
        let cluster = Cluster::builder("default").config(config).build().await;
        let manager = Manager::builder().cluster(cluster.map_err(words)?).build().await;
        let manager = manager.map_err(words)?;
        let seen = Arc::new(watch::Sender::new(HashSet::new()));
        let noted = Arc::clone(&seen);
        let note = reconcile_fn(move |request: Request, _: Context| {
            noted.send_modify(|seen| _ = seen.insert(request.name().to_owned()));
            std::future::ready(Ok::<_, BoxError>(Action::await_change()))
        });
        Controller::of_kind("widgets", dynamic(widgets::resource()))
            .when_installed()
            .add_to(&manager, note)
            .map_err(words)?;
        let running = manager.clone();
        let task = Spawner::current().spawn("operator", async move {
            if let Err(error) = running.run_until(std::future::pending()).await {
                eprintln!("the operator ended: {error}");
            }
        });
        let operator = Self {
            manager,
            seen,
            _task: task,
        };
        operator.rests().await;
        Ok(operator)
    }

    /// Waits until the list of the kind was handled.
    pub(crate) async fn listed(&self) {
        let standings = self.manager.statuses();
        standings
            .when(|all| all.get("widgets") == Some(&RunnableStatus::Ready))
            .await;
    }

    /// Waits until it has stopped because the kind is not there.
    pub(crate) async fn rests(&self) {
        let is_resting = |standing: &RunnableStatus| matches!(standing, RunnableStatus::Dormant { .. });
        let standings = self.manager.statuses();
        standings
            .when(|all| all.get("widgets").is_some_and(is_resting))
            .await;
    }

    /// Waits until so many objects were reconciled.
    pub(crate) async fn reconciled(&self, count: usize) {
        // The sender is here.
        let _ = self.seen.subscribe().wait_for(|seen| seen.len() >= count).await;
    }

    pub(crate) fn forget(&self) {
        self.seen.send_modify(HashSet::clear);
    }
}
