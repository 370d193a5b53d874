//! The search for credentials, and the content of a document of buckets.

use cairn_bucket::Service;

use super::*;

#[test]
fn credentials_are_looked_for_where_tools_of_the_service_look() {
    let found = |service: Service, set: &[&str]| {
        Source::found(&service, &|name| set.contains(&name).then(|| "value".to_owned()))
    };
    assert_eq!(found(Service::S3, &["AWS_ACCESS_KEY_ID"]), Source::Environment);
    assert_eq!(found(Service::S3, &[]), Source::Role);
    assert_eq!(found(Service::Google, &["AWS_ACCESS_KEY_ID"]), Source::Role);
    assert_eq!(found(Service::Google, &["GOOGLE_APPLICATION_CREDENTIALS"]), Source::Environment);
    assert_eq!(found(Service::Azure("account".into()), &["AZURE_STORAGE_ACCOUNT_KEY"]), Source::Environment);

    let home = tempfile::tempdir().expect("a directory");
    let file = home.path().join(".aws/credentials");
    fs::create_dir_all(file.parent().expect("a parent")).expect("a directory");
    fs::write(&file, "[work]\n").expect("a file");
    let variables = |name: &str| match name {
        "HOME" => Some(home.path().display().to_string()),
        "AWS_PROFILE" => Some("work".to_owned()),
        _ => None,
    };
    let source = Source::found(&Service::S3, &variables);
    assert_eq!(source, Source::Section(file.clone(), "work".to_owned()));
    assert_eq!(source.shown(), format!("{} [work]", file.display()));
}

#[test]
fn job_that_makes_or_deletes_a_bucket_is_alone_with_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let buckets = Arc::new(Buckets::open(dir.path(), Arc::new(cairn_device::SystemClock::new())));
    let busy = |outcome: Result<InUse, ServerError>| {
        matches!(outcome, Err(ServerError::Buckets(BucketsError::InUse { .. })))
    };
    let first = buckets.use_by("b", "bucket check").expect("free");
    let second = buckets.use_by("b", "bucket check").expect("two may look");
    assert!(busy(buckets.use_by("b", "bucket delete")) && buckets.refuse_used("b").is_err());
    drop(first);
    assert!(busy(buckets.use_by("b", "bucket delete")));
    drop(second);
    let alone = buckets.use_by("b", "bucket delete").expect("free");
    assert!(busy(buckets.use_by("b", "bucket check")));
    assert!(buckets.use_by("other", "bucket check").is_ok());
    drop(alone);
    assert!(buckets.refuse_used("b").is_ok() && buckets.uses.lock().is_empty());
}
