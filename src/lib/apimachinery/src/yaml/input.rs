//! Input of the YAML scanner, which ends when the scanner looks too far ahead.
//!
//! In `[]` and `{}` anything may be a key until its end is known, and the scanner queues all tokens
//! up to there: a list of 3 MB took 1 GB.

use crate::work;
use saphyr_parser::StrInput;
use saphyr_parser::input::{Input, SkipTabs};
use std::cell::Cell;
use std::rc::Rc;

/// The scanner looks for this character once per token, and nowhere else. The tests of `heap` fail
/// if that changes.
const OF_A_TOKEN: char = '\u{feff}';

/// A text with a limit of steps.
pub(super) struct Limited<'a> {
    text: StrInput<'a>,
    /// Steps left; `None` if it ran out of them, and got the end of input.
    steps: Rc<Cell<Option<usize>>>,
}

impl<'a> Limited<'a> {
    pub(super) fn new(text: &'a str, steps: Rc<Cell<Option<usize>>>) -> Self {
        Self { text: StrInput::new(text), steps }
    }
}

/// Forwards methods: the text's own are faster than the trait's defaults.
macro_rules! pass {
    ($($name:ident(&self $(, $arg:ident: $kind:ty)?) -> $result:ty;)* ---  $($name_mut:ident(&mut self $(, $arg_mut:ident: $kind_mut:ty)?) $(-> $result_mut:ty)?;)*) => {
        $(#[inline] fn $name(&self $(, $arg: $kind)?) -> $result { self.text.$name($($arg)?) })*
        $(#[inline] fn $name_mut(&mut self $(, $arg_mut: $kind_mut)?) $(-> $result_mut)? { self.text.$name_mut($($arg_mut)?) })*
    };
}

impl Input for Limited<'_> {
    #[inline]
    fn lookahead(&mut self, count: usize) {
        if self.steps.get().is_none() {
            self.text = StrInput::new("");
        }
        self.text.lookahead(count);
    }

    #[inline]
    fn next_char_is(&self, char: char) -> bool {
        if char == OF_A_TOKEN {
            self.steps.set(self.steps.get().and_then(|left| left.checked_sub(1)));
            // Many tokens may come before the next event.
            work::breathe();
        }
        self.text.next_char_is(char)
    }

    #[inline]
    fn look_ch(&mut self) -> char {
        self.text.look_ch()
    }

    #[inline]
    fn next_2_are(&self, one: char, two: char) -> bool {
        self.text.next_2_are(one, two)
    }

    #[inline]
    fn next_3_are(&self, one: char, two: char, three: char) -> bool {
        self.text.next_3_are(one, two, three)
    }

    #[inline]
    fn nth_char_is(&self, nth: usize, char: char) -> bool {
        self.text.nth_char_is(nth, char)
    }

    pass! {
        buflen(&self) -> usize;
        bufmaxlen(&self) -> usize;
        buf_is_empty(&self) -> bool;
        peek(&self) -> char;
        peek_nth(&self, nth: usize) -> char;
        peek_opt(&self) -> Option<char>;
        next_is_document_indicator(&self) -> bool;
        next_is_document_start(&self) -> bool;
        next_is_document_end(&self) -> bool;
        next_can_be_plain_scalar(&self, in_flow: bool) -> bool;
        next_is_blank_or_break(&self) -> bool;
        next_is_blank_or_breakz(&self) -> bool;
        next_is_blank(&self) -> bool;
        next_is_break(&self) -> bool;
        next_is_breakz(&self) -> bool;
        next_is_z(&self) -> bool;
        next_is_flow(&self) -> bool;
        next_is_digit(&self) -> bool;
        next_is_alpha(&self) -> bool;
        ---
        raw_read_ch(&mut self) -> char;
        raw_read_non_breakz_ch(&mut self) -> Option<char>;
        skip(&mut self);
        skip_n(&mut self, count: usize);
        skip_ws_to_eol(&mut self, tabs: SkipTabs) -> (usize, Result<SkipTabs, &'static str>);
        skip_while_non_breakz(&mut self) -> usize;
        skip_while_blank(&mut self) -> usize;
        fetch_while_is_alpha(&mut self, out: &mut String) -> usize;
        fetch_while_is_yaml_non_space(&mut self, out: &mut String) -> usize;
    }
}
