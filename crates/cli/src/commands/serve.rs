//! `cairn serve`: the one place where the command line starts the server, reads its configuration,
//! and copies its state.
//!
//! All other commands know the server by its API alone.

use std::path::{Path, PathBuf};

use cairn_api::{ConfigCheck, StateBackup};
use cairn_server::{Config, ServerError, Settings, check_config};

use crate::arguments::Serve;
use crate::exit::Failure;
use crate::output::Output;

/// Runs a server until SIGTERM or SIGINT.
pub fn run(serve: Serve, data: Option<PathBuf>, output: Output) -> Result<(), Failure> {
    let file = match &serve.config {
        Some(path) => Settings::read(path).map_err(failure)?,
        None => Settings::default(),
    };
    let line = Settings {
        data,
        http: serve.http,
        mirror: serve.mirror,
        nbd: (!serve.nbd.is_empty()).then_some(serve.nbd),
        iscsi: (!serve.iscsi.is_empty()).then_some(serve.iscsi),
        nfs: (!serve.nfs.is_empty()).then_some(serve.nfs),
        iscsi_advertise: serve.iscsi_advertise,
        nbd_tls_required: serve.nbd_tls_required.then_some(true),
        advertise: serve.advertise,
        mirror_patience: serve.mirror_patience,
        tls: serve.tls.then_some(true),
        tls_cert: absolute(serve.tls_cert),
        tls_key: absolute(serve.tls_key),
        tls_name: (!serve.tls_name.is_empty()).then_some(serve.tls_name),
        http_insecure: serve.http_insecure.then_some(true),
        audit_syslog: serve.audit_syslog.then_some(true),
        dumps: (!serve.dumps.is_empty())
            .then(|| serve.dumps.into_iter().filter_map(|path| absolute(Some(path))).collect()),
        cache: serve.cache,
    };
    let config = Config::new(line.over(file)).map_err(failure)?;
    cairn_server::run(config, |status| {
        output.tell(status, |status| {
            let mirror = status.mirror.as_deref().unwrap_or("off");
            let mut text = format!("serving {}\n  API     {}", status.data, status.http.join("  "));
            text += &format!("\n  NBD     {}", status.nbd.join("  "));
            text += &format!("\n  iSCSI   {}\n  mirror  {mirror}", super::status::listed(&status.iscsi));
            if !status.nfs.is_empty() {
                text += &format!("\n  NFS     {}", status.nfs.join("  "));
            }
            if status.volumes.is_empty() {
                text +=
                    "\nnext: cairn volume create vol0 --size 100G, then cairn lun create vol0/db --size 10G";
            }
            text
        });
    })
    .map_err(failure)
}

/// A path that stays the same file.
fn absolute(path: Option<PathBuf>) -> Option<PathBuf> {
    path.map(|path| std::path::absolute(&path).unwrap_or(path))
}

/// Looks at a configuration, as a server does when it starts.
pub fn check(file: &Path) -> Result<ConfigCheck, Failure> {
    check_config(file).map_err(failure)
}

/// The data directory that a configuration names; none when it names none, or can't be read.
pub fn data_dir(file: &Path) -> Option<PathBuf> {
    Settings::read(file).ok().and_then(|settings| settings.data)
}

/// Copies the state in a data directory to a new file.
pub fn back_up_state(data: &Path, to: &Path, overwrite: bool) -> Result<StateBackup, Failure> {
    cairn_server::back_up_state(data, to, overwrite).map_err(failure)
}

/// Puts such a copy into an empty data directory.
pub fn restore_state(from: &Path, data: &Path) -> Result<StateBackup, Failure> {
    cairn_server::restore_state(from, data).map_err(failure)
}

fn failure(error: ServerError) -> Failure {
    error.body().into()
}
