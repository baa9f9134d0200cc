// The report's data, and what can be looked up in it. Names of the program are keys of maps only.

const DATA = JSON.parse(byId("data").textContent);
const BOXES = new Set(["fusion", "while", "conditional", "call", "async-start"]);

class Module {
  constructor(data, number) {
    Object.assign(this, data);
    this.number = number;
    const { nodes } = data;
    this.size = nodes.name.length;
    this.nodeOf = new Map(nodes.name.map((name, index) => [name, index]));
    this.kernelOf = new Map(this.kernels.map((kernel, index) => [kernel.name, index]));
    this.loopOf = new Map(this.loops.map((loop, index) => [loop.name, index]));
    this.members = this.computations.map(() => []);
    nodes.computation.forEach((computation, node) => this.members[computation].push(node));
    this.called = new Map();
    this.computations.forEach(([, caller], computation) => {
      if (caller >= 0) push(this.called, caller, computation);
    });
    for (const list of this.called.values()) list.sort((a, b) => this.computations[a][2].localeCompare(this.computations[b][2], "en", { numeric: true }));
    this.roots = this.computations.flatMap(([, caller], computation) => (caller < 0 ? [computation] : []));
    this.out = Array.from({ length: this.size }, () => []);
    this.in = Array.from({ length: this.size }, () => []);
    this.edges.forEach(([from, to], edge) => { this.out[from].push(edge); this.in[to].push(edge); });
    this.maxShare = Math.max(1e-9, ...this.kernels.map((kernel) => kernel.share));
    this.worst = this.kernels.map((_, index) => index).sort((a, b) => this.kernels[b].time_us - this.kernels[a].time_us);
    this.indexLines();
  }

  indexLines() {
    this.kernelsAt = new Map(); this.nodesAt = new Map(); this.boundariesAt = new Map();
    this.loopsAt = new Map(); this.adviceAt = new Map(); this.timeAt = new Map();
    this.kernels.forEach((kernel, index) => {
      kernel.lines.forEach((line) => push(this.kernelsAt, line, index));
      for (const line of linesOf(kernel)) this.timeAt.set(line, (this.timeAt.get(line) || 0) + kernel.share);
    });
    for (let node = 0; node < this.size; node++) this.linesOfNode(node).forEach((line) => push(this.nodesAt, line, node));
    this.boundaries.forEach((boundary, index) => {
      if (familyOf(boundary.reason) !== EDGE_FAMILY) linesOf(boundary).forEach((line) => push(this.boundariesAt, line, index));
    });
    this.loops.forEach((loop, index) => linesOf(loop).forEach((line) => push(this.loopsAt, line, index)));
    this.advice.forEach((advice, index) => linesOf(advice).forEach((line) => push(this.adviceAt, line, index)));
  }

  nameOf(node) { return this.nodes.name[node]; }
  opcode(node) { return DATA.strings[this.nodes.opcode[node]]; }
  shape(node) { return DATA.strings[this.nodes.shape[node]]; }
  path(node) { return DATA.strings[this.nodes.path[node]]; }
  linesOfNode(node) { return linesOf({ source: this.nodes.line[node], library: this.nodes.library[node] }); }
  kernelAt(node) { return this.kernelOf.get(this.nameOf(node)); }
  owner(node) { return this.kernelOf.get(DATA.strings[this.nodes.kernel[node]]); }
  computationsOf(node) { return BOXES.has(this.opcode(node)) ? this.called.get(node) || [] : []; }
  /** The box an instruction is drawn in, or -1. */
  parent(node) { return this.computations[this.nodes.computation[node]][1]; }
  isLine(line) { return this.nodesAt.has(line) || this.kernelsAt.has(line) || this.boundariesAt.has(line) || this.loopsAt.has(line) || this.adviceAt.has(line); }

  /** Instructions that a line became: kernels that hold it, and its own instructions elsewhere. */
  nodesOfLine(line) {
    const kernels = (this.kernelsAt.get(line) || []).map((kernel) => this.nodeOf.get(this.kernels[kernel].name));
    return [...new Set([...kernels, ...(this.nodesAt.get(line) || [])])].filter((node) => node !== undefined);
  }
}

function push(map, key, value) {
  const list = map.get(key);
  if (list) list.push(value); else map.set(key, [value]);
}

const EDGE_FAMILY = DATA.families.findIndex((family) => family.label === "edges of the program");
const familyOf = (reason) => DATA.reasons[reason][1];
const familyColour = (family) => DATA.families[family][isDark() ? "dark" : "light"];
const reasonColour = (reason) => familyColour(familyOf(reason));
const isDark = () => document.documentElement.dataset.theme === "dark";

/** The lines of something: the user's, and that of a library it led to. */
function linesOf({ source, library }) { return [source, library].filter((line) => line >= 0); }
const placeLabel = (thing) => linesOf(thing).map(lineLabel).join(" > ");
const consumerOf = (boundary) => ({ source: boundary.consumer_source, library: boundary.consumer_library });

const verdictOf = (answer) => answer.reason ?? "yes";
/** Names and values of what a decision compared. */
function numbersOf({ numbers }) {
  return Object.entries(numbers).map(([name, value]) => [name.replaceAll("_", " "), typeof value === "number" ? formatCount(value) : String(value)]);
}

function lineLabel(line) {
  if (line < 0) return "";
  const [file, number] = DATA.lines[line];
  return `${DATA.files[file].name}:${number}`;
}

const MODULES = [];
function getModule(number) { return (MODULES[number] ??= new Module(DATA.modules[number], number)); }
