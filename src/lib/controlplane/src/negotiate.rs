//! Content negotiation: form and view of the response, and the form of the body.

use crate::action::Action;
use crate::rejection::Rejection;
use ferrokube_apimachinery::status::{Details, Failure, Reason};
use http::header::{ACCEPT, HeaderMap, HeaderName, USER_AGENT};
use std::collections::BTreeMap;

/// Encoding of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Form {
    /// `application/json`
    Json,
    /// `application/yaml`
    Yaml,
    /// `application/vnd.kubernetes.protobuf`
    Protobuf,
}

impl Form {
    pub(crate) fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
            Self::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }
}

/// View of the returned objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum View {
    /// The whole object.
    Whole,
    /// `PartialObjectMetadata` of one object or each object of a watch. The version is `v1` or
    /// `v1beta1`.
    Metadata(&'static str),
    /// `PartialObjectMetadataList`
    MetadataList(&'static str),
    /// `Table`
    Table(&'static str),
    /// `APIGroupDiscoveryList`, for discovery only.
    Discovery,
}

/// Forms and views of an endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    /// Whether there is a protobuf form.
    pub(crate) protobuf: bool,
    /// Views next to the whole object.
    pub(crate) views: Views,
    /// Checks before the handler's.
    pub(crate) router: RouterTypes,
}

/// Media types that kube-apiserver's router admits before the handler of a native kind negotiates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RouterTypes {
    /// No router.
    None,
    /// Media types of objects.
    Objects,
    /// Also those of watches.
    Streams,
}

/// Views of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Views {
    /// Whole objects only (discovery documents, errors).
    None,
    /// Metadata and Table of one object or a watch.
    Single,
    /// Metadata of one object of a kind without columns.
    Untabled,
    /// Metadata list and Table.
    List,
    /// Aggregated discovery.
    Discovery,
}

impl Views {
    fn is_of_objects(self) -> bool {
        matches!(self, Self::Single | Self::Untabled | Self::List)
    }
}

/// A negotiated encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Accepted {
    pub(crate) form: Form,
    pub(crate) view: View,
    /// Whether JSON is indented.
    pub(crate) pretty: bool,
}

impl Accepted {
    /// Compact JSON of the whole object.
    pub(crate) const JSON: Self = Self { form: Form::Json, view: View::Whole, pretty: false };

    /// Checks that the view applies to the response, whose Go type is `kind`. kube-apiserver
    /// chooses the view before knowing the response, so it does not try other clauses of the Accept
    /// header, and does not undo writes.
    ///
    /// # Errors
    /// 406 if it does not.
    pub(crate) fn fit(self, views: Views, kind: impl FnOnce() -> String) -> Result<(), Failure> {
        let refuse =
            |why: &str| Err(Failure::new(Reason::NotAcceptable, format!("{why} ({})", kind())));
        match (self.view, views) {
            (View::MetadataList(_), Views::Single | Views::Untabled) => refuse(
                "you requested PartialObjectMetadataList, but the requested object is not a list",
            ),
            (View::Metadata(_), Views::List) => {
                refuse("you requested PartialObjectMetadata, but the requested object is a list")
            }
            _ => Ok(()),
        }
    }

    fn is_aggregated(&self) -> bool {
        self.view == View::Discovery
    }
}

/// Max clauses of an Accept header.
const MAX_CLAUSES: usize = 256;

struct Clause<'a> {
    kind: &'a str,
    subtype: &'a str,
    parameters: &'a str,
    quality: f32,
}

/// 406 or 415: no form of the response, or of the body, is supported.
#[derive(Debug, PartialEq)]
pub(crate) enum MediaTypeError {
    /// kube-apiserver's router rejects the request: no handler sees it.
    Router(Failure),
    Handler(Failure),
}

impl From<MediaTypeError> for Rejection {
    fn from(error: MediaTypeError) -> Self {
        match error {
            MediaTypeError::Router(failure) => Self::Unrouted(Box::new(failure)),
            MediaTypeError::Handler(failure) => failure.into(),
        }
    }
}

/// A request's action and headers, from which the response format is negotiated.
#[derive(Clone, Copy)]
pub(crate) struct ParsedHead<'a> {
    pub(crate) action: &'a Action,
    pub(crate) headers: &'a HeaderMap,
}

