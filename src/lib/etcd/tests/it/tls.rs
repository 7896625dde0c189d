//! etcd behind TLS: certificates that are wrong, missing, expired, or of another name.

use crate::{attach_with, catch_up, config, soon, until_written};
use ferrokube_etcd::testing::EtcdProcess;
use ferrokube_etcd::{Etcd, EtcdConfig, EtcdTls, MigratedEtcd};
use ferrokube_pki::{Pair, Pki, Subject};
use ferrokube_storage::remote::{FeedItem, RemoteEngine};
use ferrokube_storage::testing::{commit, create, key, text, write};
use ferrokube_storage::{CommitError, Prefix};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const CLIENT: Subject<'static> = Subject { common_name: "ferrokube", organizations: &[] };

/// The authorities of an etcd, and the files that it reads at each handshake.
struct Authorities {
    pki: Pki,
    directory: PathBuf,
}

impl Authorities {
    fn new(directory: &Path) -> Self {
        let directory = directory.join("pki");
        Self { pki: Pki::open(&directory).unwrap(), directory }
    }

    /// A serving certificate; one without lifetime has expired.
    fn serving(&self, name: &str, lifetime: Duration) -> Pair {
        self.pki.clone().with_lifetime(lifetime).serving(&[name.to_owned()]).unwrap()
    }

    fn client(&self, lifetime: Duration) -> (Vec<u8>, Vec<u8>) {
        let pair = self.pki.client(&CLIENT, lifetime).unwrap();
        (pair.chain_pem.into(), pair.key_pem.into())
    }

    fn install(&self, pair: &Pair) {
        std::fs::write(self.directory.join("etcd.crt"), &pair.chain_pem).unwrap();
        std::fs::write(self.directory.join("etcd.key"), &pair.key_pem).unwrap();
    }

    /// An etcd that demands client certificates.
    fn start(&self, executable: &Path, pair: &Pair) -> EtcdProcess {
        self.install(pair);
        let file = |name: &str| self.directory.join(name).display().to_string();
        let flags = [
            format!("--cert-file={}", file("etcd.crt")),
            format!("--key-file={}", file("etcd.key")),
            format!("--trusted-ca-file={}", file("client-ca.crt")),
            "--client-cert-auth=true".to_owned(),
            // It would need a client certificate, too.
            "--enable-grpc-gateway=false".to_owned(),
        ];
        EtcdProcess::start_with(executable, &self.directory.join("etcd"), "https", &flags)
    }

    fn tls(&self) -> EtcdTls {
        let ca = Some(self.pki.ca_pem().as_bytes().to_vec());
        EtcdTls { ca, identity: Some(self.client(HOUR)) }
    }
}

/// After this, what was issued without a lifetime has expired: certificates have whole seconds.
const EXPIRY: Duration = Duration::from_millis(1100);
const HOUR: Duration = Duration::from_secs(3600);

