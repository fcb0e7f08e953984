// SPDX-License-Identifier: Apache-2.0
//! Request handling: from a parsed request to its reply.
//!
//! This code runs under the server's lock and never waits. A reply that has to wait (a watch, a read at a future
//! revision) is returned as a plan.

mod components;
pub(crate) mod create;
pub(crate) mod decode;
pub(crate) mod delete;
pub(crate) mod discovery;
mod health;
mod logs;
pub(crate) mod metrics;
pub(crate) mod negotiate;
pub(crate) mod openapi;
pub(crate) mod options;
pub(crate) mod patch;
pub(crate) mod read;
pub(crate) mod review;
pub(crate) mod scale;
pub(crate) mod special;
pub(crate) mod timeout;
pub(crate) mod update;
pub(crate) mod watch;

use std::{sync::Arc, time::SystemTime};

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    auth::Identity,
    representation::Representation,
    resource::{Resource, Version, builtin},
    route::{self, Query, ResourcePath, Route, Verb},
    server::Inner,
    state::Context,
    status::{Failure, FieldError, Qualified, Result},
    store::{Object, Stored},
};

use negotiate::Form;

/// A received request whose path is not parsed yet.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: Query,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) identity: Identity,
    /// Time of arrival; ages in tables count up to it.
    pub(crate) received: SystemTime,
}

impl Call {
    /// Returns a header as text; empty if it is absent.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    }

    /// Returns the verb and resource path, if the request addresses resources.
    pub(crate) fn resource_request(&self) -> Option<(Verb, ResourcePath)> {
        let Route::Resource(path) = Route::parse(&self.path) else {
            return None;
        };
        let verb = route::verb(&self.method, !path.name.is_empty(), self.query.flag("watch"))?;
        Some((verb, path))
    }

    /// Returns the field manager: the `fieldManager` parameter, or the start of the user agent.
    pub(crate) fn manager(&self) -> String {
        let manager = match self.query.filled("fieldManager") {
            Some(manager) => manager,
            None => self.header("user-agent").split('/').next().unwrap_or_default(),
        };
        manager.chars().take(128).collect()
    }
}

/// The resource that a request addresses.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) resource: Arc<Resource>,
    /// Index of the version.
    pub(crate) version: usize,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) subresource: String,
}

impl Target {
    /// Returns the target of a request for this object in its storage version.
    pub(crate) fn of(resource: &Arc<Resource>, stored: &Stored) -> Self {
        Self {
            resource: Arc::clone(resource),
            version: resource.strategy.storage_version,
            namespace: stored.text("namespace"),
            name: stored.text("name"),
            subresource: String::new(),
        }
    }

    pub(crate) fn version(&self) -> &Version {
        &self.resource.versions[self.version]
    }

    pub(crate) fn key(&self) -> String {
        self.resource.key(&self.namespace, &self.name)
    }

    pub(crate) fn not_found(&self) -> Failure {
        Failure::not_found(self.resource.qualified(), &self.name)
    }

    pub(crate) fn api_version(&self) -> String {
        self.resource.api_version(&self.version().name)
    }
}

/// A response before it is serialized.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) code: StatusCode,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) warnings: Vec<String>,
    pub(crate) content: Content,
}

/// The body of a reply, or how to produce it.
#[derive(Debug)]
pub(crate) enum Content {
    Bytes(Bytes),
    /// A list that is serialized after the lock is released.
    List(Box<ListContent>),
    Watch(Box<watch::Plan>),
    /// Retry once the store reaches this revision.
    Wait(u64),
}

/// A list that is not serialized yet.
#[derive(Debug)]
pub(crate) struct ListContent {
    pub(crate) representation: Representation,
    pub(crate) metadata: Object,
    pub(crate) items: Vec<Arc<Stored>>,
}

impl ListContent {
    /// Returns true if the items need the conversion webhook of their kind.
    pub(crate) fn is_unconverted(&self) -> bool {
        self.representation.is_by_webhook()
    }

