//! Checks that every fully populated object in a directory is the same in JSON, protobuf and YAML:
//! `GROUP.VERSION.KIND.json`, `.pb` and `.yaml`, as in the test data of k8s.io/api. Prints what
//! differs; exits with 1 if anything does.
//!
//!     cargo run -p ferrokube-workloads --example roundtrip -- DIRECTORY

use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::{json, yaml};
use ferrokube_resource::Composition;
use ferrokube_resource::encoding::{complete, normalize};
use std::path::{Path, PathBuf};

fn main() {
    let directory = std::env::args().nth(1).expect("the directory of the objects");
    let served = ferrokube_resources::compose(&[
        ferrokube_resources::bundle(),
        ferrokube_workloads::bundle(),
    ])
    .expect("the bundles fit");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&directory)
        .unwrap_or_else(|error| panic!("cannot list the objects in {directory}: {error}"))
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    files.sort();
    let (mut same, mut other) = (0, 0);
    for file in files {
        match check(&served, &file) {
            Ok(true) => same += 1,
            Ok(false) => {}
            Err(why) => {
                other += 1;
                println!("{}: {why}", file.display());
            }
        }
    }
    println!("{same} kinds are exact, {other} are not");
    std::process::exit(i32::from(other > 0 || same == 0));
}

/// Whether the kind is known; how the encodings differ.
fn check(served: &Composition, file: &Path) -> Result<bool, String> {
    let read = |extension| std::fs::read(file.with_extension(extension)).map_err(|e| e.to_string());
    let text = read("json")?;
    let object = json::read(&text).map_err(|error| error.to_string())?.document;
    let (api, kind) = (object.api_version().to_owned(), object.kind().to_owned());
    let (group, version) = api.split_once('/').unwrap_or(("", &api));
    let Some((definition, at)) = served.definitions.iter().find_map(|definition| {
        let is_it = definition.group == group && definition.kind == kind;
        let at = definition.versions.iter().position(|known| known.name == version)?;
        is_it.then_some((definition, at))
    }) else {
        return Ok(false);
    };
    let version = &definition.versions[at];
    let message = version.message.as_deref().ok_or("no message")?;
    let canonical = |mut object: Document| {
        normalize(&version.schema, &mut object);
        complete(&version.schema, &mut object);
        object
    };
    let expected = object.clone().into_value();
    let same = |what: &str, made: Document| {
        let made = made.into_value();
        if made == expected { Ok(()) } else { Err(format!("{what}: {}", first(&expected, &made))) }
    };
    same("normalized", canonical(object.clone()))?;
    let bytes = read("pb")?;
    let decoded = served.messages.read(message, &bytes).map_err(|error| error.to_string())?;
    same("from protobuf", canonical(decoded))?;
    let written = served.messages.write(message, &object).map_err(|error| error.to_string())?;
    if written != bytes {
        return Err(format!("to protobuf: {} bytes instead of {}", written.len(), bytes.len()));
    }
    let from_yaml = yaml::read(&read("yaml")?).map_err(|error| error.to_string())?;
    same("from YAML", from_yaml.document)?;
    Ok(true)
}

/// The first path at which two values differ.
fn first(
    one: &ferrokube_apimachinery::document::Value,
    other: &ferrokube_apimachinery::document::Value,
) -> String {
    use ferrokube_apimachinery::document::Value;
    match (one, other) {
        (Value::Object(a), Value::Object(b)) => {
            let names = a.keys().chain(b.keys().filter(|name| !a.contains_key(name)));
            for name in names {
                match (a.get(name), b.get(name)) {
                    (Some(a), Some(b)) if a == b => {}
                    (Some(a), Some(b)) => return format!(".{name}{}", first(a, b)),
                    (a, b) => return format!(".{name}: {a:?} or {b:?}"),
                }
            }
            String::new()
        }
        (Value::Array(a), Value::Array(b)) => {
            let at = a.iter().zip(b.iter()).position(|(a, b)| a != b);
            at.map_or_else(
                || ": another length".to_owned(),
                |at| format!("[{at}]{}", first(&a.as_slice()[at], &b.as_slice()[at])),
            )
        }
        _ => format!(": {one} or {other}"),
    }
}
