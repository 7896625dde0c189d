//! Sandboxes and containers of the fake runtime.

use super::{FakeRuntime, SeenContainer, decoded, encoded, missing};
use crate::error::{CallCode, CriError};
use crate::messages::*;
use bytes::Bytes;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// A container and its configuration.
pub(super) struct FakeContainer {
    seen: SeenContainer,
}

impl FakeRuntime {
    /// All containers that were not removed, oldest first.
    pub fn containers(&self) -> Vec<SeenContainer> {
        self.state.lock().containers.values().map(|container| container.seen.clone()).collect()
    }

    /// Those with this name that run.
    pub fn running(&self, name: &str) -> Vec<SeenContainer> {
        let is_it = |seen: &SeenContainer| {
            seen.report.state() == ContainerPhase::Running
                && seen.report.metadata.as_ref().is_some_and(|metadata| metadata.name == name)
        };
        self.containers().into_iter().filter(is_it).collect()
    }

    /// All sandboxes that were not removed.
    pub fn sandboxes(&self) -> Vec<PodSandbox> {
        self.state.lock().sandboxes.values().cloned().collect()
    }

    /// Ends a running container by itself.
    pub fn exit(&self, id: &str, code: i32) {
        if let Some(container) = self.state.lock().containers.get_mut(id) {
            container.end(code);
        }
        self.changed();
    }

    /// Exit code of a command, by its first word; others exit with 0.
    pub fn exec_exits(&self, command: &str, code: i32) {
        self.state.lock().exec.insert(command.to_owned(), code);
    }

    /// Sets the usage of running containers with this name, in CPU nanoseconds and bytes.
    pub fn uses(&self, container: &str, nanoseconds: u64, bytes: u64) {
        self.state.lock().usage.insert(container.to_owned(), (nanoseconds, bytes));
    }

    pub(super) fn container_call(
        &self,
        method: &'static str,
        request: &Bytes,
    ) -> Result<Bytes, CriError> {
        let response = match method {
            path::run_pod_sandbox => self.run_sandbox(decoded(request)?),
            path::stop_pod_sandbox => self.stop_sandbox(&decoded(request)?),
            path::remove_pod_sandbox => self.remove_sandbox(&decoded(request)?),
            path::pod_sandbox_status => self.sandbox_status(&decoded(request)?)?,
            path::list_pod_sandbox => encoded(&ListPodSandboxResponse { items: self.sandboxes() }),
            path::create_container => self.create(decoded(request)?)?,
            path::start_container => self.start(&decoded(request)?)?,
            path::stop_container => self.stop(&decoded(request)?)?,
            path::remove_container => {
                let request: RemoveContainerRequest = decoded(request)?;
                self.state.lock().containers.remove(&request.container_id);
                encoded(&RemoveContainerResponse {})
            }
            path::list_containers => {
                let state = self.state.lock();
                let containers = state.containers.values().map(|it| summary(&it.seen)).collect();
                encoded(&ListContainersResponse { containers })
            }
            path::list_container_stats => {
                let all = self.containers();
                let running = all.iter().filter(|it| it.report.state() == ContainerPhase::Running);
                let stats = running.map(|it| self.stats(it)).collect();
                encoded(&ListContainerStatsResponse { stats })
            }
            path::container_status => {
                let request: ContainerStatusRequest = decoded(request)?;
                let state = self.state.lock();
                let container = state.containers.get(&request.container_id);
                let container =
                    container.ok_or_else(|| missing("container", &request.container_id))?;
                let status = Some(container.seen.report.clone());
                encoded(&ContainerStatusResponse { status, ..ContainerStatusResponse::default() })
            }
            path::update_container_resources => {
                let request: UpdateContainerResourcesRequest = decoded(request)?;
                let mut state = self.state.lock();
                let container = state.containers.get_mut(&request.container_id);
                let container =
                    container.ok_or_else(|| missing("container", &request.container_id))?;
                container.seen.config.linux.get_or_insert_default().resources = request.linux;
                encoded(&UpdateContainerResourcesResponse {})
            }
            path::reopen_container_log => {
                let request: ReopenContainerLogRequest = decoded(request)?;
                let state = self.state.lock();
                let container = state.containers.get(&request.container_id);
                let container =
                    container.ok_or_else(|| missing("container", &request.container_id))?;
                begin_log(&container.seen.report);
                encoded(&ReopenContainerLogResponse {})
            }
            path::exec_sync => {
                let request: ExecSyncRequest = decoded(request)?;
                let command = request.cmd.first().cloned().unwrap_or_default();
                let exit_code = self.state.lock().exec.get(&command).copied().unwrap_or(0);
                encoded(&ExecSyncResponse { exit_code, ..ExecSyncResponse::default() })
            }
            _ => return Err(CriError::new(CallCode::Unimplemented, format!("unknown {method}"))),
        };
        self.changed();
        Ok(response)
    }

