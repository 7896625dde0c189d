//! `x-kubernetes-list-type` and its keys.

use super::keywords::Keywords;
use super::{Loader, MAX_LIST_KEYS};
use crate::schema::{Kind, ListType, MapType, Schema};
use ferrokube_apimachinery::document::Value;
use ferrokube_apimachinery::field::FieldError;
use std::collections::HashSet;

const TYPE: &str = "x-kubernetes-list-type";
const KEYS: &str = "x-kubernetes-list-map-keys";

impl Loader {
    pub(super) fn list_type(&mut self, keywords: &Keywords<'_>, out: &mut Schema) {
        let given = keywords.text(TYPE);
        let keys: Vec<String> =
            keywords.list(KEYS).iter().filter_map(Value::as_str).map(str::to_owned).collect();
        if let Some(given) = given.filter(|given| !matches!(*given, "atomic" | "set" | "map")) {
            self.refuse(FieldError::not_supported(
                keywords.at(TYPE),
                given,
                ["atomic", "set", "map"],
            ));
        }
        if given.is_some() {
            self.must_be(keywords, "array", "must be array if x-kubernetes-list-type is specified");
        }
        if given != Some("map") && !keys.is_empty() {
            const WHY: &str = "must be map if x-kubernetes-list-map-keys is non-empty";
            self.refuse(match given {
                Some(given) => FieldError::invalid(keywords.at(TYPE), given, WHY),
                None => FieldError::required(keywords.at(TYPE), WHY),
            });
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

    /// Set items must be atomic.
    fn set_items(&mut self, keywords: &Keywords<'_>, out: &Schema) {
        let Some(items) = out.items.as_deref() else {
            return;
        };
        let path = keywords.at("items");
        const WHY: &str = "must be atomic as item of a list with x-kubernetes-list-type=set";
        match items.kind {
            Kind::Object if out.kind == Kind::Array && items.map_type != MapType::Atomic => {
                // Like kube-apiserver, quote the list type here, too.
                let shown = keywords.fields("items").and_then(|items| items.get(TYPE));
                self.refuse(FieldError::invalid(
                    format!("{path}.x-kubernetes-map-type"),
                    shown,
                    WHY,
                ));
            }
            Kind::Array if out.kind == Kind::Array => {
                // An unknown type is not atomic either.
                let shown = keywords.fields("items").and_then(|items| items.get(TYPE));
                if shown.and_then(Value::as_str).is_some_and(|given| given != "atomic") {
                    let field = format!("{path}.x-kubernetes-list-type");
                    self.refuse(FieldError::invalid(field, shown, WHY));
                }
            }
            _ => {}
        }
        if items.nullable {
            self.refuse(FieldError::forbidden(
                format!("{path}.nullable"),
                "cannot be nullable when x-kubernetes-list-type is set",
            ));
        }
    }

    fn map_items(&mut self, keywords: &Keywords<'_>, items: Option<&Schema>, keys: &[String]) {
        if keys.is_empty() {
            self.refuse(FieldError::required(
                keywords.at(KEYS),
                "must not be empty if x-kubernetes-list-type is map",
            ));
        }
        let Some(items) = items else {
            match keywords.get("items") {
                None => self.refuse(FieldError::required(
                    keywords.at("items"),
                    "must have a schema if x-kubernetes-list-type is map",
                )),
                Some(_) => {
                    self.refuse(FieldError::invalid_unshown(
                        keywords.at("items"),
                        "must only have a single schema if x-kubernetes-list-type is map",
                    ));
                }
            }
            return;
        };
        let path = keywords.at("items");
        if items.kind != Kind::Object {
            let given = keywords
                .fields("items")
                .and_then(|items| items.get("type")?.as_str())
                .unwrap_or_default();
            self.refuse(FieldError::invalid(
                format!("{path}.type"),
                given,
                "must be object if parent array's x-kubernetes-list-type is map",
            ));
        }
        if items.nullable {
            self.refuse(FieldError::forbidden(
                format!("{path}.nullable"),
                "cannot be nullable when x-kubernetes-list-type is map",
            ));
        }
        if keys.len() > MAX_LIST_KEYS {
            return self.refuse(FieldError::too_many(keywords.at(KEYS), keys.len(), MAX_LIST_KEYS));
        }
        let required: HashSet<&str> = keywords
            .fields("items")
            .and_then(|items| items.get("required")?.as_array())
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        for (index, key) in keys.iter().enumerate() {
            if items.kind == Kind::Object && keys[..index].contains(key) {
                self.refuse(FieldError::invalid(
                    keywords.at(KEYS),
                    keywords.get(KEYS),
                    "must not contain duplicate entries",
                ));
            }
            self.key(keywords, items, key, required.contains(key.as_str()));
        }
    }

    /// A key must be a scalar that is required or has a default.
    fn key(&mut self, keywords: &Keywords<'_>, items: &Schema, key: &str, is_required: bool) {
        let path = format!("{}.properties[{key}]", keywords.at("items"));
        let Some(property) = items.properties.get(key) else {
            if items.kind == Kind::Object {
                self.refuse(FieldError::invalid(
                    keywords.at(KEYS),
                    keywords.get(KEYS),
                    "entries must all be names of item properties",
                ));
            }
            return;
        };
        if items.kind == Kind::Object && matches!(property.schema.kind, Kind::Object | Kind::Array)
        {
            // The quoted type is that of the items.
            self.refuse(FieldError::invalid(
                format!("{path}.type"),
                "object",
                "must be a scalar type if parent array's x-kubernetes-list-type is map",
            ));
        }
        if property.schema.nullable {
            self.refuse(FieldError::forbidden(
                format!("{path}.nullable"),
                "this property is in x-kubernetes-list-map-keys, so it cannot be nullable",
            ));
        }
        if !is_required && property.schema.default.is_none() {
            let why = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            self.refuse(FieldError::required(format!("{path}.default"), why));
        }
    }
}
