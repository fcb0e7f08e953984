// SPDX-License-Identifier: Apache-2.0
//! A store with its indexes, relists and overlay against a map that is looked at from end to end.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use kube::core::Expression;
use proptest::prelude::*;
use steersman_cache::{
    Index, Object, Overlay, Query, Representation, Store, StoreOptions, StoreWriter, store,
};
use steersman_core::TestClock;

/// Everything that a test can tell of an object.
#[derive(Clone, Debug, PartialEq)]
struct Thing {
    namespace: String,
    name: String,
    uid: u8,
    revision: u32,
    tier: Option<u8>,
    values: Vec<u8>,
}

type Model = BTreeMap<(String, String), Thing>;

#[derive(Clone, Debug)]
enum Step {
    Apply(Thing),
    Remove(Thing),
    Begin,
    End,
    Abandon,
    /// Asks, which makes indexes of namespaces and labels.
    Ask(Ask),
    AddIndex,
    Clear,
}

#[derive(Clone, Debug, Default)]
struct Ask {
    namespace: Option<String>,
    tier: Option<u8>,
    not_tier: Option<u8>,
    /// One of these two tiers.
    tiers: Option<(u8, u8)>,
    has_tier: bool,
    values: Vec<u8>,
    limit: Option<usize>,
}

fn thing() -> impl Strategy<Value = Thing> {
    let place = ("[ab]", "[a-e]", 0_u8..2);
    let content = (
        1_u32..40,
        prop::option::of(0_u8..3),
        prop::collection::vec(0_u8..4, 0..3),
    );
    (place, content).prop_map(|((namespace, name, uid), (revision, tier, values))| Thing {
        namespace,
        name,
        uid,
        revision,
        tier,
        values,
    })
}

fn ask() -> impl Strategy<Value = Ask> {
    (
        prop::option::of("[abc]"),
        prop::option::of(0_u8..3),
        prop::option::of(0_u8..3),
        (prop::option::of((0_u8..3, 0_u8..3)), any::<bool>()),
        prop::collection::vec(0_u8..4, 0..3),
        prop::option::of(0_usize..4),
    )
        .prop_map(
            |(namespace, tier, not_tier, (tiers, has_tier), values, limit)| Ask {
                namespace,
                tier,
                not_tier,
                tiers,
                has_tier,
                values,
                limit,
            },
        )
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => thing().prop_map(Step::Apply),
        4 => thing().prop_map(Step::Remove),
        1 => Just(Step::Begin),
        1 => Just(Step::End),
        1 => Just(Step::Abandon),
        4 => ask().prop_map(Step::Ask),
        1 => Just(Step::AddIndex),
        1 => Just(Step::Clear),
    ]
}

