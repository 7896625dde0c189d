//! Settings of log rotation, image garbage collection and eviction.

use super::duration;
use super::eviction::EvictionSettings;
use ferrokube_apimachinery::document::Value;
use ferrokube_apimachinery::quantity::Quantity;
use ferrokube_images::{CredentialVerification, ImageCollection};
use std::time::Duration;

/// Minimum interval between checks of log sizes, as in kubelet.
const LEAST_INTERVAL: Duration = Duration::from_secs(3);
const ALLOWLISTED: &str = "NeverVerifyAllowlistedImages";

/// When logs are rotated, and how many files are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRotation {
    /// Size in bytes at which a log is rotated; `None`: never.
    pub max_bytes: Option<u64>,
    /// Max files per container, including the current one; at least two.
    pub max_files: u32,
    /// Max concurrent rotations.
    pub workers: u32,
    /// Interval between checks.
    pub interval: Duration,
}

/// As in a file; `None`: not set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HousekeepingSettings {
    /// Quantity of bytes; negative: logs are not rotated.
    pub log_max_size: Option<String>,
    /// Max log files per container.
    pub log_max_files: Option<i64>,
    /// Max concurrent rotations.
    pub log_max_workers: Option<i64>,
    /// Interval between checks of log sizes.
    pub log_monitor_interval: Option<Duration>,
    /// Disk usage in percent above which unused images are removed.
    pub image_high_percent: Option<i64>,
    /// Disk usage in percent at which removal stops.
    pub image_low_percent: Option<i64>,
    /// Minimum age of a removed image.
    pub image_least_age: Option<Duration>,
    /// Idle time after which an image is removed regardless of disk usage.
    pub image_longest_unused: Option<Duration>,
    /// Images that pods may use only if they may pull them.
    pub image_verification: Option<String>,
    /// Images that need no proof.
    pub image_allowlist: Option<Vec<String>>,
    /// When pods are evicted.
    pub eviction: EvictionSettings,
}

