"use strict";
// Draws the charts of a batchlab report from the data in the page. All text from the data goes through textContent, or
// through `plain` where the chart library would read markup.

const KINDS = [null, "waiting", "prefill", "again", "decode", "preempted", "seated", "away", "out"]; // CSS variables
const SIGNS = ["", "·", "+", "↻", "●", "‖", "○", "…", "×"];
const [WAITING, PREFILL, AGAIN, OUT] = [1, 2, 3, 8];
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
const MOST_COLUMNS = 480; // of the request rows' picture; up to EXACT iterations each is a column of its own
const MOST_ROWS = 240;
const EXACT = 240;
const WIDE = 10;
const MOST_NAMED = 8; // runs at one point of a front
const NEAR = 10; // times a capacity, or its share: rates further away are not drawn

const byId = (id) => document.getElementById(id);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const count = (value) => Math.round(value).toLocaleString("en-US");
const shorten = (text, most) => ([...text].length > most ? `${[...text].slice(0, most - 1).join("")}…` : text);
const LONG = /… \([\d,]+ characters\) …/; // where an id was cut when the page was written
// Head and tail: ids often differ in their ends only.
function ends(text, most) {
  const letters = [...text.replace(LONG, "…")];
  if (letters.length <= most) return letters.join("");
  const tail = Math.floor((most - 1) / 2);
  return `${letters.slice(0, most - 1 - tail).join("")}…${letters.slice(letters.length - tail).join("")}`;
}

// Labels of rows: where two would be alike, each has its row's number.
function labels(texts, first, most) {
  const cut = texts.map((text) => ends(text, most));
  const times = new Map();
  for (const label of cut) times.set(label, (times.get(label) || 0) + 1);
  return cut.map((label, i) => (times.get(label) === 1 ? label : `${ends(label, Math.max(most - 1 - String(first + i + 1).length, 1))}~${first + i + 1}`));
}

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

async function unpack({ type, data }) {
  if (!data) return [];
  const text = atob(data);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  if (type === "json") return JSON.parse(new TextDecoder().decode(buffer));
  return new { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f8: Float64Array }[type](buffer);
}

async function unpackAll(columns) {
  const found = await Promise.all(Object.values(columns).map(unpack));
  return Object.fromEntries(Object.keys(columns).map((name, place) => [name, found[place]]));
}

// A run's timeline: iterations in slots of `per` each, and each request's segments.
class Timeline {
  static async of(run) {
    const line = new Timeline();
    const found = run.timeline;
    const [slots, segments, requests, texts] = await Promise.all([
      unpackAll(found.slots), unpackAll(found.segments), unpackAll(found.requests), unpack(found.texts)]);
    Object.assign(line, { run, slots, segments, requests, texts, about: found, per: found.per_slot, iterations: found.iterations });
    line.rows = segments.counts.length;
    line.scale = timeScale(run.unit, slots);
    line.settle();
    return line;
  }

  // Absolute times from differences, segment places of each row, and each row's first and last iteration.
  settle() {
    const { start, length } = this.slots;
    this.start = new Float64Array(start.length);
    this.end = new Float64Array(start.length);
    for (let i = 0, now = 0; i < start.length; i++) {
      now += start[i];
      this.start[i] = now / this.scale.by;
      this.end[i] = (now + length[i]) / this.scale.by;
    }
    const { counts, gap, length: long } = this.segments;
    this.first = new Float64Array(long.length);
    this.last = new Float64Array(long.length);
    this.of = new Uint32Array(this.rows + 1);
    for (let row = 0, i = 0; row < this.rows; row++) {
      for (let n = 0, now = 0; n < counts[row]; n++, i++) {
        this.first[i] = now + gap[i];
        now = this.first[i] + long[i] + 1;
        this.last[i] = now;
      }
      this.of[row + 1] = i;
    }
  }

  // The place of an iteration, which may be a fraction, on the axis; and back.
  at(iteration, across) {
    if (across === "iteration" || !this.start.length) return iteration;
    const slot = clamp(Math.floor(iteration / this.per), 0, this.start.length - 1);
    const inside = Math.min(this.per, this.iterations - slot * this.per);
    return this.start[slot] + (this.end[slot] - this.start[slot]) * clamp((iteration - slot * this.per) / inside, 0, 1);
  }

  iteration(place, across) {
    if (across === "iteration") return clamp(place, 0, this.iterations);
    const slot = this.slotAt(place);
    const long = this.end[slot] - this.start[slot];
    const inside = Math.min(this.per, this.iterations - slot * this.per);
    return slot * this.per + inside * clamp(long ? (place - this.start[slot]) / long : 0, 0, 1);
  }

  slotAt(time) {
    let [low, high] = [0, Math.max(this.start.length - 1, 0)];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.start[middle] <= time) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  whole(across) {
    if (across === "iteration") return [0, Math.max(this.iterations, 1)];
    const last = this.end.length ? this.end[this.end.length - 1] : 1;
    return [this.start.length ? this.start[0] : 0, last];
  }

  // The rows that live between two iterations.
  living(low, high) {
    let [from, to] = [this.rows, 0];
    for (let row = 0; row < this.rows; row++) {
      const [a, b] = [this.of[row], this.of[row + 1]];
      if (a < b && this.first[a] < high && this.last[b - 1] > low) {
        from = Math.min(from, row);
        to = Math.max(to, row + 1);
      }
    }
    return from < to ? [from, to] : [0, Math.max(this.rows, 1)];
  }

