#!/usr/bin/env bash
# On a machine with an NVIDIA GPU and PyTorch: the tests that need a GPU, then Clearshot and PyTorch side by
# side. Needs no Rust there: BINARIES holds `clearshot` and the test programs `parity` and `gpu`, built by
#
#   cargo build --release --bin clearshot && cargo test --release -p clearshot-suite --no-run
#
#   bench/gpu.sh BINARIES PEERS_DIR [PYTHON]
#
# PEERS_DIR holds bench_torch.py. PyTorch compiles for a minute or two a row; ROWS and MODES choose less.
set -euo pipefail
binaries=${1:?the folder of clearshot, parity and gpu}
peers=${2:?the folder of bench_torch.py}
python=${3:-python3}
modes=${MODES:-compile,graphs}
here=$(cd "$(dirname "$0")/.." && pwd)
log=${LOG:-$(mktemp)}
: > "$log"
"$binaries/clearshot" devices >&2
if [ "${TESTS:-1}" = 1 ]; then
  CLEARSHOT_GPU_ONLY=1 CLEARSHOT_REFS="$here/refs" "$binaries/parity" --nocapture >&2
  "$binaries/gpu" --nocapture --test-threads 1 >&2
fi
rows=${ROWS:-"base infer 8 256;base infer 1 256;base train 8 256;base train 1 256;heads8 infer 8 256;heads8 train 8 256"}
IFS=';' read -ra each <<< "$rows"
for row in "${each[@]}"; do
  read -r net work batch size <<< "$row"
  train=; [ "$work" = train ] && train=--train
  "$binaries/clearshot" bench --net "$net" --device cuda --precision bf16 --batch "$batch" --size "$size" $train --json | tee -a "$log" >&2
  (cd "$peers" && "$python" bench_torch.py --device cuda --precision bf16 --net "$net" --batch "$batch" --size "$size" $train --modes "$modes") | tee -a "$log" >&2
done
"$python" "$here/bench/table.py" "$log"
