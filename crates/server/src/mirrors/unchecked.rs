//! Mirrors that were neither compared with their source nor used in a drill: advice, no problem.

use cairn_api as api;

use crate::daemon::server::Server;

/// Age of a mirror without any proof of its data, from which on advice is given.
const UNCHECKED_MS: u64 = 30 * 86_400_000;

impl Server {
    /// Advice for mirrors whose data was neither verified nor proven by a drill for long.
    pub(crate) fn unchecked_mirrors(&self) -> Vec<api::Problem> {
        let now_ms = self.clock.now().0 / 1_000_000;
        let drills = self.drills.list();
        let advice = |mirror: api::Mirror| {
            let since_ms = born_ms(&self.volumes.folder(&mirror.name))?;
            let drill = drills.iter().find(|drill| drill.mirror == mirror.name);
            // One that runs by a schedule reports its own delays.
            if mirror.role != api::MirrorRole::Destination
                || drill.is_some_and(|drill| drill.every_ms.is_some())
            {
                return None;
            }
            let passed_ms = drill.and_then(|drill| drill.age_ms).map(|age| now_ms.saturating_sub(age));
            let verified_ms = mirror.verified.as_ref().map(|verified| verified.started_ms);
            advice(&mirror.name, since_ms, passed_ms.max(verified_ms), now_ms)
        };
        self.list_mirrors().into_iter().filter_map(advice).collect()
    }
}

/// When a folder was made, where the file system knows it.
fn born_ms(folder: &std::path::Path) -> Option<u64> {
    let born = std::fs::metadata(folder).ok()?.created().ok()?;
    let since = born.duration_since(std::time::UNIX_EPOCH).ok()?;
    u64::try_from(since.as_millis()).ok()
}

fn advice(name: &str, since_ms: u64, proven_ms: Option<u64>, now_ms: u64) -> Option<api::Problem> {
    let days = now_ms.saturating_sub(proven_ms.unwrap_or(since_ms)) / 86_400_000;
    if days < UNCHECKED_MS / 86_400_000 {
        return None;
    }
    let message = match proven_ms {
        None => format!("this mirror is {days} days old, and was never verified and never used in a drill"),
        Some(_) => format!("this mirror was neither verified nor used in a drill for {days} days"),
    };
    Some(api::Problem {
        subject: name.to_owned(),
        message,
        next: format!(
            "`cairn mirror verify {name}` compares it with its source; `cairn mirror drill {name} --probe COMMAND --every 1d` proves each day that its data works"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::advice;

    const DAY: u64 = 86_400_000;

    #[test]
    fn a_mirror_without_proof_gets_advice_after_a_month() {
        let now = 1_000 * DAY;
        assert!(advice("m", now - 29 * DAY, None, now).is_none());
        assert!(advice("m", now - 31 * DAY, None, now).unwrap().message.contains("31 days old"));
        assert!(advice("m", 0, Some(now - 5 * DAY), now).is_none());
        assert!(advice("m", 0, Some(now - 45 * DAY), now).unwrap().message.contains("for 45 days"));
    }
}
