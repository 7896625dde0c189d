//! Estimated max costs of expressions, as cel-go's estimator has them, whose limits decide which
//! rules are accepted: sizes come from the schema, by the path of an expression, or from literals.

mod calls;

use crate::code::LoopKind;
use crate::sizes::{SchemaPosition, Sizes, ValuePart};
use crate::types::Type;
pub(crate) use calls::{Operand, called};

/// Cost of one more list.
const LIST: u64 = 10;
/// Cost of one more map.
const MAP: u64 = 30;
/// Cost of one more message.
const MESSAGE: u64 = 40;

/// Bounds of a size, in characters, bytes, items or entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    least: u64,
    most: u64,
}

impl Size {
    const UNKNOWN: Self = Self { least: 0, most: u64::MAX };

    pub(crate) fn exactly(size: u64) -> Self {
        Self { least: size, most: size }
    }

    fn up_to(most: u64) -> Self {
        Self { least: 0, most }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            least: self.least.saturating_add(other.least),
            most: self.most.saturating_add(other.most),
        }
    }

    fn times(self, other: Self) -> Self {
        Self {
            least: self.least.saturating_mul(other.least),
            most: self.most.saturating_mul(other.most),
        }
    }

    fn union(self, other: Self) -> Self {
        Self { least: self.least.min(other.least), most: self.most.max(other.most) }
    }
}

/// A size times a factor, rounded up.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "as rounded by cel-go; the cast saturates"
)]
fn scaled(size: u64, factor: f64) -> u64 {
    (size as f64 * factor).ceil() as u64
}

/// Sizes of the keys and values of a list or map.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntrySizes {
    is_list: bool,
    key: Size,
    value: Size,
}

impl EntrySizes {
    fn union(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        let (one, other) = one.zip(other)?;
        Some(Self { key: one.key.union(other.key), value: one.value.union(other.value), ..one })
    }
}

/// The estimate of an expression.
#[derive(Clone, Debug, Default)]
pub(crate) struct Estimate {
    /// Max cost of one evaluation.
    pub(crate) cost: u64,
    /// The result's size; `None` if nothing is known.
    size: Option<Size>,
    place: SchemaPosition,
    entries: Option<EntrySizes>,
    /// The value of an integer literal.
    number: Option<i64>,
}

/// Known bounds of a variable's value.
#[derive(Clone, Debug, Default)]
pub(crate) struct VariableSize {
    place: SchemaPosition,
    size: Option<Size>,
    entries: Option<EntrySizes>,
}

impl VariableSize {
    pub(crate) fn at(place: SchemaPosition) -> Self {
        Self { place, ..Self::default() }
    }

    /// Estimate of a variable that stands for an expression.
    pub(crate) fn of(value: &Estimate) -> Self {
        Self { place: value.place.clone(), size: value.size, entries: value.entries }
    }

    /// Estimate of a variable for the value of an optional.
    pub(crate) fn computed(answer: &Type) -> Self {
        Self { size: scalar(answer), ..Self::default() }
    }

    /// The index or key in a loop.
    pub(crate) fn key(range: &Estimate, answer: &Type, sizes: &Sizes) -> Self {
        let part = if is_list(range, answer) { ValuePart::Indices } else { ValuePart::Keys };
        Self {
            place: sizes.below(&range.place, part),
            size: range.entries.map(|entries| entries.key),
            entries: None,
        }
    }

    /// The item or value in a loop.
    pub(crate) fn item(range: &Estimate, sizes: &Sizes) -> Self {
        Self {
            place: sizes.below(&range.place, ValuePart::Items),
            size: range.entries.map(|entries| entries.value),
            entries: None,
        }
    }

    /// The only variable of a loop: a list's item or a map's key.
    pub(crate) fn single(range: &Estimate, answer: &Type, sizes: &Sizes) -> Self {
        if is_list(range, answer) {
            Self::item(range, sizes)
        } else {
            Self::key(range, answer, sizes)
        }
    }
}

fn is_list(range: &Estimate, answer: &Type) -> bool {
    range.entries.map_or(matches!(answer, Type::List(_)), |entries| entries.is_list)
}

