//! An etcd that answers, and takes its time.

use crate::proxy::Proxy;
use crate::{attach, attach_with, catch_up, config, etcds, soon, until_written};
use ferrokube_storage::Prefix;
use ferrokube_storage::testing::{key, text, write};
use std::sync::Arc;
use std::time::Duration;

/// For how long bytes are kept at most, in each direction.
const DELAY: Duration = Duration::from_millis(300);
const WRITES: usize = 6;

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_etcd_loses_and_repeats_nothing() {
    for (etcd, _directory) in etcds() {
        // The only member would be left if it were not up yet.
        drop(attach(&etcd).await);
        let proxy = Arc::new(Proxy::new(&etcd.url()).await);
        let store = attach_with(&config(&proxy.url())).await;
        let prefix = Prefix::new("configmaps").unwrap();
        let mut watch = store.watch(&prefix, store.revision()).unwrap();
        let slow = Arc::clone(&proxy);
        let slowness = tokio::spawn(async move {
            loop {
                slow.hold();
                tokio::time::sleep(DELAY).await;
                slow.heal();
                tokio::time::sleep(DELAY / 30).await;
            }
        });
        let object = key("configmaps", "ns", "a");
        let mut revisions = Vec::new();
        for number in 0..WRITES {
            let value = number.to_string();
            revisions.push(until_written(&store, || write(&object, &value)).await);
            catch_up(&store).await;
            assert_eq!(text(&store.get(&object).unwrap()), value, "read at once");
        }
        slowness.abort();
        proxy.heal();
        let mut seen = Vec::new();
        while seen.len() < WRITES {
            let events = soon(watch.next(10)).await.unwrap();
            seen.extend(events.iter().map(|event| event.revision()));
        }
        assert_eq!(seen, revisions, "each once");
    }
}
