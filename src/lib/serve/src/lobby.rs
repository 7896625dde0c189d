//! The lobby: connections without a first request, or with an unfinished large head, whose
//! users are not known yet. Dedicated threads poll them at low priority: in the runtime, a burst of
//! a thousand handshakes would delay every request by their sum, and at equal priority the threads
//! would compete with the runtime's.

use crate::activity::Activity;
use parking_lot::Mutex;
use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;

/// Connections that are polled at a time (up to 0.5 ms each).
const LOBBY_THREADS: usize = 2;
/// Added to the `nice` value of these threads: they get half the time of a worker on the same core.
/// More would keep new connections waiting on a busy machine.
const LOBBY_NICE: i32 = 3;

thread_local! {
    static IS_LOBBY: Cell<bool> = const { Cell::new(false) };
}

/// The threads that poll the lobbies of all listeners.
#[derive(Clone, Copy)]
pub(crate) struct Lobby(&'static Runtime);

impl Lobby {
    pub(crate) fn open() -> io::Result<Self> {
        static THREADS: Mutex<Option<&'static Runtime>> = Mutex::new(None);
        let mut opened = THREADS.lock();
        if let Some(threads) = *opened {
            return Ok(Self(threads));
        }
        let threads = Builder::new_multi_thread()
            .worker_threads(LOBBY_THREADS)
            .thread_name("lobby")
            .on_thread_start(|| {
                IS_LOBBY.set(true);
                // Best effort: handshakes compete with requests without it. Linux has priorities
                // of threads, not of processes.
                #[cfg(target_os = "linux")]
                let _ = rustix::process::nice(LOBBY_NICE);
            })
            .build()?;
        Ok(Self(opened.insert(Box::leak(Box::new(threads)))))
    }

    /// Whether the current thread polls connections of the lobby.
    pub(crate) fn is_here() -> bool {
        IS_LOBBY.get()
    }
}

/// Polls a connection, off the runtime as long as it [is in the lobby](Activity::is_in_lobby).
pub(crate) struct InLobby<F: Future> {
    lobby: Lobby,
    activity: Arc<Activity>,
    connection: Arc<Polled<F>>,
    /// While it is in the lobby: resolves when it leaves, or with its output.
    visit: Option<JoinHandle<Option<F::Output>>>,
}

/// A connection; `None` after the end. Dropping it waits for a poll in the lobby.
type Polled<F> = Mutex<Option<Pin<Box<F>>>>;

impl<F> InLobby<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    pub(crate) fn new(lobby: Lobby, activity: Arc<Activity>, connection: F) -> Self {
        let connection = Arc::new(Mutex::new(Some(Box::pin(connection))));
        Self { lobby, activity, connection, visit: None }
    }

    fn enter(&self) -> JoinHandle<Option<F::Output>> {
        let (activity, connection) = (Arc::clone(&self.activity), Arc::clone(&self.connection));
        // Its tasks and timers are the runtime's.
        let runtime = Handle::current();
        self.lobby.0.spawn(poll_fn(move |task| {
            let mut held = connection.lock();
            let Some(connection) = held.as_mut() else { return Poll::Ready(None) };
            let _entered = runtime.enter();
            match connection.as_mut().poll(task) {
                Poll::Ready(output) => {
                    *held = None;
                    Poll::Ready(Some(output))
                }
                Poll::Pending if activity.is_in_lobby() => Poll::Pending,
                Poll::Pending => Poll::Ready(None),
            }
        }))
    }
}

impl<F> Future for InLobby<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<F::Output> {
        loop {
            if let Some(visit) = &mut self.visit {
                let left = ready!(Pin::new(visit).poll(task));
                self.visit = None;
                match left {
                    Ok(Some(output)) => return Poll::Ready(output),
                    Ok(None) => {}
                    Err(error) => std::panic::resume_unwind(error.into_panic()),
                }
            }
            if !self.activity.is_in_lobby() {
                let mut held = self.connection.lock();
                let connection = held.as_mut().expect("polled until its end");
                return connection.as_mut().poll(task);
            }
            self.visit = Some(self.enter());
        }
    }
}

impl<F: Future> Drop for InLobby<F> {
    fn drop(&mut self) {
        if let Some(visit) = &self.visit {
            visit.abort();
        }
        self.connection.lock().take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::held::Holdings;
    use std::time::Duration;

    fn new_activity() -> Arc<Activity> {
        Activity::new(Holdings::new(0))
    }

    #[tokio::test]
    async fn fault_38_connections_without_a_request_are_polled_by_threads_of_the_lobby() {
        let activity = new_activity();
        let polled = Arc::clone(&activity);
        let connection = async move {
            let mut sites = vec![Lobby::is_here()];
            // The lobby has no timers.
            tokio::time::sleep(Duration::from_millis(1)).await;
            sites.push(Lobby::is_here());
            sites.push(
                tokio::spawn(async { Lobby::is_here() }).await.expect("a task of the runtime"),
            );
            let request = polled.begin();
            tokio::task::yield_now().await;
            sites.push(Lobby::is_here());
            drop(request);
            tokio::task::yield_now().await;
            sites.push(Lobby::is_here());
            assert!(polled.note_large_head() && !polled.note_large_head());
            tokio::task::yield_now().await;
            sites.push(Lobby::is_here());
            let _request = polled.begin();
            tokio::task::yield_now().await;
            sites.push(Lobby::is_here());
            sites
        };
        let lobby = Lobby::open().expect("threads start");
        let sites = InLobby::new(lobby, activity, connection).await;
        assert_eq!(sites, [true, true, false, false, false, true, false]);
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn fault_38_threads_of_the_lobby_have_a_low_priority() {
        let nice = || rustix::process::getpriority_process(None).expect("has a priority");
        let lobby = Lobby::open().expect("threads start");
        let polled = InLobby::new(lobby, new_activity(), async move { nice() }).await;
        assert_eq!(polled, (nice() + LOBBY_NICE).min(19));
    }

    #[tokio::test]
    async fn a_dropped_connection_has_ended() {
        let owned = Arc::new(());
        let held = Arc::clone(&owned);
        let lobby = Lobby::open().expect("threads start");
        let mut connection = InLobby::new(lobby, new_activity(), async move {
            std::future::pending::<()>().await;
            drop(held);
        });
        assert!(futures::poll!(&mut connection).is_pending());
        drop(connection);
        assert_eq!(Arc::strong_count(&owned), 1);
    }

    #[tokio::test]
    async fn a_panic_in_the_lobby_is_the_connections() {
        let lobby = Lobby::open().expect("threads start");
        let connection = InLobby::new(lobby, new_activity(), async { panic!("of a test") });
        assert!(tokio::spawn(connection).await.expect_err("panics").is_panic());
    }
}
