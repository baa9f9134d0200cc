// What is known of the one thing that is selected.

class Details {
  constructor(app) { this.app = app; this.element = byId("details"); }

  show(selection) {
    const makers = { kernel: "kernel", node: "instruction", boundary: "boundary", loop: "loop", answer: "answer" };
    const content = selection && makers[selection.kind] ? this[makers[selection.kind]](selection.id) : null;
    this.element.hidden = !content;
    if (!content) return;
    const close = make("button", { class: "close", title: "Close (Esc)", "aria-label": "Close", onclick: () => this.app.select(null) }, "×");
    this.element.replaceChildren(close, ...content.filter(Boolean));
    this.element.scrollTop = 0;
  }

  get module() { return this.app.module; }

  kernel(id) {
    const kernel = this.module.kernels[id], node = this.module.nodeOf.get(kernel.name);
    const loop = kernel.loop ? this.loopLink(kernel.loop) : null;
    return [
      make("h2", {}, kernel.name),
      make("p", { class: "dim" }, `${kernel.kind}, made by XLA's ${kernel.emitter || "unknown"} emitter`),
      facts([
        ["Share of modelled time", formatShare(kernel.share)],
        ["Time a run", formatTime(kernel.time_us)],
        ["Launches a run", formatCount(kernel.launches)],
        ["Time a launch", formatTime(kernel.modelled_us)],
        ["Loop", loop], ["Part of the function of", kernel.function || null],
        ["Launches an iteration", kernel.launches_per_iteration !== 1 ? formatCount(kernel.launches_per_iteration) : null],
        ["Read a launch", formatBytes(kernel.bytes_read)],
        ["Written a launch", formatBytes(kernel.bytes_written)],
        ["Moved a run", formatBytes(kernel.bytes)],
        ["Flops a launch", formatLarge(kernel.flops)],
        ["Flops per byte", kernel.intensity === null ? "∞" : formatLarge(kernel.intensity)],
        ["Registers a thread", kernel.registers], ["Spilled a thread", kernel.spill_bytes === null ? null : formatBytes(kernel.spill_bytes)],
        ["Shared memory", kernel.shared_bytes === null ? null : formatBytes(kernel.shared_bytes)],
        ["Threads a block", kernel.block_threads], ["Occupancy", kernel.occupancy === null ? null : formatShare(kernel.occupancy)],
      ]),
      ...this.advice((advice) => advice.kernels.includes(kernel.name)),
      ...this.lines(kernel.lines),
      make("h3", {}, "Computes"), make("p", { class: "mono" }, formatOpcodes(kernel.opcodes)),
      ...this.edges(kernel.name),
      ...arrays("Reads", kernel.operands), ...arrays("Writes", kernel.outputs),
      ...(node === undefined ? [] : this.paths(node)),
    ];
  }

  instruction(id) {
    const { module } = this, name = module.nameOf(id), owner = module.owner(id);
    return [
      make("h2", {}, name),
      make("p", { class: "dim" }, `${module.opcode(id)}, ${module.shape(id)}`),
      facts([["Computed by", owner !== undefined && module.kernels[owner].name !== name ? this.nameLink(module.kernels[owner].name) : null], ["In", module.computations[module.nodes.computation[id]][0]]]),
      ...this.lines(module.linesOfNode(id)),
      ...this.edges(name),
      ...this.neighbours("Operands", module.in[id].map((edge) => module.edges[edge][0])),
      ...this.neighbours("Users", module.out[id].map((edge) => module.edges[edge][1])),
      ...this.paths(id),
    ];
  }

  boundary(id) {
    const boundary = this.module.boundaries[id], [sentence] = DATA.reasons[boundary.reason];
    return [
      make("h2", {}, dot(familyOf(boundary.reason)), ` ${boundary.reason}`),
      make("p", {}, this.nameLink(boundary.producer), " → ", this.nameLink(boundary.consumer)),
      make("p", {}, ...prose(boundary.detail || sentence)),
      boundary.detail && boundary.detail !== sentence ? make("p", { class: "dim" }, sentence) : null,
      boundary.xla ? make("blockquote", {}, `XLA: ${boundary.xla}`) : null,
      facts([["Value", shortShape(boundary.shape)], ["Each launch", formatBytes(boundary.num_bytes)], ["Each run", boundary.bytes_per_run === null ? "?" : formatBytes(boundary.bytes_per_run)], ["Loop", boundary.loop ? this.loopLink(boundary.loop) : null], ...numbersOf(boundary)]),
      ...this.lines(linesOf(boundary), "Made at"), ...this.lines(linesOf(consumerOf(boundary)), "Read at"),
    ];
  }

  answer(id) {
    const answer = this.module.strategy.answers[id], { reason } = answer;
    const ends = [answer.producer, answer.consumer].filter(Boolean).map((name) => this.nameLink(name));
    return [
      make("h2", {}, ...(reason ? [dot(familyOf(reason)), " "] : []), verdictOf(answer)),
      make("p", { class: "dim" }, `decision of ${answer.pass_name}`),
      make("p", {}, ...ends.flatMap((end, index) => (index ? [" → ", end] : [end]))),
      make("p", {}, ...prose(answer.detail)),
      answer.xla ? make("blockquote", {}, `XLA: ${answer.xla}`) : null,
      facts([["Made", answer.fusion ? this.nameLink(answer.fusion) : null], ["Asked", plural(answer.times, "time")], ...numbersOf(answer)]),
      ...this.lines(linesOf(answer)),
    ];
  }

