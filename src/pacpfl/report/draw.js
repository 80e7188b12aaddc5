// Small drawings from packed numbers. Every text is set as text, so no name can become markup.

const SVG = document.getElementById("pen").namespaceURI;
const ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const CODE = Object.fromEntries([...ALPHABET].map((letter, place) => [letter, place]));
const MISSING = 64 * 64 - 1;

// Two letters are one number between low and high; the last code stands for what is not finite.
function unpack(text, low, high) {
  const values = [];
  for (let place = 0; place < text.length; place += 2) {
    const code = 64 * CODE[text[place]] + CODE[text[place + 1]];
    values.push(code === MISSING ? NaN : low + ((high - low) * code) / (MISSING - 1));
  }
  return values;
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const html = (tag, attributes = {}, ...children) =>
  filled(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  filled(document.createElementNS(SVG, tag), attributes, children);

const percent = (share) => `${Math.round(100 * share)}%`;

// Round numbers that divide an axis into about `count` parts.
function ticks(low, high, count) {
  const raw = (high - low) / count || 1;
  const unit = 10 ** Math.floor(Math.log10(raw));
  const step = unit * [1, 2, 5, 10].find((times) => times * unit >= raw);
  const digits = Math.max(0, -Math.floor(Math.log10(step)));
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + 1e-9 * step; n += 1) {
    const text = Math.abs(n * step) < 1e5 ? (n * step).toFixed(digits) : (n * step).toPrecision(3);
    found.push([n * step, text.replace("-", "\u2212")]);
  }
  return found;
}

// Axes with a grid. `to` turns a pair of values into a place.
function axes({ width, height, x, y, across, up, label }) {
  const left = 46;
  const bottom = height - 38;
  const right = width - 8;
  const spread = ([low, high]) => (high > low ? [low, high] : [low - 0.5, low + 0.5]);
  const [x0, x1] = spread(x);
  const [y0, y1] = spread(y);
  const sx = (value) => left + ((value - x0) / (x1 - x0)) * (right - left);
  const sy = (value) => bottom - ((value - y0) / (y1 - y0)) * (bottom - 10);
  const drawing = svg("svg", {
    viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label,
  });
  const line = (x1, y1, x2, y2) => svg("line", { x1, y1, x2, y2, class: "grid" });
  const text = (words, x, y, anchor, more = {}) =>
    svg("text", { x, y, "text-anchor": anchor, ...more }, words);
  for (const [value, words] of ticks(x0, x1, Math.max(3, width / 90))) {
    drawing.append(line(sx(value), 10, sx(value), bottom));
    drawing.append(text(words, sx(value), bottom + 15, "middle"));
  }
  for (const [value, words] of ticks(y0, y1, Math.max(3, height / 60))) {
    drawing.append(line(left, sy(value), right, sy(value)));
    drawing.append(text(words, left - 6, sy(value) + 4, "end"));
  }
  drawing.append(text(across, (left + right) / 2, height - 4, "middle"));
  const turned = { transform: `rotate(-90 12 ${(bottom + 10) / 2})` };
  drawing.append(text(up, 12, (bottom + 10) / 2, "middle", turned));
  return { drawing, to: (a, b) => [sx(a).toFixed(1), sy(b).toFixed(1)] };
}

// A line through points, broken where one is missing; or in steps, which pretend no curve.
function path(to, xs, ys, steps) {
  let text = "";
  xs.forEach((x, place) => {
    if (!Number.isFinite(ys[place])) return;
    const move = place === 0 || !Number.isFinite(ys[place - 1]) ? "M" : "L";
    if (steps) text += `${move}${to(x - 0.5, ys[place])} L${to(x + 0.5, ys[place])} `;
    else text += `${move}${to(x, ys[place])} `;
  });
  return text;
}

function area(to, xs, lows, highs, steps) {
  const known = xs.map((x, place) => place)
    .filter((place) => Number.isFinite(lows[place]) && Number.isFinite(highs[place]));
  if (!known.length) return "";
  const pick = (values, order) => order.map((place) => values[place]);
  const back = [...known].reverse();
  const there = path(to, pick(xs, known), pick(highs, known), steps);
  let home = "";
  for (const place of back) {
    const ends = steps ? [xs[place] + 0.5, xs[place] - 0.5] : [xs[place]];
    for (const x of ends) home += `L${to(x, lows[place])} `;
  }
  return `${there}${home}Z`;
}

// One bar below the other, each with its name before and its value behind it.
function bars(entries, { width, label, most }) {
  const names = Math.min(width * 0.42, 12 + 7.2 * Math.max(...entries.map((e) => e.name.length)));
  const room = width - names - 62;
  const height = 24 * entries.length + 4;
  const drawing = svg("svg", {
    viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label,
  });
  const fits = Math.max(3, Math.floor((names - 10) / 7.2));
  entries.forEach((entry, place) => {
    const y = 24 * place + 4;
    const name = entry.name.length > fits ? `${entry.name.slice(0, fits - 1)}\u2026` : entry.name;
    const long = most > 0 && Number.isFinite(entry.value) ? (room * entry.value) / most : 0;
    drawing.append(
      svg("text", { x: names - 8, y: y + 13, "text-anchor": "end" }, name),
      svg("rect", {
        x: names, y, height: 18, width: Math.max(1, Math.min(room, long)),
        class: `fill-${entry.colour}`, "fill-opacity": 0.85,
      }),
      svg("text", { x: names + Math.max(1, Math.min(room, long)) + 6, y: y + 13 }, entry.text),
    );
  });
  return drawing;
}
