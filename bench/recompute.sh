#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: the largest batch of `base` training in a budget, kept whole and with parts
# computed again, and whether runs take what their plans say. Needs no Rust.
#
#   bench/recompute.sh CLEARSHOT [LOW_WHOLE HIGH_WHOLE LOW_AGAIN HIGH_AGAIN]
#
# The numbers bound the search: the first of a pair is known to fit, the second not to. BUDGET and NET choose others.
set -euo pipefail
clearshot=${1:?the program}
budget=${BUDGET:-24}    # GiB
bytes=$((budget << 30))
of=(--net "${NET:-base}" --size 256 --train --device cuda --precision bf16)
number() { sed -n "s/.*\"$1\":\([0-9.]*\).*/\1/p"; }

# fits BATCH [--budget B]: whether the plan stays in the budget
fits() {
  local batch=$1; shift
  local planned
  planned=$("$clearshot" plan "${of[@]}" --batch "$batch" --json "$@" 2> /dev/null | number planned_bytes)
  [ -n "$planned" ] && [ "$planned" -le "$bytes" ]
}
# largest LOW HIGH [--budget B]
largest() {
  local low=$1 high=$2; shift 2
  while [ $((high - low)) -gt 1 ]; do
    local middle=$(((low + high) / 2))
    if fits "$middle" "$@"; then low=$middle; else high=$middle; fi
  done
  echo "$low"
}
# tell NAME BATCH [--budget B]: runs it
tell() {
  local name=$1 batch=$2; shift 2
  local line
  line=$("$clearshot" bench "${of[@]}" --batch "$batch" --runs 3 --warm-up 2 --json "$@")
  local planned peak ms
  planned=$(number planned_bytes <<< "$line"); peak=$(number peak_bytes <<< "$line"); ms=$(number median_ms <<< "$line")
  awk -v n="$name" -v b="$batch" -v p="$planned" -v t="$peak" -v m="$ms" 'BEGIN {
    printf "%s: batch %d, %.2f GiB planned, %.2f GiB taken (%+.2f %%), %.1f ms, %.2f ms an image\n", n, b, p / 2^30, t / 2^30, 100 * (t - p) / p, m, m / b }'
}

whole=$(largest "${2:-1}" "${3:-64}")
again=$(largest "${4:-$whole}" "${5:-512}" --budget "${budget}GiB")
tell "kept whole" "$whole"
tell "computed again" "$again" --budget "${budget}GiB"
awk -v a="$again" -v w="$whole" 'BEGIN { printf "%.2f times the batch in the same memory\n", a / w; exit a / w < 1.5 }'
