//! Registry credentials from Docker configurations, matched to images as in kubelet.
//!
//! An entry names a host, optionally with a port and a path prefix; each label of the host may be a
//! pattern (`*.example.com`). The most specific entries come first.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use ferrokube_cri::RegistryAuth;
use serde::Deserialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Max credentials tried per image.
const MAX_TRIES: usize = 32;
/// Registry of images without a host.
const DEFAULT_HOST: &str = "docker.io";
/// Name of Docker Hub in Docker's configuration.
const DEFAULT_KEY: &str = "index.docker.io";

/// Credentials by registry. Never printed or logged.
#[derive(Default)]
pub(super) struct Keyring(BTreeMap<Reverse<String>, Vec<RegistryAuth>>);

/// `.dockerconfigjson`; a `.dockercfg` is the inner map alone.
#[derive(Deserialize)]
pub(super) struct DockerConfig {
    #[serde(default)]
    auths: DockerAuths,
}

type DockerAuths = BTreeMap<String, DockerAuth>;

#[derive(Default, Deserialize)]
#[serde(default)]
struct DockerAuth {
    username: Option<String>,
    password: Option<String>,
    /// Base64 of `username:password`, which takes precedence.
    auth: Option<String>,
}

impl Keyring {
    /// Adds a `.dockerconfigjson`. Returns whether it is valid; errors would reveal secrets.
    pub(super) fn add_config(&mut self, bytes: &[u8]) -> bool {
        serde_json::from_slice::<DockerConfig>(bytes).is_ok_and(|config| self.add(config.auths))
    }

    /// Adds a `.dockercfg`. Returns whether it is valid.
    pub(super) fn add_legacy(&mut self, bytes: &[u8]) -> bool {
        serde_json::from_slice::<DockerAuths>(bytes).is_ok_and(|auths| self.add(auths))
    }

    /// Adds what a plug-in has.
    pub(super) fn add_provided(&mut self, place: &str, username: String, password: String) {
        let auth = RegistryAuth { username, password, ..RegistryAuth::default() };
        self.0.entry(Reverse(key(place))).or_default().push(auth);
    }

    fn add(&mut self, auths: DockerAuths) -> bool {
        let pairs = auths.into_iter().map(|(place, auth)| Some((key(&place), credentials(auth)?)));
        let Some(pairs) = pairs.collect::<Option<Vec<_>>>() else { return false };
        for (key, auth) in pairs {
            self.0.entry(Reverse(key)).or_default().push(auth);
        }
        true
    }

    /// Credentials for an image, in the order in which to try them.
    pub(super) fn lookup(&self, image: &str) -> Vec<RegistryAuth> {
        let repository = repository(image);
        let matching = self.0.iter().filter(|(key, _)| matches(&key.0, &repository));
        let mut found: Vec<&RegistryAuth> = matching.flat_map(|(_, auths)| auths).collect();
        let is_default = repository.starts_with("docker.io/");
        if found.is_empty() && is_default {
            found.extend(self.0.get(&Reverse(DEFAULT_KEY.to_owned())).into_iter().flatten());
        }
        let mut distinct: Vec<RegistryAuth> = Vec::new();
        for auth in found {
            if distinct.len() < MAX_TRIES && !distinct.contains(auth) {
                distinct.push(auth.clone());
            }
        }
        distinct
    }
}

/// Host and path prefix of an entry.
fn key(place: &str) -> String {
    let bare = place.strip_prefix("https://").or_else(|| place.strip_prefix("http://"));
    let place = bare.unwrap_or(place);
    let (host, path) = place.split_at(place.find('/').unwrap_or(place.len()));
    // `/v1` and `/v2` are part of Docker's registry URLs, not of a path.
    let versioned = ["/v1/", "/v2/"].iter().any(|version| path.starts_with(version));
    let path = if versioned { &path[3..] } else { path };
    if path == "/" { host.to_owned() } else { format!("{host}{path}") }
}

