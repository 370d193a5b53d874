//! `cairn quota`.

use cairn_api::client::Client;
use cairn_api::{self as api, ErrorKind};
use cairn_files::{path_bytes, path_text};

use super::volume::segment;
use crate::arguments::{CountLimit, Quota, SetQuota, SizeLimit, TreeName};
use crate::exit::Failure;
use crate::output::{Output, name as called, path as shown, size, table};

/// Runs a command on quotas.
pub fn run(command: Quota, client: &Client, output: Output) -> Result<(), Failure> {
    match command {
        Quota::List { volume } => {
            let path = format!("/v1/volumes/{}/files/quotas", segment(&volume)?);
            let quotas: Vec<api::Quota> = client.get(&path)?;
            output.show(&quotas, |quotas| list(quotas));
            Ok(())
        }
        Quota::Show { name } => {
            let quota = find(&name, client)?;
            output.show(&quota, |quota| list(std::slice::from_ref(quota)));
            Ok(())
        }
        Quota::Set(asked) => set(&asked, client, output),
        Quota::Delete { name } => {
            find(&name, client)?;
            let lifted = SetQuota { name, size: Some(SizeLimit(0)), files: Some(CountLimit(0)) };
            set(&lifted, client, output)
        }
    }
}

fn find(name: &TreeName, client: &Client) -> Result<api::Quota, Failure> {
    let path = format!("/v1/volumes/{}/files/quotas", segment(&name.volume)?);
    let quotas: Vec<api::Quota> = client.get(&path)?;
    let wanted = path_text(&name.path);
    quotas.into_iter().find(|quota| quota.path.as_ref() == Some(&wanted)).ok_or_else(|| {
        let what = format!("{}:{} has no quota", name.volume, called(&name.path));
        let next = format!("list what exists with `cairn quota list {}`", name.volume);
        Failure::new(ErrorKind::NotFound, what, next)
    })
}

fn set(asked: &SetQuota, client: &Client, output: Output) -> Result<(), Failure> {
    let name = &asked.name;
    if let Some(snapshot) = &name.snapshot {
        let what =
            format!("`{}@{snapshot}` is a snapshot, and keeps the quotas that there were", name.volume);
        let next = format!("give a directory of the volume itself a quota: {}:/PATH", name.volume);
        return Err(Failure::new(ErrorKind::Usage, what, next));
    }
    let request = api::SetQuota {
        path: path_text(&name.path),
        path_bytes: path_bytes(&name.path),
        bytes: asked.size.map(|limit| limit.0),
        files: asked.files.map(|limit| limit.0),
    };
    let path = format!("/v1/volumes/{}/files/quotas", segment(&name.volume)?);
    let quota: Option<api::Quota> = client.patch(&path, &request)?;
    output.tell(&quota, |quota| match quota {
        Some(quota) => list(std::slice::from_ref(quota)),
        None => format!("{}:{} has no quota", name.volume, called(&name.path)),
    });
    Ok(())
}

fn list(quotas: &[api::Quota]) -> String {
    let row = |quota: &api::Quota| {
        let files = quota.limit_files.map_or("-".to_owned(), |files| files.to_string());
        [
            match &quota.path {
                Some(path) => shown(path, quota.path_bytes.as_deref()),
                None => "removed, and in use".to_owned(),
            },
            size(quota.used_bytes),
            quota.limit_bytes.map_or("-".to_owned(), size),
            quota.used_files.to_string(),
            files,
        ]
    };
    table(["DIRECTORY", "USED", "OF", "FILES", "OF"], quotas.iter().map(row))
}
