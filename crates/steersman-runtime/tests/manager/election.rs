// SPDX-License-Identifier: Apache-2.0
//! Replicas that contend for a lease, in one process and in real time.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::{elected, managed};
use std::{sync::Arc, time::Duration};

use elected::{LEASE, Replica, Sign, create_map, held_by, holder, is_about_lease, lease, leases, occupy};
use elected::{figure, short, signed, steady, until};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, Patch, PatchParams};
use managed::Running;
use serde_json::json;
use steersman_apiserver::ApiServer;
use steersman_core::Spawner;
use steersman_runtime::{
    BoxError, Controller, Election, LeaseLostPolicy, Manager, RunContext, RunError, RunPolicy,
    RunnableStatus, run_fn,
};
use steersman_testing::{
    FaultProxy, Fixture,
    proxy::{Exchange, Fault, Injected, Matching},
};
use tokio::sync::watch;

/// A runnable that counts its runs, and how many of them last.
fn counted(name: &str, needs: RunPolicy) -> (impl steersman_runtime::Runnable, watch::Receiver<(u32, u32)>) {
    let (sender, counts) = watch::channel((0, 0));
    let sender = Arc::new(sender);
    let runnable = run_fn(name, move |cx: RunContext| {
        let sender = Arc::clone(&sender);
        async move {
            struct Lasting(Arc<watch::Sender<(u32, u32)>>);
            impl Drop for Lasting {
                fn drop(&mut self) {
                    self.0.send_modify(|(_, lasting)| *lasting -= 1);
                }
            }
            sender.send_modify(|(runs, lasting)| {
                *runs += 1;
                *lasting += 1;
            });
            let _lasting = Lasting(sender);
            cx.ready();
            cx.stop().requested().await;
            Ok::<(), BoxError>(())
        }
    });
    (runnable.with_policy(needs), counts)
}

#[steersman_testing::test]
async fn guarantee_9_the_lease_is_that_of_client_go(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    occupy(&fixture, 3).await;
    let election = steady(&fixture, "one").label("app", "test");
    let one = Replica::new(&fixture, &proxy, election, "one", |builder| builder).await;
    let running = one.run();
    one.manager.elected().await;
    let held = lease(&fixture).await;
    assert_eq!(held.metadata.labels.unwrap()["app"], "test");
    let spec = held.spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some("one"));
    assert_eq!(spec.lease_duration_seconds, Some(6));
    assert_eq!(spec.lease_transitions, Some(5), "one more than before");
    let acquired = spec.acquire_time.unwrap();
    until(async || lease(&fixture).await.spec.unwrap().renew_time.unwrap() > acquired).await;
    let renewed = lease(&fixture).await.spec.unwrap();
    assert_eq!(renewed.acquire_time.unwrap(), acquired);
    assert_eq!(renewed.lease_transitions, Some(5));

    running.stop().await.unwrap();
    let spec = lease(&fixture).await.spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref().unwrap_or_default(), "");
    assert_eq!(spec.lease_duration_seconds, Some(1));
    assert_eq!(spec.lease_transitions, Some(5));

    // By connections of its own, each request of which says how long it waits.
    let all = proxy.exchanges();
    let (about_lease, others): (Vec<Exchange>, _) = all.into_iter().partition(is_about_lease);
    assert!(
        others
            .iter()
            .all(|one| about_lease.iter().all(|other| other.connection != one.connection))
    );
    let writes = about_lease.iter().filter(|one| one.is_write());
    assert!(writes.clone().all(|one| one.query.contains("timeout=")) && writes.count() >= 3);
    let watch = about_lease.iter().find(|one| one.is_watch()).unwrap();
    assert!(
        watch
            .query
            .contains(&format!("fieldSelector=metadata.name%3D{LEASE}")),
        "{}",
        watch.query
    );
}