impl<'a> ParsedHead<'a> {
    /// A header's value; empty if absent or not visible ASCII.
    pub(crate) fn header(self, name: HeaderName) -> &'a str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// Negotiates form and view, with `?pretty`.
    pub(crate) fn accepted(self, offer: Offer) -> Result<Accepted, MediaTypeError> {
        let mut accepted = negotiate(self.header(ACCEPT), offer)?;
        if accepted.form == Form::Json {
            accepted.pretty |=
                wants_pretty(self.action.options().pretty(), self.header(USER_AGENT));
        }
        Ok(accepted)
    }
}

/// Chooses the first clause, in order of preference, that the endpoint offers.
///
/// # Errors
/// 406 if there is none.
pub(crate) fn negotiate(accept: &str, offer: Offer) -> Result<Accepted, MediaTypeError> {
    match accept {
        "" | "application/json" | "*/*" => return Ok(Accepted::JSON),
        "application/vnd.kubernetes.protobuf" if offer.protobuf => {
            return Ok(Accepted { form: Form::Protobuf, ..Accepted::JSON });
        }
        _ => {}
    }
    let clauses = clauses(accept);
    // The aggregated form wins wherever it occurs.
    let aggregated = clauses
        .iter()
        .filter(|_| offer.views == Views::Discovery)
        .find_map(|clause| accept_clause(clause, offer).filter(Accepted::is_aggregated));
    let first = || clauses.iter().find_map(|clause| accept_clause(clause, offer));
    aggregated.or_else(first).ok_or_else(|| not_acceptable(offer, &clauses))
}

/// Checks an Accept header as kube-apiserver's router does for a handler of these media types:
/// whole media types, ignoring parameters.
///
/// # Errors
/// 406.
pub(crate) fn route(accept: &str, media_types: &[&str]) -> Result<(), Failure> {
    let mut ranges = accept
        .split(',')
        .take(MAX_CLAUSES)
        .map(|clause| clause.split(';').next().unwrap_or_default().trim());
    if accept.is_empty() || ranges.any(|range| range == "*/*" || media_types.contains(&range)) {
        Ok(())
    } else {
        Err(not_routed(&media_types.join(", ")))
    }
}

/// 406 of a watch in a form that has no frames. kube-apiserver names protobuf for custom objects,
/// too.
pub(crate) fn not_streamed() -> Failure {
    let streams = "application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch";
    let message = format!("only the following media types are accepted: {streams}");
    Failure::new(Reason::NotAcceptable, message)
}

fn not_routed(known: &str) -> Failure {
    let message = format!("406: Not Acceptable\n\nAvailable representations: {known}");
    Failure::new(Reason::NotAcceptable, message).with_details(Details::default())
}

/// Clauses of an Accept header in order of preference.
fn clauses(accept: &str) -> Vec<Clause<'_>> {
    let mut clauses: Vec<Clause<'_>> =
        accept.split(',').take(MAX_CLAUSES).filter_map(parse_clause).collect();
    clauses.sort_by(|a, b| {
        b.quality
            .total_cmp(&a.quality)
            .then((a.kind == "*").cmp(&(b.kind == "*")))
            .then((a.subtype == "*").cmp(&(b.subtype == "*")))
    });
    clauses
}

/// Media types of an Accept header in order of preference, with their parameters.
pub(crate) fn media_types(accept: &str) -> impl Iterator<Item = (&str, &str)> {
    clauses(accept).into_iter().map(|clause| (clause.kind, clause.subtype))
}

fn not_acceptable(offer: Offer, clauses: &[Clause<'_>]) -> MediaTypeError {
    const STREAMS: &str =
        ", application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch";
    let routed = |clause: &Clause<'_>| {
        matches!(
            (clause.kind, clause.subtype),
            ("*", "*") | ("application", "json" | "yaml" | "vnd.kubernetes.protobuf")
        )
    };
    if offer.router != RouterTypes::None && !clauses.iter().any(routed) {
        let streams = if offer.router == RouterTypes::Streams { STREAMS } else { "" };
        let known = "application/json, application/yaml, application/vnd.kubernetes.protobuf";
        return MediaTypeError::Router(not_routed(&format!("{known}{streams}")));
    }
    // kube-apiserver names protobuf for custom objects, too.
    let protobuf = if offer.protobuf || offer.views != Views::None {
        ", application/vnd.kubernetes.protobuf"
    } else {
        ""
    };
    let message = format!(
        "only the following media types are accepted: application/json, application/yaml{protobuf}"
    );
    MediaTypeError::Handler(Failure::new(Reason::NotAcceptable, message))
}