    fn stats(&self, seen: &SeenContainer) -> ContainerStats {
        let (id, metadata) = (seen.report.id.clone(), seen.report.metadata.clone());
        let name = metadata.as_ref().map_or("", |metadata| metadata.name.as_str());
        let usage = self.state.lock().usage.get(name).copied().unwrap_or_default();
        let (time, value) = (nanoseconds(), |value| Some(UInt64Value { value }));
        ContainerStats {
            attributes: Some(ContainerAttributes {
                id,
                metadata,
                labels: seen.report.labels.clone(),
                annotations: seen.report.annotations.clone(),
            }),
            cpu: Some(CpuUsage {
                timestamp: time,
                usage_core_nano_seconds: value(usage.0),
                ..CpuUsage::default()
            }),
            memory: Some(MemoryUsage {
                timestamp: time,
                working_set_bytes: value(usage.1),
                ..MemoryUsage::default()
            }),
            ..ContainerStats::default()
        }
    }

    fn new_id(&self, kind: &str) -> String {
        let mut state = self.state.lock();
        state.made += 1;
        format!("{kind}{:08}", state.made)
    }

    fn run_sandbox(&self, request: RunPodSandboxRequest) -> Bytes {
        let config = request.config.unwrap_or_default();
        let id = self.new_id("sandbox");
        self.state.lock().log_directories.insert(id.clone(), config.log_directory.into());
        let sandbox = PodSandbox {
            id: id.clone(),
            metadata: config.metadata,
            state: PodSandboxState::Ready as i32,
            created_at: nanoseconds(),
            labels: config.labels,
            annotations: config.annotations,
            runtime_handler: request.runtime_handler,
        };
        self.state.lock().sandboxes.insert(id.clone(), sandbox);
        encoded(&RunPodSandboxResponse { pod_sandbox_id: id })
    }

    fn stop_sandbox(&self, request: &StopPodSandboxRequest) -> Bytes {
        let mut state = self.state.lock();
        if let Some(sandbox) = state.sandboxes.get_mut(&request.pod_sandbox_id) {
            sandbox.state = PodSandboxState::Notready as i32;
        }
        let inside = |container: &&mut FakeContainer| {
            container.seen.sandbox == request.pod_sandbox_id
                && container.seen.report.state() == ContainerPhase::Running
        };
        state.containers.values_mut().filter(inside).for_each(|container| container.end(137));
        encoded(&StopPodSandboxResponse {})
    }

    fn remove_sandbox(&self, request: &RemovePodSandboxRequest) -> Bytes {
        let mut state = self.state.lock();
        state.sandboxes.remove(&request.pod_sandbox_id);
        state.containers.retain(|_, container| container.seen.sandbox != request.pod_sandbox_id);
        encoded(&RemovePodSandboxResponse {})
    }

