// Figures, page placement, pool, slots and reasons: each from the status document, drawn when it changes.

const WINDOW_SECONDS = 300;
let looks = [];

/** Keeps what rates are made of; a daemon that has started anew begins a new history. */
function remember(status) {
  if (!status.decode) { looks = []; return; }
  const last = looks[looks.length - 1];
  if (last && status.uptime_seconds < last.seconds) looks = [];
  const { generation_tokens, decode_seconds, prefill_seconds } = status.decode;
  looks.push({
    seconds: status.uptime_seconds,
    tokens: generation_tokens,
    busy: decode_seconds + prefill_seconds,
    slices: status.pool ? status.pool.slices : [],
  });
  while (looks[0].seconds < status.uptime_seconds - WINDOW_SECONDS - 10) looks.shift();
}

/** Points [seconds ago, tokens a second], one between every two looks. */
function rates() {
  const now = looks.length ? looks[looks.length - 1].seconds : 0;
  return looks.slice(1).map((look, index) => {
    const before = looks[index];
    return [now - look.seconds, (look.tokens - before.tokens) / Math.max(0.001, look.seconds - before.seconds)];
  });
}

function drawFigures(status) {
  const points = rates();
  const placement = status.placement;
  const key = [status.decode && [status.decode.requests_running, status.decode.requests_waiting, status.decode.slots,
    status.decode.last_timings], points, placement && [placement.worst_ratio, placement.verdict,
    age(placement.age_seconds)], cacheOf(status), warningsOf(status).length];
  draw("figures", key, () => [decodeFigure(status.decode, points), placementFigure(placement),
    requestsFigure(status.decode), cacheOf(status) && cacheFigure(cacheOf(status)), warningsFigure(status)]);
}

function figure(title, className, value, unit, ...rest) {
  const main = make("b", "", value);
  if (unit) main.append(make("small", "", ` ${unit}`));
  return make("div", `figure ${className}`, make("h2", "", title), main, ...rest.filter(Boolean));
}

function decodeFigure(decode, points) {
  const now = points.length ? points[points.length - 1][1] : null;
  const last = decode && decode.last_timings ? decode.last_timings.predicted_per_second : null;
  return figure("Decode, all requests", "wide", pace(now), "tokens/s",
    make("p", "soft", last ? `last answer ${pace(last)} tokens/s` : "no answer yet"),
    ...(points.length > 1 ? [graph(points, now), make("div", "scale", make("span", "", "5 min ago"),
      make("span", "", `highest ${pace(Math.max(...points.map(([, rate]) => rate)))}`),
      make("span", "", "now"))] : []));
}

function graph(points, now) {
  const highest = Math.max(...points.map(([, rate]) => rate));
  const across = (ago) => (300 * (1 - ago / WINDOW_SECONDS)).toFixed(2);
  const up = (rate) => (47 - 45 * (highest ? rate / highest : 0)).toFixed(2);
  const visible = points.filter(([ago]) => ago <= WINDOW_SECONDS);
  const curve = visible.map(([ago, rate], index) => `${index ? "L" : "M"}${across(ago)} ${up(rate)}`).join("");
  const area = `${curve}L${across(visible[visible.length - 1][0])} 48L${across(visible[0][0])} 48Z`;
  const picture = makeSvg("svg", { class: "graph", viewBox: "0 0 300 48", preserveAspectRatio: "none", role: "img",
    "aria-label": `Tokens a second over the last 5 minutes: now ${pace(now)}, highest ${pace(highest)}` },
  makeSvg("path", { class: "ground", d: "M0 48H300" }), makeSvg("path", { class: "area", d: area }),
  makeSvg("path", { class: "curve", d: curve }));
  return picture;
}

const VERDICTS = {
  "met": "of every slice's pages on planned nodes",
  "below-limit": "of the worst slice's pages on planned nodes",
  "unverifiable": "the kernel does not tell where pages lie",
  "not-applicable": "the plan places nothing",
};