  segmentAt(row, iteration) {
    for (let i = this.of[row]; i < this.of[row + 1]; i++) if (this.first[i] <= iteration && iteration < this.last[i]) return i;
    return -1;
  }

  // Why a segment is what it is in an iteration, as `batchlab explain` says it.
  why(segment, row, iteration) {
    const value = this.segments.value[segment];
    const kind = this.segments.kind[segment];
    if (kind === PREFILL || kind === AGAIN) return `${count(value)} token${value === 1 ? "" : "s"} in each iteration`;
    if (kind !== WAITING) return this.texts[value] || "";
    const slot = Math.floor(iteration / this.per);
    const number = row * this.about.every + value; // its place in the order of coming
    const { latest, head, order_why, head_why, rest_why } = this.slots;
    if (latest[slot] && number < latest[slot]) return this.texts[order_why[slot]];
    if (head[slot] && head[slot] !== row * this.about.every + 1) return this.texts[rest_why[slot]];
    return this.texts[head_why[slot]];
  }
}

function timeScale(unit, slots) {
  if (unit !== "ns") return { by: 1, name: `${unit}s` };
  let total = 0;
  for (const part of slots.start) total += part;
  return total >= 1e10 ? { by: 1e9, name: "s" } : total >= 1e6 ? { by: 1e6, name: "ms" } : { by: 1e3, name: "us" };
}

// Rows and columns of what is in view: the kind that most of each cell's time goes to, and every kind's share.
class Raster {
  constructor(line, view) {
    const [low, high] = view.x.map((place) => line.iteration(place, view.across));
    this.line = line;
    this.exact = line.per === 1 && Math.ceil(high) - Math.floor(low) <= EXACT;
    this.rows = [clamp(Math.floor(view.y[0]), 0, line.rows), clamp(Math.ceil(view.y[1]), 0, line.rows)];
    this.each = Math.max(1, Math.ceil((this.rows[1] - this.rows[0]) / MOST_ROWS));
    this.high = Math.max(1, Math.ceil((this.rows[1] - this.rows[0]) / this.each));
    this.setColumns(view, low, high);
    this.share = new Float32Array(this.high * this.wide * KINDS.length);
    for (let row = this.rows[0]; row < this.rows[1]; row++) this.addRow(row);
  }

  setColumns(view, low, high) {
    const { line } = this;
    if (this.exact) {
      this.from = clamp(Math.floor(low), 0, Math.max(line.iterations - 1, 0));
      const to = Math.min(Math.max(Math.ceil(high), this.from + 1), line.iterations);
      this.edges = [];
      this.column = []; // of each iteration: time may stand still, or jump, between two
      for (let i = this.from; i < to; i++) {
        const [a, b] = [line.at(i, view.across), view.across === "time" ? line.end[i] : i + 1];
        if (!this.edges.length) this.edges.push(a);
        else if (a > this.edges[this.edges.length - 1]) this.edges.push(a);
        this.column.push(this.edges.length - 1);
        this.edges.push(b);
      }
      if (!this.edges.length) this.edges.push(0, 1); // a run without an iteration
      this.wide = this.edges.length - 1;
    } else {
      this.wide = MOST_COLUMNS;
      const [a, b] = view.x;
      this.edges = Array.from({ length: this.wide + 1 }, (_, i) => a + ((b - a) * i) / this.wide);
      this.place = (iteration) => ((line.at(iteration, view.across) - a) / (b - a)) * this.wide;
    }
  }

  addRow(row) {
    const { line } = this;
    const base = Math.floor((row - this.rows[0]) / this.each) * this.wide;
    for (let i = line.of[row]; i < line.of[row + 1]; i++) {
      const kind = line.segments.kind[i];
      if (this.exact) {
        const to = Math.min(line.last[i] - this.from, this.column.length);
        for (let n = Math.max(line.first[i] - this.from, 0); n < to; n++) this.share[(base + this.column[n]) * KINDS.length + kind] += 1;
        continue;
      }
      const [a, b] = [Math.max(this.place(line.first[i]), 0), Math.min(this.place(line.last[i] - 1e-9), this.wide)];
      for (let n = Math.floor(a); n < b; n++) this.share[(base + n) * KINDS.length + kind] += Math.min(b, n + 1) - Math.max(a, n) || 1e-6;
    }
  }

  kinds() {
    const found = [];
    for (let row = 0; row < this.high; row++) {
      const cells = new Array(this.wide).fill(null);
      for (let n = 0; n < this.wide; n++) {
        const base = (row * this.wide + n) * KINDS.length;
        let most = 0;
        for (let kind = 1; kind < KINDS.length; kind++) if (this.share[base + kind] > most) [most, cells[n]] = [this.share[base + kind], kind];
      }
      found.push(cells);
    }
    return found;
  }

  iterationOf(column, across) {
    return this.exact ? this.from + this.column.indexOf(column) : Math.floor(this.line.iteration((this.edges[column] + this.edges[column + 1]) / 2, across));
  }

  texts(kinds) {
    return kinds.map((cells, row) => cells.map((kind, n) => {
      if (kind === null) return "";
      const i = this.line.segmentAt(this.rows[0] + row, this.iterationOf(n));
      return kind === PREFILL || kind === AGAIN ? SIGNS[kind] + this.line.segments.value[i] : SIGNS[kind];
    }));
  }
}

