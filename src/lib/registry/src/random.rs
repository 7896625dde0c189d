//! Random bytes of the system, taken many at a time: a system call for each new object takes longer
//! than all that is done with its bytes.

use std::cell::RefCell;

/// Bytes that a thread takes at a time.
const POOL_BYTES: usize = 512;

thread_local! {
    static POOL: RefCell<RandomPool> =
        const { RefCell::new(RandomPool { bytes: [0; POOL_BYTES], used: POOL_BYTES }) };
}

struct RandomPool {
    bytes: [u8; POOL_BYTES],
    /// Bytes given out, which are cleared.
    used: usize,
}

/// Random bytes, given out once. `N` is at most [`POOL_BYTES`].
///
/// # Panics
/// If the system has no random numbers.
pub(crate) fn bytes<const N: usize>() -> [u8; N] {
    POOL.with_borrow_mut(|pool| {
        if pool.used + N > POOL_BYTES {
            getrandom::fill(&mut pool.bytes).expect("the system has random numbers");
            pool.used = 0;
        }
        let given = pool.bytes[pool.used..].first_chunk_mut().expect("as many are left");
        pool.used += N;
        std::mem::replace(given, [0; N])
    })
}

/// A random UUID (version 4), as text.
pub(crate) fn uuid() -> String {
    let uuid = uuid::Builder::from_random_bytes(bytes()).into_uuid();
    uuid.hyphenated().encode_lower(&mut uuid::Uuid::encode_buffer()).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn bytes_are_given_out_once() {
        let given: HashSet<[u8; 16]> = (0..200).map(|_| bytes()).collect();
        assert_eq!(given.len(), 200);
        POOL.with_borrow(|pool| {
            assert!(pool.bytes[..pool.used].iter().all(|byte| *byte == 0));
            assert!(pool.bytes[pool.used..].iter().any(|byte| *byte != 0));
        });
    }

    #[test]
    fn uuids_have_their_version() {
        let parsed: uuid::Uuid = uuid().parse().expect("a UUID");
        assert_eq!((parsed.get_version_num(), parsed.to_string().len()), (4, 36));
    }
}
