// The graph on a canvas. Boxes (loops, branches, fusions) open and close; only what is in view is drawn.

const FONT = '12px ui-monospace, "SF Mono", "JetBrains Mono", "Cascadia Mono", "DejaVu Sans Mono", Menlo, Consolas, monospace';
const CHAR = 7.3;
const HEAD = 28;
const DOUBLE_MS = 450; // between the clicks of a double click
const PAD = 14;
const STUB = 12;
const MAX_BACK = 4; // edges that run back up and are drawn in full
const MIN_TEXT_SCALE = 0.42;
const MAX_OPEN_AT_START = 600;

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
    const [from, to, , boundaries] = this.module.edges[edge];
    const a = this.path(from), b = this.path(to);
    let depth = 0;
    while (depth < a.length && depth < b.length && a[depth] === b[depth] && this.isOpen(a[depth])) depth++;
    if (depth === 0 || depth >= a.length || depth >= b.length || a[depth] === b[depth]) return;
    const container = a[depth - 1];
    const pairs = this.edgesIn.get(container) || new Map();
    this.edgesIn.set(container, pairs);
    const key = `${a[depth]} ${b[depth]}`;
    const pair = pairs.get(key) || { from: a[depth], to: b[depth], edges: [], boundaries: [] };
    pairs.set(key, pair);
    pair.edges.push(edge);
    pair.boundaries.push(...boundaries);
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
      side: back.includes(index) ? shift + placed.w + 12 * (back.indexOf(index) + 0.5) : null,
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
    return inFusion && opcode !== "parameter" ? opcode : opcode === "parameter" || opcode === "tuple" ? module.nameOf(box.node) : `${opcode} ${module.nameOf(box.node)}`;
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

class GraphView {
  constructor(app) {
    this.app = app;
    this.canvas = byId("canvas");
    this.map = byId("map");
    this.tip = byId("tip");
    this.scale = 1; this.x = 0; this.y = 0;
    this.lit = new Set();
    this.chosen = null; this.hovered = null; this.families = new Set();
    this.listen();
  }

  show(module) {
    this.module = module;
    this.scene = new Scene(module, new Set());
    this.openAtStart();
    this.scene.build();
    this.resize();
    this.start();
  }

  /** Opens loops and branches as long as the whole stays easy to look at; fusions stay closed. */
  openAtStart() {
    const { module, scene } = this;
    let shown = module.roots.reduce((sum, computation) => sum + module.members[computation].length, 0);
    for (let node = 0; node < module.size; node++) {
      const called = module.computationsOf(node);
      if (!called.length || module.opcode(node) === "fusion" || module.opcode(node) === "call") continue;
      const path = scene.path(node);
      if (!path.slice(0, -1).every((key) => scene.isOpen(key))) continue;
      const size = Math.max(...called.map((computation) => module.members[computation].length));
      if (shown + size > MAX_OPEN_AT_START && module.loopOf.size > 4) continue;
      shown += size;
      scene.open.add(`n${node}`);
      if (called.length > 1) called.filter((c) => module.members[c].length === size || module.opcode(node) === "conditional").forEach((c) => scene.open.add(`c${c}`));
    }
  }

  /** Shows everything if it can be read, else the part that costs most. */
  start() {
    this.fit(false);
    if (this.scale >= 0.5 || !this.module.worst.length) return;
    const node = this.module.nodeOf.get(this.module.kernels[this.module.worst[0]].name);
    if (node !== undefined) this.reveal([node], 0.85, false);
  }

  resize() {
    const ratio = window.devicePixelRatio || 1;
    const { width, height } = this.canvas.parentElement.getBoundingClientRect();
    const first = !this.width, dx = width - this.width, dy = height - this.height;
    Object.assign(this, { width, height, ratio });
    this.canvas.width = Math.round(width * ratio); this.canvas.height = Math.round(height * ratio);
    this.map.width = Math.round(130 * ratio); this.map.height = Math.round(130 * ratio);
    if (this.scene && (dx || dy || first)) {
      if (first) this.start();
      else if (this.fitted) this.fit(false);
      else this.moveTo(this.scale, this.x + dx / 2, this.y + dy / 2, false);
    }
    this.redraw();
  }

