// What is drawn where: boxes in boxes, each laid out on its own, and the edges between them.

const CHAR = 7.3;
const HEAD = 28;
const PAD = 14;
const MAX_BACK = 4; // edges that run back up and are drawn in full

/** What is drawn where: a tree of boxes, each with its children and the edges between them. */
class Scene {
  constructor(module, open) {
    this.module = module;
    this.open = open;
    this.boxes = new Map();
    this.placed = new Map();
  }

  /** Lays everything out; boxes whose insides did not change keep their layout. */
  build() {
    this.boxes = new Map();
    this.edgesIn = new Map();
    this.module.edges.forEach((_, edge) => this.liftEdge(edge));
    this.root = this.measure("r");
    this.settle(this.root, 0, 0);
    return this.root;
  }

  isOpen(key) { return key === "r" || this.open.has(key); }

  /** The boxes an instruction is in, from the outermost to itself. */
  path(node) {
    const path = [`n${node}`];
    for (let computation = this.module.nodes.computation[node]; ;) {
      const caller = this.module.computations[computation][1];
      if (caller < 0) return ["r", ...path];
      if (this.module.called.get(caller).length > 1) path.unshift(`c${computation}`);
      path.unshift(`n${caller}`);
      computation = this.module.nodes.computation[caller];
    }
  }

  /** The key of what stands for an instruction: itself, or the closed box that holds it. */
  visible(node) {
    const path = this.path(node);
    const last = path.findIndex((key) => !this.isOpen(key));
    return last < 0 ? path[path.length - 1] : path[last];
  }

  liftEdge(edge) {
    const [from, to] = this.module.edges[edge];
    const a = this.path(from), b = this.path(to);
    if (from === to) { // a kernel that feeds itself in the next iteration
      const around = a[a.length - 2];
      if (a.slice(0, -1).every((key) => this.isOpen(key))) this.addPair(around, a[a.length - 1], a[a.length - 1], edge);
      return;
    }
    let depth = 0;
    while (depth < a.length && depth < b.length && a[depth] === b[depth] && this.isOpen(a[depth])) depth++;
    if (depth === 0 || depth >= a.length || depth >= b.length || a[depth] === b[depth]) return;
    this.addPair(a[depth - 1], a[depth], b[depth], edge);
  }

  addPair(container, from, to, edge) {
    const pairs = this.edgesIn.get(container) || new Map();
    this.edgesIn.set(container, pairs);
    const pair = pairs.get(`${from} ${to}`) || { from, to, edges: [], boundaries: [] };
    pairs.set(`${from} ${to}`, pair);
    pair.edges.push(edge);
    pair.boundaries.push(...this.module.edges[edge][3]);
  }

  childKeys(key) {
    const { module } = this;
    if (key === "r") return module.roots.flatMap((computation) => module.members[computation]).map((node) => `n${node}`);
    const number = Number(key.slice(1));
    if (key[0] === "c") return module.members[number].map((node) => `n${node}`);
    const called = module.computationsOf(number);
    return called.length === 1 ? module.members[called[0]].map((node) => `n${node}`) : called.map((computation) => `c${computation}`);
  }

  canOpen(key) { return key[0] === "c" || (key[0] === "n" && this.module.computationsOf(Number(key.slice(1))).length > 0); }

  measure(key) {
    const box = { key, node: key[0] === "n" ? Number(key.slice(1)) : -1, children: [], links: [], open: this.isOpen(key) && (key === "r" || this.canOpen(key)) };
    this.boxes.set(key, box);
    if (!box.open) return Object.assign(box, this.leafSize(box));
    box.children = this.childKeys(key).map((child) => this.measure(child));
    const pairs = [...(this.edgesIn.get(key) || new Map()).values()];
    const places = new Map(box.children.map((child, index) => [child.key, index]));
    const edges = pairs.map((pair) => [places.get(pair.from), places.get(pair.to)]);
    const placed = this.place(key, box.children, edges);
    const head = key === "r" ? 0 : HEAD;
    const back = edges.flatMap(([from, to], index) => (placed.y[from] >= placed.y[to] ? [index] : []));
    const gutter = back.length && back.length <= MAX_BACK ? 12 * back.length + 6 : 0; // where edges run back up
    const width = Math.max(placed.w + gutter, key === "r" ? 0 : 8 + CHAR * this.title(box).length);
    const shift = (width - placed.w - gutter) / 2 + PAD;
    box.children.forEach((child, index) => {
      child.x = placed.x[index] - child.w / 2 + shift;
      child.y = placed.y[index] - child.h / 2 + head + PAD;
    });
    box.links = pairs.map((pair, index) => ({
      ...pair, a: box.children[edges[index][0]], b: box.children[edges[index][1]],
      far: placed.routes[index] === null || (!gutter && back.includes(index)),
      side: back.includes(index) ? shift + placed.w + 12 * (Math.min(back.indexOf(index), MAX_BACK) + 0.5) : null,
      route: (placed.routes[index] || []).map(([x, y]) => [x + shift, y + head + PAD]),
      family: this.family(pair.boundaries), bytes: this.bytes(pair.boundaries),
    }));
    spreadEnds(box.links);
    return Object.assign(box, { w: width + 2 * PAD, h: placed.h + head + 2 * PAD });
  }

