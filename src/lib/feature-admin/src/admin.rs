//! The commands of `feature-admin`.
//!
//! Output is passed to the callback as it is produced, as text or JSON documents; the result
//! determines the exit code.

use crate::check::{VersionChange, VersionChangeError};
use crate::follow::{Features, follow};
use crate::report::{FeatureReport, safe};
use crate::request_log::{RequestNote, logged};
use crate::text;
use ferrokube_features::transition::FeatureState;
use ferrokube_features::{CoverageFigures, known, page};
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::{GroupVersionKind, TypeMeta};
use kube::{Api, Client};
use serde_json::{Value, json};
use std::time::Duration;

const GROUP: &str = "features.k8s.io";
const VERSION: &str = "v1alpha1";
const KIND: &str = "Feature";
/// Features per request of a list.
const PAGE: u32 = 500;
/// Names in an error about a feature that does not exist.
const MAX_NAMES: usize = 20;
/// Written by `tests/coverage`.
const COVERAGE: CoverageFigures<'_> = CoverageFigures(include_str!("../data/coverage.tsv"));
/// Field manager of writes.
const MANAGER: &str = "feature-admin";

/// A command of `feature-admin`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FeatureCommand {
    /// All features.
    List,
    /// One feature, with its blockers.
    Describe(String),
    /// Sets `spec.desired` of a dynamic feature.
    Set {
        /// Feature.
        name: String,
        /// Value.
        enabled: bool,
    },
    /// Waits for a state. False: it was not reached in time.
    Wait {
        /// Feature.
        name: String,
        /// Expected `status.state`.
        state: FeatureState,
        /// Longest time.
        timeout: Duration,
    },
    /// Reported values, of one feature or all.
    Uses(Option<String>),
    /// Tasks that remain.
    Tasks,
    /// Whether no feature blocks a change of version.
    Check(VersionChange),
    /// Progress of all transitions, until there are none.
    Watch,
}

