// Markdown as DOM nodes. What a model writes becomes text and elements made here, never HTML; nothing is fetched.
const kMaxDepth = 12;  // of quotes, lists and emphasis; what is deeper is shown as it is written

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// Only addresses that a click may safely open.
function safeAddress(text) {
  try {
    return /^(https?|mailto):$/.test(new URL(text).protocol) ? text : null;
  } catch {
    return null;
  }
}

function link(address, ...children) {
  return element("a", { href: address, target: "_blank", rel: "noopener noreferrer" }, ...children);
}

// The end of the run of `text[at]` that begins at `at`.
function runEnd(text, at) {
  let end = at;
  while (text[end] === text[at]) ++end;
  return end;
}

// Each of these returns [node, end] for what begins at `at`, or null. `open` has the marks that nothing closes from
// here on: they are not searched again, so a text without sense costs no more than one with.
function codeAt(text, at, open) {
  const begin = runEnd(text, at), ticks = text.slice(at, begin);
  for (let close = open.has(ticks) ? -1 : text.indexOf("`", begin); close !== -1; close = text.indexOf("`", close)) {
    const end = runEnd(text, close);
    if (end - close === ticks.length) {
      const inside = text.slice(begin, close).replace(/\n/g, " ");
      const padded = inside.startsWith(" ") && inside.endsWith(" ") && inside.trim();
      return [element("code", {}, padded ? inside.slice(1, -1) : inside), end];
    }
    close = end;
  }
  open.add(ticks);
  return [document.createTextNode(ticks), begin];
}

// "(ADDRESS "title")", where ADDRESS may have one pair of brackets.
const kTarget = /^\(\s*<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)?)>?(?:\s+["'][^"'\n]*["'])?\s*\)/;

function linkAt(text, at, depth) {
  const begin = text[at] === "!" ? at + 1 : at;  // a picture is a link to it
  let close = begin, nested = 0;
  for (; close < Math.min(text.length, begin + 1000); ++close) {
    if (text[close] === "\\") { ++close; continue; }
    if (text[close] === "[") ++nested;
    if (text[close] === "]" && --nested === 0) break;
  }
  if (text[close] !== "]" || text[close + 1] !== "(") return null;
  const match = kTarget.exec(text.slice(close + 1, close + 2100));
  if (!match) return null;
  const words = inlineNodes(text.slice(begin + 1, close), depth + 1), address = safeAddress(match[1]);
  return [address ? link(address, ...words) : element("span", {}, ...words), close + 1 + match[0].length];
}

function addressAt(text, at) {
  if (text[at] === "<") {
    const match = /^<([a-z]+:[^\s<>]{1,2000})>/i.exec(text.slice(at, at + 2010));
    const address = match && safeAddress(match[1]);
    return address ? [link(address, address), at + match[0].length] : null;
  }
  if (/\w/.test(text[at - 1] ?? "")) return null;
  const match = /^https?:\/\/[^\s<>"'`]{1,2000}/.exec(text.slice(at, at + 2010));
  const found = match?.[0].replace(/[.,;:!?*_)\]]+$/, ""), address = found && safeAddress(found);
  return address ? [link(address, address), at + found.length] : null;
}

function emphasisAt(text, at, open, depth) {
  const sign = text[at], length = Math.min(runEnd(text, at) - at, 2), mark = sign.repeat(length);
  if ((sign === "~" && length === 1) || open.has(mark)) return null;
  const wordBefore = /\w/.test(text[at - 1] ?? ""), begin = at + length;
  if (/\s/.test(text[begin] ?? " ") || (sign === "_" && wordBefore)) return null;
  for (let close = text.indexOf(mark, begin); close !== -1; close = text.indexOf(mark, close)) {
    const end = runEnd(text, close);
    const single = (end - close) % 2 === 1, wordAfter = /\w/.test(text[end] ?? "");
    const closes = (length === 2 || single) && !/[\s\\]/.test(text[close - 1]) && !(sign === "_" && wordAfter);
    if (closes && end - length > begin) {
      const name = sign === "~" ? "del" : length === 2 ? "strong" : "em";
      return [element(name, {}, ...inlineNodes(text.slice(begin, end - length), depth + 1)), end];
    }
    close = end;
  }
  open.add(mark);
  return null;
}