function placementFigure(placement) {
  if (!placement) return figure("Placement", "", "–", "", make("p", "soft", "not checked yet"));
  const isBad = placement.verdict === "below-limit";
  const value = placement.worst_ratio === null ? "–" : percent(placement.worst_ratio);
  const isWhole = placement.worst_ratio === 1;
  return figure("Placement", isBad ? "bad" : "", value, "", make("p", "soft",
    isWhole || isBad || placement.worst_ratio === null ? VERDICTS[placement.verdict] : VERDICTS["below-limit"]));
}

function requestsFigure(decode) {
  if (!decode) return figure("Requests", "", "–", "", make("p", "soft", "none yet"));
  return figure("Requests", "", decode.requests_running, `of ${plural(decode.slots, "slot")}`,
    make("p", "soft", `${number(decode.requests_waiting)} waiting`));
}

// Who read the experts, where a GPU holds some of them; null elsewhere.
const cacheOf = (status) => (status.experts && status.experts.hits !== null ? status.experts : null);

function cacheFigure(cache) {
  const reads = cache.hits + cache.misses;
  return figure("Expert cache", "", reads ? percent(cache.hits / reads) : "–", "", make("p", "soft",
    reads ? `of ${plural(reads, "read")} found in VRAM` : "not used yet"));
}

const warningsOf = (status) => status.reasons.filter((reason) => reason.effect === "warns");

function warningsFigure(status) {
  const count = warningsOf(status).length;
  return figure("Warnings", count ? "warn" : "", count, "",
    make("p", "soft", count ? "see reasons below" : "nothing to do"));
}

function drawPages(status) {
  const placement = status.placement;
  const key = placement && { ...placement, age_seconds: age(placement.age_seconds) };
  draw("pages", [key, status.plan], () => placement ? pagesDrawing(placement, status.plan)
    : [make("p", "soft", "The arena has not been checked yet.")]);
}

function pagesDrawing(placement, plan) {
  const sizes = new Map((plan ? plan.slices : []).map((slice) => [slice.slice, slice.size_bytes]));
  const list = make("ul", "slices", ...placement.slices.map(
    (slice) => slicePages(slice, sizes.get(slice.slice), placement.limit_ratio)));
  const limit = placement.worst_ratio === null ? "" : ` Limit ${percent(placement.limit_ratio)}.`;
  return [list, make("p", "verdict soft",
    `Verdict: ${placement.verdict}.${limit} Sampled ${age(placement.age_seconds)} ago, pages of ${bytes(placement.page_bytes)}.`)];
}

function slicePages(slice, size, limit) {
  const counts = Object.entries(slice.pages_per_node);
  const all = counts.reduce((sum, [, pages]) => sum + pages, 0) + slice.unknown_pages;
  const isHome = (node) => !slice.home_nodes.length || slice.home_nodes.includes(Number(node));
  const parts = [...counts].sort(([one], [other]) => isHome(other) - isHome(one)).map(
    ([node, pages]) => [pages / all, isHome(node) ? "" : "astray", shade(slice.slice)]);
  if (slice.unknown_pages) parts.push([slice.unknown_pages / all, "unknown"]);
  const name = make("b", "", swatch(slice.slice), `Slice ${slice.slice}`);
  const planned = slice.home_nodes.length ? `planned on node ${slice.home_nodes.join(", ")}` : "on any node";
  const isBad = slice.local_ratio !== null && slice.local_ratio < limit;
  const share = slice.local_ratio === null ? null
    : make("span", `share number${isBad ? " bad" : ""}`, `${percent(slice.local_ratio)} there`);
  const found = counts.map(([node, pages]) => `node ${node}: ${number(pages)}${isHome(node) ? "" : " astray"}`);
  if (slice.unknown_pages) found.push(`unknown: ${number(slice.unknown_pages)}`);
  const head = make("div", "slice-head", make("span", "row", name,
    make("span", "soft", size === undefined ? planned : `${bytes(size)}, ${planned}`)));
  if (share) head.append(share);
  return make("li", "", head, bar(parts), make("p", "slice-foot number",
    found.length ? `Sampled pages on ${found.join(", ")}` : "No page is known"));
}

function drawPool(status) {
  const pool = status.pool;
  const recent = poolRates(status);
  draw("pool", [pool && pool.fallback_operations, recent], () => !pool || !pool.slices.length
    ? [make("p", "soft", "Not started.")] : [poolTable(recent), fallbackNote(pool)]);
}