    fn sandbox_status(&self, request: &PodSandboxStatusRequest) -> Result<Bytes, CriError> {
        let state = self.state.lock();
        let sandbox = state.sandboxes.get(&request.pod_sandbox_id);
        let sandbox = sandbox.ok_or_else(|| missing("sandbox", &request.pod_sandbox_id))?.clone();
        let network =
            PodSandboxNetworkStatus { ip: "10.88.0.2".to_owned(), additional_ips: vec![] };
        let status = Some(PodSandboxReport {
            id: sandbox.id,
            metadata: sandbox.metadata,
            state: sandbox.state,
            created_at: sandbox.created_at,
            network: Some(network),
            labels: sandbox.labels,
            annotations: sandbox.annotations,
            ..PodSandboxReport::default()
        });
        Ok(encoded(&PodSandboxStatusResponse { status, ..PodSandboxStatusResponse::default() }))
    }

    fn create(&self, request: CreateContainerRequest) -> Result<Bytes, CriError> {
        let id = self.new_id("container");
        let config = request.config.unwrap_or_default();
        let mut state = self.state.lock();
        if !state.sandboxes.contains_key(&request.pod_sandbox_id) {
            return Err(missing("sandbox", &request.pod_sandbox_id));
        }
        let logs = state.log_directories.get(&request.pod_sandbox_id).cloned().unwrap_or_default();
        let report = ContainerReport {
            id: id.clone(),
            metadata: config.metadata.clone(),
            state: ContainerPhase::Created as i32,
            created_at: nanoseconds(),
            image: config.image.clone(),
            image_ref: config.image.clone().unwrap_or_default().image,
            labels: config.labels.clone(),
            annotations: config.annotations.clone(),
            log_path: logs.join(&config.log_path).display().to_string(),
            ..ContainerReport::default()
        };
        let seen = SeenContainer { report, sandbox: request.pod_sandbox_id, config };
        state.containers.insert(id.clone(), FakeContainer { seen });
        Ok(encoded(&CreateContainerResponse { container_id: id }))
    }

    fn start(&self, request: &StartContainerRequest) -> Result<Bytes, CriError> {
        let mut state = self.state.lock();
        let container = state.containers.get_mut(&request.container_id);
        let container = container.ok_or_else(|| missing("container", &request.container_id))?;
        container.seen.report.state = ContainerPhase::Running as i32;
        container.seen.report.started_at = nanoseconds();
        begin_log(&container.seen.report);
        Ok(encoded(&StartContainerResponse {}))
    }

    fn stop(&self, request: &StopContainerRequest) -> Result<Bytes, CriError> {
        let mut state = self.state.lock();
        let container = state.containers.get_mut(&request.container_id);
        let container = container.ok_or_else(|| missing("container", &request.container_id))?;
        if container.seen.report.state() == ContainerPhase::Running {
            container.end(if request.timeout > 0 { 143 } else { 137 });
        }
        Ok(encoded(&StopContainerResponse {}))
    }
}

impl FakeContainer {
    fn end(&mut self, code: i32) {
        let report = &mut self.seen.report;
        report.state = ContainerPhase::Exited as i32;
        report.exit_code = code;
        report.finished_at = nanoseconds();
        report.reason = if code == 0 { "Completed" } else { "Error" }.to_owned();
    }
}

/// Creates the log file, to which tests write the output.
fn begin_log(report: &ContainerReport) {
    let path = Path::new(&report.log_path);
    let folder = path.parent().filter(|_| path.is_absolute());
    let made = folder.map(std::fs::create_dir_all);
    if made.is_some_and(|made| made.is_ok()) {
        let _ = std::fs::OpenOptions::new().create(true).append(true).open(path);
    }
}

fn summary(seen: &SeenContainer) -> ContainerSummary {
    let report = &seen.report;
    ContainerSummary {
        id: report.id.clone(),
        pod_sandbox_id: seen.sandbox.clone(),
        metadata: report.metadata.clone(),
        image: report.image.clone(),
        image_ref: report.image_ref.clone(),
        state: report.state,
        created_at: report.created_at,
        labels: report.labels.clone(),
        annotations: report.annotations.clone(),
        image_id: report.image_id.clone(),
    }
}

/// Time of the fake's records: of the process, since CRI's are wall-clock times.
fn nanoseconds() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
