//! The conformance suite that every engine passes: `testing::suite(|config| ...)`; the fault-injecting `Io`.
