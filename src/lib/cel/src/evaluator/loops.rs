//! Loops, as expanded from macros.

use super::{Evaluator, items, plain};
use crate::code::{Code, Loop, LoopKind};
use crate::failure::{Failure, no_overload};
use crate::value::order::{compare, is_sortable};
use crate::value::{CelResult, Map, MapKey, Value};
use std::collections::BTreeMap;

/// The variables of one iteration.
struct Iteration<'a> {
    key: Value<'a>,
    item: Value<'a>,
}

impl<'a> Evaluator<'a, '_> {
    pub(super) fn run(&mut self, whole: &'a Loop) -> CelResult<'a> {
        let range = self.evaluate(&whole.range)?;
        self.meter.spend(1)?;
        let is_map = matches!(range, Value::Map(_));
        let rounds = items(&range)?.into_iter().map(|(key, item)| match (whole.two, is_map) {
            // A single variable is the item of a list, but the key of a map.
            (false, true) => Iteration { item: key.clone(), key },
            _ => Iteration { key, item },
        });
        match whole.kind {
            LoopKind::All => self.decide(whole, rounds, false),
            LoopKind::Exists => self.decide(whole, rounds, true),
            LoopKind::ExistsOne => self.exists_one(whole, rounds),
            LoopKind::List | LoopKind::Filter => self.collect(whole, rounds),
            LoopKind::Map | LoopKind::Entries => self.collect_map(whole, rounds),
            LoopKind::Sort => self.sort(whole, rounds),
        }
    }

    fn round(&mut self, whole: &'a Loop, code: &'a Code, round: &Iteration<'a>) -> CelResult<'a> {
        self.meter.spend(1)?;
        match whole.two {
            true => self.with([round.key.clone(), round.item.clone()], code),
            false => self.with([round.item.clone()], code),
        }
    }

    /// Whether the condition, if any, is true.
    fn admits(&mut self, whole: &'a Loop, round: &Iteration<'a>) -> Result<bool, Failure> {
        match &whole.condition {
            None => Ok(true),
            Some(condition) => match self.round(whole, condition, round)? {
                Value::Bool(flag) => Ok(flag),
                _ => no_overload(),
            },
        }
    }

    /// A decisive iteration outweighs failed ones.
    fn decide(
        &mut self,
        whole: &'a Loop,
        rounds: impl Iterator<Item = Iteration<'a>>,
        decisive: bool,
    ) -> CelResult<'a> {
        let mut failure = None;
        for round in rounds {
            match self.round(whole, &whole.body, &round) {
                Ok(Value::Bool(value)) if value == decisive => return Ok(Value::Bool(decisive)),
                Ok(Value::Bool(_)) => {}
                Ok(_) => failure = failure.or(no_overload::<()>().err()),
                Err(Failure::Budget) => return Err(Failure::Budget),
                Err(other) => failure = failure.or(Some(other)),
            }
        }
        failure.map_or(Ok(Value::Bool(!decisive)), Err)
    }

    fn exists_one(
        &mut self,
        whole: &'a Loop,
        rounds: impl Iterator<Item = Iteration<'a>>,
    ) -> CelResult<'a> {
        let mut count = 0;
        for round in rounds {
            match self.round(whole, &whole.body, &round)? {
                Value::Bool(flag) => count += u32::from(flag),
                _ => return no_overload(),
            }
        }
        Ok(Value::Bool(count == 1))
    }

    fn collect(
        &mut self,
        whole: &'a Loop,
        rounds: impl Iterator<Item = Iteration<'a>>,
    ) -> CelResult<'a> {
        let mut out = Vec::new();
        for round in rounds {
            if !self.admits(whole, &round)? {
                continue;
            }
            let answer = self.round(whole, &whole.body, &round)?;
            match (whole.kind, answer) {
                (LoopKind::List, answer) => out.push(answer),
                (_, Value::Bool(true)) => out.push(round.item),
                (_, Value::Bool(false)) => {}
                _ => return no_overload(),
            }
        }
        self.spend(out.len() as u64)?;
        Ok(Value::list(out))
    }

    fn collect_map(
        &mut self,
        whole: &'a Loop,
        rounds: impl Iterator<Item = Iteration<'a>>,
    ) -> CelResult<'a> {
        let mut out = BTreeMap::new();
        for round in rounds {
            if !self.admits(whole, &round)? {
                continue;
            }
            let answer = self.round(whole, &whole.body, &round)?;
            let entries = match (whole.kind, answer) {
                (LoopKind::Map, answer) => vec![(
                    MapKey::of(&round.key).ok_or_else(|| Failure::from("unsupported key type"))?,
                    answer,
                )],
                (_, Value::Map(map)) => map.entries(),
                _ => return no_overload(),
            };
            for (key, value) in entries {
                if out.contains_key(&key) {
                    let key = plain(&key.value());
                    return Err(Failure::Failed(format!(
                        "insert failed: key {key} already exists"
                    )));
                }
                out.insert(key, value);
            }
        }
        self.spend(out.len() as u64)?;
        Ok(Value::Map(Map::of(out)))
    }

    fn sort(
        &mut self,
        whole: &'a Loop,
        rounds: impl Iterator<Item = Iteration<'a>>,
    ) -> CelResult<'a> {
        let mut out = Vec::new();
        for round in rounds {
            out.push((self.round(whole, &whole.body, &round)?, round.item));
        }
        self.spend(out.len() as u64 * 10)?;
        if !is_sortable(out.iter().map(|(key, _)| key)) {
            return no_overload();
        }
        out.sort_by(|(one, _), (other, _)| {
            compare(one, other).unwrap_or(std::cmp::Ordering::Equal)
        });
        Ok(Value::list(out.into_iter().map(|(_, item)| item).collect()))
    }
}
