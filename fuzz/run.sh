#!/usr/bin/env bash
# fuzz/run.sh TARGET SECONDS [SEED]: fuzzes one target (or `all`, each for so long). With SANITIZE=1 the compiled core is
# built in a copy of the tree under AddressSanitizer and UndefinedBehaviorSanitizer first; CORE=folder uses and keeps
# such a copy. Where the process dies, the input that it died of is kept in fuzz/corpus. PYTHON chooses the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python} target=$1 seconds=$2 seed=${3:-0}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export FUZZ_CURRENT=$work/current PYTHONPATH=$PWD
preload=
if [ "${SANITIZE:-0}" != 0 ]; then
    core=${CORE:-$work/core}
    if ! ls "$core"/torch_tfrecord/native/frames.*.so > /dev/null 2>&1; then
        mkdir -p "$core"
        cp -r setup.py pyproject.toml README.md LICENSE torch_tfrecord index_tools fuzz "$core"
        find "$core/torch_tfrecord" -name '*.so' -delete
        (cd "$core" && TORCH_TFRECORD_CFLAGS="-fsanitize=address,undefined -fno-sanitize-recover=all -g -O1" \
            "$python" setup.py --quiet build_ext --inplace --force)
        ls "$core"/torch_tfrecord/native/{frames,columns,memory}.*.so > /dev/null
    fi
    # Leaks are Python's own affair; the sanitizers must come first into the process.
    export ASAN_OPTIONS=detect_leaks=0:halt_on_error=1:allocator_may_return_null=1:handle_segv=0
    export UBSAN_OPTIONS=print_stacktrace=1 PYTHONPATH=$core PYTHONMALLOC=malloc
    preload="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)"
    cd "$core"
fi
status=0
LD_PRELOAD=$preload "$python" fuzz/engine.py "$target" --seconds "$seconds" --seed "$seed" 2> "$work/log" || status=$?
if [ -e "$FUZZ_CURRENT" ]; then # it died, and did not end by itself
    tail -n 60 "$work/log" >&2
    kept=$OLDPWD/fuzz/corpus/died-$(date +%s)
    [ "${SANITIZE:-0}" != 0 ] || kept=$PWD/fuzz/corpus/died-$(date +%s)
    "$python" -c 'import sys; d = open(sys.argv[1], "rb").read(); open(sys.argv[2], "wb").write(d[8:8 + int.from_bytes(d[:8], "little")])' "$FUZZ_CURRENT" "$kept"
    echo "$target: died (status $status); its input is $kept" >&2
fi
exit "$status"