fn parse_clause(text: &str) -> Option<Clause<'_>> {
    let (media, parameters) = text.split_once(';').unwrap_or((text, ""));
    let media = media.trim();
    let (kind, subtype) = if media == "*" { ("*", "*") } else { media.split_once('/')? };
    let quality = parameters_of(parameters)
        .find(|(key, _)| *key == "q")
        .and_then(|(_, value)| value.parse().ok())
        .unwrap_or(1.0);
    Some(Clause { kind: kind.trim(), subtype: subtype.trim(), parameters, quality })
}

fn parameters_of(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split(';')
        .filter_map(|parameter| parameter.split_once('='))
        .map(|(key, value)| (key.trim(), value.trim()))
}

fn accept_clause(clause: &Clause<'_>, offer: Offer) -> Option<Accepted> {
    let form = match (clause.kind, clause.subtype) {
        ("application", "json") | ("*", "*") => Form::Json,
        // kube-apiserver's routers do not know this wildcard; handlers without a router do.
        ("application", "*") if offer.router == RouterTypes::None => Form::Json,
        ("application", "yaml") => Form::Yaml,
        ("application", "vnd.kubernetes.protobuf")
            if offer.protobuf || offer.views != Views::None =>
        {
            Form::Protobuf
        }
        _ => return None,
    };
    let (mut kind, mut group, mut version, mut pretty, mut converts) = ("", "", "", false, false);
    for (key, value) in parameters_of(clause.parameters) {
        converts |= matches!(key, "as" | "g" | "v") && !value.is_empty();
        match key {
            "as" => kind = value,
            "g" => group = value,
            "v" => version = value,
            "pretty" => pretty = value == "1",
            "stream" if !value.is_empty() && (value != "watch" || form == Form::Yaml) => {
                return None;
            }
            "sv" if !value.is_empty() && (value != "v1" || !offer.views.is_of_objects()) => {
                return None;
            }
            _ => {}
        }
    }
    let view = if converts { view(kind, group, version, offer.views)? } else { View::Whole };
    if form == Form::Protobuf
        && (matches!(view, View::Table(_)) || (view == View::Whole && !offer.protobuf))
    {
        return None;
    }
    Some(Accepted { form, view, pretty })
}

/// The view that `as`, `g` and `v` name, if offered.
fn view(kind: &str, group: &str, version: &str, offered: Views) -> Option<View> {
    let version = match version {
        "v1" => "v1",
        "v1beta1" => "v1beta1",
        "v2" if offered == Views::Discovery => "v2",
        _ => return None,
    };
    match (group, kind, offered) {
        ("apidiscovery.k8s.io", "APIGroupDiscoveryList", Views::Discovery) if version == "v2" => {
            Some(View::Discovery)
        }
        ("meta.k8s.io", "Table", Views::Single | Views::List) => Some(View::Table(version)),
        ("meta.k8s.io", "PartialObjectMetadata", _) if offered.is_of_objects() => {
            Some(View::Metadata(version))
        }
        ("meta.k8s.io", "PartialObjectMetadataList", _) if offered.is_of_objects() => {
            Some(View::MetadataList(version))
        }
        _ => None,
    }
}

/// Whether to indent JSON: as `?pretty` says, else for browsers and command line clients.
pub(crate) fn wants_pretty(given: Option<bool>, user_agent: &str) -> bool {
    given.unwrap_or_else(|| {
        ["curl", "Wget", "Mozilla/5.0"].iter().any(|agent| user_agent.starts_with(agent))
    })
}

