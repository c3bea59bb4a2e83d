// The page of images: files, what is shown of one, the camera, and jobs.

import { $, ask, chart, duration, element, facts, json, number, query, say, session, size, theme } from "/common.js";
import { Viewer } from "/viewer.js";

const state = { file: null, about: null, at: {}, mode: "before", job: null, ranges: {}, histogram: null };
let viewer;

const at = () => Object.entries(state.at).map(([axis, n]) => `${axis}${n}`).join(",");
const made = what => state.job?.made?.find(m => m.what === what)?.file;

async function start() {
  theme();
  const about = await session();
  viewer = new Viewer($("canvas"), about.maps);
  Object.assign(viewer, { onplace: where, onslide: v => { $("slider").value = v * 1000; }, online: profile, onfail: e => say(e.message, true) });
  wire();
  await Promise.all([list(), jobs()]);
  if (location.hash.startsWith("#job=")) await reopen(await json(`/api/jobs/${location.hash.slice(5)}`));
  setInterval(() => jobs().catch(() => say("the server does not answer", true)), 5000);
}

function wire() {
  $("choose").addEventListener("change", () => upload($("choose").files[0]));
  $("drop").addEventListener("keydown", e => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); $("choose").click(); } });
  addEventListener("dragover", e => { e.preventDefault(); document.body.classList.add("over"); });
  addEventListener("dragleave", e => { if (!e.relatedTarget) document.body.classList.remove("over"); });
  addEventListener("drop", e => { e.preventDefault(); document.body.classList.remove("over"); upload(e.dataTransfer.files[0]); });
  addEventListener("themed", () => viewer?.draw());
  $("modes").querySelectorAll("[data-mode]").forEach(b => b.addEventListener("click", () => mode(b.dataset.mode)));
  $("slider").addEventListener("input", () => { viewer.boundary = $("slider").value / 1000; viewer.draw(); });
  $("fit").addEventListener("click", () => viewer.fit());
  $("in").addEventListener("click", () => viewer.zoom(1.5));
  $("out").addEventListener("click", () => viewer.zoom(1 / 1.5));
  $("line").addEventListener("click", () => {
    viewer.lining = !viewer.lining;
    $("line").setAttribute("aria-pressed", viewer.lining);
    $("stage").classList.toggle("lining", viewer.lining);
    if (!viewer.lining) { viewer.line = null; $("profile").hidden = true; viewer.draw(); }
  });
  for (const id of ["low", "high"]) {
    $(id).addEventListener("change", () => range({ [id]: Number($(id).value) }));
    $(`${id}s`).addEventListener("input", () => {
      const h = state.histogram, reach = h.max - h.min;
      range({ [id]: h.min + reach * $(`${id}s`).value / 1000 });
    });
  }
  $("map").addEventListener("change", () => range({ map: $("map").value }));
  $("auto").addEventListener("click", () => { delete state.ranges[state.mode]; brightness(); });
  $("estimate").addEventListener("click", camera);
  $("restore").addEventListener("submit", e => { e.preventDefault(); restore(); });
  $("cancel").addEventListener("click", () => ask(`/api/jobs/${state.job.id}/cancel`, { method: "POST" }).catch(e => say(e.message, true)));
}

async function list() {
  const { files } = await json("/api/files");
  const row = f => {
    const button = element("button", null, { type: "button", title: f.file });
    button.append(element("small", f.bytes ? size(f.bytes) : ""), f.file.startsWith("folder/") ? f.file.slice(7) : f.name);
    button.setAttribute("aria-current", f.file === state.file);
    button.addEventListener("click", () => open(f.file).catch(e => say(e.message, true)));
    const item = element("li"); item.append(button); return item;
  };
  $("list").replaceChildren(...files.map(row));
}

