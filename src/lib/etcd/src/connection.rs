//! Connections to the members of an etcd cluster: one member at a time, the next after a failure.

use crate::channel::Http2Channel;
use crate::proto::{
    CompactionRequest, CompactionResponse, EtcdWatchRequest, LeaseGrantRequest, LeaseGrantResponse,
    RangeRequest, RangeResponse, ResponseHeader, StatusRequest, StatusResponse, TxnRequest,
    TxnResponse, WatchResponse,
};
use crate::remembered::Remembered;
use crate::tls;
use ferrokube_trace::{append_causes, sources};
use futures::Stream;
use http::Uri;
use http::uri::PathAndQuery;
use parking_lot::RwLock;
use prost::Message;
use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tonic::client::Grpc;
use tonic::metadata::MetadataValue;
use tonic::{Code, ConnectError, Request, Status, Streaming};
use tonic_prost::ProstCodec;

/// Limit of a call. Longer than etcd's own (some 5 s plus an election).
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Limit of a probe, all members together; of one of them at least [`MIN_PROBE`].
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);
const MIN_PROBE: Duration = Duration::from_secs(1);
/// Largest response: a page of the largest objects.
const MAX_RESPONSE: usize = 2 << 30;

/// Endpoints and settings of etcd.
#[derive(Clone)]
pub struct EtcdConfig {
    /// URLs of the members' client ports.
    pub servers: Vec<String>,
    /// Prefix of all keys, `/registry` by default.
    pub prefix: String,
    /// Resources with another path in etcd than in the store: both paths, as `/<resource>/`.
    pub renamed: &'static [(&'static str, &'static str)],
    /// For `https` URLs.
    pub tls: EtcdTls,
    /// Time between compactions; zero: none from here.
    pub compaction_interval: Duration,
    /// Source of [`Self::tls`], read once a second; `None`: it never changes.
    pub tls_source: Option<EtcdTlsSource>,
    /// File in which the highest revision seen outlives the process; `None`: a restart forgets it.
    pub remembered: Option<PathBuf>,
}

impl EtcdConfig {
    /// The checks that need no connection, for a start that has opened nothing yet.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.servers.is_empty() {
            return Err(ConfigError::NoServers);
        }
        let prefix = self.prefix.as_str();
        if !prefix.starts_with('/') || prefix.ends_with('/') || prefix.contains('\0') {
            return Err(ConfigError::Prefix(prefix.to_owned()));
        }
        self.servers.iter().try_for_each(|url| channel(url, &self.tls).map(drop))
    }
}

/// Reads certificates. The error says why they cannot be used.
pub type EtcdTlsSource = Arc<dyn Fn() -> Result<EtcdTls, String> + Send + Sync>;

/// Contents of PEM files.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct EtcdTls {
    /// Authorities of the servers' certificates.
    pub ca: Option<Vec<u8>>,
    /// Client certificate and its key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// An invalid configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The list of URLs is empty.
    #[error("no etcd server is given")]
    NoServers,
    /// A server's URL.
    #[error("{0:?} is no http or https URL of an etcd server")]
    Url(String),
    /// `https` without authorities.
    #[error("https to etcd needs the certificate authority of its servers: set --etcd-cafile")]
    NoAuthority,
    /// `http` with a client certificate, which would never be sent.
    #[error("a client certificate for etcd needs https")]
    UnusedCertificate,
    /// The prefix is empty or has no slash at its start.
    #[error(
        "--etcd-prefix {0:?} is no prefix of keys in etcd: it starts with a slash and does not end with one"
    )]
    Prefix(String),
    /// The file of [`EtcdConfig::remembered`].
    #[error("cannot read what was seen of etcd before, from {path}; etcd's state is not in it")]
    Remembered {
        /// As configured.
        path: String,
        /// Reason.
        source: io::Error,
    },
    /// The certificates cannot be used.
    #[error("the certificates for etcd cannot be used")]
    Tls(#[source] Box<dyn Error + Send + Sync>),
}

/// Connections that are made when needed.
///
/// All replies must come from one cluster, whose revisions do not go back: a member of another
/// cluster or one restored from a backup would take writes on a state that no client has seen.
/// After such a reply every call fails, and nothing is acknowledged.
pub(crate) struct EtcdConnection {
    members: Vec<Member>,
    current: AtomicUsize,
    /// Cluster id of the first reply; 0: none yet.
    cluster: AtomicU64,
    /// Highest revision seen.
    seen: AtomicI64,
    /// Why this etcd is refused.
    refused: OnceLock<String>,
    remembered: Option<PathBuf>,
}

