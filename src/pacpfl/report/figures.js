// The figures of one client, and the panel they make together.

const main = report.methods[report.main];
const alone = report.alone === null ? null : report.methods[report.alone];
const className = (place) => report.classes[place] ?? String(place);
// How wide a drawing may be: what the screen has, or half of a sheet and a whole one.
let paper = false;
const room = (most) =>
  paper ? Math.min(most > 400 ? 640 : 235, most) : Math.max(240, Math.min(most, root.clientWidth - 56));
const marks = (to, xs, ys, size, style) =>
  xs.map((x, place) => {
    const [cx, cy] = to(x, ys[place]);
    return Number.isFinite(ys[place]) ? svg("circle", { cx, cy, r: size, class: style }) : "";
  });

function figure(title, drawing, caption, wide) {
  return html(
    "figure", { class: wide ? "wide-figure" : "" },
    html("h4", {}, title), drawing, html("figcaption", {}, caption),
  );
}

// Against its one feature, or in the order of the data where there are several.
function bandFigures(client) {
  const bands = client.bands;
  const read = (text) => unpack(text, ...bands.range);
  const y = read(bands.y);
  const mean = read(bands.mean);
  const quantiles = bands.quantiles.map(read);
  const steps = !bands.x;
  const xs = steps ? y.map((value, place) => place + 1) : unpack(bands.x, ...bands.across);
  const inside = `${bands.inside} of the ${y.length} test points shown lie inside the 90% band`;
  const { drawing, to } = axes({
    width: room(820), height: paper ? 205 : steps ? 230 : 300, y: bands.range,
    x: steps ? [0.5, y.length + 0.5] : bands.across,
    across: steps ? "test sample, in the order of the data" : report.feature, up: report.target,
    label: `Prediction bands of ${client.name}: ${inside}.`,
  });
  const colour = main.colour;
  const [low90, low50, high50, high90] = quantiles;
  drawing.append(
    svg("path", { d: area(to, xs, low90, high90, steps), class: `fill-${colour}`, opacity: 0.22 }),
    svg("path", { d: area(to, xs, low50, high50, steps), class: `fill-${colour}`, opacity: 0.32 }),
    svg("path", { d: path(to, xs, mean, steps), class: `line-${colour}` }),
  );
  if (bands.alone) {
    drawing.append(svg("path", {
      d: path(to, xs, read(bands.alone), steps), class: `line-${alone.colour} thin`,
      "stroke-dasharray": alone.dash,
    }));
  }
  drawing.append(...marks(to, xs, y, 2.4, "ring"));
  if (bands.train_x) {
    const learned = unpack(bands.train_x, ...bands.across);
    drawing.append(...marks(to, learned, read(bands.train_y), 3.4, "dot"));
  }
  const kept = y.length < bands.of ? ` ${y.length} of ${bands.of} test samples are shown.` : "";
  const found = [figure(
    "Predictions", drawing,
    `Line: the mean of ${main.title}; shades: its 50% and 90% bands; rings: test samples` +
      (bands.train_x ? "; dots: what it learned from" : "") +
      (bands.alone ? `; thin line: ${alone.title}, alone` : "") + `. ${inside}.${kept}`,
    true,
  )];
  if (bands.spread_y) found.push(againstTruth(client, read));
  return found;
}

function againstTruth(client, read) {
  const size = room(300);
  const { range } = client.bands;
  const truth = read(client.bands.spread_y);
  const { drawing, to } = axes({
    width: size, height: size, x: range, y: range, across: "true", up: "predicted",
    label: `Predicted against true values of ${client.name}: ${truth.length} test samples.`,
  });
  drawing.append(
    svg("path", { d: `M${to(range[0], range[0])} L${to(range[1], range[1])}`, class: "perfect" }),
    ...marks(to, truth, read(client.bands.spread_mean), 2.6, `fill-${main.colour} faint`),
  );
  const spread = truth.length < client.bands.of ? ", spread evenly over all of them" : "";
  return figure(
    "Predicted against true", drawing,
    `On the diagonal the mean is right. ${truth.length} of ${client.bands.of} test samples${spread}.`,
  );
}

function calibrationFigure(client) {
  const size = room(300);
  const curves = client.calibration.map((text) => unpack(text, 0, 1));
  const levels = curves[0].map((value, place) => place / (curves[0].length - 1));
  const gap = Math.max(...curves[0].map((value, place) => Math.abs(value - levels[place])));
  const { drawing, to } = axes({
    width: size, height: size, x: [0, 1], y: [0, 1], across: "level promised",
    up: "frequency observed",
    label: `Calibration curve of ${client.name}: at most ${gap.toFixed(2)} from the diagonal.`,
  });
  drawing.append(svg("path", { d: `M${to(0, 0)} L${to(1, 1)}`, class: "perfect" }));
  curves.forEach((curve, place) => {
    const method = place ? alone : main;
    drawing.append(svg("path", {
      d: path(to, levels, curve), class: `line-${method.colour}${place ? " thin" : ""}`,
      "stroke-dasharray": method.dash,
    }));
  });
  return figure(
    "Calibration", drawing,
    `Solid: ${main.title}${curves.length > 1 ? `; dashed: ${alone.title}` : ""}. The levels of its ` +
      `predictions hold as often as they promise, to within ${gap.toFixed(2)}.`,
  );
}

