// SPDX-License-Identifier: Apache-2.0
//! A cluster in which everything that uses the CA acts at random moments.

use std::{sync::Arc, time::Duration};

use k8s_openapi::{ByteString, api::core::v1::Secret};
use proptest::prelude::*;
use rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier},
    pki_types::{ServerName, UnixTime},
};

use super::*;
use crate::certificates::{
    Certificates, Source,
    authority::Leaf,
    leaf::CurrentLeaf,
    secret::{ROTATE, SWITCHED_AT},
};

const NAME: &str = "web-webhooks.web-system.svc";
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Time until an API server sees a changed registration object. It is shorter than the propagation delay.
const LAG: Duration = Duration::from_secs(20);

fn settings() -> Managed {
    let certificates = Certificates::managed()
        .ca_lifetime(120 * DAY)
        .leaf_lifetime(30 * DAY);
    match certificates.0 {
        Source::Managed(managed) => managed,
        Source::Files { .. } => unreachable!("it was created as managed"),
    }
}

/// A registration object: the stored bundle, and the one that the API server uses.
#[derive(Default)]
struct Registration {
    stored: Vec<CaCert>,
    seen: Vec<CaCert>,
    changed_at: Option<SystemTime>,
}

/// A replica gets calls only once it was ready: its leaf verified against every stored bundle.
#[derive(Default)]
struct Replica {
    leaf: CurrentLeaf,
    is_ready: bool,
}

struct World {
    now: SystemTime,
    settings: Managed,
    secret: Option<Secret>,
    registrations: [Registration; 3],
    replicas: [Replica; 3],
    log: Vec<String>,
}

#[derive(Clone, Debug)]
enum Event {
    Leader,
    /// The leader ends before it has published everything.
    InterruptedLeader(usize),
    Replica(usize),
    Restart(usize),
    Advance(Duration),
    Rotate,
    Delete,
    Garbage,
}

impl World {
    fn new() -> Self {
        Self {
            now: SystemTime::UNIX_EPOCH + 20_000 * DAY,
            settings: settings(),
            secret: None,
            registrations: Default::default(),
            replicas: Default::default(),
            log: Vec::new(),
        }
    }

    fn found(&self) -> Found {
        match &self.secret {
            None => Found::Absent,
            Some(secret) => match CaState::parse(secret) {
                Ok(state) => Found::Valid(Box::new(state)),
                Err(error) => Found::Invalid(error.to_string()),
            },
        }
    }

    fn leader(&mut self, publishes: usize) {
        let bundles = self
            .registrations
            .iter()
            .map(|one| one.stored.clone())
            .filter(|one| !one.is_empty());
        let published = Published {
            bundles: bundles.collect(),
        };
        let found = self.found();
        let step = plan("web", self.now, &found, &published, &self.settings).unwrap();
        let state = match (step, found) {
            (Some(step), _) => {
                self.log.push(step.reason);
                step.state.write(self.secret.get_or_insert_default());
                step.state
            }
            (None, Found::Valid(state)) => *state,
            (None, _) => panic!("a leader always ends with a CA"),
        };
        for registration in self.registrations.iter_mut().take(publishes) {
            if registration.stored != state.trusted {
                registration.stored.clone_from(&state.trusted);
                registration.changed_at = Some(self.now);
            }
        }
    }

    fn replica(&mut self, index: usize) {
        let Found::Valid(state) = self.found() else { return };
        let names = [NAME.to_owned()];
        let leaf = &self.replicas[index].leaf;
        leaf.renew(&state, &names, self.now, self.settings.leaf_lifetime)
            .unwrap();
        let leaf = leaf.get();
        let verifies = |one: &Registration| {
            leaf.as_ref()
                .is_some_and(|leaf| verifies(leaf, &one.stored, self.now))
        };
        let is_ready = self.registrations.iter().all(verifies);
        self.replicas[index].is_ready |= is_ready;
    }

    fn advance(&mut self, by: Duration) {
        self.now += by;
        for registration in &mut self.registrations {
            if registration.changed_at.is_some_and(|at| self.now >= at + LAG) {
                registration.seen.clone_from(&registration.stored);
                registration.changed_at = None;
            }
        }
    }

    fn everyone(&mut self) {
        self.leader(3);
        (0..3).for_each(|index| self.replica(index));
        self.check();
    }

    fn run(&mut self, event: &Event) {
        match event {
            Event::Leader => self.leader(3),
            Event::InterruptedLeader(publishes) => self.leader(*publishes),
            Event::Replica(index) => self.replica(*index),
            Event::Restart(index) => self.replicas[*index] = Replica::default(),
            Event::Advance(by) => {
                // Replicas check the CA often; here, three times a minute apart and then every day.
                let small = Duration::from_secs(60);
                let steps = by.as_secs() / DAY.as_secs();
                let steps = [small; 3].into_iter().chain((0..steps).map(|_| DAY));
                for step in steps {
                    self.advance(step);
                    self.check();
                    self.everyone();
                }
            }
            Event::Rotate => {
                if let Some(secret) = &mut self.secret {
                    let annotations = secret.metadata.annotations.get_or_insert_default();
                    annotations.insert(ROTATE.to_owned(), "now".to_owned());
                }
            }
            Event::Delete => self.secret = None,
            Event::Garbage => {
                let secret = self.secret.get_or_insert_default();
                let garbage = ByteString(b"garbage".to_vec());
                secret
                    .data
                    .get_or_insert_default()
                    .insert("tls.crt".to_owned(), garbage);
            }
        }
        self.check();
    }

