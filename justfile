# The recipes of the project; `./test` needs none of them.

# what there is
default:
    @just --list --unsorted

# formatting, lints, house rules and quick tests: a few minutes, no root
check:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings
    cargo test --workspace --lib --bins

# what CI runs
ci:
    ./test

# every test, or those whose name contains a word
test *words:
    cargo test --workspace -- {{words}}

# replay one simulator seed as a timeline
sim seed:
    cargo run --quiet --release --package cairn-sim -- {{seed}}

# simulate seed after seed until one fails
soak:
    cargo run --quiet --release --package cairn-sim -- --soak

# the figures of docs/benchmarks.md: a table's name, or `all`
bench table="all" *flags:
    cargo build --release --package cairn-cli
    cargo run --release --package cairn-bench -- {{table}} {{flags}}

# programs of others against the real server, killed and crowded: a scenario's name, or `all`
conformance name="all" *rounds:
    cargo build --release --package cairn-cli
    cargo run --release --package cairn-conformance -- {{name}} {{rounds}}

# two servers, a mirror, a disaster, a failover, a proof
demo *flags:
    cargo run --release -- demo {{flags}}

# format the code
fmt:
    cargo fmt --all

# the API documentation of every crate
doc:
    cargo doc --workspace --no-deps --document-private-items
