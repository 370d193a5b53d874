#!/bin/sh
# Installs Cairn @VERSION@ into /usr/local/bin. It checks the signature of the list of checksums, and
# then the checksum of the archive, before it uses a byte of it.
#
#   sh install.sh [--url URL | --from DIR] [--key 'ssh-ed25519 ...'] [--prefix DIR]
#
# Needs curl or wget (unless --from), ssh-keygen (of OpenSSH 8.0 and newer), sha256sum, tar and gzip.
set -eu
version='@VERSION@' url='@URL@' key='@KEY@' from='' prefix=/usr/local
fail() {
    echo "install.sh: $1" >&2
    [ -z "${2:-}" ] || echo "next: $2" >&2
    exit 1
}
while [ $# -gt 0 ]; do
    [ $# -ge 2 ] || fail "$1 needs a value"
    case $1 in
        --url) url=$2 ;;
        --from) from=$2 ;;
        --key) key=$2 ;;
        --prefix) prefix=$2 ;;
        *) fail "unknown option $1" ;;
    esac
    shift 2
done
case $(uname -s)-$(uname -m) in
    Linux-x86_64) machine=x86_64 ;;
    Linux-aarch64 | Linux-arm64) machine=aarch64 ;;
    *) fail "there is no program for $(uname -sm)" "build it from source" ;;
esac
[ -n "$key" ] || fail "this release was not signed" "pass the key that you trust with --key"
[ -n "$from$url" ] || fail "no address to download from" "pass --url URL, or --from DIR with the files"
command -v ssh-keygen >/dev/null || fail "ssh-keygen is missing, which checks the signature" "install openssh-client"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
archive=cairn-$version-$machine-linux.tar.gz
for file in SHA256SUMS SHA256SUMS.sig "$archive"; do
    if [ -n "$from" ]; then
        cp "$from/$file" "$work/$file"
    elif command -v curl >/dev/null; then
        curl -fsSL --proto '=https' -o "$work/$file" "$url/$file" || fail "cannot download $url/$file"
    else
        wget -q -O "$work/$file" "$url/$file" || fail "cannot download $url/$file"
    fi
done
cd "$work"
echo "release@cairn namespaces=\"cairn-release\" $key" > signers
ssh-keygen -q -Y verify -f signers -I release@cairn -n cairn-release -s SHA256SUMS.sig < SHA256SUMS >/dev/null ||
    fail "the signature of SHA256SUMS is not of the release key" "do not use these files; report it"
grep -E "^[0-9a-f]{64}  $archive\$" SHA256SUMS > sum || fail "SHA256SUMS does not list $archive"
sha256sum -c --status sum || fail "$archive differs from its signed checksum" "do not use it; download it again"
tar -xzf "$archive"
mkdir -p "$prefix/bin"
# Beside it first: a server that runs keeps its program.
cp "cairn-$version/usr/bin/cairn" "$prefix/bin/cairn.new"
chmod 755 "$prefix/bin/cairn.new"
mv "$prefix/bin/cairn.new" "$prefix/bin/cairn"
echo "installed $("$prefix/bin/cairn" --version) as $prefix/bin/cairn"
echo "next: cairn demo, or as a service: cairn service install"
