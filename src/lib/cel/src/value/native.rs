//! Results of expressions as JSON.

use super::{Map, MapKey, MessageValue, Value, time};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ferrokube_apimachinery::document::{Map as JsonMap, Number, Value as Json};

/// Max depth of a result.
const MAX_DEPTH: usize = 128;
/// Integers beyond this are strings in JSON, as protobuf writes them.
const MAX_SAFE: u64 = (1 << 53) - 1;

impl Value<'_> {
    /// The value as JSON.
    ///
    /// # Errors
    /// It has none: an optional, a library type.
    pub fn to_json(&self) -> Result<Json, String> {
        self.native(0)
    }

    fn native(&self, depth: usize) -> Result<Json, String> {
        if depth > MAX_DEPTH {
            return Err(format!("the value is nested more than {MAX_DEPTH} levels deep"));
        }
        Ok(match self {
            Self::Null => Json::Null,
            Self::Bool(flag) => Json::from(*flag),
            Self::Int(number) if number.unsigned_abs() <= MAX_SAFE => Json::from(*number),
            Self::Uint(number) if *number <= MAX_SAFE => Json::from(*number),
            Self::Int(number) => Json::from(number.to_string()),
            Self::Uint(number) => Json::from(number.to_string()),
            Self::Double(number) => Number::from_f64(*number)
                .map(Json::Number)
                .ok_or_else(|| "a number that is not finite has no JSON".to_owned())?,
            Self::String(text) => Json::from(&**text),
            Self::Bytes(bytes) => Json::from(STANDARD.encode(bytes)),
            Self::Duration(nanos) => Json::from(time::write_duration(*nanos)),
            Self::Timestamp(nanos) => {
                Json::from(time::write_timestamp(*nanos).map_err(|why| why.to_string())?)
            }
            Self::List(list) => {
                let items: Result<Vec<Json>, String> =
                    list.iter().map(|item| item.native(depth + 1)).collect();
                Json::from(items?)
            }
            Self::Map(map) => Json::Object(map.native(depth)?),
            Self::Message(message) => Json::Object(message.native(depth)?),
            other => return Err(format!("a value of type {} has no JSON", other.type_name())),
        })
    }

    fn names(&self, path: &str, wrong: &mut Vec<String>) {
        match self {
            Self::Message(message) => message.names(path, wrong),
            Self::List(list) => list.iter().for_each(|item| item.names(path, wrong)),
            Self::Map(Map::Own(map)) => map.values().for_each(|value| value.names(path, wrong)),
            _ => {}
        }
    }
}

impl Map<'_> {
    fn native(&self, depth: usize) -> Result<JsonMap, String> {
        let mut fields = JsonMap::new();
        for (key, value) in self.entries() {
            let MapKey::Text(key) = key else {
                return Err("keys of JSON objects are strings".to_owned());
            };
            fields.insert(key.to_string(), value.native(depth + 1)?);
        }
        Ok(fields)
    }
}

impl MessageValue<'_> {
    fn native(&self, depth: usize) -> Result<JsonMap, String> {
        let mut fields = JsonMap::new();
        for (name, value) in &self.fields {
            fields.insert(name.to_string(), value.native(depth + 1)?);
        }
        Ok(fields)
    }

    /// Checks that the type names of nested messages are the paths of their fields.
    ///
    /// # Errors
    /// kube-apiserver's message.
    pub fn check_names(&self) -> Result<(), String> {
        let mut wrong = Vec::new();
        self.names(&self.name, &mut wrong);
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
    }

    fn names(&self, path: &str, wrong: &mut Vec<String>) {
        if *self.name != *path {
            wrong.push(format!(
                "unexpected type name {:?}, expected {path:?}, which matches field name path from root Object type",
                self.name
            ));
        }
        for (field, value) in &self.fields {
            value.names(&format!("{path}.{field}"), wrong);
        }
    }
}