  place(key, children, edges) {
    const signature = children.map((child) => `${child.w}x${child.h}`).join();
    const old = this.placed.get(key);
    if (old && old.signature === signature) return old.placed;
    const placed = placeAll(children, edges);
    this.placed.set(key, { signature, placed });
    return placed;
  }

  settle(box, x, y) {
    box.left = x; box.top = y;
    for (const child of box.children) this.settle(child, x + child.x, y + child.y);
  }

  leafSize(box) {
    if (box.key[0] === "c") return { w: 24 + CHAR * this.title(box).length, h: 26 };
    if (this.module.kernelAt(box.node) !== undefined || this.canOpen(box.key)) {
      return { w: Math.min(250, Math.max(140, 34 + CHAR * Math.max(this.title(box).length, this.subtitle(box).length))), h: 42 };
    }
    return { w: 18 + CHAR * Math.min(30, this.title(box).length), h: 24 };
  }

  title(box) {
    const { module } = this;
    if (box.key[0] === "c") {
      const number = Number(box.key.slice(1));
      const [name, , role] = module.computations[number];
      return box.open ? `${role}  ${name}` : `${role} (${module.members[number].length})`;
    }
    if (module.kernelAt(box.node) !== undefined || this.canOpen(box.key)) {
      const loop = box.open ? module.loops[module.loopOf.get(module.nameOf(box.node))] : undefined;
      const extra = loop ? `  ${formatCount(loop.trip_count)} iterations` : box.open ? `  ${this.subtitle(box)}` : "";
      return module.nameOf(box.node) + extra;
    }
    const caller = module.parent(box.node);
    const inFusion = caller >= 0 && module.opcode(caller) === "fusion";
    const opcode = module.opcode(box.node);
    return inFusion && opcode !== "parameter" ? opcode : ["parameter", "tuple", "constant"].includes(opcode) ? module.nameOf(box.node) : `${opcode} ${module.nameOf(box.node)}`;
  }

  subtitle(box) {
    const { module } = this;
    const kernel = module.kernels[module.kernelAt(box.node)];
    if (kernel) return `${formatShare(kernel.share)} · ${formatTime(kernel.time_us)} · ${formatCount(kernel.launches)}×`;
    const loop = module.loops[module.loopOf.get(module.nameOf(box.node))];
    return loop ? `${formatCount(loop.trip_count)} iterations · ${plural(loop.launches, "launch", "launches")}` : module.opcode(box.node);
  }

  /** The family of an edge's most telling boundary, or -1. */
  family(boundaries) {
    const families = boundaries.map((index) => familyOf(this.module.boundaries[index].reason));
    return families.find((family) => family !== EDGE_FAMILY) ?? families[0] ?? -1;
  }

  bytes(boundaries) {
    return boundaries.reduce((sum, index) => sum + (this.module.boundaries[index].bytes_per_run ?? this.module.boundaries[index].num_bytes), 0);
  }
}

/** Gives the ends of edges at a box places side by side, in the order of where they lead. */
function spreadEnds(links) {
  const ends = new Map();
  for (const link of links) {
    link.fromX = link.a.x + link.a.w / 2; link.toX = link.b.x + link.b.w / 2;
    push(ends, `${link.from} out`, link); push(ends, `${link.to} in`, link);
  }
  for (const [key, list] of ends) {
    if (list.length < 2) continue;
    const out = key.endsWith("out");
    const towards = (link) => (out ? link.route[0]?.[0] ?? link.b.x + link.b.w / 2 : link.route[link.route.length - 1]?.[0] ?? link.a.x + link.a.w / 2);
    list.sort((p, q) => towards(p) - towards(q));
    list.forEach((link, index) => {
      const box = out ? link.a : link.b;
      const width = Math.min(box.w - 20, 14 * list.length);
      const x = box.x + box.w / 2 + width * ((index + 0.5) / list.length - 0.5);
      if (out) link.fromX = x; else link.toX = x;
    });
  }
}

