// SPDX-License-Identifier: Apache-2.0
//! Limits of requests and retries.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use k8s_openapi::api::{
    core::v1::ConfigMap,
    flowcontrol::v1::{FlowSchema, PriorityLevelConfiguration},
};
use kube::{Api, api::PostParams};
use serde_json::json;
use steersman_cluster::{RateLimit, RequestCount};
use steersman_core::TestClock;
use steersman_testing::{
    Fixture, ServerKind, eventually,
    proxy::{Fault, Matching},
};

use crate::support::{key, object, requests};

// C3
#[steersman_testing::test]
async fn retries_wait_for_the_limit_of_the_cluster(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let builder = crate::support::builder(&fixture, &proxy).request_timeout(Duration::from_secs(5));
    // One retry at once, and the next one after a minute: later than the timeout.
    let cluster = builder
        .retry_limit(RateLimit::new(1.0 / 60.0, 1))
        .build()
        .await
        .unwrap();
    let _busy = proxy.inject(Matching::method("GET"), Fault::answer(503));
    for _ in 0..3 {
        let error = cluster
            .live()
            .get::<ConfigMap>(&key(&fixture, "a"))
            .await
            .unwrap_err();
        assert_eq!(error.status().unwrap().code, 503);
    }
    let retries: u64 = cluster
        .retries()
        .iter()
        .map(|RequestCount { count, .. }| count)
        .sum();
    assert_eq!((retries, requests(&proxy).len()), (1, 4));
}

// C3
#[steersman_testing::test]
async fn a_rate_limit_delays_requests(fixture: Fixture) {
    let (clock, proxy) = (TestClock::new(), fixture.proxy().await);
    let builder = crate::support::builder(&fixture, &proxy).clock(Arc::new(clock.clone()));
    let cluster = builder.rate_limit(RateLimit::new(0.1, 2)).build().await.unwrap();
    let live = cluster.live();
    let get = async || live.get::<ConfigMap>(&key(&fixture, "a")).await;
    get().await.unwrap();
    get().await.unwrap();
    let third = get();
    let advance = async {
        eventually("the third request to wait", async || clock.next_deadline()).await;
        assert_eq!(requests(&proxy).len(), 2);
        clock.advance(Duration::from_secs(10));
    };
    let (third, ()) = tokio::join!(third, advance);
    third.unwrap();
    assert_eq!(requests(&proxy).len(), 3);
}

// C3
#[steersman_testing::test]
async fn requests_in_flight_are_limited_and_watches_are_not(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let builder = crate::support::builder(&fixture, &proxy);
    let cluster = builder.max_in_flight(1).build().await.unwrap();
    // The informer keeps a watch open.
    assert!(
        cluster
            .client()
            .get::<ConfigMap>(&key(&fixture, "a"))
            .await
            .unwrap()
            .is_none()
    );
    let stall = proxy.inject(Matching::method("GET").path("/configmaps/slow"), Fault::stall());
    let live = cluster.live();
    let slow = async { live.get::<ConfigMap>(&key(&fixture, "slow")).await };
    let others = async {
        stall.hit().await;
        let name = key(&fixture, "next");
        let next = live.get::<ConfigMap>(&name);
        // Observed for 200 ms: the request is not sent while the first one is in flight.
        let early = tokio::time::timeout(Duration::from_millis(200), next).await;
        assert!(early.is_err());
        let sent = requests(&proxy)
            .iter()
            .any(|exchange| exchange.path.ends_with("/next"));
        assert!(!sent);
        drop(stall);
        live.get::<ConfigMap>(&key(&fixture, "next")).await
    };
    let (slow, next) = tokio::join!(slow, others);
    slow.unwrap();
    next.unwrap();
}

// C3
#[steersman_testing::test]
async fn counts_rejections_of_api_priority_and_fairness(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cluster = crate::support::cluster(&fixture, &proxy).await;
    // An answer of another filter, or of a gateway.
    let busy = proxy.inject(Matching::method("GET"), Fault::answer(429));
    cluster
        .live()
        .get::<ConfigMap>(&key(&fixture, "a"))
        .await
        .unwrap_err();
    drop(busy);
    assert_eq!(cluster.flow_control_rejections(), []);
    if fixture.server_kind() == ServerKind::Embedded {
        // It limits no requests.
        return;
    }
    let own = fixture.own_server(Default::default()).await;
    let admin = own.endpoint().client(own.admin()).unwrap();
    let levels: Api<PriorityLevelConfiguration> = Api::all(admin.clone());
    let level = object(json!({
        "metadata": {"name": "jail"},
        "spec": {"type": "Limited", "limited": {
            "nominalConcurrencyShares": 0, "lendablePercent": 0, "borrowingLimitPercent": 0, "limitResponse": {"type": "Reject"},
        }},
    }));
    let level = levels.create(&PostParams::default(), &level).await.unwrap();
    let schemas: Api<FlowSchema> = Api::all(admin);
    let schema = object(json!({
        "metadata": {"name": "jail"},
        "spec": {
            "priorityLevelConfiguration": {"name": "jail"}, "matchingPrecedence": 50,
            "rules": [{
                "subjects": [{"kind": "User", "user": {"name": "jailed"}}],
                "resourceRules": [{
                    "apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"], "namespaces": ["default"],
                }],
            }],
        },
    }));
    let schema = schemas.create(&PostParams::default(), &schema).await.unwrap();
    // An administrator is exempt, and so acts as another user.
    let mut config = own.endpoint().config(own.admin()).unwrap();
    config.auth_info.impersonate = Some("jailed".to_owned());
    let cluster = steersman_cluster::Cluster::new(config).unwrap();
    let live = cluster.live().timeout(Duration::from_secs(1));
    eventually("the server to reject requests", async || {
        let key = steersman_core::ObjectKey::new("default", "a");
        // A level without seats still executes one request at a time.
        join_all((0..50).map(|_| live.get::<ConfigMap>(&key))).await;
        (!cluster.flow_control_rejections().is_empty()).then_some(())
    })
    .await;
    let counts = cluster.flow_control_rejections();
    assert_eq!(counts.len(), 1, "{counts:?}");
    assert!(counts[0].count >= 1);
    assert_eq!(Some(&counts[0].flow_schema_uid), schema.metadata.uid.as_ref());
    assert_eq!(Some(&counts[0].priority_level_uid), level.metadata.uid.as_ref());
}
