// The page itself: what is shown when, keys, and what is kept over a reload.
const $ = (id) => document.getElementById(id);
const kStore = "headrace";
const kIdeas = ["Summarize the text.", "List the key points.", "Which questions does it leave open?"];
const touch = window.matchMedia("(pointer: coarse)").matches;
let running = null;   // the AbortController of the request that runs
let afterKey = null;  // what waits for a key

const settings = () => ({ tokens: Math.max(1, Math.floor(Number($("tokens").value)) || 500),
                          temperature: Number($("temperature").value) || 0 });
const busy = () => ["waiting", "prefill", "answer"].includes(document.body.dataset.state);

function show(state, text, progress) {
  const changed = document.body.dataset.state !== state;
  document.body.dataset.state = state;
  $("status").textContent = text;
  $("bar").hidden = state !== "prefill";
  if (progress !== undefined) $("bar").value = progress;
  document.title = state === "prefill" ? `${Math.round($("bar").value * 100)}% \u00b7 Headrace` : "Headrace";
  $("ask").hidden = busy();
  $("stop").hidden = !busy();
  $("new").disabled = busy();
  if (changed) showFiles();
}

function showIdeas() {
  $("ideas").hidden = busy() || !files.length || turns.length > 0;
  $("hint").hidden = files.length > 0 || turns.length > 0;
}

function askForKey(error, then = start) {
  afterKey = then;
  $("key-form").hidden = false;
  $("key").focus();
  show("error", error.message);
}

// A browser keeps a few MB. The largest files are kept without their text if there is no room for it.
function save() {
  const [to, from] = $("keep").checked ? [localStorage, sessionStorage] : [sessionStorage, localStorage];
  const kept = { turns: turns.filter((turn) => turn.ended).map(({ article, update, ...turn }) => turn),
                 files: files.map((file) => ({ ...file })), settings: settings() };
  from.removeItem(kStore);
  for (;;) {
    try {
      return to.setItem(kStore, JSON.stringify(kept));
    } catch {
      const [largest] = kept.files.filter((file) => file.text !== null).sort((a, b) => b.text.length - a.text.length);
      if (!largest) return to.removeItem(kStore);
      largest.text = null;
    }
  }
}

function restore() {
  $("keep").checked = localStorage.getItem(kStore) !== null;
  try {
    const kept = JSON.parse(localStorage.getItem(kStore) ?? sessionStorage.getItem(kStore) ?? "{}");
    turns = kept.turns ?? [];
    files = kept.files ?? [];
    for (const name of ["tokens", "temperature"]) if (kept.settings) $(name).value = kept.settings[name];
  } catch { /* of another version of the page */ }
  showTurns();
  showFiles();
}

async function watchQueue() {
  for (const mine = running; running === mine && mine;) {
    await new Promise((resolve) => setTimeout(resolve, 1000));
    if (running !== mine || document.body.dataset.state !== "waiting") return;
    const waiting = await waitingRequests();
    if (waiting && document.body.dataset.state === "waiting") {
      show("waiting", `Waiting: the server answers one question at a time, and ${number(waiting)} wait`);
    }
  }
}

function onEvent(event, turn) {
  if (event.prompt_progress) {
    const p = event.prompt_progress;
    show("prefill", progressWords(p), p.total > 0 ? p.processed / p.total : 0);
  }
  const choice = event.choices?.[0], delta = choice?.delta ?? {};
  if (delta.reasoning_content) {
    turn.thoughts = (turn.thoughts ?? "") + delta.reasoning_content;
    show("answer", "Thinking");
  }
  if (delta.content) {
    turn.answer += delta.content;
    show("answer", "Answering");
  }
  if (choice?.finish_reason === "length") turn.cut = true;
  if (event.usage) {
    turn.answerTokens = event.usage.completion_tokens;
    if (event.timings) turn.cost = costOf(event.timings, event.usage, turn.cut);
  }
}

async function readAnswer(messages, turn) {
  let due = false;
  const update = () => { due = false; turn.update(); };
  for await (const event of answerEvents(messages, settings(), running.signal)) {
    onEvent(event, turn);
    if (!due) setTimeout(update, 80);  // not at every token
    due = true;
  }
}

// A turn without an answer is taken back, and its question with it.
function endTurn(turn) {
  turn.ended = true;
  if (turn.answer) {
    turn.update();
    return;
  }
  turn.article.remove();
  turns.pop();
  files.forEach((file) => { if (file.turn === turns.length) delete file.turn; });
  $("question").value ||= turn.question;
  fitQuestion();
}

