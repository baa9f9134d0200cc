// A table of any length: sortable by its heads, and only the rows in view exist.

const ROW = 25;
const HEIGHT_OF_HEAD = 27;

class Table {
  /**
   * @param columns [{title, value(row), text(row), right?, width, share?(row), dot?(row)}]
   * @param rows numbers of rows, in the order of the report
   * @param choose called with a row's number
   */
  constructor(columns, rows, choose, sort = -1, ascending = false) {
    Object.assign(this, { columns, all: rows, choose, sortBy: sort, ascending, lit: new Set(), chosen: -1 });
    this.body = make("div", { class: "body" });
    this.head = make("div", { class: "head", role: "row" }, ...columns.map((column, index) => make("button", {
      class: column.right ? "right" : "", role: "columnheader", title: column.hint || "", onclick: () => this.sort(index),
    }, column.title)));
    this.element = make("div", { class: "table", role: "grid", tabIndex: 0, onscroll: () => this.draw(), onkeydown: (event) => this.key(event) }, this.head, this.body);
    this.element.style.setProperty("--columns", columns.map((column) => column.width).join(" "));
    const least = columns.reduce((sum, column) => sum + Number(column.width.match(/\d+/)[0]), 0);
    this.element.style.setProperty("--least", `${least}px`);
    this.filter("");
  }

  sort(index) {
    const column = this.columns[index];
    if (this.sortBy === index) this.ascending = !this.ascending;
    else { this.sortBy = index; this.ascending = !column.right; }
    this.arrange();
  }

  filter(text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    this.kept = this.all.filter((row) => {
      if (!words.length) return true;
      const content = this.columns.map((column) => column.text(row)).join(" ").toLowerCase();
      return words.every((word) => content.includes(word));
    });
    this.arrange();
  }

  arrange() {
    this.rows = [...this.kept];
    const column = this.columns[this.sortBy];
    if (column) {
      const sign = this.ascending ? 1 : -1;
      const keys = new Map(this.rows.map((row) => [row, column.value(row)]));
      this.rows.sort((a, b) => {
        const [x, y] = [keys.get(a), keys.get(b)];
        if (x === y) return a - b;
        if (x === null || x === undefined) return 1; // what is not known comes last
        if (y === null || y === undefined) return -1;
        return sign * (typeof x === "number" ? x - y : String(x).localeCompare(String(y)));
      });
    }
    [...this.head.children].forEach((button, index) => {
      const here = index === this.sortBy;
      if (here) button.setAttribute("aria-sort", this.ascending ? "ascending" : "descending"); else button.removeAttribute("aria-sort");
      button.textContent = this.columns[index].title + (here ? (this.ascending ? " ↑" : " ↓") : "");
    });
    this.body.style.height = `${ROW * this.rows.length}px`;
    this.draw();
  }

  draw() {
    const { scrollTop, clientHeight } = this.element;
    const first = Math.max(0, Math.floor(scrollTop / ROW) - 4);
    const last = Math.min(this.rows.length, Math.ceil((scrollTop + (clientHeight || 400)) / ROW) + 4);
    if (!this.rows.length) { this.body.replaceChildren(make("p", { class: "none" }, "None.")); return; }
    this.body.replaceChildren(...this.rows.slice(first, last).map((row, index) => this.line(row, first + index)));
  }

  line(row, position) {
    const look = row === this.chosen ? "line chosen" : this.lit.has(row) ? "line lit" : "line";
    const line = make("div", { class: look, role: "row", onclick: () => this.choose(row) }, ...this.columns.map((column) => {
      const text = column.text(row);
      const cell = make("div", { class: `cell${column.right ? " right" : ""}${column.share ? " share" : ""}${column.mono ? " mono" : ""}`, role: "gridcell", title: text });
      if (column.share) {
        const bar = make("i");
        bar.style.width = `calc((100% - 20px) * ${column.share(row)})`;
        cell.append(bar);
      }
      const family = column.dot?.(row);
      if (family !== undefined) cell.append(dot(family));
      cell.append(make("span", {}, text));
      return cell;
    }));
    line.dataset.row = String(row);
    line.style.top = `${ROW * position}px`;
    return line;
  }

  mark(rows, chosen = -1, scroll = false) {
    this.lit = new Set(rows);
    this.chosen = chosen;
    const target = this.rows.findIndex((row) => (chosen >= 0 ? row === chosen : this.lit.has(row)));
    if (scroll && target >= 0) {
      const top = ROW * target, { scrollTop, clientHeight } = this.element;
      if (top < scrollTop || top + ROW + HEIGHT_OF_HEAD > scrollTop + clientHeight) this.element.scrollTop = Math.max(0, top - clientHeight / 3);
    }
    this.draw();
  }

  key(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || !this.rows.length) return;
    event.preventDefault();
    const here = this.rows.indexOf(this.chosen);
    this.choose(this.rows[here < 0 ? 0 : Math.max(0, Math.min(this.rows.length - 1, here + step))]);
  }
}