function describe(raster, row, column, view) {
  const { line } = raster;
  const iteration = raster.iterationOf(column, view.across);
  if (iteration < raster.from || (raster.exact && !raster.column.includes(column))) return null;
  const [from, to] = [raster.edges[column], raster.edges[column + 1]];
  const unit = view.across === "time" ? line.scale.name : "iterations";
  const first = raster.rows[0] + row * raster.each;
  const last = Math.min(first + raster.each, raster.rows[1]) - 1;
  const shares = Array.from(raster.share.subarray((row * raster.wide + column) * KINDS.length, (row * raster.wide + column + 1) * KINDS.length));
  const total = shares.reduce((a, b) => a + b, 0);
  if (!total) return null;
  const lines = [];
  const names = line.about.kinds;
  const parts = shares.map((part, kind) => [part / total, names[kind]]).filter(([part]) => part > 0.0005).sort((a, b) => b[0] - a[0]);
  const mixed = parts.map(([part, name]) => `${name} ${Math.round(100 * part)} %`).join(", ");
  if (first === last) {
    const { id, prompt, output, state, preemptions, ttft, e2el } = line.requests;
    const took = (name, value) => (value ? `, ${name} ${number(((value - 1) * line.about.step) / line.scale.by)} ${line.scale.name}` : "");
    lines.push(id[first], `prompt ${count(prompt[first])}, output ${count(output[first])} tokens; ${state[first]}${took("TTFT", ttft[first])}${took("E2E", e2el[first])}`);
    if (preemptions[first]) lines.push(`${count(preemptions[first])} preemption${preemptions[first] > 1 ? "s" : ""}`);
  } else lines.push(`${count(last - first + 1)} requests, ${line.requests.id[first]} to ${line.requests.id[last]}`);
  if (raster.exact) {
    const when = line.run.unit === "iteration" ? "" : `, ${number(line.start[iteration])} to ${number(line.end[iteration])} ${line.scale.name}`;
    lines.push(`iteration ${count(iteration)}${when}`);
  } else lines.push(`${number(from)} to ${number(to)} ${unit}, about iteration ${count(iteration)}`);
  const segment = first === last ? line.segmentAt(first, iteration) : -1;
  if (segment >= 0 && parts.length === 1) {
    const why = line.why(segment, first, iteration);
    const name = names[line.segments.kind[segment]];
    lines.push(why.startsWith(name) ? why : `${name}${why ? `: ${why}` : ""}`);
  } else {
    lines.push(mixed);
    const slot = Math.floor(iteration / line.per);
    if (shares[WAITING] && line.texts[line.slots.rest_why[slot]]) lines.push(`held up the queue: ${line.texts[line.slots.rest_why[slot]]}`);
    if (first !== last) lines.push("zoom in to see each request");
  }
  return lines;
}

const number = (value) => Number(value.toPrecision(6)).toLocaleString("en-US", { maximumFractionDigits: 6 });

function theme(more = {}) {
  const axis = { gridcolor: colour("line"), linecolor: colour("line"), zerolinecolor: colour("line"), tickfont: { size: 11 }, title: { font: { size: 12 } }, automargin: true, ...more.axis };
  return {
    axis,
    layout: {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: colour("ink"), size: 12, family: "system-ui, sans-serif" },
      margin: { l: 56, r: 12, t: 26, b: 42 }, hoverlabel: { bgcolor: colour("card"), bordercolor: colour("soft"), font: { color: colour("ink") } },
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 11 } }, dragmode: "zoom",
    },
  };
}
const CONFIG = { displayModeBar: false, responsive: true, doubleClick: "reset" };

// The timeline's state and drawing.
class Board {
  constructor(lines) {
    this.lines = lines;
    this.view = { across: "time" };
    this.chart = byId("timeline");
    this.choose(0);
  }

  choose(which) {
    this.line = this.lines[which];
    this.all();
  }

  all() {
    this.view.x = this.line.whole(this.view.across);
    this.view.y = [0, Math.max(this.line.rows, 1)];
  }

  // Looks at a stretch of the axis; the rows follow those that live in it.
  look(from, to) {
    const [low, high] = this.line.whole(this.view.across);
    const least = (high - low) / 1e7 || 1e-9;
    const wide = clamp(to - from, least, high - low);
    const start = clamp(from, low, high - wide);
    this.view.x = [start, start + wide];
    this.view.y = this.line.living(...this.view.x.map((place) => this.line.iteration(place, this.view.across)));
  }

  lookAt(first, last, row) {
    const margin = Math.max(2, (last - first) * 0.1);
    const ends = [Math.max(first - margin, 0), Math.min(last + 1 + margin, this.line.iterations)];
    this.look(...ends.map((iteration) => this.line.at(iteration, this.view.across)));
    if (row !== null) this.view.y = [Math.max(row - 12, 0), Math.min(row + 13, this.line.rows)];
    this.draw([first, last + 1], row);
  }

  lookAtRow(row) {
    const [a, b] = [this.line.of[row], this.line.of[row + 1]];
    if (a < b) this.lookAt(this.line.first[a], this.line.last[b - 1] - 1, row);
  }

  zoom(how) {
    const [from, to] = this.view.x;
    const wide = to - from;
    if (how === "all") this.all();
    else if (how === "in") this.look(from + wide / 4, to - wide / 4);
    else if (how === "out") this.look(from - wide / 2, to + wide / 2);
    else this.look(from + (how === "left" ? -wide / 2 : wide / 2), to + (how === "left" ? -wide / 2 : wide / 2));
    this.draw();
  }

