//! PriorityLevelConfiguration: a share of the server's concurrency.

use super::flowcontrol;
use crate::cells;
use crate::checks::text;
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::field::{FieldError, Word};
use ferrokube_resource::native::{KindBody, NativeColumn};
use ferrokube_resource::{Change, Hooks, MaintainedObject};
use std::sync::{Arc, LazyLock};
use std::time::SystemTime;

const EXEMPT: &str = "exempt";
const MAX_QUEUES: i64 = 10_000_000;
/// Bits of a flow's hash that may be used to deal its hand.
const MAX_HASH_BITS: i64 = 60;
/// Set by versions of kube-apiserver that did not know zero shares.
const PRESERVE_ZERO: &str = "flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares";

pub(crate) fn body() -> KindBody {
    const COLUMNS: &[NativeColumn] = &[
        NativeColumn::NAME,
        NativeColumn::text(
            "Type",
            "`type` indicates whether this priority level is subject to limitation on request execution.  A value of `\"Exempt\"` means that requests of this priority level are not subject to a limit (and thus are never queued) and do not detract from the capacity made available to other priority levels.  A value of `\"Limited\"` means that (a) requests of this priority level _are_ subject to limits and (b) some of the server's limited capacity is made available exclusively to this priority level. Required.",
        ),
        NativeColumn::text(
            "NominalConcurrencyShares",
            "`nominalConcurrencyShares` (NCS) contributes to the computation of the NominalConcurrencyLimit (NominalCL) of this level. This is the number of execution seats available at this priority level. This is used both for requests dispatched from this priority level as well as requests dispatched from other priority levels borrowing seats from this level. The server's concurrency limit (ServerCL) is divided among the Limited priority levels in proportion to their NCS values:\n\nNominalCL(i)  = ceil( ServerCL * NCS(i) / sum_ncs ) sum_ncs = sum[priority level k] NCS(k)\n\nBigger numbers mean a larger nominal concurrency limit, at the expense of every other priority level.\n\nIf not specified, this field defaults to a value of 30.\n\nSetting this field to zero supports the construction of a \"jail\" for this priority level that is used to hold some request(s)",
        ),
        NativeColumn::text(
            "Queues",
            "`queues` is the number of queues for this priority level. The queues exist independently at each apiserver. The value must be positive.  Setting it to 1 effectively precludes shufflesharding and thus makes the distinguisher method of associated flow schemas irrelevant.  This field has a default value of 64.",
        ),
        NativeColumn::text(
            "HandSize",
            "`handSize` is a small positive number that configures the shuffle sharding of requests into queues.  When enqueuing a request at this priority level the request's flow identifier (a string pair) is hashed and the hash value is used to shuffle the list of queues and deal a hand of the size specified here.  The request is put into one of the shortest queues in that hand. `handSize` must be no larger than `queues`, and should be significantly smaller (so that a few heavy flows do not saturate most of the queues).  See the user-facing documentation for more extensive guidance on setting this field.  This field has a default value of 8.",
        ),
        NativeColumn::text(
            "QueueLengthLimit",
            "`queueLengthLimit` is the maximum number of requests allowed to be waiting in a given queue of this priority level at a time; excess requests are rejected.  This value must be positive.  If not specified, it will be defaulted to 50.",
        ),
        NativeColumn::AGE,
    ];
    flowcontrol::body("prioritylevelconfigurations", COLUMNS, Arc::new(PriorityLevel))
}

#[derive(Debug)]
struct PriorityLevel;

impl Hooks for PriorityLevel {
    fn default(&self, _version: &str, object: &mut Document) {
        for (part, shares) in [("exempt", 0), ("limited", 30)] {
            if let Some(Value::Object(part)) = object.get_mut(&["spec", part]) {
                part.entry("nominalConcurrencyShares").or_insert(Value::from(shares));
                part.entry("lendablePercent").or_insert(Value::from(0));
            }
        }
        if let Some(Value::Object(queuing)) =
            object.get_mut(&["spec", "limited", "limitResponse", "queuing"])
        {
            for (field, number) in [("handSize", 8), ("queues", 64), ("queueLengthLimit", 50)] {
                if queuing.get(field).and_then(Value::as_i64).unwrap_or(0) == 0 {
                    queuing.insert(field, Value::from(number));
                }
            }
        }
    }

    fn prepare(&self, change: &Change<'_>, object: &mut Document) {
        flowcontrol::prepare(change, object);
    }

