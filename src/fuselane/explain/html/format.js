// Numbers as people read them, and elements whose content is always text.

const BYTE_UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];

function threeDigits(number) {
  if (number === 0 || number >= 99.95) return number.toFixed(0);
  return number >= 9.995 ? number.toFixed(1) : String(Number(number.toFixed(2)));
}

function formatBytes(number) {
  let unit = 0;
  while (number >= 999.5 && unit < BYTE_UNITS.length - 1) { number /= 1000; unit++; }
  return `${threeDigits(number)} ${BYTE_UNITS[unit]}`;
}

function formatTime(us) {
  if (us < 999.5) return `${threeDigits(us)} µs`;
  return us < 999500 ? `${threeDigits(us / 1e3)} ms` : `${threeDigits(us / 1e6)} s`;
}

function formatCount(number) {
  return number === null || number === undefined ? "?" : number.toLocaleString("en-US", { maximumFractionDigits: 2 });
}

function formatLarge(number) {
  if (number < 9999.5) return formatCount(number);
  let unit = 0;
  while (number >= 999.5 && unit < 5) { number /= 1000; unit++; }
  return `${threeDigits(number)} ${" kMGTP"[unit]}`;
}

function formatShare(share) { return `${(100 * share).toFixed(1)}%`; }

function plural(number, noun, nouns = `${noun}s`) { return `${formatCount(number)} ${number === 1 ? noun : nouns}`; }

function shortShape(shape) {
  const text = shape.replace(/(\])\{[^}]*\}/g, "$1");
  return text.length > 60 ? `${text.slice(0, 59)}…` : text;
}

function formatOpcodes(opcodes) {
  const counted = Object.entries(opcodes).sort((a, b) => b[1] - a[1] || a[0].localeCompare(b[0]));
  return counted.map(([opcode, count]) => (count === 1 ? opcode : `${opcode}×${count}`)).join(" ");
}

const byId = (id) => document.getElementById(id);

/** Makes an element; children are elements or strings, which become text and never markup. */
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.startsWith("aria-") || name === "role") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function dot(family) {
  const element = make("span", { class: "dot" });
  element.style.background = familyColour(family);
  return element;
}

/** A sentence whose names stand between backticks. */
function prose(text) {
  return text.split("`").map((part, index) => (index % 2 ? make("span", { class: "mono" }, part) : part));
}

/** What crosses a boundary: each time, how often, in all. */
function crossing(boundary) {
  if (boundary.bytes_per_run === null) return `${formatBytes(boundary.num_bytes)} × ?`;
  if (!boundary.num_bytes || boundary.bytes_per_run === boundary.num_bytes) return formatBytes(boundary.bytes_per_run);
  return `${formatBytes(boundary.num_bytes)} × ${formatCount(boundary.bytes_per_run / boundary.num_bytes)} = ${formatBytes(boundary.bytes_per_run)}`;
}
