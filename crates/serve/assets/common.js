// What both pages share: requests with the token's cookie, the theme, and small helpers for the page's elements.

export const $ = id => document.getElementById(id);

export function element(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  if (text !== undefined && text !== null) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

export function say(text, bad = false) {
  $("status").textContent = text;
  $("status").classList.toggle("bad", bad);
}

export class Refused extends Error {
  constructor(status, text) { super(text); this.status = status; }
}

export async function ask(path, options = {}) {
  const reply = await fetch(path, options);
  if (reply.ok) return reply;
  let why = reply.statusText;
  try { why = (await reply.json()).error; } catch { /* not JSON */ }
  throw new Refused(reply.status, why);
}

export const json = async (path, options) => (await ask(path, options)).json();

export const query = values =>
  Object.entries(values).filter(([, v]) => v !== undefined && v !== null && v !== "")
    .map(([k, v]) => `${k}=${encodeURIComponent(v)}`).join("&");

// The token comes in the part of the address that is never sent, is shown once, and is taken out of the address.
export async function session() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    history.replaceState(null, "", location.pathname);
    await show(given);
  }
  for (;;) {
    try { return await json("/api/about"); } catch (e) {
      if (e.status !== 401) throw e;
      await show(await prompted());
    }
  }
}

async function show(token) {
  try { await ask("/api/session", { method: "POST", headers: { Authorization: `Bearer ${token}` } }); say(""); }
  catch (e) { say(e.message, true); }
}

function prompted() {
  return new Promise(done => {
    $("token").value = "";
    $("ask").addEventListener("close", () => done($("token").value), { once: true });
    $("ask").showModal();
  });
}

// Light, dark, or as the system has it.
export function theme() {
  const order = ["system", "light", "dark"];
  let now = localStorage.getItem("theme") ?? "system";
  const apply = () => {
    if (now === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = now;
    $("theme").textContent = `Theme: ${now}`;
    dispatchEvent(new Event("themed"));
  };
  $("theme").addEventListener("click", () => {
    now = order[(order.indexOf(now) + 1) % 3];
    localStorage.setItem("theme", now);
    apply();
  });
  apply();
}

export const number = v => v === null || v === undefined ? "-" : Math.abs(v) >= 1e5 || (v !== 0 && Math.abs(v) < 1e-3) ? v.toExponential(2) : String(+v.toPrecision(4));

export const duration = s => s < 90 ? `${Math.ceil(s)} s` : s < 5400 ? `${Math.ceil(s / 60)} min` : `${(s / 3600).toFixed(1)} h`;

export const size = b => b > 1e9 ? `${(b / 1e9).toFixed(1)} GB` : b > 1e6 ? `${(b / 1e6).toFixed(1)} MB` : `${Math.ceil(b / 1e3)} kB`;

export function facts(list, rows) {
  list.replaceChildren(...rows.filter(r => r[1] !== undefined && r[1] !== null && r[1] !== "").flatMap(([k, v]) => [element("dt", k), element("dd", v)]));
}

// Lines of {points: [[x, y], ...], kind} in an SVG element, with the least and greatest value of each axis.
export function chart(svg, lines, logarithmic = false) {
  const [width, height, edge] = [800, 160, 10];
  svg.replaceChildren();
  const value = logarithmic ? y => Math.log10(Math.max(y, 1e-12)) : y => y;
  const all = lines.flatMap(l => l.points).filter(p => Number.isFinite(p[1]) && p[1] !== null);
  if (!all.length) return null;
  const span = of => all.reduce(([a, b], p) => [Math.min(a, of(p)), Math.max(b, of(p))], [Infinity, -Infinity]);
  const [x0, x1] = span(p => p[0]), [y0, y1] = span(p => value(p[1]));
  // What is all the same lies in the middle.
  const share = (v, a, b) => b > a ? (v - a) / (b - a) : 0.5;
  const x = v => edge + share(v, x0, x1) * (width - 2 * edge);
  const y = v => height - edge - share(value(v), y0, y1) * (height - 2 * edge);
  for (const line of lines) {
    const path = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
    path.setAttribute("class", `series${line.kind % 5}`);
    const points = line.points.filter(p => Number.isFinite(p[1])).map(p => [x(p[0]), y(p[1])]);
    // A single value is a short line, which is seen whatever the picture's proportions.
    if (points.length === 1) points.unshift([points[0][0] - 8, points[0][1]]);
    path.setAttribute("points", points.map(p => p.map(v => v.toFixed(1)).join(",")).join(" "));
    svg.append(path);
  }
  const low = logarithmic ? 10 ** y0 : y0, high = logarithmic ? 10 ** y1 : y1;
  return { x: [x0, x1], y: [low, high] };
}