// R62, R63, R81
#[steersman_testing::test]
async fn leader_runnables_run_in_one_replica_and_the_others_in_all(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let mut runnings = Vec::new();
    let mut counts = Vec::new();
    let mut managers = Vec::new();
    for name in ["one", "two"] {
        let replica = Replica::new(&fixture, &proxy, steady(&fixture, name), name, |builder| builder).await;
        let (leader, leads) = counted("leader", RunPolicy::LeaderElected);
        let (always, runs) = counted("always", RunPolicy::AllReplicas);
        replica.manager.add(leader).unwrap();
        replica.manager.add(always).unwrap();
        runnings.push(replica.run());
        managers.push(replica.manager.clone());
        counts.push((leads, runs.clone()));
        if name == "one" {
            replica.manager.elected().await;
        }
        runs.clone().wait_for(|(runs, _)| *runs == 1).await.unwrap();
    }
    counts[0].0.wait_for(|(runs, _)| *runs == 1).await.unwrap();
    assert!(managers[0].is_leading() && !managers[1].is_leading());
    managers[1].leadership_lost().await;
    let status = r#"leader_election_master_status{name="operator"}"#;
    assert_eq!(
        [0, 1].map(|index| figure(&managers[index], status).unwrap()),
        [1.0, 0.0]
    );
    let slow = r#"leader_election_slowpath_total{name="operator"}"#;
    assert_eq!(figure(&managers[0], slow), Some(0.0));

    let two = runnings.pop().unwrap();
    runnings.pop().unwrap().stop().await.unwrap();
    managers[1].elected().await;
    counts[1].0.wait_for(|(runs, _)| *runs == 1).await.unwrap();
    assert_eq!(*counts[0].0.borrow(), (1, 0), "the first has ended");
    assert_eq!(*counts[1].1.borrow(), (1, 1), "what runs always was not touched");
    two.stop().await.unwrap();
}

// R68, R77, R79, R177
#[steersman_testing::test]
async fn guarantee_5_a_replica_that_loses_the_lease_steps_down_and_can_lead_again(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    for name in ["a", "b"] {
        create_map(&fixture, name).await;
    }
    let one = Replica::new(&fixture, &proxy, steady(&fixture, "one"), "one", |builder| {
        builder
    })
    .await;
    let (leader, mut leads) = counted("leader", RunPolicy::LeaderElected);
    one.manager.add(leader).unwrap();
    let log = managed::Log::new();
    Controller::of::<ConfigMap>("maps")
        .warm()
        .add_to(&one.manager, log.clone())
        .unwrap();
    let running = one.run();
    log.when(|log| log.len() == 2).await;
    leads.wait_for(|counts| *counts == (1, 1)).await.unwrap();

    // Another holder writes its name into the lease.
    let theft = json!({"spec": {"holderIdentity": "thief", "renewTime": "2031-01-01T00:00:00.000000Z"}});
    leases(&fixture)
        .patch(LEASE, &PatchParams::default(), &Patch::Merge(&theft))
        .await
        .unwrap();
    one.manager.leadership_lost().await;
    leads.wait_for(|counts| *counts == (1, 0)).await.unwrap();
    create_map(&fixture, "c").await;
    // It waits, and so do all others.
    let pending = r#"controller_warm_pending{controller="maps",name="maps"}"#;
    until(async || figure(&one.manager, pending) == Some(3.0)).await;
    assert_eq!(log.entries().len(), 2);

    // The thief never renews.
    one.manager.elected().await;
    log.when(|log| log.len() == 5).await;
    leads.wait_for(|counts| *counts == (2, 1)).await.unwrap();
    let order: Vec<String> = log.entries()[2..]
        .iter()
        .map(|(request, _)| request.name().to_owned())
        .collect();
    assert_eq!(
        order[0], "c",
        "what is new comes before what is only looked at again"
    );
    assert_eq!(one.watches(&proxy).len(), 1, "the same watch all the time");
    running.stop().await.unwrap();
}

