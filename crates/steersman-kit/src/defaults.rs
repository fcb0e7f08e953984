// SPDX-License-Identifier: Apache-2.0
//! Default values of optional fields.

/// Sets default values of fields that an object does not have. A controller applies them in memory, and never writes them to
/// the server: an object that was stored before a field existed reconciles as if it had the field.
///
/// ```
/// use steersman_kit::Defaults;
///
/// #[derive(Default)]
/// struct Web { replicas: Option<i32> }
///
/// impl Defaults for Web {
///     fn set_defaults(&mut self) {
///         self.replicas.get_or_insert(1);
///     }
/// }
///
/// let mut web = Web::default();
/// web.set_defaults();
/// assert_eq!(web.replicas, Some(1));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no defaults",
    label = "implement `Defaults` for `{Self}`, or do not call `.defaulted()`"
)]
pub trait Defaults {
    /// Sets the default of each field that has no value. Calling it twice changes nothing.
    fn set_defaults(&mut self);
}
