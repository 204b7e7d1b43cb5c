// Elements are made here and nowhere else. Text goes in as text: no string is ever read as HTML.

/** An element with properties (data and ARIA as attributes), and children: nodes or strings. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined) continue;
    if (name.includes("-") || name === "role" || name === "for") element.setAttribute(name, value);
    else if (name === "class") element.className = value;
    else element[name] = value;
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** An element of SVG with attributes. */
export function drawn(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** The element of an id. */
export const byId = (id) => document.getElementById(id);

/** Sets a text only where it changed: a screen reader and a selection are left alone otherwise. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A button with something to do. */
export function button(label, action, properties = {}) {
  const element = make("button", { type: "button", ...properties }, label);
  element.addEventListener("click", action);
  return element;
}

/** Rows of names and values; values are strings or nodes. */
export function facts(rows) {
  const list = make("dl", { class: "facts" });
  for (const [name, value] of rows) {
    list.append(make("div", {}, make("dt", {}, name), make("dd", {}, value)));
  }
  return list;
}