// R177
#[steersman_testing::test]
async fn guarantee_5_a_run_ends_with_an_error_if_that_is_the_policy(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let election = steady(&fixture, "one").on_lease_lost(LeaseLostPolicy::Exit);
    let one = Replica::new(&fixture, &proxy, election, "one", |builder| builder).await;
    let (leader, leads) = counted("leader", RunPolicy::LeaderElected);
    one.manager.add(leader).unwrap();
    let running = one.run();
    leads.clone().wait_for(|counts| *counts == (1, 1)).await.unwrap();
    let theft = json!({"spec": {"holderIdentity": "thief"}});
    leases(&fixture)
        .patch(LEASE, &PatchParams::default(), &Patch::Merge(&theft))
        .await
        .unwrap();
    let error = running.ended().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "leadership was lost: lease `operator`: thief has it"
    );
    assert!(matches!(error, RunError::LeadershipLost { .. }));
    assert_eq!(*leads.borrow(), (1, 0));
    assert_eq!(
        holder(&fixture).await,
        "thief",
        "what is not ours is not given up"
    );
}

// R68
#[steersman_testing::test]
async fn guarantee_6_the_lease_is_not_given_up_before_the_work_has_ended(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let one = Replica::new(&fixture, &proxy, steady(&fixture, "one"), "one", |builder| {
        builder
    })
    .await;
    let (finish, finished) = watch::channel(false);
    let (ending, mut ends) = watch::channel(false);
    let slow = run_fn("slow", move |cx: RunContext| {
        let (mut finished, ending) = (finished.clone(), ending.clone());
        async move {
            cx.stop().requested().await;
            ending.send_replace(true);
            finished.wait_for(|finished| *finished).await?;
            Ok::<(), BoxError>(())
        }
    });
    one.manager.add(slow).unwrap();
    let mut running = one.run();
    one.manager.elected().await;
    managed::stands(&one.manager, "slow", RunnableStatus::is_ready).await;
    running.tell();
    ends.wait_for(|ending| *ending).await.unwrap();
    // It continues to renew while it stops.
    let renewed = lease(&fixture).await.spec.unwrap().renew_time;
    until(async || lease(&fixture).await.spec.unwrap().renew_time > renewed).await;
    assert_eq!(holder(&fixture).await, "one");
    finish.send_replace(true);
    running.ended().await.unwrap();
    assert_eq!(holder(&fixture).await, "");
}

// R68
#[steersman_testing::test]
async fn guarantee_6_the_lease_expires_if_leader_work_does_not_end(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let grace = Duration::from_millis(300);
    let one = Replica::new(&fixture, &proxy, steady(&fixture, "one"), "one", |builder| {
        builder.shutdown_timeout(grace)
    })
    .await;
    // It does not even end when it is cancelled.
    let deaf = run_fn("deaf", async |cx: RunContext| {
        cx.stop().requested().await;
        let clock = Arc::clone(cx.clock());
        let until = clock.now() + Duration::from_secs(2);
        while clock.now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok::<(), BoxError>(())
    });
    one.manager.add(deaf).unwrap();
    let mut running = one.run();
    one.manager.elected().await;
    managed::stands(&one.manager, "deaf", RunnableStatus::is_ready).await;
    running.tell();
    let error = running.ended().await.unwrap_err();
    assert!(
        matches!(&error, RunError::Unfinished { names, .. } if names == &["deaf"]),
        "{error}"
    );
    assert_eq!(holder(&fixture).await, "one");
}

// R68
#[steersman_testing::test]
async fn guarantee_6_work_that_is_ending_does_not_outlive_a_lease_that_is_lost(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let one = Replica::new(&fixture, &proxy, short(&fixture, "one"), "one", |builder| {
        // The lease outlasts the test.
        builder.shutdown_timeout(Duration::from_secs(3600))
    })
    .await;
    let slow = run_fn("slow", async |cx: RunContext| {
        cx.stop().requested().await;
        std::future::pending::<Result<(), BoxError>>().await
    });
    one.manager.add(slow).unwrap();
    let mut running = one.run();
    one.manager.elected().await;
    managed::stands(&one.manager, "slow", RunnableStatus::is_ready).await;
    let stall = proxy.inject(Matching::method("PUT").path("/leases"), Fault::stall());
    stall.hit().await;
    running.tell();
    running.ended().await.unwrap();
}