/// The form of a request body.
///
/// # Errors
/// 415.
pub(crate) fn body_form(content_type: &str, protobuf: bool) -> Result<Form, Failure> {
    let media = if has_parameters(content_type) {
        media_type(content_type)
    } else {
        "malformed".to_owned()
    };
    match media.as_str() {
        "" | "application/json" => Ok(Form::Json),
        "application/yaml" => Ok(Form::Yaml),
        "application/vnd.kubernetes.protobuf" if protobuf => Ok(Form::Protobuf),
        _ => Err(Failure::new(
            Reason::UnsupportedMediaType,
            "the body of the request was in an unknown format - accepted media types include: application/json, application/yaml, application/vnd.kubernetes.protobuf",
        )),
    }
}

/// Whether parameters follow the media type: `name=value`, after semicolons. One that is given
/// twice has the same value; nothing may follow the last semicolon.
fn has_parameters(content_type: &str) -> bool {
    let Some((_, mut rest)) = content_type.split_once(';') else { return true };
    let mut given = BTreeMap::new();
    while !rest.trim_start().is_empty() {
        let Some((name, value, after)) = parameter(rest.trim_start()) else { return false };
        if given.insert(name, value.clone()).is_some_and(|other| other != value) {
            return false;
        }
        let after = after.trim_start();
        match after.strip_prefix(';') {
            Some(next) => rest = next,
            None => return after.is_empty(),
        }
    }
    true
}

/// A parameter, whose value is a token or quoted (RFC 2045), and what follows it.
fn parameter(text: &str) -> Option<(String, String, &str)> {
    let (name, rest) = token(text)?;
    let rest = rest.trim_start().strip_prefix('=')?.trim_start();
    let (value, rest) = match rest.strip_prefix('"') {
        Some(quoted) => quoted_value(quoted)?,
        None => token(rest).map(|(value, rest)| (value.to_owned(), rest))?,
    };
    Some((name.to_ascii_lowercase(), value, rest))
}

fn token(text: &str) -> Option<(&str, &str)> {
    let is_special = |symbol: char| !symbol.is_ascii_graphic() || SPECIALS.contains(symbol);
    let (token, rest) = text.split_at(text.find(is_special).unwrap_or(text.len()));
    (!token.is_empty()).then_some((token, rest))
}

/// Characters that no token has.
const SPECIALS: &str = "()<>@,;:\\\"/[]?=";

/// The value up to the closing quote, and what follows it. A backslash escapes only what no token
/// has.
fn quoted_value(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut symbols = text.char_indices().peekable();
    while let Some((at, symbol)) = symbols.next() {
        match symbol {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => {
                let escaped = symbols.next_if(|(_, next)| SPECIALS.contains(*next));
                value.push(escaped.map_or(symbol, |(_, next)| next));
            }
            _ => value.push(symbol),
        }
    }
    None
}

