// SPDX-License-Identifier: Apache-2.0
//! What was written through a cache is seen by its readers at once.

use std::sync::{Arc, OnceLock};

use steersman_core::ObjectKey;

use super::{Cache, held::Access};
use crate::{Informer, InvalidObject, Object, Overlay, Resource, Revision};

impl Cache {
    /// The server answered a create, update, patch, apply or status update with this object, as JSON: readers see it, or
    /// something newer, from now on. Nothing happens where nobody reads the resource.
    ///
    /// An informer of a part of the resource shows it if it is in that part. A field selector can say that of name and
    /// namespace only; where it asks for more, the object is shown if it was there before.
    ///
    /// # Errors
    /// When this is no object.
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
                // It has left the part that the informer is about.
                let (key, revision) = (object.key(), object.revision());
                self.overlay(&informer, &overlay)
                    .deleted(&key, object.uid(), Some(&revision));
            }
        }
        Ok(())
    }

    /// The server said that this object is gone, at this revision if it said one: readers see nothing of that uid from
    /// now on.
    ///
    /// A deletion that only begins, because of finalizers or grace, is answered with the object: that is
    /// [`wrote`](Self::wrote).
    pub fn deleted(&self, resource: &Resource, key: &ObjectKey, uid: &str, revision: Option<&Revision>) {
        for Access { informer, overlay } in self.accesses(resource) {
            self.overlay(&informer, &overlay).deleted(key, uid, revision);
        }
    }

    /// The informers of a resource, each with the place for its overlay.
    fn accesses(&self, resource: &Resource) -> Vec<Access> {
        let entries = self.0.lock();
        let of_resource = entries.iter().filter(|((found, _), _)| found == resource);
        of_resource.map(|(_, entry)| entry.access.clone()).collect()
    }

    fn overlay<'a>(&self, informer: &Informer, place: &'a OnceLock<Overlay>) -> &'a Overlay {
        place.get_or_init(|| Overlay::of_informer(informer.store(), Arc::clone(self.0.surroundings.clock())))
    }
}
