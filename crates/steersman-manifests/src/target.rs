// SPDX-License-Identifier: Apache-2.0
//! Source of values: a struct, or the values of a Helm release.

use serde_json::{Value, json};

use crate::Values;

/// Begin of a word that stands for a template expression. YAML never quotes such a word.
const MARK: &str = "HelmExpression";

/// Template expressions by their place.
const EXPRESSIONS: [&str; 12] = [
    "{{ .Release.Namespace }}",
    "{{ .Values.image.repository }}{{ if hasPrefix \"sha256:\" .Values.image.tag }}@{{ else }}:{{ end }}{{ .Values.image.tag }}",
    "{{ .Values.image.pullPolicy }}",
    "{{ .Values.replicas }}",
    "{{ join \",\" .Values.watchNamespaces | quote }}",
    "{{ .Values.logFilter | quote }}",
    "{{ toJson .Values.resources }}",
    "{{ toJson .Values.podAnnotations }}",
    "{{ toJson .Values.nodeSelector }}",
    "{{ toJson .Values.tolerations }}",
    "{{ toJson .Values.affinity }}",
    "{{ . | quote }}",
];

/// Source of the values in manifests.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target<'v> {
    Plain {
        namespace: &'v str,
        values: &'v Values,
    },
    /// Template expressions instead of values. The struct has the defaults.
    Helm(&'v Values),
}

impl<'v> Target<'v> {
    pub(crate) fn plain(namespace: &'v str, values: &'v Values) -> Self {
        Self::Plain { namespace, values }
    }

    pub(crate) fn is_helm(&self) -> bool {
        matches!(self, Self::Helm(_))
    }

    pub(crate) fn values(&self) -> &'v Values {
        match self {
            Self::Plain { values, .. } | Self::Helm(values) => values,
        }
    }

    fn pick(&self, place: usize, plain: impl FnOnce(&Values, &str) -> Value) -> Value {
        match self {
            Self::Plain { namespace, values } => plain(values, namespace),
            // Two digits, so that no word is the begin of another.
            Self::Helm(_) => json!(format!("{MARK}{place:02}")),
        }
    }

    pub(crate) fn namespace(&self) -> Value {
        self.pick(0, |_, namespace| json!(namespace))
    }

    pub(crate) fn image(&self) -> Value {
        self.pick(1, |values, _| json!(values.image.reference()))
    }

    pub(crate) fn pull_policy(&self) -> Value {
        self.pick(2, |values, _| json!(values.image.pull_policy))
    }

    pub(crate) fn replicas(&self) -> Value {
        self.pick(3, |values, _| json!(values.replicas))
    }

    pub(crate) fn watch_namespace(&self) -> Value {
        self.pick(4, |values, _| json!(values.watch_namespaces.join(",")))
    }

    pub(crate) fn log_filter(&self) -> Value {
        self.pick(5, |values, _| json!(values.log_filter))
    }

    pub(crate) fn resources(&self) -> Value {
        self.pick(6, |values, _| values.resources.clone())
    }

    pub(crate) fn pod_annotations(&self) -> Value {
        self.pick(7, |values, _| json!(values.pod_annotations))
    }

    pub(crate) fn node_selector(&self) -> Value {
        self.pick(8, |values, _| json!(values.node_selector))
    }

    pub(crate) fn tolerations(&self) -> Value {
        self.pick(9, |values, _| json!(values.tolerations))
    }

    pub(crate) fn affinity(&self) -> Value {
        self.pick(10, |values, _| values.affinity.clone())
    }

    /// The item of a `range` in a template.
    pub(crate) fn item() -> Value {
        json!(format!("{MARK}11"))
    }

    /// Replaces the words of template expressions in the text of a template.
    pub(crate) fn expand(text: &str) -> String {
        let mut text = text.to_owned();
        for (place, expression) in EXPRESSIONS.iter().enumerate() {
            text = text.replace(&format!("{MARK}{place:02}"), expression);
        }
        text
    }
}
