//! Regular expressions as programs over characters (a Thompson NFA, as in RE2), run step by step.
//!
//! A character class is one instruction, however many ranges it has, so that programs are far
//! smaller than automata over bytes. Each step is charged to the caller, who may breathe in
//! between: the time of a match is at most instructions times characters, and interruptible.

use ferrokube_apimachinery::work;
use regex_syntax::hir::{Class, Hir, HirKind, Look, Repetition};
use std::collections::HashMap;
use std::ops::Range;

/// Max bytes of a program.
const MAX_PROGRAM: usize = 1 << 20;
/// Steps between two breaths, some microseconds.
const STEPS_PER_BREATH: usize = 1024;

/// Why there is no program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PatternProgramError {
    /// Longer than [`MAX_PROGRAM`], or than the rest of the budget.
    TooLarge,
    /// Matches byte sequences that are not UTF-8.
    NoText,
}

/// The caller's steps are used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepsExhausted;

#[derive(Clone, Copy, Debug)]
enum Instruction {
    /// Continues with the next instruction after this character.
    Char(char),
    /// The same for a character of a class.
    Class(u32),
    /// Continues with the next instruction if this holds.
    Look(Look),
    /// Continues with both, the first one preferred.
    Split(u32, u32),
    Jump(u32),
    Match,
}

/// A compiled expression.
#[derive(Debug)]
pub(super) struct PatternProgram {
    instructions: Vec<Instruction>,
    /// Sorted ranges of characters.
    classes: Vec<Vec<(char, char)>>,
    /// Whether a match starts at the start of the text.
    is_anchored: bool,
}

impl PatternProgram {
    /// Compiles an expression and charges its bytes to `room`.
    pub(super) fn compile(hir: &Hir, room: &mut usize) -> Result<Self, PatternProgramError> {
        let program = Self {
            instructions: Vec::new(),
            classes: Vec::new(),
            is_anchored: hir.properties().look_set_prefix().contains(Look::Start),
        };
        let left = MAX_PROGRAM.min(*room);
        let mut compiler = PatternCompiler { program, indices: HashMap::new(), left };
        let compiled =
            compiler.expression(hir).and_then(|()| compiler.emit(Instruction::Match).map(drop));
        *room -= left - compiler.left;
        compiled.map(|()| compiler.program)
    }

    /// The first match from `start` on: of those that begin there the preferred one, or with
    /// `earliest` the one that is found first.
    pub(super) fn find(
        &self,
        text: &str,
        start: usize,
        earliest: bool,
        steps: &mut u64,
    ) -> Result<Option<Range<usize>>, StepsExhausted> {
        let mut search = Search {
            program: self,
            threads: Vec::new(),
            seen: vec![0; self.instructions.len()],
            generation: 0,
            stack: Vec::new(),
            debt: 0,
        };
        let mut found = None;
        let mut position = Position::new(text, start);
        let mut current = Vec::new();
        search.generation = 1;
        loop {
            if found.is_none() && !(self.is_anchored && position.at > 0) {
                std::mem::swap(&mut current, &mut search.threads);
                search.add(0, position.at, &position);
                std::mem::swap(&mut current, &mut search.threads);
            }
            if current.is_empty() && (found.is_some() || self.is_anchored) {
                break;
            }
            search.generation += 1;
            let next = position.next(text);
            for (address, begin) in current.drain(..) {
                search.debt += 1;
                let (Instruction::Match, end) = (self.instructions[address], position.at) else {
                    if let (true, Some(next)) = (self.accepts(address, position.after), &next) {
                        search.add(address + 1, begin, next);
                    }
                    continue;
                };
                found = Some(begin..end);
                if earliest {
                    search.pay(steps)?;
                    return Ok(found);
                }
                // Lower-priority alternatives follow.
                break;
            }
            search.pay(steps)?;
            std::mem::swap(&mut current, &mut search.threads);
            let Some(next) = next else { break };
            position = next;
        }
        Ok(found)
    }

    fn accepts(&self, address: usize, found: Option<char>) -> bool {
        match (self.instructions[address], found) {
            (Instruction::Char(wanted), Some(found)) => wanted == found,
            (Instruction::Class(class), Some(found)) => {
                let ranges = &self.classes[class as usize];
                let at = ranges.partition_point(|(_, last)| *last < found);
                ranges.get(at).is_some_and(|(first, _)| *first <= found)
            }
            _ => false,
        }
    }
}

