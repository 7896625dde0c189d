//! `/ui/trace/`: the timeline of an object's life as a page. Server-rendered HTML, no script, one
//! style sheet.
//!
//! Content of logs and requests is escaped twice: characters that terminals and readers interpret,
//! then HTML (by the templates).

mod view;

use crate::ring::{AccessCheck, MAX_STORY_BYTES, Ring};
use askama::Template;
use std::sync::Arc;
use view::{Section, when};

/// Forbids everything except the style sheet and the form.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

/// Families listed.
const RECENT: usize = 50;
/// Most bytes that a page and what it is made of take: an event becomes a row of some 2 KiB, in
/// which a character may be escaped by five.
pub const MAX_PAGE_BYTES: usize = 16 * MAX_STORY_BYTES;

/// Renders the pages below `/ui/trace/`.
#[derive(Clone, Debug, Default)]
pub struct TracePages {
    /// Recent events of this process; `None` for a component that runs as a separate process.
    pub ring: Option<Arc<Ring>>,
    /// URL of a trace in the tracing backend, with the placeholder `{trace_id}`.
    pub backend: Option<String>,
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// HTTP status.
    pub status: u16,
    /// Media type; empty for a redirect.
    pub media_type: &'static str,
    /// Redirect target, relative to the request.
    pub location: String,
    /// Response body.
    pub body: String,
}

#[derive(Template)]
#[template(path = "index.html")]
struct IndexTemplate<'a> {
    query: &'a str,
    namespace: &'a str,
    message: &'a str,
    remembers: bool,
    backend: bool,
    recent: Vec<RecentItem>,
}

struct RecentItem {
    id: String,
    object: String,
    message: String,
    when: String,
    events: usize,
}

#[derive(Template)]
#[template(path = "trace.html")]
struct TimelineTemplate<'a> {
    id: &'a str,
    title: String,
    sections: Vec<Section>,
    /// Events beyond [`MAX_STORY_BYTES`].
    omitted: usize,
    /// Without a ring: where to look instead.
    elsewhere: Option<String>,
}

impl TracePages {
    /// Responds to a GET. `rest` is the path below `/ui/trace/` and `query` the URI's query, both
    /// as sent; `may` is the access check for events.
    pub fn answer(&self, rest: &str, query: &str, may: &AccessCheck<'_>) -> Page {
        match rest {
            "style.css" => page(
                200,
                "text/css; charset=utf-8",
                include_str!("../../templates/style.css").to_owned(),
            ),
            "" => self.index(query, may),
            id if is_id(id) => self.timeline(id, may),
            _ => self.show_index(404, "", "", "There is no such page.", may),
        }
    }

    fn index(&self, query: &str, may: &AccessCheck<'_>) -> Page {
        let value = |name: &str| parameter(query, name);
        let (asked, mut namespace) = (value("q"), value("namespace"));
        if namespace.is_empty() {
            namespace.push_str("default");
        }
        let lower = asked.to_ascii_lowercase();
        if is_id(&lower) {
            return redirect(lower);
        }
        if asked.is_empty() {
            return self.show_index(200, &asked, &namespace, "", may);
        }
        let Some((resource, name)) = asked.split_once('/') else {
            return self.show_index(
                400,
                &asked,
                &namespace,
                "That is neither an id nor KIND/NAME.",
                may,
            );
        };
        let families = self
            .ring
            .iter()
            .flat_map(|ring| {
                ring.families_of(&resource.to_ascii_lowercase(), &namespace, name, may)
            })
            .next();
        match families {
            Some(initial) => redirect(initial.to_string()),
            None => {
                self.show_index(404, &asked, &namespace, "No recent events of that object.", may)
            }
        }
    }

    fn show_index(
        &self,
        status: u16,
        query: &str,
        namespace: &str,
        message: &str,
        may: &AccessCheck<'_>,
    ) -> Page {
        let recent = self.ring.iter().flat_map(|ring| ring.recent(RECENT, may));
        let recent = recent.map(|family| RecentItem {
            id: family.initial.to_string(),
            object: view::object(&family.object),
            message: view::text(&family.message),
            when: when(family.last),
            events: family.events,
        });
        let (remembers, backend) = (self.ring.is_some(), self.backend.is_some());
        let index = IndexTemplate {
            query,
            namespace,
            message,
            remembers,
            backend,
            recent: recent.collect(),
        };
        html(status, &index)
    }

    fn timeline(&self, id: &str, may: &AccessCheck<'_>) -> Page {
        let Some(ring) = &self.ring else {
            let elsewhere = self.backend_url(id);
            let status = if elsewhere.is_some() { 200 } else { 404 };
            return html(
                status,
                &TimelineTemplate {
                    id,
                    title: "Elsewhere".to_owned(),
                    sections: Vec::new(),
                    omitted: 0,
                    elsewhere,
                },
            );
        };
        let story = ring.story(id, may);
        let sections: Vec<Section> = story
            .traces
            .iter()
            .map(|trace| Section::new(trace, self.backend_url(&trace.trace_id)))
            .collect();
        let title = sections
            .first()
            .map_or_else(|| "No recent events".to_owned(), |section| section.title.clone());
        html(
            if sections.is_empty() { 404 } else { 200 },
            &TimelineTemplate { id, title, sections, omitted: story.omitted, elsewhere: None },
        )
    }

