# The recipes of the project; `./test` needs none of them.

# what there is
default:
    @just --list --unsorted

# format, lints, house rules, unit tests and 50 seeds: no root
check:
    ./test quick

# what CI runs
ci:
    ./test

# every test, or those whose name contains a word
test *words:
    cargo test --workspace -- {{words}}

# replay one simulator seed as a timeline
sim seed:
    cargo run --quiet --release --package cairn-sim -- {{seed}}

# simulate seed after seed for so many minutes, or until one fails
soak minutes="60":
    cargo build --quiet --release --package cairn-sim
    # memory of a megabyte at a time is kept, not given back and asked for again at every cut
    MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=1073741824 target/release/cairn-sim --soak {{minutes}}

# change the roles of two servers under load so many times, with kills, disasters and checksums
soak-roles swaps="1000":
    CAIRN_ROLE_SWAPS={{swaps}} cargo test --release --package cairn-cli --test roles -- --nocapture planned_changes

# the figures of docs/benchmarks.md: a table's name, or `all`
bench table="all" *flags:
    cargo build --release --package cairn-cli
    cargo run --release --package cairn-bench -- {{table}} {{flags}}

# the time until the page is painted in Chromium, as medians of nine loads; for a quiet machine
first-paint *flags="--release":
    cargo test --workspace {{flags}} --test page -- --ignored --nocapture first_paint_of_the_page

# programs of others against the real server, killed and crowded: a scenario's name, or `all`
conformance name="all" *rounds:
    cargo build --release --package cairn-cli
    cargo run --release --package cairn-conformance -- {{name}} {{rounds}}

# open-iscsi in a real Linux kernel, in a guest under qemu: `initiator` (CHAP, digests, a killed server, reservations), `database` (PostgreSQL, killed) or `csi` (csi-sanity with iSCSI and NBD)
guest *scenario:
    conformance/guest/run {{scenario}}

# hostile bytes for one decoder for so many seconds; `cargo run -p cairn-fuzz -- list` names them. Needs cargo-fuzz and a nightly compiler
fuzz target seconds="600":
    mkdir -p fuzz/found/{{target}}
    cargo +nightly fuzz run --sanitizer none {{target}} fuzz/found/{{target}} fuzz/corpus/{{target}} -- \
        -max_total_time={{seconds}} -rss_limit_mb=4096 -malloc_limit_mb=1024 -timeout=60 -max_len=65536

# the same for every decoder, one after the other
fuzz-all seconds="600":
    for target in $(cargo run --quiet --package cairn-fuzz -- list | grep -v canary); do just fuzz "$target" {{seconds}} || exit 1; done

# the messages of CSI from csi.proto; --check only compares
csi-proto *flags:
    cargo run --quiet --manifest-path crates/proto/csi/generator/Cargo.toml -- {{flags}}

# two servers, a mirror, a disaster, a failover, a proof
demo *flags:
    cargo run --release -- demo {{flags}}

# the files of a release, in target/release-VERSION: packages, image, checksums; flags as in packaging/release
release *flags:
    packaging/release {{flags}}

# the documents as a book, in target/book; needs mdbook (`cargo install mdbook`)
book:
    mdbook build

# every test by crate, with the first sentence of its comment
test-index:
    cargo run --quiet --package cairn-tidy -- tests

# format the code
fmt:
    cargo fmt --all

# the API documentation of every crate
doc:
    cargo doc --workspace --no-deps --document-private-items