function nodeAt(text, at, open, depth) {
  switch (text[at]) {
    case "\\":
      if (text[at + 1] === "\n") return [element("br"), at + 2];
      return /[!-/:-@[-`{-~]/.test(text[at + 1] ?? "") ? [document.createTextNode(text[at + 1]), at + 2] : null;
    case "`": return codeAt(text, at, open);
    case "[": return linkAt(text, at, depth);
    case "!": return text[at + 1] === "[" ? linkAt(text, at, depth) : null;
    case "*": case "_": case "~": return emphasisAt(text, at, open, depth);
    case "<": case "h": return addressAt(text, at);
    case " ": return /^ {2,}\n/.test(text.slice(at, at + 80)) ? [element("br"), text.indexOf("\n", at) + 1] : null;
    default: return null;
  }
}

function inlineNodes(text, depth = 0) {
  if (depth > kMaxDepth) return [text];
  const nodes = [], open = new Set();
  let plain = "";
  for (let at = 0; at < text.length;) {
    const found = nodeAt(text, at, open, depth);
    if (!found) {
      const end = /[*_~]/.test(text[at]) ? runEnd(text, at) : at + 1;  // a run that opens nothing is text
      plain += text.slice(at, end);
      at = end;
      continue;
    }
    if (plain) nodes.push(plain);
    plain = "";
    nodes.push(found[0]);
    at = found[1];
  }
  return plain ? [...nodes, plain] : nodes;
}

const kFence = /^ {0,3}(`{3,}|~{3,})([^`]*)$/, kRule = /^ {0,3}(?:(?:- *){3,}|(?:\* *){3,}|(?:_ *){3,})$/;
const kHeading = /^ {0,3}(#{1,6})(?:\s+(.*))?$/, kQuote = /^ {0,3}> ?/;
const kItem = /^( {0,3})([-*+]|\d{1,9}[.)])(\s+|$)/;
const kTableRule = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;

const blank = (line) => line.trim() === "";
const tableAt = (lines, at) =>
  lines[at].includes("|") && (lines[at + 1] ?? "").includes("|") && kTableRule.test(lines[at + 1]);
const indentOf = (line) => line.length - line.trimStart().length;

function begins(lines, at) {
  return [kFence, kRule, kHeading, kQuote, kItem].some((rule) => rule.test(lines[at])) || tableAt(lines, at);
}

// Where the block that begins at the line `at` ends.
function blockEnd(lines, at) {
  const fence = kFence.exec(lines[at]);
  let end = at + 1;
  if (fence) {
    const closes = (line) => line.trim().startsWith(fence[1]) && blank(line.trim().replaceAll(fence[1][0], ""));
    while (end < lines.length && !closes(lines[end])) ++end;
    return Math.min(end + 1, lines.length);
  }
  if (kRule.test(lines[at]) || kHeading.test(lines[at])) return end;
  if (kQuote.test(lines[at])) {
    while (end < lines.length && kQuote.test(lines[end])) ++end;
    return end;
  }
  const item = kItem.exec(lines[at]);
  if (item) {
    const ordered = /\d/.test(item[2]), margin = item[1].length + 2;
    for (; end < lines.length; ++end) {
      if (blank(lines[end])) {
        if (blank(lines[end + 1] ?? "")) break;
        continue;
      }
      const next = kItem.exec(lines[end]);
      const sibling = next && /\d/.test(next[2]) === ordered && !kRule.test(lines[end]);
      const goesOn = sibling || indentOf(lines[end]) >= margin;
      if (!goesOn && (blank(lines[end - 1]) || begins(lines, end))) break;
    }
    return end;
  }
  if (tableAt(lines, at)) {
    while (end < lines.length && lines[end].includes("|")) ++end;
    return end;
  }
  while (end < lines.length && !blank(lines[end]) && !begins(lines, end)) ++end;
  return end;
}

// The blocks of a text: arrays of lines.
function blocksOf(lines) {
  const blocks = [];
  for (let at = 0; at < lines.length;) {
    if (blank(lines[at])) { ++at; continue; }
    const end = blockEnd(lines, at);
    blocks.push(lines.slice(at, end));
    at = end;
  }
  return blocks;
}

function listOf(lines, depth) {
  const first = kItem.exec(lines[0]), ordered = /\d/.test(first[2]);
  const list = element(ordered ? "ol" : "ul", ordered ? { start: parseInt(first[2], 10) } : {});
  const items = [], loose = lines.some((line, i) => blank(line) && i + 1 < lines.length);
  let width = 0;
  for (const line of lines) {
    const item = kItem.exec(line);
    if (item && (!items.length || item[1].length < first[1].length + 2)) {
      width = item[1].length + item[2].length + (item[3].length > 4 ? 1 : item[3].length || 1);
      items.push([line.slice(width)]);
    } else {
      items.at(-1).push(line.slice(Math.min(indentOf(line), width)));
    }
  }
  for (const item of items) {
    const made = element("li", {}, ...blocksOf(item).map((block) => blockNode(block, depth + 1)));
    if (!loose) for (const p of made.querySelectorAll(":scope > p")) p.replaceWith(...p.childNodes);
    list.append(made);
  }
  return list;
}

function tableOf(lines) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/)
    .map((cell) => cell.trim().replaceAll("\\|", "|"));
  const row = (line, name) => element("tr", {}, ...cells(line).map((cell) => element(name, {}, ...inlineNodes(cell))));
  return element("table", {}, element("thead", {}, row(lines[0], "th")),
                 element("tbody", {}, ...lines.slice(2).map((line) => row(line, "td"))));
}

