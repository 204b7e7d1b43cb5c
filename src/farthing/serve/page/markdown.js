// The little Markdown that models write, as elements: code, headings, lists, quotes, bold, italics.
// The text is a stranger's. All of it becomes text nodes in elements made here; links stay text.

import { button, make } from "./dom.js";

const FENCE = /^\s*(`{3,}|~{3,})\s*([\w+#.-]{0,30})\s*$/;
const HEADING = /^(#{1,6})\s+(\S.*)$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(\S.*)$/;
const QUOTE = /^\s{0,3}>\s?(.*)$/;
const RULE = /^\s{0,3}(?:-{3,}|\*{3,}|_{3,})\s*$/;
const MOST_SPAN = 2000; // characters that a pair of marks may enclose
const MOST_NESTED = 6;

/** Shows a growing text in an element: what is drawn already and has not changed is left alone. */
export class Rendering {
  constructor(container) {
    this.container = container;
    this.shown = [];
  }

  show(text) {
    const blocks = blocksOf(text);
    const sources = blocks.map((block) => JSON.stringify(block));
    let same = 0;
    while (same < sources.length && sources[same] === this.shown[same]) same += 1;
    while (this.container.childElementCount > same) this.container.lastElementChild.remove();
    this.container.append(...blocks.slice(same).map(drawBlock));
    this.shown = sources;
  }
}

/** The blocks of a text, as plain data. */
export function blocksOf(text) {
  const lines = text.replaceAll("\r\n", "\n").split("\n");
  const blocks = [];
  for (let at = 0; at < lines.length; ) {
    const line = lines[at];
    const fence = FENCE.exec(line);
    if (fence) {
      const end = closingFence(lines, at + 1, fence[1]);
      blocks.push({ kind: "code", language: fence[2], text: lines.slice(at + 1, end).join("\n") });
      at = end + 1;
      continue;
    }
    at += 1;
    const heading = HEADING.exec(line);
    const item = RULE.test(line) ? null : ITEM.exec(line);
    const quote = QUOTE.exec(line);
    const last = blocks.at(-1);
    const open = last && !last.closed ? last : null;
    if (!line.trim()) {
      if (open?.kind === "list") open.gap = true;
      else if (open) open.closed = true;
    } else if (RULE.test(line)) {
      blocks.push({ kind: "rule", closed: true });
    } else if (heading) {
      blocks.push({ kind: "heading", level: heading[1].length, text: heading[2], closed: true });
    } else if (item) {
      const entry = { indent: item[1].length, number: parseInt(item[2], 10), text: item[3] };
      if (open?.kind === "list" && sameList(open, entry)) open.items.push(entry);
      else blocks.push({ kind: "list", items: [entry] });
    } else if (quote) {
      if (open?.kind === "quote") open.text += `\n${quote[1]}`;
      else blocks.push({ kind: "quote", text: quote[1] });
    } else if (open?.kind === "list" && (!open.gap || /^\s{2,}/.test(line))) {
      open.items.at(-1).text += `\n${line.trim()}`;
    } else if (open?.kind === "paragraph") {
      open.text += `\n${line}`;
    } else {
      blocks.push({ kind: "paragraph", text: line });
    }
  }
  return blocks;
}

function closingFence(lines, from, mark) {
  for (let at = from; at < lines.length; at += 1) {
    const line = lines[at].trim();
    if (line.length >= mark.length && line === mark[0].repeat(line.length)) return at;
  }
  return lines.length; // it is still being written
}

/** Numbers and bullets side by side are two lists. */
function sameList(list, entry) {
  const first = list.items[0];
  return entry.indent > first.indent || Number.isNaN(entry.number) === Number.isNaN(first.number);
}

function drawBlock(block) {
  switch (block.kind) {
    case "code":
      return drawCode(block);
    case "heading":
      return make(`h${Math.min(6, block.level + 2)}`, {}, ...inline(block.text));
    case "list":
      return drawList(block.items);
    case "quote":
      return make("blockquote", {}, ...inline(block.text));
    case "rule":
      return make("hr");
    default:
      return make("p", {}, ...inline(block.text));
  }
}

function drawCode(block) {
  const copy = button("Copy", () => copyText(block.text, copy), { class: "quiet" });
  copy.setAttribute("aria-label", "Copy this code");
  const head = make("div", { class: "code-head" }, make("span", {}, block.language || "code"), copy);
  const code = make("code", {}, block.text);
  const label = block.language ? `Code, ${block.language}` : "Code";
  const body = make("pre", { tabIndex: 0, role: "region", "aria-label": label }, code);
  return make("div", { class: "code" }, head, body);
}

function drawList(items) {
  const root = listFor(items[0]);
  const open = [{ list: root, indent: items[0].indent }];
  for (const item of items) {
    while (open.length > 1 && item.indent < open.at(-1).indent) open.pop();
    const inner = open.at(-1);
    const parent = inner.list.lastElementChild;
    if (parent && item.indent >= inner.indent + 2 && open.length < MOST_NESTED) {
      const list = listFor(item);
      parent.append(list);
      open.push({ list, indent: item.indent });
    }
    open.at(-1).list.append(make("li", {}, ...inline(item.text)));
  }
  return root;
}

function listFor(item) {
  const ordered = !Number.isNaN(item.number);
  return make(ordered ? "ol" : "ul", ordered && item.number !== 1 ? { start: item.number } : {});
}

/** Text with its marks of bold, italics and code, as nodes and strings. */
function inline(text, depth = 0) {
  const nodes = [];
  const searched = new Map();
  let plain = "";
  const add = (node) => {
    if (plain) nodes.push(plain);
    plain = "";
    nodes.push(node);
  };
  for (let at = 0; at < text.length; ) {
    const found = depth < MOST_NESTED ? spanAt(text, at, searched) : null;
    if (found === null) {
      const run = runAt(text, at) || 1;
      plain += text.slice(at, at + run);
      at += run;
      continue;
    }
    const inside = found.tag === "code" ? [found.text] : inline(found.text, depth + 1);
    add(make(found.tag, {}, ...inside));
    at = found.end;
  }
  if (plain) nodes.push(plain);
  return nodes;
}

/** How many of the same mark stand at a place. */
function runAt(text, at) {
  const mark = text[at];
  if (mark !== "`" && mark !== "*") return 0;
  let end = at + 1;
  while (text[end] === mark) end += 1;
  return end - at;
}