    fn validate(&self, change: &Change<'_>, object: &Document) -> Vec<FieldError> {
        let mut errors = Vec::new();
        if change.subresource != "status" {
            if object.annotation(PRESERVE_ZERO).is_some() {
                let detail = format!("annotation '{PRESERVE_ZERO}' is forbidden");
                errors.push(FieldError::forbidden("metadata.annotations", detail));
            }
            errors.extend(specification(object));
            let fixed = self.maintained().iter().find(|fixed| fixed.is(object.name()));
            if let Some(fixed) = fixed.filter(|fixed| fixed.is_mandatory) {
                errors.extend(fixed_specification(fixed, object));
            }
        }
        errors.extend(flowcontrol::conditions(object));
        errors
    }

    fn maintained(&self) -> &[MaintainedObject] {
        &LEVELS
    }

    fn print_document(&self, object: &Document, now: SystemTime) -> Vec<Value> {
        let cell = |path: &[&str]| {
            let path = [&["spec", "limited"], path].concat();
            object.get(&path).cloned().unwrap_or_else(|| Value::from("<none>"))
        };
        let queuing = |field| cell(&["limitResponse", "queuing", field]);
        vec![
            Value::from(object.name()),
            Value::from(object.str(&["spec", "type"]).unwrap_or_default()),
            cell(&["nominalConcurrencyShares"]),
            queuing("queues"),
            queuing("handSize"),
            queuing("queueLengthLimit"),
            Value::from(cells::age(object, now)),
        ]
    }
}

/// An error if the spec of a mandatory level differs; the part `exempt` may.
fn fixed_specification(fixed: &MaintainedObject, object: &Document) -> Option<FieldError> {
    let is_free = !fixed.free.is_empty();
    let rest = |object: &Document| {
        let mut object = object.clone();
        if is_free {
            object.remove(fixed.free);
        }
        object.remove(&["spec"])
    };
    let but = if is_free { " except the 'spec.exempt' field" } else { "" };
    let detail = format!("spec of '{}'{but} must equal the fixed value", object.name());
    (rest(&fixed.object) != rest(object))
        .then(|| FieldError::invalid("spec", object.get(&["spec"]), detail))
}

fn specification(object: &Document) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let kind = object.str(&["spec", "type"]).unwrap_or_default();
    if (object.name() == EXEMPT) != (kind == "Exempt") {
        let detail = "must be 'Exempt' if and only if `name` is 'exempt'";
        errors.push(FieldError::invalid("spec.type", Word(kind), detail));
    }
    let part = |field: &str| object.get(&["spec", field]).filter(|part| !part.is_null());
    match kind {
        "Exempt" => {
            if part("limited").is_some() {
                let detail = "must be nil if the type is not Limited";
                errors.push(FieldError::forbidden("spec.limited", detail));
            }
            if let Some(exempt) = part("exempt") {
                errors.extend(shares(exempt, "spec.exempt"));
                errors.extend(lendable(exempt, "spec.exempt"));
            }
        }
        "Limited" => {
            if part("exempt").is_some() {
                let detail = "must be nil if the type is Limited";
                errors.push(FieldError::forbidden("spec.exempt", detail));
            }
            match part("limited") {
                None => errors.push(FieldError::required(
                    "spec.limited",
                    "must not be empty when type is Limited",
                )),
                Some(limited) => errors.extend(validate_limited(limited)),
            }
        }
        other => {
            errors.push(FieldError::not_supported("spec.type", Word(other), ["Exempt", "Limited"]))
        }
    }
    errors
}

fn number(value: &Value, field: &str) -> Option<i64> {
    value.get(field).and_then(Value::as_i64)
}

fn shares(part: &Value, path: &str) -> Option<FieldError> {
    const FIELD: &str = "nominalConcurrencyShares";
    let shares = number(part, FIELD).filter(|shares| *shares < 0)?;
    let detail = "must be a non-negative integer";
    Some(FieldError::invalid(format!("{path}.{FIELD}"), shares, detail))
}

fn lendable(part: &Value, path: &str) -> Option<FieldError> {
    let percent = number(part, "lendablePercent").filter(|number| !(0..=100).contains(number))?;
    let detail = "must be between 0 and 100, inclusive";
    Some(FieldError::invalid(format!("{path}.lendablePercent"), percent, detail))
}

