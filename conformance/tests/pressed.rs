//! Full, crowded, stalled: each scenario for seconds; others keep their latency, nothing is lost,
//! the message is clear.

mod short;

#[test]
fn full_volume_refuses_writes_keeps_what_it_has_and_takes_more_once_freed() {
    short::run("full", 1, false);
}

#[test]
fn full_host_file_system_stops_its_volume_alone_and_loses_nothing_flushed() {
    short::run("host-full", 1, false);
}

#[test]
fn memory_stays_within_its_limit_also_with_clients_that_take_nothing() {
    short::run("memory", 1, false);
}

#[test]
fn many_snapshots_do_not_slow_others_and_are_there_after_a_kill() {
    short::run("snapshots", 1, false);
}

#[test]
fn many_luns_are_listed_and_opened_after_a_kill() {
    short::run("luns", 1, false);
}

#[test]
fn two_hundred_sessions_are_served_and_one_too_many_is_told_why() {
    short::run("connections", 2, false);
}

#[test]
fn clients_that_stop_reading_hold_up_nobody_and_hold_no_space() {
    short::run("deaf", 1, false);
}

#[test]
fn write_that_is_cut_off_harms_nobody() {
    short::run("cut", 8, false);
}

#[test]
fn stalled_mirror_is_noticed_told_and_goes_on_later() {
    short::run("stalled", 1, false);
}
