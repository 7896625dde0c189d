//! Fuzz targets for every part of a request but its body.

use crate::action::{Action, Refusal, WriteKind, parse_duration};
use crate::compress;
use crate::negotiate::{Form, MediaTypeError, Offer, RouterTypes, Views, negotiate};
use ferrokube_apimachinery::document::json;
use ferrokube_apimachinery::json::read;
use ferrokube_apimachinery::jsonpath::{JsonPath, MAX_NODES};
use ferrokube_fuzz::{Verdict, run};
use http::Method;
use std::time::Duration;

const METHODS: [Method; 7] = [
    Method::GET,
    Method::PUT,
    Method::POST,
    Method::DELETE,
    Method::PATCH,
    Method::HEAD,
    Method::OPTIONS,
];

#[test]
fn paths_name_what_is_between_their_slashes() {
    let seeds = [
        "\0/api/v1/namespaces/a/pods/p/log?watch=1",
        "\0/apis/apps/v1/watch/namespaces/a/deployments/d?fieldSelector=metadata.name%3Dx",
        "\x02/apis/g/v1/namespaces/a/things",
        "\x03/api/v1/nodes/n%2f..%2fx/proxy/a/b",
        "\x01//healthz/%00?verbose",
    ];
    run("request path", &seeds, |input| {
        let Ok(text) = std::str::from_utf8(input) else { return Verdict::Refused };
        let Some((method, target)) = text.split_at_checked(1) else { return Verdict::Refused };
        let (path, query) =
            target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)));
        let action =
            Action::parse(&METHODS[usize::from(method.as_bytes()[0]) % METHODS.len()], path, query);
        let refused = matches!(
            action.refusal(),
            Some(Refusal::Hostile(_) | Refusal::NoResource | Refusal::Malformed)
        );
        let Some(access) = action.resource().map(|resource| resource.access()) else {
            return Verdict::Refused;
        };
        for part in [
            access.group,
            access.version,
            access.namespace,
            access.resource,
            access.name,
            access.subresource,
        ] {
            let selected = query.is_some() && part == access.name;
            assert!(
                selected
                    || part.is_empty()
                    || action.path().split('/').any(|segment| segment == part),
                "{part}"
            );
            assert!(!part.contains('/'), "{part}");
        }
        if !refused {
            for part in [access.name, access.namespace] {
                assert!(!matches!(part, "." | "..") && !part.contains(['\0', '/']), "{part}");
            }
        }
        Verdict::from(!refused)
    });
}

#[test]
fn queries_become_options_or_errors() {
    let seeds = [
        "limit=5&continue=abc&labelSelector=a%3Db&fieldSelector=metadata.name%21%3Dx&resourceVersion=7&resourceVersionMatch=Exact",
        "watch=true&allowWatchBookmarks=1&timeoutSeconds=9223372036854775807&sendInitialEvents=false",
        "dryRun=All&fieldManager=m&force=true&fieldValidation=Strict&pretty",
        "gracePeriodSeconds=-1&propagationPolicy=Orphan&orphanDependents=true&preconditions=+%zz;",
    ];
    run("query", &seeds, |input| {
        let Ok(text) = std::str::from_utf8(input) else { return Verdict::Refused };
        let action = Action::parse(&Method::GET, "/", Some(text));
        let options = action.options();
        let watched = options.watch(7);
        if let Ok(options) = &watched {
            assert!(
                options.timeout > Duration::ZERO
                    && options.timeout <= Duration::from_secs(24 * 3600)
            );
        }
        let written = [WriteKind::Create, WriteKind::Update, WriteKind::Patch, WriteKind::Apply]
            .map(|kind| options.write(kind).is_ok());
        Verdict::from(options.list().is_ok() && options.delete(None).is_ok() && written[0])
    });
}

#[test]
fn delete_options_of_a_body_are_checked() {
    let seeds = [
        r#"{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":5,"preconditions":{"uid":"u","resourceVersion":"1"},"propagationPolicy":"Foreground","dryRun":["All"],"orphanDependents":null}"#,
    ];
    run("delete options", &seeds, |input| {
        let Ok(body) = read(input) else { return Verdict::Refused };
        Verdict::from(Action::unparsed().options().delete(Some(&body.document)).is_ok())
    });
}

#[test]
fn accept_headers_get_what_is_offered() {
    let seeds = [
        "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;q=0.9",
        "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1beta1, */*;q=NaN",
        "application/yaml; q=-1, application/*, text/html;level=1;q=0.4",
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList;pretty=1",
        "gzip;q=0.5, br, *;q=0",
    ];
    run("accept", &seeds, |input| {
        let Ok(text) = std::str::from_utf8(input) else { return Verdict::Refused };
        let _ = compress::accepts(text);
        let mut accepted = false;
        for views in [Views::None, Views::Single, Views::List, Views::Discovery] {
            let outcome =
                negotiate(text, Offer { protobuf: false, views, router: RouterTypes::None });
            accepted |= outcome.is_ok();
            if views == Views::None {
                assert!(
                    outcome.is_ok_and(|accepted| accepted.form != Form::Protobuf)
                        || outcome_is_refusal(text)
                );
            }
        }
        Verdict::from(accepted)
    });
}

/// Whether negotiation without protobuf is rejected with 406.
fn outcome_is_refusal(text: &str) -> bool {
    negotiate(text, Offer { protobuf: false, views: Views::None, router: RouterTypes::Objects })
        .is_err_and(|error| match error {
            MediaTypeError::Router(failure) | MediaTypeError::Handler(failure) => {
                failure.code == 406
            }
        })
}

#[test]
fn durations_are_never_longer_than_a_year() {
    run(
        "duration",
        &["1h30m", "1.5s", "-5s", "100ms", "0", "1e9h", ".5m", "3us", "9999999999999h"],
        |input| {
            let parsed = std::str::from_utf8(input).ok().and_then(parse_duration);
            assert!(parsed.is_none_or(|duration| duration <= Duration::from_secs(366 * 86400)));
            Verdict::from(parsed.is_some())
        },
    );
}

#[test]
fn column_paths_are_read_and_followed() {
    let object = json!({"spec": {"a": [{"type": "Ready", "status": "True", "n": 5}, {"b": [[1, 2], {}]}]}, "metadata": {"labels": {"a.b": "c"}}});
    run(
        "column path",
        &[
            ".spec.a[0].status",
            "{.spec.a[?(@.type==\"Ready\")].status}",
            "$..b[*][-1]",
            ".metadata.labels['a\\.b']",
            ".spec.a[?(@.n>=5)]",
        ],
        |input| {
            let path = std::str::from_utf8(input).ok().and_then(JsonPath::parse);
            if let Some(path) = &path {
                let _ = path.first(&object, &mut { MAX_NODES });
            }
            Verdict::from(path.is_some())
        },
    );
}