/// A replica that leads, and one of whose renewals has no answer. None ends for lack of time.
async fn unanswered(fixture: &Fixture, proxy: &FaultProxy, grace: Duration) -> (Replica, Running, Injected) {
    let election = steady(fixture, "one")
        .lease_duration(Duration::from_secs(6000))
        .renew_deadline(Duration::from_secs(4000));
    let one = Replica::new(fixture, proxy, election, "one", |builder| {
        builder.shutdown_timeout(grace)
    })
    .await;
    let running = one.run();
    one.manager.elected().await;
    let renewal = Matching::method("PUT").path("/leases").first(1);
    let held = proxy.inject(renewal, Fault::delay_answer(Duration::from_secs(3600)));
    held.hit().await;
    (one, running, held)
}

#[steersman_testing::test]
async fn guarantee_6_the_lease_is_given_up_also_if_a_renewal_has_no_answer(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let (_one, running, _held) = unanswered(&fixture, &proxy, Duration::from_secs(3600)).await;
    running.stop().await.unwrap();
    assert_eq!(holder(&fixture).await, "");
}

#[steersman_testing::test]
async fn guarantee_6_the_grace_period_holds_also_if_the_lease_cannot_be_given_up(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let (_one, running, _held) = unanswered(&fixture, &proxy, Duration::from_millis(300)).await;
    let _all = proxy.inject(Matching::method("PUT").path("/leases"), Fault::stall());
    running.stop().await.unwrap();
}

#[steersman_testing::test]
async fn guarantee_7_a_lease_that_is_won_while_the_run_ends_starts_nothing(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let one = Replica::new(&fixture, &proxy, steady(&fixture, "one"), "one", |builder| {
        builder
    })
    .await;
    let (leader, leads) = counted("leader", RunPolicy::LeaderElected);
    one.manager.add(leader).unwrap();
    let stall = proxy.inject(Matching::method("POST").path("/leases"), Fault::stall());
    let mut running = one.run();
    stall.hit().await;
    running.tell();
    // The server has it by now, and the answer is on its way.
    held_by(&fixture, "one").await;
    drop(stall);
    running.ended().await.unwrap();
    assert_eq!(holder(&fixture).await, "");
    assert_eq!(*leads.borrow(), (0, 0));
}

// R68
#[steersman_testing::test]
async fn guarantee_1_a_leader_that_cannot_renew_writes_nothing_after_the_deadline(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let election = steady(&fixture, "one");
    let one = Replica::new(&fixture, &proxy, election, "one", |builder| builder).await;
    create_map(&fixture, "busy").await;
    let busy = steersman_runtime::reconcile_fn(
        async |request: steersman_runtime::Request, cx: steersman_runtime::Context| {
            // As fast as it can, also after an error.
            loop {
                let patch = Patch::Merge(json!({"data": {"at": format!("{:?}", cx.clock().now())}}));
                let written = cx.client().patch::<ConfigMap>(request.key(), &patch).await;
                if written.is_err_and(|error| error.is_fenced()) {
                    tokio::task::yield_now().await;
                }
            }
            #[expect(unreachable_code, reason = "it says what the type is")]
            Ok::<_, BoxError>(steersman_core::Action::await_change())
        },
    );
    Controller::of::<ConfigMap>("busy")
        .add_to(&one.manager, busy)
        .unwrap();
    let running = one.run();
    proxy
        .wait_for(|all| (all.iter().filter(|one| one.method == "PATCH").count() > 10).then_some(()))
        .await;
    // From now on no renewal is answered. The server takes them all the same.
    let _lost = proxy.inject(Matching::method("PUT").path("/leases"), Fault::answer(500));
    one.manager.leadership_lost().await;
    let renewals = proxy.exchanges();
    let renewed = renewals
        .iter()
        .rfind(|one| is_about_lease(one) && one.is_write() && matches!(one.status, Some(200 | 201)));
    let deadline = renewed.unwrap().arrived + Duration::from_secs(4);
    let late = one
        .writes(&proxy)
        .iter()
        .map(|write| write.arrived.saturating_duration_since(deadline))
        .max();
    // The proxy sees a request a moment after it was sent. Until the lease ends, no other replica writes.
    assert!(late.unwrap() < Duration::from_secs(2), "{late:?}");
    running.stop().await.unwrap();
}

