//! `x-kubernetes-list-type` and its keys.

use super::Loader;
use super::keywords::Keywords;
use crate::schema::{Kind, ListType, MapType, Schema};
use ferrokube_apimachinery::document::Value;
use ferrokube_apimachinery::field::FieldReason;

const TYPE: &str = "x-kubernetes-list-type";
const KEYS: &str = "x-kubernetes-list-map-keys";

impl Loader {
    pub(super) fn list_type(&mut self, keywords: &Keywords<'_>, out: &mut Schema) {
        let given = keywords.text(TYPE);
        let keys: Vec<String> = keywords.list(KEYS).iter().filter_map(Value::as_str).map(str::to_owned).collect();
        if given.is_some_and(|given| !matches!(given, "atomic" | "set" | "map")) {
            self.report(FieldReason::NotSupported, keywords.at(TYPE), "supported values: atomic, map, set");
            return;
        }
        if given.is_some() && out.kind != Kind::Array {
            self.report(FieldReason::Invalid, keywords.at("type"), "must be array if x-kubernetes-list-type is specified");
        }
        if given != Some("map") && !keys.is_empty() {
            self.report(FieldReason::Forbidden, keywords.at(KEYS), "must be empty unless x-kubernetes-list-type is map");
        }
        match given {
            Some("set") => {
                self.set_items(keywords, out.items.as_deref());
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
    fn set_items(&mut self, keywords: &Keywords<'_>, items: Option<&Schema>) {
        let Some(items) = items else {
            return;
        };
        let path = keywords.at("items");
        match items.kind {
            Kind::Object if items.map_type != MapType::Atomic => {
                self.report(FieldReason::Invalid, format!("{path}.x-kubernetes-map-type"), "must be atomic as item of a list with x-kubernetes-list-type=set");
            }
            Kind::Array if items.list_type != ListType::Atomic => {
                self.report(FieldReason::Invalid, format!("{path}.x-kubernetes-list-type"), "must be atomic as item of a list with x-kubernetes-list-type=set");
            }
            _ => {}
        }
        if items.nullable {
            self.report(FieldReason::Forbidden, format!("{path}.nullable"), "cannot be nullable when x-kubernetes-list-type is set");
        }
    }

    fn map_items(&mut self, keywords: &Keywords<'_>, items: Option<&Schema>, keys: &[String]) {
        if keys.is_empty() {
            self.report(FieldReason::Required, keywords.at(KEYS), "must not be empty if x-kubernetes-list-type is map");
        }
        for (index, key) in keys.iter().enumerate() {
            if keys[..index].contains(key) {
                self.report(FieldReason::Invalid, format!("{}[{index}]", keywords.at(KEYS)), "must not have duplicate entries");
            }
        }
        let Some(items) = items else {
            return;
        };
        let path = keywords.at("items");
        if items.kind != Kind::Object {
            self.report(FieldReason::Invalid, format!("{path}.type"), "must be object if parent array's x-kubernetes-list-type is map");
            return;
        }
        if items.nullable {
            self.report(FieldReason::Forbidden, format!("{path}.nullable"), "cannot be nullable when x-kubernetes-list-type is map");
        }
        for key in keys {
            self.key(keywords, items, key);
        }
    }

    /// A key must be a scalar that is always there.
    fn key(&mut self, keywords: &Keywords<'_>, items: &Schema, key: &str) {
        let path = format!("{}.properties[{key}]", keywords.at("items"));
        let Some(property) = items.properties.get(key) else {
            self.report(FieldReason::Invalid, keywords.at(KEYS), "entries must all be names of item properties");
            return;
        };
        if matches!(property.schema.kind, Kind::Object | Kind::Array | Kind::Any) {
            self.report(FieldReason::Invalid, format!("{path}.type"), "must be a scalar type if parent array's x-kubernetes-list-type is map");
        }
        if property.schema.nullable {
            self.report(FieldReason::Forbidden, format!("{path}.nullable"), "this property is a key and cannot be nullable");
        }
        if !property.required && property.schema.default.is_none() {
            self.report(FieldReason::Required, format!("{path}.default"), "this property is a key: it must be required or have a default");
        }
    }
}