    /// Converts the items by the conversion webhook of their kind.
    ///
    /// # Errors
    /// Returns the failure of the webhook.
    pub(crate) async fn convert(&mut self, server: &Arc<Inner>) -> Result<()> {
        self.items = self.representation.convert(server, &self.items).await?;
        Ok(())
    }
}

impl Reply {
    pub(crate) fn bytes(code: StatusCode, bytes: Bytes) -> Self {
        Self {
            code,
            headers: Vec::new(),
            warnings: Vec::new(),
            content: Content::Bytes(bytes),
        }
    }

    pub(crate) fn json(code: StatusCode, value: &Value) -> Self {
        Self::bytes(code, Bytes::from(value.to_string()))
    }

    pub(crate) fn text(text: &'static str) -> Self {
        let mut reply = Self::bytes(StatusCode::OK, Bytes::from_static(text.as_bytes()));
        reply
            .headers
            .push(("content-type", "text/plain; charset=utf-8".to_owned()));
        reply
    }

    pub(crate) fn content(content: Content) -> Self {
        Self {
            code: StatusCode::OK,
            headers: Vec::new(),
            warnings: Vec::new(),
            content,
        }
    }

    pub(crate) fn warned(mut self, warnings: Vec<String>) -> Self {
        self.warnings.extend(warnings);
        self
    }
}

/// Handles a request.
///
/// # Errors
/// Returns the failure to respond with.
pub(crate) fn dispatch(cx: &mut Context<'_>, call: &Call) -> Result<Reply> {
    let authorized = crate::auth::authorize::check(cx, call);
    match Route::parse(&call.path) {
        Route::Resource(path) => {
            let result = authorized.and_then(|()| resource(cx, call, &path));
            if !crate::admission::is_waiting(cx) {
                cx.state.metrics.count(call, &path, &result);
            }
            result
        }
        route => authorized.and_then(|()| unstored(cx, call, route)),
    }
}

/// Handles a request that addresses no resource.
fn unstored(cx: &mut Context<'_>, call: &Call, route: Route) -> Result<Reply> {
    match route {
        Route::Resource(path) => resource(cx, call, &path),
        Route::CoreVersions => discovery::core(cx, call),
        Route::Groups => discovery::groups(cx, call),
        Route::Group(group) => discovery::group(cx, &group),
        Route::GroupVersion(group, version) => discovery::group_version(cx, &group, &version),
        Route::Other => other(cx, call),
    }
}

fn other(cx: &mut Context<'_>, call: &Call) -> Result<Reply> {
    let path = call.path.trim_end_matches('/');
    match path {
        "/version" => Ok(Reply::json(StatusCode::OK, &discovery::version())),
        "/metrics" => Ok(metrics::answer(cx)),
        "" => Ok(Reply::json(StatusCode::OK, &discovery::paths(cx))),
        "/openapi/v2" => Ok(openapi::version_2(call)),
        "/openapi/v3" => Ok(openapi::index(cx)),
        _ => match path.strip_prefix("/openapi/v3/") {
            Some(path) => openapi::document(cx, call, path),
            None => health::answer(path, call).unwrap_or_else(|| Err(Failure::unknown_path())),
        },
    }
}

fn resource(cx: &mut Context<'_>, call: &Call, path: &ResourcePath) -> Result<Reply> {
    if let Some(failure) = crate::apiservice::unavailable(cx, &path.group, &path.version) {
        return Err(failure);
    }
    let target = find(cx, path)?;
    let verb = route::verb(&call.method, !path.name.is_empty(), call.query.flag("watch"))
        .ok_or_else(Failure::method_not_allowed)?;
    let mut reply = match target.subresource.as_str() {
        "" => main(cx, call, &target, verb),
        _ => subresource(cx, call, &target, verb),
    }?;
    if let Some(deprecation) = &target.version().deprecation {
        reply.warnings.insert(0, deprecation.clone());
    }
    Ok(reply)
}

