// SPDX-License-Identifier: Apache-2.0
//! Custom resources: 1.2 KB each, 0.3 KB of it managedFields.

use super::chance::Chance;

/// The annotation that says when the object was sent, in nanoseconds since 1970.
pub const SENT: &str = "bench.example/sent";

/// Stands for the time, with as many digits, until it is known.
pub const SENT_PLACEHOLDER: &str = "0000000000000000000";

/// Widget number `index` as JSON, at this revision.
#[must_use]
pub fn widget(index: usize, revision: usize) -> String {
    let chance = &mut Chance::new(index);
    let (namespace, uid, created) = (index % 50, chance.uid(), chance.time());
    let (owner, owner_uid) = (chance.hex(8), chance.uid());
    let color = chance.one_of(&["amber", "black", "coral", "green", "olive", "white"]);
    let size = chance.one_of(&["small", "medium", "large"]);
    let (digest, replicas) = (chance.hex(64), chance.below(9));
    let (host, port) = (chance.hex(6), 1024 + chance.below(60_000));
    format!(
        r#"{{"apiVersion":"bench.example/v1","kind":"Widget","metadata":{{"annotations":{{"{SENT}":"{SENT_PLACEHOLDER}"}},"creationTimestamp":"{created}","generation":1,"labels":{{"color":"{color}","size":"{size}"}},"managedFields":[{{"apiVersion":"bench.example/v1","fieldsType":"FieldsV1","fieldsV1":{{"f:metadata":{{"f:annotations":{{".":{{}},"f:{SENT}":{{}}}},"f:labels":{{".":{{}},"f:color":{{}},"f:size":{{}}}}}},"f:spec":{{".":{{}},"f:color":{{}},"f:image":{{}},"f:replicas":{{}}}}}},"manager":"widgetctl","operation":"Update","time":"{created}"}}],"name":"widget-{index:06}","namespace":"team-{namespace:02}","ownerReferences":[{{"apiVersion":"bench.example/v1","blockOwnerDeletion":true,"controller":true,"kind":"Shelf","name":"shelf-{owner}","uid":"{owner_uid}"}}],"resourceVersion":"{revision}","uid":"{uid}"}},"spec":{{"color":"{color}","image":"registry.example/widgets/{size}@sha256:{digest}","replicas":{replicas},"size":"{size}","endpoints":[{{"host":"{host}.widgets.example","port":{port}}}]}},"status":{{"readyReplicas":{replicas},"conditions":[{{"type":"Ready","status":"True","reason":"AllReplicasReady","lastTransitionTime":"{created}"}}]}}}}"#
    )
}

/// Gadget number `index`: it is as a Widget, and Widget number `index` owns it.
#[must_use]
pub fn gadget(index: usize, revision: usize) -> String {
    let widget = widget(index, revision);
    let (before, owner) = widget
        .split_once(r#""kind":"Shelf","name":""#)
        .unwrap_or_default();
    let (_, after) = owner.split_once('"').unwrap_or_default();
    let before = before
        .replace(r#""kind":"Widget""#, r#""kind":"Gadget""#)
        .replace(r#""name":"widget-"#, r#""name":"gadget-"#);
    format!(r#"{before}"kind":"Widget","name":"widget-{index:06}"{after}"#)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_widget_has_the_documented_size() {
        let widget = widget(77, 78);
        assert!((1_150..1_300).contains(&widget.len()), "{}", widget.len());
        let value: serde_json::Value = serde_json::from_str(&widget).unwrap();
        let fields = value["metadata"]["managedFields"].to_string().len();
        assert!((270..360).contains(&fields), "{fields}");
    }

    #[test]
    fn a_gadget_belongs_to_its_widget() {
        let gadget: serde_json::Value = serde_json::from_str(&gadget(77, 78)).unwrap();
        assert_eq!(gadget["kind"], "Gadget");
        assert_eq!(gadget["metadata"]["name"], "gadget-000077");
        assert_eq!(gadget["metadata"]["ownerReferences"][0]["name"], "widget-000077");
    }
}
