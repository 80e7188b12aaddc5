// The panel of a client: opened by its link or by the page's address, left with Escape, and kept on
// the page on request, so that it is printed.

const places = new Map(links.map((link, place) => [link, place]));
const dialog = document.getElementById("panel");
const panelBody = document.getElementById("panel-body");
const panelTitle = document.getElementById("panel-title");
const chosen = document.getElementById("chosen");
const keep = document.getElementById("panel-keep");

let opened = -1;
const kept = new Map();
const known = new Map(); // what panels are drawn from, of clients that were opened
const blocks = new Map();

// Of many clients panels travel in compressed blocks, which are opened when one of theirs is.
async function inflated(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

async function facts(place) {
  if (report.clients) return report.clients[place];
  const block = Math.floor(place / report.block);
  if (!blocks.has(block)) blocks.set(block, await inflated(report.blocks[block]));
  return blocks.get(block)[place % report.block];
}

async function show(place) {
  opened = place;
  const client = await facts(place);
  if (opened !== place) return; // another one was asked for in the meantime
  known.set(place, client);
  // Whoever pressed a button of the bar stays on it; everybody else begins at the name.
  const stays = dialog.open && document.querySelector(".bar").contains(document.activeElement);
  panelBody.replaceChildren(panelOf(client, panelTitle));
  nameKeep();
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
  if (!stays) panelTitle.focus();
}

// The address follows what is open, so that it can be sent to somebody.
function goTo(place) {
  history.replaceState(null, "", links[place]);
  show(place);
}

function step(by) {
  const here = visible.indexOf(opened);
  const next = visible[(here + by + visible.length) % visible.length];
  if (next !== undefined) goTo(next);
}

// A link may name the client alone; then the first with this name is meant.
function asked() {
  if (!location.hash.startsWith("#client=")) return -1;
  if (places.has(location.hash)) return places.get(location.hash);
  let name;
  try {
    name = decodeURIComponent(location.hash.slice("#client=".length));
  } catch {
    return -1;
  }
  const found = everybody.findIndex((c) => `${c.group}/${c.name}` === name);
  return found >= 0 ? found : everybody.findIndex((c) => c.name === name);
}

function follow() {
  const place = asked();
  if (place >= 0) show(place);
  else {
    if (dialog.open) dialog.close();
    if (location.hash.startsWith("#client=")) say("There is no client of this name in the table.");
  }
}

dialog.addEventListener("close", () => {
  if (location.hash.startsWith("#client=")) {
    history.replaceState(null, "", location.pathname + location.search);
  }
  const row = opened < 0 ? null : turnTo(opened);
  if (row) linkOf(row).focus();
  opened = -1;
});
dialog.addEventListener("keydown", (event) => {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!by || event.ctrlKey || event.altKey || event.metaKey) return;
  if (event.target.closest(".scroll")) return;
  event.preventDefault();
  step(by);
});
// A click beside the panel closes it.
dialog.addEventListener("click", (event) => {
  if (event.target === dialog) dialog.close();
});
document.getElementById("panel-previous").addEventListener("click", () => step(-1));
document.getElementById("panel-next").addEventListener("click", () => step(1));
document.getElementById("panel-close").addEventListener("click", () => dialog.close());

function keptPanel(place) {
  const article = panelOf(known.get(place), html("h4"));
  const remove = html("button", { type: "button", class: "remove" }, "Remove");
  remove.setAttribute("aria-label", `Remove ${everybody[place].name} from the page`);
  remove.addEventListener("click", () => toggleKept(place));
  article.append(remove);
  return article;
}

function nameKeep() {
  keep.setAttribute("aria-pressed", kept.has(opened));
  keep.textContent = kept.has(opened) ? "Kept on the page" : "Keep on the page";
}

function toggleKept(place) {
  if (kept.has(place)) {
    kept.get(place).remove();
    kept.delete(place);
  } else {
    kept.set(place, keptPanel(place));
    chosen.append(kept.get(place));
  }
  chosen.hidden = kept.size === 0;
  nameKeep();
}
keep.addEventListener("click", () => toggleKept(opened));

// Who prints while a panel is open wants to see it on paper; and paper has its own width.
let borrowed = -1;

function redraw(onPaper) {
  paper = onPaper;
  for (const [place, article] of kept) {
    kept.set(place, keptPanel(place));
    article.replaceWith(kept.get(place));
  }
}

addEventListener("beforeprint", () => {
  if (dialog.open && !kept.has(opened)) {
    borrowed = opened;
    toggleKept(opened);
  }
  redraw(true);
});
addEventListener("afterprint", () => {
  if (borrowed >= 0 && kept.has(borrowed)) toggleKept(borrowed);
  borrowed = -1;
  redraw(false);
});

// A link that is open already changes no address: it is followed all the same.
body.addEventListener("click", (event) => {
  const link = event.target.closest("a");
  if (link && link.hash === location.hash) follow();
});
addEventListener("hashchange", follow);
follow();
