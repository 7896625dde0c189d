//! The connecting subresources, and the options of a request as admission sees them.

use ferrokube_apimachinery::document::{Document, Map, Value};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::status::Failure;
use ferrokube_relay::query_pairs;
use ferrokube_resource::Definition;

/// Destinations of connecting subresources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectKind {
    /// A container's log: a read, which skips admission.
    Log,
    Exec,
    Attach,
    PortForward,
    PodProxy,
    NodeProxy,
    ServiceProxy,
}

impl ConnectKind {
    /// The kind of a subresource; `None` if it does not connect.
    pub(crate) fn of(definition: &Definition, subresource: &str) -> Option<Self> {
        if !definition.group.is_empty() || !definition.dialect.is_bundled() {
            return None;
        }
        Some(match (definition.plural.as_str(), subresource) {
            ("pods", "log") => Self::Log,
            ("pods", "exec") => Self::Exec,
            ("pods", "attach") => Self::Attach,
            ("pods", "portforward") => Self::PortForward,
            ("pods", "proxy") => Self::PodProxy,
            ("nodes", "proxy") => Self::NodeProxy,
            ("services", "proxy") => Self::ServiceProxy,
            _ => return None,
        })
    }

    pub(crate) fn is_proxy(self) -> bool {
        matches!(self, Self::PodProxy | Self::NodeProxy | Self::ServiceProxy)
    }

    /// The kind of its options, and the fields set from the query.
    fn options(self) -> (&'static str, &'static [(&'static str, OptionType)]) {
        use OptionType::{Flag, Number, Numbers, Text, Texts};
        const STREAMS: &[(&str, OptionType)] = &[
            ("stdin", Flag),
            ("stdout", Flag),
            ("stderr", Flag),
            ("tty", Flag),
            ("container", Text),
        ];
        match self {
            Self::Log => (
                "PodLogOptions",
                &[
                    ("container", Text),
                    ("follow", Flag),
                    ("previous", Flag),
                    ("sinceSeconds", Number),
                    ("sinceTime", Text),
                    ("timestamps", Flag),
                    ("tailLines", Number),
                    ("limitBytes", Number),
                    ("insecureSkipTLSVerifyBackend", Flag),
                ],
            ),
            Self::Exec => (
                "PodExecOptions",
                &[
                    ("stdin", Flag),
                    ("stdout", Flag),
                    ("stderr", Flag),
                    ("tty", Flag),
                    ("container", Text),
                    ("command", Texts),
                ],
            ),
            Self::Attach => ("PodAttachOptions", STREAMS),
            Self::PortForward => ("PodPortForwardOptions", &[("ports", Numbers)]),
            Self::PodProxy => ("PodProxyOptions", &[]),
            Self::NodeProxy => ("NodeProxyOptions", &[]),
            Self::ServiceProxy => ("ServiceProxyOptions", &[]),
        }
    }

    /// Parses the options of a request; `path` is the part below a proxy.
    ///
    /// # Errors
    /// 400 for an invalid number.
    pub(crate) fn read(self, path: &str, query: &str) -> Result<Document, Failure> {
        let (kind, fields) = self.options();
        let mut options = Map::new();
        options.insert("kind".to_owned(), Value::from(kind));
        options.insert("apiVersion".to_owned(), Value::from("v1"));
        if self.is_proxy() {
            if !path.is_empty() {
                options.insert("path".to_owned(), Value::from(path));
            }
        } else {
            let pairs = query_pairs(query);
            for (name, of) in fields {
                let given = pairs.iter().filter(|(given, _)| given == name);
                let given: Vec<&str> = given.map(|(_, value)| value.as_str()).collect();
                if let Some(value) = of.read(&given)? {
                    options.insert((*name).to_owned(), value);
                }
            }
        }
        Ok(Document::from_value(Value::Object(options)).unwrap_or_default())
    }
}

#[derive(Clone, Copy)]
enum OptionType {
    Flag,
    Number,
    Numbers,
    Text,
    Texts,
}

impl OptionType {
    /// Converts a query value as Go does; `None`: the default.
    fn read(self, given: &[&str]) -> Result<Option<Value>, Failure> {
        let Some(first) = given.first() else { return Ok(None) };
        let number = |text: &str| {
            let wrong = format!("strconv.ParseInt: parsing {text:?}: invalid syntax");
            text.parse::<i64>().map_err(|_| Failure::bad_request(wrong))
        };
        let is_false = first.eq_ignore_ascii_case("false") || *first == "0";
        Ok(match self {
            Self::Flag => (!is_false).then(|| Value::from(true)),
            Self::Number => Some(Value::from(number(first)?)),
            Self::Numbers => {
                let all = given.iter().flat_map(|text| text.split(',')).map(number);
                Some(all.map(|one| one.map(Value::from)).collect::<Result<Vec<_>, _>>()?.into())
            }
            Self::Text => (!first.is_empty()).then(|| Value::from(*first)),
            Self::Texts => {
                Some(given.iter().map(|text| Value::from(*text)).collect::<Vec<_>>().into())
            }
        })
    }
}

/// Checks the options of a log.
///
/// # Errors
/// 422, with kube-apiserver's messages.
pub(crate) fn check_log(options: &Document, name: &str) -> Result<(), Failure> {
    let number = |field: &str| options.get(&[field]).and_then(Value::as_i64);
    let mut errors = Vec::new();
    let mut least = |field: &str, least: i64, why: &str| {
        if let Some(value) = number(field).filter(|value| *value < least) {
            errors.push(FieldError::invalid(field, value, why));
        }
    };
    least("tailLines", 0, "must be greater than or equal to 0");
    least("limitBytes", 1, "must be greater than 0");
    least("sinceSeconds", 1, "must be greater than 0");
    if number("sinceSeconds").is_some() && options.get(&["sinceTime"]).is_some() {
        let why = "at most one of `sinceTime` or `sinceSeconds` may be specified";
        errors.push(FieldError::forbidden("[]", why));
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(Failure::invalid("", "PodLogOptions", name, &errors))
    }
}