/// The size of a value of fixed size.
fn scalar(answer: &Type) -> Option<Size> {
    match answer {
        Type::Bool | Type::Int | Type::Uint | Type::Double | Type::Duration | Type::Timestamp => {
            Some(Size::exactly(1))
        }
        Type::Optional(inner) => scalar(inner),
        _ => None,
    }
}

/// The size of an expression by its place or type.
fn declared(place: &SchemaPosition, answer: &Type, sizes: &mut Sizes) -> Option<Size> {
    sizes.most(place).map(Size::up_to).or_else(|| scalar(answer))
}

impl Estimate {
    pub(crate) fn literal(size: u64) -> Self {
        Self { size: Some(Size::exactly(size)), ..Self::default() }
    }

    pub(crate) fn integer(number: i64) -> Self {
        Self { number: Some(number), ..Self::literal(1) }
    }

    pub(crate) fn variable(of: &VariableSize, answer: &Type, sizes: &mut Sizes) -> Self {
        Self {
            cost: 1,
            size: declared(&of.place, answer, sizes).or(of.size),
            place: of.place.clone(),
            entries: of.entries,
            number: None,
        }
    }

    pub(crate) fn type_name(sizes: &mut Sizes) -> Self {
        Self::variable(&VariableSize::at(sizes.root()), &Type::Dyn, sizes)
    }

    /// A computed value without a known size.
    fn computed(cost: u64, answer: &Type) -> Self {
        Self { cost, size: scalar(answer), ..Self::default() }
    }

    /// `a.b`
    pub(crate) fn select(
        operand: &Self,
        of: &Type,
        field: &str,
        answer: &Type,
        sizes: &mut Sizes,
    ) -> Self {
        let step = u64::from(matches!(of, Type::Map(..) | Type::Object(..) | Type::Library(_)));
        let place = sizes.below(&operand.place, ValuePart::Field(field));
        let size = declared(&place, answer, sizes);
        Self { cost: operand.cost.saturating_add(step), size, place, ..Self::default() }
    }

    /// `a.?b`
    pub(crate) fn select_optional(operand: &Self, answer: &Type) -> Self {
        Self::computed(operand.cost.saturating_add(1), answer)
    }

    /// `has(a.b)`
    pub(crate) fn has(operand: &Self) -> Self {
        Self::computed(operand.cost, &Type::Bool)
    }

    /// `a[b]`; of an optional or as one, where it leads is unknown.
    pub(crate) fn index(
        operand: &Self,
        index: &Self,
        optional: bool,
        answer: &Type,
        sizes: &mut Sizes,
    ) -> Self {
        let cost = operand.cost.saturating_add(index.cost).saturating_add(1);
        if optional {
            return Self::computed(cost, answer);
        }
        let place = sizes.below(&operand.place, ValuePart::Items);
        let size = operand.entries.map(|entries| entries.value);
        let size = size.or_else(|| declared(&place, answer, sizes));
        Self { cost, size, place, ..Self::default() }
    }