    fn backend_url(&self, trace_id: &str) -> Option<String> {
        self.backend
            .as_ref()
            .filter(|_| trace_id.len() == 32)
            .map(|template| template.replace("{trace_id}", trace_id))
    }
}

fn is_id(text: &str) -> bool {
    matches!(text.len(), 16 | 32)
        && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn page(status: u16, media_type: &'static str, body: String) -> Page {
    Page { status, media_type, location: String::new(), body }
}

fn redirect(location: String) -> Page {
    Page { status: 303, media_type: "", location, body: String::new() }
}

fn html(status: u16, template: &impl Template) -> Page {
    match template.render() {
        Ok(body) => page(status, "text/html; charset=utf-8", body),
        // Writing to a string does not fail: a template that does not render is a bug.
        Err(_) => page(500, "text/plain; charset=utf-8", "failed to render the page\n".to_owned()),
    }
}

/// Decoded value of a query parameter; empty if absent.
fn parameter(query: &str, name: &str) -> String {
    let value = query.split('&').find_map(|pair| {
        pair.split_once('=')
            .filter(|(own, _)| *own == name)
            .map(|(_, value)| value.replace('+', " "))
    });
    value
        .map(|value| {
            percent_encoding::percent_decode_str(&value).decode_utf8_lossy().trim().to_owned()
        })
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::LoggedRequest;
    use crate::ring::ObjectRef;
    use ferrokube_trace::TraceContext;

    fn pages() -> (TracePages, String) {
        let (ring, root) = (Ring::default(), TraceContext::root());
        let object = ObjectRef {
            version: "v1".into(),
            resource: "configmaps".into(),
            namespace: "shop".into(),
            name: "page".into(),
            ..ObjectRef::default()
        };
        let request = LoggedRequest {
            verb: "create".into(),
            uri: "/<script>alert(1)</script>\u{1b}[31m\u{202e}".into(),
            user: "\"<script>alert(1)</script>".into(),
            code: 201,
            ..LoggedRequest::default()
        };
        ring.request(&root.with_initial(Some(root.trace_id)), object, request, None);
        (
            TracePages {
                ring: Some(Arc::new(ring)),
                backend: Some("https://jaeger.example/trace/{trace_id}".into()),
            },
            root.trace_id.to_string(),
        )
    }

    #[test]
    fn untrusted_content_is_escaped() {
        let (pages, id) = pages();
        for rest in ["", id.as_str()] {
            let body = pages.answer(rest, "", &|_| true).body;
            assert!(body.contains("alert(1)") && !body.contains("<script"), "{body}");
            assert!(!body.contains(['\u{1b}', '\u{202e}']), "{body}");
        }
        let body = pages.answer("", "q=%3Cscript%3E&namespace=%22%3E", &|_| true).body;
        assert!(!body.contains("<script") && !body.contains("\">\""), "{body}");
    }

    #[test]
    fn the_form_leads_to_a_family() {
        let (pages, id) = pages();
        let found = pages.answer("", "q=configmap%2Fpage&namespace=shop", &|_| true);
        assert_eq!((found.status, found.location.as_str()), (303, id.as_str()));
        assert_eq!(
            pages.answer("", "q=configmap/page&namespace=shop", &|_| false).status,
            404,
            "hidden from users who may not get it"
        );
        assert_eq!(pages.answer("", "q=configmap/page", &|_| true).status, 404);
        assert_eq!(pages.answer("", "q=hello", &|_| true).status, 400);
        assert_eq!(pages.answer("../secret", "", &|_| true).status, 404);
        assert_eq!(pages.answer(&id, "", &|_| false).status, 404);
        assert!(
            pages
                .answer(&id, "", &|_| true)
                .body
                .contains(&format!("https://jaeger.example/trace/{id}"))
        );
    }

    #[test]
    fn without_a_ring_the_page_leads_to_the_backend() {
        let id = "0af7651916cd43dd8448eb211c80319c";
        let pages = TracePages {
            ring: None,
            backend: Some("https://jaeger.example/trace/{trace_id}".into()),
        };
        let page = pages.answer(id, "", &|_| true);
        assert!(
            page.status == 200
                && page.body.contains(&format!("href=\"https://jaeger.example/trace/{id}\"")),
            "{}",
            page.body
        );
        assert_eq!(TracePages::default().answer(id, "", &|_| true).status, 404);
    }

    /// The policy forbids inline styles and scripts, so the pages must not need them.
    #[test]
    fn the_pages_keep_to_their_policy() {
        let (pages, id) = pages();
        for rest in ["", id.as_str()] {
            let body = pages.answer(rest, "", &|_| true).body;
            for forbidden in ["<style", " style=", "<script", " on", "javascript:", "src=\"http"] {
                let hit = body.find(forbidden).filter(|at| {
                    forbidden != " on"
                        || body[*at..].split(' ').nth(1).is_some_and(|word| word.contains("=\""))
                });
                assert_eq!(hit, None, "{forbidden} in {body}");
            }
        }
    }
}
