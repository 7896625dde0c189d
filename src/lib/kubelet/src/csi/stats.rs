//! Usage and health of a mounted volume, as its driver reports them.

use super::records::{self, RecordPhase, VolumeRecord};
use super::rules::EPHEMERAL;
use crate::background::in_background;
use crate::node::PodNode;
use crate::usage::volumes::{VolumeAmount, VolumeStats};
use ferrokube_csi::{NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, VolumeUsageUnit};
use std::path::Path;
use std::time::Duration;

/// Limit of a call: the next round asks again.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Asks the driver of the volume that is mounted at `target`; `None` if it does not say.
pub(crate) async fn stats(node: &PodNode, target: &Path) -> Option<VolumeStats> {
    let directory = target.parent()?.to_owned();
    let record = in_background(move || VolumeRecord::read(&directory)).await.ok()??;
    if record.phase != RecordPhase::Mounted {
        return None;
    }
    let driver = node.csi.registered(&record.driver_name)?;
    if !driver.abilities.measures {
        return None;
    }
    let is_staged = driver.abilities.stages && record.volume_lifecycle_mode != EPHEMERAL;
    let staged = records::staged(&node.paths.root, &record.driver_name, &record.volume_handle);
    let staged = is_staged.then(|| records::stage_of(&staged).display().to_string());
    let request = NodeGetVolumeStatsRequest {
        volume_id: record.volume_handle,
        volume_path: target.display().to_string(),
        staging_target_path: staged.unwrap_or_default(),
    };
    let called = tokio::time::timeout(TIMEOUT, driver.client.node_get_volume_stats(request)).await;
    let failed = |why: String| {
        let (volume, driver) = (&record.spec_name, &record.driver_name);
        tracing::debug!(volume, driver, why, "no statistics of a volume");
    };
    match called {
        Ok(Ok(response)) => Some(read(&response, driver.abilities.examines)),
        Ok(Err(error)) => {
            failed(error.to_string());
            None
        }
        Err(_) => {
            failed("the driver does not answer".to_owned());
            None
        }
    }
}

/// Negative numbers say nothing.
fn read(response: &NodeGetVolumeStatsResponse, examines: bool) -> VolumeStats {
    let of = |unit: VolumeUsageUnit| {
        let usage = response.usage.iter().find(|usage| usage.unit() == unit)?;
        let number = |value: i64| u64::try_from(value).ok();
        Some(VolumeAmount {
            available: number(usage.available)?,
            total: number(usage.total)?,
            used: number(usage.used)?,
        })
    };
    let condition = response.volume_condition.as_ref().filter(|_| examines);
    VolumeStats {
        bytes: of(VolumeUsageUnit::Bytes),
        inodes: of(VolumeUsageUnit::Inodes),
        is_abnormal: condition.map(|condition| condition.abnormal),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_csi::{VolumeCondition, VolumeUsage};

    #[test]
    fn what_makes_no_sense_is_left_out() {
        let usage = |unit: VolumeUsageUnit, available| VolumeUsage {
            available,
            total: 3,
            used: 1,
            unit: unit as i32,
        };
        let response = NodeGetVolumeStatsResponse {
            usage: vec![usage(VolumeUsageUnit::Bytes, -1), usage(VolumeUsageUnit::Inodes, 2)],
            volume_condition: Some(VolumeCondition { abnormal: true, message: String::new() }),
        };
        let inodes = Some(VolumeAmount { available: 2, total: 3, used: 1 });
        let seen = |examines| read(&response, examines);
        assert_eq!(seen(false), VolumeStats { inodes, ..VolumeStats::default() });
        assert_eq!(seen(true).is_abnormal, Some(true));
    }
}
