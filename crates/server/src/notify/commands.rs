//! Commands on notifications: the methods of the server for them.

use cairn_api as api;
use cairn_api::NotifySeverity;
use cairn_notify::{Severity, Target};

use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::names;
use crate::notify::settings::{kind_of, policy_of, shown_quiet, target_of};
use crate::notify::{Kept, Notify, TARGETS_MAX, courier, test_message};
use crate::peers::token::random_name;

impl Notify {
    fn show(&self, kept: &Kept) -> api::NotifyTarget {
        let Kept { name, target, policy, added_ms, .. } = kept;
        let (open, waiting) = self.at_desk(kept, |desk| ((desk.open(), desk.waiting()), false));
        let health = self.health.lock().get(name).cloned().unwrap_or_default();
        let has_secret = match target {
            Target::Mail(mail) => mail.password.is_some(),
            Target::Web(web) => web.secret.is_some(),
            Target::Program(_) | Target::Ping(_) => false,
        };
        api::NotifyTarget {
            name: name.clone(),
            kind: kind_of(target),
            to: target.shown(),
            has_secret,
            severity: match policy.severity {
                Severity::Info => NotifySeverity::Info,
                Severity::Warning => NotifySeverity::Warning,
                Severity::Critical => NotifySeverity::Critical,
            },
            group_ms: policy.group_ms,
            hold_ms: policy.hold_ms,
            repeat_ms: policy.repeat_ms,
            repeat_max_ms: policy.repeat_max_ms,
            rate: policy.rate,
            quiet: policy.quiet.as_ref().map(shown_quiet),
            zone: policy.quiet.as_ref().map(|quiet| quiet.zone.clone()),
            every_ms: if let Target::Ping(ping) = target { Some(ping.every_ms) } else { None },
            added_ms: *added_ms,
            open: open as u64,
            waiting: waiting as u64,
            delivered_ms: health.delivered_ms,
            failing_ms: health.failing_ms,
            failure: health.last.as_ref().map(|last| last.message.clone()),
            next: health.last.as_ref().map(|last| last.next.clone()),
        }
    }
}

impl Server {
    /// All targets.
    pub(crate) fn list_notify(&self) -> Result<Vec<api::NotifyTarget>, ServerError> {
        self.notify.check_known()?;
        Ok(self.notify.targets().iter().map(|kept| self.notify.show(kept)).collect())
    }

    /// One target.
    pub(crate) fn show_notify(&self, name: &str) -> Result<api::NotifyTarget, ServerError> {
        let kept = self.notify.get(name)?;
        Ok(self.notify.show(&kept))
    }

    /// Adds a target, and starts its thread.
    pub(crate) fn add_notify(&self, request: &api::AddNotify) -> Result<api::NotifyTarget, ServerError> {
        let api::AddNotify { name, kind, settings } = request;
        names::check("notification target", name)?;
        let notify = &self.notify;
        let target = target_of(*kind, settings, None, &notify.origin.host)?;
        let policy = policy_of(*kind, settings, None)?;
        let (name, series, added_ms) = (name.clone(), random_name(), notify.now_ms());
        let kept = Kept { name, series, target, policy, added_ms };
        notify.change(|document| {
            if document.targets.iter().any(|other| other.name == kept.name) {
                return Err(ServerError::Taken { what: "notification target", name: kept.name.clone() });
            }
            if document.targets.len() >= TARGETS_MAX {
                return Err(ServerError::Invalid {
                    fault: "there are 100 notification targets, and no more are possible",
                    next: "delete one with `cairn notify delete`",
                });
            }
            document.targets.push(kept.clone());
            document.targets.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(())
        })?;
        courier::start(notify, std::slice::from_ref(&kept));
        Ok(notify.show(&kept))
    }

    /// Changes settings; missing ones stay as they are.
    pub(crate) fn set_notify(
        &self,
        name: &str,
        settings: &api::NotifySettings,
    ) -> Result<api::NotifyTarget, ServerError> {
        let notify = &self.notify;
        let old = notify.get(name)?;
        let kind = kind_of(&old.target);
        let target = target_of(kind, settings, Some(&old.target), &notify.origin.host)?;
        let policy = policy_of(kind, settings, Some(&old.policy))?;
        let kept = notify.change(|document| {
            let found = document.targets.iter_mut().find(|kept| kept.series == old.series);
            let kept = found.ok_or_else(|| ServerError::NotFound {
                what: "notification target",
                name: name.to_owned(),
                list: "cairn notify list",
            })?;
            (kept.target, kept.policy) = (target, policy);
            Ok(kept.clone())
        })?;
        Ok(notify.show(&kept))
    }

    /// Sends a message, or a ping, now, and reports the answer.
    pub(crate) fn test_notify(&self, name: &str) -> Result<api::NotifyTest, ServerError> {
        let notify = &self.notify;
        let kept = notify.get(name)?;
        let message = test_message(notify.now_ms());
        let message = Some(&message).filter(|_| !matches!(kept.target, Target::Ping(_)));
        let outcome = notify.deliver(&kept, message, &|| notify.is_ending()).ok_or(ServerError::Ending)?;
        notify.note(&kept, &outcome);
        let (delivered, answer, next) = match outcome {
            Ok(answer) => (true, answer, None),
            Err(failure) => (false, failure.message, Some(failure.next)),
        };
        if delivered {
            notify.health.lock().entry(name.to_owned()).or_default().pokes += 1;
            notify.tell();
        }
        Ok(api::NotifyTest { name: name.to_owned(), delivered, answer, next })
    }

    /// Deletes a target and the messages that wait for it.
    pub(crate) fn delete_notify(&self, name: &str, query: api::DeleteNotifyQuery) -> Result<(), ServerError> {
        let notify = &self.notify;
        let kept = notify.get(name)?;
        if query.dry_run == Some(true) {
            return Ok(());
        }
        notify.change(|document| {
            document.targets.retain(|other| other.series != kept.series);
            Ok(())
        })?;
        notify.forget(&kept);
        Ok(())
    }
}
