// The page of images: files, what is shown of one, the camera, and jobs.

import { $, ask, chart, duration, element, facts, json, number, query, say, session, size, theme } from "/common.js";
import { Channels, wire as wire_channels } from "/channels.js";
import { Viewer } from "/viewer.js";

// `item` is the number of the image in its file; `results` are the files of the job that are of this image, by what they are.
const state = { file: null, item: 0, about: null, at: {}, mode: "before", job: null, results: {}, ranges: {}, histogram: null, channels: null };
let viewer, safe;

// Only these have the colours of channels, and one brightness for all of them; the others are measures of one channel.
const PICTURES = ["before", "after", "slider", "sides"];

// The plane that is looked at, or the same of another channel.
function at(channel = state.channels.active) {
  const all = state.channels.axis ? { ...state.at, [state.channels.axis]: channel } : state.at;
  return Object.entries(all).map(([axis, n]) => `${axis}${n}`).join(",");
}

const several = () => state.about.items.length > 1;
const measured = () => ({ file: state.file, item: several() ? `#${state.item}` : undefined });
const failed = e => say(e.message, true);
const is_over = job => !["queued", "running"].includes(job.state);

async function start() {
  theme();
  const about = await session();
  safe = about.channel_colours;
  viewer = new Viewer($("canvas"), about.maps);
  Object.assign(viewer, { onplace: where, onzoom: scale => { $("zoomed").textContent = `${Math.round(100 * scale)} %`; }, onslide: v => { $("slider").value = v * 1000; }, online: profile, onfail: failed });
  wire();
  await Promise.all([list(), list_jobs()]);
  setInterval(() => list_jobs().catch(() => say("the server does not answer", true)), 5000);
  const wanted = new URLSearchParams(location.hash.slice(1));
  if (wanted.has("job")) await reopen(await json(`/api/jobs/${encodeURIComponent(wanted.get("job"))}`));
  else if (wanted.has("file")) await open(wanted.get("file"), Number(wanted.get("item") ?? 0));
}

// So that the page can be loaded again, or its address kept.
function remember() {
  const { file, item, job } = state;
  history.replaceState(null, "", `${location.pathname}#${query(job ? { job: job.id } : { file, item: item || undefined })}`);
}

function wire() {
  $("choose").addEventListener("change", () => uploads([...$("choose").files]));
  $("drop").addEventListener("keydown", e => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); $("choose").click(); } });
  addEventListener("dragover", e => { e.preventDefault(); document.body.classList.add("over"); });
  addEventListener("dragleave", e => { if (!e.relatedTarget) document.body.classList.remove("over"); });
  addEventListener("drop", e => {
    e.preventDefault();
    document.body.classList.remove("over");
    const folder = [...e.dataTransfer.items].some(i => i.webkitGetAsEntry?.()?.isDirectory);
    if (folder) say("folders (Zarr) cannot be dropped: start clearshot serve FOLDER with the folder that they are in, or drop a zip archive of one", true);
    else uploads([...e.dataTransfer.files]);
  });
  addEventListener("themed", () => { viewer?.draw(); if (state.histogram) range({}); });
  wire_channels(() => state.channels);
  $("item").addEventListener("change", () => open(state.file, Number($("item").value), state.job).catch(failed));
  $("modes").querySelectorAll("[data-mode]").forEach(b => b.addEventListener("click", () => mode(b.dataset.mode)));
  $("slider").addEventListener("input", () => { viewer.boundary = $("slider").value / 1000; viewer.draw(); });
  $("fit").addEventListener("click", () => viewer.fit());
  $("in").addEventListener("click", () => viewer.zoom(1.5));
  $("out").addEventListener("click", () => viewer.zoom(1 / 1.5));
  $("line").addEventListener("click", () => {
    viewer.lining = !viewer.lining;
    $("line").setAttribute("aria-pressed", viewer.lining);
    $("stage").classList.toggle("lining", viewer.lining);
    if (viewer.lining) viewer.middle(); else { viewer.line = null; $("profile").hidden = true; viewer.draw(); }
  });
  for (const id of ["low", "high"]) {
    $(id).addEventListener("change", () => range({ [id]: Number($(id).value) }));
    $(`${id}s`).addEventListener("input", () => {
      const h = state.histogram, reach = h.max - h.min;
      range({ [id]: h.min + reach * $(`${id}s`).value / 1000 });
    });
  }
  $("map").addEventListener("change", () => range({ map: $("map").value }));
  $("auto").addEventListener("click", () => { delete state.ranges[key()]; brightness().catch(failed); });
  $("estimate").addEventListener("click", camera);
  $("restore").addEventListener("submit", e => { e.preventDefault(); restore(); });
  $("cancel").addEventListener("click", () => ask(`/api/jobs/${state.job.id}/cancel`, { method: "POST" }).catch(failed));
}

