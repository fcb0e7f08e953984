// SPDX-License-Identifier: Apache-2.0
use super::*;

fn merged(texts: &[&str], exposition: Exposition) -> String {
    let mut families = Families::default();
    texts.iter().for_each(|text| families.read(text));
    families.write(exposition)
}

#[test]
fn guarantee_2_merges_families_of_the_same_name() {
    let one = "# HELP a One.\n# TYPE a gauge\na{x=\"2\"} 1\n# HELP b Two.\n# TYPE b gauge\nb 1\n";
    let other = "# HELP a Other.\n# TYPE a gauge\na{x=\"1\"} 3\n";
    let expected =
        "# HELP a One.\n# TYPE a gauge\na{x=\"1\"} 3\na{x=\"2\"} 1\n# HELP b Two.\n# TYPE b gauge\nb 1\n";
    assert_eq!(merged(&[one, other], Exposition::Text), expected);
}

#[test]
fn guarantee_2_the_first_of_two_conflicting_registrations_wins() {
    let mut families = Families::default();
    families.read("# HELP a A.\n# TYPE a gauge\na{x=\"1\",y=\"2\"} 1\n# HELP b B.\n# TYPE b gauge\nb 1\n");
    families.read(
        "# HELP a A.\n# TYPE a gauge\na{y=\"2\",x=\"1\"} 2\n# HELP b B.\n# TYPE b counter\nb_total 2\n",
    );
    let expected = "# HELP a A.\n# TYPE a gauge\na{x=\"1\",y=\"2\"} 1\n# HELP b B.\n# TYPE b gauge\nb 1\n";
    assert_eq!(families.write(Exposition::Text), expected);
    assert_eq!(families.conflicts().collect::<Vec<_>>(), ["a", "b"]);
}

#[test]
fn label_values_can_contain_any_character() {
    let text = "# HELP a A.\n# TYPE a gauge\na{x=\"} 1, \\\" # {\",b=\"\\\\\"} 2\n";
    let expected = "# HELP a A.\n# TYPE a gauge\na{b=\"\\\\\",x=\"} 1, \\\" # {\"} 2\n";
    assert_eq!(merged(&[text], Exposition::Text), expected);
}

#[test]
fn skips_lines_without_a_family() {
    let text = "stray 1\n# HELP a A.\nB 7\n# TYPE a gauge\na{x=\"1 2\nax 3\nother 4\na 1\n";
    assert_eq!(
        merged(&[text], Exposition::Text),
        "# HELP a A.\n# TYPE a gauge\na 1\n"
    );
}

#[test]
fn writes_exemplars_and_units_in_open_metrics_only() {
    let text = "# HELP a_seconds A.\n# TYPE a_seconds counter\n# UNIT a_seconds seconds\na_seconds_total{x=\"1\"} 1 # {id=\"7\"} 0.5\n";
    assert_eq!(merged(&[text], Exposition::OpenMetrics), format!("{text}# EOF\n"));
    let plain = "# HELP a_seconds_total A.\n# TYPE a_seconds_total counter\na_seconds_total{x=\"1\"} 1\n";
    assert_eq!(merged(&[text], Exposition::Text), plain);
}

#[test]
fn guarantee_5_the_accept_header_selects_the_format() {
    let preferred = |accept: &str| {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_str(accept).unwrap());
        Exposition::preferred(&headers)
    };
    // The header of Prometheus 2 and 3.
    let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
    assert_eq!(preferred(prometheus), Exposition::OpenMetrics);
    assert_eq!(
        preferred("text/plain;version=0.0.4;q=0.5,application/openmetrics-text;q=0.1"),
        Exposition::Text
    );
    assert_eq!(preferred("application/openmetrics-text;q=0"), Exposition::Text);
    assert_eq!(preferred("text/html"), Exposition::Text);
    assert_eq!(Exposition::preferred(&HeaderMap::new()), Exposition::Text);
}
