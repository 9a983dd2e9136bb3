// Elements from data. Text only ever enters as text: there is no way here to pass markup.

const SVG = "http://www.w3.org/2000/svg";
// What a reader could not see, or what would turn around what stands beside it: a name shows it as its code.
const UNSEEN = /[\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/gu;

/** An element. Attributes that are null or false are left out; `on…` are listeners; children are nodes or text. */
export function h(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** An element of SVG. */
export function svg(tag, attributes, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

const code = (character) => `\\u{${character.codePointAt(0).toString(16)}}`;

/** A text in which everything unseen is written as its code. */
export const plain = (text) => String(text).replace(UNSEEN, code);

/** A name from outside: isolated from the text around it, what is unseen shown as codes, the whole of it as a tip. */
export function named(text, attributes) {
  const parts = [];
  let from = 0;
  for (const found of text.matchAll(UNSEEN)) {
    parts.push(text.slice(from, found.index), h("span", { class: "code" }, code(found[0])));
    from = found.index + found[0].length;
  }
  return h("bdi", { class: "name", title: plain(text), ...attributes }, ...parts, text.slice(from));
}

/**
 * Make the children of `parent` be those of `items`, in order. What has the same key and the same signature stays
 * the element it was, so that focus, selection and scrolling survive; a changed one that had the focus passes it on.
 */
export function keyed(parent, items, { key, signature, make, update }) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const held = document.activeElement;
  let place = parent.firstElementChild;
  for (const item of items) {
    const name = key(item);
    const sign = signature(item);
    let element = old.get(name);
    old.delete(name);
    if (!element || element.dataset.sign !== sign) {
      const made = make(item);
      made.dataset.key = name;
      made.dataset.sign = sign;
      if (element) {
        if (element === place) place = place.nextElementSibling;
        const at = element.contains(held) ? focusable(element).indexOf(held) : -1;
        element.replaceWith(made);
        if (at >= 0) (focusable(made)[at] ?? focusable(made)[0])?.focus();
      }
      element = made;
    }
    update?.(element, item);
    if (element === place) place = place.nextElementSibling;
    else parent.insertBefore(element, place);
  }
  for (const gone of old.values()) gone.remove();
}

const focusable = (element) => [...element.querySelectorAll("a[href], button, input, select")];

/** Draw something anew; a link or button in it that has the focus passes it on to its like. */
export function keepingFocus(root, draw) {
  const held = document.activeElement;
  const at = root.contains(held) ? focusable(root).indexOf(held) : -1;
  const href = held?.getAttribute("href");
  draw();
  if (at < 0 || held.isConnected) return;
  const now = focusable(root);
  (now.find((element) => href && element.getAttribute("href") === href) ?? now[Math.min(at, now.length - 1)])?.focus();
}

/** Show exactly these nodes in an element. */
export function show(element, ...nodes) {
  element.replaceChildren(...nodes.flat().filter((node) => node !== null));
}

export const byId = (id) => document.getElementById(id);

/** A word with its mark: the shape and the word say it, the colour only repeats it. */
export function chip(word, sort, tip) {
  const mark = MARKS[sort] ?? "·";
  return h("span", { class: `chip s-${sort}`, title: tip }, h("span", { "aria-hidden": "true" }, mark), ` ${word}`);
}

const MARKS = { held: "■", throttled: "◆", degraded: "▲", probation: "◐", operator: "✚", allowed: "✔", healthy: "●", live: "○", idle: "–" };

/** A table with a head; its roles are said aloud since narrow screens lay it out as blocks. */
export function tableOf(label, heads, attributes) {
  const body = h("tbody", { role: "rowgroup" });
  const head = heads.map((text) => h("th", { role: "columnheader", scope: "col" }, text));
  const table = h(
    "table",
    { role: "table", "aria-label": label, ...attributes },
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, ...head)),
    body,
  );
  return { table, body };
}

/** One row; `label` names the cell where there is no head above it. */
export function rowOf(cells, attributes) {
  const made = cells.map(([label, content, kind]) =>
    h("td", { role: "cell", "data-label": label, class: kind }, ...[content].flat()),
  );
  return h("tr", { role: "row", ...attributes }, ...made);
}
