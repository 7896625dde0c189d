//! Settings of what the kubelet tidies up.

use super::duration;
use crate::log_files::LogRotation;
use ferrokube_apimachinery::document::Value;
use ferrokube_apimachinery::quantity::Quantity;
use std::time::Duration;

/// Shortest interval of looks at the sizes of logs; kubelet's.
const LEAST_INTERVAL: Duration = Duration::from_secs(3);

/// As in a file; `None`: not set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HousekeepingSettings {
    /// Quantity of bytes; negative: logs are not rotated.
    pub log_max_size: Option<String>,
    /// Files of a container.
    pub log_max_files: Option<i64>,
    /// Logs that are rotated at a time.
    pub log_max_workers: Option<i64>,
    /// Time between two looks at the sizes of logs.
    pub log_monitor_interval: Option<Duration>,
}

impl HousekeepingSettings {
    /// Sets a field whose type was checked; whether it is one of these.
    pub(super) fn set(&mut self, name: &str, value: &Value) -> Result<bool, String> {
        let text = || value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let number = || value.as_i64().filter(|number| *number != 0);
        let time = || -> Result<Option<Duration>, String> {
            let time = duration(value.as_str().unwrap_or("0"))?;
            Ok(Some(time).filter(|time| !time.is_zero()))
        };
        match name {
            "containerLogMaxSize" => self.log_max_size = text(),
            "containerLogMaxFiles" => self.log_max_files = value.as_i64(),
            "containerLogMaxWorkers" => self.log_max_workers = number(),
            "containerLogMonitorInterval" => self.log_monitor_interval = time()?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// These settings, and where they are unset those of `below`.
    pub(super) fn over(self, below: Self) -> Self {
        Self {
            log_max_size: self.log_max_size.or(below.log_max_size),
            log_max_files: self.log_max_files.or(below.log_max_files),
            log_max_workers: self.log_max_workers.or(below.log_max_workers),
            log_monitor_interval: self.log_monitor_interval.or(below.log_monitor_interval),
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
}
