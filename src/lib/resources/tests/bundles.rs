//! Bundles: choosing kinds, adding own ones, and mistakes.

use ferrokube_apimachinery::gvk::GroupResource;
use ferrokube_resource::native::{KindBody, NativeKind};
use ferrokube_resource::{Bundle, BundleError, Composition, Scope};
use ferrokube_resources::{bundle, compose, generic};

const TOY: NativeKind = NativeKind::new(
    "toy.example.com",
    ["toys", "toy", "Toy"],
    Scope::Namespaced,
    KindBody::default,
);
const SCHEMAS: &str = "definition\tfield\ttype\trequired\temit
io.k8s.api.toy.v1.Toy\tmetadata\tref:io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta\t\ta
\tspec\tref:io.k8s.api.toy.v1.ToySpec\t\ta
io.k8s.api.toy.v1.ToySpec\tsizes\tlist<integer/int32>\t\to
";
const MESSAGES: &str = "package\tmessage\tfield\tnumber\tlabel\ttype\tjson
k8s.io.api.toy.v1\tToySpec\tsizes\t1\trepeated\tint32
";

fn toys() -> Bundle {
    Bundle::new("toys").kind(TOY).schemas(SCHEMAS).messages(MESSAGES)
}

fn plurals(composition: &Composition) -> Vec<&str> {
    composition.definitions.iter().map(|definition| definition.plural.as_str()).collect()
}

fn error(bundles: &[Bundle]) -> BundleError {
    compose(bundles).map(drop).expect_err("a mistake")
}

#[test]
fn a_bundle_serves_what_is_chosen() {
    let all = compose(&[bundle()]).unwrap();
    assert_eq!(all.definitions.len(), generic().len());
    assert_eq!(all.absent, []);
    let few = bundle().only(["namespaces", "configmaps", "*.rbac.authorization.k8s.io"]);
    let few = compose(&[few.without(["roles.rbac.authorization.k8s.io"])]).unwrap();
    let chosen =
        ["configmaps", "namespaces", "clusterrolebindings", "clusterroles", "rolebindings"];
    assert_eq!(plurals(&few), chosen);
    assert!(few.absent.contains(&GroupResource::new("", "secrets")));
    let group = compose(&[bundle().only(["*.coordination.k8s.io"])]).unwrap();
    assert_eq!(plurals(&group), ["leases"]);
    let optional = bundle().only([]).with(["leasecandidates.coordination.k8s.io"]);
    assert_eq!(plurals(&compose(&[optional]).unwrap()), ["leasecandidates"]);
}

#[test]
fn a_bundle_builds_on_the_types_of_the_generic_one() {
    let both = compose(&[bundle().only(["namespaces"]), toys()]).unwrap();
    assert_eq!(plurals(&both), ["namespaces", "toys"]);
    let toy = &both.definitions[1].versions[0].schema;
    let labels = &toy.properties["metadata"].schema.shared().properties["labels"];
    assert!(labels.description.is_none_or(|text| !text.is_empty()));
    assert!(both.messages.contains("k8s.io.api.toy.v1.ToySpec"));
    assert!(both.messages.contains("k8s.io.api.core.v1.Namespace"));
}

#[test]
fn mistakes_are_named() {
    for name in ["pods", "configmaps.apps", "Secret", "*.example.com", ""] {
        let unknown = BundleError::UnknownKind { bundle: "generic", name: name.to_owned() };
        assert_eq!(error(&[bundle().without([name])]), unknown);
    }
    assert_eq!(
        error(&[toys(), toys().messages("")]).to_string(),
        "two kinds are called toys.toy.example.com"
    );
    assert!(matches!(error(&[toys().messages("heading\nx\n")]), BundleError::Messages(_)));
    assert_eq!(
        error(&[toys().schemas("")]).to_string(),
        "bundle toys has no schema io.k8s.api.toy.v1.Toy for Toy"
    );
    let lines = ["heading\nno tab\n", "heading\n\tfirst\tstring\n", "heading\nA\tb\tlist<ref:C>\n"];
    for schemas in lines {
        assert!(matches!(error(&[toys().schemas(schemas)]), BundleError::Schemas { .. }));
    }
}
