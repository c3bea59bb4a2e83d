"""Seconds from dropping a 16-bit image on the page of `clearshot serve` to its restoration on the screen, in a real Chromium, beside the command line's
for the same file, in turns.

    python bench/serve_page.py PROGRAM [--side 2048] [--rounds 3] [--drops 2] [--device cpu]

Needs Playwright (`pip install playwright numpy`) and a Chromium (CHROMIUM names one). Every round starts a new server and a new browser, since
the command line too begins from nothing; the page's second drop, of another file, has the model loaded already. Prints one line of JSON.
"""

import argparse
import base64
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import numpy
from playwright.sync_api import sync_playwright

DROP = """([name, bytes]) => {
    const transfer = new DataTransfer();
    transfer.items.add(new File([Uint8Array.from(atob(bytes), c => c.charCodeAt(0))], name));
    window.dropped = () => document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true }));
}"""
DRAWN = "document.getElementById('canvas').getAttribute('aria-busy') === 'false'"
MEASURED = f"name => document.getElementById('name').textContent === name && {DRAWN}"
RESTORED = f"() => !document.getElementById('result').hidden && document.querySelector('[data-mode=slider]').ariaPressed === 'true' && {DRAWN}"
DROPPED = ("first", "second")


def through_the_page(page, path):
    """Seconds to the measured and to the restored picture, and of the job itself."""
    page.evaluate(DROP, [path.name, base64.b64encode(path.read_bytes()).decode()])
    began = time.monotonic()
    page.evaluate("dropped()")
    page.wait_for_function(MEASURED, arg=path.name, timeout=600_000)
    seen = time.monotonic() - began
    page.click("#start")
    page.wait_for_function(RESTORED, timeout=600_000)
    restored = time.monotonic() - began
    job = json.loads(page.evaluate("fetch('/api/jobs').then(r => r.text())"))["jobs"][0]
    return {"measured": seen, "restored": restored, "job": job["finished"] - job["started"]}


def round_of(program, folder, device, browser_path, playwright, drops):
    server = subprocess.Popen([program, "serve", "--address", "127.0.0.1:0", "--device", device, "--state", folder / "state"], stdout=subprocess.PIPE, text=True)
    try:
        address = server.stdout.readline().split()[1]
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"])
        page = browser.new_page(viewport={"width": 1280, "height": 760})
        page.goto(address)
        times = {name: through_the_page(page, folder / f"{name}.tif") for name in DROPPED[:drops]}
        browser.close()
    finally:
        server.kill()
        server.wait()
    shutil.rmtree(folder / "state")
    out = folder / "out.tif"
    began = time.monotonic()
    subprocess.run([program, "restore", folder / "first.tif", "-o", out, "--chi2", "--device", device], check=True, capture_output=True)
    line = time.monotonic() - began
    for made in folder.glob("out*"):
        made.unlink()
    return {**times, "command_line": line}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--side", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--drops", type=int, choices=[1, 2], default=2)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    program = str(Path(given.program).resolve())
    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        synth = ["synth", "--scene", "nuclei", "--size", given.side, "--count", given.drops, "--peak", 20, "--out", "data"]
        subprocess.run([program, *map(str, synth)], cwd=folder, check=True, capture_output=True)
        for path, to in zip(sorted((folder / "data" / "noisy").iterdir()), DROPPED):
            convert = lambda source, target: subprocess.run([program, "convert", source, target], check=True, capture_output=True)
            convert(path, folder / f"{to}.npy")
            numpy.save(folder / f"{to}.npy", numpy.clip(numpy.load(folder / f"{to}.npy"), 0, 65535).astype("uint16"))
            convert(folder / f"{to}.npy", folder / f"{to}.tif")
        rounds = [round_of(program, folder, given.device, found, playwright, given.drops) for _ in range(given.rounds)]
    median = lambda of: round(statistics.median(of(r) for r in rounds), 1)
    report = {"side": given.side, "rounds": given.rounds, "device": given.device, "command_line_s": median(lambda r: r["command_line"])}
    for which in DROPPED[: given.drops]:
        for what in ("measured", "restored", "job"):
            report[f"{which}_{what}_s"] = median(lambda r: r[which][what])
    print(json.dumps(report))


main()
