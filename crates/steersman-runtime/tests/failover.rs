// SPDX-License-Identifier: Apache-2.0
//! Two replicas as two processes, of which the leader is killed, stopped, or made to wait.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "manager/elected/mod.rs"]
mod elected;
#[path = "manager/managed/mod.rs"]
mod managed;
#[path = "manager/processes/mod.rs"]
mod processes;

use std::time::{Duration, Instant};

use elected::{create_map, held_by, is_about_lease, signed, user};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use processes::{Chronicle, DURATION, Program, RENEW, be_a_replica};
use rustix::process::Signal;
use steersman_testing::{
    FaultProxy, Fixture, ServerKind,
    proxy::{Ended, Exchange, Fault, Matching},
};

/// Work of the child processes; does nothing in the test itself.
#[test]
fn replica() {
    be_a_replica();
}

struct Stage {
    proxy: FaultProxy,
    chronicle: Chronicle,
    one: Program,
    two: Program,
}

/// One leads and has signed, two is warm.
async fn stage(fixture: &Fixture) -> Stage {
    let proxy = fixture.proxy().await;
    create_map(fixture, "a").await;
    let identities = [user(fixture, "one").await, user(fixture, "two").await];
    let chronicle = Chronicle::begin(fixture);
    let mut one = Program::replica(fixture, &proxy, &identities[0], "one");
    one.says("leading", 1).await;
    signed(fixture, "a", "one").await;
    let mut two = Program::replica(fixture, &proxy, &identities[1], "two");
    two.says("warm", 1).await;
    Stage {
        proxy,
        chronicle,
        one,
        two,
    }
}

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

fn of<'a>(all: &'a [Exchange], program: &Program) -> impl DoubleEndedIterator<Item = &'a Exchange> {
    let user = program.user.clone();
    all.iter().filter(move |one| one.identity.as_ref() == Some(&user))
}

/// When the first write of a program arrived, other than those of its lease.
async fn first_write(proxy: &FaultProxy, program: &Program) -> Instant {
    let first = |all: &[Exchange]| {
        let mut writes = of(all, program).filter(|one| one.is_write() && !is_about_lease(one));
        Some(writes.next()?.arrived)
    };
    proxy.wait_for(first).await
}

/// The last renewal that was taken.
fn taken_renewal<'a>(all: &'a [Exchange], program: &Program) -> Option<&'a Exchange> {
    let mut renewals = of(all, program).filter(|one| is_about_lease(one) && one.is_write());
    renewals.rfind(|one| matches!(one.status, Some(200 | 201)))
}

/// The same, once all are answered: an answer may have arrived and not be noted yet.
async fn last_renewal(proxy: &FaultProxy, program: &Program) -> Exchange {
    let last = |all: &[Exchange]| {
        let mut renewals = of(all, program).filter(|one| is_about_lease(one) && one.is_write());
        renewals.next_back().filter(|one| !one.is_open())?;
        taken_renewal(all, program).cloned()
    };
    proxy.wait_for(last).await
}

/// Limit for a busy machine. `cargo xtask bench failover` measures the real time.
const SLACK: Duration = Duration::from_secs(2);

// R77, R78
#[steersman_testing::test]
async fn a_killed_leader_is_followed_at_the_end_of_its_lease(fixture: Fixture) {
    let Stage {
        proxy,
        chronicle,
        one,
        two,
    } = stage(&fixture).await;
    one.send(Signal::KILL);
    let killed = now();
    let wrote = first_write(&proxy, &two).await;
    let renewed = last_renewal(&proxy, &one).await;
    assert!(renewed.arrived < killed + SLACK);
    let after = wrote - renewed.arrived;
    assert!(after >= DURATION, "{after:?}: before the lease had run out");
    assert!(after < DURATION + SLACK, "{after:?}");
    signed(&fixture, "a", "two").await;
    assert_eq!(chronicle.judge().await, ["one", "two"]);
}

/// How many objects there are besides the one that is looked at. `STEERSMAN_OBJECTS` says another number.
fn many(fixture: &Fixture) -> usize {
    let asked = std::env::var("STEERSMAN_OBJECTS").ok();
    let asked = asked.map(|asked| asked.parse().unwrap());
    asked.unwrap_or(match fixture.server_kind() {
        ServerKind::Embedded => 20_000,
        _ => 4_000,
    })
}