  loop(id) {
    const loop = this.module.loops[id], { decision } = loop;
    const kernels = this.module.kernels.filter((kernel) => kernel.loop === loop.name);
    const verdict = decision ? (decision.decision.reason === "fused" ? "Fuselane fuses this loop" : `Fuselane leaves it to XLA: ${decision.decision.reason}`) : null;
    return [
      make("h2", {}, loop.name),
      make("p", { class: "dim" }, "loop"),
      facts([["Iterations", formatCount(loop.trip_count)], ["Kernels an iteration", formatCount(loop.kernels_per_iteration)], ["Launches a run", formatCount(loop.launches)],
        ["Under Fuselane", loop.fuselane_launches === null ? null : formatCount(loop.fuselane_launches)], ["Carries", formatBytes(loop.carried_bytes)], ["Inside", loop.parent ? this.loopLink(loop.parent) : null], ["Part of the function of", loop.function || null], ["Lanes", decision && decision.lanes !== null ? formatCount(decision.lanes) : null]]),
      ...(verdict ? [make("h3", {}, verdict), make("p", {}, ...prose(decision.decision.sentence))] : []),
      ...this.advice((advice) => advice.loop === loop.name),
      ...this.lines(linesOf(loop)),
      ...list("Kernels, by time", [...kernels].sort((a, b) => b.time_us - a.time_us), (kernel) => [this.nameLink(kernel.name), ` ${formatShare(kernel.share)}`]),
    ];
  }

  nameLink(name) {
    const { module } = this;
    const known = module.nodeOf.has(name) || module.kernelOf.has(name);
    return known ? make("button", { class: "link mono", onclick: () => this.app.selectName(name) }, name) : make("span", { class: "mono" }, name);
  }

  loopLink(name) { return make("button", { class: "link mono", onclick: () => this.app.select({ kind: "loop", id: this.module.loopOf.get(name) }) }, name); }

  lines(lines, title = "Source") {
    return list(title, lines, (line) => {
      const [file, number, fn] = DATA.lines[line];
      const text = (DATA.files[file].pieces.find(([first, rows]) => number >= first && number < first + rows.length) || [number, [""]]);
      const code = (text[1][number - text[0]] || "").trim();
      return [make("button", { class: "link", onclick: () => this.app.select({ kind: "line", id: line }) }, lineLabel(line)), fn ? ` ${fn.replaceAll(".<locals>", "")}` : "", make("div", { class: "mono dim" }, code)];
    });
  }

  edges(name) {
    const all = this.module.boundaries.map((boundary, index) => [boundary, index]).filter(([boundary]) => boundary.producer === name || boundary.consumer === name);
    all.sort(([a], [b]) => (familyOf(a.reason) === EDGE_FAMILY) - (familyOf(b.reason) === EDGE_FAMILY) || (b.bytes_per_run ?? b.num_bytes) - (a.bytes_per_run ?? a.num_bytes));
    return list("Not fused with", all, ([boundary, index]) => {
      const other = boundary.producer === name ? boundary.consumer : boundary.producer;
      return [make("div", { class: "reason" }, dot(familyOf(boundary.reason)), make("button", { class: "link", onclick: () => this.app.select({ kind: "boundary", id: index }) }, boundary.reason), make("span", { class: "dim" }, boundary.producer === name ? "to" : "from"), this.nameLink(other)),
        make("div", { class: "dim" }, ...prose(`${boundary.detail || DATA.reasons[boundary.reason][0]} ${crossing(boundary)}.`))];
    });
  }

  advice(about) {
    return list("Advice", this.module.advice.filter(about), (advice) => [make("b", {}, advice.gain === null ? advice.rule : `${advice.rule} ×${advice.gain.toPrecision(3)}`), make("div", {}, ...prose(advice.sentence))]);
  }

  neighbours(title, nodes) { return list(title, [...new Set(nodes)], (node) => [this.nameLink(this.module.nameOf(node)), make("span", { class: "dim" }, ` ${this.module.opcode(node)} ${shortShape(this.module.shape(node))}`)]); }

  paths(node) { const path = this.module.path(node); return path ? [make("h3", {}, "In JAX"), make("p", { class: "mono dim" }, path)] : []; }
}

function facts(rows) {
  const known = rows.filter(([, value]) => value !== null && value !== undefined);
  return make("dl", {}, ...known.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value instanceof Node ? value : String(value))]));
}

function list(title, items, show, most = 12) {
  if (!items.length) return [];
  const rest = items.length - most;
  const rows = items.slice(0, rest > 1 ? most : items.length).map((item) => make("li", {}, ...show(item)));
  if (rest > 1) rows.push(make("li", { class: "dim" }, `and ${rest} more`));
  return [make("h3", {}, title), make("ul", {}, ...rows)];
}

function arrays(title, items) {
  return list(title, items, (array) => [make("span", { class: "mono" }, array.name), make("div", { class: "dim" }, `${shortShape(array.shape)}, ${formatBytes(array.num_bytes)}`)]);
}
