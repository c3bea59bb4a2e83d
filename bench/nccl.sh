#!/usr/bin/env bash
# Training over several ranks on NVIDIA GPUs: what NCCL costs one rank, two processes on one card by way of the host, a rank that is killed, the tests that need a
# GPU, and several cards where there are any. Needs no Rust there: FOLDER holds the program and the test programs, loose or in programs.tar.xz:
#
#   cargo build --release --bin clearshot
#   cargo test --release -p clearshot-suite --test gpu --no-run        (as `gpu`)
#   cargo test --release -p clearshot-train --test ranks --no-run      (as `ranks`)
#
#   bench/nccl.sh FOLDER [PART ...]
#
# Parts: cost shared killed tests several; without any, all of them. Results are lines on the standard output, and in $OUT/nccl.txt where OUT is set. LIMIT
# (default 110) is the seconds for all; DEVICE=cpu tries `shared` and `killed` where there is no GPU.
set -u
folder=$(cd "${1:?the folder of clearshot, gpu and ranks}" && pwd)
shift
parts=${*:-cost shared killed tests several}
limit=${LIMIT:-110} device=${DEVICE:-cuda}
begun=$(date +%s)
work=$(mktemp -d)
log=${OUT:-$work}/nccl.txt
: >"$log"

say() { echo "$*" | tee -a "$log"; }
left() { echo $((limit - ($(date +%s) - begun))); }
now() { echo $(($(date +%s%N) / 1000000)); }
# At most so many seconds, and no more than are left.
within() {
  local most=$1 rest
  rest=$(left)
  shift
  [ "$rest" -lt 2 ] && { echo "no time left" >&2; return 124; }
  timeout -k 2 "$((rest < most ? rest : most))" "$@"
}

if [ -f "$folder/programs.tar.xz" ]; then
  mkdir "$work/programs" && tar -C "$work/programs" -xJf "$folder/programs.tar.xz"
  folder=$work/programs
fi
program=$(find "$folder" -name clearshot -type f | head -1)
[ -x "$program" ] || { say "no program in $folder"; exit 1; }
# Python's packages keep NVIDIA's libraries in folders of their own, which are looked into where the system has none.
packages=$(python3 -c 'import glob, site, sys
found = [d for s in site.getsitepackages() + [site.getusersitepackages()] + sys.path for d in glob.glob(s + "/nvidia/*/lib")]
print(":".join(dict.fromkeys(found)))' 2>/dev/null)
if [ "$device" = cuda ] && [ -n "$packages" ] && ! "$program" devices 2>/dev/null | grep -q "^cuda:"; then
  export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$packages"
fi
nccl=$(ldconfig -p 2>/dev/null | awk '/libnccl.so.2 / { print $NF; exit }')
if [ -z "$nccl" ] && [ -n "$packages" ]; then
  nccl=$(find $(echo "$packages" | tr ':' ' ') -maxdepth 1 -name libnccl.so.2 | head -1)
  [ -n "$nccl" ] && export CLEARSHOT_NCCL=$nccl
fi
# What NCCL says of itself goes to files: rows of JSON are read from the standard output.
export NCCL_DEBUG=${NCCL_DEBUG:-WARN} NCCL_DEBUG_FILE=$work/nccl-says.%p
cards=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
say "machine: $cards GPUs, $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -1), $(nproc) processors, NCCL ${nccl:-not found}"

tiny="trainer.crop=16 model.network.channels=[4,8] model.network.blocks=1 data.sizes=[32] data.pool=4 validation.images=4 validation.crop=16 validation.every=0
  records.every=1 calibration.images=0 performance.threads=1 performance.precision=fp32 trainer.device=$device experiment=default"

cost() { # base in training, with NCCL's communicator and all-reduces in the recorded graph and without, in turns in one process
  [ "$device" = cuda ] || { say "cost: skipped: needs a GPU"; return; }
  local batch
  for batch in 8 1; do
    within 45 "$program" bench --net base --train --nccl --device cuda --precision bf16 --batch "$batch" --size 256 --runs "${RUNS:-60}" --json >"$work/rows" 2>"$work/err" ||
      { say "cost: batch $batch failed: $(tail -1 "$work/err") $(cat "$work"/nccl-says.* 2>/dev/null | grep -i warn | head -3)"; continue; }
    python3 - "$work/rows" "$batch" <<'PY' | tee -a "$log"
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1]) if line.startswith('{')]
for r in rows[:2]:
    print(f"cost: base training, bf16, batch {sys.argv[2]}, exchange {r['exchange']}, {'recorded' if r['recorded'] else 'NOT RECORDED'}: median {r['median_ms']} ms, 95 % within {r['p95_ms']} ms, ready after {r['setup_s']} s, {r['planned_bytes'] / 2**30:.2f} GiB planned")
print(f"cost: batch {sys.argv[2]}: NCCL of one rank costs {rows[2]['exchange_overhead_percent']:+.2f} % of the median")
PY
  done
}

losses() { python3 - "$@" <<'PY'
import json, sys
def of(path):
    records = [json.loads(line) for line in open(path)]
    return [r["loss"] for r in records if "loss" in r]
a, b = of(sys.argv[1]), of(sys.argv[2])
if len(a) != len(b) or not a:
    print(f"FAILED: {len(a)} and {len(b)} losses")
else:
    off = max(abs(x - y) / abs(y) for x, y in zip(a, b))
    print(f"{len(a)} losses, the largest relative difference {off:.1e}")
PY
}

