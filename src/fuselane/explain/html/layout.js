// Places boxes in layers from top to bottom: a producer is above its consumers.
// Layers by longest path, order by barycentres, positions by least squares without overlap.

const LAYER_GAP = 30;
const NODE_GAP = 14;
const PASSAGE = 10; // width kept free for an edge that passes a layer
const MAX_PASSAGES = 4000;
const LONG = 10; // layers an edge may pass before it gets no passages, and is drawn as two stubs

const HUB = 24; // edges from which on an instruction is a hub, such as a tuple of all results
const PART_GAP = 34;

/**
 * Places items. What only meets in hubs (the step counter, the tuple of all results) is placed part by part,
 * and parts side by side in rows; hubs go above or below, and their edges are far.
 */
function placeAll(items, edges) {
  const degree = items.map(() => [0, 0]);
  for (const [from, to] of edges) { degree[from][1]++; degree[to][0]++; }
  const isHub = degree.map(([ins, outs]) => ins > HUB || outs > HUB);
  if (!isHub.some(Boolean)) return placeInLayers(items, edges);
  const parts = findParts(items.length, edges.filter(([from, to]) => !isHub[from] && !isHub[to]), isHub);
  const all = items.map((_, index) => index);
  const above = all.filter((index) => isHub[index] && degree[index][1] >= degree[index][0]), below = all.filter((index) => isHub[index] && degree[index][1] < degree[index][0]);
  const placed = parts.map((part) => placePart(part, items, edges));
  const x = [], y = [], routes = edges.map(() => null);
  const area = placed.reduce((sum, part) => sum + (part.w + PART_GAP) * (part.h + PART_GAP), 0);
  const limit = Math.max(1200, 1.5 * Math.sqrt(area), ...placed.map((part) => part.w));
  let top = 0, width = 0;
  const shelve = (boxes, put) => {
    let left = 0, height = 0;
    for (const box of boxes) {
      if (left && left + box.w > limit) { left = 0; top += height + PART_GAP; height = 0; }
      put(box, left, top);
      left += box.w + PART_GAP; height = Math.max(height, box.h); width = Math.max(width, left - PART_GAP);
    }
    if (boxes.length) top += height + PART_GAP;
  };
  const putHub = (hub, left, upper) => { x[hub.index] = left + hub.w / 2; y[hub.index] = upper + hub.h / 2; };
  const hubs = (list) => list.map((index) => ({ index, w: items[index].w, h: items[index].h }));
  shelve(hubs(above), putHub);
  shelve(placed, (part, left, upper) => {
    part.members.forEach((index, position) => { x[index] = left + part.x[position]; y[index] = upper + part.y[position]; });
    part.own.forEach((edge, position) => { routes[edge] = part.routes[position]?.map(([px, py]) => [left + px, upper + py]) ?? null; });
  });
  shelve(hubs(below), putHub);
  return { w: width, h: top - PART_GAP, x, y, routes };
}

/** Returns the connected parts, largest first among equals in the order of their first item. */
function findParts(count, edges, leftOut) {
  const parent = Array.from({ length: count }, (_, index) => index);
  const find = (index) => { while (parent[index] !== index) index = parent[index] = parent[parent[index]]; return index; };
  for (const [from, to] of edges) parent[find(from)] = find(to);
  const parts = new Map();
  for (let index = 0; index < count; index++) if (!leftOut[index]) push(parts, find(index), index);
  return [...parts.values()].sort((a, b) => b.length - a.length || a[0] - b[0]);
}

function placePart(members, items, edges) {
  const places = new Map(members.map((index, position) => [index, position]));
  const own = [], inner = [];
  edges.forEach(([from, to], edge) => { if (places.has(from) && places.has(to)) { own.push(edge); inner.push([places.get(from), places.get(to)]); } });
  return { members, own, ...placeInLayers(members.map((index) => items[index]), inner) };
}

/**
 * Places items; edges lead from earlier items to later ones, others are ignored.
 * @param {{w: number, h: number}[]} items
 * @param {[number, number][]} edges
 * @returns {{w, h, x: number[], y: number[], routes: (number[][] | null)[]}} centres of items, and for each edge
 *   the points it passes between its ends, or null if its ends are far apart.
 */
function placeInLayers(items, edges) {
  if (!items.length) return { w: 0, h: 0, x: [], y: [], routes: [] };
  const count = items.length;
  const forward = edges.map(([from, to], edge) => [from, to, edge]).filter(([from, to]) => from < to);
  const layer = assignLayers(items, forward);
  const nodes = items.map((item, index) => ({ w: item.w, h: item.h, layer: layer[index], up: [], down: [] }));
  const chains = addPassages(nodes, forward);
  const layers = [];
  nodes.forEach((node, index) => (layers[node.layer] ??= []).push(index));
  orderLayers(layers, nodes);
  const x = assignColumns(layers, nodes);
  const y = new Array(nodes.length);
  let top = 0;
  for (const row of layers) {
    const height = Math.max(...row.map((index) => nodes[index].h));
    for (const index of row) y[index] = top + height / 2;
    top += height + LAYER_GAP;
  }
  const left = Math.min(...nodes.map((node, index) => x[index] - node.w / 2));
  const right = Math.max(...nodes.map((node, index) => x[index] + node.w / 2));
  for (let index = 0; index < nodes.length; index++) x[index] -= left;
  const routes = edges.map(([from, to]) => (from < to ? null : []));
  chains.forEach(([edge, chain]) => { routes[edge] = chain.map((index) => [x[index], y[index]]); });
  return { w: right - left, h: top - LAYER_GAP, x: x.slice(0, count), y: y.slice(0, count), routes };
}

