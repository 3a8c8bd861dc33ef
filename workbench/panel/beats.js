// The beat strips: per arm a canvas of sessions x frames, one mark per frame, oldest on the left. view.py joins this
// file and view.js into one module, for a widget is given one.

// Colour and word of a cell's letter. The colours are those of Okabe and Ito; the shapes tell them apart in grey.
const CELLS = {
  o: ["#0072B2", "on beat"],
  c: ["#E69F00", "capped"],
  e: ["#D55E00", "empty"],
  s: ["#CC79A7", "stalled"],
  d: ["#888888", "audio dropped"],
};
const SHAPES = {
  o: (pen, x, y, r) => {
    pen.arc(x, y, r, 0, 2 * Math.PI);
    pen.fill();
  },
  c: (pen, x, y, r) => {
    pen.moveTo(x, y - r);
    pen.lineTo(x + r, y + r);
    pen.lineTo(x - r, y + r);
    pen.fill();
  },
  e: (pen, x, y, r) => {
    pen.arc(x, y, r - pen.lineWidth / 2, 0, 2 * Math.PI);
    pen.stroke();
  },
  s: (pen, x, y, r) => {
    pen.fillStyle = "#222222";
    pen.fillRect(x - r, y - r, 2 * r, 2 * r);
    pen.moveTo(x - r, y - r);
    pen.lineTo(x + r, y + r);
    pen.moveTo(x + r, y - r);
    pen.lineTo(x - r, y + r);
    pen.stroke();
  },
  d: (pen, x, y, r) => pen.fillRect(x - r, y - r / 3, 2 * r, Math.max(2, (2 * r) / 3)),
};
const MIN_ROW = 11; // px, as all here
const MAX_ROW = 20;
const MIN_COLUMN = 7;
const MAX_COLUMN = 18;
const MAX_HEIGHT = 32 * MIN_ROW;
const FONT = 11;
const GAP = 8;

function element(parent, tag, style = "", text = "") {
  const made = parent.appendChild(document.createElement(tag));
  made.style.cssText = style;
  made.textContent = text;
  return made;
}

function clamp(value, low, high) {
  return Math.min(high, Math.max(low, value));
}

function mark(pen, letter, x, y, r) {
  pen.fillStyle = pen.strokeStyle = CELLS[letter][0];
  pen.lineWidth = Math.max(1.4, r / 3);
  pen.beginPath();
  SHAPES[letter](pen, x, y, r);
}

// A pen for a canvas of that many CSS pixels, sharp on a screen that has more.
function penOf(canvas, width, height) {
  const scale = globalThis.devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  return pen;
}

class BeatStrip {
  constructor(parent, onCell) {
    this.root = element(parent, "div", "margin: 8px 0; overflow: hidden");
    const title = element(this.root, "div");
    this.label = element(title, "b", `margin-right: ${GAP}px`);
    this.words = element(title, "span");
    this.canvas = element(this.root, "canvas", "display: block; margin: 3px 0");
    this.canvas.setAttribute("role", "img");
    this.more = element(this.root, "div");
    this.canvas.onmousemove = (event) => {
      const cell = this.cellAt(event);
      this.canvas.title = cell ? `${cell.session}, frame ${cell.frame}: ${cell.word}` : "";
      this.canvas.style.cursor = cell ? "pointer" : "default";
    };
    this.canvas.onclick = (event) => {
      const cell = this.cellAt(event);
      if (cell) onCell(this.strip.label, cell.session, cell.frame);
    };
  }

