// The passes of XLA: a slider over stages, what each changed, and the difference of any two.

const SVG = "http://www.w3.org/2000/svg";
const LANES = [["instructions", "Instructions", "var(--accent)"], ["fusions", "Fusions", "var(--good)"], ["bytes", "Bytes moved", "var(--heat)"]];

class Timeline {
  constructor(app) { this.app = app; }

  show(module) {
    this.module = module;
    this.stage = module.stages.length - 1;
    this.base = -1; // the stage before
    this.find = "";
    this.element = null;
  }

  render() {
    const { stages } = this.module;
    if (!stages.length) return make("p", { class: "none" }, "There are no stages in this report.");
    this.element ??= this.make();
    this.update();
    return this.element;
  }

  make() {
    const { stages } = this.module;
    this.chart = document.createElementNS(SVG, "svg");
    this.chart.setAttribute("viewBox", "0 0 1000 64");
    this.chart.setAttribute("preserveAspectRatio", "none");
    this.chart.setAttribute("aria-hidden", "true");
    for (const [key, , colour] of LANES) {
      const most = Math.max(1, ...stages.map((stage) => stage[key]));
      const points = stages.map((stage, index) => `${this.place(index)},${60 - 54 * (stage[key] / most)}`).join(" ");
      const line = document.createElementNS(SVG, "polyline");
      line.setAttribute("points", points); line.setAttribute("fill", "none");
      line.style.stroke = colour; line.setAttribute("stroke-width", "1.6"); line.setAttribute("vector-effect", "non-scaling-stroke");
      this.chart.append(line);
    }
    this.cursor = document.createElementNS(SVG, "line");
    this.cursor.setAttribute("y1", "0"); this.cursor.setAttribute("y2", "64"); this.cursor.setAttribute("vector-effect", "non-scaling-stroke");
    this.cursor.style.stroke = "var(--text)";
    this.chart.append(this.cursor);
    this.chart.addEventListener("pointerdown", (event) => this.to(this.at(event)));
    this.chart.addEventListener("pointermove", (event) => { if (event.buttons) this.to(this.at(event)); });
    this.slider = make("input", { type: "range", id: "stage", min: "0", max: String(stages.length - 1), "aria-label": "Stage", oninput: () => this.to(Number(this.slider.value)) });
    this.against = make("select", { id: "base", "aria-label": "Compare with", onchange: () => { this.base = Number(this.against.value); this.update(); } },
      make("option", { value: "-1" }, "the stage before"), ...stages.map((stage, index) => make("option", { value: String(index) }, `${index}: ${stageName(stage)}`)));
    this.finder = make("input", { type: "search", id: "trace", placeholder: "Where did my … go?", "aria-label": "Find an instruction or opcode in all stages", oninput: () => { this.find = this.finder.value; this.update(); } });
    this.now = make("div", { class: "now" });
    this.diff = make("div", { class: "diff" });
    const keys = make("div", { class: "keys" }, ...LANES.map(([, title, colour]) => { const mark = make("i"); mark.style.background = colour; return make("span", {}, mark, title); }));
    return make("div", { class: "timeline" },
      make("div", { class: "top" }, make("div", {}, this.chart, this.slider), make("div", {}, keys, make("p", { class: "dim" }, "Compare with ", this.against), this.finder)),
      this.now, this.diff);
  }

  place(index) { return this.module.stages.length > 1 ? (1000 * index) / (this.module.stages.length - 1) : 500; }

  at(event) {
    const { left, width } = this.chart.getBoundingClientRect();
    return Math.round(((event.clientX - left) / width) * (this.module.stages.length - 1));
  }

  to(stage) {
    this.stage = Math.max(0, Math.min(this.module.stages.length - 1, stage));
    if (this.element) this.update();
    this.app.note({ stage: String(this.stage) });
  }

  update() {
    const { stages } = this.module;
    const stage = stages[this.stage], other = this.base >= 0 ? this.base : Math.max(0, this.stage - 1), before = stages[other];
    this.slider.value = String(this.stage);
    this.slider.setAttribute("aria-valuetext", stageName(stage));
    this.cursor.setAttribute("x1", this.place(this.stage)); this.cursor.setAttribute("x2", this.place(this.stage));
    const delta = (key, format = formatCount) => {
      const change = stage[key] - before[key];
      return change ? ` (${change > 0 ? "+" : "−"}${format(Math.abs(change))})` : "";
    };
    this.now.replaceChildren(
      make("b", {}, stageName(stage)),
      make("span", { class: "dim" }, `${stage.pipeline ? `in ${stage.pipeline}, ` : ""}stage ${this.stage} of ${stages.length - 1}`),
      make("span", {}, `${plural(stage.instructions, "instruction")}${delta("instructions")}`),
      make("span", {}, `${plural(stage.fusions, "fusion")}${delta("fusions")}`),
      make("span", {}, `${formatBytes(stage.bytes)} moved${delta("bytes", formatBytes)}`));
    this.diff.replaceChildren(...(this.find.trim() ? this.found() : this.changes(stage, before, other)));
  }

