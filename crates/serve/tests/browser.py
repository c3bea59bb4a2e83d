"""The page in a real Chromium: drop a 16-bit OME-TIFF, restore it, move the slider, change Z, draw a line, cancel a job, download and compare
with the command line's bytes (a TIFF file, and a Zarr folder as an archive); channels in one picture, images of a file that has several; all of it
by keys too; watch a run of training; in light and dark, with screenshots where a folder for them is given.

    python crates/serve/tests/browser.py PROGRAM [SCREENSHOTS]

Needs Playwright (`pip install playwright`) and a Chromium that it or the system has (CHROMIUM names one). Says `skipped: ...` and succeeds where
there is none.
"""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
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
    # Three structures of a cell, as three channels.
    planes = []
    for scene in "nuclei", "fibres", "vesicles":
        run("synth", "--scene", scene, "--size", "384", "--peak", "60", "--seed", "3", "--out", scene, cwd=folder)
        [path] = (folder / scene / "noisy").iterdir()
        run("convert", path, path.with_suffix(".npy"), cwd=folder)
        planes.append(numpy.load(path.with_suffix(".npy")))
    numpy.save(folder / "channels.npy", numpy.clip(planes, 0, 65535).astype("uint16"))
    run("convert", "channels.npy", "images/channels.ome.tif", "--axes", "CYX", cwd=folder)
    numpy.save(folder / "small.npy", stack[0, :128, :128])
    run("convert", "small.npy", "images/small.ome.zarr", cwd=folder)
    numpy.savez(folder / "images" / "two.npz", one=stack[0, :64, :64], two=stack[1, :96, :96])


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


def colours(page):
    """The red, green and blue in the middle of what is drawn, as an array."""
    side = 200
    data = page.evaluate(
        """side => {
            const canvas = document.getElementById("canvas"), c = canvas.getContext("2d");
            const { data } = c.getImageData(Math.floor((canvas.width - side) / 2), Math.floor((canvas.height - side) / 2), side, side);
            return btoa(Array.from(data, v => String.fromCharCode(v)).join(""));
        }""",
        side,
    )
    return numpy.frombuffer(base64.b64decode(data), "uint8").reshape(side, side, 4)[..., :3].astype(int)


def channels_in_one_picture(page):
    page.get_by_role("button", name="channels.ome.tif").click()
    expect(page.locator("#name")).to_have_text("channels.ome.tif")
    expect(page.locator("#together")).to_be_checked()
    expect(page.locator("#axes input")).to_have_count(0)
    for _ in range(4):
        page.click("#in")
    settled(page)
    together = colours(page)
    shows = page.locator("#layers input[type=checkbox]")
    expect(shows).to_have_count(3)
    alone = []
    for n in range(3):
        for i in range(3):
            shows.nth(i).set_checked(i == n)
        settled(page)
        alone.append(colours(page))
    # Cyan, magenta and yellow, and light adds up.
    for picture, dark in zip(alone, (0, 1, 2)):
        assert picture[..., dark].max() == 0 < picture.max(), "a channel has another colour"
    # Within pixels of the image: where their edges fall is up to the browser.
    flat = numpy.ones(together.shape[:2], bool)
    for picture in alone:
        for shift in (-1, 1):
            flat &= (picture == numpy.roll(picture, shift, 0)).all(2) & (picture == numpy.roll(picture, shift, 1)).all(2)
    assert flat.sum() > 1000, "there is nothing to compare"
    assert numpy.abs(numpy.minimum(sum(alone), 255) - together)[flat].max() <= 3, "channels do not add up"
    # Another colour, and another brightness, of this channel alone.
    page.locator("#layers input[type=color]").nth(2).fill("#ff0000")
    settled(page)
    assert colours(page)[..., 1:].max() == 0, "the colour is not taken"
    page.locator("#layers button").nth(2).click()
    expect(page.locator("#bright")).to_contain_text("channel 3")
    before = pixels(page)
    page.locator("#high").fill("10000")
    page.locator("#high").dispatch_event("change")
    assert settled(page) != before, "the brightness of a channel does not change"
    page.locator("#layers button").nth(0).click()
    assert float(page.locator("#high").input_value()) != 10000, "channels share a brightness"
    page.click("#safe")
    for i in range(3):
        shows.nth(i).check()
    page.locator("#layers button").nth(2).click()
    page.click("#auto")
    page.locator("#layers button").nth(0).click()
    page.click("#fit")
    settled(page)
    shot(page, "serve-channels")
    page.locator("#together").uncheck()
    expect(page.locator("#axes input")).to_have_count(1)
    settled(page)
    page.locator("#together").check()


