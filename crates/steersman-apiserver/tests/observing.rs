// SPDX-License-Identifier: Apache-2.0
//! Who looks on sees each request and how it was answered.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

use std::sync::{Arc, Mutex};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{ListParams, WatchParams},
};
use steersman_apiserver::{ApiServer, Exchange, Identity};

#[tokio::test]
async fn guarantee_1_the_observer_is_called_once_per_request() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&seen);
    let server = ApiServer::builder()
        .rbac(true)
        .observe(move |exchange: &Exchange<'_>| {
            let code = exchange.status.map(|status| status.as_u16());
            let told = (
                exchange.uri.path().to_owned(),
                exchange.user.to_owned(),
                code,
                exchange.is_watch,
            );
            sink.lock().unwrap().push(told);
        })
        .build();
    let maps = |identity| -> Api<ConfigMap> {
        Api::default_namespaced(Client::new(server.service_as(identity), "default"))
    };
    maps(Identity::admin())
        .list(&ListParams::default())
        .await
        .unwrap();
    maps(Identity::user("alice")).get("a").await.unwrap_err();
    let watch = maps(Identity::admin()).watch(&WatchParams::default(), "0").await;
    drop(watch.unwrap());
    let path = "/api/v1/namespaces/default/configmaps".to_owned();
    let told = seen.lock().unwrap().clone();
    assert_eq!(
        told,
        [
            (path.clone(), "admin".to_owned(), Some(200), false),
            (format!("{path}/a"), "alice".to_owned(), Some(403), false),
            (path, "admin".to_owned(), Some(200), true),
        ]
    );
}
