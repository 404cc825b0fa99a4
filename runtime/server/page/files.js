// The files of the conversation: {name, text, tokens, turn}. `turn` is the number of the question that they went with;
// undefined: they go with the next one. `text` null: it was too large to be kept over a reload.
const kPasteIsFile = 1500;  // characters: what is pasted into the question and longer becomes a file
let files = [];

function decode(bytes) {
  const mark = bytes[0] * 256 + bytes[1];
  const encoding = mark === 0xfffe ? "utf-16le" : mark === 0xfeff ? "utf-16be" : "utf-8";
  const text = new TextDecoder(encoding, { fatal: true }).decode(bytes);
  if (text.includes("\0")) throw new Error("not text");
  return text;
}

const isMarkup = (name, text) =>
  /\.(html?|xhtml|rtf)$/i.test(name) || /^\s*(<!doctype html|<html[\s>]|\{\\rtf)/i.test(text);

async function readFile(file) {
  let bytes;
  try {
    bytes = new Uint8Array(await file.arrayBuffer());
  } catch {
    throw new Error(`${file.name} cannot be read. A folder has to be given file by file.`);
  }
  let text = null;
  try {
    text = decode(bytes);
  } catch { /* not text: the server may convert it */ }
  if (text === null || isMarkup(file.name, text)) {
    try {
      text = await convertFile(file.name, bytes);
    } catch (error) {  // a server without the converter: the markup itself can be read
      if (text === null || error.code === "invalid_api_key") throw error;
    }
  }
  if (!text.trim()) throw new Error(`${file.name} is empty.`);
  return text;
}

// A file of the same name takes the place of one that was not kept.
async function addText(name, text) {
  const file = files.find((f) => f.name === name && f.text === null) ?? { name };
  Object.assign(file, { text, tokens: undefined });
  if (!files.includes(file)) files.push(file);
  showFiles();
  await countFile(file);
  save();
}

async function addFiles(list) {
  const problems = [];
  for (const file of [...list]) {
    try {
      await addText(file.name, await readFile(file));
    } catch (error) {
      problems.push(error.message);
    }
  }
  if (problems.length) show("error", problems.join(" "));
  else if (document.body.dataset.state === "error") show("idle", "");
}

async function countFile(file) {
  try {
    file.tokens = await countTokens(file.text);
  } catch (error) {
    if (error.code === "invalid_api_key") return askForKey(error);
    throw error;
  } finally {
    showFiles();
  }
}

async function countFiles() {
  for (const file of files) if (file.tokens === undefined && file.text !== null) await countFile(file);
}

function showText(file) {
  $("viewer-name").textContent = file.name;
  $("viewer-text").textContent = file.text;
  $("viewer").showModal();
}

function fileLine(file) {
  const missing = file.text === null;
  const title = missing ? "Choose this file again: it was too large to be kept" : "Show the text";
  const name = element("button", { type: "button", className: "quiet name", textContent: file.name, title });
  name.classList.toggle("missing", missing);
  name.addEventListener("click", () => missing ? $("picker").click() : showText(file));
  const words = missing ? "choose again" : file.tokens === undefined ? "counting" : number(file.tokens) + " tokens";
  const remove = element("button", { type: "button", className: "quiet remove", textContent: "\u2715" });
  remove.setAttribute("aria-label", "Remove " + file.name);
  remove.disabled = busy();
  remove.addEventListener("click", () => {
    files = files.filter((f) => f !== file);
    showFiles();
    save();
    $("choose").focus();
  });
  return element("li", {}, name, element("span", { className: "tokens", textContent: words }), remove);
}

// Files and turns of the conversation, about: the chat template adds some tokens a turn.
function tokensSoFar() {
  const ofFiles = files.reduce((sum, file) => sum + (file.tokens ?? 0), 0);
  const ofTurns = turns.reduce((sum, turn) => sum + turn.question.length / 4 + (turn.answerTokens ?? 0) + 12, 0);
  return Math.round(ofFiles + ofTurns + $("question").value.length / 4 + 40);
}

function showRoom() {
  const room = $("room"), context = server.model?.meta.n_ctx;
  const used = tokensSoFar(), spare = context - used - settings().tokens;
  room.hidden = !context || !(files.length || turns.length);
  room.classList.toggle("over", spare < 0);
  if (room.hidden) return;
  const share = `About ${number(used)} of ${number(context)} tokens`;
  room.textContent = spare >= 0 ? `${share}, and ${number(settings().tokens)} for the answer.`
    : `${share}: too long by about ${number(-spare)} with an answer of ${number(settings().tokens)}. ` +
      (used < context ? "Allow a shorter answer in the settings." : "Remove a file, or begin a new conversation.");
}

function showFiles() {
  $("files").replaceChildren(...files.map(fileLine));
  showRoom();
  showIdeas();
}