fn credentials(auth: DockerAuth) -> Option<RegistryAuth> {
    let (mut username, mut password) =
        (auth.username.unwrap_or_default(), auth.password.unwrap_or_default());
    if let Some(both) = auth.auth.filter(|both| !both.is_empty()) {
        let both = both.trim();
        let engine = if both.ends_with('=') { &STANDARD } else { &STANDARD_NO_PAD };
        let both = String::from_utf8(engine.decode(both).ok()?).ok()?;
        let (name, secret) = both.split_once(':')?;
        (username, password) = (name.to_owned(), secret.to_owned());
    }
    Some(RegistryAuth { username, password, ..RegistryAuth::default() })
}

/// The image's repository with its host, without tag and digest.
pub(super) fn repository(image: &str) -> String {
    let image = image.split('@').next().unwrap_or(image);
    let image = match image.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => name,
        _ => image,
    };
    match image.split_once('/') {
        Some((DEFAULT_KEY, path)) => hub(path),
        Some((DEFAULT_HOST, path)) => hub(path),
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => image.to_owned(),
        _ => hub(image),
    }
}

/// Whether an entry of this name is for a repository.
pub(super) fn is_for(place: &str, repository: &str) -> bool {
    matches(&key(place), repository)
}

fn hub(path: &str) -> String {
    let library = if path.contains('/') { "" } else { "library/" };
    format!("{DEFAULT_HOST}/{library}{path}")
}

fn matches(key: &str, repository: &str) -> bool {
    let split = |text: &str| {
        let (host, path) = text.split_at(text.find('/').unwrap_or(text.len()));
        let (host, port) = match host.rsplit_once(':') {
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, port),
            _ => (host, ""),
        };
        let labels: Vec<String> = host.split('.').map(str::to_owned).collect();
        (labels, port.to_owned(), path.to_owned())
    };
    let ((labels, port, path), (own, own_port, own_path)) = (split(key), split(repository));
    port == own_port
        && labels.len() == own.len()
        && own_path.starts_with(&path)
        && labels.iter().zip(&own).all(|(pattern, label)| fits(pattern, label))
}

/// Matches a shell pattern with `*`, `?` and classes, as Go's `filepath.Match`.
fn fits(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), text.chars().collect());
    let (mut at, mut from) = (0, 0);
    // Backtracking position: only the last star matters.
    let mut again: Option<(usize, usize)> = None;
    loop {
        let step = match pattern.get(at) {
            Some('*') => {
                again = Some((at + 1, from + 1));
                at += 1;
                continue;
            }
            Some(_) => text.get(from).and_then(|letter| one(&pattern[at..], *letter)),
            None if from == text.len() => return true,
            None => None,
        };
        match (step, again) {
            (Some(length), _) => (at, from) = (at + length, from + 1),
            (None, Some((star, next))) if next <= text.len() => {
                (at, from) = (star, next);
                again = Some((star, next + 1));
            }
            _ => return false,
        }
    }
}

