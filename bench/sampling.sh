#!/usr/bin/env bash
# Times whole sampling runs of Clearshot and of diffusers on this machine's CPU, alternating, and prints a
# Markdown table.
#
#   bench/sampling.sh [PYTHON] [ROUNDS]
#
# PYTHON has torch and diffusers. The table has each program's best median over the rounds, PyTorch's
# also over its modes (MODES).
set -euo pipefail
python=${1:-python3}
rounds=${2:-2}
net=${NET:-small}
size=${SIZE:-128}
here=$(cd "$(dirname "$0")/.." && pwd)
cargo build --release --example sampling_bench -p clearshot-diffusion --manifest-path "$here/Cargo.toml"
log=${LOG:-$(mktemp)}
: > "$log"
for ((round = 1; round <= rounds; round++)); do
  "$here/target/release/examples/sampling_bench" "$net" "$size" | tee -a "$log" >&2
  "$python" "$here/bench/sampling_torch.py" --net "$net" --size "$size" --modes "${MODES:-eager,channels_last}" | tee -a "$log" >&2
done
"$python" "$here/bench/table.py" "$log"
