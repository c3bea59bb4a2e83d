"""Quality against time of Noise2Void, as a Markdown table and an SVG: n2v_plot.py PLOT.svg RESULTS.jsonl..., of the lines that `n2v_clearshot.py` and `n2v_careamics.py` print."""
import json
import sys

rows = [json.loads(line) for path in sys.argv[2:] for line in open(path) if line.startswith("{")]
name = lambda row: {"clearshot": "Clearshot", "careamics": "CAREamics N2V2" if row.get("n2v2") else "CAREamics N2V"}[row["engine"]]
curves = {}
for row in rows:
    curves.setdefault(name(row), []).append((row["seconds"], row["psnr"], row["iterations"]))
print("| | seconds | iterations | PSNR |\n|---|---|---|---|")
for who, points in curves.items():
    for seconds, psnr, iterations in sorted(points):
        print(f"| {who} | {seconds:.0f} | {iterations} | {psnr:.2f} |")

width, height, left, bottom, top, right = 640, 400, 60, 50, 20, 150
most = max(s for points in curves.values() for s, _, _ in points) * 1.05
low, high = (f(p for points in curves.values() for _, p, _ in points) for f in (min, max))
low, high = int(low * 2 - 0.5) / 2, int(high * 2 + 1.5) / 2
x = lambda s: left + s / most * (width - left - right)
y = lambda p: height - bottom - (p - low) / (high - low) * (height - bottom - top)
out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">', f'<rect width="{width}" height="{height}" fill="white"/>']
steps = int((high - low) * 2) + 1
for p in (low + 0.5 * k for k in range(steps)):
    out.append(f'<path d="M{left} {y(p):.1f}H{width - right}" stroke="#ddd"/><text x="{left - 8}" y="{y(p) + 4:.1f}" text-anchor="end">{p:.1f}</text>')
for s in range(0, int(most) + 1, 60):
    out.append(f'<path d="M{x(s):.1f} {height - bottom}v5" stroke="black"/><text x="{x(s):.1f}" y="{height - bottom + 20}" text-anchor="middle">{s}</text>')
for colour, (who, points) in zip(("#0060a8", "#c04000", "#508030"), curves.items()):
    points = sorted(points)
    line = " ".join(f"{x(s):.1f},{y(p):.1f}" for s, p, _ in points)
    out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
    out += [f'<circle cx="{x(s):.1f}" cy="{y(p):.1f}" r="4" fill="{colour}"/>' for s, p, _ in points]
    out.append(f'<text x="{x(points[-1][0]) + 10:.1f}" y="{y(points[-1][1]) + 4:.1f}" fill="{colour}">{who}</text>')
out.append(f'<path d="M{left} {top}V{height - bottom}H{width - right}" fill="none" stroke="black"/>')
out.append(f'<text x="{(left + width - right) / 2}" y="{height - 8}" text-anchor="middle">seconds of two cores</text>')
out.append(f'<text transform="translate(16 {(top + height - bottom) / 2}) rotate(-90)" text-anchor="middle">PSNR in dB, W2S dev</text></svg>')
open(sys.argv[1], "w").write("\n".join(out) + "\n")