function assignLayers(items, edges) {
  const count = items.length;
  const layer = new Array(count).fill(0);
  const outs = Array.from({ length: count }, () => []);
  const fed = new Array(count).fill(false);
  for (const [from, to] of edges) { outs[from].push(to); fed[to] = true; }
  for (let from = 0; from < count; from++) for (const to of outs[from]) layer[to] = Math.max(layer[to], layer[from] + 1);
  // What nothing feeds goes right above its first consumer.
  for (let index = count - 1; index >= 0; index--) {
    if (!fed[index] && outs[index].length) layer[index] = Math.min(...outs[index].map((to) => layer[to])) - 1;
  }
  return splitWideLayers(items, layer);
}

/** Breaks layers that are far wider than the whole should be into several. */
function splitWideLayers(items, layer) {
  const area = items.reduce((sum, item) => sum + (item.w + NODE_GAP) * (item.h + LAYER_GAP), 0);
  const widest = Math.max(...items.map((item) => item.w));
  const limit = Math.max(widest, 1400, 1.8 * Math.sqrt(area));
  const rows = [];
  items.forEach((_, index) => (rows[layer[index]] ??= []).push(index));
  const result = new Array(items.length);
  let next = 0;
  for (const row of rows) {
    if (!row) continue;
    let width = 0;
    for (const index of row) {
      if (width && width + items[index].w > limit) { next++; width = 0; }
      result[index] = next;
      width += items[index].w + NODE_GAP;
    }
    next++;
  }
  return result;
}

/** Adds narrow nodes where edges pass layers; leaves long ones out. */
function addPassages(nodes, edges) {
  const spans = edges.reduce((sum, [from, to]) => sum + nodes[to].layer - nodes[from].layer - 1, 0);
  const longest = spans <= MAX_PASSAGES ? LONG : 4;
  const chains = [];
  for (const [from, to, edge] of edges) {
    const span = nodes[to].layer - nodes[from].layer;
    const chain = [];
    let last = from;
    if (span > longest) continue;
    for (let layer = nodes[from].layer + 1; layer < nodes[to].layer; layer++) {
      const index = nodes.length;
      nodes.push({ w: PASSAGE, h: 0, layer, up: [last], down: [], passage: true });
      nodes[last].down.push(index);
      chain.push(index);
      last = index;
    }
    nodes[to].up.push(last);
    nodes[last].down.push(to);
    chains.push([edge, chain]);
  }
  return chains;
}

function orderLayers(layers, nodes) {
  const rank = new Array(nodes.length).fill(0);
  const renumber = (row) => row.forEach((index, position) => { rank[index] = (position + 0.5) / row.length; });
  layers.forEach(renumber);
  const sweep = (row, side) => {
    const mean = new Map(row.map((index) => {
      const others = nodes[index][side];
      return [index, others.length ? others.reduce((sum, other) => sum + rank[other], 0) / others.length : rank[index]];
    }));
    row.sort((a, b) => mean.get(a) - mean.get(b) || a - b);
    renumber(row);
  };
  const rounds = nodes.length > 3000 ? 3 : 8;
  for (let round = 0; round < rounds; round++) {
    for (let layer = 1; layer < layers.length; layer++) sweep(layers[layer], "up");
    for (let layer = layers.length - 2; layer >= 0; layer--) sweep(layers[layer], "down");
  }
}

function assignColumns(layers, nodes) {
  const x = new Array(nodes.length).fill(0);
  for (const row of layers) {
    let left = 0;
    for (const index of row) { x[index] = left + nodes[index].w / 2; left += nodes[index].w + NODE_GAP; }
    for (const index of row) x[index] -= left / 2;
  }
  const settle = (row, sides) => {
    const wanted = row.map((index) => {
      const others = sides.flatMap((side) => nodes[index][side]);
      return others.length ? others.reduce((sum, other) => sum + x[other], 0) / others.length : x[index];
    });
    const weights = row.map((index) => (nodes[index].passage ? 4 : 1) * Math.max(1, sides.reduce((sum, side) => sum + nodes[index][side].length, 0)));
    packInOrder(row, wanted, weights, nodes, x);
  };
  for (let round = 0; round < 6; round++) {
    for (let layer = 1; layer < layers.length; layer++) settle(layers[layer], ["up"]);
    for (let layer = layers.length - 2; layer >= 0; layer--) settle(layers[layer], ["down"]);
  }
  for (const row of layers) settle(row, ["up", "down"]);
  return x;
}

/** Moves a row's nodes as near to the wanted places as their order and widths allow: pools neighbours that collide. */
function packInOrder(row, wanted, weights, nodes, x) {
  const offsets = [];
  let offset = 0;
  row.forEach((index, position) => {
    if (position) offset += (nodes[row[position - 1]].w + nodes[index].w) / 2 + NODE_GAP;
    offsets.push(offset);
  });
  const pools = [];
  row.forEach((_, position) => {
    let pool = { mean: wanted[position] - offsets[position], weight: weights[position], size: 1 };
    while (pools.length && pools[pools.length - 1].mean > pool.mean) {
      const last = pools.pop();
      const weight = last.weight + pool.weight;
      pool = { mean: (last.mean * last.weight + pool.mean * pool.weight) / weight, weight, size: last.size + pool.size };
    }
    pools.push(pool);
  });
  let position = 0;
  for (const pool of pools) {
    for (let member = 0; member < pool.size; member++, position++) x[row[position]] = pool.mean + offsets[position];
  }
}
