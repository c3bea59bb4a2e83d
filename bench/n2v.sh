#!/bin/bash
# Noise2Void and N2V2, Clearshot beside CAREamics: the same noisy images, all four at the same time on two cores, one of each program on each core; then with the cores swapped.
#
#     bench/n2v.sh DATA/w2s OUT [MINUTES=1,2,5,10]
#
# CLEARSHOT says which program, PYTHON an interpreter with numpy, tifffile and matplotlib, CAREAMICS one with CAREamics. The lines of all runs are in OUT/*.jsonl, the picture is OUT/n2v.png.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
data=$1 out=$2 minutes=${3:-1,2,5,10}
mkdir -p "$out"

ours() { # CORE NAME OPTIONS...
    local core=$1 name=$2
    shift 2
    taskset -c "$core" "${PYTHON:-python3}" "$here/n2v_clearshot.py" --data "$data" --minutes "$minutes" --out "$out/run-$name" \
        --clearshot "${CLEARSHOT:-$here/../target/release/clearshot}" "$@" >"$out/clearshot-$name.jsonl"
}

theirs() { # CORE NAME OPTIONS...
    local core=$1 name=$2
    shift 2
    OMP_NUM_THREADS=1 taskset -c "$core" "${CAREAMICS:-python3}" "$here/n2v_careamics.py" --data "$data" --minutes "$minutes" --work "$out/careamics-$name" "$@" \
        2>"$out/careamics-$name.log" | grep '^{' >"$out/careamics-$name.jsonl"
}

for round in 1 2; do
    one=$((round - 1)) other=$((2 - round))
    theirs $one n2v-$round &
    ours $other n2v-$round --plain &
    theirs $other n2v2-$round --n2v2 &
    ours $one n2v2-$round --n2v2 &
    wait
done
ours 0 as-it-is
"${PYTHON:-python3}" "$here/n2v_plot.py" "$out/n2v.png" "$out"/*.jsonl
