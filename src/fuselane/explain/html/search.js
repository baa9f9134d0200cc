// Finds kernels, loops, lines, reasons and instructions by name or opcode; Enter goes there.

const MOST_RESULTS = 60;

class Search {
  constructor(app) {
    this.app = app;
    this.input = byId("query");
    this.list = byId("results");
    this.input.addEventListener("input", () => this.look());
    this.input.addEventListener("focus", () => { if (this.input.value) this.look(); });
    this.input.addEventListener("blur", () => setTimeout(() => this.hide(), 150));
    this.input.addEventListener("keydown", (event) => this.key(event));
  }

  hide() { this.list.hidden = true; this.input.setAttribute("aria-expanded", "false"); }

  look() {
    const words = this.input.value.toLowerCase().split(/\s+/).filter(Boolean);
    this.found = words.length ? this.find(words) : [];
    this.here = 0;
    this.list.hidden = !words.length;
    this.input.setAttribute("aria-expanded", String(Boolean(words.length)));
    const items = this.found.map((result, index) => make("li", { role: "option", id: `result-${index}`, onpointerdown: (event) => { event.preventDefault(); this.take(index); } },
      make("span", { class: "kind" }, result.kind), make("span", { class: "mono" }, result.name), make("span", { class: "dim" }, result.note)));
    this.list.replaceChildren(...(items.length ? items : [make("li", { class: "none" }, "Nothing of that name.")]));
    this.mark();
  }

  find(words) {
    const { module } = this.app, found = [];
    const matches = (...texts) => { const text = texts.join(" ").toLowerCase(); return words.every((word) => text.includes(word)); };
    const add = (kind, name, note, go) => { found.push({ kind, name, note, go }); return found.length < MOST_RESULTS; };
    for (const id of module.worst) {
      const kernel = module.kernels[id];
      if (matches(kernel.name, kernel.kind, Object.keys(kernel.opcodes).join(" ")) && !add("kernel", kernel.name, formatShare(kernel.share), () => this.app.select({ kind: "kernel", id }))) return found;
    }
    module.loops.forEach((loop, id) => { if (matches(loop.name, "loop while")) add("loop", loop.name, placeLabel(loop), () => this.app.select({ kind: "loop", id })); });
    DATA.lines.forEach(([file, number, fn], line) => {
      if (found.length < MOST_RESULTS && module.isLine(line) && matches(lineLabel(line), fn, textOf(file, number))) add("line", lineLabel(line), textOf(file, number).trim(), () => this.app.select({ kind: "line", id: line }));
    });
    module.boundaries.forEach((boundary, id) => {
      if (found.length < MOST_RESULTS && matches(boundary.reason, boundary.detail)) add("boundary", `${boundary.producer} → ${boundary.consumer}`, boundary.reason, () => this.app.select({ kind: "boundary", id }));
    });
    for (let node = 0; node < module.size && found.length < MOST_RESULTS; node++) {
      if (module.kernelAt(node) === undefined && matches(module.nameOf(node), module.opcode(node))) add("instruction", module.nameOf(node), module.opcode(node), () => this.app.selectNode(node));
    }
    return found;
  }

  mark() {
    [...this.list.children].forEach((item, index) => { item.classList.toggle("here", index === this.here); item.setAttribute("aria-selected", String(index === this.here)); });
    if (this.found.length) this.input.setAttribute("aria-activedescendant", `result-${this.here}`); else this.input.removeAttribute("aria-activedescendant");
    this.list.children[this.here]?.scrollIntoView({ block: "nearest" });
  }

  take(index) {
    const result = this.found[index];
    if (!result) return;
    this.hide();
    this.input.blur();
    result.go();
  }

  key(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && this.found?.length) { this.here = (this.here + step + this.found.length) % this.found.length; this.mark(); } else if (event.key === "Enter") this.take(this.here);
    else if (event.key === "Escape") { this.input.value = ""; this.hide(); this.input.blur(); } else return;
    event.preventDefault(); event.stopPropagation();
  }
}

function textOf(file, number) {
  const piece = DATA.files[file].pieces.find(([first, lines]) => number >= first && number < first + lines.length);
  return piece ? piece[1][number - piece[0]] : "";
}
