//! Usage of volumes: a part of the summary, and kubelet's metrics of claims.

use super::summary::FsSample;
use crate::next::WallTime;
use parking_lot::Mutex;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

/// Usage and health of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct VolumeStats {
    pub(crate) bytes: Option<VolumeAmount>,
    pub(crate) inodes: Option<VolumeAmount>,
    /// `None`: the driver does not know.
    pub(crate) is_abnormal: Option<bool>,
}

/// How much of something a volume has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VolumeAmount {
    pub(crate) available: u64,
    pub(crate) total: u64,
    pub(crate) used: u64,
}

/// Usage of a pod's volume.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct VolumeSample {
    #[serde(flatten)]
    usage: FsSample,
    /// Name of the volume in the pod.
    name: String,
    #[serde(rename = "pvcRef", skip_serializing_if = "Option::is_none")]
    claim: Option<ClaimRef>,
    #[serde(rename = "volumeHealthStats", skip_serializing_if = "Option::is_none")]
    health: Option<VolumeHealth>,
}

/// The claim of a volume.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct ClaimRef {
    pub(crate) name: String,
    pub(crate) namespace: String,
}

#[derive(Clone, Debug, Serialize)]
struct VolumeHealth {
    abnormal: bool,
}

impl VolumeSample {
    /// A sample of what a driver said.
    pub(crate) fn new(
        name: &str,
        claim: Option<ClaimRef>,
        stats: &VolumeStats,
        time: WallTime,
    ) -> Self {
        let VolumeStats { bytes, inodes, is_abnormal } = *stats;
        let of = |amount: Option<VolumeAmount>, number: fn(VolumeAmount) -> u64| amount.map(number);
        let usage = FsSample {
            time,
            available_bytes: of(bytes, |it| it.available),
            capacity_bytes: of(bytes, |it| it.total),
            used_bytes: of(bytes, |it| it.used),
            inodes_free: of(inodes, |it| it.available),
            inodes: of(inodes, |it| it.total),
            inodes_used: of(inodes, |it| it.used),
        };
        let health = is_abnormal.map(|abnormal| VolumeHealth { abnormal });
        Self { usage, name: name.to_owned(), claim, health }
    }
}

/// A gauge with a sample for each claim.
struct ClaimMetric {
    name: &'static str,
    help: &'static str,
    value: fn(&VolumeSample) -> Option<u64>,
}

/// Sorted by name; texts are kubelet's.
const METRICS: [ClaimMetric; 7] = [
    ClaimMetric {
        name: "available_bytes",
        help: "Number of available bytes in the volume",
        value: |volume| volume.usage.available_bytes,
    },
    ClaimMetric {
        name: "capacity_bytes",
        help: "Capacity in bytes of the volume",
        value: |volume| volume.usage.capacity_bytes,
    },
    ClaimMetric {
        name: "health_status_abnormal",
        help: "Abnormal volume health status. The count is either 1 or 0. 1 indicates the volume \
               is unhealthy, 0 indicates volume is healthy",
        value: |volume| Some(u64::from(volume.health.as_ref()?.abnormal)),
    },
    ClaimMetric {
        name: "inodes",
        help: "Maximum number of inodes in the volume",
        value: |volume| volume.usage.inodes,
    },
    ClaimMetric {
        name: "inodes_free",
        help: "Number of free inodes in the volume",
        value: |volume| volume.usage.inodes_free,
    },
    ClaimMetric {
        name: "inodes_used",
        help: "Number of used inodes in the volume",
        value: |volume| volume.usage.inodes_used,
    },
    ClaimMetric {
        name: "used_bytes",
        help: "Number of used bytes in the volume",
        value: |volume| volume.usage.used_bytes,
    },
];

/// Volumes of the node's pods, by their UIDs, as they were measured last. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct MeasuredVolumes(Arc<Mutex<BTreeMap<String, Vec<VolumeSample>>>>);

impl MeasuredVolumes {
    /// Replaces all samples.
    pub(crate) fn replace(&self, samples: BTreeMap<String, Vec<VolumeSample>>) {
        *self.0.lock() = samples;
    }

    /// The volumes of a pod.
    pub(crate) fn of(&self, uid: &str) -> Vec<VolumeSample> {
        self.0.lock().get(uid).cloned().unwrap_or_default()
    }

    /// Appends the metrics in the text format: each claim once, whatever the number of its pods.
    pub(crate) fn write_metrics(&self, out: &mut String) {
        let samples = self.0.lock();
        let claims: BTreeMap<&ClaimRef, &VolumeSample> = samples
            .values()
            .flatten()
            .filter_map(|sample| Some((sample.claim.as_ref()?, sample)))
            .collect();
        for ClaimMetric { name, help, value } in METRICS {
            let mut is_first = true;
            for (claim, sample) in &claims {
                let Some(value) = value(sample) else { continue };
                if std::mem::take(&mut is_first) {
                    let name = format!("kubelet_volume_stats_{name}");
                    let _ = writeln!(out, "# HELP {name} [ALPHA] {help}\n# TYPE {name} gauge");
                }
                // Names need no escapes: the API server has checked them.
                let ClaimRef { name: claim, namespace } = claim;
                let _ = writeln!(
                    out,
                    "kubelet_volume_stats_{name}{{namespace=\"{namespace}\",\
                     persistentvolumeclaim=\"{claim}\"}} {value}"
                );
            }
        }
    }
}