async function jobs() {
  const { jobs } = await json("/api/jobs");
  const row = job => {
    const button = element("button", null, { type: "button", title: job.error ?? job.file });
    button.append(element("small", job.state === "queued" ? `${job.before} before` : job.state), job.file.split("/").pop());
    button.addEventListener("click", () => reopen(job).catch(e => say(e.message, true)));
    const item = element("li"); item.append(button); return item;
  };
  $("jobs").replaceChildren(...jobs.slice(0, 30).map(row));
}

function upload(file) {
  if (!file) return;
  const request = new XMLHttpRequest();
  request.open("POST", `/api/files?${query({ name: file.name })}`);
  $("uploading").hidden = false;
  say(`uploading ${file.name}`);
  request.upload.addEventListener("progress", e => { $("uploading").value = e.loaded / e.total; });
  request.addEventListener("loadend", async () => {
    $("uploading").hidden = true;
    $("choose").value = "";
    let reply = {};
    try { reply = JSON.parse(request.responseText); } catch { /* cut off */ }
    if (request.status !== 201) return say(reply.error ?? "the upload failed", true);
    say("");
    try { await open(reply.file); await list(); } catch (e) { say(e.message, true); }
  });
  request.send(file);
}

async function reopen(job) {
  await open(job.file);
  state.job = job;
  if (job.state === "queued" || job.state === "running") watch(job.id); else finished(job);
}

async function open(file) {
  const about = await json(`/api/describe?${query({ file })}`);
  Object.assign(state, { file, about, at: {}, job: null, ranges: {}, mode: "before" });
  for (const id of ["progress", "result", "figure", "profile"]) $(id).hidden = true;
  $("camera").replaceChildren();
  $("empty").hidden = true; $("panel").hidden = false;
  $("name").textContent = about.name;
  const length = axis => about.dims.find(d => d.axis === axis);
  const x = length("X");
  facts($("about"), [["axes", about.dims.map(d => `${d.axis} ${d.length}`).join(" x ")], ["type", about.dtype + (about.bits < parseInt(about.dtype.replace(/\D/g, "")) ? `, ${about.bits} bits` : "")],
    ["pixel", x.step && `${number(x.step)} ${x.unit ?? ""}`], ["format", about.format], ["images", about.items.length > 1 ? `${about.items.length}; the first is shown` : ""],
    ["levels", about.levels.length > 1 ? about.levels.length : ""]]);
  axes();
  viewer.open(length("Y").length, x.length);
  mark();
  await brightness();
  modes();
}

function axes() {
  const rows = state.about.dims.filter(d => !"YX".includes(d.axis) && d.length > 1).map(d => {
    const first = d.axis === "Z" ? Math.floor(d.length / 2) : 0;
    state.at[d.axis] = first;
    const label = element("label"), output = element("output");
    const slider = element("input", null, { type: "range", min: 0, max: d.length - 1, value: first, "aria-label": d.axis, "data-axis": d.axis });
    const told = () => {
      const channel = d.axis === "C" && state.about.channels[slider.value]?.name;
      output.textContent = channel || `${Number(slider.value) + 1} of ${d.length}`;
    };
    slider.addEventListener("input", () => { state.at[d.axis] = Number(slider.value); told(); shown(); });
    slider.addEventListener("change", () => brightness());
    told();
    label.append({ C: "Channel", Z: "Depth (Z)", T: "Time (T)", S: "Colour sample" }[d.axis] ?? `Axis ${d.axis}`, slider, output);
    return label;
  });
  $("axes").replaceChildren(...rows);
}

// Brightness of the view at hand: as it was set, or from its histogram.
async function brightness() {
  const name = state.mode, file = { after: made("image"), std: made("std"), chi2: made("chi2") }[name] ?? state.file;
  try { state.histogram = await json(`/api/histogram?${query({ file, at: at() })}`); } catch (e) { return say(e.message, true); }
  const h = state.histogram, reach = (h["p99.9"] - h["p0.1"]) || 1;
  if (!state.ranges[name]) {
    state.ranges[name] = name === "difference" ? { low: -reach / 4, high: reach / 4, map: "difference" }
      : name === "chi2" ? { low: 0, high: 3, map: "viridis" }
        : name === "std" ? { low: 0, high: h["p99.9"] || 1, map: "viridis" }
          : { low: h["p0.1"], high: h["p99.9"], map: $("map").value };
  }
  range({});
}

