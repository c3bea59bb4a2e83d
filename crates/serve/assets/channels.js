// The channels of an image: one at a time, or all in one picture, each with a colour. The colours are told apart by people of every kind of
// colour vision unless others are chosen; samples of colour images (RGB) have their own.

import { $, element } from "/common.js";

const RGB = [[255, 0, 0], [0, 255, 0], [0, 0, 255]];
// More than so many in one picture say nothing unless they are chosen.
const MOST = 6;

const hex = colour => `#${colour.map(v => v.toString(16).padStart(2, "0")).join("")}`;

export class Channels {
  // `about` is what the server says of the image, `safe` its colours for two channels and for more.
  constructor(about, safe, onchange) {
    const found = "CS".split("").map(axis => about.dims.find(d => d.axis === axis && d.length > 1)).find(d => d);
    Object.assign(this, { axis: found?.axis, count: found?.length ?? 1, active: 0, onchange, safe });
    this.names = Array.from({ length: this.count }, (_, i) => found?.axis === "S" ? ["red", "green", "blue", "alpha"][i] ?? `sample ${i + 1}`
      : about.channels[i]?.name || `channel ${i + 1}`);
    this.own = about.channels.map(c => c.color);
    const colours = found?.axis === "S";
    this.together = colours ? this.count >= 3 : this.count > 1 && this.count <= MOST;
    this.shown = this.names.map((_, i) => i < (colours ? 3 : MOST));
    this.colours = colours ? this.names.map((_, i) => RGB[i % 3]) : this.names.map((_, i) => this.usual(i));
    this.list();
  }

  usual(i) { const colours = this.count === 2 ? this.safe.two : this.safe.more; return colours[i % colours.length]; }

  // Those of a picture.
  drawn() { return this.together ? this.names.map((_, i) => i).filter(i => this.shown[i]) : [this.active]; }

  change(what) { Object.assign(this, what); this.list(); this.onchange(); }

  list() {
    $("channels").hidden = this.count < 2;
    $("together").checked = this.together;
    $("safe").hidden = !this.together || this.axis === "S";
    $("own").hidden = $("safe").hidden || !this.own.some(c => c);
    const row = (name, i) => {
      const item = element("li"), show = element("input", null, { type: "checkbox", "aria-label": `Show ${name}` });
      const colour = element("input", null, { type: "color", value: hex(this.colours[i]), "aria-label": `Colour of ${name}` });
      const choose = element("button", name, { type: "button", "aria-pressed": i === this.active, title: `Brightness of ${name}` });
      show.checked = this.shown[i];
      show.hidden = colour.hidden = !this.together;
      show.addEventListener("change", () => this.change({ shown: this.shown.with(i, show.checked) }));
      colour.addEventListener("input", () => {
        this.colours[i] = [1, 3, 5].map(at => parseInt(colour.value.slice(at, at + 2), 16));
        this.onchange();
      });
      choose.addEventListener("click", () => { this.change({ active: i }); $("layers").children[i].querySelector("button").focus(); });
      item.append(show, colour, choose);
      return item;
    };
    $("layers").replaceChildren(...this.names.map(row));
  }
}

// Controls of the page, which are there once.
export function wire(now) {
  $("together").addEventListener("change", () => now().change({ together: $("together").checked }));
  $("safe").addEventListener("click", () => now().change({ colours: now().names.map((_, i) => now().usual(i)) }));
  $("own").addEventListener("click", () => now().change({ colours: now().names.map((_, i) => now().own[i] ?? now().usual(i)) }));
}