impl Thing {
    fn object(&self) -> Object {
        let labels = self
            .tier
            .map_or_else(String::new, |tier| format!(r#""tier":"{tier}""#));
        let json = format!(
            r#"{{"metadata":{{"name":"{}","namespace":"{}","uid":"{}","resourceVersion":"{}","labels":{{{labels}}}}},"values":{:?}}}"#,
            self.name, self.namespace, self.uid, self.revision, self.values
        );
        Object::from_slice(json.as_bytes()).expect("an object")
    }

    fn key(&self) -> (String, String) {
        (self.namespace.clone(), self.name.clone())
    }

    /// Reports whether it equals the new object, or is a newer revision of the same uid.
    fn is_as_new(&self, other: &Self) -> bool {
        self == other || (self.uid == other.uid && self.revision > other.revision)
    }
}

#[derive(Debug, PartialEq, serde::Deserialize)]
struct Values {
    values: Vec<u8>,
}

fn by_value() -> Index<u8> {
    Index::on("value", |object: &Values| object.values.clone())
}

impl Ask {
    fn query(&self, index: &Index<u8>) -> Query {
        let mut query = Query::new();
        if let Some(namespace) = &self.namespace {
            query = query.namespace(namespace);
        }
        if let Some(tier) = self.tier {
            query = query.label("tier", &tier.to_string());
        }
        if let Some(tier) = self.not_tier {
            query = query.labels(Expression::NotEqual("tier".into(), tier.to_string()));
        }
        if let Some((one, other)) = self.tiers {
            let tiers = [one.to_string(), other.to_string()].into();
            query = query.labels(Expression::In("tier".into(), tiers));
        }
        if self.has_tier {
            query = query.labels(Expression::Exists("tier".into()));
        }
        for value in &self.values {
            query = query.index(index, *value);
        }
        match self.limit {
            Some(limit) => query.limit(limit),
            None => query,
        }
    }

    fn wants(&self, thing: &Thing) -> bool {
        self.namespace
            .as_ref()
            .is_none_or(|namespace| *namespace == thing.namespace)
            && self.tier.is_none_or(|tier| thing.tier == Some(tier))
            && self.not_tier.is_none_or(|tier| thing.tier != Some(tier))
            && self
                .tiers
                .is_none_or(|(one, other)| [Some(one), Some(other)].contains(&thing.tier))
            && (!self.has_tier || thing.tier.is_some())
            && self.values.iter().all(|value| thing.values.contains(value))
    }

    /// A store returns the same as the model, up to the limit.
    fn check(&self, store: &Store, model: &Model, index: &Index<u8>) -> Result<(), TestCaseError> {
        let wanted: BTreeSet<_> = model
            .values()
            .filter(|thing| self.wants(thing))
            .map(|thing| (thing.key(), thing.revision.to_string()))
            .collect();
        let listed = store.list(&self.query(index));
        let found: BTreeSet<_> = listed.iter().map(|object| describe(object)).collect();
        prop_assert_eq!(found.len(), listed.len(), "nothing is there twice");
        let typed: Result<Vec<_>, _> = store.list_as::<Values>(&self.query(index)).collect();
        let untyped: Result<Vec<_>, _> = listed.iter().map(|object| object.decoded::<Values>()).collect();
        prop_assert_eq!(typed.expect("they are"), untyped.expect("they are"));
        match self.limit {
            None => prop_assert_eq!(found, wanted),
            Some(limit) => {
                prop_assert_eq!(found.len(), limit.min(wanted.len()));
                prop_assert!(found.is_subset(&wanted));
            }
        }
        Ok(())
    }
}

fn describe(object: &Object) -> ((String, String), String) {
    let key = (object.namespace().to_owned(), object.name().to_owned());
    (key, object.resource_version().to_owned())
}

/// Does a step to both, and compares what they say of it.
fn run(
    step: &Step,
    (writer, store): (&mut StoreWriter, &Store),
    model: &mut Model,
    seen: &mut Option<BTreeSet<(String, String)>>,
    index: &Index<u8>,
) -> Result<(), TestCaseError> {
    match step {
        Step::Apply(thing) => {
            let old = model.get(&thing.key()).cloned();
            if let Some(seen) = seen {
                seen.insert(thing.key());
            }
            let change = writer.apply(thing.object());
            if old.as_ref().is_some_and(|old| old.is_as_new(thing)) {
                prop_assert!(change.is_none());
            } else {
                let change = change.expect("it is newer");
                let before = change.before().map(|object| object.resource_version().to_owned());
                prop_assert_eq!(before, old.map(|old| old.revision.to_string()));
                model.insert(thing.key(), thing.clone());
            }
        }
        Step::Remove(thing) => {
            let is_there = model
                .get(&thing.key())
                .is_some_and(|old| old.revision <= thing.revision);
            prop_assert_eq!(writer.remove(&thing.object()).is_some(), is_there);
            if is_there {
                model.remove(&thing.key());
            }
        }
        Step::Begin => {
            writer.begin_replace();
            *seen = Some(BTreeSet::new());
        }
        Step::End => {
            let gone: BTreeSet<_> = writer
                .end_replace()
                .iter()
                .map(|object| describe(object).0)
                .collect();
            let expected: BTreeSet<_> = match seen.take() {
                Some(seen) => model.keys().filter(|key| !seen.contains(*key)).cloned().collect(),
                None => BTreeSet::new(),
            };
            model.retain(|key, _| !expected.contains(key));
            prop_assert_eq!(gone, expected);
        }
        Step::Abandon => {
            writer.abandon_replace();
            *seen = None;
        }
        Step::Clear => {
            prop_assert_eq!(writer.clear().len(), model.len());
            model.clear();
            *seen = None;
        }
        Step::AddIndex => prop_assert!(store.add_index(index).is_ok()),
        Step::Ask(ask) => ask.check(store, model, index)?,
    }
    Ok(())
}

proptest! {
    // R121 R128
    #[test]
    fn a_store_behaves_like_a_map(
        steps in prop::collection::vec(step(), 1..120),
        representation in prop::sample::select(vec![Representation::bytes(), Representation::decoded::<Values>()]),
    ) {
        let (mut writer, store) = store(StoreOptions::new().representation(representation));
        let index = by_value();
        let mut model = Model::new();
        let mut seen = None;
        for step in &steps {
            run(step, (&mut writer, &store), &mut model, &mut seen, &index)?;
            prop_assert_eq!(store.len(), model.len());
            let bytes: usize = store.list(&Query::new()).iter().map(|object| object.bytes().len()).sum();
            prop_assert_eq!(store.bytes(), bytes);
            for thing in model.values() {
                let found = store.get(&thing.namespace, &thing.name).expect("the model has it");
                prop_assert_eq!(found.resource_version(), thing.revision.to_string());
                let typed = store.get_as::<Values>(&thing.namespace, &thing.name).expect("it is one");
                prop_assert_eq!(&typed.expect("the model has it").values, &thing.values);
            }
        }
        Ask::default().check(&store, &model, &index)?;
        for value in 0..4 {
            Ask { values: vec![value], ..Ask::default() }.check(&store, &model, &index)?;
        }
    }

    /// The watch delivers the same history later; the writer sees it now, and neither sees a change twice.
    #[test]
    fn an_overlay_shows_the_newest_of_store_and_writes(
        history in prop::collection::vec((thing(), any::<bool>(), any::<bool>()), 1..60),
        lag in 0_usize..8,
        asks in prop::collection::vec(ask(), 1..4),
    ) {
        let (mut writer, raw) = store(StoreOptions::new());
        let overlay = Overlay::new(&raw, Arc::new(TestClock::new()));
        let (reader, index) = (overlay.store(), by_value());
        prop_assert!(raw.add_index(&index).is_ok());
        // The history of the server: revisions count up, a uid is never used again, all writes are ours.
        let mut truth = Model::new();
        let mut uids = 0;
        let mut events = Vec::new();
        for (number, (thing, is_deletion, is_created_anew)) in history.iter().enumerate() {
            let revision = number as u32 + 1;
            let mut thing = Thing { revision, ..thing.clone() };
            match truth.get(&thing.key()).cloned() {
                Some(old) if *is_deletion => {
                    truth.remove(&thing.key());
                    let key = steersman_core::ObjectKey::new(&thing.namespace, &thing.name);
                    overlay.deleted(&key, &old.uid.to_string(), None);
                    events.push((Thing { revision, ..old }, true));
                }
                old => {
                    if old.is_none() || *is_created_anew {
                        uids += 1;
                    }
                    thing.uid = old.map_or(uids, |old| old.uid);
                    truth.insert(thing.key(), thing.clone());
                    overlay.wrote(thing.object());
                    events.push((thing, false));
                }
            }
            if let Some((event, is_deletion)) = events.len().checked_sub(lag + 1).map(|at| events[at].clone()) {
                let object = event.object();
                writer.advance_to(object.resource_version());
                if is_deletion {
                    writer.remove(&object);
                } else {
                    writer.apply(object);
                }
            }
            for ask in &asks {
                ask.check(&reader, &truth, &index)?;
            }
            for thing in truth.values() {
                let found = reader.get(&thing.namespace, &thing.name).expect("it was written");
                prop_assert_eq!(found.resource_version(), thing.revision.to_string());
            }
        }
        if lag == 0 {
            prop_assert!(overlay.is_empty());
        }
    }
}