  setAcross(across) {
    const ends = this.view.x.map((place) => this.line.iteration(place, this.view.across));
    this.view.across = across;
    this.view.x = ends.map((iteration) => this.line.at(iteration, across));
    const last = this.line.whole(across);
    if (ends[1] >= this.line.iterations) this.view.x[1] = last[1];
    this.draw();
  }

  draw(marked = null, markedRow = null) {
    const raster = new Raster(this.line, this.view);
    this.raster = raster;
    this.say(raster);
    const { axis, layout } = theme();
    const blocks = this.line.about.blocks !== null;
    const parts = blocks ? [[0.46, 1], [0.29, 0.42], [0.145, 0.255], [0, 0.11]] : [[0.4, 1], [0.2, 0.355], [0, 0.155]];
    const narrow = this.chart.clientWidth < 600;
    const title = (text) => ({ text, font: { size: 11 }, standoff: 4 });
    const x = this.view.across === "time" ? `time (${this.line.scale.name})` : "iteration";
    const shapes = [];
    if (marked) {
      const [x0, x1] = marked.map((iteration) => this.line.at(iteration, this.view.across));
      shapes.push({ type: "rect", xref: "x", yref: "paper", x0, x1, y0: 0, y1: 1, line: { color: colour("preempted"), width: 1, dash: "dot" }, fillcolor: "rgba(0,0,0,0)" });
    }
    if (markedRow !== null) shapes.push({ type: "rect", xref: "paper", yref: "y", x0: 0, x1: 1, y0: markedRow, y1: markedRow + 1, line: { color: colour("accent"), width: 1.5 }, fillcolor: "rgba(0,0,0,0)" });
    const few = this.view.y[1] - this.view.y[0] <= (narrow ? 30 : 40);
    const rows = few ? Array.from({ length: raster.rows[1] - raster.rows[0] }, (_, i) => raster.rows[0] + i) : null;
    const names = rows && labels(rows.map((row) => this.line.requests.id[row]), raster.rows[0], narrow ? 6 : 15);
    Object.assign(layout, {
      margin: { l: narrow ? 66 : 124, r: 10, t: 8, b: 40 }, showlegend: false, shapes, hovermode: "closest", bargap: 0,
      xaxis: { ...axis, range: [...this.view.x], title: title(x), anchor: blocks ? "y4" : "y3", automargin: false, showspikes: false },
      yaxis: { ...axis, domain: parts[0], range: [this.view.y[1], this.view.y[0]], automargin: false, showgrid: false, zeroline: false,
        title: title(few ? "" : "requests"), ...(rows ? { tickvals: rows.map((row) => row + 0.5), ticktext: names.map(plain) } : {}) },
      yaxis2: { ...axis, domain: parts[1], fixedrange: true, rangemode: "tozero", automargin: false, nticks: 4, title: title("tokens") },
      yaxis3: { ...axis, domain: parts[2], fixedrange: true, rangemode: "tozero", automargin: false, nticks: 4, title: title("requests") },
    });
    if (blocks) layout.yaxis4 = { ...axis, domain: parts[3], fixedrange: true, range: [0, 100], automargin: false, nticks: 3, ticksuffix: " %", title: title("KV in use") };
    Plotly.react(this.chart, [this.rowsTrace(raster, narrow), this.endsTrace(raster), ...this.strips()], layout, CONFIG);
  }

  // Who was rejected or dropped was so at once: in a short iteration nobody would see it by its cell.
  endsTrace(raster) {
    const [x, y] = [[], []];
    const { line } = this;
    for (let row = raster.rows[0]; row < raster.rows[1] && raster.each === 1 && !raster.readable; row++) {
      for (let i = line.of[row]; i < line.of[row + 1]; i++) {
        if (line.segments.kind[i] === OUT) {
          x.push(line.at(line.first[i], this.view.across));
          y.push(row + 0.5);
        }
      }
    }
    return { type: "scatter", mode: "markers", x, y, marker: { symbol: "x", size: raster.high > 60 ? 4 : 8, color: colour("out"), line: { width: 1, color: colour("card") } }, cliponaxis: false, hoverinfo: "skip" };
  }

  rowsTrace(raster, narrow) {
    const kinds = raster.kinds();
    const scale = KINDS.slice(1).flatMap((name, i) => [[i / 8, colour(name)], [(i + 1) / 8, colour(name)]]);
    const y = Array.from({ length: raster.high + 1 }, (_, i) => Math.min(raster.rows[0] + i * raster.each, Math.max(raster.rows[1], raster.rows[0] + 1)));
    const readable = raster.readable = raster.exact && raster.each === 1 && raster.wide <= (narrow ? 14 : 44) && raster.high <= 40;
    const text = readable ? { text: raster.texts(kinds), texttemplate: "%{text}", textfont: { size: narrow ? 9 : 11 } } : {};
    const gap = raster.each === 1 && raster.high <= 60 ? 1 : 0;
    return { type: "heatmap", x: raster.edges, y, z: kinds, zmin: 0.5, zmax: 8.5, colorscale: scale, showscale: false, hoverinfo: "none", xgap: readable ? 1 : 0, ygap: gap, ...text };
  }