function range(change) {
  const now = Object.assign(state.ranges[state.mode], change), h = state.histogram, reach = (h.max - h.min) || 1;
  $("low").value = +now.low.toPrecision(5); $("high").value = +now.high.toPrecision(5);
  $("lows").value = 1000 * (now.low - h.min) / reach; $("highs").value = 1000 * (now.high - h.min) / reach;
  const canvas = $("histogram"), c = canvas.getContext("2d"), most = Math.log1p(Math.max(...(h.bins ?? [1])));
  c.clearRect(0, 0, 256, 48);
  (h.bins ?? []).forEach((n, i) => {
    const value = h.min + reach * (i + 0.5) / 256, tall = 46 * Math.log1p(n) / most;
    c.fillStyle = getComputedStyle(document.body).getPropertyValue(value >= now.low && value <= now.high ? "--accent" : "--line");
    c.fillRect(i, 48 - tall, 1, tall);
  });
  shown();
}

function shown() {
  const range = state.ranges[state.mode];
  if (!range) return;
  const pane = (file, minus) => ({ file, minus, at: at(), item: state.job?.wanted?.item, ...range });
  const after = made("image"), before = pane(state.file);
  const panes = { before: [before], after: [pane(after)], slider: [before, pane(after)], sides: [before, pane(after)],
    difference: [pane(after, state.file)], std: [pane(made("std"))], chi2: [pane(made("chi2"))] }[state.mode];
  viewer.show(panes, panes.length > 1 ? state.mode : "one");
  if (viewer.line) profile(viewer.line);
}

function modes() {
  const has = { before: true, std: !!made("std"), chi2: !!made("chi2") };
  $("modes").querySelectorAll("[data-mode]").forEach(b => {
    b.disabled = !(has[b.dataset.mode] ?? !!made("image"));
    b.setAttribute("aria-pressed", b.dataset.mode === state.mode);
  });
  $("slider").hidden = state.mode !== "slider";
}

function mode(name) {
  const wide = m => m === "sides";
  const change = wide(state.mode) !== wide(name);
  state.mode = name;
  // The same brightness before and after, unless another one was set.
  if (["after", "slider", "sides"].includes(name)) state.ranges[name] ??= { ...state.ranges.before };
  modes();
  return brightness().then(() => { if (change && !viewer.moved) viewer.fit(); });
}

function where([y, x], values) {
  const known = (values ?? []).filter(v => v !== undefined).map(number).join(" | ");
  $("where").textContent = values ? `x ${Math.floor(x)}, y ${Math.floor(y)}${known && `: ${known}`}` : "";
  $("zoomed").textContent = `${Math.round(100 * viewer.scale / (devicePixelRatio || 1))} %`;
}

async function profile([from, to]) {
  const files = [[state.file, 0], [made("image"), 1]].filter(f => f[0]);
  const ends = { x0: from[1], y0: from[0], x1: to[1], y1: to[0], at: at() };
  try {
    const got = await Promise.all(files.map(([file]) => json(`/api/profile?${query({ file, ...ends })}`)));
    const { length, pixel } = got[0], by = pixel?.step ?? 1;
    const lines = got.map((g, i) => ({ kind: i, points: g.values.map((v, n) => [n / Math.max(1, g.values.length - 1) * length * by, v]) }));
    $("profile").hidden = false;
    const span = chart($("plot"), lines);
    $("plotted").textContent = span && `${number(length * by)} ${pixel?.step ? pixel.unit : "pixels"}; values from ${number(span.y[0])} to ${number(span.y[1])}; gray: measured${got[1] ? ", colour: restored" : ""}`;
  } catch (e) { say(e.message, true); }
}