function reliabilityFigure(client) {
  const size = room(300);
  const { drawing, to } = axes({
    width: size, height: size, x: [0, 1], y: [0, 1], across: "how sure", up: "how often right",
    label: `Reliability of ${client.name}: ` + client.bins.map(
      ([count, right, sure]) => `of ${count} answers ${percent(sure)} sure ${right} are right`,
    ).join(", ") + ".",
  });
  drawing.append(svg("path", { d: `M${to(0, 0)} L${to(1, 1)}`, class: "perfect" }));
  const total = client.bins.reduce((sum, [count]) => sum + count, 0);
  for (const [count, right, sure] of client.bins) {
    const [cx, cy] = to(sure, right / count);
    const r = (3 + 14 * Math.sqrt(count / total)).toFixed(1);
    drawing.append(svg("circle", { cx, cy, r, class: `fill-${main.colour} faint` }));
  }
  return figure(
    "How sure and how often right", drawing,
    "Below the diagonal it is surer than it should be. The larger a mark, the more answers.",
  );
}

function weightFigure(title, name, weights, client, caption) {
  const entries = weights.map((weight, place) => (
    { name: `${name} ${place + 1}`, value: weight, text: percent(weight), colour: main.colour }
  ));
  const told = entries.map((entry) => `${entry.name} ${entry.text}`).join(", ");
  const label = `${title} of ${client.name}: ${told}.`;
  return figure(title, bars(entries, { width: room(300), most: 1, label }), caption);
}

function methodFigure(client) {
  const { title, goal } = report.measures[0];
  const entries = report.methods.map((method, place) => ({
    name: method.title, value: client.leads[place] === null ? NaN : client.leads[place],
    text: client.scores[place][0], colour: method.colour,
  }));
  const most = Math.max(...entries.map((entry) => entry.value).filter(Number.isFinite), 0);
  const told = entries.map((entry) => `${entry.name} ${entry.text}`).join(", ");
  const label = `${title} of ${client.name} with each method: ${told}.`;
  const drawing = bars(entries, { width: room(300), most, label });
  return figure(`${title} with each method`, drawing, `${goal[0].toUpperCase()}${goal.slice(1)}.`);
}

function classFigure(client) {
  const entries = client.classes.map(([count, right], place) => ({
    name: className(place), value: right / count, text: `${right} of ${count}`, count,
    colour: main.colour,
  })).filter((entry) => entry.count);
  const told = entries.map((entry) => `class ${entry.name} ${entry.text}`).join(", ");
  const label = `Test samples named rightly, of ${client.name}: ${told}.`;
  const drawing = bars(entries, { width: room(300), most: 1, label });
  return figure("Accuracy for each class", drawing, "How many test samples of it are named rightly.");
}

function errorFigure(client) {
  const [height, width] = report.image;
  const pictures = client.errors.map((error) => {
    const words = `a ${className(error.label)} taken for ${className(error.answer)}, ` +
      `${percent(error.sure)} sure`;
    const canvas = html("canvas", { width, height, role: "img", "aria-label": `Image of ${words}` });
    const paint = canvas.getContext("2d");
    const pixels = paint.createImageData(width, height);
    [...error.image].forEach((letter, place) => {
      const shade = 255 - Math.round((255 * CODE[letter]) / 63);
      pixels.data.set([shade, shade, shade, 255], 4 * place);
    });
    paint.putImageData(pixels, 0, 0);
    return html("li", {}, canvas, html("span", {}, words));
  });
  return figure(
    "Wrong answers", html("ul", { class: "errors" }, ...pictures),
    "The answers it was surest of among those that are wrong.",
  );
}

function scoreTable(client) {
  const head = ["Method", ...report.measures.map((measure) => measure.title)];
  const cells = (row) => row.map((value) => html("td", { class: "number" }, value));
  return html(
    "div", { class: "scroll", tabindex: 0, role: "group", "aria-label": `Measures of ${client.name}` },
    html(
      "table", {},
      html("thead", {}, html("tr", {}, ...head.map((words, place) =>
        html("th", { scope: "col", class: place ? "number" : "" }, words)))),
      html("tbody", {}, ...report.methods.map((method, place) =>
        html("tr", {}, html("th", { scope: "row" }, method.title), ...cells(client.scores[place])))),
    ),
  );
}

// The whole panel; `heading` is the element that bears the client's name.
function panelOf(client, heading) {
  heading.textContent = client.name;
  const kind = client.kind === "" ? "" : `, kind ${client.kind}`;
  const drawn = [];
  if (client.bands) drawn.push(...bandFigures(client));
  if (client.calibration) drawn.push(calibrationFigure(client));
  if (client.bins && client.bins.length) drawn.push(reliabilityFigure(client));
  drawn.push(methodFigure(client));
  if (client.weights && client.weights.length > 1) {
    drawn.push(weightFigure("Mixture weights", "particle", client.weights, client,
      "How much each particle counts in this client's own posterior."));
  }
  if (client.members) {
    drawn.push(weightFigure("Which kind it is", "component", client.members, client,
      "How surely each component of the prior explains this client's data."));
  }
  if (client.classes) drawn.push(classFigure(client));
  if (client.errors && client.errors.length) drawn.push(errorFigure(client));
  const missing = client.bands === null ? [html("p", { class: "missing" },
    "This run kept no predictions of this client: run it again, or look in clients.csv.")] : [];
  return html(
    "article", { class: "panel" },
    html("p", { class: "over" }, `${client.group} client${kind}`),
    heading,
    ...client.warnings.map((words) => html("p", { class: "caution" }, words)),
    html("p", {}, client.words.join(" ")),
    ...missing,
    html("div", { class: "drawings" }, ...drawn),
    scoreTable(client),
  );
}
