// SPDX-License-Identifier: Apache-2.0
//! Makes writes through a cache visible to its readers immediately.

use std::sync::{Arc, OnceLock};

use steersman_core::ObjectKey;

use super::{Cache, handle::Access};
use crate::{Informer, InvalidObject, Object, Overlay, Resource, Revision};

impl Cache {
    /// Records the object, as JSON, with which the server answered a create, update, patch, apply or status update. From now on
    /// readers see this object or a newer state. Does nothing if the resource has no informer.
    ///
    /// An informer with a narrower scope shows the object if the scope contains it. A field selector can be evaluated locally for
    /// name and namespace only. If it selects by other fields, the object is shown if the informer had it before.
    ///
    /// # Errors
    /// If the JSON is no Kubernetes object.
    pub fn wrote(&self, resource: &Resource, json: &[u8]) -> Result<(), InvalidObject> {
        for Access { informer, overlay } in self.accesses(resource) {
            let object = Object::from_slice(json)?;
            let is_in = informer.store().admits(&object)
                && informer.scope().holds(&object).unwrap_or_else(|| {
                    let known = informer.store().get(object.namespace(), object.name());
                    known.is_some_and(|known| known.uid() == object.uid())
                });
            let shown = || match overlay.get() {
                Some(overlay) => overlay.store().get(object.namespace(), object.name()),
                None => informer.store().get(object.namespace(), object.name()),
            };
            if is_in {
                self.overlay(&informer, &overlay).wrote(object);
            } else if shown().is_some_and(|shown| shown.uid() == object.uid()) {
                // The write moved the object out of the informer's scope.
                let (key, revision) = (object.key(), object.revision());
                self.overlay(&informer, &overlay)
                    .deleted(&key, object.uid(), Some(&revision));
            }
        }
        Ok(())
    }

    /// Records that the server deleted an object, at this revision if the response had one. From now on readers see no object of
    /// this uid.
    ///
    /// If the deletion only begins, because of finalizers or a grace period, the server answers with the object: use
    /// [`wrote`](Self::wrote).
    pub fn deleted(&self, resource: &Resource, key: &ObjectKey, uid: &str, revision: Option<&Revision>) {
        for Access { informer, overlay } in self.accesses(resource) {
            self.overlay(&informer, &overlay).deleted(key, uid, revision);
        }
    }

    /// Returns the informers of a resource, each with the cell of its overlay.
    fn accesses(&self, resource: &Resource) -> Vec<Access> {
        let entries = self.0.entries.lock();
        let of_resource = entries.iter().filter(|((found, _), _)| found == resource);
        of_resource.map(|(_, entry)| entry.access.clone()).collect()
    }

    fn overlay<'a>(&self, informer: &Informer, place: &'a OnceLock<Overlay>) -> &'a Overlay {
        place.get_or_init(|| Overlay::of_informer(informer.store(), Arc::clone(self.0.context.clock())))
    }
}
