// The page of training runs: records as they grow, of one run or of several beside each other.

import { $, chart, duration, element, json, number, query, say, session, theme } from "/common.js";

const CHARTS = [["train", "loss", "Loss", true], ["validation", "psnr", "Validation PSNR, dB", false], ["train", "rate", "Learning rate", true],
  ["train", "waiting", "Share of time waiting for data", false], ["train", "images_per_second", "Images a second", false], ["train", "grad_norm", "Norm of the gradient", true]];
const runs = new Map();

async function start() {
  theme();
  await session();
  await list();
  for (;;) {
    await new Promise(r => setTimeout(r, 2000));
    try { await list(); await poll(); say(""); } catch (e) { say(e.message, true); }
  }
}

async function list() {
  const found = (await json("/api/runs")).runs;
  for (const run of found) {
    if (runs.has(run.run)) { Object.assign(runs.get(run.run).about, run); continue; }
    if (!runs.size) $("list").replaceChildren();
    const kind = runs.size + 1, label = element("label", null, { class: "check" }), box = element("input", null, { type: "checkbox", value: run.run });
    const entry = { about: run, kind, chosen: false, next: 0, records: [], age: element("small") };
    box.addEventListener("change", () => { entry.chosen = box.checked; poll().catch(e => say(e.message, true)); });
    label.append(box, element("span", run.run.replace(/^folder\//, "")), entry.age);
    $("list").append(label);
    runs.set(run.run, entry);
  }
  for (const { about, age } of runs.values()) age.textContent = about.age < 60 ? "live" : `${duration(about.age)} ago`;
  if (!runs.size) $("list").replaceChildren(element("p", "None yet."));
}

async function poll() {
  for (const [name, run] of runs) {
    if (!run.chosen) continue;
    const got = await json(`/api/runs/records?${query({ run: name, from: run.next })}`);
    // A run that was resumed has cut its records.
    if (got.from < run.next) run.records = [];
    run.records.push(...got.records);
    Object.assign(run, { next: got.next, pictures: got.pictures ?? [] });
  }
  show();
}

function show() {
  const chosen = [...runs].filter(([, r]) => r.chosen);
  $("empty").hidden = chosen.length > 0;
  const title = name => name.split("/").slice(1).join("/");
  const last = (run, kind, key) => run.records.findLast(r => r.kind === kind && r[key] !== undefined)?.[key];
  const table = element("table"), head = element("tr");
  head.append(...["run", "iteration", "loss", "validation PSNR", "images a second", "seconds"].map(t => element("th", t)));
  table.append(head, ...chosen.map(([name, run]) => {
    const row = element("tr"), first = element("td"), swatch = element("span", null, { class: `swatch key${run.kind % 5}` });
    first.append(swatch, title(name));
    row.append(first, ...[["train", "iteration"], ["train", "loss"], ["validation", "psnr"], ["train", "images_per_second"], ["train", "seconds"]].map(([k, key]) => element("td", number(last(run, k, key)))));
    return row;
  }));
  $("table").replaceChildren(...(chosen.length ? [table] : []));
  $("charts").replaceChildren(...CHARTS.map(([kind, key, text, logarithmic]) => {
    const lines = chosen.map(([, run]) => ({ kind: run.kind, points: run.records.filter(r => r.kind === kind && Number.isFinite(r[key])).map(r => [r.iteration, r[key]]) }));
    if (!lines.some(l => l.points.length)) return null;
    const figure = element("figure"), svg = document.createElementNS("http://www.w3.org/2000/svg", "svg"), caption = element("figcaption");
    svg.setAttribute("viewBox", "0 0 800 160");
    svg.setAttribute("preserveAspectRatio", "none");
    const span = chart(svg, lines, logarithmic);
    caption.textContent = `iterations ${number(span.x[0])} to ${number(span.x[1])}; ${number(span.y[0])} to ${number(span.y[1])}${logarithmic ? ", logarithmic" : ""}`;
    figure.append(element("h2", text), svg, caption);
    return figure;
  }).filter(Boolean));
  const pictures = chosen.filter(([, r]) => r.pictures?.length).map(([name, run]) => [name, run.pictures.at(-1)]);
  const now = JSON.stringify(pictures);
  if (now === show.pictures) return;
  show.pictures = now;
  $("pictures").replaceChildren(...pictures.flatMap(([run, name]) => [element("h2", `${title(run)}: ${name.replace(/\.png$/, "")}`),
    element("img", null, { src: `/api/runs/picture?${query({ run, name })}`, alt: "Pictures of the validation" })]));
}

start().catch(e => say(e.message, true));
