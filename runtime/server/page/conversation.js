// Questions and answers in turn: {question, answer, thoughts, cost, answerTokens}. A request has all turns before it:
// the model sees its own answers, and the server computes only what is new.
let turns = [];

// Each file stands before the question that it went with. Several have their names before them.
function messagesFor(question) {
  const several = files.length > 1;
  const withFiles = (text, turn) => [
    ...files.filter((file) => (file.turn ?? turns.length) === turn)
            .map((file) => several ? `File: ${file.name}\n\n${file.text}` : file.text), text].join("\n\n");
  const messages = turns.flatMap((turn, i) => [{ role: "user", content: withFiles(turn.question, i) },
                                               { role: "assistant", content: turn.answer }]);
  return [...messages, { role: "user", content: withFiles(question, turns.length) }];
}

function costOf(timings, usage, cut) {
  const parts = [`${number(usage.prompt_tokens)} tokens read` +
                 (timings.cache_n ? `, ${number(timings.cache_n)} of them kept from before` : ""),
                 `first word after ${(timings.prompt_ms / 1000).toFixed(1)} s`,
                 `${number(timings.predicted_n)} tokens written, ${timings.predicted_per_second.toFixed(1)} a second`];
  if (timings.tokens_per_refresh) parts.push(`${timings.tokens_per_refresh} tokens a refresh`);
  if (cut) parts.push("cut here: allow a longer answer in the settings");
  return parts.join(" \u00b7 ");
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);  // browsers allow it over https and on localhost
  } catch {
    const area = element("textarea", { value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

function download(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: "text/markdown" }));
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

const conversationText = () => turns.map((turn) => `## ${turn.question}\n\n${turn.answer}\n`).join("\n");

function actionsOf(turn) {
  const button = (label, action) => {
    const made = element("button", { type: "button", className: "quiet", textContent: label });
    made.addEventListener("click", () => action(made));
    return made;
  };
  const copy = button("Copy", async (made) => {
    await copyText(turn.answer);
    made.textContent = "Copied";
    setTimeout(() => { made.textContent = "Copy"; }, 1500);
  });
  return element("div", { className: "actions" }, element("span", { className: "cost", textContent: turn.cost ?? "" }),
                 copy, button("Download", () => download("answer.md", turn.answer)));
}

// The article of a turn; `update` shows what the turn has by now.
function addTurn(turn, index) {
  const names = files.filter((file) => (file.turn ?? turns.length) === index).map((file) => file.name).join(", ");
  const question = element("div", { className: "question", textContent: turn.question });
  if (names) question.prepend(element("small", { textContent: names }));
  const thoughts = element("details", { className: "thoughts", hidden: true }, element("summary", {}, "Thoughts"),
                           element("div"));
  const answer = element("div", { className: "answer" }), article = element("article", {}, question, thoughts, answer);
  $("turns").append(article);
  turn.article = article;
  turn.update = () => {
    const follow = atEnd();
    thoughts.hidden = !turn.thoughts;
    thoughts.lastChild.textContent = turn.thoughts ?? "";
    showMarkdown(answer, turn.answer);
    if (turn.ended && !article.querySelector(".actions")) article.append(actionsOf(turn));
    if (follow) window.scrollTo(0, document.documentElement.scrollHeight);
  };
  turn.update();
}

const atEnd = () => window.innerHeight + window.scrollY > document.documentElement.scrollHeight - 80;

function showTurns() {
  $("turns").replaceChildren();
  turns.forEach(addTurn);
  showIdeas();
}

function duration(seconds) {
  const s = Math.max(1, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  return `${Math.floor(s / 3600)} h ${Math.floor(s % 3600 / 60)} min`;
}

// Prefill computes layer after layer, so its progress is even, and the time left follows from the time so far.
function progressWords({ processed, total, cache, time_ms }) {
  const rate = time_ms > 0 ? (processed - cache) / time_ms * 1000 : 0;
  const words = `Reading: ${number(processed)} of ${number(total)} tokens`;
  if (!(rate > 0) || time_ms < 300) return words;
  return `${words} \u00b7 ${number(rate)} a second \u00b7 ${duration((total - processed) / rate)} left`;
}