/// Resolves a path to the resource that it names.
fn find(cx: &Context<'_>, path: &ResourcePath) -> Result<Target> {
    let missing = || {
        if cx.state.registry.has_builtin_group(&path.group) {
            Failure::unknown_resource()
        } else {
            Failure::unknown_path()
        }
    };
    let resource = cx
        .state
        .registry
        .find(&path.group, &path.resource)
        .ok_or_else(missing)?;
    let version = resource
        .versions
        .iter()
        .position(|version| version.name == path.version && version.served)
        .ok_or_else(missing)?;
    let is_namespace = resource.is("", "namespaces");
    let wrong_scope = match (resource.namespaced, path.namespace.is_empty()) {
        (true, true) => !path.name.is_empty(),
        (false, false) => !is_namespace,
        _ => false,
    };
    let target = Target {
        resource: Arc::clone(resource),
        version,
        namespace: if resource.namespaced {
            path.namespace.clone()
        } else {
            String::new()
        },
        name: path.name.clone(),
        subresource: path.subresource.clone(),
    };
    if wrong_scope {
        return Err(missing());
    }
    if !path.subresource.is_empty() && target.version().subresource(&path.subresource).is_none() {
        return Err(if target.resource.custom.is_some() {
            target.not_found()
        } else {
            Failure::unknown_resource()
        });
    }
    Ok(target)
}

fn main(cx: &mut Context<'_>, call: &Call, target: &Target, verb: Verb) -> Result<Reply> {
    let named = !target.name.is_empty();
    let misplaced = match verb {
        Verb::Create => named,
        Verb::Update | Verb::Patch => !named,
        _ => false,
    };
    let known = target.resource.verbs.iter().any(|known| known == verb.name());
    let is_nowhere = verb == Verb::Create
        && target.resource.namespaced
        && target.namespace.is_empty()
        && !review::is_review(target);
    if is_nowhere && target.resource.custom.is_some() {
        return Err(Failure::unknown_path());
    }
    if misplaced || !known || is_nowhere {
        return Err(Failure::method_not_allowed());
    }
    if review::is_review(target) {
        return review::create(cx, call, target);
    }
    if target.resource.is("", "componentstatuses") {
        return components::answer(target, verb);
    }
    match verb {
        Verb::Get => read::get(cx, call, target),
        Verb::List => read::list(cx, call, target),
        Verb::Watch => watch::start(cx, call, target),
        Verb::Create => create::create(cx, call, target),
        Verb::Update => update::update(cx, call, target),
        Verb::Patch => patch::patch(cx, call, target),
        Verb::Delete => delete::delete(cx, call, target),
        Verb::DeleteCollection => delete::delete_collection(cx, call, target),
    }
}

fn subresource(cx: &mut Context<'_>, call: &Call, target: &Target, verb: Verb) -> Result<Reply> {
    let verbs = target
        .version()
        .subresource(&target.subresource)
        .map(|sub| sub.verbs.clone())
        .unwrap_or_default();
    // A subresource without this verb responds 405, as on the real server.
    if !verbs.iter().any(|known| known == verb.name()) {
        return Err(Failure::method_not_allowed());
    }
    match (target.subresource.as_str(), verb) {
        ("scale", Verb::Get) => scale::get(cx, target),
        ("scale", Verb::Update) => scale::update(cx, call, target),
        ("scale", Verb::Patch) => scale::patch(cx, call, target),
        ("token", Verb::Create) => special::token_request(cx, call, target),
        ("eviction", Verb::Create) => special::evict(cx, call, target),
        ("binding", Verb::Create) => special::bind(cx, call, target),
        ("log", Verb::Get) => logs::read(cx, call, target),
        (sub, _) if builtin::NEEDS_KUBELET.contains(&sub) => Err(special::connect(cx, call, target)),
        (_, Verb::Get) => read::get(cx, call, target),
        (_, Verb::Update) => update::update(cx, call, target),
        (_, Verb::Patch) => patch::patch(cx, call, target),
        _ => Err(Failure::method_not_allowed()),
    }
}

