#!/usr/bin/env bash
# What can go wrong when several ranks train, beside kill -9 (ranks_faults.sh): a rank that starts late, a full disk, a wrong number of ranks.
#
#   bench/ranks_trouble.sh PROGRAM FOLDER [LATE_SECONDS]
#
# Processes have torchrun's variables. The full disk is a small one in memory, for which `unshare -rm` makes room without privileges.
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

# As torchrun would start them: COUNT processes that are told of SIZE; rank 1 waits first.
start() { # COUNT SIZE SECONDS NAME [KEY=VALUE ...]
  local count=$1 size=$2 wait=$3 name=$4 pids='' status=0
  shift 4
  port=$((20000 + RANDOM % 10000))
  for rank in $(seq 0 $((count - 1))); do
    (if [ "$rank" = 1 ]; then sleep "$wait"; fi
    RANK=$rank WORLD_SIZE=$size LOCAL_RANK=$rank MASTER_ADDR=localhost MASTER_PORT=$port exec "$program" train $changes trainer.iterations=6 "$@" --out "$folder/$name" --json) \
      >"$folder/$name.$rank.out" 2>"$folder/$name.$rank.err" &
    pids="$pids $!"
  done
  for pid in $pids; do wait "$pid" || status=$?; done
  return $status
}

begun=$(seconds)
start 3 3 "$late" late
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
start 2 2 0 wrong trainer.devices=3
echo "3 ranks in the configuration and 2 started: exit status $?, all ended after $(($(seconds) - begun)) ms, said by $(cat "$folder"/wrong.*.err | grep -c "3 ranks, and 2 were started") ranks"

begun=$(seconds)
start 2 3 0 never distributed.wait=5
echo "one of 3 ranks never comes, distributed.wait=5: exit status $?, all ended after $(($(seconds) - begun)) ms, said by $(cat "$folder"/never.*.err | grep -c "rank 2 of 3 has not come within 5 s") ranks"
