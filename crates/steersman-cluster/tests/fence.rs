// SPDX-License-Identifier: Apache-2.0
//! Writes pass fences, each attempt anew, whichever way they take.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{
    convert::Infallible,
    io::{Read, Write},
    net::TcpListener,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::poll;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::StreamBody;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};
use kube::{
    api::{Api, Patch, PostParams},
    client::Body,
};
use serde_json::json;
use steersman_cluster::{Closed, Cluster, DeleteOptions, Error, Fence, FenceKeeper};
use steersman_core::{Clock, ObjectKey, TestClock};
use steersman_testing::{
    FaultProxy, Fixture,
    proxy::{Ended, Exchange, Fault, Matching},
};
use support::{builder, config_map, key, next_deadline, object, parameter};
use tower::service_fn;

const LEASE: Duration = Duration::from_secs(10);

struct Stage {
    clock: TestClock,
    cluster: Cluster,
    proxy: FaultProxy,
    keeper: FenceKeeper,
    fence: Fence,
}

/// A cluster and a fence that is open for as long as a lease.
async fn stage(fixture: &Fixture) -> Stage {
    let (clock, proxy) = (TestClock::new(), fixture.proxy().await);
    let builder = builder(fixture, &proxy).clock(Arc::new(clock.clone()));
    let (keeper, fence) = Fence::new(Arc::new(clock.clone()));
    keeper.open_until(Some(clock.now() + LEASE));
    Stage {
        cluster: builder.build().await.unwrap(),
        clock,
        proxy,
        keeper,
        fence,
    }
}

/// Sources of an error.
fn cause(error: &Error) -> String {
    std::error::Error::source(error).unwrap().to_string()
}

fn writes(proxy: &FaultProxy) -> Vec<Exchange> {
    proxy.exchanges().into_iter().filter(Exchange::is_write).collect()
}

#[steersman_testing::test]
async fn guarantee_1_no_attempt_starts_behind_a_closed_fence(fixture: Fixture) {
    let Stage {
        clock,
        cluster,
        proxy,
        keeper,
        fence,
    } = stage(&fixture).await;
    let client = cluster.client().fenced(fence);
    let map = client.create(&config_map(&fixture, "a", "first")).await.unwrap();
    let told = parameter(&writes(&proxy)[0], "timeout");
    assert_eq!(
        told.as_deref(),
        Some("10000ms"),
        "the server knows how much time there is"
    );

    clock.advance(LEASE);
    let web: Deployment = object(json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "namespace": fixture.namespace()},
        "status": {"replicas": 1},
    }));
    let status = Patch::Merge(json!({"status": {"replicas": 2}}));
    let errors = [
        client.update_status(&web).await.unwrap_err(),
        client.apply_status(&web).await.unwrap_err(),
        client
            .patch_status::<Deployment>(&key(&fixture, "web"), &status)
            .await
            .unwrap_err(),
        client.update(&map).await.unwrap_err(),
        client.apply(&map).await.unwrap_err(),
        client.create(&map).await.unwrap_err(),
        client
            .delete::<ConfigMap>(&key(&fixture, "a"), DeleteOptions::default())
            .await
            .unwrap_err(),
    ];
    for error in errors {
        assert!(error.is_fenced() && !error.may_be_applied(), "{error:?}");
        assert!(
            cause(&error).starts_with("the client rejected the request: "),
            "{error:?}"
        );
    }
    // A reader needs no permission to write.
    let live = client.live();
    assert!(
        live.get::<ConfigMap>(&key(&fixture, "a"))
            .await
            .unwrap()
            .is_some()
    );
    assert!(
        client
            .get::<ConfigMap>(&key(&fixture, "a"))
            .await
            .unwrap()
            .is_some()
    );
    // Others are not held back.
    client.unfenced().update(&map).await.unwrap();

    keeper.open_until(Some(clock.now() + LEASE));
    client.apply(&config_map(&fixture, "b", "first")).await.unwrap();
    assert_eq!(writes(&proxy).len(), 3);
}

