//! The roles that each route of the API needs: one table, which a route must be in.
//!
//! A route without a row is for administrators, and a test fails. The description of the API shows
//! the roles. To add a route, add its row to [`RULES`].

use cairn_api::{ForbiddenRequest, Role};
use serde_json::Value;
use utoipa::openapi::RefOr;
use utoipa::openapi::extensions::ExtensionsBuilder;
use utoipa::openapi::path::Operation;

use Need::{Administer, Asked, Locks, Operate, View, ViewOrLocks};
use Of::{Anything, Device, Export, Job, Listed, Named, Server, Status, Volume};

/// The roles that permit a request.
#[derive(Debug, Clone, Copy)]
pub(super) enum Need {
    /// It reads: viewers, operators and administrators.
    View,
    /// The same, and lock keepers.
    ViewOrLocks,
    /// It creates or changes, and destroys nothing: operators and administrators.
    Operate,
    /// It destroys, changes roles or access, or tells secrets: administrators.
    Administer,
    /// It sets or lifts locks: lock keepers and administrators.
    Locks,
    /// The body decides, which may be no valid request.
    Asked(fn(&Value) -> Need),
}

impl Need {
    /// The need of a request with this body.
    pub(super) fn of(self, body: &Value) -> Need {
        match self {
            Asked(decide) => decide(body),
            need => need,
        }
    }

    /// The roles that permit it; of [`Asked`], those that permit an empty request.
    pub(super) fn roles(self) -> &'static [Role] {
        use Role::{Administrator, LockKeeper, Operator, Viewer};
        match self {
            View => &[Viewer, Operator, Administrator],
            ViewOrLocks => &[Viewer, Operator, Administrator, LockKeeper],
            Operate => &[Operator, Administrator],
            Administer => &[Administrator],
            Locks => &[LockKeeper, Administrator],
            Asked(decide) => match decide(&Value::Object(serde_json::Map::new())) {
                Asked(_) => &[Administrator],
                need => need.roles(),
            },
        }
    }

    pub(super) fn admits(self, role: Role) -> bool {
        self.roles().contains(&role)
    }

    /// For an error.
    pub(super) fn words(self) -> &'static str {
        match self {
            View => "viewer, operator or administrator",
            ViewOrLocks => "viewer, operator, lock-keeper or administrator",
            Operate => "operator or administrator",
            Administer | Asked(_) => "administrator",
            Locks => "lock-keeper or administrator",
        }
    }

    /// It changes nothing, so it has no line in the audit log.
    pub(super) fn only_reads(self) -> bool {
        matches!(self, View | ViewOrLocks)
    }
}

/// The volumes that a request concerns. A token that is bound to volumes permits only requests that
/// concern these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    /// The server as a whole: refused for bound tokens.
    Server,
    /// None.
    Anything,
    /// The first parameter of the path is a volume, a mirror or a clone.
    Volume,
    /// The first parameter of the path is a volume or an adopted device, or an export of either.
    Device,
    /// The first parameter of the path is an export.
    Export,
    /// The parameter of the path is a job.
    Job,
    /// One of these fields of the body names a volume.
    Named(&'static [&'static str]),
    /// The answer is a list, and this field of each element names a volume. Bound tokens get the
    /// elements of their volumes; none, when the field has no name.
    Listed(&'static str),
    /// The answer is the status.
    Status,
}

/// A row of the table.
pub(super) struct Rule {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    pub(super) need: Need,
    pub(super) of: Of,
}

const fn rule(method: &'static str, path: &'static str, need: Need, of: Of) -> Rule {
    Rule { method, path, need, of }
}

/// The fields of a request that say something.
fn given(body: &Value) -> Vec<&str> {
    fn says(value: &Value) -> bool {
        match value {
            Value::Null => false,
            Value::Object(fields) => fields.values().any(says),
            _ => true,
        }
    }
    let fields = body.as_object().into_iter().flatten();
    fields.filter(|(_, value)| says(value)).map(|(name, _)| name.as_str()).collect()
}