async function ask(question) {
  const missing = files.find((file) => file.text === null);
  if (missing) return show("error", `Choose ${missing.name} again, or remove it: it was too large to be kept.`);
  const messages = messagesFor(question), turn = { question, answer: "" };
  files.forEach((file) => { file.turn ??= turns.length; });
  addTurn(turn, turns.length);
  turns.push(turn);
  $("question").value = "";
  fitQuestion();
  running = new AbortController();
  show("waiting", "Waiting for the model");
  turn.article.scrollIntoView({ block: "end" });
  watchQueue();
  let end = ["done", ""];
  let refused = null;
  try {
    await readAnswer(messages, turn);
    if (!turn.answer) end = ["error", turn.cut ? "The model thought until the answer was cut: allow a longer answer."
                                               : "The model answered with nothing. Ask in other words."];
  } catch (error) {
    end = error.name === "AbortError" ? ["stopped", "Stopped"] : ["error", error.message];
    turn.cost = error.name === "AbortError" ? "stopped here" : "incomplete";
    if (error.code === "invalid_api_key") refused = error;
  }
  running = null;
  endTurn(turn);
  show(...end);
  save();
  if (refused) return askForKey(refused, () => ask($("question").value));
  if (!touch) $("question").focus({ preventScroll: true });  // a phone would show its keyboard over the answer
}

function startAgain() {
  turns = [];
  files.forEach((file) => delete file.turn);
  showTurns();
  show("idle", "");
  save();
  $("question").focus();
}

function fitQuestion() {
  const box = $("question");
  box.style.height = "auto";
  box.style.height = box.scrollHeight + 2 + "px";
  showRoom();
}

async function start() {
  try {
    const model = await readModel();
    $("model").textContent = `${model.id}, reads ${number(model.meta.n_ctx)} tokens`;
    if (!busy()) show("idle", "");
    await countFiles();
  } catch (error) {
    if (error.code === "invalid_api_key") return askForKey(error);
    show("error", error.message);
    if (error.code === "unreachable" || error.code === "loading") setTimeout(start, 2000);
  }
}

function listen() {
  $("form").addEventListener("submit", (event) => {
    event.preventDefault();
    const question = $("question").value.trim();
    if (question && !busy()) ask(question);
  });
  $("stop").addEventListener("click", () => running?.abort());
  $("new").addEventListener("click", startAgain);
  $("save").addEventListener("click", () => download("conversation.md", conversationText()));
  $("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    server.key = $("key").value;
    sessionStorage.setItem("headrace-key", server.key);
    $("key").value = "";
    $("key-form").hidden = true;
    const then = afterKey;
    start().then(() => { if (then !== start && $("key-form").hidden) then(); });
  });
  $("choose").addEventListener("click", () => $("picker").click());
  $("picker").addEventListener("change", async () => { await addFiles($("picker").files); $("picker").value = ""; });
  $("viewer-close").addEventListener("click", () => $("viewer").close());
  for (const name of ["tokens", "temperature", "keep"]) {
    $(name).addEventListener("change", () => { save(); showRoom(); });
  }
  for (const idea of kIdeas) {
    const button = element("button", { type: "button", className: "quiet", textContent: idea });
    button.addEventListener("click", () => ask(idea));
    $("ideas").append(button);
  }
  listenToKeys();
  listenToDrops();
  window.addEventListener("pagehide", save);
}

function listenToKeys() {
  $("question").addEventListener("input", fitQuestion);
  $("question").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || touch) return;  // on a phone Enter begins a line
    event.preventDefault();
    $("form").requestSubmit();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !$("viewer").open) running?.abort();
    if (event.key === "/" && !event.target.closest("input, textarea, dialog")) {
      event.preventDefault();
      $("question").focus();
    }
  });
}

function listenToDrops() {
  for (const name of ["dragover", "dragleave", "drop"]) {
    document.addEventListener(name, (event) => {
      event.preventDefault();
      document.body.classList.toggle("drop", name === "dragover");
      if (name === "drop" && !busy()) addFiles(event.dataTransfer.files);
    });
  }
  document.addEventListener("paste", (event) => {
    const text = event.clipboardData.getData("text/plain"), pasted = event.clipboardData.files;
    const small = text.length <= kPasteIsFile && event.target.closest("input, textarea");
    if (busy() || event.target.closest("dialog, #key-form") || (small && !pasted.length)) return;
    if (!text.trim() && !pasted.length) return;
    event.preventDefault();
    if (pasted.length) return addFiles(pasted);
    const count = files.filter((file) => file.name.startsWith("Pasted text")).length;
    addText(`Pasted text ${count + 1}`, text).catch((error) => show("error", error.message));
  });
}

listen();
restore();
start();
