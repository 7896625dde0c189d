//! `ConversionReview`: the request to a conversion webhook, and validation of its response.

use super::fields::GROUP;
use bytes::Bytes;
use ferrokube_apimachinery::document::{Document, Map, Text, Value};
use ferrokube_apimachinery::{json, name};

/// One conversion request.
pub(super) struct ReviewRequest<'a> {
    pub(super) uid: String,
    pub(super) api_version: &'a str,
    /// As JSON.
    pub(super) objects: &'a [Bytes],
    /// `v1` or `v1beta1`, which only differ in name.
    pub(super) review_version: &'a str,
}

impl ReviewRequest<'_> {
    /// The JSON that is sent. Objects are copied as they are, without decoding.
    pub(super) fn review(&self) -> Vec<u8> {
        let text = |text: &str| json::to_vec(&Value::from(text));
        let head = [
            br#"{"kind":"ConversionReview","apiVersion":"#,
            &*text(&format!("{}/{}", GROUP, self.review_version)),
            br#","request":{"uid":"#,
            &*text(&self.uid),
            br#","desiredAPIVersion":"#,
            &*text(self.api_version),
            br#","objects":["#,
        ];
        let mut review = Vec::with_capacity(
            self.objects.iter().map(|object| object.len() + 1).sum::<usize>() + 256,
        );
        head.iter().for_each(|part| review.extend_from_slice(part));
        for (index, object) in self.objects.iter().enumerate() {
            if index > 0 {
                review.push(b',');
            }
            review.extend_from_slice(object);
        }
        review.extend_from_slice(b"]}}");
        review
    }
}

/// The converted objects of a response.
///
/// # Errors
/// Why it is not a valid response to this request, without any content of the objects.
pub(super) fn read(
    request: &ReviewRequest<'_>,
    mut answer: Document,
) -> Result<Vec<Document>, String> {
    if answer.kind() != "ConversionReview"
        || answer.api_version() != format!("{}/{}", GROUP, request.review_version)
    {
        return Err(format!(
            "its answer is no {}/{} ConversionReview",
            GROUP, request.review_version
        ));
    }
    if answer.str(&["response", "uid"]) != Some(&request.uid) {
        return Err("the uid of its answer is not that of the request".to_owned());
    }
    if answer.str(&["response", "result", "status"]) != Some("Success") {
        let message: String = answer
            .str(&["response", "result", "message"])
            .unwrap_or("it gave no reason")
            .chars()
            .take(1024)
            .collect();
        return Err(message);
    }
    let Some(Value::Array(converted)) = answer.remove(&["response", "convertedObjects"]) else {
        return Err("its answer has no convertedObjects".to_owned());
    };
    if converted.len() != request.objects.len() {
        return Err(format!(
            "it was given {} objects and returned {}",
            request.objects.len(),
            converted.len()
        ));
    }
    let pairs = request.objects.iter().zip(converted).enumerate();
    let convert = |(index, (given, object)): (usize, (&Bytes, Value))| {
        let given =
            json::read(given).map_err(|_| "a stored object cannot be read".to_owned())?.document;
        one(request.api_version, &given, object)
            .map_err(|why| format!("convertedObjects[{index}]: {why}"))
    };
    pairs.map(convert).collect()
}

/// Validates one object: all but its identity may differ.
fn one(api_version: &str, given: &Document, object: Value) -> Result<Document, String> {
    let mut object = Document::from_value(object).map_err(|_| "it is no object".to_owned())?;
    if object.api_version() != api_version {
        return Err(format!("its apiVersion is not {api_version}"));
    }
    if object.kind() != given.kind() {
        return Err(format!("its kind is not {}", given.kind()));
    }
    let Some(Value::Object(theirs)) = object.remove(&["metadata"]) else {
        return Err("it has no metadata".to_owned());
    };
    for field in ["name", "namespace", "uid"] {
        if theirs.get(field).and_then(Value::as_str).unwrap_or_default() != given.meta(field) {
            return Err(format!("its metadata.{field} was changed"));
        }
    }
    object.set(&["metadata"], metadata(given, theirs)?);
    Ok(object)
}