#[steersman_testing::test]
async fn guarantee_3_where_watching_is_forbidden_candidates_ask_at_intervals(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let _forbidden = proxy.inject(Matching::watches().path("/leases"), Fault::answer(403));
    let (mut runnings, mut users) = (Vec::new(), Vec::new());
    for name in ["one", "two"] {
        let election = short(&fixture, name);
        let one = Replica::new(&fixture, &proxy, election, name, |builder| builder).await;
        users.push(one.user.clone());
        runnings.push((one.run(), one.manager.clone()));
        if name == "one" {
            one.manager.elected().await;
        }
    }
    let (two, standby) = runnings.pop().unwrap();
    let gets = |all: &[Exchange]| {
        let gets = all
            .iter()
            .filter(|one| one.method == "GET" && is_about_lease(one) && !one.is_watch());
        (gets.count() > 6).then_some(())
    };
    proxy.wait_for(gets).await;
    let all = proxy.exchanges();
    let of_standby = all.iter().filter(|one| one.identity.as_ref() == users.last());
    let watches = of_standby.filter(|one| one.is_watch() && is_about_lease(one));
    assert_eq!(watches.count(), 1);
    runnings.pop().unwrap().0.stop().await.unwrap();
    standby.elected().await;
    two.stop().await.unwrap();
}

#[steersman_testing::test]
async fn a_deleted_lease_is_created_again_by_its_holder(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let mut runnings = Vec::new();
    for name in ["one", "two"] {
        let one = Replica::new(&fixture, &proxy, steady(&fixture, name), name, |builder| builder).await;
        runnings.push((one.run(), one.manager.clone()));
        if name == "one" {
            one.manager.elected().await;
        }
    }
    // The second one watches.
    proxy
        .wait_for(|all| {
            all.iter()
                .any(|one| one.is_watch() && is_about_lease(one) && one.bytes > 0)
                .then_some(())
        })
        .await;
    leases(&fixture)
        .delete(LEASE, &DeleteParams::default())
        .await
        .unwrap();
    held_by(&fixture, "one").await;
    assert!(runnings[0].1.is_leading() && !runnings[1].1.is_leading());
    for (running, _) in runnings {
        running.stop().await.unwrap();
    }
}

#[steersman_testing::test]
async fn a_lease_with_foreign_labels_is_read_and_renewed(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let one = Replica::new(&fixture, &proxy, steady(&fixture, "one"), "one", |builder| {
        builder
    })
    .await;
    let running = one.run();
    one.manager.elected().await;
    let label = json!({"metadata": {"labels": {"seen-by": "somebody"}}});
    leases(&fixture)
        .patch(LEASE, &PatchParams::default(), &Patch::Merge(&label))
        .await
        .unwrap();
    let slow = r#"leader_election_slowpath_total{name="operator"}"#;
    until(async || figure(&one.manager, slow) == Some(1.0)).await;
    let renewed = lease(&fixture).await.spec.unwrap().renew_time;
    until(async || lease(&fixture).await.spec.unwrap().renew_time > renewed).await;
    assert!(one.manager.is_leading());
    assert_eq!(
        lease(&fixture).await.metadata.labels.unwrap()["seen-by"],
        "somebody"
    );
    running.stop().await.unwrap();
}

