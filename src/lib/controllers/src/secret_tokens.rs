//! Fills secrets of type `kubernetes.io/service-account-token`, and deletes them with their
//! account.

use crate::queue::{Next, WorkQueue};
use crate::rest::{self, RequestOptions, code};
use crate::watching;
use ferrokube_client::cause;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::core::PartialObjectMeta;
use kube::discovery::ApiResource;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

const TYPE: &str = "kubernetes.io/service-account-token";
const ACCOUNT: &str = "kubernetes.io/service-account.name";
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";
const WORKERS: usize = 2;

/// Subject of a token, and the secret that will hold it.
#[derive(Clone, Copy, Debug)]
pub struct TokenSubject<'a> {
    /// Namespace of both.
    pub namespace: &'a str,
    /// Service account.
    pub account: &'a str,
    /// Uid of the service account.
    pub account_uid: &'a str,
    /// Name of the secret that will hold the token.
    pub secret: &'a str,
}

/// Signs a token; `None` if the key is unusable at present (which the signer logs), and the task is
/// retried.
pub type Sign = Arc<dyn Fn(&TokenSubject<'_>) -> Option<String> + Send + Sync>;

/// Signing and naming functions, provided by the owner of the keys and of the API's rules.
#[derive(Clone)]
pub struct Signer {
    /// Signs a token.
    pub sign: Sign,
    /// Whether a service account may have this name. Protects paths from arbitrary client input.
    pub is_account: fn(&str) -> bool,
}

/// Namespace and name.
type Name = (String, String);

/// Token secrets and their accounts.
#[derive(Default)]
struct TokenSecrets {
    accounts: HashMap<Name, Name>,
    /// The other way: a tenant has thousands of both.
    secrets: HashMap<Name, BTreeSet<Name>>,
}

impl TokenSecrets {
    fn insert(&mut self, secret: &Name, account: &Name) {
        if self.accounts.get(secret) == Some(account) {
            return;
        }
        self.remove(secret);
        self.accounts.insert(secret.clone(), account.clone());
        self.secrets.entry(account.clone()).or_default().insert(secret.clone());
    }

    fn remove(&mut self, secret: &Name) {
        let Some(account) = self.accounts.remove(secret) else { return };
        let Some(of_account) = self.secrets.get_mut(&account) else { return };
        of_account.remove(secret);
        if of_account.is_empty() {
            self.secrets.remove(&account);
        }
    }

    fn of(&self, account: &Name) -> impl Iterator<Item = &Name> {
        self.secrets.get(account).into_iter().flatten()
    }
}

/// A queued task.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum SecretTask {
    /// Complete the secret, or delete it with its account.
    Fill(Name),
    /// The secret is gone: remove the account's reference.
    Unlink { account: Name, secret: String },
}

