// SPDX-License-Identifier: Apache-2.0
//! Children of an object that is only observed: would an apply change them?

use std::sync::Arc;

use serde_json::Value;
use steersman_cache::{Object, ObjectDetail};

use super::{ChildError, Children, Desired, Settled};

impl Children {
    /// Asks the server by a dry run whether an apply would change the child. The answer is remembered if it would not.
    pub(super) async fn observe(
        &self,
        desired: &Desired,
        object: &Arc<Object>,
    ) -> Result<Option<Settled>, ChildError> {
        let client = self.client.dry_run();
        let values = client.of_as::<Value>(desired.resource(), ObjectDetail::Full);
        let answer = match values
            .patch(desired.key(), &desired.apply_patch(object.uid()))
            .await
        {
            Ok(answer) => answer,
            Err(error) => return self.unless_replaced(desired, object, error).await,
        };
        let Some(live) = self.live_value(desired).await? else {
            return Ok(None);
        };
        if content(&live) == content(&answer) {
            self.remember(desired, &answer).await?;
            return Ok(Some(Settled::Live(Arc::clone(object))));
        }
        Ok(Some(Settled::Withheld(Some(Arc::clone(object)))))
    }
}

/// Returns an object without the metadata that every write changes.
fn content(object: &Value) -> Value {
    let mut content = object.clone();
    if let Some(metadata) = content.get_mut("metadata").and_then(Value::as_object_mut) {
        for name in ["managedFields", "resourceVersion", "generation"] {
            metadata.remove(name);
        }
    }
    content
}
