// SPDX-License-Identifier: Apache-2.0
//! Label selectors that objects contain: `matchLabels` and `matchExpressions`.

use serde_json::Value;

use super::{Operator, Requirement, Selector};

impl Selector {
    /// Returns the selector of a valid `LabelSelector`; it selects all objects if it has no requirement.
    pub(crate) fn structured(selector: &Value) -> Self {
        let labels = selector.get("matchLabels").and_then(Value::as_object);
        let by_label = labels.into_iter().flatten().map(|(key, value)| Requirement {
            key: key.clone(),
            operator: Operator::In,
            values: vec![value.as_str().unwrap_or_default().to_owned()],
        });
        let expressions = selector.get("matchExpressions").and_then(Value::as_array);
        let by_expression = expressions.into_iter().flatten().map(|expression| {
            let text = |key: &str| expression.get(key).and_then(Value::as_str).unwrap_or_default();
            let values = expression.get("values").and_then(Value::as_array);
            let values = values.into_iter().flatten().filter_map(Value::as_str);
            Requirement {
                key: text("key").to_owned(),
                operator: match text("operator") {
                    "In" => Operator::In,
                    "NotIn" => Operator::NotIn,
                    "DoesNotExist" => Operator::Absent,
                    _ => Operator::Exists,
                },
                values: values.map(str::to_owned).collect(),
            }
        });
        Self {
            labels: by_label.chain(by_expression).collect(),
            fields: Vec::new(),
        }
    }

    /// Returns true if the labels of an object, given as JSON, match.
    pub(crate) fn matches_value(&self, object: &Value) -> bool {
        object.as_object().is_some_and(|object| self.matches(object))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selects_by_labels_and_expressions() {
        let object = json!({"metadata": {"labels": {"app": "web", "tier": "front"}}});
        for (selector, selects) in [
            (json!({}), true),
            (json!({"matchLabels": {"app": "web"}}), true),
            (json!({"matchLabels": {"app": "db"}}), false),
            (
                json!({"matchExpressions": [{"key": "tier", "operator": "In", "values": ["front", "back"]}]}),
                true,
            ),
            (
                json!({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["front"]}]}),
                false,
            ),
            (
                json!({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}),
                true,
            ),
            (
                json!({"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}),
                false,
            ),
        ] {
            assert_eq!(
                Selector::structured(&selector).matches_value(&object),
                selects,
                "{selector}"
            );
        }
    }
}