  redraw() {
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => { this.pending = 0; this.draw(); });
  }

  // ---- moving

  /** Shows everything, and goes on doing so while the window changes, until something is moved. */
  fit(animate = true) {
    const { root } = this.scene;
    this.frame(0, 0, root.w, root.h, 1.1, animate);
    this.fitted = true;
  }

  /** The pixels at the bottom that are not for the graph. */
  legend() { return byId("legend").offsetHeight + 14; }

  frame(left, top, w, h, most, animate = true) {
    const height = this.height - this.legend();
    const scale = Math.min(most, this.width / (w + 40), height / (h + 30));
    this.moveTo(scale, this.width / 2 - scale * (left + w / 2), height / 2 - scale * (top + h / 2), animate);
  }

  moveTo(scale, x, y, animate) {
    cancelAnimationFrame(this.motion);
    this.fitted = false;
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (!animate || calm) { Object.assign(this, { scale, x, y }); this.redraw(); return; }
    const from = { scale: this.scale, x: this.x, y: this.y }, begin = performance.now();
    const step = (now) => {
      const t = Math.min(1, (now - begin) / 180), ease = t * (2 - t);
      this.scale = from.scale + (scale - from.scale) * ease;
      this.x = from.x + (x - from.x) * ease; this.y = from.y + (y - from.y) * ease;
      this.draw();
      if (t < 1) this.motion = requestAnimationFrame(step);
    };
    this.motion = requestAnimationFrame(step);
  }

  zoom(factor, cx = this.width / 2, cy = this.height / 2) {
    const scale = Math.min(4, Math.max(0.01, this.scale * factor)), ratio = scale / this.scale;
    this.moveTo(scale, cx - ratio * (cx - this.x), cy - ratio * (cy - this.y), false);
  }

  /** Brings some instructions into view, as closed boxes where they are hidden. */
  reveal(nodes, scale, animate = true) {
    const boxes = [...new Set(nodes.map((node) => this.scene.visible(node)))].map((key) => this.scene.boxes.get(key)).filter(Boolean);
    if (!boxes.length) return;
    const left = Math.min(...boxes.map((b) => b.left)), top = Math.min(...boxes.map((b) => b.top));
    const right = Math.max(...boxes.map((b) => b.left + b.w)), bottom = Math.max(...boxes.map((b) => b.top + b.h));
    const inView = left * this.scale + this.x > 0 && right * this.scale + this.x < this.width && top * this.scale + this.y > 30 && bottom * this.scale + this.y < this.height - this.legend();
    if (inView && this.scale > MIN_TEXT_SCALE && scale === undefined) { this.redraw(); return; }
    const most = scale ?? Math.max(0.75, Math.min(1.1, this.scale));
    this.frame(left, top, right - left, bottom - top, most, animate);
  }

  /** Opens the boxes around an instruction. */
  uncover(node) {
    const closed = this.scene.path(node).slice(1, -1).filter((key) => !this.scene.open.has(key));
    if (closed.length) { closed.forEach((key) => this.scene.open.add(key)); this.scene.build(); }
  }

  toggle(key) {
    if (!this.scene.canOpen(key)) return;
    const old = this.scene.boxes.get(key);
    const sx = old.left * this.scale + this.x, sy = old.top * this.scale + this.y;
    const { open } = this.scene;
    if (!open.delete(key)) {
      open.add(key);
      const called = key[0] === "n" ? this.module.computationsOf(Number(key.slice(1))) : [];
      if (called.length > 1) open.add(`c${called.reduce((a, b) => (this.module.members[a].length >= this.module.members[b].length ? a : b))}`);
    }
    this.scene.build();
    const box = this.scene.boxes.get(key); // its corner stays where it was
    this.moveTo(this.scale, sx - box.left * this.scale, sy - box.top * this.scale, false);
  }

  toggleAll() {
    const { scene, module } = this;
    const keys = [];
    for (let node = 0; node < module.size; node++) {
      const called = module.computationsOf(node);
      if (called.length) keys.push(`n${node}`, ...(called.length > 1 ? called.map((computation) => `c${computation}`) : []));
    }
    if (keys.every((key) => scene.open.has(key))) scene.open.clear(); else keys.forEach((key) => scene.open.add(key));
    scene.build();
    this.fit();
  }

  // ---- drawing

  colours() {
    const style = getComputedStyle(document.documentElement);
    const get = (name) => style.getPropertyValue(`--${name}`).trim();
    this.c = Object.fromEntries(["ground", "panel", "raised", "node", "node-far", "node-line", "text", "dim", "faint", "accent", "heat", "accent-soft", "heat-soft"].map((name) => [name, get(name)]));
    this.redraw();
  }

  draw() {
    if (!this.scene || !this.width) return;
    const g = this.canvas.getContext("2d");
    g.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    g.fillStyle = this.c.ground; g.fillRect(0, 0, this.width, this.height);
    g.setTransform(this.ratio * this.scale, 0, 0, this.ratio * this.scale, this.ratio * this.x, this.ratio * this.y);
    g.font = FONT; g.textBaseline = "middle";
    this.view = { left: -this.x / this.scale, top: -this.y / this.scale, right: (this.width - this.x) / this.scale, bottom: (this.height - this.y) / this.scale };
    this.litKeys = new Set([...this.lit].map((node) => this.scene.visible(node)));
    this.quiet = this.lit.size > 0 && ["line", "advice"].includes(this.app.selection?.kind);
    this.drawn = 0;
    this.drawBox(g, this.scene.root, 0);
    this.drawMap();
  }

  isInView(left, top, w, h) {
    const { view } = this;
    return left < view.right && left + w > view.left && top < view.bottom && top + h > view.top;
  }

  drawBox(g, box, depth) {
    if (!this.isInView(box.left, box.top, box.w, box.h)) return;
    this.drawn++;
    if (!box.open) { this.drawLeaf(g, box); return; }
    if (box.key !== "r") this.drawFrame(g, box, depth);
    if (box.h * this.scale < 10) return;
    const ordered = this.scale > 0.08 ? box.links : box.links.filter((link) => link.family >= 0);
    for (const link of ordered) if (!this.isStressed(link)) this.drawLink(g, box, link);
    for (const link of ordered) if (this.isStressed(link)) this.drawLink(g, box, link);
    for (const child of box.children) this.drawBox(g, child, depth + 1);
    if (box.node >= 0 && this.scale < MIN_TEXT_SCALE * 0.7) this.drawSign(g, box);
  }

  isStressed(link) {
    const node = this.chosen?.key;
    return link === this.hovered?.link || (this.chosen?.boundary !== undefined && link.boundaries.includes(this.chosen.boundary)) || (node && (link.from === node || link.to === node));
  }

  drawFrame(g, box, depth) {
    const chosen = this.chosen?.key === box.key, lit = this.litKeys.has(box.key);
    g.fillStyle = depth % 2 ? this.c.panel : this.c.ground;
    g.strokeStyle = chosen || lit ? this.c.accent : this.c.faint; g.lineWidth = Math.max(chosen ? 2 : 1, 0.6 / this.scale);
    g.beginPath(); g.roundRect(box.left, box.top, box.w, box.h, 10); g.fill(); g.stroke();
    if (this.scale < MIN_TEXT_SCALE * 0.7) return;
    g.fillStyle = this.c.dim;
    g.fillText(this.clip(`▾ ${this.scene.title(box)}`, box.w - 20), box.left + 12, box.top + HEAD / 2 + 3);
  }

  /** The name of a loop seen from afar, as large as elsewhere. */
  drawSign(g, box) {
    const title = this.scene.title(box), width = CHAR * title.length + 10;
    if (width > box.w * this.scale || box.h * this.scale < 60) return;
    g.save();
    g.translate(box.left, box.top); g.scale(1 / this.scale, 1 / this.scale);
    g.fillStyle = this.c.raised; g.beginPath(); g.roundRect(3, 3, width, 17, 4); g.fill();
    g.fillStyle = this.c.text; g.fillText(title, 8, 12);
    g.restore();
  }

  drawLeaf(g, box) {
    const { module } = this;
    const kernel = box.node >= 0 ? module.kernels[module.kernelAt(box.node)] : undefined;
    const chosen = this.chosen?.key === box.key, lit = this.litKeys.has(box.key), hovered = this.hovered?.box === box;
    const canOpen = this.scene.canOpen(box.key);
    g.globalAlpha = this.quiet && !lit && !chosen ? 0.35 : 1;
    const close = this.scale >= MIN_TEXT_SCALE; // from afar colour has to do without words
    g.fillStyle = !close ? this.c["node-far"] : kernel || canOpen ? this.c.node : this.c.raised;
    g.beginPath(); g.roundRect(box.left, box.top, box.w, box.h, box.h > 30 ? 7 : 5); g.fill();
    if (lit || chosen) { g.fillStyle = this.c["accent-soft"]; g.fill(); }
    if (kernel) {
      g.save(); g.clip();
      g.fillStyle = this.c[close ? "heat-soft" : "heat"]; g.fillRect(box.left, box.top, box.w * (kernel.share / module.maxShare), box.h);
      g.fillStyle = this.c.heat; g.globalAlpha *= 0.25 + 0.75 * (kernel.share / module.maxShare); g.fillRect(box.left, box.top, 4, box.h);
      g.restore();
    }
    g.strokeStyle = lit || chosen ? this.c.accent : hovered ? this.c.dim : this.c["node-line"];
    g.lineWidth = chosen ? 2.5 : lit ? 1.6 : 1; g.stroke();
    if (this.scale >= MIN_TEXT_SCALE) this.drawLabel(g, box, kernel, canOpen);
    g.globalAlpha = 1;
  }

  drawLabel(g, box, kernel, canOpen) {
    const two = box.h > 30, left = box.left + (two ? 13 : 9);
    g.fillStyle = kernel || canOpen ? this.c.text : this.c.dim;
    g.fillText(this.clip(this.scene.title(box), box.w - (two ? 32 : 14)), left, box.top + (two ? 14 : box.h / 2 + 0.5));
    if (two) { g.fillStyle = this.c.dim; g.fillText(this.clip(this.scene.subtitle(box), box.w - 20), left, box.top + 29); }
    if (canOpen && two) { g.fillStyle = this.c.faint; g.fillText("▸", box.left + box.w - 17, box.top + 14); }
  }

  clip(text, width) {
    const most = Math.max(1, Math.floor(width / CHAR + 0.2));
    if (text.length <= most) return text;
    const end = most > 12 ? 4 : 0; // names differ at their ends
    return `${text.slice(0, most - 1 - end)}…${text.slice(text.length - end)}`;
  }

  drawLink(g, box, link) {
    const top = box.top + Math.min(link.a.y, link.b.y), bottom = box.top + Math.max(link.a.y + link.a.h, link.b.y + link.b.h);
    if (top > this.view.bottom || bottom < this.view.top) return;
    const stressed = this.isStressed(link);
    const filtered = this.families.size && !this.families.has(link.family);
    const plain = link.family < 0 || link.family === EDGE_FAMILY;
    g.strokeStyle = link.family >= 0 ? familyColour(link.family) : this.c.faint;
    g.globalAlpha = filtered && !stressed ? 0.12 : stressed ? 1 : this.quiet ? 0.25 : plain ? 0.55 : 0.9;
    g.lineWidth = (stressed ? 2.6 : plain ? 1 : 1.7) / Math.min(1, Math.max(1.4 * this.scale, 0.4));
    g.beginPath();
    if (link.far && !stressed) this.traceStubs(g, box, link); else this.trace(g, box, link);
    g.stroke();
    if (this.scale > 0.3) {
      const x = box.left + link.toX, y = box.top + link.b.y;
      g.fillStyle = g.strokeStyle;
      g.beginPath(); g.moveTo(x, y); g.lineTo(x - 4, y - 7); g.lineTo(x + 4, y - 7); g.fill();
    }
    g.globalAlpha = 1;
  }

  trace(g, box, link) {
    for (const [kind, ...p] of curve(box, link)) {
      if (kind === "M") g.moveTo(p[0], p[1]); else g.bezierCurveTo(...p);
    }
  }

  /** The two ends of an edge between distant boxes; all of it shows when it is pointed at. */
  traceStubs(g, box, link) {
    const from = [box.left + link.fromX, box.top + link.a.y + link.a.h], to = [box.left + link.toX, box.top + link.b.y];
    g.moveTo(...from); g.lineTo(from[0], from[1] + STUB);
    g.moveTo(to[0], to[1] - STUB - 3); g.lineTo(...to);
    g.moveTo(to[0] + 2.5, to[1] - STUB - 5); g.arc(to[0], to[1] - STUB - 5, 2.5, 0, 7);
  }

  drawMap() {
    const { root } = this.scene;
    this.map.hidden = this.view.left <= 0 && this.view.top <= 0 && this.view.right >= root.w && this.view.bottom >= root.h;
    if (this.map.hidden) return;
    const g = this.map.getContext("2d");
    const size = 130, scale = Math.min(size / root.w, size / root.h) * 0.94;
    const dx = (size - root.w * scale) / 2, dy = (size - root.h * scale) / 2;
    this.mapScale = { scale, dx, dy };
    g.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    g.clearRect(0, 0, size, size);
    const paint = (box) => {
      if (box.open) { box.children.forEach(paint); return; }
      const kernel = box.node >= 0 ? this.module.kernels[this.module.kernelAt(box.node)] : undefined;
      const lit = this.litKeys.has(box.key) || this.chosen?.key === box.key;
      g.globalAlpha = lit ? 1 : kernel ? 0.25 + 0.75 * (kernel.share / this.module.maxShare) : 0.25;
      g.fillStyle = lit ? this.c.accent : kernel ? this.c.heat : this.c.faint;
      g.fillRect(dx + box.left * scale, dy + box.top * scale, Math.max(1, box.w * scale), Math.max(1, box.h * scale));
    };
    paint(root);
    g.globalAlpha = 1; g.strokeStyle = this.c.text; g.lineWidth = 1;
    const { view } = this;
    const left = Math.max(0.5, dx + view.left * scale), top = Math.max(0.5, dy + view.top * scale);
    g.strokeRect(left, top, Math.min(size - 0.5, dx + view.right * scale) - left, Math.min(size - 0.5, dy + view.bottom * scale) - top);
  }

  // ---- pointing

  listen() {
    const { canvas } = this;
    new ResizeObserver(() => this.resize()).observe(canvas.parentElement);
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      if (event.ctrlKey || event.metaKey || !event.shiftKey) this.zoom(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0016)), event.offsetX, event.offsetY);
      else this.moveTo(this.scale, this.x - event.deltaX - event.deltaY, this.y, false);
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      this.drag = { x: event.clientX, y: event.clientY, startX: this.x, startY: this.y, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!this.drag) { this.hover(event.offsetX, event.offsetY); return; }
      const dx = event.clientX - this.drag.x, dy = event.clientY - this.drag.y;
      if (Math.abs(dx) + Math.abs(dy) > 4) { this.drag.moved = true; canvas.classList.add("dragging"); this.tip.hidden = true; }
      if (this.drag.moved) this.moveTo(this.scale, this.drag.startX + dx, this.drag.startY + dy, false);
    });
    canvas.addEventListener("pointerup", (event) => {
      const { drag } = this;
      this.drag = null; canvas.classList.remove("dragging");
      if (drag && !drag.moved) this.click(event.offsetX, event.offsetY);
    });
    canvas.addEventListener("pointerleave", () => { this.hovered = null; this.tip.hidden = true; this.redraw(); });
    const travel = (event) => {
      const { scale, dx, dy } = this.mapScale;
      const x = (event.offsetX - dx) / scale, y = (event.offsetY - dy) / scale;
      this.moveTo(this.scale, this.width / 2 - x * this.scale, this.height / 2 - y * this.scale, false);
    };
    this.map.addEventListener("pointerdown", (event) => { this.map.setPointerCapture(event.pointerId); travel(event); });
    this.map.addEventListener("pointermove", (event) => { if (event.buttons) travel(event); });
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  /** What is at a place on the screen: the innermost box, or else an edge. */
  hit(sx, sy) {
    const x = (sx - this.x) / this.scale, y = (sy - this.y) / this.scale;
    let box = this.scene.root, link = null;
    for (;;) {
      const inside = box.children.find((child) => x >= child.left && x <= child.left + child.w && y >= child.top && y <= child.top + child.h);
      if (!inside) break;
      box = inside;
    }
    if (box.open) link = nearestLink(box, x, y, 6 / this.scale);
    return { box: box.key === "r" || link ? null : box, link };
  }

  click(sx, sy) {
    const now = performance.now(), last = this.clicked;
    this.clicked = null;
    if (last && now - last.now < DOUBLE_MS && Math.hypot(sx - last.sx, sy - last.sy) < 6) {
      if (last.box) this.toggle(last.box.key); // what the first click was on: the graph may have moved since
      return;
    }
    const { box, link } = this.hit(sx, sy);
    this.clicked = { now, sx, sy, box };
    if (link?.boundaries.length) { this.app.select({ kind: "boundary", id: link.boundaries[0] }); return; }
    if (!box || box.key[0] === "c") { if (box) this.toggle(box.key); else this.app.select(null); return; }
    const y = (sy - this.y) / this.scale, x = (sx - this.x) / this.scale;
    const onMark = this.scene.canOpen(box.key) && (box.open ? y < box.top + HEAD && x < box.left + 28 : x > box.left + box.w - 26);
    if (onMark) this.toggle(box.key); else this.app.selectNode(box.node);
  }

  hover(sx, sy) {
    const { box, link } = this.hit(sx, sy);
    const changed = box !== (this.hovered?.box ?? null) || link !== (this.hovered?.link ?? null);
    this.hovered = box || link ? { box, link } : null;
    this.canvas.classList.toggle("over", Boolean(link || (box && !box.open)));
    if (changed) { this.tip.replaceChildren(...this.describe(box, link)); this.redraw(); }
    this.tip.hidden = !this.tip.childNodes.length;
    if (this.tip.hidden) return;
    const { width, height } = this.tip.getBoundingClientRect();
    this.tip.style.left = `${Math.max(4, Math.min(sx + 14, this.width - width - 8))}px`;
    this.tip.style.top = `${sy + 18 + height > this.height ? Math.max(4, sy - height - 10) : sy + 18}px`;
  }

  describe(box, link) {
    const { module } = this;
    if (link) {
      const lines = [make("strong", {}, `${this.nameOf(link.from)} → ${this.nameOf(link.to)}`)];
      for (const index of link.boundaries.slice(0, 3)) {
        const boundary = module.boundaries[index];
        const text = boundary.detail || DATA.reasons[boundary.reason][0];
        lines.push(make("p", {}, dot(familyOf(boundary.reason)), ` ${boundary.reason}: `, ...prose(text)));
        lines.push(make("p", { class: "dim" }, `${shortShape(boundary.shape)}, ${crossing(boundary)}`));
      }
      if (!link.boundaries.length) lines.push(make("p", { class: "dim" }, shortShape(DATA.strings[module.edges[link.edges[0]][2]])));
      if (link.boundaries.length > 3) lines.push(make("p", { class: "dim" }, `and ${link.boundaries.length - 3} more`));
      return lines;
    }
    if (!box || box.node < 0) return [];
    const kernel = module.kernels[module.kernelAt(box.node)];
    const lines = [make("strong", {}, module.nameOf(box.node)), make("p", { class: "dim" }, `${module.opcode(box.node)} ${shortShape(module.shape(box.node))}`)];
    if (kernel) {
      lines.push(make("p", {}, `${formatShare(kernel.share)} of the time, ${formatCount(kernel.launches)} × ${formatTime(kernel.modelled_us)}, ${formatBytes(kernel.bytes)} moved`));
      lines.push(make("p", { class: "dim" }, `${kernel.kind}: ${formatOpcodes(kernel.opcodes)}`));
    }
    const line = kernel && kernel.source >= 0 ? kernel.source : module.nodes.line[box.node];
    if (line >= 0) lines.push(make("p", { class: "dim" }, lineLabel(line)));
    return lines;
  }

  nameOf(key) { return key[0] === "n" ? this.module.nameOf(Number(key.slice(1))) : this.module.computations[Number(key.slice(1))][0]; }

  /** Moves the selection along the graph, or works on it. */
  key(event) {
    const box = this.chosen?.key && this.scene.boxes.get(this.chosen.key);
    const moves = { ArrowDown: "down", ArrowUp: "up", ArrowLeft: "left", ArrowRight: "right" };
    if (event.key === "Enter" && box) this.toggle(box.key);
    else if (moves[event.key]) this.step(box, moves[event.key]);
    else return;
    event.preventDefault();
  }

  step(box, way) {
    if (!box) { const kernel = this.module.kernels[this.module.worst[0]]; if (kernel) this.app.selectNode(this.module.nodeOf.get(kernel.name)); return; }
    const parent = [...this.scene.boxes.values()].find((other) => other.children.includes(box));
    if (!parent) return;
    let next;
    if (way === "down") next = parent.links.find((link) => link.a === box)?.b;
    else if (way === "up") next = parent.links.find((link) => link.b === box)?.a;
    else {
      const sign = way === "right" ? 1 : -1;
      const row = parent.children.filter((child) => Math.abs(child.y + child.h / 2 - box.y - box.h / 2) < 8 && sign * (child.x - box.x) > 0);
      next = row.sort((a, b) => sign * (a.x - b.x))[0];
    }
    if (next && next.node >= 0) this.app.selectNode(next.node);
  }
}