/// Why a task failed. Retried with back-off.
#[derive(Debug, thiserror::Error)]
enum SecretTaskError {
    #[error("the API server refused: {0}")]
    Api(#[from] kube::Error),
    #[error("the token cannot be signed")]
    Unsigned,
}

/// Runs until dropped, with the manager's identity, as in kube-controller-manager. `ca` is PEM.
pub(crate) async fn run(client: Client, ca: Arc<str>, signer: Signer) {
    let queue: WorkQueue<SecretTask> = WorkQueue::default();
    let known: Mutex<TokenSecrets> = Mutex::default();
    let only = watcher::Config::default().fields(&format!("type={TYPE}"));
    let all: Api<PartialObjectMeta<Secret>> = Api::all(client.clone());
    let secrets = watching::each(all, only, |secret, gone| {
        let name = (secret.namespace().unwrap_or_default(), secret.name_any());
        let account = (name.0.clone(), annotation(&secret, ACCOUNT).to_owned());
        let mut known = known.lock();
        if gone {
            known.remove(&name);
            queue.add(SecretTask::Unlink { account, secret: name.1 }, cause(&secret.metadata));
        } else {
            known.insert(&name, &account);
            queue.add(SecretTask::Fill(name), cause(&secret.metadata));
        }
    });
    let accounts = watching::each(
        Api::<PartialObjectMeta<ServiceAccount>>::all(client.clone()),
        watcher::Config::default(),
        |account, gone| {
            if gone {
                let cause = cause(&account.metadata);
                let account = (account.namespace().unwrap_or_default(), account.name_any());
                let known = known.lock();
                known
                    .of(&account)
                    .for_each(|secret| queue.add(SecretTask::Fill(secret.clone()), cause));
            }
        },
    );
    let work = queue.run("serviceaccount-token", WORKERS, |task, trace| {
        work(trace.client(&client), task, ca.clone(), signer.clone())
    });
    tokio::join!(secrets, accounts, work);
}

async fn work(
    client: Client,
    task: SecretTask,
    ca: Arc<str>,
    signer: Signer,
) -> Result<Next, SecretTaskError> {
    match task {
        SecretTask::Fill(name) => fill(client, name, &ca, &signer).await,
        // No account can have this name.
        SecretTask::Unlink { account, .. } if !(signer.is_account)(&account.1) => Ok(Next::Done),
        SecretTask::Unlink { account, secret } => unlink(client, account, &secret).await,
    }
}

async fn fill(
    client: Client,
    secret: Name,
    ca: &str,
    signer: &Signer,
) -> Result<Next, SecretTaskError> {
    let (namespace, name) = secret;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &namespace);
    let Some(mut secret) = secrets.get_opt(&name).await? else { return Ok(Next::Done) };
    if secret.type_.as_deref() != Some(TYPE) || secret.metadata.deletion_timestamp.is_some() {
        return Ok(Next::Done);
    }
    let of = annotation(&secret, ACCOUNT).to_owned();
    if !(signer.is_account)(&of) {
        return delete(&secrets, &secret).await;
    }
    let account = account(&client, &namespace, &of).await?;
    let is_meant = |account: &ServiceAccount| {
        annotation(&secret, ACCOUNT_UID).is_empty()
            || account.uid().as_deref() == Some(annotation(&secret, ACCOUNT_UID))
    };
    let Some(account) = account.filter(is_meant) else {
        return delete(&secrets, &secret).await;
    };
    let subject = TokenSubject {
        namespace: &namespace,
        account: &of,
        account_uid: account.metadata.uid.as_deref().unwrap_or_default(),
        secret: &name,
    };
    let token = match holds(&secret, "token") {
        true => None,
        false => Some(signed(&signer.sign, &subject).await.ok_or(SecretTaskError::Unsigned)?),
    };
    if !complete(&mut secret, &subject, ca, token) {
        return Ok(Next::Done);
    }
    match secrets.replace(&name, &PostParams::default(), &secret).await {
        // Deleted, or changed: the watch wakes us again.
        Err(error) if matches!(code(&error), 404 | 409) => Ok(Next::Done),
        other => Ok(other.map(|_| Next::Done)?),
    }
}

/// Signs on a thread that may block: the keys are in files, an RSA signature takes milliseconds,
/// and in an all-in-one the workers are the API server's.
async fn signed(sign: &Sign, subject: &TokenSubject<'_>) -> Option<String> {
    let TokenSubject { namespace, account, account_uid, secret } = *subject;
    let owned = [namespace, account, account_uid, secret].map(str::to_owned);
    let sign = Arc::clone(sign);
    let signing = tokio::task::spawn_blocking(move || {
        let [namespace, account, account_uid, secret] = &owned;
        sign(&TokenSubject { namespace, account, account_uid, secret })
    });
    signing.await.ok().flatten()
}

fn holds(secret: &Secret, key: &str) -> bool {
    let data = secret.data.as_ref().and_then(|data| data.get(key));
    data.is_some_and(|bytes| !bytes.0.is_empty())
}

/// Adds missing fields to the secret; `token`, if it has none. Returns whether it changed.
fn complete(
    secret: &mut Secret,
    subject: &TokenSubject<'_>,
    ca: &str,
    token: Option<String>,
) -> bool {
    let has_namespace = holds(secret, "namespace");
    let data = secret.data.get_or_insert_default();
    let mut changed = false;
    if !ca.is_empty() && data.get("ca.crt").is_none_or(|held| held.0 != ca.as_bytes()) {
        data.insert("ca.crt".to_owned(), ByteString(ca.as_bytes().to_vec()));
        changed = true;
    }
    if !has_namespace {
        data.insert("namespace".to_owned(), ByteString(subject.namespace.as_bytes().to_vec()));
        changed = true;
    }
    if let Some(token) = token {
        data.insert("token".to_owned(), ByteString(token.into_bytes()));
        changed = true;
    }
    if changed {
        secret.annotations_mut().insert(ACCOUNT.to_owned(), subject.account.to_owned());
        secret.annotations_mut().insert(ACCOUNT_UID.to_owned(), subject.account_uid.to_owned());
    }
    changed
}