#[steersman_testing::test]
async fn a_claim_whose_answer_was_lost_is_recognized(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let one = Replica::new(&fixture, &proxy, steady(&fixture, "one"), "one", |builder| {
        builder
    })
    .await;
    let lost = proxy.inject(
        Matching::method("POST").path("/leases").first(1),
        Fault::drop_response(),
    );
    let running = one.run();
    lost.hit().await;
    one.manager.elected().await;
    let spec = lease(&fixture).await.spec.unwrap();
    assert_eq!(spec.lease_transitions, Some(0), "it was its own");
    running.stop().await.unwrap();
}

// R82
#[steersman_testing::test]
async fn of_two_replicas_with_defaults_one_writes(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    for name in ["a", "b", "c"] {
        create_map(&fixture, name).await;
    }
    let mut replicas = Vec::new();
    for name in ["one", "two"] {
        let replica = Replica::new(&fixture, &proxy, steady(&fixture, name), name, |builder| builder).await;
        Controller::of::<ConfigMap>("maps")
            .add_to(&replica.manager, Sign(name.to_owned()))
            .unwrap();
        let running = replica.run();
        if name == "one" {
            replica.manager.elected().await;
        }
        replicas.push((replica, running));
    }
    for name in ["a", "b", "c"] {
        signed(&fixture, name, "one").await;
    }
    let (two, running_two) = replicas.pop().unwrap();
    let (one, running_one) = replicas.pop().unwrap();
    assert!(
        two.requests(&proxy).is_empty(),
        "one who is not warm does not even look"
    );
    running_one.stop().await.unwrap();
    for name in ["a", "b", "c"] {
        signed(&fixture, name, "two").await;
    }
    assert_eq!(one.writes(&proxy).len(), 3);
    assert_eq!(two.writes(&proxy).len(), 3);
    running_two.stop().await.unwrap();
}

#[steersman_testing::test]
async fn a_forbidden_lease_is_named_in_readiness(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let forbidden = proxy.inject(Matching::method("GET").path("/leases"), Fault::answer(403));
    let one = Replica::new(&fixture, &proxy, short(&fixture, "one"), "one", |builder| builder).await;
    let running = one.run();
    let name = format!("lease {}/{LEASE}", fixture.namespace());
    until(async || {
        let standing = one.manager.statuses().of(&name);
        matches!(standing, Some(RunnableStatus::Degraded { reason }) if reason.contains("cannot get leases"))
    })
    .await;
    drop(forbidden);
    one.manager.elected().await;
    assert_eq!(one.manager.statuses().of(&name), Some(RunnableStatus::Ready));
    running.stop().await.unwrap();
}

#[steersman_testing::test]
async fn a_run_follows_another_and_a_lease_can_be_kept_at_the_end(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let election = short(&fixture, "one").release_on_stop(false);
    let one = Replica::new(&fixture, &proxy, election, "one", |builder| builder).await;
    for _ in 0..2 {
        let running = one.run();
        // The second one waits until the lease of the first has run out, since it cannot know that the first has ended.
        one.manager.elected().await;
        running.stop().await.unwrap();
        assert!(!one.manager.is_leading());
        assert_eq!(holder(&fixture).await, "one");
    }
    assert_eq!(lease(&fixture).await.spec.unwrap().lease_transitions, Some(1));
}