function crossing(boundary) {
  if (boundary.bytes_per_run === null) return `${formatBytes(boundary.num_bytes)} × ?`;
  if (!boundary.num_bytes || boundary.bytes_per_run === boundary.num_bytes) return formatBytes(boundary.bytes_per_run);
  return `${formatBytes(boundary.num_bytes)} × ${formatCount(boundary.bytes_per_run / boundary.num_bytes)} = ${formatBytes(boundary.bytes_per_run)}`;
}

/** The path of an edge: down from its producer, through its passages, down to its consumer. */
function curve(box, link) {
  const { a, b } = link;
  const start = [box.left + link.fromX, box.top + a.y + a.h];
  const end = [box.left + link.toX, box.top + b.y];
  if (link.side !== null) { // back to where a loop begins
    const side = box.left + link.side;
    return [["M", ...start], ["C", start[0], start[1] + 22, side, start[1] + 22, side, start[1] - 14], ["C", side, start[1] - 14, side, end[1] + 14, side, end[1] + 14], ["C", side, end[1] - 22, end[0], end[1] - 22, ...end]];
  }
  const stops = [start, ...link.route.map(([x, y]) => [box.left + x, box.top + y]), end];
  const path = [["M", ...start]];
  for (let index = 1; index < stops.length; index++) {
    const [x0, y0] = stops[index - 1], [x1, y1] = stops[index];
    const bend = (y1 - y0) * 0.5;
    path.push(["C", x0, y0 + bend, x1, y1 - bend, x1, y1]);
  }
  return path;
}

