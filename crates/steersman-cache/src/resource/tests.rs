// SPDX-License-Identifier: Apache-2.0
use super::*;

// R136
#[test]
fn maps_types_to_names_and_back() {
    use k8s_openapi::api::{apps::v1::Deployment, batch::v1::Job, core::v1::Pod};

    let resources = [
        Resource::of::<Pod>(),
        Resource::of::<Deployment>(),
        Resource::of::<Job>(),
    ];
    let names = resources.each_ref().map(|resource| {
        (
            resource.group(),
            resource.version(),
            resource.kind(),
            resource.plural(),
        )
    });
    let expected = [
        ("", "v1", "Pod", "pods"),
        ("apps", "v1", "Deployment", "deployments"),
        ("batch", "v1", "Job", "jobs"),
    ];
    assert_eq!(names, expected);
    for resource in &resources {
        let types = [
            resource.is_of::<Pod>(),
            resource.is_of::<Deployment>(),
            resource.is_of::<Job>(),
        ];
        assert_eq!(types.iter().filter(|is_it| **is_it).count(), 1, "{resource}");
        assert_eq!(Resource::from(&ApiResource::from(resource)), *resource);
    }
    assert!(resources[0].is_of::<Pod>() && resources[1].is_of::<Deployment>());
    let other_version = Resource::new("apps", "v1beta1", "Deployment", "deployments");
    assert!(!other_version.is_of::<Deployment>());
}

#[test]
fn builds_api_paths() {
    let widgets = Resource::new("example.com", "v1", "Widget", "widgets");
    assert_eq!(widgets.path("ns"), "/apis/example.com/v1/namespaces/ns/widgets");
    assert_eq!(Resource::new("", "v1", "Pod", "pods").path(""), "/api/v1/pods");
}
