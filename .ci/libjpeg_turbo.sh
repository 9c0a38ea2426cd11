#!/usr/bin/env bash
# Builds libjpeg-turbo as a static library for the wheels: a pinned source, held against its checksum.
#   .ci/libjpeg_turbo.sh PREFIX [SOURCE]    SOURCE: an unpacked source that is there already, not downloaded
# Static and hidden, so that it meets no other libjpeg in the process; position independent, to go into jpeg.so.
set -euo pipefail

VERSION=3.1.4.1
SHA256=ecae8008e2cc9ade2f2c1bb9d5e6d4fb73e7c433866a056bd82980741571a022
prefix=$1
source=${2:-}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ -z "$source" ]; then
    name=libjpeg-turbo-$VERSION
    curl --fail --location --retry 3 --silent --show-error --output "$work/$name.tar.gz" \
        "https://github.com/libjpeg-turbo/libjpeg-turbo/releases/download/$VERSION/$name.tar.gz"
    # macOS has shasum, the manylinux images sha256sum.
    if command -v sha256sum > /dev/null; then sum=(sha256sum); else sum=(shasum -a 256); fi
    echo "$SHA256  $work/$name.tar.gz" | "${sum[@]}" --check
    tar -xzf "$work/$name.tar.gz" -C "$work"
    source=$work/$name
fi

# Its loops for x86-64 are written in NASM's language; those for ARM are C. Without them decoding takes twice as long.
if [ "$(uname -m)" = x86_64 ] && ! command -v nasm > /dev/null; then
    dnf install --assumeyes --enablerepo=powertools nasm
fi

cmake -S "$source" -B "$work/build" \
    -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_INSTALL_PREFIX="$prefix" \
    -DCMAKE_INSTALL_LIBDIR=lib \
    -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
    -DCMAKE_C_VISIBILITY_PRESET=hidden \
    -DENABLE_SHARED=OFF \
    -DREQUIRE_SIMD=ON \
    -DWITH_TURBOJPEG=OFF \
    -DWITH_TOOLS=OFF \
    -DWITH_TESTS=OFF
cmake --build "$work/build" --parallel 4
cmake --install "$work/build"
