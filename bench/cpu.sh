#!/usr/bin/env bash
# Times Clearshot and PyTorch on this machine's CPU, alternating, and prints a Markdown table.
#
#   bench/cpu.sh PEERS_DIR [PYTHON] [ROUNDS]
#
# PEERS_DIR holds bench_torch.py (and torch_unet2d.py); PYTHON has torch. Each round times every row
# once with each program, so that a noisy machine disturbs both alike; the table has each program's
# best median over the rounds, PyTorch's also over its modes.
set -euo pipefail
peers=${1:?the folder of bench_torch.py}
python=${2:-python3}
rounds=${3:-3}
modes=${MODES:-eager,channels_last,compile}
here=$(cd "$(dirname "$0")/.." && pwd)
cargo build --release --bin clearshot --manifest-path "$here/Cargo.toml"
clearshot=${CLEARSHOT:-$here/target/release/clearshot}
log=${LOG:-$(mktemp)}
: > "$log"
rows=${ROWS:-"small infer 1 128;small train 1 128;tiny infer 1 128;tiny train 4 128"}
for ((round = 1; round <= rounds; round++)); do
  IFS=';' read -ra each <<< "$rows"
  for row in "${each[@]}"; do
    read -r net work batch size <<< "$row"
    train=; [ "$work" = train ] && train=--train
    "$clearshot" bench --net "$net" --device cpu --precision fp32 --batch "$batch" --size "$size" $train --json | tee -a "$log" >&2
    (cd "$peers" && "$python" bench_torch.py --device cpu --net "$net" --batch "$batch" --size "$size" $train --modes "$modes") | tee -a "$log" >&2
  done
done
"$python" "$here/bench/table.py" "$log"