/// The media type of a Content-Type header, in lower case, without parameters.
pub(crate) fn media_type(content_type: &str) -> String {
    content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn single(accept: &str) -> Option<(Form, View)> {
        let accepted = negotiate(
            accept,
            Offer { protobuf: true, views: Views::Single, router: RouterTypes::Objects },
        )
        .ok()
        .filter(|accepted| accepted.fit(Views::Single, String::new).is_ok());
        accepted.map(|accepted| (accepted.form, accepted.view))
    }

    #[test]
    fn accept_is_parsed_as_in_kube_apiserver() {
        let json = Some((Form::Json, View::Whole));
        let cases = [
            ("text/html", None),
            ("application/json;as=Table", None),
            ("*/*", json),
            ("application/*", None),
            ("text/html,*/*;q=0.1", json),
            ("", json),
            ("application/json;q=0", json),
            ("application/cbor", None),
            (";;;", None),
            ("application/json;stream=watch", json),
            ("application/yaml, application/json", Some((Form::Yaml, View::Whole))),
            ("APPLICATION/JSON", None),
            ("application/json;as=Table;v=v1;g=meta.k8s.io", Some((Form::Json, View::Table("v1")))),
            ("application/json;as=Table;v=v9;g=meta.k8s.io,application/json", json),
            ("application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", None),
            ("application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io", None),
            ("application/json;q=0.9,application/vnd.kubernetes.protobuf;q=0.1", json),
            (
                "application/vnd.kubernetes.protobuf,application/json",
                Some((Form::Protobuf, View::Whole)),
            ),
            // A chosen view that does not fit is not replaced by another clause.
            (
                "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json",
                None,
            ),
            (
                "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json",
                Some((Form::Json, View::Metadata("v1"))),
            ),
            ("application/json;v=v1", None),
            ("application/json;g=;v=;as=", json),
            ("application/json;stream=other", None),
            ("application/yaml;stream=watch", None),
            ("application/json;sv=v1", json),
            ("application/json;sv=v2", None),
        ];
        for (accept, want) in cases {
            assert_eq!(single(accept), want, "{accept}");
        }
    }

    #[test]
    fn the_aggregated_form_wins() {
        let discovery = |accept: &str| {
            negotiate(
                accept,
                Offer { protobuf: true, views: Views::Discovery, router: RouterTypes::None },
            )
            .ok()
            .map(|accepted| (accepted.form, accepted.view))
        };
        let aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let beta = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
        assert_eq!(
            discovery(&format!("application/json,{aggregated}")),
            Some((Form::Json, View::Discovery))
        );
        assert_eq!(
            discovery(&aggregated.replace("json", "yaml")),
            Some((Form::Yaml, View::Discovery))
        );
        assert_eq!(discovery(beta), None, "served no more since 1.33");
        assert_eq!(discovery(&format!("{beta},application/json")), Some((Form::Json, View::Whole)));
    }

    #[test]
    fn metadata_of_a_kind_without_protobuf_may_be_protobuf() {
        let offer = Offer { protobuf: false, views: Views::List, router: RouterTypes::None };
        let accept =
            "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
        assert_eq!(negotiate(accept, offer).map(|accepted| accepted.form), Ok(Form::Protobuf));
        assert!(negotiate("application/vnd.kubernetes.protobuf", offer).is_err());
        assert_eq!(negotiate("application/*", offer), Ok(Accepted::JSON));
    }

    #[test]
    fn rejections_are_the_routers_or_the_handlers() {
        let refused = |accept: &str, views, router| {
            negotiate(accept, Offer { protobuf: true, views, router }).unwrap_err()
        };
        let routers = |error| match error {
            MediaTypeError::Router(failure) => failure,
            MediaTypeError::Handler(failure) => panic!("the handler's: {failure:?}"),
        };
        let known = "application/json, application/yaml, application/vnd.kubernetes.protobuf";
        let router = routers(refused("text/html", Views::Single, RouterTypes::Objects));
        assert_eq!((router.code, router.details.is_some()), (406, true));
        assert_eq!(
            router.message,
            format!("406: Not Acceptable\n\nAvailable representations: {known}")
        );
        assert!(
            routers(refused("text/html", Views::List, RouterTypes::Streams))
                .message
                .ends_with(";stream=watch")
        );
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
        let refusal = refused(table, Views::Untabled, RouterTypes::Objects);
        let MediaTypeError::Handler(handler) = refusal else { panic!("{refusal:?}") };
        assert_eq!(
            (handler.message.as_str(), handler.details),
            (format!("only the following media types are accepted: {known}").as_str(), None)
        );
        let list = Accepted { view: View::MetadataList("v1"), ..Accepted::JSON };
        let refused = list.fit(Views::Single, || "*core.Secret".to_owned()).unwrap_err();
        assert_eq!(
            refused.message,
            "you requested PartialObjectMetadataList, but the requested object is not a list (*core.Secret)"
        );
    }

    #[test]
    fn content_types_are_parsed_as_in_kube_apiserver() {
        let json = Some(Form::Json);
        for (text, want) in [
            ("", json),
            ("application/json; charset=utf-16", json),
            ("application/json;", json),
            ("APPLICATION/JSON", json),
            ("json", None),
            ("application/json; charset", None),
            ("application/json; a=b; A=c", None),
            ("application/json;; a=b", None),
            ("application/json; a=b; A=b", json),
            (r#"application/json; a="b;\"c""#, json),
            (r#"application/json; a=""; b = c "#, json),
            (r#"application/json; a="b"#, None),
            ("application/json; a=b c", None),
            ("application/json; a=", None),
        ] {
            assert_eq!(body_form(text, true).ok(), want, "{text}");
        }
    }
}
