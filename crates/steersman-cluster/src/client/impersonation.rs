// SPDX-License-Identifier: Apache-2.0
//! Requests in the name of another user.

use http::{HeaderMap, HeaderName, HeaderValue};
use kube::Config;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::Client;

/// Characters that a header name cannot have, and `%`, which escapes them.
const NOT_IN_A_HEADER: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'!')
    .remove(b'#')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'*')
    .remove(b'+')
    .remove(b'-')
    .remove(b'.')
    .remove(b'^')
    .remove(b'_')
    .remove(b'`')
    .remove(b'|')
    .remove(b'~');

/// A user to impersonate; for [`Client::impersonate`].
///
/// ```
/// use steersman_cluster::Impersonation;
///
/// let jane = Impersonation::user("jane").group("developers").extra("scopes", "view");
/// let web = Impersonation::user("system:serviceaccount:web:front");
/// # let _ = (jane, web);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Impersonation {
    user: String,
    uid: Option<String>,
    groups: Vec<String>,
    extra: Vec<(String, String)>,
}

/// The user cannot be impersonated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImpersonationError {
    /// The user has no name. A request without a name would be sent as the operator itself.
    #[error("cannot impersonate a user without a name; set the name")]
    NoUser,
    /// A value cannot be sent in a header.
    #[error(
        "cannot impersonate user {user:?}: {value:?} cannot be sent in a header; remove control characters"
    )]
    InvalidValue {
        /// The user.
        user: String,
        /// The value.
        value: String,
    },
    /// The configuration of the cluster sets a user to impersonate, or a part of an identity, such as `as` or `as-groups`
    /// in a kubeconfig. It applies to all requests.
    #[error(
        "cannot impersonate user {user:?}: the configuration of the cluster impersonates {configured:?}; remove that"
    )]
    Configured {
        /// The user.
        user: String,
        /// The user of the configuration, or another part of an identity, such as `group ops`.
        configured: String,
    },
}

impl Impersonation {
    /// Impersonates a user. A service account is `system:serviceaccount:NAMESPACE:NAME`. Without
    /// [groups](Self::group) the server adds those that every user, or every service account, belongs to.
    pub fn user(name: impl Into<String>) -> Self {
        Self {
            user: name.into(),
            uid: None,
            groups: Vec::new(),
            extra: Vec::new(),
        }
    }

    /// Adds a group.
    pub fn group(mut self, name: impl Into<String>) -> Self {
        self.groups.push(name.into());
        self
    }

    /// Sets the uid.
    pub fn uid(mut self, uid: impl Into<String>) -> Self {
        self.uid = Some(uid.into());
        self
    }

    /// Adds a value of an extra attribute, such as `scopes`. The server reads keys in lower case.
    pub fn extra(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.extra.push((key.into(), value.into()));
        self
    }

    fn headers(&self) -> Result<HeaderMap, ImpersonationError> {
        if self.user.trim().is_empty() {
            return Err(ImpersonationError::NoUser);
        }
        let invalid = |value: &str| ImpersonationError::InvalidValue {
            user: self.user.clone(),
            value: value.to_owned(),
        };
        let mut headers = HeaderMap::new();
        let mut add = |name: HeaderName, value: &str| {
            // From bytes: names can be outside of ASCII.
            let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|_| invalid(value))?;
            headers.append(name, value);
            Ok(())
        };
        add(HeaderName::from_static("impersonate-user"), &self.user)?;
        for group in &self.groups {
            add(HeaderName::from_static("impersonate-group"), group)?;
        }
        if let Some(uid) = &self.uid {
            add(HeaderName::from_static("impersonate-uid"), uid)?;
        }
        for (key, value) in &self.extra {
            let escaped = utf8_percent_encode(key, NOT_IN_A_HEADER);
            let name = HeaderName::from_bytes(format!("impersonate-extra-{escaped}").as_bytes());
            add(name.map_err(|_| invalid(key))?, value)?;
        }
        Ok(headers)
    }
}

