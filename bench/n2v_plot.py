"""Quality against time of Noise2Void, as a Markdown table and a picture: n2v_plot.py PLOT.png RESULTS.jsonl..., of the lines that `n2v_clearshot.py` and `n2v_careamics.py` print."""
import json
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

NAMES = {"clearshot": "Clearshot", "careamics": "CAREamics"}
STYLES = {"clearshot": "-", "careamics": "--"}
COLOURS = {"N2V": "tab:blue", "N2V2": "tab:orange", "as it is": "tab:green"}

curves = {}
for path in sys.argv[2:]:
    for row in (json.loads(line) for line in open(path) if line.startswith("{")):
        # Runs of one kind are means of points of the same minute.
        curves.setdefault((row["engine"], row["network"]), {}).setdefault(round(row["minutes"]), []).append((row["psnr"], row["iterations"]))

minutes = sorted({m for points in curves.values() for m in points})
print("| | " + " | ".join(f"{m} min" for m in minutes) + " | iterations |\n|---|" + "---|" * (len(minutes) + 1))
figure, axes = plt.subplots(figsize=(5.5, 3.4))
for (engine, network), points in sorted(curves.items()):
    name = f"{NAMES[engine]} {network}"
    mean = {m: sum(p for p, _ in of) / len(of) for m, of in points.items()}
    last = max(points)
    print(f"| {name} | " + " | ".join(f"{mean[m]:.2f}" if m in mean else "" for m in minutes) + f" | {sum(i for _, i in points[last]) // len(points[last])} |")
    axes.plot(sorted(mean), [mean[m] for m in sorted(mean)], "o" + STYLES[engine], color=COLOURS[network], label=name)
axes.set(xlabel="minutes of one core", ylabel="PSNR in dB, W2S dev", xlim=(0, None))
axes.grid(alpha=0.3)
axes.legend(fontsize=8)
figure.tight_layout()
figure.savefig(sys.argv[1], dpi=100)