/// Settings of a mirror: when it follows, for operators; locks, for lock keepers.
fn mirror_settings(body: &Value) -> Need {
    const OF_OPERATORS: [&str; 8] =
        ["every_ms", "cron", "continuous", "zone", "rpo_ms", "stall_ms", "paused", "link"];
    const OF_KEEPERS: [&str; 2] = ["lock_ms", "lock_key"];
    let given = given(body);
    if given.iter().all(|field| OF_OPERATORS.contains(field)) {
        Operate
    } else if given.iter().all(|field| OF_KEEPERS.contains(field)) {
        Locks
    } else {
        Administer
    }
}

/// A volume that becomes a mirror takes no more writes, and may lose its own.
fn new_mirror(body: &Value) -> Need {
    match body.get("seed") {
        None | Some(Value::Null) => Operate,
        Some(_) => Administer,
    }
}

/// A LUN that shrinks loses data.
fn resize(body: &Value) -> Need {
    match body.get("allow_shrink") {
        None | Some(Value::Null | Value::Bool(false)) => Operate,
        Some(_) => Administer,
    }
}

/// A schedule deletes snapshots that are not held.
fn hold(body: &Value) -> Need {
    if body.get("held") == Some(&Value::Bool(true)) { Operate } else { Administer }
}

/// All routes. A row without a need that fits does not exist: choose the role of the most harmful
/// request that the route accepts, or [`Asked`].
#[rustfmt::skip]
pub(super) const RULES: &[Rule] = &[
    rule("GET", "/v1/access", ViewOrLocks, Anything),
    rule("GET", "/v1/bucket-mirrors", View, Listed("volume")),
    rule("POST", "/v1/bucket-mirrors", Administer, Server),
    rule("POST", "/v1/bucket-mirrors/plan", View, Server),
    rule("GET", "/v1/bucket-mirrors/{mirror}", View, Server),
    rule("PATCH", "/v1/bucket-mirrors/{mirror}", Administer, Server),
    rule("DELETE", "/v1/bucket-mirrors/{mirror}", Administer, Server),
    rule("POST", "/v1/bucket-mirrors/{mirror}/abort", Operate, Server),
    rule("POST", "/v1/bucket-mirrors/{mirror}/purge", Administer, Server),
    rule("GET", "/v1/bucket-mirrors/{mirror}/update", View, Server),
    rule("POST", "/v1/bucket-mirrors/{mirror}/update", Operate, Server),
    rule("POST", "/v1/bucket-mirrors/{mirror}/verify", Operate, Server),
    rule("POST", "/v1/bucket-restores", Operate, Server),
    rule("GET", "/v1/buckets", View, Listed("")),
    rule("POST", "/v1/buckets", Administer, Server),
    rule("GET", "/v1/buckets/{bucket}", View, Server),
    rule("DELETE", "/v1/buckets/{bucket}", Administer, Server),
    rule("POST", "/v1/buckets/{bucket}/check", Operate, Server),
    rule("GET", "/v1/buckets/{bucket}/dumps", View, Server),
    rule("GET", "/v1/buckets/{bucket}/files", View, Server),
    rule("GET", "/v1/buckets/{bucket}/files/content", Operate, Server),
    rule("POST", "/v1/buckets/{bucket}/files/downloads", Operate, Server),
    rule("GET", "/v1/buckets/{bucket}/images", View, Server),
    rule("POST", "/v1/buckets/{bucket}/key", Administer, Server),
    rule("GET", "/v1/buckets/{bucket}/keys", View, Server),
    rule("POST", "/v1/buckets/{bucket}/keys", Administer, Server),
    rule("DELETE", "/v1/buckets/{bucket}/keys/{recipient}", Administer, Server),
    rule("GET", "/v1/buckets/{bucket}/object", Operate, Server),
    rule("POST", "/v1/buckets/{bucket}/open", Administer, Server),
    rule("POST", "/v1/buckets/{bucket}/prune", Administer, Server),
    rule("GET", "/v1/changes", View, Anything),
    rule("GET", "/v1/clones", View, Listed("name")),
    rule("POST", "/v1/clones", Operate, Server),
    rule("DELETE", "/v1/clones/{clone}", Administer, Volume),
    rule("GET", "/v1/devices", View, Listed("")),
    rule("POST", "/v1/devices", Administer, Server),
    rule("GET", "/v1/devices/{device}", View, Device),
    rule("DELETE", "/v1/devices/{device}", Administer, Device),
    rule("POST", "/v1/devices/{device}/accept-older", Administer, Device),
    rule("PATCH", "/v1/devices/{device}/access", Administer, Device),
    rule("POST", "/v1/devices/{device}/marks", Operate, Device),
    rule("POST", "/v1/devices/{device}/revert", Administer, Device),
    rule("POST", "/v1/devices/{device}/views", Operate, Device),
    rule("DELETE", "/v1/devices/{device}/views/{view}", Administer, Device),
    rule("PUT", "/v1/devices/{device}/window", Administer, Device),
    rule("POST", "/v1/devices/{device}/grow-history", Administer, Device),
    rule("GET", "/v1/drills", View, Listed("mirror")),
    rule("POST", "/v1/dry-run", View, Named(&["volume", "mirror", "clone"])),
    rule("GET", "/v1/dump-folders", View, Listed("")),
    rule("GET", "/v1/dump-folders/{folder}/dumps", View, Server),
    rule("GET", "/v1/dump-folders/{folder}/files", View, Server),
    rule("GET", "/v1/dump-folders/{folder}/files/content", Operate, Server),
    rule("POST", "/v1/dump-folders/{folder}/files/downloads", Operate, Server),
    rule("GET", "/v1/exports", View, Listed("name")),
    rule("GET", "/v1/fleet", View, Listed("")),
    rule("POST", "/v1/fleet", Administer, Server),
    rule("GET", "/v1/fleet/{server}", View, Server),
    rule("DELETE", "/v1/fleet/{server}", Administer, Server),
    rule("POST", "/v1/fleet/{server}/test", Operate, Server),
    rule("GET", "/v1/groups", View, Listed("")),
    rule("POST", "/v1/groups", Operate, Server),
    rule("GET", "/v1/groups/{group}", View, Server),
    rule("PUT", "/v1/groups/{group}", Administer, Server),
    rule("DELETE", "/v1/groups/{group}", Administer, Server),
    rule("POST", "/v1/groups/{group}/allow-reverse", Administer, Server),
    rule("POST", "/v1/groups/{group}/failover", Administer, Server),
    rule("POST", "/v1/groups/{group}/reverse", Administer, Server),
    rule("POST", "/v1/groups/{group}/snapshot", Operate, Server),
    rule("PUT", "/v1/groups/{group}/together", Operate, Server),
    rule("POST", "/v1/images/restore", Operate, Server),
    rule("GET", "/v1/images/restores", View, Listed("volume")),
    rule("DELETE", "/v1/images/restores/{volume}", Administer, Volume),
    rule("GET", "/v1/jobs", View, Listed("subject")),
    rule("GET", "/v1/jobs/{job}", View, Job),
    rule("DELETE", "/v1/jobs/{job}", Operate, Job),
    rule("POST", "/v1/mirror-plans", Operate, Server),
    rule("GET", "/v1/mirrors", ViewOrLocks, Listed("name")),
    rule("POST", "/v1/mirrors", Asked(new_mirror), Server),
    rule("GET", "/v1/mirrors/{mirror}", ViewOrLocks, Volume),
    rule("DELETE", "/v1/mirrors/{mirror}", Administer, Volume),
    rule("PATCH", "/v1/mirrors/{mirror}", Asked(mirror_settings), Volume),
    rule("POST", "/v1/mirrors/{mirror}/abort", Operate, Volume),
    rule("POST", "/v1/mirrors/{mirror}/divergence", View, Volume),
    rule("POST", "/v1/mirrors/{mirror}/drill", Administer, Volume),
    rule("DELETE", "/v1/mirrors/{mirror}/drill", Administer, Volume),
    rule("POST", "/v1/mirrors/{mirror}/failback", Administer, Volume),
    rule("POST", "/v1/mirrors/{mirror}/failover", Administer, Volume),
    rule("GET", "/v1/mirrors/{mirror}/lags", View, Volume),
    rule("POST", "/v1/mirrors/{mirror}/repoint", Administer, Volume),
    rule("POST", "/v1/mirrors/{mirror}/resync", Administer, Volume),
    rule("POST", "/v1/mirrors/{mirror}/reverse", Administer, Volume),
    rule("POST", "/v1/mirrors/{mirror}/rewind", Administer, Volume),
    rule("POST", "/v1/mirrors/{mirror}/unlock", Locks, Volume),
    rule("GET", "/v1/mirrors/{mirror}/update", View, Volume),
    rule("POST", "/v1/mirrors/{mirror}/update", Operate, Volume),
    rule("POST", "/v1/mirrors/{mirror}/verify", Operate, Volume),
    rule("GET", "/v1/mounts", View, Listed("name")),
    rule("POST", "/v1/mounts", Administer, Server),
    rule("GET", "/v1/nfs", View, Listed("")),
    rule("GET", "/v1/notify", View, Server),
    rule("POST", "/v1/notify", Administer, Server),
    rule("GET", "/v1/notify/{target}", View, Server),
    rule("PATCH", "/v1/notify/{target}", Administer, Server),
    rule("DELETE", "/v1/notify/{target}", Administer, Server),
    rule("POST", "/v1/notify/{target}/test", Administer, Server),
    rule("GET", "/v1/peers", View, Listed("")),
    rule("POST", "/v1/peers/invite", Administer, Server),
    rule("DELETE", "/v1/peers/{peer}", Administer, Server),
    rule("PATCH", "/v1/peers/{peer}", Administer, Server),
    rule("GET", "/v1/plans/{subject}", View, Device),
    rule("GET", "/v1/recordings", View, Listed("export")),
    rule("POST", "/v1/recordings", Administer, Server),
    rule("DELETE", "/v1/recordings/{export}", Operate, Export),
    rule("POST", "/v1/schedules/simulate", View, Anything),
    rule("GET", "/v1/state", View, Server),
    rule("POST", "/v1/state/give-up", Administer, Server),
    rule("POST", "/v1/state/restore", Administer, Server),
    rule("GET", "/v1/status", View, Status),
    rule("POST", "/v1/unmount", Administer, Server),
    rule("GET", "/v1/volumes", View, Listed("name")),
    rule("POST", "/v1/volumes", Operate, Server),
    rule("GET", "/v1/volumes/{volume}", View, Volume),
    rule("DELETE", "/v1/volumes/{volume}", Administer, Volume),
    rule("POST", "/v1/volumes/{volume}/allow-reverse", Administer, Volume),
    rule("POST", "/v1/volumes/{volume}/check", Operate, Volume),
    rule("GET", "/v1/volumes/{volume}/files", View, Volume),
    rule("GET", "/v1/volumes/{volume}/files/content", Operate, Volume),
    rule("GET", "/v1/volumes/{volume}/files/diff", View, Volume),
    rule("POST", "/v1/volumes/{volume}/files/downloads", Operate, Volume),
    rule("GET", "/v1/volumes/{volume}/files/dump", View, Volume),
    rule("POST", "/v1/volumes/{volume}/files/dump", Operate, Volume),
    rule("POST", "/v1/volumes/{volume}/files/dump/plan", View, Volume),
    rule("GET", "/v1/volumes/{volume}/files/quotas", View, Volume),
    rule("PATCH", "/v1/volumes/{volume}/files/quotas", Operate, Volume),
    rule("POST", "/v1/volumes/{volume}/files/restore", Operate, Volume),
    rule("POST", "/v1/volumes/{volume}/files/restore/plan", View, Volume),
    rule("GET", "/v1/volumes/{volume}/files/versions", View, Volume),
    rule("DELETE", "/v1/volumes/{volume}/followers/{follower}", Administer, Volume),
    rule("GET", "/v1/volumes/{volume}/governor", View, Volume),
    rule("PUT", "/v1/volumes/{volume}/governor", Operate, Volume),
    rule("POST", "/v1/volumes/{volume}/grow", Operate, Volume),
    rule("POST", "/v1/volumes/{volume}/history", Administer, Volume),
    rule("DELETE", "/v1/volumes/{volume}/history", Administer, Volume),
    rule("POST", "/v1/volumes/{volume}/history/discard", Administer, Volume),
    rule("GET", "/v1/volumes/{volume}/hooks", Administer, Volume),
    rule("PATCH", "/v1/volumes/{volume}/hooks", Administer, Volume),
    rule("POST", "/v1/volumes/{volume}/image/confirm", Operate, Volume),
    rule("POST", "/v1/volumes/{volume}/image/dump", Operate, Volume),
    rule("GET", "/v1/volumes/{volume}/image/levels", View, Volume),
    rule("DELETE", "/v1/volumes/{volume}/image/levels/{level}", Administer, Volume),
    rule("POST", "/v1/volumes/{volume}/image/plan", View, Volume),
    rule("GET", "/v1/volumes/{volume}/image/unfinished", View, Volume),
    rule("DELETE", "/v1/volumes/{volume}/image/unfinished", Administer, Volume),
    rule("POST", "/v1/volumes/{volume}/log", Operate, Volume),
    rule("POST", "/v1/volumes/{volume}/log/discard", Administer, Volume),
    rule("GET", "/v1/volumes/{volume}/luns", View, Volume),
    rule("POST", "/v1/volumes/{volume}/luns", Operate, Volume),
    rule("DELETE", "/v1/volumes/{volume}/luns/{lun}", Administer, Volume),
    rule("PATCH", "/v1/volumes/{volume}/luns/{lun}", Asked(resize), Volume),
    rule("PATCH", "/v1/volumes/{volume}/luns/{lun}/access", Administer, Volume),
    rule("GET", "/v1/volumes/{volume}/luns/{lun}/changed", View, Volume),
    rule("PUT", "/v1/volumes/{volume}/nfs", Administer, Volume),
    rule("POST", "/v1/volumes/{volume}/nfs/remove", Administer, Volume),
    rule("GET", "/v1/volumes/{volume}/rehearsal", View, Volume),
    rule("PUT", "/v1/volumes/{volume}/rehearsal", Administer, Volume),
    rule("GET", "/v1/volumes/{volume}/schedules", View, Volume),
    rule("PUT", "/v1/volumes/{volume}/schedules/{label}", Administer, Volume),
    rule("DELETE", "/v1/volumes/{volume}/schedules/{label}", Administer, Volume),
    rule("GET", "/v1/volumes/{volume}/scrub", View, Volume),
    rule("PUT", "/v1/volumes/{volume}/scrub", Operate, Volume),
    rule("GET", "/v1/volumes/{volume}/snapshots", ViewOrLocks, Volume),
    rule("POST", "/v1/volumes/{volume}/snapshots", Operate, Volume),
    rule("DELETE", "/v1/volumes/{volume}/snapshots/{snapshot}", Administer, Volume),
    rule("GET", "/v1/volumes/{volume}/snapshots/{snapshot}/frees", View, Volume),
    rule("POST", "/v1/volumes/{volume}/snapshots/{snapshot}/hold", Asked(hold), Volume),
    rule("POST", "/v1/volumes/{volume}/snapshots/{snapshot}/rename", Administer, Volume),
    rule("POST", "/v1/volumes/{volume}/snapshots/{snapshot}/rollback", Administer, Volume),
    rule("GET", "/v1/tokens", Administer, Server),
    rule("POST", "/v1/tokens", Administer, Server),
    rule("GET", "/v1/tokens/{token}", Administer, Server),
    rule("DELETE", "/v1/tokens/{token}", Administer, Server),
    rule("GET", "/v1/audit", Administer, Server),
    rule("GET", "/v1/oidc", Administer, Server),
    rule("PUT", "/v1/oidc", Administer, Server),
    rule("DELETE", "/v1/oidc", Administer, Server),
    rule("POST", "/v1/oidc/test", Administer, Server),
    rule("GET", "/v1/oidc/rules", Administer, Server),
    rule("POST", "/v1/oidc/rules", Administer, Server),
    rule("DELETE", "/v1/oidc/rules/{rule}", Administer, Server),
    rule("GET", "/v1/tls", ViewOrLocks, Anything),
    rule("POST", "/v1/tls/certificates", Administer, Server),
    // Not a part of the described API.
    rule("GET", "/v1/openapi.json", ViewOrLocks, Anything),
    rule("GET", "/metrics", View, Server),
];

