// SPDX-License-Identifier: Apache-2.0
//! A replica that shuts down.

use std::time::Duration;

use steersman_testing::{Fixture, eventually};

use super::{
    bad_input::{review, send},
    support::*,
};

// R69
#[steersman_testing::test]
async fn guarantee_3_a_replica_serves_after_it_has_become_unready(fixture: Fixture) {
    let operator = Operator::new(fixture).await;
    let webhooks = operator.webhooks().drain_delay(Duration::from_secs(20));
    let mut replica = operator.replica(webhooks.admission(operator.injects())).await;
    let path = "/mutate/inject.maps.example.com";
    let headers = "Content-Type: application/json\r\n";
    let closing = format!("Connection: close\r\n{headers}");
    let answer = send(&operator, &replica, path, &closing, &review("u")).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    replica.begin_stop();
    eventually("the replica is unready", async || {
        (!replica.server.is_ready()).then_some(())
    })
    .await;
    // The server closes the connection, although the client would keep it.
    let answer = send(&operator, &replica, path, headers, &review("u")).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.to_lowercase().contains("connection: close"), "{answer}");
    operator.remove().await;
}