/** The span that begins at a place; null where none does. */
function spanAt(text, at, searched) {
  const run = runAt(text, at);
  if (run === 0) return null;
  const from = at + run;
  const code = text[at] === "`";
  if (!code && (run > 2 || from >= text.length || /\s/.test(text[from]))) return null;
  const end = closingRun(text, from, text[at], run, searched);
  if (end < 0) return null;
  const tag = code ? "code" : run === 2 ? "strong" : "em";
  return { tag, text: text.slice(from, end), end: end + run };
}

/**
 * Where the marks are that end a span; -1 where there are none near enough. `searched` remembers up
 * to where each kind was looked for in vain, so that no part of a text is gone through twice.
 */
function closingRun(text, from, mark, run, searched) {
  const kind = mark + run;
  const limit = Math.min(text.length, from + MOST_SPAN);
  let at = text.indexOf(mark, Math.max(from, searched.get(kind) ?? 0));
  while (at >= 0 && at < limit) {
    const here = runAt(text, at);
    if (here === run && (mark === "`" || !/\s/.test(text[at - 1]))) return at;
    at = text.indexOf(mark, at + here);
  }
  searched.set(kind, at < 0 ? text.length : at);
  return -1;
}

/** Copies, and says so on the button. Without https there is no clipboard but the old one. */
export async function copyText(text, from) {
  let copied = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = make("textarea", { value: text, class: "hidden", "aria-hidden": "true" });
    from.after(field);
    field.select();
    copied = document.execCommand("copy");
    field.remove();
    from.focus();
  }
  from.textContent = copied ? "Copied" : "Not copied";
  setTimeout(() => (from.textContent = "Copy"), 1500);
}
