// SPDX-License-Identifier: Apache-2.0
//! Authentication: identities, bearer tokens and impersonation.

pub(crate) mod authorize;
pub(crate) mod rbac;
pub(crate) mod token;

use std::{
    collections::{BTreeMap, HashMap},
    time::SystemTime,
};

use serde_json::{Value, json};

use token::{Bound, Claims, ISSUER};

use crate::{
    handler::Call,
    state::Context,
    status::{Failure, Qualified, Result},
};

/// The user that sends a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    name: String,
    uid: String,
    groups: Vec<String>,
    /// Extra attributes, such as the Pod that a token is bound to.
    extra: BTreeMap<String, Vec<String>>,
}

impl Identity {
    /// Creates an authenticated user.
    #[must_use]
    pub fn user(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            uid: String::new(),
            groups: vec!["system:authenticated".to_owned()],
            extra: BTreeMap::new(),
        }
    }

    /// Adds the user to a group. Members of `system:masters` are allowed everything.
    #[must_use]
    pub fn group(mut self, group: impl Into<String>) -> Self {
        let last = self.groups.len().saturating_sub(1);
        self.groups.insert(last, group.into());
        self
    }

    /// Sets the uid of the user. Default: none.
    #[must_use]
    pub fn uid(mut self, uid: impl Into<String>) -> Self {
        self.uid = uid.into();
        self
    }

    /// Returns the administrator, who is allowed everything.
    #[must_use]
    pub fn admin() -> Self {
        Self::user("admin").group("system:masters")
    }

    /// Returns the anonymous user.
    #[must_use]
    pub fn anonymous() -> Self {
        Self {
            name: "system:anonymous".to_owned(),
            uid: String::new(),
            groups: vec!["system:unauthenticated".to_owned()],
            extra: BTreeMap::new(),
        }
    }

    /// Returns the identity of a service account.
    #[must_use]
    pub fn service_account(namespace: &str, name: &str) -> Self {
        let groups = [
            "system:serviceaccounts".to_owned(),
            format!("system:serviceaccounts:{namespace}"),
            "system:authenticated".to_owned(),
        ];
        Self {
            name: format!("system:serviceaccount:{namespace}:{name}"),
            uid: String::new(),
            groups: groups.to_vec(),
            extra: BTreeMap::new(),
        }
    }

    /// Returns the user's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the user's groups.
    #[must_use]
    pub fn groups(&self) -> &[String] {
        &self.groups
    }

    pub(crate) fn of(name: &str, groups: Vec<String>) -> Self {
        Self {
            name: name.to_owned(),
            uid: String::new(),
            groups,
            extra: BTreeMap::new(),
        }
    }

    /// Returns the user as Go prints it in messages.
    pub(crate) fn printed(&self) -> String {
        let extra: Vec<String> = self
            .extra
            .iter()
            .map(|(key, values)| format!("{key}:[{}]", values.join(" ")))
            .collect();
        let (groups, extra) = (self.groups.join(" "), extra.join(" "));
        format!("&{{{} {} [{groups}] map[{extra}]}}", self.name, self.uid)
    }

    /// Returns the user info as reviews show it.
    pub(crate) fn info(&self) -> Value {
        let mut info = json!({});
        for (key, value) in [("username", &self.name), ("uid", &self.uid)] {
            if !value.is_empty() {
                info[key] = json!(value);
            }
        }
        if !self.groups.is_empty() {
            info["groups"] = json!(self.groups);
        }
        if !self.extra.is_empty() {
            info["extra"] = json!(self.extra);
        }
        info
    }
}

/// The registered bearer tokens.
#[derive(Clone, Debug, Default)]
pub(crate) struct Authenticator {
    tokens: HashMap<String, Identity>,
}

impl Authenticator {
    pub(crate) fn insert(&mut self, token: String, identity: Identity) {
        self.tokens.insert(token, identity);
    }
}

/// Authenticates a request. Without a token, the identity of the call applies.
///
/// # Errors
/// Returns 401 for an unknown token, 403 for an impersonation that is not allowed.
pub(crate) fn authenticate(cx: &mut Context<'_>, call: &Call) -> Result<Identity> {
    let (headers, default) = (&call.headers, &call.identity);
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let identity = match text("authorization") {
        None => default.clone(),
        Some(header) => {
            let token = header
                .strip_prefix("Bearer ")
                .or_else(|| header.strip_prefix("bearer "))
                .map(str::trim);
            token
                .and_then(|token| identify(cx, token, &[ISSUER.to_owned()]).ok())
                .ok_or_else(Failure::unauthorized)?
                .0
        }
    };
    let Some(other) = text("impersonate-user") else {
        return Ok(identity);
    };
    let groups: Vec<String> = headers
        .get_all("impersonate-group")
        .iter()
        .filter_map(|value| value.to_str().ok())
        .map(str::to_owned)
        .collect();
    impersonate(cx, call, &identity, other, groups)
}

