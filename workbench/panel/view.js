// The live view's end in the page: it keeps a copy of the figure, applies what the kernel sends (view.py says what),
// draws at most once per animation frame, and tells the kernel what is on the screen. beats.js comes before it.

const SLOT = "__metronomePlotly"; // where the page has its one plotly.js, as a promise, for all views on it
const ARRAYS = {
  f8: Float64Array, f4: Float32Array, i4: Int32Array, u4: Uint32Array,
  i2: Int16Array, u2: Uint16Array, i1: Int8Array, u1: Uint8Array,
};
const saved = new WeakSet(); // the downloads that one of this page's views has seen to
let savedUrl = null; // of the last one; kept, for the browser may still be reading from it

async function evaluate(bytes) {
  // As a module with names of its own: plotly.js finds CommonJS, and neither the page's AMD loader nor its own Plotly.
  const before =
    "const had = Object.getOwnPropertyDescriptor(globalThis, 'Plotly'), module = {exports: {}}, define = undefined;\n";
  const after =
    "\nif (had) Object.defineProperty(globalThis, 'Plotly', had); else delete globalThis.Plotly;" +
    "\nexport default module.exports;";
  const url = URL.createObjectURL(new Blob([before, bytes, after], { type: "text/javascript" }));
  try {
    return (await import(url)).default;
  } finally {
    URL.revokeObjectURL(url);
  }
}

// To the kernel. One that was restarted leaves the page with a comm that is closed, and then nobody is there to be told.
function tell(model, message) {
  try {
    model.send(message);
  } catch (error) {
    if (error.message !== "Cannot send") throw error;
  }
}

function askForPlotly(model, closed) {
  return new Promise((resolve, reject) => {
    const take = (message, buffers) => {
      if (message.kind !== "plotly") return;
      stop();
      evaluate(buffers[0]).then(resolve, reject);
    };
    const gone = () => {
      stop();
      reject(new DOMException("the view that asked is closed", "AbortError"));
    };
    const stop = () => {
      model.off("msg:custom", take);
      closed.removeEventListener("abort", gone);
    };
    model.on("msg:custom", take);
    closed.addEventListener("abort", gone);
    tell(model, { kind: "plotly" });
  });
}

async function thePlotly(model, closed) {
  for (;;) {
    globalThis[SLOT] ??= askForPlotly(model, closed).catch((error) => {
      globalThis[SLOT] = undefined;
      throw error;
    });
    try {
      return await globalThis[SLOT];
    } catch (error) {
      // The view that asked may close before its kernel answers. Then one of those that wait asks its own.
      if (error.name !== "AbortError" || closed.aborted) throw error;
    }
  }
}

// Plotly's Python writes numpy arrays as base64, but a delta can only cut a plain array.
function listed(values) {
  if (!values?.bdata) return values ?? [];
  const bytes = Uint8Array.from(atob(values.bdata), (letter) => letter.charCodeAt(0));
  return Array.from(new ARRAYS[values.dtype](bytes.buffer));
}

function save(message, bytes) {
  if (saved.has(message)) return;
  saved.add(message);
  if (savedUrl) URL.revokeObjectURL(savedUrl);
  savedUrl = URL.createObjectURL(new Blob([bytes], { type: message.mime }));
  const link = element(document.body, "a", "display: none");
  link.href = savedUrl;
  link.download = message.name;
  link.click();
  link.remove();
}

class LiveView {
  constructor(model, el) {
    this.model = model;
    this.closing = new AbortController();
    this.closed = this.closing.signal;
    this.root = element(el, "div", "width: 100%; min-width: 0; overflow: hidden");
    this.root.className = "metronome-view";
    this.root.style.color = "var(--jp-ui-font-color1, #222)";
    this.root.style.font = "var(--jp-ui-font-size1, 13px) var(--jp-ui-font-family, sans-serif)";
    this.plot = element(this.root, "div", "width: 100%");
    this.beats = new Beats(this.root, (arm, session, frame) => tell(model, { kind: "cell", arm, session, frame }));
    this.problem = element(this.root, "div", "color: var(--jp-error-color1, #b00020)");
    this.figure = null; // the kernel's, with the deltas applied; this view's own
    this.whole = false; // the figure came whole and was not drawn since
    this.touched = new Set(); // traces changed since the last drawing
    this.patch = {}; // of the layout, since the last drawing
    this.given = {}; // the layout as it came, for the ranges that an axis goes back to
    this.held = new Set(); // axes that the user has zoomed
    this.seq = this.drawn = 0; // of the last message applied, and drawn
    this.width = 0; // that the plot was drawn for
    this.drawing = false;
    this.take = this.take.bind(this);
    model.on("msg:custom", this.take);
    // What is hidden (a folded section, a tab behind) has no width. It is drawn when it gets one.
    this.sizes = new ResizeObserver(() => this.schedule());
    this.sizes.observe(this.root);
    this.start();
  }

  async start() {
    try {
      this.plotly = await thePlotly(this.model, this.closed);
      if (!this.closed.aborted) tell(this.model, { kind: "hello" });
    } catch (error) {
      if (!this.closed.aborted) this.say(error);
    }
  }

