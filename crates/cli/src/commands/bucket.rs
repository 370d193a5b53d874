//! `cairn bucket`.

use std::path::PathBuf;

use cairn_api::client::Client;
use cairn_api::{self as api, ErrorKind};

use super::image::bucket::contents;
use super::volume::segment;
use super::{follow, summary};
use crate::arguments::{AddBucket, Bucket};
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
                [] => format!("{name} is as it was\n{}", uses(&check.bucket)),
                changed => format!("{name} has changed:\n{}\n{}", changes(changed), uses(&check.bucket)),
            });
        }
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
    let AddBucket { name, place, endpoint, region, path_style, ca, credentials } = asked;
    segment(&name)?;
    let request = api::AddBucket {
        name,
        place,
        endpoint,
        region,
        path_style,
        authority: ca.map(absolute).transpose()?,
        credentials: credentials.map(absolute).transpose()?,
    };
    let job: api::Job = client.post("/v1/buckets", &request)?;
    let Some(api::JobOutcome::Bucket(check)) = follow(job, client, output)? else { return Ok(()) };
    tell(&check, output, |check| format!("added {}\n{}", check.bucket.name, show(&check.bucket)));
    Ok(())
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
            safe.collect::<Vec<_>>().join(", "),
            ago(bucket.probed_ms),
        ]
    };
    table(["NAME", "PLACE", "ENDPOINT", "SAFE FOR", "PROBED"], buckets.iter().map(row))
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
    lines.push(("probed", ago(bucket.probed_ms)));
    let lines: Vec<String> = lines.iter().map(|(label, value)| format!("{label:<12} {value}")).collect();
    let row = |found: &api::BucketAbility| [found.ability.clone(), found.verdict.clone(), found.says.clone()];
    let abilities = table(["ABILITY", "", ""], bucket.abilities.iter().map(row));
    let left: String = bucket.left.iter().map(|left| format!("\nleft for the next probe: {left}")).collect();
    format!("{}\n{}\n\n{abilities}{left}", lines.join("\n"), uses(bucket))
}