/// A position between two characters of a text.
struct Position {
    at: usize,
    before: Option<char>,
    after: Option<char>,
}

impl Position {
    fn new(text: &str, at: usize) -> Self {
        let (before, after) = text.split_at(at);
        Self { at, before: before.chars().next_back(), after: after.chars().next() }
    }

    /// `None` at the end.
    fn next(&self, text: &str) -> Option<Self> {
        let before = self.after?;
        let at = self.at + before.len_utf8();
        Some(Self { at, before: Some(before), after: text[at..].chars().next() })
    }

    /// Words and lines are ASCII, as in RE2.
    fn holds(&self, look: Look) -> bool {
        let word = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
        let (before, after) = (word(self.before), word(self.after));
        match look {
            Look::Start => self.before.is_none(),
            Look::End => self.after.is_none(),
            Look::StartLF => matches!(self.before, None | Some('\n')),
            Look::EndLF => matches!(self.after, None | Some('\n')),
            Look::StartCRLF => match self.before {
                Some('\r') => self.after != Some('\n'),
                before => matches!(before, None | Some('\n')),
            },
            Look::EndCRLF => match self.after {
                Some('\n') => self.before != Some('\r'),
                after => matches!(after, None | Some('\r')),
            },
            Look::WordAscii | Look::WordUnicode => before != after,
            Look::WordAsciiNegate | Look::WordUnicodeNegate => before == after,
            Look::WordStartAscii | Look::WordStartUnicode => !before && after,
            Look::WordEndAscii | Look::WordEndUnicode => before && !after,
            Look::WordStartHalfAscii | Look::WordStartHalfUnicode => !before,
            Look::WordEndHalfAscii | Look::WordEndHalfUnicode => !after,
        }
    }
}

/// The state of a search.
struct Search<'a> {
    program: &'a PatternProgram,
    /// Threads at a position, preferred ones first: where they are, and where they began.
    threads: Vec<(usize, usize)>,
    /// Generation in which an instruction was last added.
    seen: Vec<u32>,
    generation: u32,
    stack: Vec<usize>,
    /// Steps that are not charged yet.
    debt: usize,
}

impl Search<'_> {
    /// Adds a thread, and those that it splits into, unless they are there.
    fn add(&mut self, address: usize, begin: usize, position: &Position) {
        self.stack.push(address);
        while let Some(address) = self.stack.pop() {
            self.debt += 1;
            if std::mem::replace(&mut self.seen[address], self.generation) == self.generation {
                continue;
            }
            match self.program.instructions[address] {
                Instruction::Jump(to) => self.stack.push(to as usize),
                Instruction::Split(first, second) => {
                    self.stack.extend([second as usize, first as usize]);
                }
                Instruction::Look(look) if position.holds(look) => self.stack.push(address + 1),
                Instruction::Look(_) => {}
                Instruction::Char(_) | Instruction::Class(_) | Instruction::Match => {
                    self.threads.push((address, begin));
                }
            }
        }
    }

    fn pay(&mut self, steps: &mut u64) -> Result<(), StepsExhausted> {
        if self.debt < STEPS_PER_BREATH {
            return Ok(());
        }
        let debt = std::mem::take(&mut self.debt);
        work::count(debt);
        work::breathe_now();
        *steps = steps.checked_sub(debt as u64).ok_or(StepsExhausted)?;
        Ok(())
    }
}

struct PatternCompiler {
    program: PatternProgram,
    /// Indices of the classes, by address in the expression: a repeated one is compiled once.
    indices: HashMap<*const Class, u32>,
    /// Bytes.
    left: usize,
}

impl PatternCompiler {
    fn charge(&mut self, bytes: usize) -> Result<(), PatternProgramError> {
        work::count(bytes);
        self.left = self.left.checked_sub(bytes).ok_or(PatternProgramError::TooLarge)?;
        Ok(())
    }

    fn next(&self) -> u32 {
        u32::try_from(self.program.instructions.len()).expect("bounded by MAX_PROGRAM")
    }

    /// Appends an instruction, and returns its address.
    fn emit(&mut self, instruction: Instruction) -> Result<usize, PatternProgramError> {
        self.charge(size_of::<Instruction>())?;
        self.program.instructions.push(instruction);
        Ok(self.program.instructions.len() - 1)
    }

