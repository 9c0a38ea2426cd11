#!/usr/bin/env bash
# The compiled core under AddressSanitizer and UndefinedBehaviorSanitizer: builds it in a copy of the tree, and runs the
# tests that feed it damaged, cut and random bytes, without those of its Python fallbacks and of memory kept
# (the sanitizers keep what is freed). Any report ends the run. Arguments go to pytest; PYTHON chooses the interpreter.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r setup.py pyproject.toml README.md LICENSE CHANGELOG.md torch_tfrecord index_tools tests fuzz "$work"
cd "$work"
find torch_tfrecord -name '*.so' -delete
export TORCH_TFRECORD_CFLAGS="-fsanitize=address,undefined -fno-sanitize-recover=all -g -O1"
"$python" setup.py --quiet build_ext --inplace --force
ls torch_tfrecord/native/{columns,examples,frames,inflate,memory}.*.so > /dev/null # what does not compile is left out without an error

# Leaks are Python's own affair, and torch catches signals; the sanitizers must come first into the process.
export ASAN_OPTIONS=detect_leaks=0:halt_on_error=1:allocator_may_return_null=1
export UBSAN_OPTIONS=print_stacktrace=1
export PYTHONPATH="$work" PYTHONMALLOC=malloc
sanitized() { LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)" "$python" "$@"; }
sanitized fuzz/engine.py columns --count 3000
sanitized -m pytest -q -x \
    -p no:cacheprovider -k "not twin and not kept" tests/records/test_packed_records.py tests/native/test_native_reads.py tests/records/test_read_batch.py \
    tests/test_batch_memory.py tests/lengths/test_padded_rows.py tests/records/test_scan.py tests/native/test_native_columns.py tests/native/test_inflate.py tests/protobuf/test_written_rows.py \
    tests/media/test_image_stacks.py tests/media/test_crop_jobs.py \
    tests/media/test_image_bombs.py "$@"
