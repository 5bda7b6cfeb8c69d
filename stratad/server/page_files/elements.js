"use strict";
// Text from the daemon and from the model enters the page as text nodes only: nothing here makes markup from text.

const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);

/** An element of a class, with children that are elements or text. */
function make(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  for (const child of children) element.append(child instanceof Node ? child : String(child));
  return element;
}

function makeSvg(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const drawn = new Map();

/** Draws a part of the page anew, but only when what it shows has changed: focus and selections stay. */
function draw(id, values, render) {
  const key = JSON.stringify(values);
  if (drawn.get(id) === key) return;
  drawn.set(id, key);
  const place = byId(id);
  // What a person has unfolded stays so.
  const open = [...place.querySelectorAll("details")].map((one) => one.open);
  place.replaceChildren(...render().filter(Boolean));
  place.querySelectorAll("details").forEach((one, index) => { one.open = open[index] || false; });
}

const PLAIN_NUMBER = new Intl.NumberFormat("en");
const number = (value) => PLAIN_NUMBER.format(value);
const percent = (ratio) => ratio === null ? "unknown" : `${shortened(100 * ratio)} %`;

/** 99.97 must not read as 100: below the whole it is rounded down. */
function shortened(value) {
  return value === 100 ? "100" : (Math.floor(value * 10) / 10).toFixed(1);
}

function bytes(size) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let power = 0;
  while (size >= 1024 && power < units.length - 1) { size /= 1024; power += 1; }
  return `${size.toFixed(power === 0 || size >= 100 ? 0 : 1)} ${units[power]}`;
}

function pace(tokensPerSecond) {
  if (tokensPerSecond === null || tokensPerSecond === undefined) return "–";
  return tokensPerSecond >= 100 ? tokensPerSecond.toFixed(0) : tokensPerSecond.toFixed(1);
}

function age(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${Math.round(seconds / 3600)} h`;
}

const plural = (count, one, many = one + "s") => `${number(count)} ${count === 1 ? one : many}`;

/** Numbers as the kernel lists them: 0-3,8. */
function ranges(ids) {
  const parts = [];
  for (const id of [...ids].sort((a, b) => a - b)) {
    const last = parts[parts.length - 1];
    if (last && last[1] === id - 1) last[1] = id; else parts.push([id, id]);
  }
  return parts.map(([first, last]) => first === last ? String(first) : `${first}-${last}`).join(",");
}

const shade = (slice) => `var(--slice-${slice % 8})`;

function swatch(slice) {
  const box = make("span", "swatch");
  box.style.background = shade(slice);
  box.setAttribute("aria-hidden", "true");
  return box;
}

/** A bar of parts [share of the whole, class, shade]; the text beside it says the same. */
function bar(parts) {
  const box = make("div", "bar");
  box.setAttribute("aria-hidden", "true");
  for (const [share, className, colour] of parts) {
    const part = make("i", className);
    part.style.width = `${100 * Math.min(1, Math.max(0, share))}%`;
    if (colour) part.style.setProperty("--shade", colour);
    box.append(part);
  }
  return box;
}
