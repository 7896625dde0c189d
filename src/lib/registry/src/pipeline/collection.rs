//! DELETE of a collection: a delete per object.

use super::Registry;
use super::delete::warn_of_orphans;
use crate::context::{RequestContext, Target};
use crate::offload::{leave_worker, pause};
use crate::options::{DeleteOptions, check_delete};
use crate::read::{ListOptions, ListPage, VersionMatch};
use ferrokube_apimachinery::status::{Failure, Reason};
use futures::stream::{self, StreamExt, TryStreamExt};

/// Concurrent deletes. They share journal syncs, which dominate the time of a large collection.
const CONCURRENCY: usize = 128;
/// Larger collections are deleted off the workers.
const INLINE_OBJECTS: usize = 8;

impl Registry {
    /// DELETE of a collection, with bounded concurrency. Returns the listed objects. An object
    /// created under one of their names meanwhile is not deleted. A given resourceVersion is exact:
    /// kube-apiserver lists in pages, whose versions are.
    ///
    /// # Errors
    /// Those of the list, or of the first object that cannot be deleted; others may be gone by
    /// then.
    pub async fn delete_collection(
        &self,
        context: &RequestContext,
        target: &Target,
        options: &DeleteOptions,
        select: &ListOptions,
    ) -> Result<ListPage, Failure> {
        check_delete(options)?;
        warn_of_orphans(context, target, options);
        let page = self.list(target, &of_one_version(select)).await?;
        if page.items.len() > INLINE_OBJECTS {
            leave_worker().await;
        }
        stream::iter(page.items.clone())
            .map(|entry| async move {
                // A dry run never awaits, so it yields here.
                pause().await;
                let (target, created) =
                    (named(target, entry.key.namespace(), entry.key.name()), entry.create_revision);
                match self.delete_created(context, &target, options, Some(created)).await {
                    Err(failure) if failure.reason != Some(Reason::NotFound) => Err(failure),
                    _ => Ok(()),
                }
            })
            .buffer_unordered(CONCURRENCY)
            .try_collect::<()>()
            .await?;
        Ok(page)
    }
}

fn of_one_version(select: &ListOptions) -> ListOptions {
    let is_named = !matches!(select.resource_version.as_str(), "" | "0")
        && select.version_match == VersionMatch::Unset
        && select.continue_token.is_empty();
    let version_match = if is_named { VersionMatch::Exact } else { select.version_match };
    ListOptions { version_match, ..select.clone() }
}

fn named(target: &Target, namespace: Option<&str>, name: &str) -> Target {
    Target {
        namespace: namespace.map(str::to_owned),
        name: Some(name.to_owned()),
        ..target.clone()
    }
}
