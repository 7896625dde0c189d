//! `x-kubernetes-list-type` and its keys.

use super::keywords::Keywords;
use super::{Loader, MAX_LIST_KEYS};
use crate::schema::{Kind, ListType, MapType, Schema};
use ferrokube_apimachinery::document::Value;
use ferrokube_apimachinery::field::FieldReason;
use std::collections::HashSet;

const TYPE: &str = "x-kubernetes-list-type";
const KEYS: &str = "x-kubernetes-list-map-keys";

impl Loader {
    pub(super) fn list_type(&mut self, keywords: &Keywords<'_>, out: &mut Schema) {
        let given = keywords.text(TYPE);
        let keys: Vec<String> = keywords.list(KEYS).iter().filter_map(Value::as_str).map(str::to_owned).collect();
        if given.is_some_and(|given| !matches!(given, "atomic" | "set" | "map")) {
            self.refuse(FieldReason::NotSupported, keywords.at(TYPE), "supported values: atomic, map, set");
        }
        if given.is_some() {
            self.must_be(keywords, "array", "must be array if x-kubernetes-list-type is specified");
        }
        if given != Some("map") && !keys.is_empty() {
            let reason = if given.is_some() { FieldReason::Invalid } else { FieldReason::Required };
            self.refuse(reason, keywords.at(TYPE), "must be map if x-kubernetes-list-map-keys is non-empty");
        }
        match given {
            Some("set") => {
                self.set_items(keywords, out);
                out.list_type = ListType::Set;
            }
            Some("map") => {
                self.map_items(keywords, out.items.as_deref(), &keys);
                out.list_type = ListType::Map(keys);
            }
            _ => {}
        }
    }

    /// Members of a set are values as a whole.
    fn set_items(&mut self, keywords: &Keywords<'_>, out: &Schema) {
        let Some(items) = out.items.as_deref() else {
            return;
        };
        let path = keywords.at("items");
        const WHY: &str = "must be atomic as item of a list with x-kubernetes-list-type=set";
        match items.kind {
            Kind::Object if out.kind == Kind::Array && items.map_type != MapType::Atomic => {
                self.refuse(FieldReason::Invalid, format!("{path}.x-kubernetes-map-type"), WHY);
            }
            Kind::Array if out.kind == Kind::Array && items.list_type != ListType::Atomic => {
                self.refuse(FieldReason::Invalid, format!("{path}.x-kubernetes-list-type"), WHY);
            }
            _ => {}
        }
        if items.nullable {
            self.refuse(FieldReason::Forbidden, format!("{path}.nullable"), "cannot be nullable when x-kubernetes-list-type is set");
        }
    }

    fn map_items(&mut self, keywords: &Keywords<'_>, items: Option<&Schema>, keys: &[String]) {
        if keys.is_empty() {
            self.refuse(FieldReason::Required, keywords.at(KEYS), "must not be empty if x-kubernetes-list-type is map");
        }
        let Some(items) = items else {
            match keywords.get("items") {
                None => self.refuse(FieldReason::Required, keywords.at("items"), "must have a schema if x-kubernetes-list-type is map"),
                Some(_) => self.refuse(FieldReason::Invalid, keywords.at("items"), "must only have a single schema if x-kubernetes-list-type is map"),
            }
            return;
        };
        let path = keywords.at("items");
        if items.kind != Kind::Object {
            self.refuse(FieldReason::Invalid, format!("{path}.type"), "must be object if parent array's x-kubernetes-list-type is map");
        }
        if items.nullable {
            self.refuse(FieldReason::Forbidden, format!("{path}.nullable"), "cannot be nullable when x-kubernetes-list-type is map");
        }
        if keys.len() > MAX_LIST_KEYS {
            let why = format!("{}: must have at most {MAX_LIST_KEYS} items", keys.len());
            return self.refuse(FieldReason::TooMany, keywords.at(KEYS), &why);
        }
        let required: HashSet<&str> =
            keywords.fields("items").and_then(|items| items.get("required")?.as_array()).into_iter().flatten().filter_map(Value::as_str).collect();
        for (index, key) in keys.iter().enumerate() {
            if items.kind == Kind::Object && keys[..index].contains(key) {
                self.refuse(FieldReason::Invalid, keywords.at(KEYS), "must not contain duplicate entries");
            }
            self.key(keywords, items, key, required.contains(key.as_str()));
        }
    }

    /// A key must be a scalar that is always there.
    fn key(&mut self, keywords: &Keywords<'_>, items: &Schema, key: &str, is_required: bool) {
        let path = format!("{}.properties[{key}]", keywords.at("items"));
        let Some(property) = items.properties.get(key) else {
            if items.kind == Kind::Object {
                self.refuse(FieldReason::Invalid, keywords.at(KEYS), "entries must all be names of item properties");
            }
            return;
        };
        if items.kind == Kind::Object && matches!(property.schema.kind, Kind::Object | Kind::Array) {
            self.refuse(FieldReason::Invalid, format!("{path}.type"), "must be a scalar type if parent array's x-kubernetes-list-type is map");
        }
        if property.schema.nullable {
            self.refuse(FieldReason::Forbidden, format!("{path}.nullable"), "this property is in x-kubernetes-list-map-keys, so it cannot be nullable");
        }
        if !is_required && property.schema.default.is_none() {
            let why = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            self.refuse(FieldReason::Required, format!("{path}.default"), why);
        }
    }
}