  // Iterations, or bins of them, as areas and lines that share the axis of the rows.
  strips() {
    const { line, view } = this;
    const { slots, per, about } = line;
    const [low, high] = view.x.map((place) => Math.floor(line.iteration(place, view.across) / per));
    const [from, to] = [Math.max(low - 1, 0), Math.min(high + 2, line.start.length)];
    const bin = Math.max(1, Math.ceil((to - from) / 400));
    const x = [];
    const y = { decode: [], prefill: [], unused: [], batch: [], queue: [], kv: [] };
    const put = (place, values) => {
      x.push(place);
      for (const name in y) y[name].push(values[name]);
    };
    let before = null;
    let last = null;
    // Between two iterations, which real engines have, tokens are none; whoever has a seat keeps it, and its KV blocks.
    const held = (slot) => {
      const seated = slots.active[slot] > 0;
      const waiting = per > 1 && !seated ? 0 : slots.queue[slot];
      return { decode: 0, prefill: 0, unused: 0, batch: seated ? last.batch : 0, queue: waiting, kv: seated ? last.kv : 0 };
    };
    for (let i = from; i < to; i += bin) {
      const until = Math.min(i + bin, to);
      const values = { decode: 0, prefill: 0, unused: 0, batch: 0, queue: 0, kv: 0 };
      const inside = Math.min(until * per, line.iterations) - i * per;
      for (let n = i; n < until; n++) {
        for (const name of ["decode", "prefill", "unused", "batch"]) values[name] += slots[name][n] / inside;
        values.queue = Math.max(values.queue, slots.queue[n]);
        if (about.blocks) values.kv = Math.max(values.kv, (100 * slots.kv[n]) / about.blocks);
      }
      const [a, b] = view.across === "time" ? [line.start[i], line.end[until - 1]] : [i * per, Math.min(until * per, line.iterations)];
      if (before !== null && a > before) {
        put(before, last);
        put(before, held(i - 1));
      }
      put(a, values);
      [before, last] = [b, values];
    }
    if (before !== null) put(before, last);
    const mean = per * bin > 1 ? ", mean" : "";
    const most = per * bin > 1 ? ", most" : "";
    const hover = (name) => `%{y:,.4~g} ${name}<extra></extra>`;
    const area = (name, label, pattern) => ({ type: "scatter", mode: "lines", x, y: y[name], stackgroup: "budget", yaxis: "y2", line: { shape: "hv", width: 0 }, fillcolor: colour(name),
      ...(pattern ? { fillpattern: { shape: pattern, size: 5, fgcolor: colour("line"), bgcolor: colour(name), fillmode: "replace" } } : {}), name: label, hovertemplate: hover(`${label} tokens${mean}`) });
    const path = (name, label, dash, axis, more) => ({ type: "scatter", mode: "lines", x, y: y[name], yaxis: axis, line: { shape: "hv", width: 1.6, dash, color: colour(more.colour) }, name: label, hovertemplate: hover(label), ...more.fill });
    const found = [area("decode", "decode"), area("prefill", "prefill")];
    if (about.budget) found.push(area("unused", "unused", "/"));
    found.push(path("batch", `in the batch${mean}`, "solid", "y3", { colour: "run2" }), path("queue", `in the queue${most}`, "dot", "y3", { colour: "run1" }));
    if (about.blocks) found.push(path("kv", `% of the KV blocks in use while the step runs${most}`, "solid", "y4", { colour: "run3", fill: { fill: "tozeroy" } }));
    return found;
  }

  say(raster) {
    const { line } = this;
    const said = [];
    const seen = raster.rows[1] - raster.rows[0];
    if (seen < line.rows || raster.each > 1) said.push(`${count(seen)} of ${count(line.rows)} requests in view`);
    if (raster.each > 1) said.push(`aggregated: each row stands for ${raster.each} requests and shows what most of them did; zoom in for single ones`);
    if (!raster.exact) said.push("each column stands for several iterations");
    if (line.about.every > 1) said.push(`of ${count(line.about.rows)} requests every ${line.about.every}th has a row; all figures are of all of them`);
    if (line.per > 1) said.push(`load, queue and reasons are kept for every ${line.per} iterations together`);
    byId("shown").textContent = said.join(" · ");
  }
}

function legend(line) {
  const list = byId("legend");
  list.replaceChildren();
  const used = new Set(line.segments.kind);
  const add = (name, sign, shade, ink) => {
    const item = document.createElement("li");
    const key = document.createElement("i");
    key.textContent = sign;
    key.style.background = shade;
    key.style.color = ink;
    item.append(key, name);
    list.append(item);
  };
  line.about.kinds.forEach((name, kind) => {
    if (kind && used.has(kind)) add(kind === 2 ? "prefill (tokens)" : kind === 8 ? "rejected or dropped" : name, SIGNS[kind], `var(--${KINDS[kind]})`, ink(colour(KINDS[kind])));
  });
  if (line.about.budget) add("unused token budget", "╱", "var(--unused)", "var(--soft)");
  add("in the batch", "—", "transparent", "var(--run2)");
  add("in the queue", "┄", "transparent", "var(--run1)");
}

function ink(shade) {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(shade.slice(at, at + 2), 16));
  return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#111" : "#fff";
}

function tip(chart, board) {
  const box = byId("tip");
  const hide = () => { box.hidden = true; };
  chart.on("plotly_hover", ({ points, event }) => {
    const point = points.find((one) => one.data.type === "heatmap");
    const lines = point && describe(board.raster, point.pointNumber[0], point.pointNumber[1], board.view);
    if (!lines) return hide();
    box.textContent = lines.join("\n");
    box.hidden = false;
    const [x, y] = [event.clientX, event.clientY];
    box.style.left = `${clamp(x + 16, 8, Math.max(8, innerWidth - box.offsetWidth - 8))}px`;
    box.style.top = `${y + 20 + box.offsetHeight > innerHeight ? Math.max(8, y - box.offsetHeight - 14) : y + 20}px`;
  });
  chart.on("plotly_unhover", hide);
  addEventListener("scroll", hide, { passive: true });
}