#[tokio::test]
async fn lease_requests_have_their_own_user_agent() {
    let server = ApiServer::builder().build();
    let (sender, mut agents) = watch::channel(Vec::new());
    let sender = Arc::new(sender);
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let agent = request.headers()[http::header::USER_AGENT]
            .to_str()
            .unwrap()
            .to_owned();
        let is_about_lease = request.uri().path().contains("/leases");
        sender.send_modify(|agents| agents.push((is_about_lease, agent)));
        tower::Service::call(&mut server.service(), request)
    });
    let cluster = steersman_cluster::Cluster::builder("default")
        .field_manager("test")
        .service(kube::Client::new(service, "default"))
        .user_agent("web-operator/1.0")
        .build()
        .await
        .unwrap();
    let election = Election::new(LEASE)
        .namespace("default")
        .spawner(Spawner::current());
    let manager = Manager::builder()
        .cluster(cluster)
        .leader_election(election)
        .build()
        .await
        .unwrap();
    let running = managed::run(&manager);
    manager.elected().await;
    let asked = agents.wait_for(|agents| agents.len() > 1).await.unwrap().clone();
    let of_election = (true, "web-operator/1.0/leader-election".to_owned());
    assert!(asked.iter().all(|asked| *asked == of_election), "{asked:?}");
    running.stop().await.unwrap();
}

#[tokio::test]
async fn an_invalid_election_is_rejected_with_advice() {
    let of = |election: Election| async move {
        let built = Manager::builder()
            .without_cluster()
            .leader_election(election)
            .build()
            .await;
        built.unwrap_err().to_string()
    };
    assert_eq!(
        of("".into()).await,
        "the lease of the election has no name: give one that all replicas of the program share"
    );
    assert_eq!(
        of("web".into()).await,
        "there is no cluster for the lease `web`: give the manager one, or set it with `Election::on`"
    );
    let refused = of(Election::new("web").renew_deadline(Duration::from_secs(20))).await;
    assert!(
        refused.contains("longer than the renew deadline of 20s"),
        "{refused}"
    );
}

#[steersman_testing::test]
async fn without_a_namespace_and_outside_of_a_pod_the_error_has_advice(fixture: Fixture) {
    let cluster = managed::cluster(&fixture).await;
    let built = Manager::builder()
        .cluster(cluster)
        .leader_election("web")
        .build()
        .await;
    assert_eq!(
        built.unwrap_err().to_string(),
        "it is not known in which namespace the lease `web` is: run in a Pod, or set it with `Election::namespace`"
    );
}

#[steersman_testing::test]
async fn a_namespace_that_is_missing_is_named_and_tried_at_the_retry_period(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let missing = format!("{}-later", fixture.namespace());
    let cluster = managed::cluster_through(&fixture, &proxy, "default").await;
    let election = steady(&fixture, "one").namespace(&missing);
    let manager = Manager::builder()
        .cluster(cluster)
        .leader_election(election)
        .build()
        .await
        .unwrap();
    let running = managed::run(&manager);
    let named = format!("namespaces \"{missing}\" not found");
    let lease = format!("lease {missing}/{LEASE}");
    let is_named = |standing: &RunnableStatus| standing.to_string().contains(&named);
    let standings = manager.statuses();
    standings.when(|all| all.get(&lease).is_some_and(is_named)).await;
    let made = |all: &[Exchange]| {
        let made = all
            .iter()
            .filter(|one| one.method == "POST" && is_about_lease(one));
        made.map(|one| one.arrived).collect::<Vec<_>>()
    };
    let tries = proxy
        .wait_for(|all| Some(made(all)).filter(|made| made.len() >= 4))
        .await;
    let pauses: Vec<_> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let is_long = |pause: &Duration| *pause >= Duration::from_millis(300);
    assert!(pauses.iter().all(is_long), "{pauses:?}");
    let standing = standings.of(&lease).unwrap();
    assert!(is_named(&standing), "{standing}");

    let namespaces: kube::Api<k8s_openapi::api::core::v1::Namespace> = kube::Api::all(fixture.client());
    let namespace = serde_json::from_value(json!({"metadata": {"name": missing}})).unwrap();
    namespaces.create(&Default::default(), &namespace).await.unwrap();
    manager.elected().await;
    assert_eq!(standings.of(&lease), Some(RunnableStatus::Ready));
    running.stop().await.unwrap();
    namespaces
        .delete(&missing, &DeleteParams::default())
        .await
        .unwrap();
}
