#!/usr/bin/env bash
# Times whole sampling runs of Clearshot and of PyTorch with diffusers on this machine, alternating, and prints a
# Markdown table.
#
#   bench/sampling.sh [PYTHON] [ROUNDS]
#   DEVICE=cuda PRECISION=bf16 MODES=compile bench/sampling.sh [PYTHON] [ROUNDS]
#
# PYTHON has torch and diffusers. The table has each program's best median over the rounds, PyTorch's also over its
# modes (MODES). NET, SIZE, BATCH and RUNS choose the work. Where there is no Rust, BINARY is the example
# `sampling_bench` as cargo built it elsewhere.
set -euo pipefail
python=${1:-python3}
rounds=${2:-2}
net=${NET:-small}
size=${SIZE:-128}
batch=${BATCH:-1}
runs=${RUNS:-3}
device=${DEVICE:-cpu}
precision=${PRECISION:-fp32}
here=$(cd "$(dirname "$0")/.." && pwd)
if [ -z "${BINARY:-}" ]; then
  cargo build --release --example sampling_bench -p clearshot-diffusion --manifest-path "$here/Cargo.toml"
  BINARY="$here/target/release/examples/sampling_bench"
fi
log=${LOG:-$(mktemp)}
: > "$log"
for ((round = 1; round <= rounds; round++)); do
  "$BINARY" "$net" "$size" "$batch" "$runs" --device "$device" --precision "$precision" | tee -a "$log" >&2
  "$python" "$here/bench/sampling_torch.py" --net "$net" --size "$size" --batch "$batch" --runs "$runs" --device "$device" \
    --precision "$precision" --modes "${MODES:-eager,channels_last}" | tee -a "$log" >&2
done
"$python" "$here/bench/table.py" "$log"