#[steersman_testing::test]
async fn guarantee_1_a_client_of_kube_passes_the_same_fences(fixture: Fixture) {
    let Stage {
        cluster,
        proxy,
        keeper,
        fence,
        ..
    } = stage(&fixture).await;
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client().fenced(fence).kube(), fixture.namespace());
    let params = PostParams::default();
    maps.create(&params, &config_map(&fixture, "a", "first"))
        .await
        .unwrap();
    keeper.close("the lease was lost");
    let error = maps
        .create(&params, &config_map(&fixture, "b", "first"))
        .await
        .unwrap_err();
    let kube::Error::Service(source) = &error else {
        panic!("{error:?}")
    };
    let closed = source.downcast_ref::<Closed>().unwrap();
    assert_eq!(&*closed.reason, "the lease was lost");
    assert!(maps.get("a").await.is_ok(), "reads pass");
    assert_eq!(writes(&proxy).len(), 1);
    // The effect of a program in a Pod is unknown.
    let path = format!("/api/v1/namespaces/{}/pods/p/proxy/restart", fixture.namespace());
    let through = http::Request::get(path).body(Vec::new()).unwrap();
    let through = maps.into_client().request_text(through).await;
    assert!(matches!(through, Err(kube::Error::Service(_))));
    assert!(proxy.exchanges().iter().all(|one| !one.path.contains("/proxy/")));
}

#[steersman_testing::test]
async fn guarantee_2_closing_cancels_an_attempt(fixture: Fixture) {
    let Stage {
        clock,
        cluster,
        proxy,
        keeper,
        fence,
    } = stage(&fixture).await;
    let client = cluster.client().fenced(fence);
    let map = config_map(&fixture, "a", "first");
    for end in [&(|| clock.advance(LEASE)) as &dyn Fn(), &|| {
        keeper.close("the lease was lost")
    }] {
        keeper.open_until(Some(clock.now() + LEASE));
        let stall = proxy.inject(Matching::method("POST"), Fault::stall());
        let (written, ()) = futures::join!(client.create(&map), async {
            stall.hit().await;
            end();
        });
        let error = written.unwrap_err();
        assert!(error.is_fenced() && error.may_be_applied(), "{error:?}");
        proxy
            .wait_for(|all| {
                all.iter()
                    .all(|one| one.ended == Some(Ended::ClientGone))
                    .then_some(())
            })
            .await;
    }
}

#[steersman_testing::test]
async fn guarantee_3_an_extended_deadline_keeps_an_attempt(fixture: Fixture) {
    let Stage {
        clock,
        cluster,
        proxy,
        keeper,
        fence,
    } = stage(&fixture).await;
    let client = cluster.client().fenced(fence);
    let map = config_map(&fixture, "a", "first");
    let stall = proxy.inject(Matching::method("POST"), Fault::stall());
    let (written, ()) = futures::join!(client.create(&map), async {
        stall.hit().await;
        clock.advance(LEASE / 2);
        keeper.open_until(Some(clock.now() + LEASE));
        // Past the first deadline.
        clock.advance(LEASE * 3 / 4);
        drop(stall);
    });
    written.unwrap();
}

#[steersman_testing::test]
async fn guarantee_1_the_fence_is_below_retries(fixture: Fixture) {
    let Stage {
        clock,
        cluster,
        proxy,
        keeper,
        fence,
    } = stage(&fixture).await;
    let client = cluster.client().fenced(fence);
    let map = config_map(&fixture, "a", "first");
    let busy = proxy.inject(Matching::method("POST"), Fault::answer_retry_after(429, 1));
    let mut written = pin!(client.create(&map));
    tokio::select! {
        biased;
        _ = &mut written => panic!("it waits to try again"),
        () = busy.hit() => {}
    }
    // It still waits for its next try.
    let waiting = async {
        while cluster.retries().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        _ = &mut written => panic!("it waits to try again"),
        () = waiting => {}
    }
    keeper.close("the lease was lost");
    let error = written.await.unwrap_err();
    assert!(error.is_fenced());
    assert!(!error.may_be_applied(), "the server said that it did nothing");
    assert_eq!(busy.hits(), 1);

    // The next one is tried again as long as the fence is open, and not after.
    keeper.open_until(Some(clock.now() + LEASE));
    let mut written = pin!(client.create(&map));
    assert!(poll!(&mut written).is_pending());
    let (written, ()) = futures::join!(written, async {
        busy.hit_times(2).await;
        clock.advance_to(next_deadline(&clock, Duration::from_secs(2)).await);
        busy.hit_times(3).await;
        clock.advance(LEASE);
    });
    assert!(written.unwrap_err().is_fenced());
    assert_eq!(busy.hits(), 3);
}