    /// Sets the branches of a split: to what follows it, and to the next instruction.
    fn skip_to_next(&mut self, split: usize, greedy: bool) {
        let inner = u32::try_from(split + 1).expect("bounded by MAX_PROGRAM");
        self.program.instructions[split] = self.split(inner, greedy);
    }

    /// A split into a repeated part and the next instruction.
    fn split(&self, repeated: u32, greedy: bool) -> Instruction {
        match greedy {
            true => Instruction::Split(repeated, self.next()),
            false => Instruction::Split(self.next(), repeated),
        }
    }

    fn expression(&mut self, hir: &Hir) -> Result<(), PatternProgramError> {
        // Empty matches take time, too.
        self.charge(1)?;
        match hir.kind() {
            HirKind::Empty => Ok(()),
            HirKind::Literal(literal) => {
                let text =
                    std::str::from_utf8(&literal.0).map_err(|_| PatternProgramError::NoText)?;
                text.chars().try_for_each(|c| self.emit(Instruction::Char(c)).map(drop))
            }
            HirKind::Class(class) => {
                let index = self.class(class)?;
                self.emit(Instruction::Class(index)).map(drop)
            }
            HirKind::Look(look) => self.emit(Instruction::Look(*look)).map(drop),
            HirKind::Repetition(repetition) => self.repetition(repetition),
            HirKind::Capture(capture) => self.expression(&capture.sub),
            HirKind::Concat(parts) => parts.iter().try_for_each(|part| self.expression(part)),
            HirKind::Alternation(choices) => self.alternation(choices),
        }
    }

    fn class(&mut self, class: &Class) -> Result<u32, PatternProgramError> {
        if let Some(index) = self.indices.get(&std::ptr::from_ref(class)) {
            return Ok(*index);
        }
        let ranges: Vec<(char, char)> = match class {
            Class::Unicode(class) => {
                class.ranges().iter().map(|range| (range.start(), range.end())).collect()
            }
            Class::Bytes(class) if class.is_ascii() => class
                .ranges()
                .iter()
                .map(|range| (char::from(range.start()), char::from(range.end())))
                .collect(),
            Class::Bytes(_) => return Err(PatternProgramError::NoText),
        };
        self.charge(ranges.len() * size_of::<(char, char)>())?;
        let index = u32::try_from(self.program.classes.len()).expect("bounded by MAX_PROGRAM");
        self.program.classes.push(ranges);
        self.indices.insert(std::ptr::from_ref(class), index);
        Ok(index)
    }

    fn alternation(&mut self, choices: &[Hir]) -> Result<(), PatternProgramError> {
        let Some((last, others)) = choices.split_last() else { return Ok(()) };
        let mut ends = Vec::with_capacity(others.len());
        for choice in others {
            let split = self.emit(Instruction::Match)?;
            self.expression(choice)?;
            ends.push(self.emit(Instruction::Match)?);
            self.skip_to_next(split, true);
        }
        self.expression(last)?;
        let next = self.next();
        for end in ends {
            self.program.instructions[end] = Instruction::Jump(next);
        }
        Ok(())
    }

    fn repetition(&mut self, repetition: &Repetition) -> Result<(), PatternProgramError> {
        let Repetition { min, max, greedy, sub } = repetition;
        let mandatory = match max {
            // The last one is repeated.
            None => min.saturating_sub(1),
            Some(_) => *min,
        };
        (0..mandatory).try_for_each(|_| self.expression(sub))?;
        match max {
            Some(max) => {
                let mut splits = Vec::new();
                for _ in *min..*max {
                    splits.push(self.emit(Instruction::Match)?);
                    self.expression(sub)?;
                }
                splits.into_iter().for_each(|split| self.skip_to_next(split, *greedy));
                Ok(())
            }
            None => {
                let skips = if *min == 0 { Some(self.emit(Instruction::Match)?) } else { None };
                let begin = self.next();
                self.expression(sub)?;
                let again = self.emit(Instruction::Match)?;
                self.program.instructions[again] = self.split(begin, *greedy);
                if let Some(skip) = skips {
                    self.skip_to_next(skip, *greedy);
                }
                Ok(())
            }
        }
    }
}
