// SPDX-License-Identifier: Apache-2.0
use serde_json::Value as Json;

use super::*;

impl Object {
    fn remembers(&self) -> bool {
        self.sharing
            .load()
            .as_ref()
            .is_some_and(|sharing| !matches!(sharing.value, Value::Nothing))
    }
}

fn objects(count: usize, sharing: &Arc<Sharing>) -> Vec<Arc<Object>> {
    (0..count)
        .map(|number| {
            let json = format!(r#"{{"metadata":{{"name":"{number:09}"}}}}"#);
            let object = Arc::new(Object::from_slice(json.as_bytes()).unwrap());
            object.enter(sharing, None)
        })
        .collect()
}

#[test]
fn guarantee_1_drops_unused_values() {
    let sharing = Arc::new(Sharing::new(0));
    let objects = objects(5000, &sharing);
    let held: Vec<_> = objects[..10]
        .iter()
        .map(|object| object.decoded::<Json>().unwrap())
        .collect();
    for object in &objects {
        object.decoded::<Json>().unwrap();
    }
    let remembering = objects.iter().filter(|object| object.remembers()).count();
    assert!(remembering <= List::SWEEP_AT_LEAST, "{remembering}");
    assert!(Arc::ptr_eq(&held[3], &objects[3].decoded().unwrap()));
}

#[test]
fn guarantee_2_keeps_recently_used_values_within_the_budget() {
    let all = objects(100, &Arc::new(Sharing::new(0)));
    let each = all[0].bytes().len();
    let sharing = Arc::new(Sharing::new(each * 10));
    let objects = objects(100, &sharing);
    for object in &objects {
        object.decoded::<Json>().unwrap();
        // Used all the time.
        assert!(objects[0].decoded::<Json>().is_ok());
    }
    assert_eq!(sharing.usage().held_bytes, each * 10);
    let held = objects
        .iter()
        .filter(|object| object.at_hand::<Json>().is_some())
        .count();
    assert_eq!(held, 10);
    assert!(objects[0].at_hand::<Json>().is_some());
    assert!(objects[99].at_hand::<Json>().is_some());
}

#[test]
fn guarantee_3_drops_a_value_with_its_object() {
    let sharing = Arc::new(Sharing::new(1 << 20));
    let mut objects = objects(10, &sharing);
    let each = objects[0].bytes().len();
    let values: Vec<_> = objects
        .iter()
        .map(|object| Arc::downgrade(&object.decoded::<Json>().unwrap()))
        .collect();
    assert!(values.iter().all(|value| value.strong_count() == 1));
    objects.truncate(3);
    assert_eq!(sharing.usage().held_bytes, 3 * each);
    let living = values.iter().filter(|value| value.strong_count() > 0).count();
    assert_eq!(living, 3);
}

#[test]
fn deleted_objects_leave_nothing_in_the_lists() {
    let sharing = Arc::new(Sharing::new(1 << 20));
    for _ in 0..10 {
        for object in objects(1000, &sharing) {
            object.decoded::<Json>().unwrap();
        }
    }
    let ledger = sharing.ledger.as_ref().unwrap();
    let lists = ledger.lists.lock();
    for list in [&lists.remembering, &lists.holding] {
        assert!(
            list.objects.len() <= List::SWEEP_AT_LEAST,
            "{}",
            list.objects.len()
        );
    }
}

#[test]
fn a_value_of_another_type_replaces_the_first() {
    let sharing = Arc::new(Sharing::new(1 << 20));
    let objects = objects(1, &sharing);
    objects[0].decoded::<Json>().unwrap();
    objects[0].decoded::<serde_json::Map<String, Json>>().unwrap();
    assert_eq!(sharing.usage().held_bytes, objects[0].bytes().len());
}