// A row of a list: what it is, a word on it, and a way to take it off the server where there is one.
function row(name, word, title, choose, remove) {
  const button = element("button", null, { type: "button", title }), item = element("li");
  button.append(element("small", word), name);
  button.addEventListener("click", () => choose().catch(failed));
  item.append(button);
  if (remove) {
    const cross = element("button", "\u00d7", { type: "button", class: "remove", "aria-label": `Remove ${name}`, title: "Remove from the server" });
    cross.addEventListener("click", () => { if (confirm(`Remove ${name} from the server?`)) remove().catch(failed); });
    item.append(cross);
  }
  return item;
}

async function list() {
  const { files, cut } = await json("/api/files");
  $("list").replaceChildren(...files.map(f => {
    const mine = f.file.startsWith("upload/");
    return row(mine ? f.name : f.file.slice(7), f.bytes ? size(f.bytes) : "", f.file, () => open(f.file),
      mine && (async () => { await ask(`/api/files?${query({ file: f.file })}`, { method: "DELETE" }); await list(); }));
  }));
  if (cut) $("list").append(element("li", "and more, which are not listed"));
  mark();
}

async function list_jobs() {
  const { jobs } = await json("/api/jobs");
  const now = JSON.stringify(jobs.slice(0, 30).map(j => [j.id, j.state, j.before]));
  // A list that is the same stays, and with it the place of whoever goes through it by keys.
  if (now === list_jobs.last) return;
  list_jobs.last = now;
  $("jobs").replaceChildren(...jobs.slice(0, 30).map(job => row(job.file.split("/").pop(), job.state === "queued" ? `${job.before} before` : job.state, job.error ?? job.file, () => reopen(job),
    is_over(job) && (async () => { await ask(`/api/jobs/${job.id}`, { method: "DELETE" }); if (state.job?.id === job.id) await open(state.file, state.item); await list_jobs(); }))));
}

// One after the other; the first is opened.
async function uploads(files) {
  for (const [i, file] of files.entries()) {
    try {
      const name = await upload(file);
      await list();
      if (i === 0) await open(name);
    } catch (e) { failed(e); }
  }
  $("choose").value = "";
}

function upload(file) {
  const request = new XMLHttpRequest();
  request.open("POST", `/api/files?${query({ name: file.name })}`);
  $("uploading").hidden = false;
  say(`uploading ${file.name}`);
  request.upload.addEventListener("progress", e => { $("uploading").value = e.loaded / e.total; });
  return new Promise((done, refused) => {
    request.addEventListener("loadend", () => {
      $("uploading").hidden = true;
      let reply = {};
      try { reply = JSON.parse(request.responseText); } catch { /* cut off */ }
      if (request.status !== 201) return refused(new Error(reply.error?.includes(file.name) ? reply.error : `${file.name}: ${reply.error ?? "the upload failed"}`));
      say("");
      done(reply.file);
    });
    request.send(file);
  });
}