def restored_by(page, method):
    page.select_option("#method", method)
    page.click("#start")
    expect(page.locator("#result")).to_be_visible(timeout=WAIT)
    expect(page.locator("[data-mode=slider]")).to_have_attribute("aria-pressed", "true")
    settled(page)


def images_of_a_file(page):
    page.get_by_role("button", name="two.npz").click()
    expect(page.locator("#item option")).to_have_count(2)
    expect(page.locator("#about")).to_contain_text("Y 64")
    page.select_option("#item", "1")
    expect(page.locator("#about")).to_contain_text("Y 96")
    restored_by(page, "gaussian")
    # The other image was not restored, and this one was.
    page.select_option("#item", "0")
    expect(page.locator("#about")).to_contain_text("Y 64")
    expect(page.locator("[data-mode=after]")).to_be_disabled()
    page.select_option("#item", "1")
    expect(page.locator("[data-mode=after]")).to_be_enabled()
    # All of them.
    page.locator("#all").check()
    restored_by(page, "gaussian")
    for item in "0", "1":
        page.select_option("#item", item)
        expect(page.locator("[data-mode=after]")).to_be_enabled()
        settled(page)


def folders_as_archives(page, folder):
    page.get_by_role("button", name="small.ome.zarr").click()
    expect(page.locator("#name")).to_have_text("small.ome.zarr")
    restored_by(page, "gaussian")
    with page.expect_download() as download:
        page.click("[data-what=image]")
    assert download.value.suggested_filename == "small.ome.zarr.zip", download.value.suggested_filename
    download.value.save_as(folder / "small.zip")
    run("restore", "images/small.ome.zarr", "-o", "small-out.ome.zarr", "--method", "gaussian", "--chi2", cwd=folder)
    expected = {str(p.relative_to(folder / "small-out.ome.zarr")): p.read_bytes() for p in (folder / "small-out.ome.zarr").rglob("*") if p.is_file()}
    with zipfile.ZipFile(folder / "small.zip") as archive:
        assert archive.testzip() is None
        assert {name: archive.read(name) for name in archive.namelist()} == expected, "the archive differs from the command line's folder"


def by_keys(page):
    """Everything that is there can be come to by the tabulator, and a line is drawn and moved without a pointer."""
    page.get_by_role("button", name="nuclei.ome.tif").first.click()
    expect(page.locator("#name")).to_have_text("nuclei.ome.tif")
    page.evaluate("document.getElementById('options').open = false")
    page.focus("#options summary")
    page.keyboard.press("Enter")
    expect(page.locator("#samples")).to_be_visible()
    page.evaluate("document.activeElement.blur()")
    reached = set()
    for _ in range(120):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.dataset.mode || document.activeElement.closest('ul')?.id"))
    wanted = {"theme", "drop", "list", "jobs", "before", "line", "fit", "canvas", "low", "high", "map", "auto", "estimate", "method", "samples", "std", "chi2", "start", "in", "out"}
    assert wanted <= reached, f"not reached by keys: {wanted - reached}"
    page.focus("#line")
    page.keyboard.press("Enter")
    expect(page.locator("#plot polyline")).to_have_count(1)
    points = lambda: page.locator("#plot polyline").get_attribute("points")
    first = points()
    page.focus("#canvas")
    page.keyboard.press("ArrowDown")
    page.wait_for_function("first => document.querySelector('#plot polyline')?.getAttribute('points') !== first", arg=first)
    page.focus("#line")
    page.keyboard.press("Enter")
    expect(page.locator("#profile")).to_be_hidden()


def removed(page):
    """Uploads and jobs that are over can be taken off the server."""
    page.on("dialog", lambda dialog: dialog.accept())
    for kind in "list", "jobs":
        crosses = page.locator(f"#{kind} .remove")
        count = crosses.count()
        assert count > 0, f"nothing of {kind} can be removed"
        crosses.first.click()
        expect(crosses).to_have_count(count - 1)


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
    page.wait_for_function("() => document.getElementById('figure').naturalWidth > 0")
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
    page.click("#options summary")
    page.locator("#samples").fill("64")
    page.click("#start")
    expect(page.locator("#cancel")).to_be_visible()
    page.click("#cancel")
    expect(page.locator("#status")).to_have_text("cancelled", timeout=WAIT)
    page.locator("#samples").fill("0")


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
            channels_in_one_picture(page)
            images_of_a_file(page)
            folders_as_archives(page, folder)
            by_keys(page)
            removed(page)
            runs_page(page, folder, address, "one")
            shot(page, "serve-runs")
            page.emulate_media(color_scheme="dark")
            page.goto(address)
            page.locator("#jobs li").filter(has_text="nuclei").filter(has_text="done").locator("button").first.click()
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
