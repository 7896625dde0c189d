//! Methods of CRI v1 that are used. Written by `generate.py`.

use super::*;
use crate::runtime::methods;

methods! {
    version: "/runtime.v1.RuntimeService/Version",
        VersionRequest => VersionResponse;
    run_pod_sandbox: "/runtime.v1.RuntimeService/RunPodSandbox",
        RunPodSandboxRequest => RunPodSandboxResponse;
    stop_pod_sandbox: "/runtime.v1.RuntimeService/StopPodSandbox",
        StopPodSandboxRequest => StopPodSandboxResponse;
    remove_pod_sandbox: "/runtime.v1.RuntimeService/RemovePodSandbox",
        RemovePodSandboxRequest => RemovePodSandboxResponse;
    pod_sandbox_status: "/runtime.v1.RuntimeService/PodSandboxStatus",
        PodSandboxStatusRequest => PodSandboxStatusResponse;
    list_pod_sandbox: "/runtime.v1.RuntimeService/ListPodSandbox",
        ListPodSandboxRequest => ListPodSandboxResponse;
    create_container: "/runtime.v1.RuntimeService/CreateContainer",
        CreateContainerRequest => CreateContainerResponse;
    start_container: "/runtime.v1.RuntimeService/StartContainer",
        StartContainerRequest => StartContainerResponse;
    stop_container: "/runtime.v1.RuntimeService/StopContainer",
        StopContainerRequest => StopContainerResponse;
    remove_container: "/runtime.v1.RuntimeService/RemoveContainer",
        RemoveContainerRequest => RemoveContainerResponse;
    list_containers: "/runtime.v1.RuntimeService/ListContainers",
        ListContainersRequest => ListContainersResponse;
    container_status: "/runtime.v1.RuntimeService/ContainerStatus",
        ContainerStatusRequest => ContainerStatusResponse;
    update_container_resources: "/runtime.v1.RuntimeService/UpdateContainerResources",
        UpdateContainerResourcesRequest => UpdateContainerResourcesResponse;
    reopen_container_log: "/runtime.v1.RuntimeService/ReopenContainerLog",
        ReopenContainerLogRequest => ReopenContainerLogResponse;
    exec_sync: "/runtime.v1.RuntimeService/ExecSync",
        ExecSyncRequest => ExecSyncResponse;
    exec: "/runtime.v1.RuntimeService/Exec",
        ExecRequest => ExecResponse;
    attach: "/runtime.v1.RuntimeService/Attach",
        AttachRequest => AttachResponse;
    port_forward: "/runtime.v1.RuntimeService/PortForward",
        PortForwardRequest => PortForwardResponse;
    list_container_stats: "/runtime.v1.RuntimeService/ListContainerStats",
        ListContainerStatsRequest => ListContainerStatsResponse;
    list_pod_sandbox_stats: "/runtime.v1.RuntimeService/ListPodSandboxStats",
        ListPodSandboxStatsRequest => ListPodSandboxStatsResponse;
    update_runtime_config: "/runtime.v1.RuntimeService/UpdateRuntimeConfig",
        UpdateRuntimeConfigRequest => UpdateRuntimeConfigResponse;
    status: "/runtime.v1.RuntimeService/Status",
        RuntimeStatusRequest => RuntimeStatusResponse;
    runtime_config: "/runtime.v1.RuntimeService/RuntimeConfig",
        RuntimeConfigRequest => RuntimeConfigResponse;
    list_images: "/runtime.v1.ImageService/ListImages",
        ListImagesRequest => ListImagesResponse;
    image_status: "/runtime.v1.ImageService/ImageStatus",
        ImageStatusRequest => ImageStatusResponse;
    pull_image: "/runtime.v1.ImageService/PullImage",
        PullImageRequest => PullImageResponse;
    remove_image: "/runtime.v1.ImageService/RemoveImage",
        RemoveImageRequest => RemoveImageResponse;
    image_fs_info: "/runtime.v1.ImageService/ImageFsInfo",
        ImageFsInfoRequest => ImageFsInfoResponse;
}
