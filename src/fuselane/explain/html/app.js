// The page: one selection that all views follow, kept in the address so that it can be linked to.

const KEYS = [["/", "search"], ["1 … 6", "tables"], ["j  k", "next and previous kernel, worst first"], ["f", "fit the graph"], ["+  −", "zoom"], ["o", "open or close all boxes"],
  ["Enter", "open or close the selected box (in the graph)"], ["↑ ↓ ← →", "move along the graph, the source, a table"], ["[  ]", "stage before and after"], ["t", "dark or light"], ["Esc", "select nothing"]];

class App {
  constructor() {
    this.selection = null;
    this.graph = new GraphView(this);
    this.source = new SourceView(this);
    this.timeline = new Timeline(this);
    this.details = new Details(this);
    this.search = new Search(this);
    this.state = {};
  }

  begin() {
    this.theme(this.remembered("theme") || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
    if (!DATA.modules.length) { byId("code").replaceChildren(make("p", { class: "empty" }, DATA.note || "There is no module in this report.")); return; }
    const select = byId("modules");
    select.replaceChildren(...DATA.modules.map((module, index) => make("option", { value: String(index) }, `${module.name} (${formatTime(module.time_us)})`)));
    select.hidden = DATA.modules.length === 1;
    select.addEventListener("change", () => { this.show(Number(select.value)); this.note({ module: DATA.modules.length > 1 ? select.value : undefined }); });
    this.listen();
    this.follow();
  }

  show(number) {
    this.module = getModule(number);
    byId("modules").value = String(number);
    byId("name").textContent = DATA.modules.length === 1 ? this.module.name : "";
    byId("target").textContent = `on ${this.module.target}`;
    this.selection = null;
    this.tables = {};
    this.showFacts();
    this.showLegend();
    this.source.show(this.module);
    this.timeline.show(this.module);
    this.showTabs();
    this.details.show(null);
    this.graph.chosen = null; this.graph.lit = new Set(); this.graph.families = new Set();
    this.graph.show(this.module);
    this.tab("kernels");
  }

  showFacts() {
    const { module } = this, known = module.launches !== null;
    const inner = module.boundaries.filter((boundary) => familyOf(boundary.reason) !== EDGE_FAMILY).length;
    const facts = [["kernels", formatCount(module.kernels.length)], ["launches a run", formatCount(module.launches)], [known ? "modelled a run" : "modelled, unknown loops once", formatTime(module.time_us)], ["moved a run", formatBytes(module.bytes)], ["boundaries", formatCount(inner)]];
    if (module.fuselane_launches !== null && module.fuselane_launches !== module.launches) facts.push(["launches under Fuselane", formatCount(module.fuselane_launches), "good"]);
    if (module.compile_s) facts.push(["compiled in", `${module.compile_s.toPrecision(2)} s`]);
    byId("facts").replaceChildren(...facts.map(([name, value, look]) => make("div", { class: look || "" }, make("dt", {}, name), make("dd", {}, value))));
  }

  showLegend() {
    const counts = new Map();
    for (const boundary of this.module.boundaries) counts.set(familyOf(boundary.reason), (counts.get(familyOf(boundary.reason)) || 0) + 1);
    const legend = byId("legend");
    const buttons = [...counts].sort((a, b) => a[0] - b[0]).map(([family, count]) => {
      const button = make("button", { "aria-pressed": "false", title: "Show only these boundaries", onclick: () => {
        const { families } = this.graph;
        if (!families.delete(family)) families.add(family);
        button.setAttribute("aria-pressed", String(families.has(family)));
        legend.classList.toggle("some", families.size > 0);
        this.graph.redraw();
      } }, dot(family), `${DATA.families[family].label} ${count}`);
      return button;
    });
    legend.replaceChildren(...buttons);
    legend.classList.remove("some");
  }

  // ---- tables

  /** Key, title and count of each table there is. */
  tabs() {
    const { module } = this, { strategy } = module, count = (list) => formatCount(list.length);
    const tabs = [["kernels", "Kernels", count(module.kernels)], ["boundaries", "Boundaries", count(module.boundaries)], ["loops", "Loops", count(module.loops)], ["timeline", "Passes", count(module.stages)], ["advice", "Advice", count(module.advice)]];
    if (strategy) tabs.push(["decisions", "Decisions", count(strategy.answers) + (strategy.total > strategy.answers.length ? ` of ${formatCount(strategy.total)}` : "")]);
    return tabs;
  }

  showTabs() {
    this.filterInput = make("input", { type: "search", id: "filter", placeholder: "Filter the table", "aria-label": "Filter the table", oninput: () => this.tables[this.state.tab]?.filter(this.filterInput.value) });
    byId("tabs").replaceChildren(...this.tabs().map(([key, title, count]) => {
      const button = make("button", { role: "tab", id: `tab-${key}`, onclick: () => { this.tab(key); this.note({ tab: key }); } }, title, make("span", { class: "count" }, count));
      return button;
    }), this.filterInput);
  }

  tab(key) {
    this.state.tab = key;
    for (const button of byId("tabs").querySelectorAll("[role=tab]")) button.setAttribute("aria-selected", String(button.id === `tab-${key}`));
    this.filterInput.hidden = !["kernels", "boundaries", "loops", "decisions"].includes(key);
    if (!this.filterInput.hidden) this.tables[key] ??= this.makeTable(key);
    this.tables[key]?.filter(this.filterInput.value);
    byId("panel").replaceChildren(this.tables[key] ? this.tables[key].element : key === "timeline" ? this.timeline.render() : this.advice());
    this.tables[key]?.draw();
    this.markTables(true);
  }

  makeTable(key) {
    const { module } = this;
    const numbers = (list) => list.map((_, index) => index);
    const line = (get) => ({ title: "Line", width: "minmax(130px, 1.5fr)", text: (row) => placeLabel(get(row)), value: (row) => (get(row).source < 0 ? null : DATA.lines[get(row).source][0] * 1e6 + DATA.lines[get(row).source][1]) });
    const number = (title, width, get, format, hint) => ({ title, width, right: true, hint, value: get, text: (row) => (get(row) === null || get(row) === undefined ? "" : format(get(row))) });
    if (key === "kernels") {
      const kernel = (row) => module.kernels[row];
      const usage = module.kernels.some((k) => k.registers !== null) ? [number("Registers", "88px", (row) => kernel(row).registers, formatCount), number("Spilled", "84px", (row) => kernel(row).spill_bytes, formatBytes), number("Occupancy", "96px", (row) => kernel(row).occupancy, formatShare)] : [];
      return new Table([
        { ...number("Share", "96px", (row) => kernel(row).share, formatShare, "Of the modelled time of a run"), share: (row) => kernel(row).share / module.maxShare },
        number("Time", "84px", (row) => kernel(row).time_us, formatTime, "Modelled, of all launches of a run"),
        { title: "Kernel", width: "minmax(220px, 1.3fr)", mono: true, text: (row) => kernel(row).name, value: (row) => kernel(row).name },
        { ...number("Launches", "92px", (row) => kernel(row).launches, formatCount, "Of a run"), text: (row) => formatCount(kernel(row).launches) },
        number("A launch", "84px", (row) => kernel(row).modelled_us, formatTime, "Modelled time of one launch"),
        number("Moved", "88px", (row) => kernel(row).bytes, formatBytes, "Bytes read and written in a run"),
        number("Flops", "84px", (row) => kernel(row).flops, formatLarge, "Of one launch"),
        number("Per byte", "84px", (row) => kernel(row).intensity, formatLarge, "Flops for each byte moved"),
        ...usage,
        { title: "Kind", width: "minmax(110px, .7fr)", text: (row) => [...new Set([kernel(row).kind, kernel(row).emitter].filter(Boolean))].join(" · "), value: (row) => kernel(row).kind },
        line(kernel),
        { title: "Computes", width: "minmax(180px, 2fr)", text: (row) => formatOpcodes(kernel(row).opcodes), value: (row) => formatOpcodes(kernel(row).opcodes) },
      ], numbers(module.kernels), (id) => this.select({ kind: "kernel", id }), 0);
    }
    if (key === "boundaries") {
      const boundary = (row) => module.boundaries[row];
      return new Table([
        number("Bytes", "92px", (row) => boundary(row).bytes_per_run ?? boundary(row).num_bytes, formatBytes, "Crossing in a run"),
        { title: "Reason", width: "minmax(180px, .8fr)", dot: (row) => familyOf(boundary(row).reason), text: (row) => boundary(row).reason, value: (row) => boundary(row).reason },
        { title: "Producer", width: "minmax(190px, 1fr)", mono: true, text: (row) => boundary(row).producer, value: (row) => boundary(row).producer },
        { title: "Consumer", width: "minmax(190px, 1fr)", mono: true, text: (row) => boundary(row).consumer, value: (row) => boundary(row).consumer },
        { title: "Value", width: "minmax(130px, .8fr)", mono: true, text: (row) => shortShape(boundary(row).shape), value: (row) => boundary(row).shape },
        { ...line(boundary), title: "Made at" },
        { ...line((row) => consumerOf(boundary(row))), title: "Read at" },
        { title: "Why", width: "minmax(260px, 2.6fr)", text: (row) => (boundary(row).detail || DATA.reasons[boundary(row).reason][0]).replaceAll("`", ""), value: (row) => boundary(row).detail },
      ], numbers(module.boundaries), (id) => this.select({ kind: "boundary", id }), 0);
    }
    if (key === "decisions") {
      const { answers } = module.strategy, answer = (row) => answers[row];
      const text = (title, width, get, mono = false) => ({ title, width, mono, text: (row) => get(answer(row)), value: (row) => get(answer(row)) });
      return new Table([
        text("Pass", "minmax(150px, .8fr)", (a) => a.pass_name),
        { ...text("Answer", "minmax(150px, .7fr)", verdictOf), dot: (row) => (answer(row).reason ? familyOf(answer(row).reason) : undefined) },
        text("Producer", "minmax(170px, 1fr)", (a) => a.producer, true),
        text("Consumer", "minmax(170px, 1fr)", (a) => a.consumer, true),
        text("Made", "minmax(120px, .6fr)", (a) => a.fusion, true),
        line(answer),
        number("Times", "70px", (row) => answer(row).times, formatCount, "How often the pass asked this and answered so"),
        text("Numbers", "minmax(170px, 1fr)", (a) => numbersOf(a).map(([name, value]) => `${name} ${value}`).join(", ")),
        text("Why", "minmax(260px, 2.6fr)", (a) => a.detail.replaceAll("`", "")),
      ], numbers(answers), (id) => this.select({ kind: "answer", id }));
    }
    const loop = (row) => module.loops[row];
    const verdict = (row) => (loop(row).decision ? (loop(row).decision.decision.reason === "fused" ? "fused" : loop(row).decision.decision.reason) : "");
    return new Table([
      number("Launches", "100px", (row) => loop(row).launches, formatCount, "Of a run, under plain XLA"),
      number("Under Fuselane", "120px", (row) => loop(row).fuselane_launches, formatCount),
      { title: "Loop", width: "minmax(150px, 1fr)", mono: true, text: (row) => loop(row).name, value: (row) => loop(row).name },
      number("Iterations", "100px", (row) => loop(row).trip_count, formatCount),
      number("Kernels each", "110px", (row) => loop(row).kernels_per_iteration, formatCount),
      number("Carries", "90px", (row) => loop(row).carried_bytes, formatBytes),
      line(loop),
      { title: "Fuselane", width: "minmax(150px, .8fr)", text: verdict, value: verdict },
      { title: "Why", width: "minmax(260px, 2.6fr)", text: (row) => (loop(row).decision?.decision.sentence || "").replaceAll("`", ""), value: (row) => loop(row).decision?.decision.sentence || "" },
    ], numbers(module.loops), (id) => this.select({ kind: "loop", id }), 0);
  }

  advice() {
    const { module } = this;
    const go = (id) => this.select({ kind: "advice", id });
    const articles = module.advice.map((advice, id) => make("article", { tabIndex: 0, onclick: () => go(id), onkeydown: (event) => { if (event.key === "Enter") go(id); } },
      make("span", { class: "gain" }, advice.gain === null ? "" : `×${advice.gain.toPrecision(3)}`),
      make("div", {}, make("div", {}, make("span", { class: "rule" }, advice.rule), make("span", { class: "dim" }, `  ${placeLabel(advice)}`)), make("div", {}, ...prose(advice.sentence)))));
    const notes = module.notes.map((note) => make("p", { class: "dim" }, note));
    if (!articles.length) articles.push(make("p", { class: "none" }, "There is nothing to advise."));
    return make("div", { class: "advice" }, ...articles, ...notes);
  }

  // ---- the selection

  selectNode(node) {
    const kernel = this.module.kernelAt(node), loop = this.module.loopOf.get(this.module.nameOf(node));
    if (kernel !== undefined) this.select({ kind: "kernel", id: kernel });
    else if (loop !== undefined) this.select({ kind: "loop", id: loop });
    else this.select({ kind: "node", id: node });
  }

  selectName(name) {
    const node = this.module.nodeOf.get(name);
    if (node !== undefined) this.selectNode(node);
    else if (this.module.kernelOf.has(name)) this.select({ kind: "kernel", id: this.module.kernelOf.get(name) });
  }

  /** Selects a kernel, instruction, boundary, loop or line; null selects nothing. */
  select(selection, record = true) {
    const { module, graph } = this;
    this.selection = selection;
    const { nodes, lines, chosen } = this.touched(selection);
    this.lit = nodes; this.litLines = lines;
    graph.lit = new Set(["line", "advice", "answer"].includes(selection?.kind) ? nodes : []);
    graph.chosen = null;
    if (chosen !== undefined) { graph.uncover(chosen); graph.chosen = { key: `n${chosen}` }; }
    if (selection?.kind === "boundary") { nodes.forEach((node) => graph.uncover(node)); graph.lit = new Set(nodes); graph.chosen = { boundary: selection.id }; }
    this.details.show(selection);
    graph.resize();
    if (nodes.length) graph.reveal(nodes); else graph.redraw();
    this.source.mark(lines, selection?.kind === "line" ? selection.id : -1, Boolean(selection));
    this.markTables(true);
    byId("spoken").textContent = this.spoken(selection);
    if (record) this.note({ kernel: undefined, loop: undefined, boundary: undefined, line: undefined, instruction: undefined, ...this.address(selection) });
  }

  touched(selection) {
    const { module } = this;
    if (!selection) return { nodes: [], lines: [] };
    const { kind, id } = selection;
    if (kind === "line") return { nodes: module.nodesOfLine(id), lines: [id] };
    if (kind === "boundary") {
      const boundary = module.boundaries[id];
      return { nodes: [boundary.producer, boundary.consumer].map((name) => module.nodeOf.get(name)).filter((node) => node !== undefined), lines: [...linesOf(boundary), ...linesOf(consumerOf(boundary))] };
    }
    if (kind === "answer") {
      const answer = module.strategy.answers[id];
      return { nodes: [answer.fusion, answer.producer, answer.consumer].map((name) => module.nodeOf.get(name)).filter((node) => node !== undefined), lines: linesOf(answer) };
    }
    if (kind === "advice") {
      const { kernels, loop } = module.advice[id], lines = linesOf(module.advice[id]);
      const nodes = [...kernels, ...(loop && !kernels.length ? [loop] : [])].map((name) => module.nodeOf.get(name)).filter((node) => node !== undefined);
      return { nodes: nodes.length || !lines.length ? nodes : module.nodesOfLine(lines[0]), lines };
    }
    if (kind === "node") return { nodes: [id], lines: module.linesOfNode(id), chosen: id };
    const name = kind === "kernel" ? module.kernels[id].name : module.loops[id].name;
    const node = module.nodeOf.get(name);
    return { nodes: node === undefined ? [] : [node], lines: kind === "kernel" ? module.kernels[id].lines : linesOf(module.loops[id]), chosen: node };
  }

  markTables(scroll) {
    const { selection, module, tables } = this;
    const chosen = (kind) => (selection?.kind === kind ? selection.id : -1);
    const onLine = selection?.kind === "line" ? selection.id : null;
    const name = selection?.kind === "kernel" ? module.kernels[selection.id].name : null;
    const ends = selection?.kind === "boundary" ? [module.boundaries[selection.id].producer, module.boundaries[selection.id].consumer].map((end) => module.kernelOf.get(end)) : [];
    const advised = selection?.kind === "advice" ? module.advice[selection.id].kernels.map((kernel) => module.kernelOf.get(kernel)) : ends;
    tables.kernels?.mark(onLine !== null ? module.kernelsAt.get(onLine) || [] : advised, chosen("kernel"), scroll);
    const edges = onLine !== null ? module.boundariesAt.get(onLine) || [] : name !== null ? module.boundaries.flatMap((boundary, index) => (boundary.producer === name || boundary.consumer === name ? [index] : [])) : [];
    tables.boundaries?.mark(edges, chosen("boundary"), scroll);
    document.querySelectorAll(".advice article").forEach((article, id) => article.classList.toggle("chosen", id === chosen("advice")));
    tables.loops?.mark(onLine !== null ? module.loopsAt.get(onLine) || [] : [], chosen("loop"), scroll);
    tables.decisions?.mark(onLine !== null ? module.strategy.answers.flatMap((answer, index) => (linesOf(answer).includes(onLine) ? [index] : [])) : [], chosen("answer"), scroll);
  }

  spoken(selection) {
    if (!selection) return "";
    const { kind, id } = selection;
    if (kind === "kernel") return `Kernel ${this.module.kernels[id].name}, ${formatShare(this.module.kernels[id].share)} of the time`;
    if (kind === "boundary") return `Boundary, ${this.module.boundaries[id].reason}`;
    if (kind === "line") return `Line ${lineLabel(id)}, ${plural((this.module.kernelsAt.get(id) || []).length, "kernel")}`;
    if (kind === "advice") return `Advice, ${this.module.advice[id].rule}`;
    if (kind === "answer") return `Decision, ${verdictOf(this.module.strategy.answers[id])}`;
    return kind === "loop" ? `Loop ${this.module.loops[id].name}` : `Instruction ${this.module.nameOf(id)}`;
  }

  // ---- the address

  address(selection) {
    if (!selection) return {};
    const { kind, id } = selection, { module } = this;
    if (kind === "kernel") return { kernel: module.kernels[id].name };
    if (kind === "loop") return { loop: module.loops[id].name };
    if (kind === "boundary") return { boundary: `${module.boundaries[id].producer}>${module.boundaries[id].consumer}` };
    if (kind === "line") return { line: lineLabel(id) };
    if (kind === "advice" || kind === "answer") return {};
    return { instruction: module.nameOf(id) };
  }

  note(values) {
    const parameters = new URLSearchParams(location.hash.slice(1));
    for (const [key, value] of Object.entries(values)) if (value === undefined) parameters.delete(key); else parameters.set(key, value);
    this.hash = parameters.size ? `#${parameters}` : "";
    try { history.replaceState(null, "", this.hash || location.pathname); } catch { location.hash = this.hash; }
  }

  /** Goes where the address says. */
  follow() {
    const parameters = new URLSearchParams(location.hash.slice(1));
    const wanted = Number(parameters.get("module") || 0);
    const number = Number.isInteger(wanted) && wanted >= 0 && wanted < DATA.modules.length ? wanted : 0;
    if (this.module?.number !== number) this.show(number);
    const { module } = this;
    const tab = parameters.get("tab");
    if (this.tabs().some(([key]) => key === tab)) this.tab(tab);
    if (parameters.has("stage")) { this.timeline.to(Number(parameters.get("stage")) || 0); this.tab("timeline"); }
    const boundary = parameters.get("boundary"), line = parameters.get("line");
    const lookups = [["kernel", module.kernelOf.get(parameters.get("kernel"))], ["loop", module.loopOf.get(parameters.get("loop"))], ["node", module.nodeOf.get(parameters.get("instruction"))],
      ["boundary", boundary === null ? -1 : module.boundaries.findIndex((b) => `${b.producer}>${b.consumer}` === boundary)], ["line", line === null ? -1 : DATA.lines.findIndex((_, id) => lineLabel(id) === line && module.isLine(id))]];
    const found = lookups.find(([, id]) => id !== undefined && id >= 0);
    this.select(found ? { kind: found[0], id: found[1] } : null, false);
  }

  // ---- keys, theme, sizes

  listen() {
    addEventListener("hashchange", () => { if (location.hash !== this.hash) this.follow(); });
    addEventListener("keydown", (event) => this.key(event));
    byId("theme").addEventListener("click", () => this.theme(isDark() ? "light" : "dark", true));
    byId("help").addEventListener("click", () => this.help());
    byId("zoom-in").addEventListener("click", () => this.graph.zoom(1.3));
    byId("zoom-out").addEventListener("click", () => this.graph.zoom(1 / 1.3));
    byId("fit").addEventListener("click", () => this.graph.fit());
    byId("open-all").addEventListener("click", () => this.graph.toggleAll());
    this.splitter(byId("split-x"), "--source", (event, box) => (event.clientX - box.left) / box.width, 1);
    this.splitter(byId("split-y"), "--drawer", (event, box) => (box.bottom - event.clientY) / box.height, -1);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input[type=search], dialog")) return;
    const { worst } = this.module;
    const step = (by) => { const here = this.selection?.kind === "kernel" ? worst.indexOf(this.selection.id) : by > 0 ? -1 : worst.length; const id = worst[here + by]; if (id !== undefined) this.select({ kind: "kernel", id }); };
    const tabs = this.tabs().map(([key]) => key);
    const actions = {
      "/": () => { this.search.input.focus(); this.search.input.select(); }, f: () => this.graph.fit(), "+": () => this.graph.zoom(1.25), "=": () => this.graph.zoom(1.25), "-": () => this.graph.zoom(0.8),
      o: () => this.graph.toggleAll(), j: () => step(1), k: () => step(-1), t: () => this.theme(isDark() ? "light" : "dark", true), "?": () => this.help(), Escape: () => this.select(null),
      "[": () => { this.tab("timeline"); this.timeline.to(this.timeline.stage - 1); }, "]": () => { this.tab("timeline"); this.timeline.to(this.timeline.stage + 1); },
    };
    const action = actions[event.key] || (tabs[event.key - 1] && (() => { this.tab(tabs[event.key - 1]); this.note({ tab: tabs[event.key - 1] }); }));
    if (!action) return;
    action();
    event.preventDefault();
  }

  theme(theme, keep = false) {
    document.documentElement.dataset.theme = theme;
    if (keep) this.remember("theme", theme);
    this.graph.colours();
    for (const element of document.querySelectorAll("#legend button")) element.remove();
    if (this.module) { this.showLegend(); const { file } = this.source; this.source.file = -1; if (file >= 0) this.source.open(file); this.tables = {}; this.tab(this.state.tab); this.details.show(this.selection); }
  }

  remembered(key) { try { return localStorage.getItem(`fuselane.${key}`); } catch { return null; } }
  remember(key, value) { try { localStorage.setItem(`fuselane.${key}`, value); } catch { /* a file of its own has no storage in some browsers */ } }

  help() {
    const dialog = byId("keys");
    dialog.replaceChildren(make("table", {}, ...KEYS.map(([keys, does]) => make("tr", {}, make("td", {}, make("kbd", {}, keys)), make("td", {}, does)))), make("p", { class: "dim" }, `Fuselane ${DATA.version}. Wheel zooms, drag moves, a click selects, a double click opens a box.`));
    dialog.showModal();
  }

  splitter(element, name, share, sign) {
    const { style } = document.documentElement;
    const main = element.parentElement;
    const set = (value) => style.setProperty(name, `${(100 * Math.max(0.08, Math.min(0.8, value))).toFixed(1)}%`);
    element.addEventListener("pointerdown", (event) => element.setPointerCapture(event.pointerId));
    element.addEventListener("pointermove", (event) => { if (event.buttons) { set(share(event, main.getBoundingClientRect())); this.tables[this.state.tab]?.draw(); } });
    element.addEventListener("keydown", (event) => {
      const step = { ArrowRight: sign, ArrowLeft: -sign, ArrowUp: -sign, ArrowDown: sign }[event.key];
      if (!step) return;
      event.preventDefault(); event.stopPropagation();
      set((parseFloat(style.getPropertyValue(name)) || 34) / 100 + 0.03 * step);
    });
  }
}

const app = new App();
app.begin();

/** For tests and for the console: the selection, and where an instruction is on the screen. */
window.fuselane = {
  selection: () => app.selection && { ...app.selection, ...app.address(app.selection) },
  place(name) {
    const { graph } = app, key = graph.scene.visible(app.module.nodeOf.get(name)), box = graph.scene.boxes.get(key), frame = graph.canvas.getBoundingClientRect();
    return { key, open: box.open, left: frame.left + graph.x + graph.scale * box.left, top: frame.top + graph.y + graph.scale * box.top, width: graph.scale * box.w, height: graph.scale * box.h };
  },
  lit: () => [...app.graph.lit].map((node) => app.module.nameOf(node)),
  isOpen: (name) => app.graph.scene.open.has(`n${app.module.nodeOf.get(name)}`),
  drawn: () => app.graph.drawn,
  readyMs: performance.now(),
};