/// Length of the pattern element that matches a letter.
fn one(pattern: &[char], letter: char) -> Option<usize> {
    match pattern {
        ['?', ..] => Some(1),
        ['\\', escaped, ..] => (*escaped == letter).then_some(2),
        ['[', rest @ ..] => {
            let end = rest.iter().skip(1).position(|it| *it == ']')? + 1;
            let (is_not, class) = match &rest[..end] {
                ['^', class @ ..] => (true, class),
                class => (false, class),
            };
            let is_in = class.contains(&letter)
                || class.windows(3).any(|it| it[1] == '-' && (it[0]..=it[2]).contains(&letter));
            (is_in != is_not).then_some(end + 2)
        }
        [plain, ..] => (*plain == letter).then_some(1),
        [] => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users(auths: &str, image: &str) -> Vec<String> {
        let mut keyring = Keyring::default();
        assert!(keyring.add_config(format!("{{\"auths\": {{{auths}}}}}").as_bytes()));
        keyring.lookup(image).into_iter().map(|auth| auth.username).collect()
    }

    /// Entries whose user names are their places.
    fn of(places: &[&str], image: &str) -> Vec<String> {
        let entry = |place: &&str| format!("\"{place}\": {{\"username\": \"{place}\"}}");
        users(&places.iter().map(entry).collect::<Vec<_>>().join(","), image)
    }

    #[test]
    fn an_entry_is_for_a_host_its_port_and_the_beginning_of_a_path() {
        let check = |place: &str, image: &str, is_for: bool| {
            assert_eq!(!of(&[place], image).is_empty(), is_for, "{place} for {image}");
        };
        check("r.io", "r.io/a:v1", true);
        check("https://r.io", "r.io/a/b@sha256:00", true);
        check("https://r.io/v2/", "r.io/a", true);
        check("http://r.io/v1/team", "r.io/team/a", true);
        check("r.io/team", "r.io/other/a", false);
        check("r.io", "r.io:5000/a", false);
        check("r.io:5000", "r.io:5000/a:v1", true);
        check("r.io", "evil-r.io/a", false);
        check("r.io", "r.io.evil.com/a", false);
        check("localhost", "localhost/a", true);
        check("127.0.0.1:5000", "127.0.0.1:5000/a:v1", true);
    }

    #[test]
    fn a_pattern_is_for_one_part_of_a_host() {
        let check = |place: &str, image: &str, is_for: bool| {
            assert_eq!(!of(&[place], image).is_empty(), is_for, "{place} for {image}");
        };
        check("*.r.io", "a.r.io/x", true);
        check("*.r.io", "r.io/x", false);
        check("*.r.io", "a.b.r.io/x", false);
        check("*.*.r.io", "a.b.r.io/x", true);
        check("pre*.r.io", "prefix.r.io/x", true);
        check("*-a*z.r.io", "b-a-aqz.r.io/x", true);
        check("r?.io", "r1.io/x", true);
        check("r[0-4].io", "r3.io/x", true);
        check("r[^0-4].io", "r3.io/x", false);
        check("r[.io", "r[.io/x", false);
        check("*.r.io:5000", "a.r.io:5000/x", true);
        check("*.r.io:5000", "a.r.io/x", false);
    }

    #[test]
    fn the_default_registry_is_for_images_without_a_host() {
        let hub = "https://index.docker.io/v1/";
        for image in ["nginx", "library/nginx:1", "docker.io/library/nginx", "index.docker.io/a/b"]
        {
            assert_eq!(of(&[hub], image), [hub], "{image}");
        }
        assert_eq!(of(&["docker.io", hub], "nginx"), ["docker.io"], "what matches comes first");
        assert!(of(&[hub], "r.io/nginx").is_empty());
    }

    #[test]
    fn the_most_specific_entry_is_tried_first_and_each_once() {
        let places = ["r.io", "r.io/team", "r.io/team/a", "*.io"];
        assert_eq!(of(&places, "r.io/team/a"), ["r.io/team/a", "r.io/team", "r.io", "*.io"]);
        let same = "\"r.io\": {\"username\": \"u\"}, \"r.io/a\": {\"username\": \"u\"}";
        assert_eq!(users(same, "r.io/a"), ["u"]);
        let many: Vec<String> = (0..100).map(|n| format!("r.io/{}", "a".repeat(n))).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(of(&many, &format!("r.io/{}", "a".repeat(100))).len(), MAX_TRIES);
    }

    #[test]
    fn user_and_password_are_also_read_from_auth() {
        let lookup = |entry: &str| {
            let mut keyring = Keyring::default();
            let is_read = keyring.add_legacy(format!("{{\"r.io\": {entry}}}").as_bytes());
            let found = keyring.lookup("r.io/a").into_iter().next();
            is_read.then(|| found.map(|auth| (auth.username, auth.password)).unwrap_or_default())
        };
        let pair = |user: &str, password: &str| Some((user.to_owned(), password.to_owned()));
        assert_eq!(lookup("{\"username\": \"u\", \"password\": \"p\"}"), pair("u", "p"));
        // "u:p:q", with and without padding.
        assert_eq!(lookup("{\"auth\": \"dTpwOnE=\", \"username\": \"x\"}"), pair("u", "p:q"));
        assert_eq!(lookup("{\"auth\": \"dTpwOnE\"}"), pair("u", "p:q"));
        assert_eq!(lookup("{\"auth\": \"dQ==\"}"), None, "without a colon");
        assert_eq!(lookup("{\"auth\": \"!\"}"), None);
        assert_eq!(lookup("7"), None);
    }
}