fn impersonate(
    cx: &Context<'_>,
    call: &Call,
    identity: &Identity,
    other: &str,
    groups: Vec<String>,
) -> Result<Identity> {
    let resource = |resource: &str, name: &str| authorize::Attributes {
        verb: "impersonate".to_owned(),
        resource: resource.to_owned(),
        name: name.to_owned(),
        ..authorize::Attributes::default()
    };
    let mut asked = vec![resource("users", other)];
    asked.extend(groups.iter().map(|group| resource("groups", group)));
    for attributes in asked {
        if cx.state.settings.rbac && rbac::allows(cx, identity, &attributes).is_none() {
            // The message names the request that the impersonated user would send.
            let mut wanted = authorize::Attributes::of(call);
            wanted.verb = format!("impersonate-on:user-info:{}", wanted.verb);
            let of = Qualified {
                group: &wanted.group,
                name: &wanted.resource,
            };
            return Err(Failure::forbidden(
                of,
                &wanted.name,
                &authorize::complaint(identity, &wanted),
            ));
        }
    }
    Ok(Identity::of(other, completed(other, groups)))
}

/// Adds the groups that every user of this name belongs to.
fn completed(name: &str, mut groups: Vec<String>) -> Vec<String> {
    let has = |groups: &[String], group: &str| groups.iter().any(|known| known == group);
    if groups.is_empty()
        && let Some(account) = name.strip_prefix("system:serviceaccount:")
        && let Some((namespace, _)) = account.split_once(':')
    {
        groups.push("system:serviceaccounts".to_owned());
        groups.push(format!("system:serviceaccounts:{namespace}"));
    }
    let (everybody, other) = match name {
        "system:anonymous" => ("system:unauthenticated", "system:unauthenticated"),
        _ => ("system:authenticated", "system:unauthenticated"),
    };
    if !has(&groups, everybody) && !has(&groups, other) {
        groups.push(everybody.to_owned());
    }
    groups
}

/// Returns the identity of a token, and the requested audiences that it is valid for.
///
/// # Errors
/// Returns the message of the real server.
pub(crate) fn identify(
    cx: &Context<'_>,
    token: &str,
    requested: &[String],
) -> std::result::Result<(Identity, Vec<String>), String> {
    const UNKNOWN: &str = "invalid bearer token";
    let common = |audiences: &[String]| -> Vec<String> {
        let both = requested.iter().filter(|audience| audiences.contains(audience));
        both.cloned().collect()
    };
    if let Some(identity) = cx.state.authenticator.tokens.get(token) {
        // Registered tokens have no audience; they are valid for this server only.
        let audiences = common(&[ISSUER.to_owned()]);
        return if audiences.is_empty() {
            Err(UNKNOWN.to_owned())
        } else {
            Ok((identity.clone(), audiences))
        };
    }
    let claims = cx.state.signer.verify(token, cx.now).ok_or(UNKNOWN)?;
    let audiences = common(&claims.audiences);
    let identity = if audiences.is_empty() {
        let list = |audiences: &[String]| {
            let quoted: Vec<String> = audiences.iter().map(|audience| format!("{audience:?}")).collect();
            format!("[{}]", quoted.join(" "))
        };
        Err(format!(
            "token audiences {} is invalid for the target audiences {}",
            list(&claims.audiences),
            list(requested)
        ))
    } else {
        holder(cx, claims)
    };
    identity
        .map(|identity| (identity, audiences))
        .map_err(|why| format!("[{UNKNOWN}, {why}]"))
}

/// Returns the service account of a token. Fails if the account, or the object that the token is bound to, no longer
/// exists.
fn holder(cx: &Context<'_>, claims: Claims) -> std::result::Result<Identity, String> {
    if claims.has_expired {
        return Err("service account token has expired".to_owned());
    }
    let account = claims.account;
    let key = format!("{}/{}", account.namespace, account.name);
    let stored = cx
        .find("", "serviceaccounts", &key)
        .ok_or_else(|| format!("serviceaccounts {:?} not found", account.name))?;
    let uid = stored.text("uid");
    if uid != account.uid {
        // A token is not valid for a later account with the same name.
        return Err(format!(
            "service account UID ({uid}) does not match claim ({})",
            account.uid
        ));
    }
    let mut identity = Identity::service_account(&account.namespace, &account.name).uid(account.uid.clone());
    let mut know = |key: &str, value: &str| {
        let key = format!("authentication.kubernetes.io/{key}");
        identity.extra.insert(key, vec![value.to_owned()]);
    };
    know("credential-id", &format!("JTI={}", claims.id));
    if let Some((name, uid)) = &account.node {
        know("node-name", name);
        if !uid.is_empty() {
            know("node-uid", uid);
        }
    }
    if let Some(bound) = &account.bound {
        check_bound(cx, &account.namespace, bound)?;
        let kind = bound.resource.trim_end_matches('s');
        if kind != "secret" {
            know(&format!("{kind}-name"), &bound.name);
            know(&format!("{kind}-uid"), &bound.uid);
        }
    }
    Ok(identity)
}

fn check_bound(cx: &Context<'_>, namespace: &str, bound: &Bound) -> std::result::Result<(), String> {
    let invalidated = || "service account token has been invalidated".to_owned();
    let resource = cx
        .state
        .registry
        .find("", &bound.resource)
        .ok_or_else(invalidated)?;
    let key = resource.key(namespace, &bound.name);
    let stored = cx
        .state
        .store
        .get(resource.storage, &key)
        .ok_or_else(invalidated)?;
    let uid = stored.text("uid");
    if uid == bound.uid {
        return Ok(());
    }
    let claim = bound.resource.trim_end_matches('s');
    Err(format!(
        "{claim} UID ({uid}) does not match service account {claim} ref claim ({})",
        bound.uid
    ))
}

/// Returns the seconds since 1970.
pub(crate) fn unix(time: SystemTime) -> i64 {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}
