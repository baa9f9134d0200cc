// The graph on the page: what is open, where one looks, and what is pointed at.

const DOUBLE_MS = 450; // between the clicks of a double click
const MAX_OPEN_AT_START = 600;

class GraphView extends Painter {
  constructor(app) {
    super();
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
    const places = kernel && kernel.source >= 0 ? linesOf(kernel) : module.linesOfNode(box.node);
    if (places.length) lines.push(make("p", { class: "dim" }, places.map(lineLabel).join(" > ")));
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