    /// Checks every leaf in use against every bundle in use.
    fn check(&self) {
        for leaf in self
            .replicas
            .iter()
            .filter(|replica| replica.is_ready)
            .filter_map(|one| one.leaf.get())
        {
            for bundle in self
                .registrations
                .iter()
                .map(|one| &one.seen)
                .filter(|seen| !seen.is_empty())
            {
                assert!(verifies(&leaf, bundle, self.now), "{:#?}", self.log);
            }
        }
    }
}

fn verifies(leaf: &Leaf, bundle: &[CaCert], now: SystemTime) -> bool {
    if bundle.is_empty() {
        return false;
    }
    let mut roots = RootCertStore::empty();
    bundle
        .iter()
        .for_each(|cert| roots.add(cert.der().clone()).unwrap());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
    let now = UnixTime::since_unix_epoch(now.duration_since(SystemTime::UNIX_EPOCH).unwrap());
    let name = ServerName::try_from(NAME).unwrap();
    let verifier = verifier.build().unwrap();
    verifier
        .verify_server_cert(&leaf.key.cert[0], &[], &name, &[], now)
        .is_ok()
}

fn events() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => Just(Event::Leader),
        2 => (0..3_usize).prop_map(Event::InterruptedLeader),
        4 => (0..3_usize).prop_map(Event::Replica),
        1 => (0..3_usize).prop_map(Event::Restart),
        4 => (0..40_u32).prop_map(|days| Event::Advance(days * DAY)),
        2 => Just(Event::Rotate),
        1 => Just(Event::Delete),
        1 => Just(Event::Garbage),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    // R69
    #[test]
    fn guarantee_1_every_leaf_in_use_verifies_against_every_bundle(events in prop::collection::vec(events(), 1..30)) {
        let mut world = World::new();
        for event in &events {
            world.run(event);
        }
        // However it went, it ends with one CA and leaves of it.
        world.run(&Event::Advance(35 * DAY));
        prop_assert!(world.replicas.iter().all(|replica| replica.is_ready));
    }
}

#[test]
fn a_rotation_has_three_phases() {
    let mut world = World::new();
    world.run(&Event::Advance(Duration::ZERO));
    assert_eq!(world.log, ["creating a new CA: there is no CA Secret"]);
    world.log.clear();
    world.run(&Event::Rotate);
    world.run(&Event::Advance(35 * DAY));
    let expected = [
        "rotating the CA",
        "the next CA is published",
        "the next CA signs from now on",
        "dropping CAs whose leaves have expired",
    ];
    assert_eq!(world.log, expected);
    assert_eq!(world.registrations[0].seen.len(), 1);
}

#[test]
fn a_ca_is_rotated_after_two_thirds_of_its_life() {
    let mut world = World::new();
    world.run(&Event::Advance(79 * DAY));
    assert_eq!(world.log.len(), 1);
    world.run(&Event::Advance(3 * DAY));
    assert!(
        world.log.contains(&"rotating the CA".to_owned()),
        "{:?}",
        world.log
    );
}

#[test]
fn guarantee_2_an_expired_ca_is_replaced_at_once() {
    let mut world = World::new();
    world.everyone();
    world.now += 121 * DAY;
    world.leader(3);
    (0..3).for_each(|index| world.replica(index));
    world.advance(LAG);
    world.check();
    assert_eq!(world.log[1], "creating a new CA: the CA has expired");
    assert!(
        matches!(world.found(), Found::Valid(state) if state.signer.is_some() && state.trusted.len() == 1)
    );
}

#[test]
fn guarantee_2_a_lost_secret_keeps_the_published_ca_trusted() {
    for event in [Event::Delete, Event::Garbage] {
        let mut world = World::new();
        world.run(&Event::Advance(Duration::ZERO));
        world.run(&event);
        world.leader(3);
        let Found::Valid(state) = world.found() else {
            panic!("the CA was not created again")
        };
        assert!(state.signer.is_none() && state.next.is_some());
        assert_eq!(state.trusted.len(), 2);
        world.run(&Event::Advance(Duration::ZERO));
        world.run(&Event::Advance(Duration::ZERO));
        assert!(
            world.log.last().unwrap().contains("signs from now on"),
            "{:?}",
            world.log
        );
    }
}

#[test]
fn guarantee_1_without_the_time_of_the_switch_the_old_ca_stays_for_the_lifetime_of_a_leaf() {
    let mut world = World::new();
    world.run(&Event::Advance(Duration::ZERO));
    world.run(&Event::Rotate);
    world.run(&Event::Advance(Duration::ZERO));
    world.run(&Event::Advance(Duration::ZERO));
    assert_eq!(world.log.last().unwrap(), "the next CA signs from now on");
    let secret = world.secret.as_mut().unwrap();
    secret.metadata.annotations.as_mut().unwrap().remove(SWITCHED_AT);
    world.log.clear();
    let trusted = |world: &World| match world.found() {
        Found::Valid(state) => state.trusted.len(),
        found => panic!("{found:?}"),
    };
    world.run(&Event::Advance(29 * DAY));
    assert_eq!(
        world.log,
        ["the time of the last switch is unknown: it counts as now"]
    );
    assert_eq!(trusted(&world), 2);
    world.run(&Event::Advance(2 * DAY));
    assert_eq!(trusted(&world), 1);
}

#[test]
fn guarantee_3_debug_output_has_no_keys() {
    let authority = Authority::generate("web", SystemTime::UNIX_EPOCH + DAY, DAY).unwrap();
    let debug = format!("{authority:?}");
    assert!(!debug.contains("PRIVATE") && !debug.contains("key"), "{debug}");
}
