// The image on the stage: tiles of numbers from the server, coloured here, so that brightness and colours change at once. One or two
// panes share one place and zoom; a boundary lets one pane end where the other begins. A pane has one layer, or one for each channel,
// which add up on black.

import { ask, query } from "/common.js";

const TILE = 256, KEPT = 240, AT_ONCE = 4;

export class Viewer {
  constructor(canvas, maps) {
    Object.assign(this, { canvas, maps, panes: [], size: [1, 1], centre: [0.5, 0.5], scale: 1, boundary: 0.5, mode: "one",
      line: null, lining: false, tiles: new Map(), waiting: [], running: 0, needed: 0, ramps: {} });
    this.context = canvas.getContext("2d");
    this.pointers = new Map();
    new ResizeObserver(() => this.resize()).observe(canvas);
    canvas.addEventListener("pointerdown", e => this.down(e));
    canvas.addEventListener("pointermove", e => this.move(e));
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, e => this.up(e));
    canvas.addEventListener("wheel", e => { e.preventDefault(); this.zoom(Math.exp(-e.deltaY / 400), this.point(e)); }, { passive: false });
    canvas.addEventListener("keydown", e => this.key(e));
  }

  // Panes are {file, item, minus, minus_item, layers}, layers {at, low, high} with a map's name or a colour.
  show(panes, mode) { this.panes = panes; this.mode = mode; this.waiting = []; this.canvas.setAttribute("aria-busy", true); this.draw(); }

  // Another image: what was shown is not part of it.
  open(height, width) { this.size = [height, width]; this.panes = []; this.tiles.clear(); this.line = null; this.fit(); }

  resize() {
    const ratio = devicePixelRatio || 1, box = this.canvas.getBoundingClientRect();
    this.canvas.width = Math.max(1, Math.round(box.width * ratio));
    this.canvas.height = Math.max(1, Math.round(box.height * ratio));
    if (!this.moved) this.fit(); else this.draw();
  }

  fit() {
    this.moved = false;
    this.centre = [this.size[0] / 2, this.size[1] / 2];
    this.scale = Math.min(this.width() / this.size[1], this.canvas.height / this.size[0]) || 1;
    this.draw();
  }

  width() { return this.mode === "sides" ? this.canvas.width / 2 : this.canvas.width; }

  zoom(by, [x, y] = [this.width() / 2, this.canvas.height / 2]) {
    this.moved = true;
    const at = this.place([x, y]);
    this.scale = Math.min(64, Math.max(Math.min(this.width() / this.size[1], this.canvas.height / this.size[0]) / 2, this.scale * by));
    const now = this.place([x, y]);
    this.centre = [this.centre[0] + at[0] - now[0], this.centre[1] + at[1] - now[1]];
    this.draw();
  }

  point(e) {
    const box = this.canvas.getBoundingClientRect(), ratio = this.canvas.width / box.width;
    return [(e.clientX - box.left) * ratio, (e.clientY - box.top) * ratio];
  }

  // From a point of the canvas to row and column of the image.
  place([x, y]) {
    const width = this.width(), inside = this.mode === "sides" ? x % width : x;
    return [this.centre[0] + (y - this.canvas.height / 2) / this.scale, this.centre[1] + (inside - width / 2) / this.scale];
  }

  down(e) {
    this.canvas.setPointerCapture(e.pointerId);
    this.pointers.set(e.pointerId, this.point(e));
    if (this.lining) { const p = this.clamped(this.point(e)); this.line = [p, p]; }
    else if (this.mode === "slider" && Math.abs(this.point(e)[0] - this.boundary * this.canvas.width) < 24) this.sliding = true;
  }

  move(e) {
    const before = this.pointers.get(e.pointerId), now = this.point(e);
    this.onplace?.(this.place(now), this.value(now));
    if (!before) return;
    if (this.lining && this.line) { this.line[1] = this.clamped(now); this.draw(); }
    else if (this.sliding) { this.boundary = Math.min(1, Math.max(0, now[0] / this.canvas.width)); this.onslide?.(this.boundary); this.draw(); }
    else if (this.pointers.size === 2) {
      const other = [...this.pointers].find(([id]) => id !== e.pointerId)[1];
      const far = (a, b) => Math.hypot(a[0] - b[0], a[1] - b[1]);
      this.zoom(far(now, other) / Math.max(1, far(before, other)), [(now[0] + other[0]) / 2, (now[1] + other[1]) / 2]);
    } else {
      this.moved = true;
      this.centre = [this.centre[0] - (now[1] - before[1]) / this.scale, this.centre[1] - (now[0] - before[0]) / this.scale];
      this.draw();
    }
    this.pointers.set(e.pointerId, now);
  }

  up(e) {
    this.pointers.delete(e.pointerId);
    this.sliding = false;
    if (this.lining && this.line) this.online?.(this.line);
  }

  key(e) {
    const step = 60 / this.scale, moves = { ArrowUp: [-step, 0], ArrowDown: [step, 0], ArrowLeft: [0, -step], ArrowRight: [0, step] };
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    if (moves[e.key] && this.lining && this.line) this.shift(moves[e.key].map(v => v / 4), e.shiftKey);
    else if (moves[e.key]) { this.moved = true; this.centre = [this.centre[0] + moves[e.key][0], this.centre[1] + moves[e.key][1]]; this.draw(); }
    else if (e.key === "+" || e.key === "=") this.zoom(1.5);
    else if (e.key === "-") this.zoom(1 / 1.5);
    else if (e.key === "0") this.fit();
    else return;
    e.preventDefault();
  }

  // A line across the middle of what is seen, to begin with.
  middle() {
    const y = this.canvas.height / 2, width = this.width();
    this.line = [this.clamped([width / 4, y]), this.clamped([3 * width / 4, y])];
    this.draw();
    this.online?.(this.line);
  }

  // Moves the line, or its end alone.
  shift([dy, dx], alone) {
    this.line = this.line.map(([y, x], i) => alone && i === 0 ? [y, x] : this.inside(y + dy, x + dx));
    this.draw();
    this.online?.(this.line);
  }

  clamped(point) {
    const [y, x] = this.place(point);
    return this.inside(y - 0.5, x - 0.5);
  }

  inside(y, x) { return [Math.min(this.size[0] - 1, Math.max(0, y)), Math.min(this.size[1] - 1, Math.max(0, x))]; }

  level() { return Math.max(0, Math.floor(Math.log2(1 / this.scale) + 0.25)); }

  value(point) {
    const [row, column] = this.place(point).map(Math.floor), zoom = this.level();
    if (row < 0 || column < 0 || row >= this.size[0] || column >= this.size[1]) return undefined;
    const [y, x] = [row >> zoom, column >> zoom];
    return this.panes.map(pane => pane.layers.map(layer => {
      const tile = this.tiles.get(this.name(pane, layer, zoom, Math.floor(x / TILE), Math.floor(y / TILE)));
      return tile?.values?.[(y % TILE) * tile.width + x % TILE];
    }));
  }

  name(pane, layer, zoom, x, y) { return `${pane.file}|${pane.minus ?? ""}|${pane.item ?? ""}|${layer.at}|${zoom}|${x}|${y}`; }

  // The tile if it is here; otherwise it is asked for.
  tile(pane, layer, zoom, x, y, wanted = true) {
    const name = this.name(pane, layer, zoom, x, y), found = this.tiles.get(name);
    if (wanted) this.needed += 1;
    if (found) { this.tiles.delete(name); this.tiles.set(name, found); return found.values ? found : null; }
    if (!wanted) return null;
    const tile = {};
    this.tiles.set(name, tile);
    const { file, item, minus, minus_item } = pane;
    this.waiting.push([tile, name, { file, item, minus, minus_item, at: layer.at, zoom, x, y, as: "f32" }]);
    return null;
  }

  // Those that were not looked at for longest go, but none of those on the screen.
  forget() {
    const most = Math.max(KEPT, 2 * this.needed);
    for (const [name, tile] of this.tiles) {
      if (this.tiles.size <= most) break;
      if (tile.values) this.tiles.delete(name);
    }
  }

  async fetch() {
    while (this.running < AT_ONCE && this.waiting.length) {
      const [tile, name, wanted] = this.waiting.pop();
      this.running += 1;
      ask(`/api/tile?${query(wanted)}`).then(async reply => {
        tile.width = Number(reply.headers.get("X-Width"));
        tile.height = Number(reply.headers.get("X-Height"));
        tile.values = new Float32Array(await reply.arrayBuffer());
      }).catch(e => { this.tiles.delete(name); if (e.status !== 404) this.onfail?.(e); })
        .finally(() => { this.running -= 1; if (tile.values) this.draw(); else this.fetch(); });
    }
    for (const [tile, name] of this.waiting) if (!tile.values) this.tiles.delete(name);
    this.canvas.setAttribute("aria-busy", this.running > 0);
  }

  // 256 colours: a map's, or from black to a channel's colour.
  table({ map, colour }) {
    if (!colour) return this.maps[map];
    const name = colour.join();
    return this.ramps[name] ??= Array.from({ length: 256 }, (_, i) => colour.map(v => Math.round(v * i / 255)));
  }

  // A tile in colours, kept until brightness or colours change.
  painted(tile, layer) {
    const key = `${layer.low}|${layer.high}|${layer.map}|${layer.colour}`;
    if (tile.key === key) return tile.picture;
    const picture = tile.picture ?? new OffscreenCanvas(tile.width, tile.height), context = picture.getContext("2d");
    const pixels = context.createImageData(tile.width, tile.height), map = this.table(layer), by = 255 / ((layer.high - layer.low) || 1);
    for (let i = 0; i < tile.values.length; i++) {
      const value = tile.values[i], share = Math.min(255, Math.max(0, Math.round((value - layer.low) * by)));
      const colour = Number.isNaN(value) ? [200, 0, 60] : map[share];
      pixels.data[4 * i] = colour[0]; pixels.data[4 * i + 1] = colour[1]; pixels.data[4 * i + 2] = colour[2]; pixels.data[4 * i + 3] = 255;
    }
    context.putImageData(pixels, 0, 0);
    Object.assign(tile, { key, picture });
    return picture;
  }

  draw() {
    if (this.drawing) return;
    this.drawing = true;
    requestAnimationFrame(() => { this.drawing = false; this.paint(); });
  }

  paint() {
    const c = this.context, { width, height } = this.canvas;
    c.clearRect(0, 0, width, height);
    this.waiting = [];
    this.needed = 0;
    if (!this.panes.length) return;
    this.onzoom?.(this.scale / (devicePixelRatio || 1));
    const parts = this.mode === "sides" ? [[0, width / 2], [width / 2, width / 2]]
      : this.mode === "slider" ? [[0, this.boundary * width], [this.boundary * width, width * (1 - this.boundary)]] : [[0, width]];
    parts.forEach(([left, wide], i) => {
      c.save();
      c.beginPath(); c.rect(left, 0, wide, height); c.clip();
      const shift = this.mode === "sides" ? left : 0;
      c.translate(shift + this.width() / 2 - this.centre[1] * this.scale, height / 2 - this.centre[0] * this.scale);
      this.pane(c, this.panes[Math.min(i, this.panes.length - 1)]);
      c.restore();
    });
    if (this.mode !== "one") this.divide(c, this.mode === "sides" ? 0.5 : this.boundary);
    this.forget();
    this.fetch();
  }

  pane(c, pane) {
    const zoom = this.level(), [top, left] = this.place([0, 0]), step = TILE << zoom;
    const bottom = top + this.canvas.height / this.scale, right = left + this.width() / this.scale;
    c.imageSmoothingEnabled = this.scale < 1;
    const range = (a, b, n) => [Math.max(0, Math.floor(a / step)), Math.min(Math.ceil(n / step) - 1, Math.floor(b / step))];
    const [y0, y1] = range(top, bottom, this.size[0]), [x0, x1] = range(left, right, this.size[1]);
    if (pane.layers.length > 1) {
      c.fillStyle = "black";
      c.fillRect(0, 0, this.size[1] * this.scale, this.size[0] * this.scale);
      c.globalCompositeOperation = "lighter";
    }
    for (const layer of pane.layers) for (let y = y0; y <= y1; y++) for (let x = x0; x <= x1; x++) {
      const tile = this.tile(pane, layer, zoom, x, y);
      if (tile) this.place_tile(c, tile, layer, zoom, x, y); else this.stand_in(c, pane, layer, zoom, x, y);
    }
    c.globalCompositeOperation = "source-over";
    if (this.line) {
      c.beginPath(); c.lineWidth = 2 * (devicePixelRatio || 1); c.strokeStyle = getComputedStyle(document.body).getPropertyValue("--accent");
      this.line.forEach(([y, x], i) => c[i ? "lineTo" : "moveTo"]((x + 0.5) * this.scale, (y + 0.5) * this.scale));
      c.stroke();
    }
  }

  place_tile(c, tile, layer, zoom, x, y) {
    const step = TILE << zoom, by = this.scale * (1 << zoom);
    c.drawImage(this.painted(tile, layer), x * step * this.scale, y * step * this.scale, tile.width * by, tile.height * by);
  }

  // A part of a coarser tile, until the right one is here.
  stand_in(c, pane, layer, zoom, x, y) {
    for (let up = 1; up < 6; up++) {
      const tile = this.tile(pane, layer, zoom + up, x >> up, y >> up, false);
      if (!tile) continue;
      const part = TILE >> up, sx = (x - ((x >> up) << up)) * part, sy = (y - ((y >> up) << up)) * part;
      const w = Math.min(part, tile.width - sx), h = Math.min(part, tile.height - sy), by = this.scale * (1 << (zoom + up));
      if (w > 0 && h > 0) c.drawImage(this.painted(tile, layer), sx, sy, w, h, x * (TILE << zoom) * this.scale, y * (TILE << zoom) * this.scale, w * by, h * by);
      return;
    }
  }

  divide(c, at) {
    const x = at * this.canvas.width, ratio = devicePixelRatio || 1;
    c.fillStyle = getComputedStyle(document.body).getPropertyValue("--accent");
    c.fillRect(x - ratio, 0, 2 * ratio, this.canvas.height);
    if (this.mode !== "slider") return;
    c.beginPath(); c.arc(x, this.canvas.height / 2, 11 * ratio, 0, 7); c.fill();
    c.fillStyle = getComputedStyle(document.body).getPropertyValue("--on-accent");
    for (const side of [-1, 1]) {
      c.beginPath();
      [[3, -4], [7, 0], [3, 4]].forEach(([dx, dy], i) => c[i ? "lineTo" : "moveTo"](x + side * dx * ratio, this.canvas.height / 2 + dy * ratio));
      c.fill();
    }
  }
}