// The number of the image that a job is for; none where it is for all.
function wanted(job, items) {
  const item = job.wanted?.item;
  if (item === undefined || item === null) return null;
  return items.includes(item) ? items.indexOf(item) : Number(item.replace(/^#/, ""));
}

async function reopen(job) {
  await open(job.file, wanted(job, (await json(`/api/describe?${query({ file: job.file })}`)).items) ?? 0, job);
  if (!is_over(job)) watch(job.id);
}

async function open(file, item = 0, job = null) {
  const about = await json(`/api/describe?${query({ file, item: item ? `#${item}` : undefined })}`);
  const length = axis => about.dims.find(d => d.axis === axis), x = length("X"), y = length("Y");
  if (!x || !y) throw new Error(`${about.name}: axes ${about.axes}; a picture needs Y and X`);
  say("");
  Object.assign(state, { file, item, about, at: {}, job, results: {}, ranges: {}, mode: "before" });
  state.channels = new Channels(about, safe, () => { axes(); brightness().catch(failed); });
  for (const id of ["progress", "result", "figure", "profile"]) $(id).hidden = true;
  $("start").disabled = false;
  $("camera").replaceChildren();
  $("empty").hidden = true; $("panel").hidden = false;
  for (const id of ["line", "out", "fit", "in"]) $(id).disabled = false;
  $("name").textContent = about.name;
  facts($("about"), [["axes", about.dims.map(d => `${d.axis} ${d.length}`).join(" x ")], ["type", about.dtype + (about.bits < parseInt(about.dtype.replace(/\D/g, "")) ? `, ${about.bits} bits` : "")],
    ["pixel", spacing([x, y, length("Z")])], ["time between frames", spacing([length("T")])], ["format", about.format], ["levels", about.levels.length > 1 ? about.levels.length : ""]]);
  $("items").hidden = $("everything").hidden = !several();
  $("item").replaceChildren(...about.items.map((name, i) => element("option", name ? `${i + 1}: ${name}` : `image ${i + 1}`, { value: i })));
  $("item").value = item;
  $("count").textContent = about.items.length;
  for (const d of about.dims) if (!"YX".includes(d.axis) && d.length > 1 && d.axis !== state.channels.axis) state.at[d.axis] = d.axis === "Z" ? Math.floor(d.length / 2) : 0;
  axes();
  viewer.open(y.length, x.length);
  viewer.lining = false;
  $("line").setAttribute("aria-pressed", false);
  $("stage").classList.remove("lining");
  mark();
  remember();
  await brightness();
  modes();
  // Another image of a file whose job is over.
  if (job && is_over(job)) await finished(job);
}

// Steps along some axes, "0.26 x 0.26 x 0.3 µm": axes of one unit together; none where the file does not state the first.
function spacing(dims) {
  const known = dims.filter(d => d?.step && d.unit);
  if (!dims[0]?.step || !known.length) return "";
  const units = [...new Set(known.map(d => d.unit))];
  return units.map(unit => `${known.filter(d => d.unit === unit).map(d => number(d.step)).join(" x ")} ${unit}`).join(", ");
}

// A slider for every axis but those of the picture; channels that are shown together have none.
function axes() {
  const { channels } = state;
  const rows = state.about.dims.filter(d => !"YX".includes(d.axis) && d.length > 1 && !(d.axis === channels.axis && channels.together)).map(d => {
    const is_channel = d.axis === channels.axis;
    const label = element("label"), output = element("output");
    const slider = element("input", null, { type: "range", min: 0, max: d.length - 1, value: is_channel ? channels.active : state.at[d.axis], "aria-label": d.axis, "data-axis": d.axis });
    const tell = () => { output.textContent = is_channel ? channels.names[slider.value] : `${Number(slider.value) + 1} of ${d.length}`; };
    slider.addEventListener("input", () => {
      if (is_channel) { channels.active = Number(slider.value); channels.list(); } else state.at[d.axis] = Number(slider.value);
      tell();
      if (is_channel) brightness().catch(failed); else shown();
    });
    slider.addEventListener("change", () => brightness().catch(failed));
    tell();
    label.append({ C: "Channel", Z: "Depth (Z)", T: "Time (T)", S: "Colour sample" }[d.axis] ?? `Axis ${d.axis}`, slider, output);
    return label;
  });
  $("axes").replaceChildren(...rows);
}

const is_picture = () => PICTURES.includes(state.mode);
// Pictures have one brightness before and after, each channel its own.
const key = (channel = state.channels.active) => `${is_picture() ? "picture" : state.mode} ${channel}`;
const histograms = new Map();

// The histogram of a channel of what is looked at.
async function histogram(channel) {
  const source = { after: state.results.image, std: state.results.std, chi2: state.results.chi2 }[state.mode] ?? measured();
  const minus = state.mode === "difference" ? { ...state.results.image, minus: state.file, minus_item: measured().item } : {};
  const wanted = `/api/histogram?${query({ ...source, ...minus, at: at(channel) })}`;
  if (!histograms.has(wanted)) {
    histograms.set(wanted, await json(wanted));
    if (histograms.size > 64) histograms.delete(histograms.keys().next().value);
  }
  return histograms.get(wanted);
}

// Brightness of the view at hand: as it was set, or from its histogram.
async function brightness() {
  const { file, item, mode, channels } = state;
  const wanted = is_picture() && channels.together ? new Set([...channels.drawn(), channels.active]) : [channels.active];
  const found = await Promise.all([...wanted].map(async channel => [channel, await histogram(channel)]));
  // Something else may be looked at by now.
  if (file !== state.file || item !== state.item || mode !== state.mode || channels !== state.channels) return;
  for (const [channel, h] of found) {
    const most = Math.max(Math.abs(h["p0.1"]), Math.abs(h["p99.9"])) || 1;
    state.ranges[key(channel)] ??= mode === "difference" ? { low: -most, high: most, map: "difference" }
      : mode === "chi2" ? { low: 0, high: 3, map: "viridis" }
        : mode === "std" ? { low: 0, high: h["p99.9"] || 1, map: "viridis" }
          : { low: h["p0.1"] ?? 0, high: h["p99.9"] ?? 1, map: "gray" };
    if (channel === channels.active) state.histogram = h;
  }
  range({});
}

// Bins put together until no more than one in four is empty: an image of few counts has fewer values than there are bins.
function coarser(bins) {
  while (bins.length > 16 && 4 * bins.filter(n => !n).length > bins.length)
    bins = Array.from({ length: bins.length / 2 }, (_, i) => bins[2 * i] + bins[2 * i + 1]);
  return bins;
}

function range(change) {
  const now = state.ranges[key()], h = state.histogram, reach = (h.max - h.min) || 1;
  if (!now) return;
  Object.assign(now, change);
  $("low").value = +now.low.toPrecision(5); $("high").value = +now.high.toPrecision(5);
  $("lows").value = 1000 * (now.low - h.min) / reach; $("highs").value = 1000 * (now.high - h.min) / reach;
  // Differences have colours of their own, and so have channels in one picture.
  $("colours").hidden = state.mode === "difference" || (is_picture() && state.channels.together);
  $("map").value = now.map;
  $("bright").textContent = state.channels.count > 1 ? `Brightness: ${state.channels.names[state.channels.active]}` : "Brightness";
  const canvas = $("histogram"), c = canvas.getContext("2d"), bins = coarser(h.bins ?? []), most = Math.log1p(Math.max(1, ...bins)), wide = 256 / bins.length;
  c.clearRect(0, 0, 256, 48);
  bins.forEach((n, i) => {
    const value = h.min + reach * (i + 0.5) / bins.length, tall = 46 * Math.log1p(n) / most;
    c.fillStyle = getComputedStyle(document.body).getPropertyValue(value >= now.low && value <= now.high ? "--accent" : "--line");
    c.fillRect(i * wide, 48 - tall, wide, tall);
  });
  shown();
}

function shown() {
  const { channels, results } = state, together = is_picture() && channels.together;
  const drawn = together ? channels.drawn() : [channels.active];
  const layers = drawn.filter(c => state.ranges[key(c)]).map(c => ({ at: at(c), ...state.ranges[key(c)], colour: together ? channels.colours[c] : undefined }));
  if (!layers.length && !together) return;
  const before = { ...measured(), layers }, after = { ...results.image, layers };
  const panes = { before: [before], after: [after], slider: [before, after], sides: [before, after],
    difference: [{ ...after, minus: state.file, minus_item: measured().item }], std: [{ ...results.std, layers }], chi2: [{ ...results.chi2, layers }] }[state.mode];
  viewer.show(panes, panes.length > 1 ? state.mode : "one");
  $("which").textContent = channels.count > 1 && !together ? channels.names[channels.active] : "";
  if (viewer.line) profile(viewer.line);
}

function modes() {
  const has = { before: true, std: !!state.results.std, chi2: !!state.results.chi2 };
  $("modes").querySelectorAll("[data-mode]").forEach(b => {
    b.disabled = !(has[b.dataset.mode] ?? !!state.results.image);
    b.setAttribute("aria-pressed", b.dataset.mode === state.mode);
  });
  $("slider").hidden = state.mode !== "slider";
}

function mode(name) {
  const wide = m => m === "sides";
  const change = wide(state.mode) !== wide(name);
  state.mode = name;
  modes();
  return brightness().then(() => { if (change && !viewer.moved) viewer.fit(); }).catch(failed);
}

function where([y, x], values) {
  const known = (values ?? []).map(of => of.filter(v => v !== undefined).map(number).join(", ")).filter(Boolean).join(" | ");
  $("where").textContent = values ? `x ${Math.floor(x)}, y ${Math.floor(y)}${known && `: ${known}`}` : "";
}

async function profile([from, to]) {
  const files = [measured(), state.results.image].filter(Boolean);
  const ends = { x0: from[1], y0: from[0], x1: to[1], y1: to[0], at: at() };
  try {
    const got = await Promise.all(files.map(file => json(`/api/profile?${query({ ...file, ...ends })}`)));
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
    const image = measured(), found = await json(`/api/camera?${query(image)}`);
    if (image.file !== state.file || image.item !== measured().item) { $("estimate").disabled = false; return say(""); }
    facts($("camera"), [["gain", found.gain && `${number(found.gain)} e/count`], ["offset", found.offset !== undefined && `${number(found.offset)} counts`], ["read noise", found.read_noise !== undefined && `${number(found.read_noise)} e`]]);
    $("figure").src = $("larger").href = `/api/camera.svg?${query(image)}`;
    $("figure").hidden = false;
    say("");
  } catch (e) { say(e.message, true); }
  $("estimate").disabled = false;
}

async function restore() {
  const settings = { method: $("method").value, std: $("std").checked, chi2: $("chi2").checked };
  if (Number($("samples").value) > 0) settings.samples = Number($("samples").value);
  if (several() && !$("all").checked) settings.item = `#${state.item}`;
  for (const id of ["gain", "offset", "read_noise"]) if ($(id).value !== "") settings[id] = Number($(id).value);
  try {
    const job = await json("/api/jobs", { method: "POST", body: JSON.stringify({ file: state.file, settings }) });
    say("");
    state.job = job;
    remember();
    watch(job.id);
  } catch (e) { say(e.message, true); }
}

const watched = new Set();

async function watch(id) {
  if (watched.has(id)) return;
  watched.add(id);
  $("result").hidden = true;
  list_jobs();
  for (;;) {
    let job;
    try { job = await json(`/api/jobs/${id}`); } catch (e) { say(e.message, true); await new Promise(r => setTimeout(r, 2000)); continue; }
    if (state.job?.id !== id) { watched.delete(id); return; }
    if (is_over(job)) { watched.delete(id); $("progress").hidden = true; $("start").disabled = false; list_jobs(); return finished(job).catch(failed); }
    $("progress").hidden = false; $("start").disabled = true;
    const p = job.progress;
    if (p?.total) $("done").value = p.done / p.total; else $("done").removeAttribute("value");
    $("left").textContent = p?.cancelling ? "cancelling" : job.state === "queued" ? `waiting, ${job.before} before` : p?.seconds_left != null ? `${duration(p.seconds_left)} left` : "preparing";
    await new Promise(r => setTimeout(r, 300));
  }
}

// The files of a job that are of the image at hand. A file may hold all images of its input, or this one alone.
async function results(job) {
  const only = wanted(job, state.about.items), all = job.made ?? [];
  if (only !== null && only !== state.item) return {};
  const of = what => {
    const found = all.filter(m => m.what === what);
    return found.find(m => m.item === state.item) ?? (what === "image" && found.length === 1 ? found[0] : undefined);
  };
  const found = ["image", "std", "chi2"].map(what => [what, of(what)]).filter(([, m]) => m);
  return Object.fromEntries(await Promise.all(found.map(async ([what, { file }]) => {
    if (!several()) return [what, { file }];
    const { items } = await json(`/api/describe?${query({ file })}`), name = state.about.items[state.item], once = names => names.filter(n => n === name).length === 1;
    const number = once(items) && once(state.about.items) ? items.indexOf(name) : items.length === state.about.items.length ? state.item : 0;
    return [what, { file, item: `#${number}` }];
  })));
}

async function finished(job) {
  state.job = job;
  if (job.state === "failed") say(job.error, true);
  if (job.state === "cancelled") say("cancelled");
  if (job.state !== "done") { modes(); return; }
  const item = state.item, found = await results(job);
  if (state.job !== job || state.item !== item) return;
  state.results = found;
  if (!found.image) { modes(); return; }
  const images = job.report.images, image = images.find(i => i.item === state.item) ?? images[0] ?? {};
  facts($("report"), [["time", image.seconds && `${number(image.seconds)} s`], ["chi2", image.chi2 && number(image.chi2)], ["gain", image.camera && `${number(image.camera.gain)} e/count`],
    ["offset", image.camera && `${number(image.camera.offset)} counts`], ["read noise", image.camera && `${number(image.camera.read_noise)} e`],
    ["90 % interval", image.interval_90 && `± ${number(image.interval_90)} std`], ["saturated", image.saturated || ""], ["clipped", image.clipped || ""]]);
  const shares = image.choice?.shares ?? [], named = c => typeof c === "string" ? c : c?.name ?? Object.keys(c)[0];
  $("choice").hidden = !shares.some(s => s.risk !== null && s.risk !== undefined);
  $("choice").tBodies[0].replaceChildren(...shares.map(s => {
    const row = element("tr");
    row.append(element("td", named(s.candidate)), element("td", number(s.risk)), element("td", `${Math.round(100 * s.weight)} %`));
    return row;
  }));
  const said = [image.unfamiliar && `unlike the training images: ${image.unfamiliar}`, ...(job.report.notices ?? [])].filter(Boolean);
  $("said").replaceChildren(...[...new Set(said)].map(t => element("li", t)));
  $("downloads").replaceChildren(...job.made.map(m => {
    const many = job.made.filter(o => o.what === m.what).length > 1, folder = /\.zarr$/i.test(m.file);
    const text = `Download ${m.what}${many ? ` ${state.about.items[m.item] || m.item + 1}` : ""}${folder ? " (zip)" : ""}`;
    return element("a", text, { class: "button", href: `/api/download?${query({ file: m.file })}`, "data-what": m.what, title: m.file.split("/").pop() });
  }));
  $("result").hidden = false;
  $("panel").scrollTop = 0;
  await mode("slider");
}

function mark() {
  document.querySelectorAll("#list button").forEach(b => b.setAttribute("aria-current", b.title === state.file));
}

start().catch(failed);
