// The page's end of an upload (transfer.py is the kernel's): a button, the checks, and slices one after the other.

function megabytes(bytes) {
  // Rounded up, so that a file just over the limit does not read as being at it.
  return (Math.ceil(bytes / 100_000) / 10).toFixed(1);
}

// What is wrong with a file, in one line, or null.
function problemOf({ name, size }, accept, limit) {
  const fits = (suffix) => name.toLowerCase().endsWith(suffix) && name.length > suffix.length;
  if (!accept.some(fits)) {
    const listed = [accept.slice(0, -1).join(", "), accept.at(-1)].filter(Boolean).join(" or ");
    return `${name}: not audio: choose a ${listed} file`;
  }
  if (size < 1) return `${name}: holds no byte`;
  if (size > limit) return `${name}: ${megabytes(size)} MB is more than ${limit / 1e6} MB: cut it up`;
  return null;
}

function render({ model, el }) {
  const root = document.createElement("div");
  root.className = "metronome-upload";
  root.style.cssText = "display: flex; align-items: center; gap: 8px; min-width: 0";
  const chooser = document.createElement("input");
  chooser.type = "file";
  chooser.hidden = true;
  const button = document.createElement("button");
  button.type = "button";
  button.className = "jupyter-button widget-button";
  button.textContent = "upload a clip";
  const said = document.createElement("span");
  said.setAttribute("role", "status");
  said.style.overflowWrap = "anywhere";
  root.append(chooser, button, said);
  el.append(root);

  let current = null; // the file on its way: {upload, file}

  function say(text, isError = false) {
    said.textContent = text;
    said.style.color = isError ? "var(--jp-error-color1, #b00020)" : "var(--jp-ui-font-color1, #222)";
  }

  function refuse(text) {
    current = null;
    say(text, true);
    model.send({ kind: "refused", text });
  }

  function choose() {
    const file = chooser.files[0];
    chooser.value = ""; // so that the same file can be chosen again
    if (!file) return;
    const problem = problemOf(file, model.get("accept"), model.get("limit_bytes"));
    if (problem) {
      refuse(problem);
      return;
    }
    // Answers go to all pages on the widget. The name of the upload tells whose they are.
    current = { upload: Math.random().toString(36).slice(2), file };
    say(`${file.name}: waiting for the kernel`);
    model.send({ kind: "begin", upload: current.upload, name: file.name, size: file.size });
  }

  async function sendSlice({ upload, file }, at, length) {
    let bytes;
    try {
      bytes = await file.slice(at, at + length).arrayBuffer();
    } catch {
      // Moved or changed since it was chosen; the browser says no more than that.
      if (current?.upload === upload) refuse(`${file.name}: can no longer be read: choose it again`);
      return;
    }
    if (current?.upload !== upload) return;
    model.send({ kind: "slice", upload, name: file.name, at }, undefined, [bytes]);
    say(`${file.name}: ${megabytes(at + bytes.byteLength)} of ${megabytes(file.size)} MB`);
  }

  function take(message) {
    if (!current || message.upload !== current.upload) return;
    const { file } = current;
    if (message.kind === "next") {
      sendSlice(current, message.at, message.bytes);
      return;
    }
    current = null;
    if (message.kind === "done") say(`${file.name}: sent, ${megabytes(file.size)} MB`);
    else say(message.text, true);
  }

  function offer() {
    chooser.accept = model.get("accept").join(",");
  }

  button.onclick = () => chooser.click();
  chooser.onchange = choose;
  model.on("msg:custom", take);
  model.on("change:accept", offer);
  offer();
  return () => {
    current = null;
    model.off("msg:custom", take);
    model.off("change:accept", offer);
    root.remove();
  };
}

export default { render };
