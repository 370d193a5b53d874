//! Makes `generated/csi.v1.rs` of `csi.proto`: messages and the traits of servers, without the
//! comments, which are in the protocol file. `--check` only compares, and fails on a difference.

use std::path::Path;
use std::process::ExitCode;

use sha2::{Digest, Sha256};

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let proto = root.join("csi.proto");
    let target = root.join("generated/csi.v1.rs");
    let out = std::env::temp_dir().join(format!("cairn-proto-csi-{}", std::process::id()));
    std::fs::create_dir_all(&out).expect("a folder for the result");
    let mut compiler = protox::Compiler::new([&root]).expect("a folder");
    // Without the places in the source there are no comments.
    compiler.include_source_info(false).include_imports(true);
    let set = compiler.open_file(&proto).expect("the protocol compiles").file_descriptor_set();
    tonic_prost_build::configure()
        .build_client(false)
        .build_transport(false)
        .out_dir(&out)
        .compile_fds(set)
        .expect("Rust is made of it");
    let made = std::fs::read_to_string(out.join("csi.v1.rs")).expect("the result");
    let _ = std::fs::remove_dir_all(&out);
    let digest = Sha256::digest(std::fs::read(&proto).expect("the protocol"));
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let head = format!(
        "//! Messages and services of `csi.v1`, generated from csi.proto (SHA-256 {digest}).\n\
         //!\n\
         //! Licence of csi.proto: Apache-2.0, The CSI Authors.\n\n"
    );
    let text = head + &made;
    if std::env::args().any(|argument| argument == "--check") {
        return match std::fs::read_to_string(&target).is_ok_and(|there| there == text) {
            true => ExitCode::SUCCESS,
            false => {
                eprintln!("{} is not made of csi.proto: run this without --check", target.display());
                ExitCode::FAILURE
            }
        };
    }
    std::fs::write(&target, text).expect("it is written");
    ExitCode::SUCCESS
}
