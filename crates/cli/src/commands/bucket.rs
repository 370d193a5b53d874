//! `cairn bucket`.

use std::path::PathBuf;

use cairn_api::client::Client;
use cairn_api::{self as api, ErrorKind};

use super::image::bucket::contents;
use super::volume::segment;
use super::{follow, summary};
use crate::arguments::{AddBucket, Bucket, BucketKey};
use crate::exit::Failure;
use crate::output::{Output, ago, print_line, table};

/// Runs a command on buckets.
pub fn run(command: Bucket, client: &Client, output: Output) -> Result<(), Failure> {
    match command {
        Bucket::Add(asked) => add(asked, client, output)?,
        Bucket::List => {
            let buckets: Vec<api::Bucket> = client.get("/v1/buckets")?;
            output.show(&buckets, |buckets| list(buckets));
        }
        Bucket::Show { name } => {
            let bucket: api::Bucket = client.get(&path(&name)?)?;
            let contents = match output.json || output.quiet {
                true => None,
                false => Some(contents(&name, client)),
            };
            output.show(&bucket, |bucket| match &contents {
                // A store that does not answer hides nothing of the rest.
                Some(Ok(contents)) => format!("{}\n\ncontent      {contents}", show(bucket)),
                Some(Err(failure)) => {
                    format!("{}\n\ncontent      not known: {}", show(bucket), failure.body.message)
                }
                None => show(bucket),
            });
        }
        Bucket::Check { name } => {
            let job: api::Job = client.post(&format!("{}/check", path(&name)?), &())?;
            let Some(api::JobOutcome::Bucket(check)) = follow(job, client, output)? else { return Ok(()) };
            tell(&check, output, |check| match &check.changed[..] {
                [] => format!("{name}{} is as it was\n{}", encrypted(&check.bucket), uses(&check.bucket)),
                changed => {
                    let of = encrypted(&check.bucket);
                    format!("{name}{of} has changed:\n{}\n{}", changes(changed), uses(&check.bucket))
                }
            });
        }
        Bucket::Key(command) => key(command, client, output)?,
        Bucket::Delete { name, dry_run } => {
            let query = if dry_run { "?dry_run=true" } else { "" };
            let bucket: api::Bucket = client.get(&path(&name)?)?;
            let () = client.delete(&format!("{}{query}", path(&name)?))?;
            match dry_run {
                true => output.show(&bucket, |bucket| {
                    format!("{name} would be deleted; objects at {} stay; nothing was done", bucket.place)
                }),
                false => output.tell(&serde_json::json!({ "deleted": name }), |_| {
                    format!("deleted {name}; objects at {} stay", bucket.place)
                }),
            }
        }
    }
    Ok(())
}

fn add(asked: AddBucket, client: &Client, output: Output) -> Result<(), Failure> {
    let AddBucket { name, place, endpoint, region, path_style, ca, credentials, key } = asked;
    segment(&name)?;
    let request = api::AddBucket {
        name,
        place,
        endpoint,
        region,
        path_style,
        authority: ca.map(absolute).transpose()?,
        credentials: credentials.map(absolute).transpose()?,
        key: key.map(absolute).transpose()?,
    };
    let job: api::Job = client.post("/v1/buckets", &request)?;
    let Some(api::JobOutcome::Bucket(check)) = follow(job, client, output)? else { return Ok(()) };
    tell(&check, output, |check| format!("added {}\n{}", check.bucket.name, show(&check.bucket)));
    Ok(())
}

/// Runs a command on the recipients of an encrypted bucket.
fn key(command: BucketKey, client: &Client, output: Output) -> Result<(), Failure> {
    match command {
        BucketKey::List { name } => {
            let keys: api::BucketKeys = client.get(&format!("{}/keys", path(&name)?))?;
            output.show(&keys, recipients);
        }
        BucketKey::Add { name, recipient } => {
            let request = api::AddBucketRecipient { recipient: recipient.clone() };
            let keys: api::BucketKeys = client.post(&format!("{}/keys", path(&name)?), &request)?;
            output.tell(&keys, |_| format!("{recipient} opens {name} now"));
        }
        BucketKey::Remove { name, recipient } => {
            output.confirm(&format!(
                "this removes recipient {recipient} of {name}. A server that has opened the bucket may \
                 have kept its key, and can read all data in it"
            ))?;
            let () = client.delete(&format!("{}/keys/{}", path(&name)?, segment(&recipient)?))?;
            output.tell(&serde_json::json!({ "removed": recipient }), |_| {
                format!("removed {recipient} from {name}")
            });
        }
        BucketKey::Set { name, file } => {
            let request = api::SetBucketKey { key: absolute(file)? };
            let bucket: api::Bucket = client.post(&format!("{}/key", path(&name)?), &request)?;
            output.tell(&bucket, |bucket| match &bucket.encryption {
                Some(own) => format!("{name} is opened with {}", own.key_file),
                None => format!("{name} is not encrypted"),
            });
        }
    }
    Ok(())
}

