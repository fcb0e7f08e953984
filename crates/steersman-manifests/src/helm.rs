// SPDX-License-Identifier: Apache-2.0
//! A Helm chart whose values are [`Values`].
//!
//! CRDs are templates and not in the directory `crds`, because Helm never upgrades the latter. They stay when the release is
//! uninstalled.

use serde_json::{Value, json};

use crate::{File, Operator, Values, kustomize::header, operator::Section, rbac, target::Target, yaml};

pub(crate) fn files(operator: &Operator, values: &Values) -> Vec<File> {
    let target = Target::Helm(values);
    let header = header(&format!("{} helm", operator.name));
    let chart = json!({
        "apiVersion": "v2",
        "name": operator.name,
        "description": format!("The operator {}", operator.name),
        "type": "application",
        "version": operator.version,
        "appVersion": operator.version,
    });
    let schema = schemars::schema_for!(Values);
    let schema = serde_json::to_string_pretty(&schema).expect("a schema is JSON");
    let mut files = vec![
        File::generated("Chart.yaml", format!("{header}{}", yaml::document(&chart))),
        File::generated(
            "values.yaml",
            format!(
                "{header}# Put your own values into another file: `helm install -f mine.yaml`.\n{}",
                yaml::document(values)
            ),
        ),
        File::generated("values.schema.json", schema + "\n"),
    ];
    for section in operator.sections(&target) {
        let text = match &*section.name {
            "crds" => crds(&section.objects),
            "rbac" => rbac_template(operator, &target, &section.objects),
            _ => Target::expand(&yaml::documents(&section.objects)),
        };
        let text = format!(
            "{header}{}",
            conditional(&section, with_arguments(&section, text))
        );
        files.push(File::generated(format!("templates/{}.yaml", section.name), text));
    }
    files
}

/// Returns the CRDs with an annotation by which Helm keeps them, and with braces that are none of a template.
fn crds(objects: &[Value]) -> String {
    let kept = objects.iter().map(|object| {
        let mut object = object.clone();
        object["metadata"]["annotations"]["helm.sh/resource-policy"] = json!("keep");
        object
    });
    let text = yaml::documents(&kept.collect::<Vec<_>>());
    text.replace("{{", "{{ \"{{\" }}")
}

/// Returns the roles for all namespaces, or for those of the values.
fn rbac_template(operator: &Operator, target: &Target<'_>, always: &[Value]) -> String {
    let text = |objects: &[Value]| Target::expand(&yaml::documents(objects));
    let everywhere = text(&rbac::cluster_wide(operator, target, true));
    let limited = text(&rbac::cluster_wide(operator, target, false));
    // Within `range`, the values of the release are those of `$`.
    let watched = text(&rbac::watched(operator, target, &Target::item()));
    let watched = watched.replace("{{ .Release", "{{ $.Release");
    format!(
        "{}{{{{- if not .Values.watchNamespaces }}}}\n---\n{everywhere}{{{{- else }}}}\n---\n{limited}\
         {{{{- range .Values.watchNamespaces }}}}\n---\n{watched}{{{{- end }}}}\n{{{{- end }}}}\n",
        text(always),
    )
}

/// Appends the arguments of the values to those of the container.
fn with_arguments(section: &Section, text: String) -> String {
    if section.name != "deployment" {
        return text;
    }
    let Some(line) = text.lines().find(|line| line.contains("--metrics-address=")) else {
        return text;
    };
    let indent = &line[..line.len() - line.trim_start().len()];
    let range = format!(
        "{line}\n{indent}{{{{- range .Values.args }}}}\n{indent}- {{{{ . | quote }}}}\n{indent}{{{{- end }}}}"
    );
    text.replace(line, &range)
}

fn conditional(section: &Section, text: String) -> String {
    match section.condition {
        Some(value) => format!("{{{{- if .Values.{value} }}}}\n{text}{{{{- end }}}}\n"),
        None => text,
    }
}