/// The row of a route. A route that has none is for administrators.
pub(super) fn rule_of(method: &str, path: &str) -> Option<&'static Rule> {
    // The framework answers HEAD with the handler of GET.
    let method = if method == "HEAD" { "GET" } else { method };
    RULES.iter().find(|rule| rule.method == method && rule.path == path)
}

/// The requests that a client of a role may not make. A token that is bound to volumes may not make
/// those that concern the server as a whole.
pub(super) fn forbidden(role: Role, is_bound: bool) -> Vec<ForbiddenRequest> {
    let needs = |rule: &Rule| match rule.need.admits(role) {
        false => Some(format!("the role {}", rule.need.words())),
        true if is_bound && rule.of == Server => Some("a token that is not bound to volumes".to_owned()),
        true => None,
    };
    let request = |rule: &Rule| format!("{} {}", rule.method, rule.path);
    let all = RULES.iter().filter_map(|rule| Some((request(rule), needs(rule)?)));
    all.map(|(request, needs)| ForbiddenRequest { request, needs }).collect()
}

/// Writes the roles of each route into the description of the API.
pub(super) fn describe(api: &mut utoipa::openapi::OpenApi) {
    for (path, item) in &mut api.paths.paths {
        for (method, operation) in operations(item) {
            let Some(rule) = rule_of(method, path) else { continue };
            let roles: Vec<String> = rule.need.roles().iter().map(Role::to_string).collect();
            // One extension, as several have no order. Its fields come by name.
            let mut access = serde_json::Map::new();
            if matches!(rule.need, Asked(_)) {
                let note = "a request that destroys something or changes locks needs another role";
                access.insert("note".into(), note.into());
            }
            access.insert("roles".into(), roles.into());
            access.insert("whole_server".into(), (rule.of == Server).into());
            let extensions = ExtensionsBuilder::new().add("x-cairn-access", Value::Object(access));
            operation.extensions = Some(extensions.build());
            describe_responses(operation);
        }
    }
}

/// OpenAPI 3.1 demands a description of each response.
fn describe_responses(operation: &mut Operation) {
    for (status, response) in &mut operation.responses.responses {
        if let RefOr::T(response) = response
            && response.description.is_empty()
        {
            let outcome = if status == "default" {
                "The request failed; the body says why."
            } else {
                "The request succeeded."
            };
            response.description = outcome.to_owned();
        }
    }
}

/// The operations of a path, each with its method.
fn operations(item: &mut utoipa::openapi::PathItem) -> impl Iterator<Item = (&'static str, &mut Operation)> {
    let all = [
        ("GET", &mut item.get),
        ("PUT", &mut item.put),
        ("POST", &mut item.post),
        ("DELETE", &mut item.delete),
        ("OPTIONS", &mut item.options),
        ("HEAD", &mut item.head),
        ("PATCH", &mut item.patch),
        ("TRACE", &mut item.trace),
    ];
    all.into_iter().filter_map(|(method, operation)| Some((method, operation.as_mut()?)))
}

#[cfg(test)]
mod tests;
