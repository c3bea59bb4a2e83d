"""Turns the JSON lines of Clearshot's and PyTorch's benches into one Markdown table."""
import json
import sys

best = {}
for line in open(sys.argv[1]):
    row = json.loads(line)
    if "median_ms" not in row:
        print(f"{row['net']} {row.get('mode')}: {row.get('failed')}", file=sys.stderr)
        continue
    who = row["engine"].split()[0]
    key = (row["net"], row["work"], row["batch"], row["size"])
    before = best.setdefault(key, {}).get(who)
    if before is None or row["median_ms"] < before["median_ms"]:
        best[key][who] = row

print("| network, work | batch, size | PyTorch | its mode | Clearshot | times as fast | planned | peak |")
print("|---|---|---|---|---|---|---|---|")
for (net, work, batch, size), rows in best.items():
    ours, theirs = rows.get("clearshot"), rows.get("torch")
    if not ours or not theirs:
        continue
    ratio = theirs["median_ms"] / ours["median_ms"]
    mib = [f"{ours[k] / 2**20:.0f} MiB" for k in ("planned_bytes", "peak_bytes")]
    print(
        f"| {net}, {work} | {batch}, {size} | {theirs['median_ms']:.1f} ms | {theirs['mode']} "
        f"| {ours['median_ms']:.1f} ms | {ratio:.2f} | {mib[0]} | {mib[1]} |"
    )
