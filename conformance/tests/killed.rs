//! Each scenario of kills for seconds, each kill a power cut: unflushed data is lost; `just
//! conformance` runs them for long.

mod short;

#[test]
fn flushed_blocks_and_snapshots_survive_kills_under_load() {
    let facts = short::run("blocks", 3, true);
    assert!(facts.is_none_or(|facts| facts.get("kills") >= 3 && facts.get("flushes") > 0));
}

#[test]
fn fio_verifies_what_it_flushed_before_a_kill() {
    short::run("fio", 1, true);
}

#[test]
fn copies_of_libnbd_and_qemu_survive_being_cut_and_repeated() {
    short::run("copies", 3, true);
}

#[test]
fn database_has_every_acknowledged_transaction_after_kills() {
    short::run("database", 2, true);
}

#[test]
fn database_comes_up_from_the_mirror_at_its_last_image() {
    short::run("database-mirror", 1, true);
}

#[test]
fn database_on_files_has_every_acknowledged_transaction_after_kills() {
    short::run("database-files", 2, true);
}

#[test]
fn database_on_files_comes_up_from_the_mirror_at_its_last_image() {
    short::run("database-files-mirror", 1, true);
}

#[test]
fn database_comes_up_from_a_bucket_after_the_loss_of_its_machine() {
    let facts = short::run("database-bucket", 1, false);
    assert!(facts.is_none_or(|facts| facts.get("machines lost") == 1));
}

#[test]
fn bucket_of_a_real_store_gives_back_each_image_and_fences_the_old_owner() {
    let facts = short::run("buckets-versitygw", 6, false);
    assert!(facts.is_none_or(|facts| facts.get("owners fenced") == 2));
}

#[test]
fn database_over_iscsi_on_disks_that_remember_has_every_acknowledged_transaction_after_kills() {
    let facts = short::run("initiator", 2, false);
    assert!(facts.is_none_or(|facts| facts.get("kills that the initiator got over") == 2));
}

#[test]
fn dropped_table_is_back_after_a_revert_with_every_acknowledged_transaction() {
    let facts = short::run("rewind", 2, false);
    let seen = |what: &'static str| facts.as_ref().is_none_or(|facts| facts.get(what) > 0);
    assert!(seen("transactions brought back") && seen("kills in a command"));
}

#[test]
fn git_on_files_has_every_acknowledged_commit_after_kills() {
    let facts = short::run("git", 3, true);
    assert!(facts.is_none_or(|facts| facts.get("commits that are there") > 0));
}

#[test]
fn build_on_files_comes_back_after_kills() {
    short::run("build", 2, true);
}

#[test]
fn fsx_on_files_finds_nothing_after_kills() {
    short::run("files-fsx", 2, true);
}

#[test]
fn pjdfstest_finds_nothing_but_what_is_listed() {
    short::run("posix", 1, false);
}

#[test]
fn fsx_and_e2fsck_find_nothing_after_kills() {
    short::run("fsx", 2, true);
}