fn recipients(keys: &api::BucketKeys) -> String {
    let row = |found: &api::BucketRecipient| {
        [found.recipient.clone(), if found.own { "this server" } else { "" }.to_owned()]
    };
    let recipients = table(["RECIPIENT", ""], keys.recipients.iter().map(row));
    format!("key of the bucket: {}\n\n{recipients}", keys.key_id)
}

/// The path of a file as the server can find it.
fn absolute(path: PathBuf) -> Result<String, Failure> {
    let what = |why: String| Failure::new(ErrorKind::Usage, why, "name the file by its path from `/` on");
    let found = std::path::absolute(&path).map_err(|error| what(format!("{}: {error}", path.display())))?;
    found.to_str().map(str::to_owned).ok_or_else(|| what(format!("{} is not UTF-8", found.display())))
}

fn tell(check: &api::BucketCheck, output: Output, people: impl FnOnce(&api::BucketCheck) -> String) {
    if output.json {
        print_line(&summary(check).to_string());
    } else if !output.quiet {
        print_line(&people(check));
    }
}

fn path(name: &str) -> Result<String, Failure> {
    Ok(format!("/v1/buckets/{}", segment(name)?))
}

fn noun(what: &str) -> &str {
    match what {
        "dump" => "image dumps",
        "lock" => "locks",
        "mirror" => "mirrors",
        "volume" => "volumes",
        other => other,
    }
}

fn encrypted(bucket: &api::Bucket) -> &'static str {
    if bucket.encryption.is_some() { " (encrypted; its key opens)" } else { "" }
}

/// The permitted uses of a bucket, a line each, with notes.
fn uses(bucket: &api::Bucket) -> String {
    let mut text = Vec::new();
    for found in &bucket.uses {
        let verdict = if found.allowed { "safe" } else { "NOT SAFE" };
        text.push(format!("{:<12} {verdict}", noun(&found.what)));
        text.extend(found.reasons.iter().map(|reason| format!("             {reason}")));
    }
    text.join("\n")
}

fn changes(changed: &[api::BucketChange]) -> String {
    let row = |change: &api::BucketChange| {
        [change.ability.clone(), change.before.clone(), change.now.clone(), change.says.clone()]
    };
    table(["ABILITY", "BEFORE", "NOW", ""], changed.iter().map(row))
}

fn list(buckets: &[api::Bucket]) -> String {
    let row = |bucket: &api::Bucket| {
        let safe = bucket.uses.iter().filter(|found| found.allowed).map(|found| noun(&found.what));
        [
            bucket.name.clone(),
            bucket.place.clone(),
            bucket.endpoint.clone().unwrap_or_default(),
            if bucket.encryption.is_some() { "yes" } else { "no" }.to_owned(),
            safe.collect::<Vec<_>>().join(", "),
            ago(bucket.probed_ms),
        ]
    };
    table(["NAME", "PLACE", "ENDPOINT", "ENCRYPTED", "SAFE FOR", "PROBED"], buckets.iter().map(row))
}

fn show(bucket: &api::Bucket) -> String {
    let mut lines = vec![("place", bucket.place.clone())];
    let mut line = |label, value: &Option<String>| {
        if let Some(value) = value {
            lines.push((label, value.clone()));
        }
    };
    line("endpoint", &bucket.endpoint);
    line("region", &bucket.region);
    line("certificates", &bucket.authority);
    line("credentials", &bucket.credentials);
    let encryption = match &bucket.encryption {
        Some(own) => format!("AES-256-GCM, key {}", own.key_id),
        None => "none".to_owned(),
    };
    lines.push(("encryption", encryption));
    if let Some(own) = &bucket.encryption {
        lines.push(("key file", own.key_file.clone()));
        lines.push(("public key", own.recipient.clone()));
    }
    lines.push(("probed", ago(bucket.probed_ms)));
    let lines: Vec<String> = lines.iter().map(|(label, value)| format!("{label:<12} {value}")).collect();
    let row = |found: &api::BucketAbility| [found.ability.clone(), found.verdict.clone(), found.says.clone()];
    let abilities = table(["ABILITY", "", ""], bucket.abilities.iter().map(row));
    let left: String = bucket.left.iter().map(|left| format!("\nleft for the next probe: {left}")).collect();
    format!("{}\n{}\n\n{abilities}{left}", lines.join("\n"), uses(bucket))
}
