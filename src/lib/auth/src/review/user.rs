//! `UserInfo` as JSON.

use ferrokube_apimachinery::document::{Map, Value, json};
use ferrokube_apimachinery::user::UserInfo;

/// Omits empty fields.
pub(super) fn to_value(user: &UserInfo) -> Value {
    let mut map = Map::new();
    for (field, text) in [("username", &user.name), ("uid", &user.uid)] {
        if !text.is_empty() {
            map.insert(field, Value::from(text.as_str()));
        }
    }
    if !user.groups.is_empty() {
        map.insert("groups", json!(user.groups));
    }
    if !user.extra.is_empty() {
        map.insert("extra", json!(user.extra));
    }
    Value::Object(map)
}