impl HousekeepingSettings {
    /// Sets a field whose type was checked. Returns whether the field is one of these.
    pub(super) fn set(&mut self, name: &str, value: &Value) -> Result<bool, String> {
        let text = || value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let number = || value.as_i64().filter(|number| *number != 0);
        let time = || -> Result<Option<Duration>, String> {
            let time = duration(value.as_str().unwrap_or("0"))?;
            Ok(Some(time).filter(|time| !time.is_zero()))
        };
        if self.eviction.set(name, value)? {
            return Ok(true);
        }
        match name {
            "containerLogMaxSize" => self.log_max_size = text(),
            "containerLogMaxFiles" => self.log_max_files = value.as_i64(),
            "containerLogMaxWorkers" => self.log_max_workers = number(),
            "containerLogMonitorInterval" => self.log_monitor_interval = time()?,
            "imageGCHighThresholdPercent" => self.image_high_percent = value.as_i64(),
            "imageGCLowThresholdPercent" => self.image_low_percent = value.as_i64(),
            "imagePullCredentialsVerificationPolicy" => self.image_verification = text(),
            "preloadedImagesVerificationAllowlist" => {
                let all = value.as_array().into_iter().flat_map(|all| all.as_slice().iter());
                let all: Vec<String> = all.filter_map(Value::as_str).map(str::to_owned).collect();
                self.image_allowlist = Some(all).filter(|all| !all.is_empty());
            }
            "imageMinimumGCAge" => self.image_least_age = time()?,
            "imageMaximumGCAge" => self.image_longest_unused = time()?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// These settings, with unset ones taken from `below`.
    pub(super) fn over(self, below: Self) -> Self {
        Self {
            log_max_size: self.log_max_size.or(below.log_max_size),
            log_max_files: self.log_max_files.or(below.log_max_files),
            log_max_workers: self.log_max_workers.or(below.log_max_workers),
            log_monitor_interval: self.log_monitor_interval.or(below.log_monitor_interval),
            image_high_percent: self.image_high_percent.or(below.image_high_percent),
            image_low_percent: self.image_low_percent.or(below.image_low_percent),
            image_least_age: self.image_least_age.or(below.image_least_age),
            image_longest_unused: self.image_longest_unused.or(below.image_longest_unused),
            image_verification: self.image_verification.or(below.image_verification),
            image_allowlist: self.image_allowlist.or(below.image_allowlist),
            eviction: self.eviction.over(below.eviction),
        }
    }

    /// Checks and adds defaults.
    pub(super) fn log_rotation(&self, mut wrong: impl FnMut(String)) -> LogRotation {
        let size = self.log_max_size.as_deref().unwrap_or("10Mi");
        let bytes = match Quantity::parse(size) {
            Ok(size) => size.value(),
            Err(error) => {
                wrong(format!("containerLogMaxSize {size:?}: {error}"));
                0
            }
        };
        let files = self.log_max_files.unwrap_or(5);
        if files < 2 {
            wrong(format!("containerLogMaxFiles {files} must be greater than 1"));
        }
        let workers = self.log_max_workers.unwrap_or(1);
        if workers < 1 {
            wrong("containerLogMaxWorkers must be greater than or equal to 1".to_owned());
        }
        let interval = self.log_monitor_interval.unwrap_or(Duration::from_secs(10));
        if interval < LEAST_INTERVAL {
            wrong(
                "containerLogMonitorInterval must be a positive time duration greater than or \
                 equal to 3s"
                    .to_owned(),
            );
        }
        let number = |number: i64| u32::try_from(number).unwrap_or(0);
        let max_bytes = u64::try_from(bytes).ok();
        LogRotation { max_bytes, max_files: number(files), workers: number(workers), interval }
    }

    /// Checks and adds defaults.
    pub(super) fn image_verification(
        &self,
        mut wrong: impl FnMut(String),
    ) -> CredentialVerification {
        let list = self.image_allowlist.clone().unwrap_or_default();
        let policy = self.image_verification.as_deref().unwrap_or("NeverVerifyPreloadedImages");
        if policy != ALLOWLISTED && !list.is_empty() {
            wrong(format!(
                "can't set `preloadedImagesVerificationAllowlist` if \
                 `imagePullCredentialsVerificationPolicy` is not {ALLOWLISTED:?}"
            ));
        }
        match policy {
            "NeverVerify" => CredentialVerification::Never,
            "NeverVerifyPreloadedImages" => CredentialVerification::PulledImages,
            ALLOWLISTED => CredentialVerification::AllBut(list),
            "AlwaysVerify" => CredentialVerification::Always,
            other => {
                wrong(format!(
                    "option {other:?} specified for imagePullCredentialsVerificationPolicy. Valid \
                     options are NeverVerify, NeverVerifyPreloadedImages, \
                     NeverVerifyAllowlistedImages or AlwaysVerify"
                ));
                CredentialVerification::Always
            }
        }
    }

    /// Checks and adds defaults.
    pub(super) fn image_collection(&self, mut wrong: impl FnMut(String)) -> ImageCollection {
        let (high, low) =
            (self.image_high_percent.unwrap_or(85), self.image_low_percent.unwrap_or(80));
        for (name, percent) in
            [("imageGCHighThresholdPercent", high), ("imageGCLowThresholdPercent", low)]
        {
            if !(0..=100).contains(&percent) {
                wrong(format!("{name} {percent} must be between 0 and 100, inclusive"));
            }
        }
        if low >= high {
            wrong(format!(
                "imageGCLowThresholdPercent {low} must be less than imageGCHighThresholdPercent \
                 {high}"
            ));
        }
        let least_age = self.image_least_age.unwrap_or(Duration::from_secs(120));
        if self.image_longest_unused.is_some_and(|longest| longest < least_age) {
            wrong("imageMaximumGCAge must be greater than imageMinimumGCAge".to_owned());
        }
        let percent = |percent: i64| u8::try_from(percent).unwrap_or(100);
        ImageCollection {
            high_percent: percent(high),
            low_percent: percent(low),
            least_age,
            longest_unused: self.image_longest_unused,
        }
    }
}
