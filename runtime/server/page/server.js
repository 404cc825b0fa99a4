// What the page asks of its server, and what errors mean.
const number = (value) => Math.round(value).toLocaleString("en");
const server = { key: sessionStorage.getItem("headrace-key") ?? "", model: null };

const contextTokens = () => number(server.model.meta.n_ctx);

class Refused extends Error {
  constructor(message, code) {
    super(message);
    this.code = code;
  }
}

// The page's words for an error of the server. Its own words follow where they say more.
function wordsFor(status, error, retryAfter) {
  const message = error.message ?? "";
  const soon = retryAfter ? ` Try again in ${retryAfter} s.` : " Try again soon.";
  switch (error.code) {
    case "invalid_api_key":
      return server.key ? "The server does not accept this key." : "This server asks for a key.";
    case "context_length_exceeded":
      return `Files and conversation are too long: with the answer, this model takes ${contextTokens()} tokens. ` +
        "Remove a file, allow a shorter answer, or begin a new conversation.";
    case "does_not_fit":
      return `The server has too little memory for this text: ${message}`;
    case "body_too_long":
      return "The files are larger than this server accepts. Remove one, or raise --max-body of the server.";
    case "queue_full": return "Too many requests wait on this server." + soon;
    case "queue_timeout": return "The server was busy for too long, so it dropped this question." + soon;
    case "no_memory": case "out_of_memory": case "server_busy":
      return "The server has no room for more requests now." + soon;
    case "server_stops": return "The server is shutting down.";
    case "forbidden_host": case "forbidden_origin":
      return "The server answers its own computer only. Open this page at localhost, or start the server with a key.";
    default:
      return "The server could not do this: " + (message || `HTTP status ${status}`);
  }
}

async function request(path, options = {}) {
  const headers = options.body ? { "Content-Type": "application/json" } : {};
  if (server.key) headers.Authorization = "Bearer " + server.key;
  let response;
  try {
    response = await fetch(path, { headers, ...options, method: options.body ? "POST" : "GET" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The server does not answer. Is headrace serve still running?", "unreachable");
  }
  if (response.ok) return response;
  let error = {};
  try { error = (await response.json()).error ?? {}; } catch { /* no JSON: the status says it */ }
  throw new Refused(wordsFor(response.status, error, response.headers.get("Retry-After")), error.code);
}

async function readModel() {
  server.model = (await (await request("v1/models")).json()).data[0];
  return server.model;
}

async function countTokens(text) {
  return (await (await request("tokenize", { body: JSON.stringify({ content: text }) })).json()).tokens.length;
}

// The text of a file that is no plain text, as the server's converters make it.
async function convertFile(name, bytes) {
  const url = await new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(new Blob([bytes]));
  });
  const response = await request("document", { body: JSON.stringify({ filename: name, file_data: url }) });
  return (await response.json()).text;
}

// Requests that wait, or 0 if the server does not say.
async function waitingRequests() {
  try {
    return Number(/^headrace_requests_waiting (\d+)$/m.exec(await (await request("metrics")).text())?.[1] ?? 0);
  } catch {
    return 0;
  }
}

// The JSON of each server-sent event. A stream that ends before its last event is an error.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  const broken = () => new Refused("The connection broke, so the answer is incomplete.", "broken");
  for (let rest = "";;) {
    const { done, value } = await reader.read().catch((error) => {
      throw error.name === "AbortError" ? error : broken();
    });
    if (done) throw broken();
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (part === "data: [DONE]") return;
      const event = JSON.parse(part.slice("data: ".length));
      if (event.error) throw new Refused(wordsFor(0, event.error), event.error.code);
      yield event;
    }
  }
}

async function* answerEvents(messages, settings, signal) {
  const body = JSON.stringify({
    model: "headrace", messages, stream: true, stream_options: { include_usage: true }, return_progress: true,
    max_tokens: settings.tokens, temperature: settings.temperature });
  yield* events((await request("v1/chat/completions", { body, signal })).body);
}
