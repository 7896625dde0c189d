//! The lobby: connections without a first request, or with an unfinished large head; nobody is
//! known to use them yet. A few are polled at a time. The others wait in a queue of their own
//! instead of the runtime's, where a burst of a thousand would delay every request by the sum of
//! their handshakes.

use crate::activity::Activity;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Connections that are polled at a time (up to 0.5 ms each).
pub(crate) const LOBBY_POLLS: usize = 2;

/// Polls a connection, with a permit as long as it [is in the lobby](Activity::is_in_lobby).
pub(crate) struct InLobby<F> {
    lobby: Arc<Semaphore>,
    activity: Arc<Activity>,
    waiting: Option<Pin<Box<dyn Future<Output = Permit> + Send>>>,
    connection: Pin<Box<F>>,
}

/// `None` is never: the semaphore stays open.
type Permit = Option<OwnedSemaphorePermit>;

impl<F> InLobby<F> {
    pub(crate) fn new(lobby: &Arc<Semaphore>, activity: Arc<Activity>, connection: F) -> Self {
        let (lobby, connection) = (Arc::clone(lobby), Box::pin(connection));
        Self { lobby, activity, waiting: None, connection }
    }

    fn poll_permit(&mut self, task: &mut Context<'_>) -> Poll<Permit> {
        let lobby = Arc::clone(&self.lobby);
        let waiting = match &mut self.waiting {
            Some(waiting) => waiting,
            None => match Arc::clone(&lobby).try_acquire_owned() {
                Ok(permit) => return Poll::Ready(Some(permit)),
                Err(_) => self.waiting.insert(Box::pin(async { lobby.acquire_owned().await.ok() })),
            },
        };
        let permit = ready!(waiting.as_mut().poll(task));
        self.waiting = None;
        Poll::Ready(permit)
    }
}

impl<F: Future> Future for InLobby<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<F::Output> {
        if !self.activity.is_in_lobby() {
            return self.connection.as_mut().poll(task);
        }
        let permit = ready!(self.poll_permit(task));
        self.activity.enter_lobby(permit);
        // Also if the poll panics.
        let _left = LeftLobby(Arc::clone(&self.activity));
        self.connection.as_mut().poll(task)
    }
}

/// Returns the permit when the poll ends.
struct LeftLobby(Arc<Activity>);

impl Drop for LeftLobby {
    fn drop(&mut self) {
        self.0.leave_lobby();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::task::Waker;

    #[test]
    fn fault_38_connections_without_a_request_are_polled_a_few_at_a_time() {
        let lobby = Arc::new(Semaphore::new(LOBBY_POLLS));
        let polls = Cell::new(0);
        let poll = |connection: Pin<&mut dyn Future<Output = ()>>| {
            let before = polls.get();
            let _ = connection.poll(&mut Context::from_waker(Waker::noop()));
            polls.get() > before
        };
        let activities: Vec<Arc<Activity>> =
            std::iter::repeat_with(|| Activity::new(crate::held::Holdings::new(0)))
                .take(3)
                .collect();
        let mut all: Vec<Pin<Box<dyn Future<Output = ()>>>> = activities
            .iter()
            .map(|activity| {
                let polled = std::future::poll_fn(|_| {
                    polls.set(polls.get() + 1);
                    Poll::Pending
                });
                Box::pin(InLobby::new(&lobby, Arc::clone(activity), polled)) as _
            })
            .collect();
        let held: Vec<_> =
            (0..LOBBY_POLLS).map(|_| Arc::clone(&lobby).try_acquire_owned()).collect();
        assert!(!all.iter_mut().any(|it| poll(it.as_mut())), "all permits are taken");
        drop(held);
        assert!(!poll(all[2].as_mut()), "others wait for longer");
        assert!(poll(all[0].as_mut()) && poll(all[1].as_mut()), "each leaves its permit at once");
        assert!(poll(all[2].as_mut()));
        assert_eq!(lobby.available_permits(), LOBBY_POLLS);

        let held: Vec<_> =
            (0..LOBBY_POLLS).map(|_| Arc::clone(&lobby).try_acquire_owned()).collect();
        let request = activities[0].begin();
        assert!(poll(all[0].as_mut()), "it has a request");
        drop(request);
        assert!(activities[0].note_large_head() && !activities[0].note_large_head());
        assert!(!poll(all[0].as_mut()), "nobody knows whose head that is");
        let _request = activities[0].begin();
        drop(held);
        assert!(poll(all[0].as_mut()));
    }

    /// A request may compute for long in the poll in which it begins.
    #[test]
    fn fault_38_a_request_keeps_no_permit_of_the_lobby() {
        let lobby = Arc::new(Semaphore::new(1));
        let activity = Activity::new(crate::held::Holdings::new(0));
        let connection = async {
            assert_eq!(lobby.available_permits(), 0);
            let _request = activity.begin();
            assert_eq!(lobby.available_permits(), 1);
        };
        let mut polled = std::pin::pin!(InLobby::new(&lobby, Arc::clone(&activity), connection));
        assert!(polled.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
    }
}
