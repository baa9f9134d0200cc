// Draws a scene on a canvas: only what is in view, and no more than can be seen from where one is.

const FONT = '12px ui-monospace, "SF Mono", "JetBrains Mono", "Cascadia Mono", "DejaVu Sans Mono", Menlo, Consolas, monospace';
const MIN_TEXT_SCALE = 0.42;

/** The drawing half of the graph: reads scene, view and selection, and changes none of them. */
class Painter {
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
}
