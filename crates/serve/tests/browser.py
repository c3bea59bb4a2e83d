"""The page in a real Chromium: drop a 16-bit OME-TIFF, restore it, move the slider, change Z, draw a line, cancel a job, download and compare
with the command line's bytes, watch a run of training; in light and dark, with screenshots where a folder for them is given.

    python crates/serve/tests/browser.py PROGRAM [SCREENSHOTS]

Needs Playwright (`pip install playwright`) and a Chromium that it or the system has (CHROMIUM names one). Says `skipped: ...` and succeeds where
there is none.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def skip(why):
    print(f"skipped: {why}")
    sys.exit(0)


try:
    import numpy
    from playwright.sync_api import expect, sync_playwright
except ImportError as e:
    skip(f"{e} (pip install playwright numpy)")

PROGRAM = str(Path(sys.argv[1]).resolve())
SHOTS = Path(sys.argv[2]) if len(sys.argv) > 2 else None
WAIT = 240_000


def run(*arguments, cwd):
    subprocess.run([PROGRAM, *map(str, arguments)], cwd=cwd, check=True, stdout=subprocess.DEVNULL)


def images(folder):
    """A stack of three planes as a 16-bit OME-TIFF, and one plane of 512 x 512."""
    run("synth", "--scene", "nuclei", "--size", "512", "--count", "3", "--peak", "20", "--out", "data", cwd=folder)
    noisy = sorted((folder / "data" / "noisy").iterdir())
    planes = []
    for path in noisy:
        run("convert", path, path.with_suffix(".npy"), cwd=folder)
        planes.append(numpy.load(path.with_suffix(".npy")))
    stack = numpy.clip(numpy.stack(planes)[:, :160, :192], 0, 65535).astype("uint16")
    numpy.save(folder / "stack.npy", stack)
    (folder / "images").mkdir()
    run("convert", noisy[0], "images/nuclei.ome.tif", cwd=folder)
    run("convert", "stack.npy", "stack.ome.tif", "--axes", "ZYX", cwd=folder)


def shot(page, name):
    if SHOTS:
        SHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SHOTS / f"{name}.png")


def drop(page, path):
    data = list(path.read_bytes())
    page.evaluate(
        """([name, data]) => {
            const transfer = new DataTransfer();
            transfer.items.add(new File([new Uint8Array(data)], name));
            document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true }));
        }""",
        [path.name, data],
    )


def pixels(page):
    """The stage as it is drawn."""
    return page.evaluate("document.getElementById('canvas').toDataURL()")


def settled(page):
    """Waits until what is drawn stays the same."""
    last = pixels(page)
    for _ in range(100):
        page.wait_for_timeout(200)
        now = pixels(page)
        if now == last:
            return now
        last = now
    raise AssertionError("the picture does not settle")


def images_page(page, folder, address):
    page.goto(address)
    drop(page, folder / "stack.ome.tif")
    expect(page.locator("#name")).to_have_text("stack.ome.tif")
    expect(page.locator("#about")).to_contain_text("uint16")
    first = settled(page)
    # Another depth is another picture.
    axis = page.locator("#axes input").first
    axis.fill("2")
    axis.dispatch_event("change")
    assert settled(page) != first, "another plane looks the same"
    # Colours and brightness change the picture without another request for tiles.
    before = pixels(page)
    page.select_option("#map", "viridis")
    assert settled(page) != before, "colours do not change"
    page.select_option("#map", "gray")
    # The default image of the folder: camera, restore, slider.
    page.get_by_role("button", name="nuclei.ome.tif").click()
    expect(page.locator("#name")).to_have_text("nuclei.ome.tif")
    page.click("#estimate")
    expect(page.locator("#figure")).to_be_visible(timeout=WAIT)
    expect(page.locator("#camera")).to_contain_text("e/count")
    page.wait_for_function("document.getElementById('figure').naturalWidth > 0")
    page.click("#start")
    expect(page.locator("#result")).to_be_visible(timeout=WAIT)
    expect(page.locator("[data-mode=slider]")).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#choice tbody tr")).not_to_have_count(0)
    middle = settled(page)
    page.locator("#slider").fill("150")
    assert settled(page) != middle, "the slider moves nothing"
    page.locator("#slider").fill("500")
    settled(page)
    shot(page, "serve-light")
    # With the pointer, at the boundary.
    box = page.locator("#canvas").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 120, y, steps=4)
    page.mouse.up()
    assert int(page.locator("#slider").input_value()) < 480, "the boundary is not dragged"
    for mode in ["sides", "difference", "chi2", "after"]:
        page.click(f"[data-mode={mode}]")
        settled(page)
        expect(page.locator(f"[data-mode={mode}]")).to_have_attribute("aria-pressed", "true")
    # A line has values of both images.
    page.click("#line")
    page.mouse.move(x - 100, y - 60)
    page.mouse.down()
    page.mouse.move(x + 100, y + 40, steps=4)
    page.mouse.up()
    expect(page.locator("#plot polyline")).to_have_count(2)
    # Keys zoom.
    page.click("#line")
    page.focus("#canvas")
    zoomed = settled(page)
    page.keyboard.press("+")
    assert settled(page) != zoomed, "keys do not zoom"
    # The bytes are those of the command line.
    run("restore", "images/nuclei.ome.tif", "-o", "out.ome.tif", "--chi2", cwd=folder)
    with page.expect_download() as download:
        page.click("[data-what=image]")
    saved = folder / "saved.ome.tif"
    download.value.save_as(saved)
    # Every OME-TIFF file has an identifier of its own.
    same = lambda path: re.sub(rb"urn:uuid:[0-9a-f-]{36}", b"", path.read_bytes())
    assert same(saved) == same(folder / "out.ome.tif"), "the download differs from the command line's file"
    # A long job is cancelled.
    page.locator("#samples").fill("64")
    page.click("#start")
    expect(page.locator("#cancel")).to_be_visible()
    page.click("#cancel")
    expect(page.locator("#status")).to_have_text("cancelled", timeout=WAIT)


def runs_page(page, folder, address, name):
    """A run whose records grow while it is watched."""
    records = folder / "images" / "runs" / name / "records.jsonl"
    records.parent.mkdir(parents=True)
    line = lambda i: json.dumps({"kind": "train", "iteration": i, "loss": 1 / (1 + i), "rate": 1e-3 * (1 - i / 50), "waiting": 0.01, "images_per_second": 60.0 + i % 3}) + "\n"
    records.write_text("".join(line(i) for i in range(1, 20)))
    page.goto(f"{address}runs")
    page.get_by_role("checkbox").first.check()
    expect(page.locator("#table")).to_contain_text("19")
    with records.open("a") as file:
        file.write("".join(line(i) for i in range(20, 41)) + json.dumps({"kind": "validation", "iteration": 40, "psnr": 31.5}) + "\n")
    expect(page.locator("#table")).to_contain_text("40", timeout=15_000)
    expect(page.locator("#table")).to_contain_text("31.5")
    expect(page.locator("#charts figure")).not_to_have_count(0)


def main():
    folder = Path(tempfile.mkdtemp(prefix="clearshot-page-"))
    images(folder)
    server = subprocess.Popen([PROGRAM, "serve", "images", "--address", "127.0.0.1:0"], cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        address = server.stdout.readline().split()[1]
        with sync_playwright() as playwright:
            found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
            try:
                browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
            except Exception as e:
                skip(f"no Chromium: {str(e).splitlines()[0]}")
            said = []
            context = browser.new_context(viewport={"width": 1280, "height": 760}, color_scheme="light")
            page = context.new_page()
            page.on("console", lambda m: said.append(f"{m.text} {m.location.get('url')}") if m.type == "error" else None)
            page.on("pageerror", lambda e: said.append(str(e)))
            images_page(page, folder, address)
            runs_page(page, folder, address, "one")
            shot(page, "serve-runs")
            page.emulate_media(color_scheme="dark")
            page.goto(address)
            page.locator("#jobs button").nth(1).click()
            expect(page.locator("#result")).to_be_visible()
            settled(page)
            shot(page, "serve-dark")
            page.set_viewport_size({"width": 820, "height": 1180})
            page.wait_for_timeout(500)
            settled(page)
            shot(page, "serve-tablet")
            assert not said, f"the browser complains: {said}"
            browser.close()
        print("passed")
    finally:
        server.kill()
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)


main()