/// Creates objects that the first leader has no need to write, by the quickest way there is.
async fn create_many(fixture: &Fixture) {
    let client = match fixture.embedded_server() {
        Some(embedded) => kube::Client::new(embedded.server().service(), fixture.namespace()),
        None => fixture.client(),
    };
    let maps: Api<ConfigMap> = Api::namespaced(client, fixture.namespace());
    let create = async |number: usize| {
        let mut map = managed::config_map(fixture, &format!("many-{number}"), "1");
        map.data
            .get_or_insert_default()
            .insert("seen".to_owned(), "one".to_owned());
        maps.create(&Default::default(), &map).await.map(|_| ())
    };
    let created = stream::iter(0..many(fixture)).map(create).buffer_unordered(32);
    created.try_collect::<()>().await.unwrap();
}

/// How long a list takes: a minute would show no more than this. `STEERSMAN_LIST_DELAY_SECONDS` says another time;
/// `cargo xtask test --long` does.
fn list_delay() -> Duration {
    let asked = std::env::var("STEERSMAN_LIST_DELAY_SECONDS").ok();
    Duration::from_secs(asked.map_or(8, |asked| asked.parse().unwrap()))
}

/// One leads, and the list of two took long until it was warm.
async fn slow_stage(fixture: &Fixture) -> (FaultProxy, Program, Program) {
    let proxy = fixture.proxy().await;
    create_many(fixture).await;
    create_map(fixture, "a").await;
    let identities = [user(fixture, "one").await, user(fixture, "two").await];
    let mut one = Program::replica(fixture, &proxy, &identities[0], "one");
    one.says("leading", 1).await;
    signed(fixture, "a", "one").await;
    let slow = list_delay();
    let _delay = proxy.inject(Matching::method("GET").path("/configmaps"), Fault::delay(slow));
    let began = now();
    let mut two = Program::replica(fixture, &proxy, &identities[1], "two");
    two.says("warm", 1).await;
    assert!(now() - began >= slow);
    let all = proxy.exchanges();
    assert!(
        of(&all, &two).all(|one| !one.is_write()),
        "a standby writes nothing, not even the lease"
    );
    (proxy, one, two)
}

/// It opened one watch, of which the list is a part, and did not list again.
fn assert_watched_once(proxy: &FaultProxy, program: &Program) {
    let all = proxy.exchanges();
    let reads = of(&all, program).filter(|one| one.path.ends_with("/configmaps") && !one.is_write());
    let reads: Vec<_> = reads.collect();
    assert!(matches!(&*reads, [one] if one.is_watch()), "{reads:#?}");
}

// R78, R79, R80, R86
#[steersman_testing::test]
async fn a_slow_list_of_many_objects_adds_nothing_to_the_failover_after_a_kill(fixture: Fixture) {
    let (proxy, one, two) = slow_stage(&fixture).await;
    one.send(Signal::KILL);
    let wrote = first_write(&proxy, &two).await;
    let after = wrote - last_renewal(&proxy, &one).await.arrived;
    assert!(after >= DURATION, "{after:?}: before the lease had run out");
    assert!(after < DURATION + SLACK, "{after:?}");
    assert_watched_once(&proxy, &two);
}

// R68, R78, R79, R80, R86
#[steersman_testing::test]
async fn a_slow_list_of_many_objects_adds_nothing_to_the_failover_after_a_clean_stop(fixture: Fixture) {
    let (proxy, one, two) = slow_stage(&fixture).await;
    one.send(Signal::TERM);
    let wrote = first_write(&proxy, &two).await;
    let released = last_renewal(&proxy, &one).await;
    let after = wrote - released.last_byte.unwrap();
    assert!(
        after < SLACK,
        "{after:?}: nobody has to wait for the end of the lease"
    );
    assert_eq!(one.ended().await, Some(0));
    assert_watched_once(&proxy, &two);
}