/// A server on a separate thread that accepts every create, and counts requests whose body has arrived.
fn counting_server() -> (kube::Config, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let arrived = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&arrived);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, count) = (stream.unwrap(), Arc::clone(&count));
            std::thread::spawn(move || {
                let (mut received, mut chunk) = (Vec::new(), [0; 4096]);
                while let Ok(read) = stream.read(&mut chunk)
                    && read > 0
                {
                    received.extend_from_slice(&chunk[..read]);
                    // The only request with braces is complete when its last one is here.
                    if received.ends_with(b"}") {
                        count.fetch_add(1, Ordering::SeqCst);
                        received.clear();
                        let body = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"n"}}"#;
                        let head =
                            "HTTP/1.1 201 Created\r\ncontent-type: application/json\r\ncontent-length: ";
                        write!(stream, "{head}{}\r\n\r\n{body}", body.len()).unwrap();
                    }
                }
            });
        }
    });
    (kube::Config::new(address.parse().unwrap()), arrived)
}

// R68, D32
#[tokio::test]
async fn guarantee_1_does_not_write_an_attempt_after_its_deadline() {
    let (config, arrived) = counting_server();
    let clock = TestClock::new();
    let builder = Cluster::builder("a")
        .field_manager("tester")
        .config(config)
        .clock(Arc::new(clock.clone()));
    let cluster = builder.build().await.unwrap();
    let (keeper, fence) = Fence::new(Arc::new(clock.clone()));
    let client = cluster.client().fenced(fence);
    let map: ConfigMap = object(json!({"metadata": {"name": "a", "namespace": "n"}}));
    let mut refused = 0;
    // The request is passed from task to task. In each round the time is over when it is one task further.
    for steps in 0..12 {
        keeper.open_until(Some(clock.now() + LEASE));
        // So that there is a connection.
        client.create(&map).await.unwrap();
        let before = arrived.load(Ordering::SeqCst);
        let mut written = pin!(client.create(&map));
        let mut is_done = poll!(&mut written).is_ready();
        for _ in 0..steps {
            tokio::task::yield_now().await;
            is_done = is_done || poll!(&mut written).is_ready();
        }
        if is_done {
            break;
        }
        clock.advance(LEASE);
        // Every task continues, except the one that would cancel the attempt.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        let error = written.await.unwrap_err();
        assert!(error.is_fenced(), "{error:?}");
        if !error.may_be_applied() {
            refused += 1;
            assert_eq!(arrived.load(Ordering::SeqCst), before);
        }
    }
    assert!(refused > 0, "in one of the rounds the last task holds it back");
}

#[tokio::test]
async fn guarantee_2_a_write_without_a_complete_response_may_be_applied() {
    let service = service_fn(async |_: Request<Body>| {
        let rest = futures::stream::pending::<Result<Frame<Bytes>, Infallible>>();
        Ok::<_, Infallible>(Response::new(StreamBody::new(rest)))
    });
    let service = kube::Client::new(service, "default");
    let builder = Cluster::builder("a").field_manager("tester").service(service);
    let cluster = builder.build().await.unwrap();
    let (client, key) = (cluster.live(), ObjectKey::new("n", "a"));
    let map: ConfigMap = object(json!({"metadata": {"name": "a", "namespace": "n"}}));
    let (mut write, mut read) = (pin!(client.create(&map)), pin!(client.get::<ConfigMap>(&key)));
    // The head of the answer is there when the counter says so.
    while cluster.requests().iter().map(|one| one.count).sum::<u64>() < 2 {
        assert!(poll!(&mut write).is_pending() && poll!(&mut read).is_pending());
        tokio::task::yield_now().await;
    }
    cluster.close("it was removed");
    let (write, read) = (write.await.unwrap_err(), read.await.unwrap_err());
    assert!(write.is_fenced() && write.may_be_applied(), "{write:?}");
    assert_eq!(
        cause(&write),
        "the write was aborted while under way, and might have been applied: it was removed"
    );
    assert!(read.is_fenced() && !read.may_be_applied(), "{read:?}");
    assert_eq!(cause(&read), "the client rejected the request: it was removed");
}