struct Member {
    url: String,
    /// For new connections; calls in flight keep theirs.
    channel: RwLock<Http2Channel>,
    /// Scheme and host of requests.
    origin: Uri,
    /// Whether it has replied as a member of this cluster since it last failed.
    is_known: AtomicBool,
}

impl EtcdConnection {
    pub(crate) fn new(config: &EtcdConfig) -> Result<Self, ConfigError> {
        config.check()?;
        let members = config.servers.iter().map(|url| Member::new(url, &config.tls));
        let before = match &config.remembered {
            Some(path) => Remembered::read(path).map_err(|source| ConfigError::Remembered {
                path: path.display().to_string(),
                source,
            })?,
            None => Remembered::default(),
        };
        Ok(Self {
            members: members.collect::<Result<_, _>>()?,
            current: AtomicUsize::default(),
            cluster: before.cluster.into(),
            seen: before.revision.into(),
            refused: OnceLock::new(),
            remembered: config.remembered.clone(),
        })
    }

    /// The state to remember for the next start.
    pub(crate) fn to_remember(&self) -> Remembered {
        let revision = self.seen.load(Ordering::Acquire);
        Remembered { cluster: self.cluster.load(Ordering::Acquire), revision }
    }

    /// Why this etcd is refused, if it is.
    pub(crate) fn refused(&self) -> Option<&str> {
        self.refused.get().map(String::as_str)
    }

    /// Highest revision seen.
    pub(crate) fn seen(&self) -> i64 {
        self.seen.load(Ordering::Acquire)
    }

    /// Records a revision seen by the feed.
    pub(crate) fn saw(&self, revision: i64) {
        self.seen.fetch_max(revision, Ordering::AcqRel);
    }