shared() { # two processes on one card, by way of the host, beside one with twice the batch
  local out=$work/shared
  within 30 "$program" train $tiny trainer.iterations=20 trainer.batch=8 --out "$out/one" --quiet >"$work/shared.err" 2>&1 || { say "shared: one process failed: $(tail -1 "$work/shared.err")"; return; }
  within 40 "$program" train $tiny trainer.iterations=20 trainer.batch=4 --out "$out/two" --devices 2 >"$work/shared.out" 2>"$work/shared.err" || { say "shared: two processes failed: $(tail -1 "$work/shared.err")"; return; }
  say "shared: two processes on $device beside one: $(losses "$out/two/records.jsonl" "$out/one/records.jsonl")"
  say "shared: $(cat "$work/shared.out" "$work/shared.err" | grep -m1 'gradients travel' || echo 'carried by the host')"
  [ "$device" = cuda ] || return
  within 20 "$program" train $tiny trainer.iterations=20 trainer.batch=4 distributed.backend=nccl --out "$out/refused" --devices 2 >"$work/refused" 2>&1
  say "shared: distributed.backend=nccl on one card: exit status $?, refused on $(grep -c 'share one GPU' "$work/refused") ranks"
}

killed() { # kill -9 of one of two processes: the other ends, the last checkpoint is whole and is resumed
  local run=$work/killed backend=${1:-auto} process='' newest end milliseconds status
  rm -rf "$run"
  within 60 "$program" train $tiny trainer.iterations=1000000 trainer.batch=2 checkpoint.every=2 distributed.backend="$backend" --out "$run" --devices 2 >"$work/killed.out" 2>&1 &
  local parent=$!
  until [ -n "$(ls "$run/checkpoints" 2>/dev/null)" ] || ! kill -0 "$parent" 2>/dev/null; do sleep 0.05; done
  sleep 0.7
  for entry in /proc/[0-9]*; do
    tr '\0' '\n' <"$entry/environ" 2>/dev/null | grep -qx 'CLEARSHOT_RANK=1' && tr '\0' ' ' <"$entry/cmdline" 2>/dev/null | grep -q "train.*$run" && process=${entry#/proc/}
  done 2>/dev/null
  [ -n "$process" ] || { kill "$parent"; say "killed: no second rank: $(tail -1 "$work/killed.out")"; return; }
  end=$(now)
  kill -9 "$process"
  wait "$parent"
  status=$?
  milliseconds=$(($(now) - end))
  say "killed: rank 1 over $backend: all had ended after $milliseconds ms, exit status $status, named $(grep -c "rank 1 (process $process on " "$work/killed.out") times: $(grep -m1 "rank 1 (process $process on " "$work/killed.out")"
  newest=$(ls "$run/checkpoints" | grep '^iteration-' | tail -1 | tr -dc 0-9)
  within 30 "$program" train --resume --out "$run" trainer.devices=1 distributed.backend=auto --stop-at $((10#$newest + 3)) --json >"$work/resumed" 2>"$work/resumed.err"
  if grep -q '"kind":"summary"' "$work/resumed"; then say "killed: resumed from iteration $((10#$newest)) by one process"; else say "killed: NOT RESUMED: $(tail -1 "$work/resumed.err")"; fi
}

tests() { # of the library, those that need a GPU
  local name filter file
  for name in gpu:nccl gpu:aborted gpu:repeat ranks:on_a_gpu; do
    filter=${name#*:} file=$(find "$folder" -name "${name%%:*}" -type f | head -1)
    [ -n "$file" ] || { say "tests: ${name%%:*} is not in the folder"; continue; }
    chmod +x "$file"
    within 60 "$file" --nocapture --test-threads 1 "$filter" >"$work/tests.$filter" 2>&1
    say "tests: ${name%%:*} $filter: exit status $?, $(grep '^test result' "$work/tests.$filter" | head -1)"
    grep -E 'skipped|panicked|off by|bits:|error|gradients in|refused' -A2 "$work/tests.$filter" | grep -v '^--' | head -30 | tee -a "$log"
  done
}

several() { # one card each
  if [ "$cards" -lt 2 ]; then say "several: skipped: this machine has $cards GPU; nothing was run on several"; return; fi
  local n rate one=''
  for n in 1 2 4 8; do
    [ "$n" -le "$cards" ] || continue
    within 60 "$program" train experiment=supervised model=dynunet2d trainer.device=cuda trainer.crop=128 trainer.batch=32 trainer.iterations=120 validation.every=0 calibration.images=0 \
      --devices "$n" --out "$work/several$n" --json >"$work/several" 2>"$work/several.err"
    rate=$(python3 -c 'import json, sys
r = json.loads(open(sys.argv[1]).read().splitlines()[-1])
print(r["iterations_per_second"], (r["ranks"] or {}).get("backend", "one rank"))' "$work/several" 2>/dev/null)
    [ -n "$rate" ] || { say "several: $n GPUs failed: $(tail -1 "$work/several.err")"; continue; }
    [ "$n" = 1 ] && one=${rate%% *}
    say "several: $n GPUs, ${rate#* }: ${rate%% *} iterations/s of 32 images each, $(python3 -c "print(f'{100 * ${rate%% *} / ${one:-${rate%% *}}:.1f} %')") of one GPU's"
  done
  killed nccl
}

# Times are measured with the card to themselves; what is only right or wrong may share it.
case " $parts " in *" cost "*) cost ;; esac
beside=()
for part in shared killed tests; do
  case " $parts " in *" $part "*)
    (log=$work/said.$part; "$part") >/dev/null &
    beside+=("$!:$part")
    ;;
  esac
done
for job in "${beside[@]}"; do
  wait "${job%%:*}"
  [ -f "$work/said.${job#*:}" ] && tee -a "$log" <"$work/said.${job#*:}"
done
case " $parts " in *" several "*) several ;; esac
say "done after $(($(date +%s) - begun)) s"
rm -rf "$work"
