// SPDX-License-Identifier: Apache-2.0
//! The list of child kinds, as a type. It says which kinds are watched, permitted and accepted by [`Work::child`](crate::Work::child).

use std::{fmt, marker::PhantomData};

use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use serde::{Serialize, de::DeserializeOwned};
use steersman_cache::Resource;
use steersman_runtime::KnownKind;

/// A kind that can be a child: the types of `k8s-openapi` and of `#[derive(CustomResource)]`.
pub trait ChildKind:
    KnownKind + Serialize + DeserializeOwned + Clone + fmt::Debug + Send + Sync + 'static
{
}

impl<C: KnownKind + Serialize + DeserializeOwned + Clone + fmt::Debug + Send + Sync + 'static> ChildKind
    for C
{
}

/// A child kind that might not be installed. It is watched while it is installed, and costs nothing otherwise.
pub struct Optional<C>(PhantomData<fn() -> C>);

impl<C> fmt::Debug for Optional<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Optional")
    }
}

/// An entry of a list of child kinds: a kind, or [`Optional`] of a kind.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a child kind",
    label = "a child kind is a type of `k8s-openapi` or of `#[derive(CustomResource)]`, or `Optional` of one"
)]
pub trait Entry: 'static {
    /// The kind.
    type Child: ChildKind;
    /// True for [`Optional`] kinds.
    const OPTIONAL: bool;
}

#[diagnostic::do_not_recommend]
impl<C: ChildKind> Entry for C {
    type Child = C;
    const OPTIONAL: bool = false;
}

#[diagnostic::do_not_recommend]
impl<C: ChildKind> Entry for Optional<C> {
    type Child = C;
    const OPTIONAL: bool = true;
}

/// Calls a function for each kind of a list.
pub trait KindVisitor {
    /// Visits one entry.
    fn visit<E: Entry>(&mut self);
}

/// A list of child kinds: a tuple of up to eight entries, such as `(Deployment, Optional<Certificate>)`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a list of child kinds",
    label = "a list is a tuple such as `(Deployment, Optional<Certificate>)`",
    note = "a list of one kind has a comma: `({Self},)`"
)]
pub trait KindList: 'static {
    /// Visits the entries in order.
    #[doc(hidden)]
    fn visit(visitor: &mut impl KindVisitor);

    /// Resources of the list; true for optional ones.
    #[must_use]
    fn resources() -> Vec<(Resource, bool)> {
        struct Resources(Vec<(Resource, bool)>);
        impl KindVisitor for Resources {
            fn visit<E: Entry>(&mut self) {
                self.0.push((Resource::of::<E::Child>(), E::OPTIONAL));
            }
        }
        let mut resources = Resources(Vec::new());
        Self::visit(&mut resources);
        resources.0
    }
}

/// A list that has the kind `C`. `I` is its place, which the compiler infers.
#[diagnostic::on_unimplemented(
    message = "`{C}` is not declared as a child of this reconciler",
    label = "only declared kinds are watched and permitted: add `{C}` to `type Children`",
    note = "the declared kinds are `{Self}`"
)]
pub trait Lists<C, I>: KindList {
    /// True for [`Optional`] kinds.
    const OPTIONAL: bool;
}

/// Place of a kind in a list.
#[derive(Debug)]
pub struct At<const N: usize>(());

/// Place of an optional kind in a list.
#[derive(Debug)]
pub struct OptionalAt<const N: usize>(());

/// A kind that no list has. With one candidate only, the compiler would guess it and report a type mismatch instead of the
/// missing declaration.
#[doc(hidden)]
#[derive(Debug)]
pub struct Undeclared(());

/// Place of [`Undeclared`].
#[doc(hidden)]
#[derive(Debug)]
pub struct Nowhere<const N: usize>(());

/// Implements `Lists` for each place of one list: `[kinds before] [number of them] kinds from here on`.
macro_rules! places {
    ([$($before:ident)*] [$n:expr]) => {};
    ([$($before:ident)*] [$n:expr] $here:ident $($after:ident)*) => {
        #[diagnostic::do_not_recommend]
        impl<$($before: Entry,)* $here: ChildKind, $($after: Entry,)*> Lists<$here, At<{ $n }>>
            for ($($before,)* $here, $($after,)*)
        {
            const OPTIONAL: bool = false;
        }
        #[diagnostic::do_not_recommend]
        impl<$($before: Entry,)* $here: ChildKind, $($after: Entry,)*> Lists<$here, OptionalAt<{ $n }>>
            for ($($before,)* Optional<$here>, $($after,)*)
        {
            const OPTIONAL: bool = true;
        }
        places!([$($before)* $here] [$n + 1] $($after)*);
    };
}

macro_rules! lists {
    ($($kind:ident)*) => {
        impl<$($kind: Entry),*> KindList for ($($kind,)*) {
            fn visit(visitor: &mut impl KindVisitor) {
                let _ = &visitor;
                $(visitor.visit::<$kind>();)*
            }
        }
        #[diagnostic::do_not_recommend]
        impl<$($kind: Entry),*> Lists<Undeclared, Nowhere<0>> for ($($kind,)*) {
            const OPTIONAL: bool = false;
        }
        #[diagnostic::do_not_recommend]
        impl<$($kind: Entry),*> Lists<Undeclared, Nowhere<1>> for ($($kind,)*) {
            const OPTIONAL: bool = false;
        }
        places!([] [0] $($kind)*);
        lists!(@shorter $($kind)*);
    };
    (@shorter) => {};
    (@shorter $first:ident $($kind:ident)*) => { lists!($($kind)*); };
}
lists!(A B C D E F G H);

/// Scopes whose objects can be children of objects of scope `S` without a namespace of their own.
#[diagnostic::on_unimplemented(
    message = "the child and its parent are not of one scope",
    label = "a namespaced object has namespaced children, a cluster-scoped object cluster-scoped ones",
    note = "is `namespaced` missing in the `#[kube(…)]` of the parent?",
    note = "for a namespaced child of a cluster-scoped parent, use `child_in`"
)]
pub trait Beside<S> {}

#[diagnostic::do_not_recommend]
impl Beside<Self> for NamespaceResourceScope {}
#[diagnostic::do_not_recommend]
impl Beside<Self> for ClusterResourceScope {}