function blockNode(lines, depth = 0) {
  const fence = kFence.exec(lines[0]);
  if (fence) {
    const closed = lines.length > 1 && lines.at(-1).trim().startsWith(fence[1]);
    const code = lines.slice(1, closed ? -1 : undefined).join("\n");
    return element("pre", { tabIndex: 0 }, element("code", {}, code));
  }
  if (kRule.test(lines[0])) return element("hr");
  const heading = kHeading.exec(lines[0]);
  if (heading) {
    const words = (heading[2] ?? "").replace(/\s+#+\s*$/, "");
    return element("h" + heading[1].length, {}, ...inlineNodes(words));
  }
  if (depth < kMaxDepth && kQuote.test(lines[0])) {
    const inside = lines.map((line) => line.replace(kQuote, ""));
    return element("blockquote", {}, ...blocksOf(inside).map((block) => blockNode(block, depth + 1)));
  }
  if (depth < kMaxDepth && kItem.test(lines[0])) return listOf(lines, depth);
  if (tableAt(lines, 0)) return tableOf(lines);
  return element("p", {}, ...inlineNodes(lines.map((line) => line.trimStart()).join("\n").trimEnd()));
}

// Shows `text` in `place`. Blocks that have not changed since the last call keep their nodes, and a selection in them.
function showMarkdown(place, text) {
  const blocks = blocksOf(text.replace(/\r\n?/g, "\n").replace(/\t/g, "    ").split("\n"));
  const shown = place.shownBlocks ?? [];
  blocks.forEach((lines, i) => {
    const source = lines.join("\n");
    if (shown[i] === source) return;
    shown[i] = source;
    const node = blockNode(lines);
    if (place.children[i]) place.children[i].replaceWith(node); else place.append(node);
  });
  while (place.children.length > blocks.length) place.lastChild.remove();
  shown.length = blocks.length;
  place.shownBlocks = shown;
}