    /// `a && b && c`
    pub(crate) fn logical<'e>(all: impl Iterator<Item = &'e Self>) -> Self {
        let cost = all.fold(0u64, |total, one| total.saturating_add(one.cost));
        Self::computed(cost, &Type::Bool)
    }

    pub(crate) fn conditional(condition: &Self, yes: &Self, no: &Self) -> Self {
        Self {
            cost: condition.cost.saturating_add(yes.cost.max(no.cost)),
            size: Some(yes.size_or_unknown().union(no.size_or_unknown())),
            entries: EntrySizes::union(yes.entries, no.entries),
            ..Self::default()
        }
    }

    pub(crate) fn list<'e>(items: impl ExactSizeIterator<Item = &'e Self> + Clone) -> Self {
        let value = union(items.clone().map(Self::size_or_unknown));
        Self {
            size: Some(Size::exactly(items.len() as u64)),
            cost: items.fold(LIST, |total, item| total.saturating_add(item.cost)),
            entries: Some(EntrySizes { is_list: true, key: Size::exactly(1), value }),
            ..Self::default()
        }
    }

    pub(crate) fn map(entries: &[(Self, Self)]) -> Self {
        let cost = entries.iter().fold(MAP, |total, (key, value)| {
            total.saturating_add(key.cost).saturating_add(value.cost)
        });
        Self {
            cost,
            size: Some(Size::exactly(entries.len() as u64)),
            entries: Some(EntrySizes {
                is_list: false,
                key: union(entries.iter().map(|(key, _)| key.size_or_unknown())),
                value: union(entries.iter().map(|(_, value)| value.size_or_unknown())),
            }),
            ..Self::default()
        }
    }

    pub(crate) fn message<'e>(fields: impl Iterator<Item = &'e Self>) -> Self {
        let cost = fields.fold(MESSAGE, |total, field| total.saturating_add(field.cost));
        Self { cost, ..Self::default() }
    }

    /// A variable's value and the expression that uses it.
    pub(crate) fn bind(value: &Self, body: &Self) -> Self {
        Self {
            cost: LIST.saturating_add(value.cost).saturating_add(body.cost),
            size: body.size,
            entries: body.entries,
            ..Self::default()
        }
    }

    /// `a.optMap(b, c)`, or `optFlatMap`: it evaluates its target twice.
    pub(crate) fn opt_map(target: &Self, body: &Self, answer: &Type, flat: bool) -> Self {
        let test = target.cost.saturating_add(1);
        let bound = Self::bind(&Self { cost: test, ..Self::default() }, body);
        let of = u64::from(!flat);
        Self {
            cost: test.saturating_add(bound.cost.saturating_add(of)),
            size: if flat {
                body.size.filter(|_| scalar(answer).is_some())
            } else {
                scalar(answer)
            },
            ..Self::default()
        }
    }

    /// A loop, as expanded from a macro. `kept` are the items that it collects.
    pub(crate) fn run(
        kind: LoopKind,
        range: &Self,
        condition: Option<&Self>,
        body: &Self,
        kept: &Self,
    ) -> Self {
        let (start, step, end) = match kind {
            LoopKind::All => (0, 3, 1),
            LoopKind::Exists => (0, 4, 1),
            LoopKind::ExistsOne => (0, 2, 2),
            LoopKind::List | LoopKind::Sort => (LIST, LIST + 2, 1),
            LoopKind::Filter => (LIST, LIST + 3, 1),
            LoopKind::Map => (MAP, 3, 1),
            LoopKind::Entries => (MAP, 2, 1),
        };
        let rounds = range.size_or_unknown();
        let round = body.cost.saturating_add(step);
        let round = round.saturating_add(condition.map_or(0, |condition| condition.cost));
        let cost = range
            .cost
            .saturating_add(start + end)
            .saturating_add(rounds.most.saturating_mul(round));
        match kind {
            LoopKind::All | LoopKind::Exists | LoopKind::ExistsOne => {
                Self::computed(cost, &Type::Bool)
            }
            LoopKind::Map | LoopKind::Entries => {
                Self { cost, size: Some(rounds), ..Self::default() }
            }
            LoopKind::List | LoopKind::Filter | LoopKind::Sort => {
                // The list is empty at first.
                let value = Size::up_to(kept.size_or_unknown().most);
                let entries = Some(EntrySizes { is_list: true, key: Size::exactly(1), value });
                Self { cost, size: Some(rounds), entries, ..Self::default() }
            }
        }
    }

    /// `a.sortBy(b, c)`, with keys of type `key`.
    pub(crate) fn sort_by(range: &Self, body: &Self, key: &Type) -> Self {
        let variable = Self { cost: 1, ..range.clone() };
        let keys = Self::run(LoopKind::Sort, &variable, None, body, body);
        let (cost, size) = calls::sorted(&keys, key);
        let call = cost.saturating_add(variable.cost).saturating_add(keys.cost);
        Self::bind(range, &Self { cost: call, size: Some(size), ..Self::default() })
    }

    fn size_or_unknown(&self) -> Size {
        self.size.unwrap_or(Size::UNKNOWN)
    }
}

/// The union of some sizes.
fn union(sizes: impl Iterator<Item = Size>) -> Size {
    sizes.reduce(Size::union).unwrap_or(Size::exactly(0))
}
