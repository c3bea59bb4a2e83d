#!/usr/bin/env bash
# What can go wrong when several ranks train, beside kill -9 (ranks_faults.sh): a rank that starts late, a full disk, a wrong number of ranks.
#
#   bench/ranks_trouble.sh PROGRAM FOLDER [LATE_SECONDS]
#
# MPICH's mpiexec is in the path (`pip install mpich`). The full disk is a small one in memory, for which `unshare -rm` makes room without privileges.
set -u
program=$1 folder=$2 late=${3:-30}
changes="experiment=default trainer.device=cpu trainer.crop=16 model.network.channels=[4,8] model.network.blocks=1 data.sizes=[32] data.pool=4 validation.images=4 validation.crop=16
  validation.every=0 records.every=1 checkpoint.every=2 performance.threads=1 calibration.images=0 trainer.batch=2"
rm -rf "$folder" && mkdir -p "$folder"
seconds() { echo "$(($(date +%s%N) / 1000000))"; }
resumed() { # FOLDER: one process goes on with what is left
  local last=$(ls "$1/checkpoints" | tail -1 | tr -dc 0-9)
  "$program" train --resume --out "$1" trainer.devices=1 trainer.nodes=1 --stop-at $((10#$last + 3)) --json 2>/dev/null | tail -1 | grep -q '"iteration"' && echo "resumed from iteration $((10#$last))" || echo "NOT RESUMED"
}

begun=$(seconds)
mpiexec -n 3 bash -c 'if [ "$PMI_RANK" = 1 ]; then sleep '"$late"'; fi; exec "$@"' late "$program" train $changes trainer.iterations=6 --out "$folder/late" --json >"$folder/late.out" 2>"$folder/late.err"
echo "a rank that starts $late s late: exit status $?, all ended after $(($(seconds) - begun)) ms, $(grep -c '"loss"' "$folder/late/records.jsonl") of 6 iterations"

cat >"$folder/full.sh" <<END
mkdir -p "$folder/disk" && mount -t tmpfs -o size=2m none "$folder/disk" || exit 9
begun=\$((\$(date +%s%N) / 1000000))
"$program" train $(echo $changes) trainer.iterations=100000 checkpoint.every=1 checkpoint.keep_every=1 --out "$folder/disk/run" --devices 3 >"$folder/full.out" 2>"$folder/full.err"
echo "a full disk: exit status \$?, all ended after \$((\$(date +%s%N) / 1000000 - begun)) ms (with the training before), said \$(grep -ci "no space\|disk is full\|full disk" "$folder/full.err") times"
mkdir -p "$folder/full" && cp -r "$folder/disk/run" "$folder/full/"
END
unshare -rm bash "$folder/full.sh" && echo "  the last of $(ls "$folder/full/run/checkpoints" | wc -l) checkpoints: $(resumed "$folder/full/run")"

begun=$(seconds)
mpiexec -n 2 "$program" train $changes trainer.iterations=6 trainer.devices=3 --out "$folder/wrong" >"$folder/wrong.out" 2>"$folder/wrong.err"
echo "3 ranks wanted and 2 started: exit status $?, all ended after $(($(seconds) - begun)) ms, said by $(grep -c "3 ranks, and 2 were started" "$folder/wrong.err") ranks"
