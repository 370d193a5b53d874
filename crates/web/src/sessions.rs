//! Sessions of browsers, in memory: a restart of the server ends them all.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use subtle::ConstantTimeEq;

/// Most sessions at a time. Another one ends the session that was not used for longest.
const SESSIONS_MAX: usize = 64;

/// A secret of 256 bits that can stand in a header and in an address.
pub(crate) fn secret() -> String {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Compares in a time that does not depend on where the texts differ.
pub(crate) fn same(one: &str, other: &str) -> bool {
    one.as_bytes().ct_eq(other.as_bytes()).into()
}

/// The part of a session that a browser keeps.
#[derive(Debug, Clone)]
pub(crate) struct Opened {
    /// The value of the cookie, which scripts cannot read.
    pub cookie: String,
    /// Scripts of the page send it with each request.
    pub key: String,
}

struct Session {
    opened: Opened,
    /// Of the secret with which it began.
    identity: String,
    begun: Duration,
    used: Duration,
}

/// The sessions of one listener.
pub(crate) struct Sessions {
    table: Mutex<Vec<Session>>,
    /// A session that is not used for so long ends.
    idle_max: Duration,
    /// A session ends after so long, however much it is used.
    age_max: Duration,
}

impl Sessions {
    pub(crate) fn new(idle_max: Duration, age_max: Duration) -> Self {
        Self { table: Mutex::default(), idle_max, age_max }
    }

    /// Begins a session of a client with this identity.
    pub(crate) fn open(&self, identity: &str, now: Duration) -> Opened {
        let opened = Opened { cookie: secret(), key: secret() };
        let mut table = self.table.lock();
        self.end_old(&mut table, now);
        if table.len() >= SESSIONS_MAX {
            let oldest = table.iter().enumerate().min_by_key(|(_, session)| session.used);
            if let Some((oldest, _)) = oldest {
                table.swap_remove(oldest);
            }
        }
        table.push(Session { opened: opened.clone(), identity: identity.to_owned(), begun: now, used: now });
        opened
    }

    /// The identity of the session that both parts are of; notes that it is used.
    pub(crate) fn admits(&self, cookie: &str, key: &str, now: Duration) -> Option<String> {
        let mut table = self.table.lock();
        self.end_old(&mut table, now);
        let mut found = None;
        for session in table.iter_mut() {
            if same(&session.opened.cookie, cookie) & same(&session.opened.key, key) {
                session.used = now;
                found = Some(session.identity.clone());
            }
        }
        found
    }

    /// Ends the session with this cookie.
    pub(crate) fn close(&self, cookie: &str) {
        self.table.lock().retain(|session| !same(&session.opened.cookie, cookie));
    }

    fn end_old(&self, table: &mut Vec<Session>, now: Duration) {
        table.retain(|session| {
            now.saturating_sub(session.used) < self.idle_max
                && now.saturating_sub(session.begun) < self.age_max
        });
    }
}

#[cfg(test)]
mod tests;