/// Settings of commands.
#[derive(Clone, Default)]
pub struct AdminOptions {
    /// Print JSON documents instead of texts.
    pub machine: bool,
    /// Ask the server to check writes and to keep none.
    pub dry_run: bool,
    /// Width of a terminal whose last lines may be drawn again.
    pub live: Option<usize>,
    /// Receives a line for each request, with its ids.
    pub note: Option<RequestNote>,
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum FeatureAdminError {
    /// The API is off.
    #[error("the server does not serve features; start it with --feature-gates=FeatureAPI=true")]
    NotServed,
    /// No such feature.
    #[error("there is no feature {name:?}{others}")]
    NotFound {
        /// Given name.
        name: String,
        /// Those that there are.
        others: String,
    },
    /// Only its components' command lines set it.
    #[error("{name} is not dynamic: restart with {flag}")]
    NotDynamic {
        /// Feature.
        name: String,
        /// The setting and its location.
        flag: String,
    },
    /// The server refused a request.
    #[error("the server refused: {0}")]
    Refused(String),
    /// A request had no response.
    #[error("the request failed")]
    Request(#[source] kube::Error),
    /// The watch cannot be started.
    #[error("cannot watch the features: {0}")]
    Watch(String),
    /// No change of version.
    #[error(transparent)]
    Version(#[from] VersionChangeError),
}

impl FeatureAdminError {
    /// A missing resource, not a missing feature: `get_opt` has handled those.
    pub(crate) fn of(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 404 => Self::NotServed,
            kube::Error::Api(status) => Self::Refused(safe(&status.message)),
            other => Self::Request(other),
        }
    }
}

/// Output.
type Print<'a> = &'a mut (dyn FnMut(&str) + Send);

/// Features of a namespace.
pub struct FeatureAdmin {
    api: Api<DynamicObject>,
    options: AdminOptions,
}

impl FeatureAdmin {
    /// All requests belong to one trace.
    pub fn new(client: &Client, namespace: &str, options: AdminOptions) -> Self {
        let kind = GroupVersionKind::gvk(GROUP, VERSION, KIND);
        let client = logged(client, options.note.clone());
        let api = Api::namespaced_with(client, namespace, &ApiResource::from_gvk(&kind));
        Self { api, options }
    }

    /// Runs a command. False if a check failed.
    ///
    /// # Errors
    /// [`FeatureAdminError`].
    pub async fn run(
        &self,
        command: &FeatureCommand,
        print: Print<'_>,
    ) -> Result<bool, FeatureAdminError> {
        match command {
            FeatureCommand::List => {
                let all = self.list().await?;
                self.print(print, &list_value(&all), || text::table(&reports(&all)));
            }
            FeatureCommand::Describe(name) => {
                let feature = self.get(name).await?;
                let report = FeatureReport::read(&feature);
                self.print(print, &feature, || text::description(&report));
            }
            FeatureCommand::Set { name, enabled } => self.set(name, *enabled, print).await?,
            FeatureCommand::Wait { name, state, timeout } => {
                return self.wait(name, *state, *timeout, print).await;
            }
            FeatureCommand::Uses(name) => {
                let all = reports(&self.some(name.as_deref()).await?);
                self.print(print, &uses_value(&all), || text::uses(&all));
            }
            FeatureCommand::Tasks => {
                let all = reports(&self.list().await?);
                let turning = all.iter().filter(|one| !one.tasks.is_empty());
                let value = turning.map(text::progress_value).collect::<Vec<_>>();
                self.print(print, &Value::from(value), || text::tasks(&all));
            }
            FeatureCommand::Check(change) => {
                let reasons = change.check(&reports(&self.list().await?))?;
                let value = text::verdict_value(*change, &reasons);
                self.print(print, &value, || text::verdict(*change, &reasons));
                return Ok(reasons.is_empty());
            }
            FeatureCommand::Watch => self.watch(print).await?,
        }
        Ok(true)
    }

    fn print(&self, print: Print<'_>, value: &Value, text: impl FnOnce() -> String) {
        if self.options.machine { print(&format!("{value:#}\n")) } else { print(&text()) }
    }

    /// All, in pages.
    async fn list(&self) -> Result<Vec<Value>, FeatureAdminError> {
        let mut all = Vec::new();
        let mut request = ListParams::default().limit(PAGE);
        loop {
            let found = self.api.list(&request).await.map_err(FeatureAdminError::of)?;
            all.extend(found.items.into_iter().map(shown));
            match found.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => request.continue_token = Some(token),
                None => return Ok(all),
            }
        }
    }

    async fn get(&self, name: &str) -> Result<Value, FeatureAdminError> {
        // A name with a slash would be another path.
        let is_name =
            name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte));
        let found = match is_name && !name.is_empty() {
            true => self.api.get_opt(name).await.map_err(FeatureAdminError::of)?,
            false => None,
        };
        match found {
            Some(found) => Ok(shown(found)),
            None => Err(self.not_found(name).await),
        }
    }

    /// Names those that there are.
    async fn not_found(&self, name: &str) -> FeatureAdminError {
        let all = match self.list().await {
            Ok(all) => reports(&all),
            Err(error @ FeatureAdminError::NotServed) => return error,
            // A user who may get a feature may not be allowed to list them.
            Err(_) => Vec::new(),
        };
        let names: Vec<&str> = all.iter().take(MAX_NAMES).map(|one| one.name.as_str()).collect();
        let more = all.len().saturating_sub(names.len());
        let others = match (names.is_empty(), more) {
            (true, _) => String::new(),
            (false, 0) => format!("; there are {}", names.join(", ")),
            (false, more) => format!("; there are {} and {more} more", names.join(", ")),
        };
        FeatureAdminError::NotFound { name: name.to_owned(), others }
    }

    async fn some(&self, name: Option<&str>) -> Result<Vec<Value>, FeatureAdminError> {
        match name {
            Some(name) => Ok(vec![self.get(name).await?]),
            None => self.list().await,
        }
    }

    async fn set(
        &self,
        name: &str,
        enabled: bool,
        print: Print<'_>,
    ) -> Result<(), FeatureAdminError> {
        let report = FeatureReport::read(&self.get(name).await?);
        if !report.is_settable() {
            let (name, flag) = (name.to_owned(), report.flag(enabled));
            return Err(FeatureAdminError::NotDynamic { name, flag });
        }
        let desired = if enabled { "Enabled" } else { "Disabled" };
        let patch = json!({ "spec": { "desired": desired } });
        let dry_run = self.options.dry_run;
        let field_manager = Some(MANAGER.to_owned());
        let options = PatchParams { dry_run, field_manager, ..PatchParams::default() };
        let written = self.api.patch(name, &options, &Patch::Merge(&patch)).await;
        let written = written.map_err(FeatureAdminError::of)?;
        self.print(print, &shown(written), || {
            let value = if enabled { "enabled" } else { "disabled" };
            let how = if dry_run { " (server dry run)" } else { "" };
            format!("{name} {value}{how}\n")
        });
        Ok(())
    }

    async fn wait(
        &self,
        name: &str,
        state: FeatureState,
        timeout: Duration,
        print: Print<'_>,
    ) -> Result<bool, FeatureAdminError> {
        let mut last = FeatureReport::read(&self.get(name).await?);
        let reached = follow(&self.api, Some(name), |features| {
            last = features.get(name)?.clone();
            (last.state == Some(state)).then_some(())
        });
        let reached = match tokio::time::timeout(timeout, reached).await {
            Ok(outcome) => outcome.map(|()| true)?,
            Err(_) => false,
        };
        let value = json!({"feature": name, "state": last.state_text(), "reached": reached});
        self.print(print, &value, || {
            if reached {
                return format!("{name} is {state}\n");
            }
            let mut text =
                format!("{name} is {} after {} s\n", last.state_text(), timeout.as_secs());
            for hindrance in last.hindrances() {
                text += &format!("  {}\n  -> {}\n", hindrance.why, hindrance.remedy);
            }
            text
        });
        Ok(reached)
    }

    async fn watch(&self, print: Print<'_>) -> Result<(), FeatureAdminError> {
        let mut screen = Screen { live: self.options.live, ..Screen::default() };
        let machine = self.options.machine;
        let mut before = Features::new();
        follow(&self.api, None, |features| {
            for feature in features.values().filter(|one| before.get(&one.name) != Some(one)) {
                let was_turning = before.get(&feature.name).is_some_and(FeatureReport::is_turning);
                let ended = was_turning && !feature.is_turning();
                if machine && (feature.is_turning() || ended) {
                    print(&format!("{:#}\n", text::progress_value(feature)));
                } else if ended {
                    print(&screen.above(&format!("{} is {}", feature.name, feature.state_text())));
                }
            }
            before.clone_from(features);
            let lines: Vec<String> =
                features.values().filter(|one| one.is_turning()).map(text::progress).collect();
            let is_over = lines.is_empty();
            if !machine {
                print(&screen.draw(lines));
            }
            is_over.then_some(())
        })
        .await?;
        if !machine {
            print("no feature is in transition\n");
        }
        Ok(())
    }
}