  say(error) {
    this.problem.textContent = `cannot draw (${error?.message ?? error}): reload the page`;
  }

  take(message, buffers) {
    if (message.kind === "download") save(message, buffers[0]);
    if (message.kind === "full" && this.plotly) {
      this.figure = structuredClone(message.figure);
      for (const trace of this.figure.data) [trace.x, trace.y] = [listed(trace.x), listed(trace.y)];
      if (this.figure.layout.uirevision !== this.given.uirevision) this.held.clear();
      this.given = structuredClone(this.figure.layout);
      this.whole = true;
      this.touched.clear();
      this.patch = {};
    } else if (message.kind === "delta" && this.figure) {
      if (!this.apply(message)) {
        // A message was lost. Drawing on would show a wrong curve as if it were right.
        tell(this.model, { kind: "hello" });
        return;
      }
    } else return;
    if (message.strips) this.beats.strips = message.strips;
    this.seq = message.seq;
    this.schedule();
  }

  apply({ traces, layout }) {
    const data = this.figure.data;
    if (!traces.every(({ i, at }) => data[i] && at <= data[i].x.length)) return false;
    for (const { i, at, x, y } of traces) {
      data[i].x = data[i].x.slice(0, at).concat(x);
      data[i].y = data[i].y.slice(0, at).concat(y);
      this.touched.add(i);
    }
    Object.assign(this.patch, layout);
    return true;
  }

  schedule() {
    if (this.drawing || !this.seq || !this.root.clientWidth) return;
    if (this.seq === this.drawn && this.width === this.root.clientWidth) return;
    this.drawing = true;
    requestAnimationFrame(() => this.draw());
  }

  async draw() {
    const { seq, figure } = this;
    const width = this.root.clientWidth;
    if (this.closed.aborted || !width) {
      this.drawing = false;
      return;
    }
    try {
      if (seq !== this.drawn) await this.drawPlot();
      // The first drawing measures by itself.
      if (this.width && this.width !== width) await this.plotly.Plots.resize(this.plot);
      this.width = width;
      this.beats.draw();
    } catch (error) {
      if (!this.closed.aborted) this.say(error);
      return;
    }
    requestAnimationFrame(() => {
      this.drawing = false;
      if (this.closed.aborted) return;
      if (seq !== this.drawn) {
        this.drawn = seq;
        this.root.dataset.seq = seq;
        this.root.dataset.points = figure.data.reduce((sum, trace) => sum + trace.x.length, 0);
        this.root.dataset.arms = this.beats.strips.length;
        tell(this.model, { kind: "ack", seq });
      }
      this.schedule();
    });
  }

  async drawPlot() {
    const { figure, plot, plotly } = this;
    const indices = this.whole ? [] : [...this.touched];
    const patch = Object.fromEntries(Object.entries(this.patch).filter(([key]) => !this.held.has(rangeOf(key))));
    this.touched.clear();
    this.patch = {};
    if (this.whole) {
      this.whole = false;
      const first = !plot.on;
      // On a plot that is there react keeps the user's zoom, where newPlot would not; without one it is newPlot.
      await plotly.react(plot, figure.data.map((trace) => ({ ...trace })), figure.layout, {
        responsive: true,
        displaylogo: false,
      });
      if (first) this.listen();
    }
    if (!indices.length && !Object.keys(patch).length) return;
    const tails = { x: indices.map((i) => figure.data[i].x), y: indices.map((i) => figure.data[i].y) };
    if (!indices.length) await plotly.update(plot, {}, patch);
    else if (Object.keys(patch).length) await plotly.update(plot, tails, patch, indices);
    else await plotly.restyle(plot, tails, indices);
  }

  listen() {
    this.plot.on("plotly_click", ({ points }) =>
      tell(this.model, { kind: "click", trace: points[0].curveNumber, x: points[0].x }),
    );
    // Only the user's own hand gets here: what this view draws ends in plotly_update and plotly_restyle.
    this.plot.on("plotly_relayout", (changed) => {
      for (const axis of new Set(Object.keys(changed).map(rangeOf))) {
        if (!axis) continue;
        const now = String(this.plot.layout[axis].range);
        // Back to what it was before any zoom: the kernel's ranges count again.
        const back = changed[`${axis}.autorange`] || now === String(this.given[axis]?.range);
        this.held[back ? "delete" : "add"](axis);
      }
    });
  }

  close() {
    this.closing.abort();
    this.model.off("msg:custom", this.take);
    this.sizes.disconnect();
    this.beats.close();
    this.plotly?.purge(this.plot);
    this.figure = null;
    this.root.remove();
  }
}

// The axis whose range a key of a layout patch sets ("xaxis2.range[0]"), or undefined.
function rangeOf(key) {
  return /^([xy]axis\d*)\.(?:auto)?range/.exec(key)?.[1];
}

export default {
  render({ model, el }) {
    const view = new LiveView(model, el);
    return () => view.close();
  },
};