/// Builds the reply that carries one object.
pub(crate) fn object_reply(
    call: &Call,
    target: &Target,
    code: StatusCode,
    object: &Written,
) -> Result<Reply> {
    let representation = representation(call, target)?;
    let bytes = match object {
        Written::Stored(stored) => representation.whole(stored),
        Written::Transient(object) => representation.whole_object(object),
    };
    Ok(Reply::bytes(code, bytes))
}

/// The outcome of a write.
#[derive(Debug)]
pub(crate) enum Written {
    Stored(Arc<Stored>),
    /// The object is not stored in this form: a dry run, or a deleted object.
    Transient(Box<Object>),
}

impl Written {
    pub(crate) fn object(&self) -> Arc<Object> {
        match self {
            Self::Stored(stored) => stored.object(),
            Self::Transient(object) => Arc::new(Object::clone(object)),
        }
    }
}

pub(crate) fn representation(call: &Call, target: &Target) -> Result<Representation> {
    let form = negotiate::form(call.header("accept"), &call.query)?;
    Ok(Representation::new(
        &target.resource,
        target.version(),
        form,
        call.received,
    ))
}

/// Returns the full form, ignoring the client's `Accept` header.
pub(crate) fn full(target: &Target) -> Representation {
    Representation::new(
        &target.resource,
        target.version(),
        Form::Full,
        SystemTime::UNIX_EPOCH,
    )
}

/// Handling of unknown and duplicate fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

/// Query options that all writes share.
#[derive(Clone, Debug)]
pub(crate) struct WriteOptions {
    pub(crate) dry_run: bool,
    pub(crate) validation: FieldValidation,
    pub(crate) manager: String,
}

impl WriteOptions {
    /// Parses the options from the query; `kind` names them in errors.
    pub(crate) fn parse(call: &Call, kind: &str) -> Result<Self> {
        let mut errors = Vec::new();
        let values: Vec<&str> = call.query.all("dryRun").collect();
        if let Some(error) = check_dry_run(&values) {
            errors.push(error);
        }
        if let Some(manager) = call.query.filled("fieldManager") {
            if manager.len() > 128 {
                errors.push(FieldError::too_long("fieldManager", 128));
            } else if let Some((at, bad)) = manager.char_indices().find(|(_, c)| c.is_control()) {
                let detail = format!("should only contain printable characters; got {bad:?} at {at}");
                errors.push(FieldError::invalid(
                    "fieldManager",
                    &Value::from(manager),
                    &detail,
                ));
            }
        }
        let validation = match call.query.get("fieldValidation").unwrap_or_default() {
            "" | "Warn" => FieldValidation::Warn,
            "Ignore" => FieldValidation::Ignore,
            "Strict" => FieldValidation::Strict,
            other => {
                let supported = ["", "Ignore", "Strict", "Warn"].map(str::to_owned);
                errors.push(FieldError::unsupported(
                    "fieldValidation",
                    &Value::from(other),
                    &supported,
                ));
                FieldValidation::Warn
            }
        };
        if !errors.is_empty() {
            return Err(Failure::invalid(
                Qualified {
                    group: "meta.k8s.io",
                    name: kind,
                },
                "",
                &errors,
            ));
        }
        Ok(Self {
            dry_run: !values.is_empty(),
            validation,
            manager: call.manager(),
        })
    }
}

/// Returns the error in the values of `dryRun`, if there is one.
pub(crate) fn check_dry_run(values: &[&str]) -> Option<FieldError> {
    let all = values.iter().all(|value| *value == "All");
    (!all).then(|| FieldError::unsupported("dryRun", &json!(values), &["All".to_owned()]))
}