/// The lines of [`FeatureCommand::Watch`]: drawn in place on a terminal, else written when they
/// change.
#[derive(Default)]
struct Screen {
    live: Option<usize>,
    lines: Vec<String>,
}

impl Screen {
    /// The terminal control sequence that erases the previous drawing.
    fn erase(&self) -> String {
        match (self.live, self.lines.len()) {
            (None, _) | (_, 0) => String::new(),
            (Some(_), drawn) => format!("\x1b[{drawn}A\x1b[J"),
        }
    }

    /// A line that stays.
    fn above(&mut self, line: &str) -> String {
        let text = format!("{}{line}\n", self.erase());
        if self.live.is_some() {
            self.lines.clear();
        }
        text
    }

    fn draw(&mut self, lines: Vec<String>) -> String {
        // A line that the terminal wraps would count as two.
        let cut = |line: &String| match self.live {
            Some(width) => line.chars().take(width.saturating_sub(1).max(20)).collect(),
            None => line.clone(),
        };
        let lines: Vec<String> = lines.iter().map(cut).collect();
        let mut text = if self.lines == lines { return String::new() } else { self.erase() };
        let is_new = |line: &&String| self.live.is_some() || !self.lines.contains(line);
        for line in lines.iter().filter(is_new) {
            text.push_str(line);
            text.push('\n');
        }
        self.lines = lines;
        text
    }
}