/// Waits until the feed names a reason. Not each attempt does: etcd may close the connection before
/// its alert is read.
async fn refused_for(etcd: &EtcdProcess, tls: EtcdTls, words: &str) {
    let engine = Etcd::new(&EtcdConfig { tls, ..config(&etcd.url()) }).unwrap();
    let mut feed = engine.open();
    soon(async {
        loop {
            match feed.next().await {
                FeedItem::Lost(why) if why.contains(words) => {
                    return assert!(why.contains(&etcd.url()), "{why}");
                }
                FeedItem::Lost(_) => {}
                item => panic!("it is trusted: {item:?}"),
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_that_are_wrong_are_named() {
    for executable in EtcdProcess::executables() {
        let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [own, stranger] = directories.each_ref().map(|it| Authorities::new(it.path()));
        let etcd = own.start(&executable, &own.serving("127.0.0.1", HOUR));
        let good = own.tls();
        let store = attach_with(&EtcdConfig { tls: good.clone(), ..config(&etcd.url()) }).await;
        commit(&store, create(&key("configmaps", "ns", "a"), "1")).await.unwrap();
        catch_up(&store).await;
        let expired = (own.client(Duration::ZERO), own.serving("127.0.0.1", Duration::ZERO));
        tokio::time::sleep(EXPIRY).await;
        for (tls, words) in [
            (EtcdTls { identity: None, ..good.clone() }, "alert"),
            (EtcdTls { identity: stranger.tls().identity, ..good.clone() }, "alert"),
            (EtcdTls { identity: Some(expired.0), ..good.clone() }, "alert"),
            (EtcdTls { ca: stranger.tls().ca, ..good.clone() }, "invalid peer certificate"),
        ] {
            refused_for(&etcd, tls, words).await;
        }
        for (pair, words) in
            [(own.serving("etcd.example", HOUR), "not valid for name"), (expired.1, "expired")]
        {
            own.install(&pair);
            refused_for(&etcd, good.clone(), words).await;
        }
        // Connections that are there go on.
        commit(&store, write(&key("configmaps", "ns", "a"), "2")).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_of_the_client_are_replaced_while_it_runs() {
    for executable in EtcdProcess::executables() {
        let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [first, second] = directories.each_ref().map(|it| Authorities::new(it.path()));
        let pair = first.serving("127.0.0.1", HOUR);
        let mut etcd = first.start(&executable, &pair);
        let files = Arc::new(Mutex::new((Ok(first.tls()), 0)));
        let source = Arc::clone(&files);
        let config = EtcdConfig {
            tls: first.tls(),
            tls_source: Some(Arc::new(move || {
                let mut files = source.lock().unwrap();
                files.1 += 1;
                files.0.clone()
            })),
            ..config(&etcd.url())
        };
        let store = attach_with(&config).await;
        let object = key("configmaps", "ns", "a");
        commit(&store, create(&object, "1")).await.unwrap();
        // It trusts only the other authority from now on, and has its certificate.
        let authority = |of: &Authorities| std::fs::read(of.directory.join("client-ca.crt"));
        std::fs::write(first.directory.join("client-ca.crt"), authority(&second).unwrap()).unwrap();
        first.install(&second.serving("127.0.0.1", HOUR));
        etcd.restart();
        soon(async {
            while store.trouble().is_none() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
        let mismatched = EtcdTls {
            identity: first
                .tls()
                .identity
                .zip(second.tls().identity)
                .map(|(one, other)| (one.0, other.1)),
            ..second.tls()
        };
        for unusable in [Err("they are being written".to_owned()), Ok(mismatched)] {
            *files.lock().unwrap() = (unusable, 0);
            soon(async {
                while files.lock().unwrap().1 < 2 {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            })
            .await;
            assert!(store.barrier().unwrap().await.is_err());
        }
        *files.lock().unwrap() = (Ok(second.tls()), 0);
        until_written(&store, || write(&object, "2")).await;
        soon(async { while store.barrier().unwrap().await.is_err() {} }).await;
        assert_eq!(text(&store.get(&object).unwrap()), "2");
    }
}

/// What is read first is the note of a migration, on a connection of its own.
#[tokio::test(flavor = "multi_thread")]
async fn certificates_that_are_replaced_before_the_first_connection_are_used() {
    for executable in EtcdProcess::executables() {
        let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [own, stranger] = directories.each_ref().map(|it| Authorities::new(it.path()));
        let etcd = own.start(&executable, &own.serving("127.0.0.1", HOUR));
        let files = Arc::new(Mutex::new(stranger.tls()));
        let source = Arc::clone(&files);
        let config = EtcdConfig {
            tls: stranger.tls(),
            tls_source: Some(Arc::new(move || Ok(source.lock().unwrap().clone()))),
            ..config(&etcd.url())
        };
        let engine = MigratedEtcd::new(&config).unwrap();
        let mut feed = engine.open();
        let refused = soon(feed.next()).await;
        assert!(matches!(refused, FeedItem::Lost(_)), "{refused:?}");
        *files.lock().unwrap() = own.tls();
        soon(async {
            loop {
                match feed.next().await {
                    FeedItem::State { is_last: true, .. } => return,
                    FeedItem::Lost(_) => {}
                    item => panic!("{item:?}"),
                }
            }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_15_a_certificate_that_expires_and_is_replaced_loses_nothing() {
    for executable in EtcdProcess::executables() {
        let directory = tempfile::tempdir().unwrap();
        let own = Authorities::new(directory.path());
        let mut etcd = own.start(&executable, &own.serving("127.0.0.1", HOUR));
        let store = attach_with(&EtcdConfig { tls: own.tls(), ..config(&etcd.url()) }).await;
        let prefix = Prefix::new("configmaps").unwrap();
        let object = key("configmaps", "ns", "a");
        let mut watch = store.watch(&prefix, store.revision()).unwrap();
        commit(&store, create(&object, "1")).await.unwrap();
        own.install(&own.serving("127.0.0.1", Duration::ZERO));
        tokio::time::sleep(EXPIRY).await;
        etcd.restart();
        let why = soon(async {
            loop {
                match store.trouble() {
                    Some(why) if why.contains("expired") => return why,
                    _ => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            }
        });
        assert!(why.await.contains(&etcd.url()));
        assert!(store.barrier().unwrap().await.is_err(), "reads fail closed");
        let refused = soon(commit(&store, write(&object, "2"))).await;
        assert!(matches!(refused, Err(CommitError::Unavailable(_))), "{refused:?}");
        own.install(&own.serving("127.0.0.1", HOUR));
        let last = until_written(&store, || write(&object, "3")).await;
        soon(async { while store.barrier().unwrap().await.is_err() {} }).await;
        let mut seen = Vec::new();
        while seen.last().is_none_or(|(revision, _)| *revision < last) {
            let events = soon(watch.next(10)).await.unwrap();
            seen.extend(events.iter().map(|event| (event.revision(), text(&event.entry))));
        }
        let texts: Vec<&str> = seen.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(texts, ["1", "3"]);
    }
}