function controls(board, redraw) {
  const { chart } = board;
  chart.on("plotly_relayout", (change) => {
    const [x0, x1, y0, y1] = ["xaxis.range[0]", "xaxis.range[1]", "yaxis.range[0]", "yaxis.range[1]"].map((name) => change[name]);
    if (change["xaxis.autorange"] || change["yaxis.autorange"] || change["xaxis.showspikes"] !== undefined) board.all();
    else if (x0 === undefined && y0 === undefined) return;
    else {
      if (x0 !== undefined) board.look(Number(x0), Number(x1));
      if (y0 !== undefined) board.view.y = [clamp(Math.min(y0, y1), 0, board.line.rows - 1), clamp(Math.max(y0, y1), 1, board.line.rows)];
    }
    board.draw();
  });
  chart.on("plotly_doubleclick", () => { board.all(); board.draw(); });
  for (const button of document.querySelectorAll("[data-zoom]")) button.addEventListener("click", () => board.zoom(button.dataset.zoom));
  for (const button of document.querySelectorAll("[data-across]")) {
    button.addEventListener("click", () => {
      for (const other of document.querySelectorAll("[data-across]")) other.setAttribute("aria-pressed", String(other === button));
      board.setAcross(button.dataset.across);
    });
  }
  const which = byId("which");
  const choose = (run) => {
    if (which) which.value = String(run);
    board.choose(run);
    legend(board.line);
  };
  which?.addEventListener("change", () => { choose(Number(which.value)); board.draw(); });
  for (const button of document.querySelectorAll(".place")) {
    button.addEventListener("click", () => {
      const { run, first, last, row } = button.dataset;
      if (board.line !== board.lines[Number(run)]) choose(Number(run));
      if (first !== "") board.lookAt(Number(first), Number(last), row === "" ? null : Number(row));
      else board.lookAtRow(Number(row));
      byId("when").scrollIntoView({ behavior: "instant" });
    });
  }
  const find = byId("find");
  find.addEventListener("change", () => {
    const { id } = board.line.requests;
    const whole = (one) => {
      const [head, tail] = one.split(LONG);
      return tail !== undefined && find.value.startsWith(head) && find.value.endsWith(tail);
    };
    const alike = (one) => one.startsWith(find.value) || whole(one);
    const row = id.indexOf(find.value) >= 0 ? id.indexOf(find.value) : id.findIndex(alike);
    if (find.value && row >= 0) board.lookAtRow(row);
    else if (find.value) byId("shown").textContent = "no request with such an id has a row";
  });
  byId("theme").addEventListener("click", () => {
    setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
    redraw();
  });
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
}

// Six colours and six dashes; 36 lines differ from each other.
const runStyle = (n) => ({ color: colour(`run${n % 6}`), dash: DASHES[(n + Math.floor(n / 6)) % DASHES.length], width: 2 });
const short = (name, n, runs) => plain(runs.length > 1 ? `${n + 1} · ${shorten(name, 40)}` : name);

// What may share an axis of time with the first run, each with its number.
const alike = (units) => units.map((unit, n) => [unit, n]).filter(([unit]) => unit === units[0]).map(([, n]) => n);

// The least and the largest x of curves.
function endsOf(traces) {
  const found = traces.filter(({ x }) => x.length);
  return found.length ? [Math.min(...found.map(({ x }) => x[0])), Math.max(...found.map(({ x }) => x[x.length - 1]))] : [0, 0];
}

// Round values on an axis of equal ratios, so few that their labels do not touch.
function rounded(low, high) {
  const steps = high < 30 * low ? [1, 2, 5] : high < 1000 * low ? [1, 3] : [1];
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  return Array.from({ length: last - first + 1 }, (_, i) => steps.map((step) => step * 10 ** (first + i))).flat();
}

function distributions(all) {
  const places = alike(all.map((run) => run.unit));
  const runs = places.map((n) => all[n]);
  for (const [name, label] of [["ttft", "TTFT"], ["itl", "ITL"], ["e2el", "E2E"]]) {
    const ns = runs[0].unit === "ns";
    const longest = Math.max(...runs.map((run) => Math.max(...(run.curves[name].x || [0]))));
    const [by, unit] = ns ? (longest >= 1e10 ? [1e9, "s"] : [1e6, "ms"]) : [1, `${runs[0].unit}s`];
    const traces = runs.map((run, place) => {
      const [n, curve] = [places[place], run.curves[name]];
      const x = (curve.x || []).map((value) => value / by);
      return { type: "scatter", mode: "lines", x: x.length ? [x[0], ...x] : [], y: x.length ? [0, ...curve.y] : [], name: short(run.name, n, all), line: { ...runStyle(n), shape: "hv" },
        hovertemplate: `%{y:.2%} within %{x:,.5~g} ${unit}<extra>${all.length > 1 ? n + 1 : ""}</extra>` };
    });
    const [low, high] = endsOf(traces);
    // Where the largest is more than WIDE times the smallest, an axis of equal ratios; as in the terminal and in `export latency`.
    const log = low > 0 && high > WIDE * low;
    const edge = log ? 0.02 * Math.log10(high / low) : 0;
    const across = log ? { type: "log", tickvals: rounded(low, high), tickformat: ",~g", range: [Math.log10(low) - edge, Math.log10(high) + edge] } : { range: [0, 1.04 * high || 1] };
    const { axis, layout } = theme();
    const empty = traces.every((trace) => !trace.x.length);
    Object.assign(layout, { showlegend: false, title: { text: label, font: { size: 13 }, x: 0.02, xanchor: "left", y: 0.98 }, hovermode: "closest",
      xaxis: { ...axis, ...across, title: { text: log ? `${unit}, log scale` : unit, font: { size: 11 } } }, yaxis: { ...axis, range: [0, 1.02], tickformat: ".0%" },
      annotations: empty ? [{ text: "no samples", showarrow: false, xref: "paper", yref: "paper", x: 0.5, y: 0.5 }] : [] });
    Plotly.react(byId(`cdf-${name}`), traces, layout, CONFIG);
  }
}