async function camera() {
  $("estimate").disabled = true;
  say("estimating the camera");
  try {
    const file = state.file, found = await json(`/api/camera?${query({ file })}`);
    facts($("camera"), [["gain", found.gain && `${number(found.gain)} e/count`], ["offset", found.offset !== undefined && `${number(found.offset)} counts`], ["read noise", found.read_noise !== undefined && `${number(found.read_noise)} e`]]);
    $("figure").src = $("larger").href = `/api/camera.svg?${query({ file })}`;
    $("figure").hidden = false;
    say("");
  } catch (e) { say(e.message, true); }
  $("estimate").disabled = false;
}

async function restore() {
  const settings = { method: $("method").value, std: $("std").checked, chi2: $("chi2").checked };
  if (Number($("samples").value) > 0) settings.samples = Number($("samples").value);
  for (const id of ["gain", "offset", "read_noise"]) if ($(id).value !== "") settings[id] = Number($(id).value);
  try {
    const job = await json("/api/jobs", { method: "POST", body: JSON.stringify({ file: state.file, settings }) });
    say("");
    state.job = job;
    watch(job.id);
  } catch (e) { say(e.message, true); }
}

async function watch(id) {
  $("result").hidden = true; $("progress").hidden = false; $("start").disabled = true;
  jobs();
  for (;;) {
    let job;
    try { job = await json(`/api/jobs/${id}`); } catch (e) { say(e.message, true); await new Promise(r => setTimeout(r, 2000)); continue; }
    if (state.job?.id !== id) { $("start").disabled = false; return; }
    if (!["queued", "running"].includes(job.state)) { $("progress").hidden = true; $("start").disabled = false; jobs(); return finished(job); }
    const p = job.progress;
    if (p?.total) $("done").value = p.done / p.total; else $("done").removeAttribute("value");
    $("left").textContent = p?.cancelling ? "cancelling" : job.state === "queued" ? `waiting, ${job.before} before` : p?.seconds_left != null ? `${duration(p.seconds_left)} left` : "preparing";
    await new Promise(r => setTimeout(r, 300));
  }
}

async function finished(job) {
  state.job = job;
  if (job.state === "failed") say(job.error, true);
  if (job.state === "cancelled") say("cancelled");
  if (job.state !== "done") { modes(); return; }
  const image = job.report.images[0] ?? {};
  facts($("report"), [["time", image.seconds && `${number(image.seconds)} s`], ["chi2", image.chi2 && number(image.chi2)], ["gain", image.camera && `${number(image.camera.gain)} e/count`],
    ["offset", image.camera && `${number(image.camera.offset)} counts`], ["read noise", image.camera && `${number(image.camera.read_noise)} e`],
    ["90 % interval", image.interval_90 && `± ${number(image.interval_90)} std`], ["saturated", image.saturated || ""], ["clipped", image.clipped || ""]]);
  const shares = image.choice?.shares ?? [], named = c => typeof c === "string" ? c : c?.name ?? Object.keys(c)[0];
  $("choice").hidden = !shares.length;
  $("choice").tBodies[0].replaceChildren(...shares.map(s => {
    const row = element("tr");
    row.append(element("td", named(s.candidate)), element("td", number(s.risk)), element("td", `${Math.round(100 * s.weight)} %`));
    return row;
  }));
  $("said").replaceChildren(...[image.unfamiliar && `unlike the training images: ${image.unfamiliar}`].filter(Boolean).map(t => element("li", t)));
  $("downloads").replaceChildren(...job.made.map(m => element("a", `Download ${m.what}`, { class: "button", href: `/api/download?${query({ file: m.file })}`, "data-what": m.what })));
  $("result").hidden = false;
  $("result").scrollIntoView({ block: "nearest" });
  await mode("slider");
}

function mark() {
  document.querySelectorAll("#list button").forEach(b => b.setAttribute("aria-current", b.title === state.file));
}

start().catch(e => say(e.message, true));
