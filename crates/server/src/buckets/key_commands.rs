//! Commands on the keys of encrypted buckets: the methods of the server for them.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cairn_api as api;
use cairn_bucket::Store;
use cairn_bucket::seal::{InvalidIdentity, KeyHolder, Keyring, Recipient};

use crate::buckets::error::BucketsError;
use crate::buckets::keys::{Encryption, SystemEntropy, identities};
use crate::buckets::{Bucket, READ_PATIENCE, store_error};
use crate::daemon::server::Server;
use crate::error::ServerError;

/// An encrypted bucket whose key objects are read or changed.
struct KeyWork {
    bucket: Bucket,
    encryption: Encryption,
    below: Arc<dyn Store>,
    holder: Arc<KeyHolder>,
}

fn recipient_of(text: &str) -> Result<Recipient, ServerError> {
    text.parse().map_err(|source| {
        // A secret key that was given by mistake is in no log or error.
        let given = match source {
            InvalidIdentity::Secret => "CAIRN-SECRET-...".to_owned(),
            _ => text.chars().take(80).collect(),
        };
        BucketsError::Recipient { given, source }.into()
    })
}

impl Server {
    fn key_work(&self, name: &str) -> Result<KeyWork, ServerError> {
        let bucket = self.buckets.get(name)?;
        let encryption = bucket.encryption.clone();
        let encryption = encryption.ok_or_else(|| BucketsError::NotEncrypted { name: name.to_owned() })?;
        let below = self.buckets.client_below(&bucket, READ_PATIENCE, None)?;
        let holder = self.buckets.holder(name, &encryption)?;
        Ok(KeyWork { bucket, encryption, below, holder })
    }

    /// The recipients of an encrypted bucket.
    pub(crate) fn bucket_keys(&self, name: &str) -> Result<api::BucketKeys, ServerError> {
        let _in_use = self.buckets.use_by(name, "its recipients are listed")?;
        let KeyWork { encryption, below, holder, .. } = self.key_work(name)?;
        let ring = Keyring::new(&*below);
        let recipients = ring.recipients(&holder, &AtomicBool::new(false));
        let recipients = recipients.map_err(|error| store_error(name, error))?;
        let own: Vec<Recipient> = identities(&encryption.key_file)
            .map(|identities| identities.iter().map(|identity| identity.recipient()).collect())
            .unwrap_or_default();
        let show = |recipient: &Recipient| api::BucketRecipient {
            recipient: recipient.to_string(),
            own: own.contains(recipient),
        };
        Ok(api::BucketKeys { key_id: encryption.key_id, recipients: recipients.iter().map(show).collect() })
    }

    /// Wraps the key of an encrypted bucket for one more recipient.
    pub(crate) fn add_bucket_recipient(
        &self,
        name: &str,
        request: &api::AddBucketRecipient,
    ) -> Result<api::BucketKeys, ServerError> {
        let recipient = recipient_of(&request.recipient)?;
        {
            let _in_use = self.buckets.use_by(name, "a recipient is added")?;
            let KeyWork { below, holder, .. } = self.key_work(name)?;
            let ring = Keyring::new(&*below);
            let added = ring.add(&holder, &recipient, &SystemEntropy, &AtomicBool::new(false));
            if added.map_err(|error| store_error(name, error))? {
                tracing::info!(bucket = name, %recipient, "a recipient of an encrypted bucket was added");
            }
        }
        self.bucket_keys(name)
    }

    /// Deletes the key that is wrapped for a recipient.
    pub(crate) fn remove_bucket_recipient(&self, name: &str, recipient: &str) -> Result<(), ServerError> {
        let recipient = recipient_of(recipient)?;
        let _in_use = self.buckets.use_by(name, "a recipient is removed")?;
        let KeyWork { encryption, below, holder, .. } = self.key_work(name)?;
        if encryption.recipient == recipient.to_string() {
            return Err(BucketsError::OwnRecipient { name: name.to_owned() }.into());
        }
        let removed = Keyring::new(&*below).remove(&holder, &recipient, &AtomicBool::new(false));
        removed.map_err(|error| store_error(name, error))?;
        tracing::info!(bucket = name, %recipient, "a recipient of an encrypted bucket was removed");
        Ok(())
    }

    /// Names another key file, which must open the bucket.
    pub(crate) fn set_bucket_key(
        &self,
        name: &str,
        request: &api::SetBucketKey,
    ) -> Result<api::Bucket, ServerError> {
        let path = Path::new(&request.key);
        if !path.is_absolute() {
            return Err(ServerError::Invalid {
                fault: "the path of a key file is relative",
                next: "name the file by its full path, which begins with `/`",
            });
        }
        let _in_use = self.buckets.use_by(name, "its key file is changed")?;
        let KeyWork { bucket, below, holder, .. } = self.key_work(name)?;
        let key = (holder.id(), identities(path)?);
        let opened = self.buckets.opened(&below, name, key, path, &AtomicBool::new(false))?;
        let shown = self.buckets.change(|document| {
            let own = document.buckets.iter_mut().find(|own| own.name == bucket.name);
            // It is in use, and so cannot have been deleted.
            let own = own.ok_or(ServerError::Bug)?;
            own.encryption = Some(opened);
            Ok(own.show())
        })?;
        self.buckets.forget_key(name);
        tracing::info!(bucket = name, "the key file of an encrypted bucket was changed");
        Ok(shown)
    }
}
