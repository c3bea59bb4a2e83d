#!/usr/bin/env bash
# kill -9 of one of three ranks at random moments of a training: who is told, how long the others take to end, and whether the run is resumed.
#
#   bench/ranks_faults.sh PROGRAM FOLDER [TIMES]
set -u
program=$1 folder=$2 times=${3:-20}
changes="experiment=default trainer.device=cpu trainer.crop=16 model.network.channels=[4,8] model.network.blocks=1 data.sizes=[32] data.pool=4 validation.images=4 validation.crop=16
  validation.every=0 records.every=1 checkpoint.every=2 performance.threads=1 calibration.images=0 trainer.iterations=1000000 trainer.batch=2"
run="$folder/run" said="$folder/said"
mkdir -p "$folder"
lost=0 longest=0
for i in $(seq "$times"); do
  victim=$((i % 3))
  newest=$(ls "$run/checkpoints" 2>/dev/null | tail -1)
  if [ -d "$run" ]; then set -- --resume; else set -- $changes; fi
  "$program" train "$@" --out "$run" --devices 3 >"$said.out" 2>"$said" &
  parent=$!
  while [ "$(ls "$run/checkpoints" 2>/dev/null | tail -1)" = "$newest" ]; do sleep 0.02; done
  sleep "0.$(printf %03d $((RANDOM % 1000)))"
  for p in $(pgrep -f "$run"); do
    tr '\0' '\n' <"/proc/$p/environ" 2>/dev/null | grep -qx "CLEARSHOT_RANK=$victim" && process=$p
  done
  begun=$(date +%s%N)
  kill -9 "$process"
  wait "$parent"
  milliseconds=$((($(date +%s%N) - begun) / 1000000))
  told=$(grep -c "rank $victim (process $process on .*all ranks end" "$said")
  [ "$milliseconds" -gt "$longest" ] && longest=$milliseconds
  [ "$told" -eq 0 ] && lost=$((lost + 1))
  echo "$i: rank $victim killed, said $told times by the program and the others, all ended after $milliseconds ms, newest checkpoint $(ls "$run/checkpoints" | tail -1)"
done
before=$(ls "$run/checkpoints" | tail -1 | tr -dc 0-9)
"$program" train --resume --out "$run" trainer.devices=1 --stop-at $((10#$before + 5)) --json 2>/dev/null | tail -1 | cut -c1-80
echo "$times kills: $lost without a word, longest end $longest ms"
