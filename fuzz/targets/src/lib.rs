//! Hostile bytes for every decoder of Cairn: a function a target, for stable Rust and for libFuzzer
//! alike.
//!
//! Each function takes any bytes and may refuse them. It must not panic or take memory without
//! bound, and if a format is canonical, accepted input must be written again as the same bytes.
//! Bytes protected by a checksum are tried twice: as they came, and with the checksum made right,
//! so that the code after the check is reached. [`short`] runs a target for seconds without a
//! sanitizer or a nightly compiler; `cargo fuzz` runs the same functions for hours. The corpus of a
//! target is `fuzz/corpus/TARGET`, made by [`seeds`] and extended by inputs that crashed once.
//!
//! [`CANARY`] panics on a word: it proves that a panic anywhere would be seen.

mod blocks;
mod bucket_images;
mod bucket_seals;
mod buckets;
mod dumps;
mod fuse;
mod histories;
mod iscsi;
mod leaves;
mod mirrors;
mod nbd;
mod nbd_sessions;
mod nfs;
mod scene;
pub mod seeds;
pub mod short;
mod sparse;
mod streams;
mod tapes;
mod texts;
mod traces;
mod trees;
mod volumes;

/// The target that must fail.
pub const CANARY: &str = "canary";

/// A decoder, and how to reach it.
pub struct Target {
    /// As in `cargo fuzz run NAME`.
    pub name: &'static str,
    /// Tries to make it fail; panics when it does.
    pub run: fn(&[u8]),
    /// Inputs from real bytes.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Inputs of a short run: few where each makes a volume or a connection.
    pub short_inputs: u64,
}

const FAST: u64 = 20_000;
const SLOW: u64 = 250;

const fn target(
    name: &'static str,
    run: fn(&[u8]),
    seeds: fn() -> Vec<Vec<u8>>,
    short_inputs: u64,
) -> Target {
    Target { name, run, seeds, short_inputs }
}

/// All targets.
pub const TARGETS: &[Target] = &[
    target(CANARY, canary, canary_seeds, FAST),
    target("superblock", blocks::superblock, blocks::superblock_seeds, FAST),
    target("log_device", blocks::log_device, blocks::log_device_seeds, FAST),
    target("node", blocks::node, blocks::node_seeds, FAST),
    target("inode", blocks::inode, blocks::inode_seeds, FAST),
    target("directory", blocks::directory, blocks::directory_seeds, FAST),
    target("leaf", leaves::leaf, leaves::leaf_seeds, FAST),
    target("extended", leaves::extended, leaves::extended_seeds, FAST),
    target("file_tree", leaves::file_tree, leaves::file_tree_seeds, SLOW),
    target("fuse_requests", fuse::requests, fuse::request_seeds, SLOW),
    target("snapshot_table", blocks::snapshot_table, blocks::snapshot_table_seeds, FAST),
    target("redirect_map", blocks::redirect_map, blocks::redirect_map_seeds, FAST),
    target("label_index", blocks::label_index, blocks::label_index_seeds, FAST),
    target("log_record", blocks::log_record, blocks::log_record_seeds, FAST),
    target("log_ring", volumes::log_ring, volumes::log_ring_seeds, SLOW),
    target("volume_image", volumes::volume_image, volumes::volume_image_seeds, SLOW),
    target("history_structs", histories::structs, histories::structs_seeds, FAST),
    target("history_log", histories::log, histories::log_seeds, SLOW),
    target("history_image", histories::image, histories::image_seeds, SLOW),
    target("stream_structs", streams::structs, streams::struct_seeds, FAST),
    target("stream_reader", streams::reader, streams::stream_seeds, 5_000),
    target("stream_apply", streams::applied, streams::apply_seeds, SLOW),
    target("image_dump", dumps::image_dump, dumps::image_dump_seeds, SLOW),
    target("bucket_index", buckets::index, buckets::index_seeds, FAST),
    target("bucket_skeleton", buckets::skeleton, buckets::skeleton_seeds, FAST),
    target("bucket_images", bucket_images::images, bucket_images::seeds, 5_000),
    target("bucket_seals", bucket_seals::seals, bucket_seals::seeds, FAST),
    target("bsd_dump", tapes::reader, tapes::reader_seeds, 5_000),
    target("mirror_messages", mirrors::messages, mirrors::message_seeds, FAST),
    target("mirror_source", mirrors::source, mirrors::source_seeds, SLOW),
    target("mirror_destination", mirrors::destination, mirrors::destination_seeds, SLOW),
    target("nbd_handshake", nbd::handshake, nbd::handshake_seeds, FAST),
    target("nbd_requests", nbd::requests, nbd::request_seeds, FAST),
    target("nbd_client", nbd::client, nbd::client_seeds, FAST),
    target("nbd_session", nbd_sessions::session, nbd_sessions::session_seeds, 2_000),
    target("nbd_commands", nbd_sessions::commands, nbd_sessions::command_seeds, 1_000),
    target("nfs_calls", nfs::calls, nfs::call_seeds, FAST),
    target("nfs_replies", nfs::replies, nfs::reply_seeds, FAST),
    target("iscsi_login", iscsi::login, iscsi::login_seeds, FAST),
    target("iscsi_session", iscsi::session, iscsi::session_seeds, FAST),
    target("iscsi_cdb", iscsi::cdb, iscsi::cdb_seeds, FAST),
    target("token", texts::token, texts::token_seeds, FAST),
    target("peer_hello", texts::peer_hello, texts::peer_hello_seeds, FAST),
    target("configuration", texts::configuration, texts::configuration_seeds, FAST),
    target("state_documents", texts::state_documents, texts::state_document_seeds, FAST),
    target("trace_cairn", traces::cairn, traces::cairn_seeds, 5_000),
    target("trace_text", traces::text, traces::text_seeds, 5_000),
    target("trace_binary", traces::binary, traces::binary_seeds, 5_000),
    target("trace_analysis", traces::analysis, traces::analysis_seeds, SLOW),
    target("api_bodies", texts::api_bodies, texts::api_body_seeds, FAST),
];

/// Runs a target on one input.
///
/// # Panics
/// When the target fails on it, which a fuzzer looks for; and when there is no such target.
pub fn run(name: &str, data: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    (target.expect("the programs of libFuzzer are named after targets").run)(data);
}

fn canary(data: &[u8]) {
    assert!(!data.starts_with(b"cairn?!"), "the canary is dead: a crash is seen");
}

fn canary_seeds() -> Vec<Vec<u8>> {
    vec![b"cairn".to_vec(), b"cairn?".to_vec()]
}