    /// Checks that a reply is from the cluster.
    pub(crate) fn check_cluster(&self, header: &ResponseHeader) -> Result<(), Status> {
        let order = Ordering::AcqRel;
        match self.cluster.compare_exchange(0, header.cluster_id, order, Ordering::Acquire) {
            Err(cluster) if cluster != header.cluster_id => {
                Err(self.refuse("this is another etcd cluster than before".to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// Checks a linearizable reply to a call that began when `seen` was the highest revision.
    fn check(&self, header: Option<&ResponseHeader>, seen: i64) -> Result<(), Status> {
        let header = header.ok_or_else(|| Status::internal("a reply without a header"))?;
        self.check_cluster(header)?;
        let now = header.revision;
        if now < seen {
            return Err(self.refuse(format!(
                "revisions went back from {seen} to {now}: etcd was restored from a backup"
            )));
        }
        self.saw(now);
        Ok(())
    }

    fn refuse(&self, mut why: String) -> Status {
        if let Some(path) = &self.remembered {
            let path = path.display();
            why.push_str(&format!("; to accept its state, remove {path} and start again"));
        }
        Status::data_loss(self.refused.get_or_init(|| why).as_str())
    }

    /// New connections use these certificates.
    pub(crate) fn renew(&self, tls: &EtcdTls) -> Result<(), ConfigError> {
        let channels = self.members.iter().map(|member| channel(&member.url, tls));
        let channels = channels.collect::<Result<Vec<_>, _>>()?;
        for (member, channel) in self.members.iter().zip(channels) {
            *member.channel.write() = channel;
        }
        Ok(())
    }

    fn current(&self) -> (usize, &Member) {
        let index = self.current.load(Ordering::Relaxed) % self.members.len();
        (index, &self.members[index])
    }

    /// URL of the member in use.
    pub(crate) fn url(&self) -> &str {
        &self.current().1.url
    }

    /// Uses the next member from now on, unless another caller has moved on already.
    fn leave(&self, index: usize) {
        // What comes back there may be another cluster, such as one restored from a backup.
        self.members[index].is_known.store(false, Ordering::Release);
        let next = (index + 1) % self.members.len();
        let order = Ordering::Relaxed;
        let _ = self.current.compare_exchange(index, next, order, order);
    }

    async fn call<Q, A>(&self, path: &'static str, request: Q) -> Result<A, Status>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        self.call_within(CALL_TIMEOUT, path, request).await
    }

    async fn call_within<Q, A>(
        &self,
        limit: Duration,
        path: &'static str,
        request: Q,
    ) -> Result<A, Status>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        self.call_at(self.current().0, limit, path, request).await
    }

    /// Calls a member, whichever is in use.
    async fn call_at<Q, A>(
        &self,
        index: usize,
        limit: Duration,
        path: &'static str,
        request: Q,
    ) -> Result<A, Status>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        if let Some(why) = self.refused.get() {
            return Err(Status::data_loss(why.as_str()));
        }
        let mut grpc = self.members[index].grpc();
        let call = async {
            grpc.ready().await.map_err(Status::from_error)?;
            let path = PathAndQuery::from_static(path);
            let codec = ProstCodec::<Q, A>::default();
            grpc.unary(with_leader(request), path, codec).await.map(tonic::Response::into_inner)
        };
        let outcome = tokio::time::timeout(limit, call).await;
        let outcome = outcome.unwrap_or_else(|_| Err(Status::deadline_exceeded("no reply")));
        outcome.inspect_err(|status| {
            if is_member_at_fault(status) {
                self.leave(index);
            }
        })
    }

    async fn range_at(
        &self,
        index: usize,
        limit: Duration,
        request: RangeRequest,
    ) -> Result<RangeResponse, Status> {
        let seen = self.seen.load(Ordering::Acquire);
        let response: RangeResponse =
            self.call_at(index, limit, "/etcdserverpb.KV/Range", request).await?;
        self.check(response.header.as_ref(), seen).map(|()| response)
    }

    pub(crate) async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Status> {
        self.range_within(CALL_TIMEOUT, request).await
    }

    /// [`Self::range`] with a limit of its own.
    pub(crate) async fn range_within(
        &self,
        limit: Duration,
        request: RangeRequest,
    ) -> Result<RangeResponse, Status> {
        self.range_at(self.current().0, limit, request).await
    }

    /// A range from the first member that replies soon.
    pub(crate) async fn probe(&self, request: RangeRequest) -> Result<RangeResponse, Status> {
        self.first_reply(request).await.map(|(_, response)| response)
    }

    async fn first_reply(&self, request: RangeRequest) -> Result<(usize, RangeResponse), Status> {
        let members = u32::try_from(self.members.len()).unwrap_or(u32::MAX);
        let limit = (PROBE_TIMEOUT / members).max(MIN_PROBE);
        let mut left = members;
        loop {
            left -= 1;
            let (index, member) = self.current();
            match self.range_at(index, limit, request.clone()).await {
                Err(status) if left > 0 && is_member_at_fault(&status) => self.leave(index),
                Err(status) => return Err(status),
                Ok(response) => {
                    member.is_known.store(true, Ordering::Release);
                    return Ok((index, response));
                }
            }
        }
    }

    /// A transaction. Only sent to a member known to belong to this cluster.
    pub(crate) async fn txn(&self, request: TxnRequest) -> Result<TxnResponse, Status> {
        let (mut index, member) = self.current();
        if !member.is_known.load(Ordering::Acquire) {
            let nothing = RangeRequest {
                key: b"\0".as_slice().into(),
                keys_only: true,
                ..Default::default()
            };
            let replied = self.first_reply(nothing).await.map_err(|status| match status.code() {
                Code::DataLoss => status,
                _ => Status::from_error(Box::new(ConnectError(status.into()))),
            });
            (index, _) = replied?;
        }
        let seen = self.seen.load(Ordering::Acquire);
        let response: TxnResponse =
            self.call_at(index, CALL_TIMEOUT, "/etcdserverpb.KV/Txn", request).await?;
        self.check(response.header.as_ref(), seen).map(|()| response)
    }

    pub(crate) async fn compact(
        &self,
        request: CompactionRequest,
    ) -> Result<CompactionResponse, Status> {
        self.call("/etcdserverpb.KV/Compact", request).await
    }

    pub(crate) async fn grant(
        &self,
        request: LeaseGrantRequest,
    ) -> Result<LeaseGrantResponse, Status> {
        self.call("/etcdserverpb.Lease/LeaseGrant", request).await
    }

    pub(crate) async fn time_left(
        &self,
        request: crate::proto::LeaseTimeToLiveRequest,
    ) -> Result<crate::proto::LeaseTimeToLiveResponse, Status> {
        self.call("/etcdserverpb.Lease/LeaseTimeToLive", request).await
    }

    /// Number of the member in use.
    pub(crate) fn member(&self) -> usize {
        self.current().0
    }

    /// The member's version, id and revision, without a quorum.
    pub(crate) async fn status(&self, member: usize) -> Result<StatusResponse, Status> {
        let path = "/etcdserverpb.Maintenance/Status";
        self.call_at(member, CALL_TIMEOUT, path, StatusRequest {}).await
    }

    /// Starts a stream of watches at a member. `requests` must have one already: etcd answers no
    /// earlier.
    pub(crate) async fn watch(
        &self,
        member: usize,
        requests: impl Stream<Item = EtcdWatchRequest> + Send + 'static,
    ) -> Result<MemberWatch, Status> {
        let mut grpc = self.members[member].grpc();
        let call = async {
            grpc.ready().await.map_err(Status::from_error)?;
            let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
            let codec = ProstCodec::<EtcdWatchRequest, WatchResponse>::default();
            grpc.streaming(with_leader(requests), path, codec).await
        };
        let outcome = tokio::time::timeout(CALL_TIMEOUT, call).await;
        let outcome = outcome.unwrap_or_else(|_| Err(Status::deadline_exceeded("no reply")));
        match outcome {
            Ok(response) => Ok(MemberWatch { member, responses: response.into_inner() }),
            Err(status) => {
                self.leave(member);
                Err(status)
            }
        }
    }

    /// Switches away from the member whose watch ended, unless another caller has already.
    pub(crate) fn leave_member(&self, watch: &MemberWatch) {
        self.leave(watch.member);
    }
}

/// A stream of watches at one member.
pub(crate) struct MemberWatch {
    member: usize,
    pub(crate) responses: Streaming<WatchResponse>,
}

/// Checks a server's URL, without connecting.
///
/// # Errors
/// [`ConfigError::Url`].
pub fn check_url(url: &str) -> Result<(), ConfigError> {
    origin(url).map(drop)
}

/// Scheme and host of a server's URL.
fn origin(url: &str) -> Result<Uri, ConfigError> {
    let wrong = || ConfigError::Url(url.to_owned());
    if !url.starts_with("http://") && !url.starts_with("https://") {
        return Err(wrong());
    }
    let origin: Uri = url.trim_end_matches('/').parse().map_err(|_| wrong())?;
    let is_right = origin.authority().is_some_and(|authority| {
        let (text, host) = (authority.as_str(), authority.host());
        // A URI may have any text as its port; a client would silently take that of the scheme.
        let has_port = authority.port_u16().is_some_and(|port| port > 0);
        !host.is_empty() && !text.contains('@') && (has_port || text == host)
    });
    if !is_right {
        return Err(wrong());
    }
    // Calls have paths of their own.
    let mut parts = origin.into_parts();
    parts.path_and_query = Some(PathAndQuery::from_static("/"));
    Uri::from_parts(parts).map_err(|_| wrong())
}

/// Connects when first used.
fn channel(url: &str, tls: &EtcdTls) -> Result<Http2Channel, ConfigError> {
    let origin = origin(url)?;
    let connector = if url.starts_with("https://") {
        Some(tls::connector(tls)?)
    } else if tls.identity.is_some() {
        return Err(ConfigError::UnusedCertificate);
    } else {
        None
    };
    Http2Channel::new(&origin, connector).map_err(|_| ConfigError::Url(url.to_owned()))
}

impl Member {
    fn new(url: &str, tls: &EtcdTls) -> Result<Self, ConfigError> {
        let (origin, channel) = (origin(url)?, channel(url, tls)?);
        let url = url.trim_end_matches('/');
        if url.starts_with("http://") && !is_local(origin.host().unwrap_or_default()) {
            tracing::warn!(url, "all state, secrets included, goes to etcd unencrypted");
        }
        Ok(Self {
            url: url.to_owned(),
            channel: RwLock::new(channel),
            origin,
            is_known: AtomicBool::default(),
        })
    }

    fn grpc(&self) -> Grpc<Http2Channel> {
        Grpc::with_origin(self.channel.read().clone(), self.origin.clone())
            .max_decoding_message_size(MAX_RESPONSE)
            .max_encoding_message_size(MAX_RESPONSE)
    }
}

fn is_local(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost"
        || address.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
}

/// A member without a leader then fails immediately instead of serving stale data.
fn with_leader<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    request
}

fn is_member_at_fault(status: &Status) -> bool {
    use Code::{Cancelled, DeadlineExceeded, Internal, Unavailable, Unknown};
    matches!(status.code(), Unavailable | DeadlineExceeded | Unknown | Cancelled | Internal)
        || is_of_learner(status)
}

/// Whether a member refused a call, unread, as it is a learner. The code differs between versions
/// of etcd.
pub(crate) fn is_of_learner(status: &Status) -> bool {
    status.message().ends_with("not supported for learner")
}

/// Whether etcd itself rejected a call. Other statuses come from this client or a proxy when a
/// connection breaks: whatever their code, the call may have been applied.
pub(crate) fn is_of_etcd(status: &Status) -> bool {
    // The second: the call is too large for the server to read.
    ["etcdserver: ", "grpc: received message larger"]
        .iter()
        .any(|start| status.message().starts_with(start))
}

/// Whether a call was certainly not sent, as there was no connection. Kinds of IO errors cannot
/// show that: a connection on which a call was sent can end with any of them, such as "host
/// unreachable".
pub(crate) fn is_unsent(status: &Status) -> bool {
    sources(status).any(|cause| cause.is::<ConnectError>())
}

/// A failed call for operators, with causes that its message omits, such as certificate errors.
pub(crate) fn reason(url: &str, status: &Status) -> String {
    let message = status.message();
    let what = if message.is_empty() { status.code().description() } else { message };
    let mut text = format!("{url}: {what}");
    let causes = sources(status).filter(|cause| cause.to_string() != "transport error");
    append_causes(&mut text, causes, usize::MAX);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Error, ErrorKind};

    #[test]
    fn codes_of_broken_connections_are_not_of_etcd() {
        let full = Status::resource_exhausted("etcdserver: mvcc: database space exceeded");
        assert!(is_of_etcd(&full));
        let large = Status::resource_exhausted("grpc: received message larger than max (3 vs. 2)");
        assert!(is_of_etcd(&large));
        // The code that gRPC gives to a connection that its peer ends for too many pings.
        assert!(!is_of_etcd(&Status::resource_exhausted("h2 protocol error: http2 error")));
        assert!(!is_of_etcd(&Status::permission_denied("mapped from HTTP status code 403")));
    }

    #[test]
    fn urls_have_a_host_and_no_port_or_one_that_is_a_number() {
        for url in ["http://a", "https://a:2379/", "http://127.0.0.1:1", "http://[::1]:2379"] {
            assert!(check_url(url).is_ok(), "{url}");
        }
        assert_eq!(origin("http://a:2379/path?query").unwrap(), "http://a:2379/");
        for url in [
            "127.0.0.1:2379",
            "ftp://a:2379",
            "http://",
            "http://a:2379x",
            "http://a:",
            "http://a:0",
            "http://a:65536",
            "http://[::1]:x",
            "http://user@a:2379",
            "http://a b",
        ] {
            let refused = check_url(url);
            assert!(matches!(&refused, Err(ConfigError::Url(found)) if found == url), "{url}");
        }
    }

    /// A learner serves nothing, the other members do.
    #[test]
    fn a_learner_is_left() {
        const REFUSAL: &str = "etcdserver: rpc not supported for learner";
        assert!(is_member_at_fault(&Status::unavailable(REFUSAL)));
        assert!(is_member_at_fault(&Status::failed_precondition(REFUSAL)));
        let refused = Status::failed_precondition("etcdserver: role is not granted to the user");
        assert!(!is_member_at_fault(&refused));
    }

    /// Linux ends an established connection with these, too, after an ICMP message.
    #[test]
    fn a_broken_connection_may_have_delivered_the_call() {
        for kind in [
            ErrorKind::ConnectionRefused,
            ErrorKind::HostUnreachable,
            ErrorKind::NetworkUnreachable,
            ErrorKind::ConnectionReset,
        ] {
            assert!(!is_unsent(&Status::from_error(Box::new(Error::from(kind)))), "{kind}");
            let connecting = ConnectError(Box::new(Error::from(kind)));
            assert!(is_unsent(&Status::from_error(Box::new(connecting))), "{kind}");
        }
    }
}
