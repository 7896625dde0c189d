//! The exporter's thread: gathers for a moment, sends, tries again a few times, gives up. Requests never see it.

use super::buffer::Batch;
use super::send::{Collector, SendError};
use super::{Config, Exporter, otlp};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;
use tokio::sync::watch;

/// Spans are gathered for so long after the first.
const GATHER: Duration = Duration::from_millis(500);
/// Between two attempts to send the same spans; then they are dropped. What comes meanwhile waits in the buffer.
const PAUSES: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];
/// How long the end of the process waits for the last spans.
const LAST_SPANS: Duration = Duration::from_secs(1);

/// Sends what is left when it is dropped, if that takes no longer than a second.
#[derive(Debug)]
pub struct Finish {
    stop: watch::Sender<bool>,
    done: Receiver<()>,
}

impl Drop for Finish {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        let _: Result<(), RecvTimeoutError> = self.done.recv_timeout(LAST_SPANS);
    }
}

/// Starts the thread; it has a runtime of its own, so that a busy server cannot starve it nor it the server.
pub(super) fn start(config: &Config, exporter: Arc<Exporter>) -> io::Result<Finish> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (stop, stopped) = watch::channel(false);
    let (finished, done) = sync_channel(1);
    let worker = Worker {
        exporter,
        collector: Collector::new(config.endpoint.clone()),
        service: config.service.clone(),
        instance: config.instance.clone(),
        stopped,
        failing: false,
    };
    std::thread::Builder::new().name("spans".into()).spawn(move || runtime.block_on(worker.run(finished)))?;
    Ok(Finish { stop, done })
}

struct Worker {
    exporter: Arc<Exporter>,
    collector: Collector,
    service: String,
    instance: String,
    stopped: watch::Receiver<bool>,
    /// Told once, not for every batch.
    failing: bool,
}

impl Worker {
    async fn run(mut self, finished: SyncSender<()>) {
        while !*self.stopped.borrow() {
            self.gather().await;
            let batch = self.exporter.buffer.take();
            self.export(batch).await;
        }
        let last = self.exporter.buffer.take();
        self.export(last).await;
        let _ = finished.try_send(());
    }

    /// Waits for spans, then a moment for more of them; not any more once the end has begun.
    async fn gather(&mut self) {
        let filled = &self.exporter.buffer.filled;
        let mut stopped = self.stopped.clone();
        tokio::select! {
            () = filled.notified() => {}
            _ = stopped.wait_for(|stop| *stop) => return,
        }
        let full = async {
            while !self.exporter.buffer.is_filling() {
                filled.notified().await;
            }
        };
        tokio::select! {
            () = full => {}
            () = tokio::time::sleep(GATHER) => {}
            _ = stopped.wait_for(|stop| *stop) => {}
        }
    }

    async fn export(&mut self, batch: Batch) {
        if batch.spans == 0 {
            return;
        }
        let message = otlp::request(&self.service, &self.instance, &batch.bytes);
        match self.deliver(message).await {
            Ok(rejected) => {
                let rejected = usize::try_from(rejected).unwrap_or(usize::MAX).min(batch.spans);
                self.exporter.buffer.count_exported(batch.spans - rejected);
                self.exporter.buffer.count_dropped(rejected);
                if std::mem::take(&mut self.failing) {
                    tracing::info!(target: "ferrokube::spans", "spans are exported again");
                }
            }
            Err(error) => {
                self.exporter.buffer.count_dropped(batch.spans);
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::warn!(target: "ferrokube::spans", %error, "spans cannot be exported and are dropped");
                }
            }
        }
    }

    async fn deliver(&mut self, message: Vec<u8>) -> Result<u64, SendError> {
        for pause in PAUSES {
            match self.collector.send(message.clone()).await {
                Err(SendError::Again(_)) if !*self.stopped.borrow() => {}
                ended => return ended,
            }
            let mut stopped = self.stopped.clone();
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = stopped.wait_for(|stop| *stop) => {}
            }
        }
        self.collector.send(message).await
    }
}

#[cfg(test)]
mod tests;