// A column of every run over time, in bins that keep the peaks.
function overTime(chart, lines, value, label) {
  const traces = alike(lines.map((line) => line.run.unit)).map((n) => {
    const line = lines[n];
    const bin = Math.max(1, Math.ceil(line.start.length / 600));
    const [x, y] = [[], []];
    for (let i = 0; i < line.start.length; i += bin) {
      let most = 0;
      for (let k = i; k < Math.min(i + bin, line.start.length); k++) most = Math.max(most, value(line, k));
      x.push((line.start[i] * line.scale.by) / (line.run.unit === "ns" ? 1e9 : 1));
      y.push(most);
    }
    return { type: "scatter", mode: "lines", x, y, name: short(line.run.name, n, lines), line: { ...runStyle(n), shape: "hv", width: 1.6 }, hovertemplate: `%{y:,.4~g}<extra>${n + 1}</extra>` };
  });
  const { axis, layout } = theme();
  const unit = lines[0].run.unit === "ns" ? "s" : `${lines[0].run.unit}s`;
  Object.assign(layout, { showlegend: lines.length <= 8, xaxis: { ...axis, title: { text: `time (${unit})` } }, yaxis: { ...axis, rangemode: "tozero", title: { text: label } } });
  Plotly.react(chart, traces, layout, CONFIG);
}

function fronts(sweep, number) {
  const ms = sweep.unit === "ns";
  const [gain, ...costs] = sweep.axes;
  costs.forEach((axis, k) => {
    const at = (row) => row.values[k + 1] * (axis.more ? 100 : ms ? 1e-6 : 1);
    const of = axis.more ? "%" : ms ? "ms" : `${sweep.unit}s`;
    const place = (row) => `${at(row)} ${row.values[0]}`;
    const there = new Map(); // all runs at one point: only one of them is in sight
    for (const row of sweep.rows) there.set(place(row), [...(there.get(place(row)) || []), plain(row.mark ? `${row.mark}: ${row.settings}` : row.settings)]);
    const told = (names) => [...names.slice(0, MOST_NAMED), ...(names.length > MOST_NAMED ? [`and ${count(names.length - MOST_NAMED)} more`] : [])].join("<br>");
    const some = (rows, label, symbol, shade, size = 9, width = 1) => ({ type: "scatter", mode: "markers", x: rows.map(at), y: rows.map((row) => row.values[0]), name: label, text: rows.map((row) => told(there.get(place(row)))),
      marker: { symbol, size, color: colour(shade), line: { width, color: colour("card") } }, hovertemplate: `%{text}<br>${plain(gain.label)}: %{y:,.4~g}<br>${plain(axis.label)}: %{x:,.4~g} ${of}<extra></extra>` });
    const on = sweep.fronts[k].map((place) => sweep.rows[place]);
    const traces = [{ type: "scatter", mode: "lines+markers", x: on.map(at), y: on.map((row) => row.values[0]), line: { color: colour("run0"), width: 2, shape: "hv" }, marker: { symbol: "circle-open", size: 15, color: colour("run0"), line: { width: 2 } }, name: "Pareto front", hoverinfo: "skip" }];
    if (sweep.slo) traces.push(some(sweep.rows.filter((row) => row.met), "objectives met", "circle", "run2"), some(sweep.rows.filter((row) => !row.met), "missed", "x", "run1"));
    else traces.push(some(sweep.rows, "runs", "circle", "run2"));
    for (const mark of [...new Set(sweep.rows.map((row) => row.mark).filter(Boolean))]) {
      const symbol = mark === "as it is" ? "square-open" : "star-open";
      const marked = sweep.rows.filter((row) => row.mark === mark);
      if (marked.length) traces.push(some(marked, mark, symbol, "ink", symbol === "star-open" ? 18 : 14, 1.5));
    }
    const { axis: look, layout } = theme();
    Object.assign(layout, { hovermode: "closest", margin: { ...layout.margin, t: 50, b: 60 }, xaxis: { ...look, title: { text: plain(`${axis.label} (${of})`), standoff: 8 }, rangemode: "tozero" }, yaxis: { ...look, rangemode: "tozero", title: { text: plain(gain.label) } } });
    Plotly.react(byId(`front-${number}-${k}`), traces, layout, CONFIG);
  });
  if (byId(`rate-${number}`)) attainment(sweep.attained, sweep.unit, sweep.of, byId(`rate-${number}`));
  [...new Set(sweep.attained.map((curve) => curve.of))].forEach((of, k) => {
    const chart = byId(`rate-${number}-${k}`);
    const own = sweep.attained.filter((curve) => curve.of === of).map((curve) => ({ ...curve, name: curve.series }));
    if (chart) attainment(own, sweep.unit, sweep.of, chart, null, of);
  });
}