async fn delete(secrets: &Api<Secret>, secret: &Secret) -> Result<Next, SecretTaskError> {
    // Includes the version: a corrected annotation, or a recreated account, arrives by the watch.
    let preconditions =
        Preconditions { uid: secret.uid(), resource_version: secret.resource_version() };
    match secrets
        .delete(
            &secret.name_any(),
            &DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() },
        )
        .await
    {
        Err(error) if matches!(code(&error), 404 | 409) => Ok(Next::Done),
        other => Ok(other.map(|_| Next::Done)?),
    }
}

async fn unlink(client: Client, account_name: Name, secret: &str) -> Result<Next, SecretTaskError> {
    let (namespace, name) = account_name;
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &namespace);
    let Some(mut account) = account(&client, &namespace, &name).await? else {
        return Ok(Next::Done);
    };
    let listed = account.secrets.get_or_insert_default();
    let before = listed.len();
    listed.retain(|reference| reference.name.as_deref() != Some(secret));
    if listed.len() == before {
        return Ok(Next::Done);
    }
    match accounts.replace(&name, &PostParams::default(), &account).await {
        Err(error) if code(&error) == 404 => Ok(Next::Done),
        other => Ok(other.map(|_| Next::Done)?),
    }
}

/// The account; `None` only if the response proves that it does not exist.
async fn account(
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<Option<ServiceAccount>, SecretTaskError> {
    let accounts = ApiResource::erase::<ServiceAccount>(&());
    let found =
        rest::get(client, &accounts, Some(namespace), name, RequestOptions::default()).await?;
    Ok(found.map(serde_json::from_value).transpose().map_err(kube::Error::SerdeError)?)
}

fn annotation<'a>(secret: &'a impl ResourceExt, key: &str) -> &'a str {
    secret.annotations().get(key).map_or("", String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_has_its_secrets_only() {
        let name = |name: &str| ("n".to_owned(), name.to_owned());
        let mut known = TokenSecrets::default();
        let of = |known: &TokenSecrets, account: &str| {
            known.of(&name(account)).map(|(_, secret)| secret.clone()).collect::<Vec<_>>()
        };
        for (secret, account) in [("a", "robot"), ("b", "robot"), ("c", "other"), ("b", "other")] {
            known.insert(&name(secret), &name(account));
        }
        assert_eq!(
            (of(&known, "robot"), of(&known, "other")),
            (vec!["a".into()], vec!["b".into(), "c".into()])
        );
        ["a", "b", "c", "d"].iter().for_each(|secret| known.remove(&name(secret)));
        assert!(known.accounts.is_empty() && known.secrets.is_empty());
    }

    /// The runtime has one thread, which the signature must not hold up.
    #[tokio::test]
    async fn fault_34_tokens_of_secrets_are_signed_off_the_workers() {
        let worker = std::thread::current().id();
        let sign: Sign = Arc::new(move |subject| {
            let is_worker = std::thread::current().id() == worker;
            (!is_worker).then(|| format!("token of {}", subject.account))
        });
        let subject =
            TokenSubject { namespace: "n", account: "robot", account_uid: "u", secret: "s" };
        assert_eq!(signed(&sign, &subject).await.as_deref(), Some("token of robot"));
    }

    #[test]
    fn only_missing_data_is_filled_in() {
        let subject =
            TokenSubject { namespace: "n", account: "robot", account_uid: "u", secret: "s" };
        let mut secret = Secret::default();
        assert!(!holds(&secret, "token"));
        assert!(complete(&mut secret, &subject, "CA", Some("token of robot".to_owned())));
        assert!(holds(&secret, "token"));
        let data = secret.data.clone().expect("data");
        assert_eq!(data["token"].0, b"token of robot");
        assert_eq!(
            (data["namespace"].0.as_slice(), data["ca.crt"].0.as_slice()),
            (&b"n"[..], &b"CA"[..])
        );
        assert_eq!(
            (annotation(&secret, ACCOUNT), annotation(&secret, ACCOUNT_UID)),
            ("robot", "u")
        );
        assert!(!complete(&mut secret, &subject, "CA", None));
        assert!(complete(&mut secret, &subject, "another CA", None), "the CA is kept up");
    }
}
