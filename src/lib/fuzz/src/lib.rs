//! Fuzzing within `cargo test`: mutates seeds for a while; a failing input is minimized and
//! printed.
//!
//! Targets are the tests of modules named `fuzz`. `FUZZ_SECONDS=60 cargo test --workspace --lib
//! fuzz::` runs each for a minute (default: one second). Runs are reproducible: `FUZZ_SEED`
//! defaults to 1, and `FUZZ_SEED=random` uses the clock. Accepted inputs join the corpus, so that
//! later mutations start deeper.
//!
//! Must never know what it fuzzes, nor be used by shipped code. Start at [`run()`].

mod mutate;
mod random;

use mutate::Mutator;
pub use random::Random;
use std::fmt::Write as _;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// Maximum length of an input, in bytes.
pub const MAX_INPUT: usize = 16 * 1024;
/// Inputs kept in the corpus in addition to the seeds.
const MAX_KEPT: usize = 256;
/// Time limit per input, on a busy machine and without optimization.
const MAX_TIME: Duration = Duration::from_secs(10);
/// Attempts at minimizing a failing input.
const SHRINK_STEPS: usize = 2000;

/// Whether an input was well-formed, hence worth mutating further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Parsed.
    Accepted,
    /// Rejected with an error.
    Refused,
}

impl From<bool> for Verdict {
    fn from(accepted: bool) -> Self {
        if accepted { Self::Accepted } else { Self::Refused }
    }
}

/// Runs a target on the seeds, and then on mutations of them, for `FUZZ_SECONDS`.
///
/// # Panics
/// If the target panics or takes too long. The message shows a small input that reproduces it.
pub fn run<S: AsRef<[u8]>>(name: &str, seeds: &[S], target: impl Fn(&[u8]) -> Verdict) {
    let (seconds, seed) = settings();
    let mut random = Random::new(seed);
    let mut corpus: Vec<Vec<u8>> = seeds.iter().map(|seed| seed.as_ref().to_vec()).collect();
    for input in &corpus {
        once(name, seed, input, &target);
    }
    let fixed = corpus.len();
    let end = Instant::now() + seconds;
    let mut runs = 0_u64;
    while Instant::now() < end {
        let input = Mutator { random: &mut random, corpus: &corpus }.next();
        runs += 1;
        if once(name, seed, &input, &target) == Verdict::Refused {
            continue;
        }
        if corpus.len() < fixed + MAX_KEPT {
            corpus.push(input);
        } else {
            let place = fixed + random.below(MAX_KEPT);
            corpus[place] = input;
        }
    }
    println!("{name}: {runs} inputs, {} kept, FUZZ_SEED={seed}", corpus.len() - fixed);
}

/// Duration and seed.
fn settings() -> (Duration, u64) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = if std::env::var("FUZZ_SEED").is_ok_and(|text| text == "random") {
        let now =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        now.as_secs() ^ u64::from(now.subsec_nanos()) << 20
    } else {
        number("FUZZ_SEED").unwrap_or(1)
    };
    if std::env::var_os("FUZZ_SECONDS").is_some() {
        // Not by `eprintln!`, whose output tests capture: a stack overflow would lose the seed.
        let _ = writeln!(
            std::io::stderr(),
            "{}: FUZZ_SEED={seed}",
            std::thread::current().name().unwrap_or_default()
        );
    }
    (Duration::from_secs(number("FUZZ_SECONDS").unwrap_or(1)), seed)
}

fn once(name: &str, seed: u64, input: &[u8], target: &impl Fn(&[u8]) -> Verdict) -> Verdict {
    let start = Instant::now();
    let Ok(verdict) = catch_unwind(AssertUnwindSafe(|| target(input))) else {
        let small = shrink(input.to_vec(), |input| {
            catch_unwind(AssertUnwindSafe(|| target(input))).is_err()
        });
        panic!("{name} fails (FUZZ_SEED={seed}) on {}", shown(&small));
    };
    assert!(
        start.elapsed() < MAX_TIME,
        "{name} takes {:?} (FUZZ_SEED={seed}) for {}",
        start.elapsed(),
        shown(input)
    );
    verdict
}

/// Removes parts of a failing input as long as it keeps failing.
fn shrink(mut input: Vec<u8>, fails: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut steps = 0;
    let mut piece = input.len() / 2;
    while piece > 0 {
        let mut at = 0;
        while at + piece <= input.len() && steps < SHRINK_STEPS {
            let shorter = [&input[..at], &input[at + piece..]].concat();
            steps += 1;
            if fails(&shorter) {
                input = shorter;
            } else {
                at += piece;
            }
        }
        piece /= 2;
    }
    input
}

/// Formats an input as a byte string literal, to be pasted as a seed.
fn shown(input: &[u8]) -> String {
    let mut text = String::new();
    let _ = write!(
        text,
        "{} bytes: b\"{}\"",
        input.len(),
        input[..input.len().min(2000)].escape_ascii()
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_failing_input_is_found_and_made_small() {
        let failed = catch_unwind(|| {
            run("digits", &[b"{\"a\":[1,2,3],\"b\":\"text\"}"], |input| {
                Verdict::from(!input.windows(3).any(|part| part == b"[[[") || panic!("found"))
            })
        });
        let message = *failed.unwrap_err().downcast::<String>().unwrap();
        assert!(message.contains("3 bytes: b\"[[[\""), "{message}");
    }

    #[test]
    fn inputs_are_bounded_and_differ() {
        let (longest, changed) = (Cell::new(0), Cell::new(false));
        run("lengths", &[b"abc"], |input| {
            longest.set(longest.get().max(input.len()));
            changed.set(changed.get() || input != b"abc");
            Verdict::Accepted
        });
        assert!(changed.get() && longest.get() <= MAX_INPUT, "{}", longest.get());
    }
}
