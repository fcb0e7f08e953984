// SPDX-License-Identifier: Apache-2.0
//! Rotations of the CA, and a rolling restart, under a steady stream of admissions.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use kube::api::{Patch, PatchParams};
use serde_json::json;
use steersman_core::{Mutex, Spawner};
use steersman_testing::{Fixture, eventually_within};

use super::support::*;

const ROTATIONS: usize = 3;

/// Sends admissions without a pause, from two clients.
struct Stream {
    calls: Arc<AtomicUsize>,
    failures: Arc<Mutex<Vec<String>>>,
    is_over: Arc<AtomicBool>,
    tasks: Vec<steersman_core::Task>,
}

impl Stream {
    fn start(operator: &Arc<Operator>) -> Self {
        let mut stream = Self {
            calls: Arc::default(),
            failures: Arc::default(),
            is_over: Arc::default(),
            tasks: Vec::new(),
        };
        for _ in 0..2 {
            let operator = Arc::clone(operator);
            let (calls, failures) = (Arc::clone(&stream.calls), Arc::clone(&stream.failures));
            let is_over = Arc::clone(&stream.is_over);
            stream
                .tasks
                .push(Spawner::current().spawn("admissions", async move {
                    while !is_over.load(Ordering::Relaxed) {
                        match operator.is_injected().await {
                            Ok(true) => _ = calls.fetch_add(1, Ordering::Relaxed),
                            Ok(false) => failures.lock().push("the webhook was not called".to_owned()),
                            Err(error) => failures.lock().push(error.to_string()),
                        }
                    }
                }));
        }
        stream
    }

    /// Waits for more successful calls.
    async fn more(&self, count: usize) {
        let until = self.calls.load(Ordering::Relaxed) + count;
        let limit = std::time::Duration::from_secs(60);
        eventually_within(limit, "more admissions", async || {
            let failures = self.failures.lock().clone();
            assert!(failures.is_empty(), "{failures:#?}");
            (self.calls.load(Ordering::Relaxed) >= until).then_some(())
        })
        .await;
    }
}

// R69
#[steersman_testing::test]
async fn guarantee_1_rotations_and_a_rolling_restart_fail_no_call(fixture: Fixture) {
    let operator = Arc::new(Operator::new(fixture).await);
    let declare = || operator.webhooks().admission(operator.injects());
    let mut replicas = Vec::new();
    for _ in 0..3 {
        replicas.push(operator.replica(declare()).await);
    }
    operator.when_in_force().await;
    let stream = Stream::start(&operator);
    stream.more(20).await;
    let (secrets, name) = (operator.secrets(), operator.secret_name());
    for rotation in 0..ROTATIONS {
        let before = secrets.get(&name).await.unwrap();
        let rotate =
            json!({"metadata": {"annotations": {"webhook.steersman.dev/rotate": rotation.to_string()}}});
        secrets
            .patch(&name, &PatchParams::default(), &Patch::Merge(rotate))
            .await
            .unwrap();
        let limit = std::time::Duration::from_secs(60);
        eventually_within(limit, "a new CA signs", async || {
            let now = secrets.get(&name).await.unwrap().data.unwrap();
            (now["tls.crt"] != before.data.as_ref().unwrap()["tls.crt"]).then_some(())
        })
        .await;
        stream.more(20).await;
        if rotation == 1 {
            // The leader is the first to go.
            for _ in 0..3 {
                replicas.push(operator.replica(declare()).await);
                replicas.remove(0).stop().await;
                stream.more(20).await;
            }
        }
    }
    stream.is_over.store(true, Ordering::Relaxed);
    stream.more(0).await;
    drop(stream.tasks);
    operator.remove().await;
    for replica in replicas {
        replica.stop().await;
    }
}
