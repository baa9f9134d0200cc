// The paths of edges, and which of them is near a point.

const STUB = 12;

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
