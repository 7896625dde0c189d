//! CSI volumes, which drivers on this node mount.
//!
//! - **Drivers** register by sockets in `plugins_registry` (`registration.rs`), which is watched
//!   (`directory_watch.rs`); those that are there are in [`CsiDrivers`] (`drivers.rs`).
//! - **A volume** (`source.rs`: what a PersistentVolume or a pod says) is attached by others
//!   (`attachment.rs`), staged once per node and published once per pod (`mount.rs`): as a
//!   directory or, with `volumeMode: Block`, as a device at the same path.
//! - **A mounted volume** (`upkeep.rs`; the rounds: `volumes/upkeep.rs`) is published again if its
//!   driver wants that (`requiresRepublish`), such as with new tokens of the pod (`tokens.rs`), and
//!   expanded when its storage has grown. Drivers that can are asked how full it is (`stats.rs`;
//!   the rounds: `volumes/measure.rs`).
//! - **The directories hold the state** (`records.rs`): a record is written before a driver is
//!   called, so that whatever is staged or published after `kill -9` is found again, continued or
//!   undone (`unmount.rs`). Calls are idempotent by CSI's rules.
//! - Calls about one volume are made one at a time; each has a deadline, and is cancelled when its
//!   worker is dropped.
//! - The Node lists attached volumes that may be in use (`in_use.rs`) before they are mounted and
//!   until they are unstaged, so that no controller detaches them meanwhile.

mod abilities;
mod attachment;
mod directory_watch;
mod drivers;
mod failure;
mod in_use;
mod known_rules;
mod mount;
mod mount_table;
mod records;
mod registration;
mod rules;
mod source;
mod stats;
mod tokens;
mod unmount;
mod upkeep;

pub(crate) use drivers::{CsiDrivers, RegisteredDriver};
pub(crate) use failure::CsiMountError;
pub(crate) use mount::{is_ready, set_up};
pub(crate) use mount_table::mounted_below;
pub(crate) use records::{is_target, pods_with_volumes, target};
pub(crate) use registration::run as register;
pub(crate) use source::{CsiVolume, is_block};
pub(crate) use stats::stats;
pub(crate) use unmount::{CsiUnmountError, run as unstage_unused, tear_down};
pub(crate) use upkeep::{DriverWishes, expand, republish, wishes};

#[cfg(test)]
mod tests;