impl Client {
    /// Returns a client that sends its requests in the name of another user: the server checks that user's permissions. The
    /// account of this client needs the permission `impersonate` for the user, its groups, uid and extra attributes.
    ///
    /// Its reads query the server, because the cache shows what the account of the cluster can read. Fences, field manager
    /// and timeout stay. Clients derived from it, also its [kube client](Self::kube), impersonate too.
    ///
    /// ```no_run
    /// # use k8s_openapi::api::core::v1::ConfigMap;
    /// # use steersman_cluster::{Client, Impersonation};
    /// # async fn example(client: Client, map: ConfigMap) -> Result<(), Box<dyn std::error::Error>> {
    /// let web = client.impersonate(&Impersonation::user("system:serviceaccount:web:front"))?;
    /// web.apply(&map).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the user has no name, a value cannot be sent in a header, or the configuration of the cluster impersonates.
    pub fn impersonate(&self, identity: &Impersonation) -> Result<Self, ImpersonationError> {
        let configured = self.0.cluster.config().and_then(configured);
        if let Some(configured) = configured {
            return Err(ImpersonationError::Configured {
                user: identity.user.clone(),
                configured,
            });
        }
        let headers = identity.headers()?;
        Ok(self.live().with(|parts| parts.transport.set_headers(headers)))
    }
}

/// Returns the identity that a configuration impersonates, or a part of one: kube adds each part to all requests.
fn configured(config: &Config) -> Option<String> {
    let auth = &config.auth_info;
    let group = || auth.impersonate_groups.iter().flatten().next();
    let extra = || auth.impersonate_user_extra.iter().flatten().next();
    let mut names = config.headers.iter().map(|(name, _)| name.as_str());
    auth.impersonate
        .clone()
        .or_else(|| auth.impersonate_uid.as_ref().map(|uid| format!("uid {uid}")))
        .or_else(|| group().map(|group| format!("group {group}")))
        .or_else(|| extra().map(|(key, _)| format!("extra attribute {key}")))
        .or_else(|| {
            let name = names.find(|name| name.starts_with("impersonate-"));
            name.map(|name| format!("header {name}"))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    // C5
    #[test]
    fn each_part_of_a_configured_identity_counts() {
        let plain = Config::new("https://localhost".parse().unwrap());
        assert_eq!(configured(&plain), None);
        let with = |change: fn(&mut Config)| {
            let mut config = plain.clone();
            change(&mut config);
            configured(&config)
        };
        let no_group = with(|config| config.auth_info.impersonate_groups = Some(Vec::new()));
        assert_eq!(no_group, None);
        let user = with(|config| config.auth_info.impersonate = Some("joe".to_owned()));
        assert_eq!(user.as_deref(), Some("joe"));
        let uid = with(|config| config.auth_info.impersonate_uid = Some("7".to_owned()));
        assert_eq!(uid.as_deref(), Some("uid 7"));
        let group = with(|config| config.auth_info.impersonate_groups = Some(vec!["ops".to_owned()]));
        assert_eq!(group.as_deref(), Some("group ops"));
        let extra = with(|config| {
            let scopes = ("scopes".to_owned(), vec!["all".to_owned()]);
            config.auth_info.impersonate_user_extra = Some([scopes].into());
        });
        assert_eq!(extra.as_deref(), Some("extra attribute scopes"));
        let header = with(|config| {
            let name = HeaderName::from_static("impersonate-group");
            config.headers.push((name, HeaderValue::from_static("ops")));
        });
        assert_eq!(header.as_deref(), Some("header impersonate-group"));
    }

    // C5
    #[test]
    fn escapes_extra_keys_and_keeps_all_values() {
        let jane = Impersonation::user("jane")
            .group("a")
            .group("b")
            .uid("7")
            .extra("example.com/Scope %", "x")
            .extra("example.com/Scope %", "y");
        let headers = jane.headers().unwrap();
        let all = |name: &str| -> Vec<_> {
            let values = headers.get_all(name).iter();
            values.map(|value| value.to_str().unwrap().to_owned()).collect()
        };
        assert_eq!(all("impersonate-user"), ["jane"]);
        assert_eq!(all("impersonate-group"), ["a", "b"]);
        assert_eq!(all("impersonate-uid"), ["7"]);
        assert_eq!(all("impersonate-extra-example.com%2fscope%20%25"), ["x", "y"]);
    }

    // C5
    #[test]
    fn rejects_a_user_that_would_not_be_impersonated() {
        for name in ["", "  "] {
            let error = Impersonation::user(name).group("a").headers().unwrap_err();
            assert_eq!(error, ImpersonationError::NoUser);
        }
        let error = Impersonation::user("jane").group("a\nb").headers().unwrap_err();
        assert!(
            error.to_string().contains("\"a\\nb\" cannot be sent in a header"),
            "{error}"
        );
    }
}