/// The given metadata with the response's labels and annotations.
fn metadata(given: &Document, mut theirs: Map) -> Result<Value, String> {
    let mut ours = given.get(&["metadata"]).and_then(Value::as_object).cloned().unwrap_or_default();
    for field in ["labels", "annotations"] {
        let Some(entries) = theirs.remove(field).filter(|entries| !entries.is_null()) else {
            ours.remove(field);
            continue;
        };
        let sound = |(key, value): (&Text, &Value)| {
            let value = value.as_str()?;
            let key_fits = name::qualified_name(
                if field == "labels" { key.clone() } else { key.to_lowercase() }.as_str(),
            )
            .is_empty();
            (key_fits && (field == "annotations" || name::label_value(value).is_empty()))
                .then_some(())
        };
        if !entries
            .as_object()
            .is_some_and(|entries| entries.iter().all(|entry| sound(entry).is_some()))
        {
            return Err(format!("its metadata.{field} are invalid"));
        }
        ours.insert(field.to_owned(), entries);
    }
    Ok(Value::Object(ours))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_apimachinery::document::json;

    fn document(value: Value) -> Document {
        Document::from_value(value).expect("an object")
    }

    fn answer_to(change: impl Fn(&mut Value)) -> Result<Vec<Document>, String> {
        let given = document(
            json!({"kind": "T", "apiVersion": "e/v1", "metadata": {"name": "n", "namespace": "s", "uid": "u", "labels": {"a": "b"}, "finalizers": ["e/x"], "resourceVersion": "5"}, "spec": {"secret": "x"}}),
        );
        let given = Bytes::from(super::json::to_vec(&given.into_value()));
        let request = ReviewRequest {
            uid: "1".to_owned(),
            api_version: "e/v2",
            objects: std::slice::from_ref(&given),
            review_version: "v1",
        };
        let review = super::json::read_value(&request.review()).expect("JSON");
        assert_eq!(
            (&review["kind"], &review["request"]["desiredAPIVersion"]),
            (&json!("ConversionReview"), &json!("e/v2"))
        );
        let mut object = review["request"]["objects"][0].clone();
        object["apiVersion"] = json!("e/v2");
        let mut answer = json!({"kind": "ConversionReview", "apiVersion": "apiextensions.k8s.io/v1", "response": {"uid": "1", "result": {"status": "Success"}, "convertedObjects": [object]}});
        change(&mut answer);
        read(&request, document(answer))
    }

    #[test]
    fn only_labels_and_annotations_of_metadata_may_change() {
        let converted = answer_to(|answer| {
            let metadata = &mut answer["response"]["convertedObjects"][0]["metadata"];
            metadata["labels"] = json!({"c": "d"});
            metadata["annotations"] = json!({"e": "f"});
            metadata["finalizers"] = json!([]);
            metadata["resourceVersion"] = json!("9");
            metadata["ownerReferences"] = json!([{}]);
        });
        let object = &converted.expect("a conversion")[0];
        let expected = json!({"name": "n", "namespace": "s", "uid": "u", "labels": {"c": "d"}, "annotations": {"e": "f"}, "finalizers": ["e/x"], "resourceVersion": "5"});
        assert_eq!(object.get(&["metadata"]), Some(&expected));
    }

    type Lie = Box<dyn Fn(&mut Value)>;

    #[test]
    fn invalid_conversions_are_rejected() {
        let object = |answer: &mut Value, path: &str, value: Value| {
            *answer.pointer_mut(&format!("/response/convertedObjects/0{path}")).expect("a path") =
                value
        };
        let lies: Vec<Lie> = vec![
            Box::new(|answer| answer["response"]["uid"] = json!("2")),
            Box::new(|answer| answer["kind"] = json!("AdmissionReview")),
            Box::new(|answer| {
                answer["response"]["result"] = json!({"status": "Failure", "message": "no"})
            }),
            Box::new(|answer| answer["response"]["result"] = json!({})),
            Box::new(|answer| answer["response"]["convertedObjects"] = json!([])),
            Box::new(|answer| answer["response"]["convertedObjects"] = json!([1])),
            Box::new(move |answer| object(answer, "/apiVersion", json!("e/v3"))),
            Box::new(move |answer| object(answer, "/kind", json!("Other"))),
            Box::new(move |answer| object(answer, "/metadata/uid", json!("other"))),
            Box::new(move |answer| object(answer, "/metadata/name", json!("other"))),
            Box::new(move |answer| object(answer, "/metadata/namespace", json!("other"))),
            Box::new(move |answer| object(answer, "/metadata", Value::Null)),
            Box::new(move |answer| {
                object(answer, "/metadata/labels", json!({"a": "not a label!"}))
            }),
            Box::new(move |answer| object(answer, "/metadata/labels", json!({"a": 1}))),
        ];
        for (index, lie) in lies.iter().enumerate() {
            let why = answer_to(lie).expect_err("a lie");
            assert!(!why.contains("secret"), "{index}: {why}");
        }
        assert!(answer_to(|_| ()).is_ok());
    }
}
