// The user's source, with what each line costs and became.

const WORDS = /^(?:and|as|assert|async|await|break|class|continue|def|del|elif|else|except|finally|for|from|global|if|import|in|is|lambda|match|None|nonlocal|not|or|pass|raise|return|True|False|try|while|with|yield)$/;
const TOKENS = /(#.*$)|([rbfuRBFU]{0,2}(?:"""|'''|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'))|([A-Za-z_]\w*)|([^#"'A-Za-z_]+|.)/g;

class SourceView {
  constructor(app) {
    this.app = app;
    this.code = byId("code");
    this.files = byId("files");
    this.rows = new Map();
    this.lineOf = new Map(DATA.lines.map(([file, number], line) => [`${file}:${number}`, line]));
    this.files.addEventListener("change", () => this.open(Number(this.files.value)));
    this.code.addEventListener("click", (event) => {
      const row = event.target.closest(".row.used");
      if (row) this.app.select({ kind: "line", id: Number(row.dataset.line) });
    });
    this.code.addEventListener("keydown", (event) => this.key(event));
  }

  show(module) {
    this.module = module;
    const time = new Map();
    DATA.lines.forEach(([file], line) => {
      if (module.isLine(line)) time.set(file, (time.get(file) || 0) + (module.timeAt.get(line) || 0));
    });
    const order = [...time.keys()].sort((a, b) => time.get(b) - time.get(a));
    this.files.replaceChildren(...order.map((file) => make("option", { value: String(file) }, DATA.files[file].name)));
    this.files.hidden = !order.length;
    this.file = -1;
    if (order.length) {
      this.open(order[0]);
      this.hottest()?.scrollIntoView({ block: "center" });
    } else {
      byId("path").textContent = "";
      this.code.replaceChildren(make("p", { class: "empty" }, "Nothing in this module says which line it comes from."));
    }
  }

  open(file) {
    if (file === this.file) return;
    this.file = file;
    this.files.value = String(file);
    this.rows.clear();
    const { path, pieces } = DATA.files[file];
    byId("path").textContent = `\u200e${path}`;
    const rows = [];
    let last = 0;
    for (const [first, lines] of pieces) {
      if (first > last + 1) rows.push(make("div", { class: "gap" }, "⋯"));
      lines.forEach((text, index) => rows.push(this.row(first + index, text)));
      last = first + lines.length - 1;
    }
    if (!pieces.length) {
      rows.push(make("p", { class: "empty" }, "The text of this file was not there when the report was written. These are its lines:"));
      const numbers = DATA.lines.flatMap(([owner, number]) => (owner === file ? [number] : []));
      numbers.sort((a, b) => a - b).forEach((number) => rows.push(this.row(number, "")));
    }
    this.code.replaceChildren(...rows);
    this.mark(this.lit || []);
  }

  hottest() {
    const lines = [...this.rows.keys()].sort((a, b) => (this.module.timeAt.get(b) || 0) - (this.module.timeAt.get(a) || 0));
    return this.rows.get(lines[0]);
  }

  row(number, text) {
    const { module } = this;
    const line = this.lineOf.get(`${this.file}:${number}`);
    const used = line !== undefined && module.isLine(line);
    const share = used ? module.timeAt.get(line) || 0 : 0;
    const heat = make("span", { class: "heat" });
    if (share >= 0.0005) {
      const bar = make("i");
      bar.style.width = `${Math.max(3, 100 * share)}%`;
      heat.append(bar, make("b", {}, share >= 0.0095 ? `${(100 * share).toFixed(0)}%` : "<1%"));
    }
    const row = make("div", { class: used ? "row used" : "row" }, heat, make("span", { class: "number" }, String(number)), highlight(text));
    if (used) {
      row.dataset.line = String(line);
      row.setAttribute("role", "option");
      row.append(this.marks(line));
      this.rows.set(line, row);
    }
    return row;
  }

  marks(line) {
    const { module } = this;
    const families = new Set((module.boundariesAt.get(line) || []).map((index) => familyOf(module.boundaries[index].reason)));
    const kernels = (module.kernelsAt.get(line) || []).length;
    const words = [];
    if (kernels) words.push(plural(kernels, "kernel"));
    if (module.loopsAt.has(line)) words.push(plural(module.loopsAt.get(line).length, "loop"));
    if (module.adviceAt.has(line)) words.push("advice");
    return make("span", { class: "marks" }, words.join(", "), ...[...families].sort((a, b) => a - b).map(dot));
  }

  /** Marks lines; the first one is scrolled to, its file opened. */
  mark(lines, chosen = -1, scroll = false) {
    this.lit = lines;
    this.chosenLine = chosen;
    if (scroll && lines.length && DATA.lines[lines[0]][0] !== this.file) { this.open(DATA.lines[lines[0]][0]); }
    const set = new Set(lines);
    for (const [line, row] of this.rows) {
      row.classList.toggle("lit", set.has(line));
      row.classList.toggle("chosen", line === chosen);
      row.setAttribute("aria-selected", String(line === chosen));
    }
    const row = this.rows.get(chosen >= 0 ? chosen : lines[0]);
    if (!scroll || !row) return;
    const box = row.getBoundingClientRect(), frame = this.code.getBoundingClientRect();
    if (box.top < frame.top + 20 || box.bottom > frame.bottom - 20) row.scrollIntoView({ block: "center" });
  }

  key(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const lines = [...this.rows.keys()];
    const here = lines.indexOf(this.chosenLine);
    const next = lines[here < 0 ? 0 : Math.max(0, Math.min(lines.length - 1, here + step))];
    if (next !== undefined) this.app.select({ kind: "line", id: next });
  }
}

/** A line of Python with its comments, strings and keywords set apart. */
function highlight(text) {
  const line = make("pre");
  for (const [token, comment, string, word] of text.matchAll(TOKENS)) {
    const look = comment ? "c" : string ? "s" : word && WORDS.test(word) ? "k" : "";
    line.append(look ? make("span", { class: look }, token) : token);
  }
  return line;
}