// The share of requests within each bound at each rate. Points: rate, share, whether the objective is met there.
function attainment(all, unit, of, chart, found = null, title = "") {
  const narrow = chart.clientWidth < 600;
  // Of the rates tried in search of one, those near it are drawn; the others are named.
  const far = (rate) => found && (rate < found / NEAR || rate > found * NEAR);
  const beyond = [...new Set(all.flatMap(({ points }) => points.map(([rate]) => rate)).filter(far))].sort((a, b) => a - b);
  const curves = all.map((curve) => ({ ...curve, points: curve.points.filter(([rate]) => !far(rate)) })).filter(({ points }) => points.length);
  const [high, below] = [270, 58]; // of the plot, and from it to the legend
  const legend = 20 * Math.ceil(curves.length / (narrow ? 1 : 2));
  chart.style.height = `${26 + (title ? 14 : 0) + high + below + legend}px`;
  const name = (text) => plain(ends(text, narrow ? 40 : 70));
  const traces = curves.map((curve, n) => {
    const [x, y, met] = [0, 1, 2].map((place) => curve.points.map((point) => point[place]));
    return { type: "scatter", mode: "lines+markers", x, y, name: name(curve.name), line: runStyle(n), text: met.map((one) => (one ? "met" : "missed")),
      marker: { symbol: met.map((one) => (one ? "circle" : "x")), size: met.map((one) => (one ? 8 : 10)) }, hovertemplate: `%{y:.2%} at %{x:,.4~g}: %{text}<extra>${name(curve.name)}</extra>` };
  });
  const { axis, layout } = theme();
  const rates = traces.flatMap(({ x }) => x).filter((rate) => rate > 0);
  const log = Math.max(...rates) > 30 * Math.min(...rates) ? { type: "log", dtick: 1 } : {};
  const lowest = Math.min(0.9, ...traces.flatMap(({ y }) => y));
  Object.assign(layout, { margin: { ...layout.margin, t: title ? 40 : 26, r: 20, b: below + legend }, ...(title ? { title: { text: plain(ends(title, narrow ? 44 : 90)), font: { size: 13 }, x: 0.02, xanchor: "left", y: 0.98, yanchor: "top" } } : {}), showlegend: curves.length <= 10, legend: { ...layout.legend, y: -below / high, yanchor: "top" }, hovermode: "closest",
    xaxis: { ...axis, ...log, title: { text: `${plain(of)} per ${unit === "ns" ? "s" : plain(unit)}${log.type ? ", log scale" : ""}${beyond.length ? `; tried, not drawn: ${beyond.map((rate) => Number(rate.toPrecision(3))).join(", ")}` : ""}` }, automargin: false },
    yaxis: { ...axis, range: [Math.max(0, lowest - 0.05 * (1 - lowest)), 1 + 0.04 * (1 - lowest)], tickformat: ".0%", title: { text: "share within the bound" } },
    shapes: found ? [{ type: "line", yref: "paper", x0: found, x1: found, y0: 0, y1: 1, line: { color: colour("preempted"), dash: "dash", width: 1 } }] : [] });
  Plotly.react(chart, traces, layout, CONFIG);
}

function capacityChart(found, chart) {
  const known = found.changes.filter((change) => change.rate !== null);
  const label = (change) => plain(`${change.name.replace("engine.", "")}${change.after === null ? " × ½" : ` ${change.before} → ${change.after}`}`);
  const names = ["as it is", ...known.map(label)];
  const rates = [found.capacity || 0, ...known.map((change) => change.rate)];
  const { axis, layout } = theme();
  Object.assign(layout, { margin: { ...layout.margin, l: 20 }, xaxis: { ...axis, rangemode: "tozero", title: { text: `${plain(found.of)} per ${found.unit === "ns" ? "s" : plain(found.unit)}` } }, yaxis: { ...axis, autorange: "reversed" } });
  const colours = names.map((_, n) => colour(n ? "run0" : "run2"));
  Plotly.react(chart, [{ type: "bar", orientation: "h", x: rates, y: names, text: rates.map((rate) => rate.toPrecision(3)), textposition: "auto", marker: { color: colours }, hovertemplate: "%{y}: %{x:,.4~g}<extra></extra>" }], layout, CONFIG);
}

async function main() {
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const data = JSON.parse(byId("data").textContent);
  const lines = await Promise.all(data.runs.map((run) => Timeline.of(run)));
  const board = lines.length ? new Board(lines) : null;
  const draw = () => {
    if (board) {
      legend(board.line);
      board.draw();
      distributions(data.runs);
      if (byId("queues")) overTime(byId("queues"), lines, (line, slot) => line.slots.queue[slot], "requests waiting");
      if (byId("kvs")) overTime(byId("kvs"), lines, (line, slot) => (line.about.blocks ? (100 * line.slots.kv[slot]) / line.about.blocks : 0), "% of KV blocks in use");
    }
    data.sweeps.forEach(fronts);
    data.capacities.forEach((found, n) => {
      capacityChart(found, byId(`capacity-${n}`));
      if (byId(`tried-${n}`)) attainment(found.attained, found.unit, found.of, byId(`tried-${n}`), found.capacity);
    });
  };
  draw();
  if (board) {
    controls(board, draw);
    tip(board.chart, board);
  } else byId("theme").addEventListener("click", () => { setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"); draw(); });
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}

main();