/** Of each slice: share of its workers' busy time at barriers, share of busy time draining, bytes a second. */
function poolRates(status) {
  if (!status.pool || !status.decode || !looks.length) return null;
  const last = looks[looks.length - 1];
  const minute = looks.find((look) => look.seconds >= last.seconds - 60);
  const isRecent = last.busy - minute.busy > 0.01;
  const start = isRecent ? minute : { busy: 0, slices: [] };
  const busy = last.busy - start.busy;
  return { isRecent, rows: last.slices.map((slice, index) => {
    const before = start.slices[index] || { wait_seconds: 0, drain_seconds: 0, expert_bytes: 0, dense_bytes: 0 };
    const read = slice.expert_bytes + slice.dense_bytes - before.expert_bytes - before.dense_bytes;
    const share = (value) => busy > 0 ? `${(100 * value / busy).toFixed(1)} %` : "–";
    return [slice.slice, slice.workers, share((slice.wait_seconds - before.wait_seconds) / Math.max(1, slice.workers)),
      share(slice.drain_seconds - before.drain_seconds),
      busy > 0 ? `${(read / busy / 1e9).toFixed(1)} GB/s` : "–"];
  }) };
}

function poolTable(recent) {
  if (!recent) return make("p", "soft", "No step yet.");
  const table = make("table", "", make("caption", "", `Of computing time ${recent.isRecent
    ? "in the last minute" : "since the start"}: workers waiting at barriers, the slice's end with idle workers, and weights read.`));
  const head = table.createTHead().insertRow();
  for (const title of ["Slice", "Workers", "Wait", "Drain", "Reads"]) {
    const cell = make("th", "", title);
    cell.scope = "col";
    head.append(cell);
  }
  const body = table.createTBody();
  for (const [slice, ...cells] of recent.rows) {
    const row = body.insertRow();
    row.append(make("td", "", swatch(slice), slice), ...cells.map((cell) => make("td", "", cell)));
  }
  return make("div", "scroll", table);
}

function fallbackNote(pool) {
  if (!pool.fallback_operations) return null;
  return make("p", "soft", `${plural(pool.fallback_operations, "operation")} computed one by one, outside a fused chain.`);
}

function drawSlots(status) {
  const decode = status.decode;
  draw("slots", decode && [decode.slot_list, decode.context_tokens], () => !decode
    ? [make("p", "soft", "There when the model is loaded.")]
    : [make("ul", "slot-list", ...decode.slot_list.map((slot) => slotRow(slot, decode.context_tokens)))]);
}

function slotRow(slot, context) {
  const work = { prompt: `reads a prompt of ${plural(slot.prompt_tokens, "token")}`,
    answer: `answers, ${plural(slot.generated_tokens, "token")} so far` };
  return make("li", "", make("div", "slice-head", make("b", "", `Slot ${slot.slot}`),
    make("span", slot.work ? "" : "soft", slot.work ? work[slot.work] : "free")),
  bar([[slot.held_tokens / context, "", slot.work ? "var(--accent)" : "var(--soft)"]]),
  make("p", "slice-foot number", `holds ${number(slot.held_tokens)} of ${plural(context, "token")}`));
}

const EFFECTS = { warns: "Warning", chooses: "Chosen", informs: "Note", rejects: "Ruled out" };

function drawReasons(status) {
  draw("reasons", status.reasons, () => {
    const warnings = warningsOf(status);
    const others = status.reasons.filter((reason) => reason.effect !== "warns");
    const list = (reasons) => make("ul", "reasons", ...reasons.map(reasonItem));
    const folded = make("details", "", make("summary", "", `Why this plan: ${plural(others.length, "reason")}`),
      list(others));
    return [warnings.length ? list(warnings) : make("p", "soft", "No warning."), others.length ? folded : null];
  });
}

function reasonItem(reason) {
  const item = make("li", `reason ${reason.effect}`, make("div", "label",
    make("b", "", EFFECTS[reason.effect] || reason.effect), make("code", "", reason.code)),
  make("p", "", reason.message));
  if (reason.remedy) item.append(make("p", "remedy", `What to do: ${reason.remedy}`));
  return item;
}