function nearestLink(box, x, y, reach) {
  let best = null, least = reach;
  for (const link of box.links) {
    const top = box.top + Math.min(link.a.y, link.b.y), bottom = box.top + Math.max(link.a.y + link.a.h, link.b.y + link.b.h);
    if (y < top - reach || y > bottom + reach) continue;
    if (link.far) {
      const ends = [[box.left + link.fromX, box.top + link.a.y + link.a.h, STUB], [box.left + link.toX, box.top + link.b.y, -STUB - 6]];
      for (const [ex, ey, length] of ends) {
        const distance = toSegment(x, y, [ex, ey], [ex, ey + length]);
        if (distance < least) { least = distance; best = link; }
      }
      continue;
    }
    let from = null;
    for (const [kind, ...p] of curve(box, link)) {
      if (kind === "C") {
        for (let step = 1; step <= 16; step++) {
          const point = bezier(from, p, step / 16), last = bezier(from, p, (step - 1) / 16);
          const distance = toSegment(x, y, last, point);
          if (distance < least) { least = distance; best = link; }
        }
      }
      from = p.slice(-2);
    }
  }
  return best;
}

function bezier([x0, y0], [x1, y1, x2, y2, x3, y3], t) {
  const u = 1 - t, a = u * u * u, b = 3 * u * u * t, c = 3 * u * t * t, d = t * t * t;
  return [a * x0 + b * x1 + c * x2 + d * x3, a * y0 + b * y1 + c * y2 + d * y3];
}

function toSegment(x, y, [x0, y0], [x1, y1]) {
  const dx = x1 - x0, dy = y1 - y0, length = dx * dx + dy * dy;
  const t = length ? Math.max(0, Math.min(1, ((x - x0) * dx + (y - y0) * dy) / length)) : 0;
  return Math.hypot(x - x0 - t * dx, y - y0 - t * dy);
}