  draw(strip, columns, left, theme) {
    this.strip = strip;
    this.label.textContent = strip.label;
    this.words.textContent = strip.words;
    this.canvas.setAttribute("aria-label", `${strip.label}: ${strip.words}`);
    this.more.textContent = strip.more ? `and ${strip.more} more session${strip.more === 1 ? "" : "s"}` : "";
    const rows = strip.rows;
    const width = this.root.clientWidth;
    const high = Math.floor(clamp(MAX_HEIGHT / Math.max(1, rows.length), MIN_ROW, MAX_ROW));
    const wide = Math.floor(clamp((width - left.all) / Math.max(1, columns), MIN_COLUMN, MAX_COLUMN));
    // Where it is too narrow for all, the oldest frames are left out.
    const shown = clamp(Math.floor((width - left.all) / wide), 0, columns);
    this.grid = { left: left.all, wide, high, shown };
    const pen = penOf(this.canvas, width, high * rows.length);
    pen.font = `${Math.min(FONT, high - 1)}px ${theme.family}`;
    pen.textBaseline = "middle";
    rows.forEach((row, index) => {
      const y = (index + 0.5) * high;
      pen.fillStyle = theme.ink;
      pen.globalAlpha = index % 2 ? 0 : 0.06;
      pen.fillRect(0, index * high, left.all + shown * wide, high);
      pen.globalAlpha = 1;
      pen.fillText(row.session, 2, y, Math.max(1, left.names - GAP));
      pen.fillStyle = theme.faint;
      pen.fillText(row.note ?? "", left.names + 2, y, Math.max(1, left.all - left.names - GAP));
      for (let column = 0; column < shown; column++) {
        const letter = row.cells[row.cells.length - shown + column];
        if (letter in CELLS) mark(pen, letter, left.all + (column + 0.5) * wide, y, Math.min(wide, high) / 2 - 1.2);
      }
    });
  }

  cellAt({ offsetX, offsetY }) {
    const { left, wide, high, shown } = this.grid;
    const row = this.strip.rows[Math.floor(offsetY / high)];
    const column = Math.floor((offsetX - left) / wide);
    if (!row || column < 0 || column >= shown) return null;
    const index = row.cells.length - shown + column;
    const word = CELLS[row.cells[index]]?.[1];
    return word ? { session: row.session, frame: row.first + index, word } : null;
  }
}

// All strips of a view, one below the other on the same columns, and their legend.
class Beats {
  constructor(parent, onCell) {
    this.root = element(parent, "div");
    this.list = element(this.root, "div");
    this.legend = element(this.root, "div", "display: none; flex-wrap: wrap; gap: 2px 16px; margin: 4px 0");
    this.keys = Object.entries(CELLS).map(([letter, [, word]]) => {
      const key = element(this.legend, "span", "display: inline-flex; align-items: center; gap: 5px");
      const canvas = element(key, "canvas");
      canvas.setAttribute("aria-hidden", "true");
      element(key, "span", "", word);
      return { letter, canvas };
    });
    this.onCell = onCell;
    this.strips = [];
    this.arms = [];
    // Labels on a canvas do not follow the theme by themselves.
    this.themes = new MutationObserver(() => this.draw());
    this.themes.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light"] });
  }

  draw() {
    const width = this.root.clientWidth;
    this.legend.style.display = this.strips.length ? "flex" : "none";
    while (this.arms.length > this.strips.length) this.arms.pop().root.remove();
    while (this.arms.length < this.strips.length) this.arms.push(new BeatStrip(this.list, this.onCell));
    if (!width) return;
    const style = getComputedStyle(this.root);
    const theme = { ink: style.color, family: style.fontFamily };
    theme.faint = style.getPropertyValue("--jp-ui-font-color2").trim() || "#666";
    const rows = this.strips.flatMap((strip) => strip.rows);
    const columns = Math.max(0, ...rows.map((row) => row.cells.length));
    const ruler = penOf(document.createElement("canvas"), 1, 1);
    ruler.font = `${FONT}px ${theme.family}`;
    const widest = (texts) => Math.max(0, ...texts.map((text) => (text ? ruler.measureText(text).width + GAP : 0)));
    const names = widest(rows.map((row) => row.session));
    const all = names + widest(rows.map((row) => row.note));
    const room = Math.min(1, (0.4 * width) / Math.max(1, all));
    const left = { names: Math.ceil(names * room), all: Math.ceil(all * room) };
    this.arms.forEach((arm, index) => arm.draw(this.strips[index], columns, left, theme));
    for (const { letter, canvas } of this.keys) mark(penOf(canvas, 14, 14), letter, 7, 7, 5.5);
  }

  close() {
    this.themes.disconnect();
  }
}