  changes(stage, before, other) {
    const names = [...new Set([...Object.keys(stage.opcodes), ...Object.keys(before.opcodes)])];
    const rows = names.map((opcode) => [opcode, before.opcodes[opcode] || 0, stage.opcodes[opcode] || 0]);
    rows.sort((a, b) => Math.abs(b[2] - b[1]) - Math.abs(a[2] - a[1]) || b[2] - a[2] || a[0].localeCompare(b[0]));
    const counts = rows.map(([opcode, old, now]) => {
      const change = now - old;
      return make("div", { class: "opcode" }, make("span", { class: "mono" }, opcode), make("span", { class: "dim" }, formatCount(old)), make("span", {}, formatCount(now)),
        make("span", { class: change > 0 ? "plus" : change < 0 ? "minus" : "dim" }, change ? `${change > 0 ? "+" : "−"}${formatCount(Math.abs(change))}` : "·"));
    });
    const heading = other === this.stage - 1 || this.stage === 0 ? "Opcodes, before and now" : `Opcodes, at stage ${other} and now`;
    const direct = other === this.stage - 1 || this.stage === 0;
    const added = direct ? stage.added : this.between(other, "added"), removed = direct ? stage.removed : this.between(other, "removed");
    return [make("div", {}, make("h3", {}, heading), ...counts),
      this.names("Added", "plus", added, direct ? stage.num_added : Object.keys(added).length),
      this.names("Removed", "minus", removed, direct ? stage.num_removed : Object.keys(removed).length)];
  }

  /** What was added, or removed, from an earlier stage to this one and not undone in between. */
  between(other, kind) {
    const { stages } = this.module;
    const [from, to] = other < this.stage ? [other + 1, this.stage] : [this.stage + 1, other];
    const net = new Map();
    for (const { added, removed } of stages.slice(from, to + 1)) {
      for (const [name, opcode] of Object.entries(added)) if (!net.delete(`- ${name}`)) net.set(`+ ${name}`, opcode);
      for (const [name, opcode] of Object.entries(removed)) if (!net.delete(`+ ${name}`)) net.set(`- ${name}`, opcode);
    }
    const sign = (kind === "added") === (other < this.stage) ? "+ " : "- ";
    return Object.fromEntries([...net].filter(([key]) => key.startsWith(sign)).map(([key, opcode]) => [key.slice(2), opcode]));
  }

  names(title, look, names, count) {
    const groups = new Map();
    for (const [name, opcode] of Object.entries(names)) push(groups, opcode, name);
    const lines = [...groups].sort((a, b) => b[1].length - a[1].length).map(([opcode, list]) => make("div", {}, make("span", { class: look }, `${opcode} ×${list.length} `), make("span", { class: "dim" }, list.slice(0, 40).join(", ") + (list.length > 40 ? " …" : ""))));
    const missing = count - Object.keys(names).length;
    if (missing > 0) lines.push(make("div", { class: "dim" }, `and ${formatCount(missing)} more that this file leaves out`));
    return make("div", {}, make("h3", {}, `${title}: ${formatCount(count)}`), make("div", { class: "names" }, ...lines));
  }

  /** Every stage that made or removed what is looked for. */
  found() {
    const wanted = this.find.trim().toLowerCase();
    const matches = ([name, opcode]) => opcode.toLowerCase() === wanted || name.toLowerCase().includes(wanted);
    const rows = [];
    this.module.stages.forEach((stage, index) => {
      for (const [kind, look, names] of [["made", "plus", stage.added], ["removed", "minus", stage.removed]]) {
        const hits = Object.entries(names).filter(matches);
        if (hits.length) rows.push([index, stage, kind, look, hits]);
      }
    });
    const lines = rows.map(([index, stage, kind, look, hits]) => make("div", {},
      make("button", { class: "link", onclick: () => this.to(index) }, `${index}: ${stageName(stage)}`),
      make("span", { class: look }, ` ${kind} ${hits.length}: `), make("span", { class: "dim" }, hits.slice(0, 12).map(([name]) => name).join(", ") + (hits.length > 12 ? " …" : ""))));
    if (!lines.length) lines.push(make("div", { class: "dim" }, "No stage made or removed such an instruction."));
    const block = make("div", { class: "found" }, make("h3", {}, `Stages that made or removed “${this.find.trim()}”`), make("div", { class: "names" }, ...lines));
    block.style.gridColumn = "1 / -1";
    return [block];
  }
}

const stageName = (stage) => stage.name || "as it came";
