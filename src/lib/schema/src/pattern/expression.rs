//! Compiled expressions: an automaton where that is small and fast, else a program that is run step
//! by step.

use super::program::{PatternProgram, PatternProgramError, StepsExhausted};
use super::{sentence, translate};
use ferrokube_apimachinery::work;
use regex::{Regex, RegexBuilder};
use regex_syntax::ast::{Ast, RepetitionKind, RepetitionRange};
use regex_syntax::hir::{Hir, translate::TranslatorBuilder};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// Max bytes of an expression's text, which its tree takes many times.
const MAX_TEXT: usize = 64 * 1024;
/// Bytes of a tree per byte of text; per class of Unicode; and per class of which all cases are
/// looked up, which takes as long as that many bytes.
const TREE_BYTES: (usize, usize, usize) = (128, 8 * 1024, 128 * 1024);
/// Max nested groups.
const MAX_NESTED: u32 = 100;
/// Max copies of a part, as in RE2: the product of nested counts.
const MAX_REPEATS: u64 = 1000;
/// Size limits of automata, to try in turn: most expressions are small, and the smallest limit that
/// fits is charged.
const AUTOMATON_BYTES: [usize; 2] = [4 << 10, 32 << 10];
/// Max bytes of states that an automaton keeps.
const MAX_STATES: usize = 1 << 20;
/// Bytes of an automaton's state, at least.
const STATE_BYTES: usize = 32;
/// Max steps of an automaton, which cannot be interrupted: some 20 ms if none of its states is
/// met twice.
const AUTOMATON_STEPS: usize = 4 << 20;
/// Default size budget of an expression.
const ROOM: usize = 16 << 20;

/// A compiled regular expression.
#[derive(Clone, Debug)]
pub struct Expression(Arc<Engines>);

#[derive(Debug)]
struct Engines {
    translated: String,
    /// With its size.
    automaton: Option<(Regex, usize)>,
    /// Whether `Regex::is_match` may miss a match: it stops at an empty one between the bytes of a
    /// character, where `\B` holds, though a longer one has begun before.
    may_miss: bool,
    /// Compiled when it is needed.
    program: OnceLock<Option<PatternProgram>>,
}

/// Compiles an expression.
///
/// # Errors
/// RE2's message: the text is invalid or too large.
pub fn compile(text: &str) -> Result<Expression, String> {
    compile_within(text, &mut ROOM.clone())
}

/// Compiles an expression and charges its tree and its compiled size to `room`: the text says
/// little, `(a{99}){10}` is short.
///
/// # Errors
/// RE2's message: the text is invalid or too large.
pub fn compile_within(text: &str, room: &mut usize) -> Result<Expression, String> {
    const NO_ROOM: &str = "the patterns of the schema are too large together";
    let mut charge = |bytes: usize| -> Result<(), String> {
        *room = room.checked_sub(bytes).ok_or(NO_ROOM)?;
        work::count(bytes);
        Ok(())
    };
    if text.len() > MAX_TEXT {
        return Err(too_large());
    }
    charge(tree_bytes(text))?;
    let translated = translate(text);
    let tree = parse(&translated).map_err(|why| invalid(text, &why))?;
    check_repeats(&tree, &translated)
        .map_err(|repeat| format!("error parsing regexp: invalid repeat count: `{repeat}`"))?;
    let mut automaton = None;
    for size in AUTOMATON_BYTES {
        charge(size)?;
        match builder(&translated, size).build() {
            Ok(regex) => {
                automaton = Some((regex, size));
                break;
            }
            Err(regex::Error::CompiledTooBig(_)) => {}
            Err(error) => return Err(invalid(text, &error.to_string())),
        }
    }
    let program = OnceLock::new();
    if automaton.is_none() {
        let hir = simplify(&translated, &tree).map_err(|why| invalid(text, &why))?;
        let compiled = PatternProgram::compile(&hir, room).map_err(|error| match error {
            PatternProgramError::TooLarge if *room == 0 => NO_ROOM.to_owned(),
            PatternProgramError::TooLarge | PatternProgramError::NoText => too_large(),
        })?;
        program.get_or_init(|| Some(compiled));
    }
    let may_miss = translated.contains("\\B");
    Ok(Expression(Arc::new(Engines { translated, automaton, may_miss, program })))
}

impl Expression {
    /// Whether it matches anywhere in a text. Charges long searches to `steps`.
    ///
    /// # Errors
    /// The steps are used up.
    pub fn is_match(&self, text: &str, steps: &mut u64) -> Result<bool, StepsExhausted> {
        match self.automaton(text) {
            Some(regex) if self.0.may_miss => Ok(regex.find(text).is_some()),
            Some(regex) => Ok(regex.is_match(text)),
            None => self.run(text, 0, true, steps).map(|found| found.is_some()),
        }
    }

    /// The first match from a position on, which is between two characters.
    ///
    /// # Errors
    /// The steps are used up.
    pub fn find_at(
        &self,
        text: &str,
        start: usize,
        steps: &mut u64,
    ) -> Result<Option<Range<usize>>, StepsExhausted> {
        match self.automaton(text) {
            Some(regex) => Ok(regex.find_at(text, start).map(|found| found.range())),
            None => self.run(text, start, false, steps),
        }
    }

