"""Quality against time of Noise2Void, as a Markdown table and a picture: n2v_plot.py PLOT.png RESULTS.jsonl..., of the lines that `n2v_clearshot.py` and `n2v_careamics.py` print."""
import json
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

NAMES = {"clearshot": "Clearshot", "careamics": "CAREamics N2V"}

curves = {}
for path in sys.argv[2:]:
    for row in (json.loads(line) for line in open(path) if line.startswith("{")):
        name = NAMES[row["engine"]] + ("2" if row.get("n2v2") else "")
        curves.setdefault(name, []).append((row["seconds"], row["psnr"], row["iterations"]))

print("| | seconds of two cores | iterations | PSNR |\n|---|---|---|---|")
figure, axes = plt.subplots(figsize=(5, 3.2))
for name, points in curves.items():
    seconds, psnr, iterations = zip(*sorted(points))
    for row in zip(seconds, iterations, psnr):
        print("| {} | {:.0f} | {} | {:.2f} |".format(name, *row))
    axes.plot(seconds, psnr, "o-", label=name)
axes.set(xlabel="seconds of two cores", ylabel="PSNR in dB, W2S dev", xlim=(0, None))
axes.grid(alpha=0.3)
axes.legend()
figure.tight_layout()
figure.savefig(sys.argv[1], dpi=100)