/// As kubectl prints it: items of lists lack their type, and `managedFields` is noise.
fn shown(mut object: DynamicObject) -> Value {
    object.metadata.managed_fields = None;
    let (api_version, kind) = (format!("{GROUP}/{VERSION}"), KIND.to_owned());
    object.types.get_or_insert(TypeMeta { api_version, kind });
    serde_json::to_value(object).unwrap_or_default()
}

fn reports(all: &[Value]) -> Vec<FeatureReport> {
    all.iter().map(FeatureReport::read).collect()
}

fn list_value(all: &[Value]) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": all})
}

fn uses_value(all: &[FeatureReport]) -> Value {
    let mut uses = Vec::new();
    for feature in all {
        uses.extend(feature.uses.iter().map(|one| {
            json!({
                "feature": feature.name,
                "version": one.version,
                "enabled": one.enabled,
                "reporter": one.reporter,
                "reportTime": one.since,
            })
        }));
    }
    Value::from(uses)
}

/// The production readiness sheet of a feature: Markdown, or an object for programs. Needs no
/// cluster.
///
/// # Errors
/// [`FeatureAdminError::NotFound`].
pub fn sheet(name: &str, machine: bool) -> Result<String, FeatureAdminError> {
    let Some(known) = known::ALL.iter().find(|one| one.gate.name == name) else {
        let names: Vec<&str> = known::ALL.iter().map(|one| one.gate.name).collect();
        let others = format!("; there are {}", names.join(", "));
        return Err(FeatureAdminError::NotFound { name: name.to_owned(), others });
    };
    if !machine {
        return Ok(page::sheet(known, COVERAGE));
    }
    let answers: Vec<Value> = page::questions()
        .map(|(id, question)| json!({"id": id, "question": question, "answer": page::answer(known, id)}))
        .collect();
    let value = json!({
        "feature": name,
        "source": known.source,
        "owner": known.owner,
        "components": known.components,
        "metrics": known.metrics,
        "answers": answers,
    });
    Ok(format!("{value:#}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_drawn_in_place_and_a_file_gets_what_changes() {
        let lines = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let mut live = Screen { live: Some(30), ..Screen::default() };
        assert_eq!(live.draw(lines(&["a 1", "b 1"])), "a 1\nb 1\n");
        assert_eq!(live.draw(lines(&["a 1", "b 1"])), "");
        assert_eq!(live.draw(lines(&["a 2", "b 1"])), "\x1b[2A\x1b[Ja 2\nb 1\n");
        assert_eq!(live.above("b is Off"), "\x1b[2A\x1b[Jb is Off\n");
        assert_eq!(live.draw(lines(&["a 2"])), "a 2\n");
        assert_eq!(live.draw(lines(&["long ".repeat(20).as_str()])).lines().count(), 1);
        let mut file = Screen::default();
        assert_eq!(file.draw(lines(&["a 1", "b 1"])), "a 1\nb 1\n");
        assert_eq!(file.draw(lines(&["a 2", "b 1"])), "a 2\n");
        assert_eq!(file.above("b is Off"), "b is Off\n");
    }

    #[test]
    fn p01_p30_a_sheet_has_every_question() {
        let text = sheet("LogTracking", false).unwrap();
        for number in 1..=30 {
            assert!(text.contains(&format!("P{number:02} ")), "P{number:02} in {text}");
        }
        let value: Value = serde_json::from_str(&sheet("FeatureAPI", true).unwrap()).unwrap();
        assert_eq!(value["answers"].as_array().unwrap().len(), 30);
        let why = sheet("LogTrakcing", false).unwrap_err().to_string();
        assert!(why.starts_with("there is no feature \"LogTrakcing\"; there are "), "{why}");
    }
}