    /// The first matches that do not overlap, at most `most`. An empty one that adjoins the one
    /// before is none, as in RE2.
    ///
    /// # Errors
    /// The steps are used up.
    pub fn find_all(
        &self,
        text: &str,
        most: usize,
        steps: &mut u64,
    ) -> Result<Vec<Range<usize>>, StepsExhausted> {
        let (mut all, mut at, mut last) = (Vec::new(), 0, None);
        while all.len() < most
            && let Some(found) = self.find_at(text, at, steps)?
        {
            at = found.end;
            if found.is_empty() {
                match text[at..].chars().next() {
                    Some(next) => at += next.len_utf8(),
                    None => at += 1,
                }
            }
            if !(found.is_empty() && last == Some(found.end)) {
                last = Some(found.end);
                all.push(found);
            }
            if at > text.len() {
                break;
            }
        }
        Ok(all)
    }

    /// The automaton, if it is fast on this text whatever it is.
    fn automaton(&self, text: &str) -> Option<&Regex> {
        let (regex, size) = self.0.automaton.as_ref()?;
        (size / STATE_BYTES * text.len() <= AUTOMATON_STEPS).then_some(regex)
    }

    fn run(
        &self,
        text: &str,
        start: usize,
        earliest: bool,
        steps: &mut u64,
    ) -> Result<Option<Range<usize>>, StepsExhausted> {
        let program = self.0.program.get_or_init(|| {
            let tree = parse(&self.0.translated).ok()?;
            let hir = simplify(&self.0.translated, &tree).ok()?;
            PatternProgram::compile(&hir, &mut ROOM.clone()).ok()
        });
        // An expression has one of both.
        program.as_ref().ok_or(StepsExhausted)?.find(text, start, earliest, steps)
    }
}

fn builder(translated: &str, size: usize) -> RegexBuilder {
    let mut builder = RegexBuilder::new(translated);
    builder.size_limit(size).dfa_size_limit(MAX_STATES).nest_limit(MAX_NESTED);
    builder
}

fn parse(translated: &str) -> Result<Ast, String> {
    let mut parser = regex_syntax::ast::parse::ParserBuilder::new().nest_limit(MAX_NESTED).build();
    parser.parse(translated).map_err(|error| error.to_string())
}

fn simplify(translated: &str, tree: &Ast) -> Result<Hir, String> {
    TranslatorBuilder::new().build().translate(translated, tree).map_err(|error| error.to_string())
}

fn invalid(text: &str, why: &str) -> String {
    format!("error parsing regexp: {}", sentence(text, why))
}

fn too_large() -> String {
    "error parsing regexp: expression too large".to_owned()
}

/// Upper bound of the memory of a text's tree.
fn tree_bytes(text: &str) -> usize {
    let (per_byte, per_unicode, per_folded) = TREE_BYTES;
    let unicode = text.matches("\\p").count() + text.matches("\\P").count();
    let folds = text.split("(?").skip(1).any(|rest| {
        let flags = rest.split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default();
        flags.contains('i')
    });
    let folded = if folds { unicode + text.matches('[').count() } else { 0 };
    text.len() * per_byte + unicode * per_unicode + folded * per_folded
}

/// Checks the counts of repetitions, as RE2 does.
///
/// # Errors
/// The text of the innermost count that is too large.
fn check_repeats<'a>(tree: &Ast, text: &'a str) -> Result<(), &'a str> {
    repeats(tree, text).map(drop)
}

/// How many copies of a part a tree has, at most. Nested as deep as [`MAX_NESTED`].
fn repeats<'a>(tree: &Ast, text: &'a str) -> Result<u64, &'a str> {
    let most = |trees: &[Ast]| {
        trees.iter().try_fold(1, |most: u64, tree| Ok(most.max(repeats(tree, text)?)))
    };
    match tree {
        Ast::Group(group) => repeats(&group.ast, text),
        Ast::Alternation(choices) => most(&choices.asts),
        Ast::Concat(parts) => most(&parts.asts),
        Ast::Repetition(repetition) => {
            let inner = repeats(&repetition.ast, text)?;
            let (min, copies) = match &repetition.op.kind {
                RepetitionKind::Range(RepetitionRange::Exactly(count)) => (*count, *count),
                RepetitionKind::Range(RepetitionRange::AtLeast(min)) => (*min, *min),
                RepetitionKind::Range(RepetitionRange::Bounded(min, max)) => (*min, *max),
                _ => return Ok(inner),
            };
            let product = u64::from(copies) * inner;
            if u64::from(copies.max(min)) > MAX_REPEATS
                || (copies.max(min) >= 2 && product > MAX_REPEATS)
            {
                let span = &repetition.op.span;
                return Err(&text[span.start.offset..span.end.offset]);
            }
            Ok(product.max(1))
        }
        _ => Ok(1),
    }
}