// R68
#[steersman_testing::test]
async fn a_stopped_leader_releases_its_lease_before_it_expires(fixture: Fixture) {
    let Stage {
        proxy,
        chronicle,
        mut one,
        two,
    } = stage(&fixture).await;
    one.send(Signal::TERM);
    one.says("deposed", 1).await;
    let wrote = first_write(&proxy, &two).await;
    let released = last_renewal(&proxy, &one).await;
    assert_eq!(released.ended, Some(Ended::Complete));
    let after = wrote - released.last_byte.unwrap();
    assert!(
        after < SLACK,
        "{after:?}: nobody has to wait for the end of the lease"
    );
    signed(&fixture, "a", "two").await;
    assert_eq!(one.ended().await, Some(0));
    assert_eq!(chronicle.judge().await, ["one", "two"]);
}

// R68
#[steersman_testing::test]
async fn a_leader_suspended_for_twice_its_lease_writes_nothing_when_it_resumes(fixture: Fixture) {
    let Stage {
        proxy,
        chronicle,
        mut one,
        two,
    } = stage(&fixture).await;
    // It is in the middle of a reconcile: a write of it waits for its answer.
    let held = proxy.inject(
        Matching::method("PUT").path("/configmaps").identity(&one.user),
        Fault::stall(),
    );
    create_map(&fixture, "b").await;
    held.hit().await;
    one.send(Signal::STOP);
    let stopped = now();
    held_by(&fixture, "two").await;
    signed(&fixture, "a", "two").await;
    tokio::time::sleep_until((stopped + 2 * DURATION).into()).await;
    create_map(&fixture, "c").await;
    // The answer is there when it wakes up, and there is work to do.
    drop(held);
    let before = of(&proxy.exchanges(), &one).filter(|one| one.is_write()).count();
    one.send(Signal::CONT);
    one.says("deposed", 1).await;
    // It takes part again: it watches the lease.
    let watches = |all: &[Exchange]| {
        let watch = of(all, &one).find(|one| one.is_watch() && is_about_lease(one));
        watch.map(|_| ())
    };
    proxy.wait_for(watches).await;
    signed(&fixture, "c", "two").await;
    let after = of(&proxy.exchanges(), &one).filter(|one| one.is_write()).count();
    assert_eq!(after, before, "neither objects nor the lease");
    // Its earlier writes were within its term. The other replica has signed the object since.
    signed(&fixture, "b", "two").await;
    assert_eq!(chronicle.judge().await, ["one", "two"]);
    drop(two);
}

/// Shows that a write without an answer is cancelled when renewals fail in this way.
async fn is_cancelled_at_the_deadline(fixture: &Fixture, renewals: Fault) {
    let Stage { proxy, one, two, .. } = stage(fixture).await;
    let held = proxy.inject(
        Matching::method("PUT").path("/configmaps").identity(&one.user),
        Fault::stall(),
    );
    create_map(fixture, "b").await;
    held.hit().await;
    let lost = proxy.inject(
        Matching::method("PUT").path("/leases").identity(&one.user),
        renewals,
    );
    let cancelled = |all: &[Exchange]| {
        let mut writes = of(all, &one).filter(|one| one.is_write() && !is_about_lease(one));
        writes.any(|one| one.ended == Some(Ended::ClientGone)).then(now)
    };
    let cancelled = proxy.wait_for(cancelled).await;
    // With one that was under way when the others were lost.
    let renewed = taken_renewal(&proxy.exchanges(), &one).unwrap().arrived;
    let cancelled = cancelled - renewed;
    assert!(cancelled < RENEW + Duration::from_millis(900), "{cancelled:?}");
    assert!(cancelled < DURATION, "before anybody else can have the lease");
    drop(held);
    // The one that cannot renew is no more, so that it is the other who takes over.
    drop(one);
    drop(lost);
    signed(fixture, "b", "two").await;
    drop(two);
}

// R68
#[steersman_testing::test]
async fn a_write_without_an_answer_is_cancelled_at_the_deadline_of_a_leader_that_cannot_renew(
    fixture: Fixture,
) {
    is_cancelled_at_the_deadline(&fixture, Fault::answer(503)).await;
}

// R68
#[steersman_testing::test]
async fn a_write_without_an_answer_is_cancelled_also_if_renewals_are_not_answered_at_all(fixture: Fixture) {
    is_cancelled_at_the_deadline(&fixture, Fault::stall()).await;
}