fn validate_limited(limited: &Value) -> Vec<FieldError> {
    const PATH: &str = "spec.limited";
    const RESPONSE: &str = "spec.limited.limitResponse";
    let mut errors = Vec::from_iter(shares(limited, PATH));
    let response = limited.get("limitResponse").unwrap_or(&Value::Null);
    let queuing = response.get("queuing").filter(|queuing| !queuing.is_null());
    let field = format!("{RESPONSE}.queuing");
    match (text(response, "type"), queuing) {
        ("Reject", None) => {}
        ("Reject", Some(_)) => errors.push(FieldError::forbidden(
            field,
            "must be nil if limited.limitResponse.type is not Limited",
        )),
        ("Queue", None) => errors.push(FieldError::required(
            field,
            "must not be empty if limited.limitResponse.type is Limited",
        )),
        ("Queue", Some(queuing)) => errors.extend(validate_queuing(queuing, &field)),
        (other, _) => errors.push(FieldError::not_supported(
            format!("{RESPONSE}.type"),
            Word(other),
            ["Queue", "Reject"],
        )),
    }
    errors.extend(lendable(limited, PATH));
    if let Some(percent) = number(limited, "borrowingLimitPercent").filter(|number| *number < 0) {
        errors.push(FieldError::invalid(
            format!("{PATH}.borrowingLimitPercent"),
            percent,
            "if specified, must be a non-negative integer",
        ));
    }
    errors
}

fn validate_queuing(queuing: &Value, path: &str) -> Vec<FieldError> {
    let [length, queues, hand] =
        ["queueLengthLimit", "queues", "handSize"].map(|field| number(queuing, field).unwrap_or(0));
    let mut errors = Vec::new();
    let mut invalid = |field: &str, value: i64, detail: &str| {
        errors.push(FieldError::invalid(format!("{path}.{field}"), value, detail));
    };
    if length <= 0 {
        invalid("queueLengthLimit", length, "must be positive");
    }
    if queues <= 0 {
        invalid("queues", queues, "must be positive");
    } else if queues > MAX_QUEUES {
        invalid("queues", queues, &format!("must not be greater than {MAX_QUEUES}"));
    }
    if hand <= 0 {
        invalid("handSize", hand, "must be positive");
    } else if hand > queues {
        invalid("handSize", hand, &format!("should not be greater than queues ({queues})"));
    } else if hash_bits(queues, hand) > MAX_HASH_BITS {
        let detail = format!(
            "required entropy bits of deckSize {queues} and handSize {hand} should not be greater than {MAX_HASH_BITS}"
        );
        invalid("handSize", hand, &detail);
    }
    errors
}

/// Bits of a hash that it takes to deal a hand, estimated from above.
fn hash_bits(queues: i64, hand: i64) -> i64 {
    ((queues as f64).log2() * hand as f64).ceil() as i64
}

/// The levels that the server maintains: kube-apiserver's.
static LEVELS: LazyLock<Vec<MaintainedObject>> = LazyLock::new(|| {
    let level = |name: &str, spec: Value| {
        json!({
            "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
            "kind": "PriorityLevelConfiguration",
            "metadata": {"name": name},
            "spec": spec,
        })
    };
    let exempt =
        json!({"type": "Exempt", "exempt": {"nominalConcurrencyShares": 0, "lendablePercent": 0}});
    let catch_all = json!({"type": "Limited", "limited": {
        "nominalConcurrencyShares": 5, "lendablePercent": 0, "limitResponse": {"type": "Reject"},
    }});
    let suggested = [
        ("system", 30, 33, [64, 6]),
        ("node-high", 40, 25, [64, 6]),
        ("leader-election", 10, 0, [16, 4]),
        ("workload-high", 40, 50, [128, 6]),
        ("workload-low", 100, 90, [128, 6]),
        ("global-default", 20, 50, [128, 6]),
    ];
    let suggested = suggested.map(|(name, shares, lendable, [queues, hand])| {
        let queuing = json!({"queues": queues, "handSize": hand, "queueLengthLimit": 50});
        let spec = json!({"type": "Limited", "limited": {
            "nominalConcurrencyShares": shares, "lendablePercent": lendable,
            "limitResponse": {"type": "Queue", "queuing": queuing},
        }});
        MaintainedObject::new(level(name, spec), false)
    });
    let exempt = MaintainedObject {
        free: &["spec", "exempt"],
        ..MaintainedObject::new(level(EXEMPT, exempt), true)
    };
    let catch_all = MaintainedObject::new(level("catch-all", catch_all), true);
    [exempt, catch_all].into_iter().chain(suggested).collect()
});
