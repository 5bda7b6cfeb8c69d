"""The status page: one self-contained document that reads /status every two seconds."""

from __future__ import annotations

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>stratad</title>
<style>
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { margin: 0 auto; max-width: 60rem; padding: 1rem; }
h1 { font-size: 1.4rem; margin: 0 0 1rem; }
h2 { font-size: 1.1rem; margin: 1.5rem 0 .5rem; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid color-mix(in srgb, currentColor 25%, transparent);
  padding: .25rem .5rem .25rem 0; text-align: left; vertical-align: top; }
.wide { overflow-x: auto; }
#state { border: 1px solid currentColor; border-radius: .5rem; font-size: 1rem; padding: .1rem .6rem; }
</style>
</head>
<body>
<h1>stratad <span id="state" role="status">...</span></h1>
<div class="wide"><table id="summary"></table></div>
<h2>Placement</h2>
<div class="wide"><table id="placement"></table></div>
<h2>Reasons</h2>
<div class="wide"><table id="reasons"></table></div>
<script>
"use strict";
// Text from the daemon enters the page as text nodes only.
function row(table, cells, name) {
  const line = table.insertRow();
  for (const cell of cells) {
    const box = document.createElement(name || "td");
    box.textContent = cell === null || cell === undefined ? "-" : String(cell);
    line.appendChild(box);
  }
}
function percent(ratio) { return ratio === null ? "-" : (100 * ratio).toFixed(1) + " %"; }
function rate(value) {
  return value === null || value === undefined ? "-" : value.toFixed(2) + " per second";
}
function pages(counts) {
  return Object.entries(counts).map(([node, count]) => "node " + node + ": " + count).join(", ") || "-";
}
function show(status) {
  document.getElementById("state").textContent = status.state;
  const summary = document.getElementById("summary");
  summary.replaceChildren();
  row(summary, ["model", status.model]);
  if (status.state === "loading")
    row(summary, ["loading", status.stage + ", " + percent(status.loaded_ratio)]);
  if (status.plan) row(summary, ["plan", status.plan.policy + " (" + status.plan.fingerprint + ")"]);
  if (status.decode) {
    const last = status.decode.last_timings;
    row(summary, ["decode, all requests", rate(status.decode.decode_steps_per_second)]);
    row(summary, ["decode, last request", last ? rate(last.predicted_per_second) : "-"]);
    row(summary, ["running", `${status.decode.requests_running} of ${status.decode.slots}`]);
    row(summary, ["waiting", status.decode.requests_waiting]);
  }
  const placement = document.getElementById("placement");
  placement.replaceChildren();
  row(placement, ["slice", "planned nodes", "sampled pages", "unknown", "on planned nodes"], "th");
  for (const slice of status.placement ? status.placement.slices : [])
    row(placement, [slice.slice, slice.home_nodes.join(", ") || "any", pages(slice.pages_per_node),
      slice.unknown_pages, percent(slice.local_ratio)]);
  const reasons = document.getElementById("reasons");
  reasons.replaceChildren();
  row(reasons, ["effect", "code", "message", "remedy"], "th");
  for (const reason of status.reasons)
    row(reasons, [reason.effect, reason.code, reason.message, reason.remedy]);
}
async function refresh() {
  try { show(await (await fetch("status")).json()); }
  catch { document.getElementById("state").textContent = "not reachable"; }
}
refresh();
setInterval(refresh, 2000);
</script>
</body>
</html>
"""
