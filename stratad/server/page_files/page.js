// The page as a whole: looks at /status again and again, and says when that fails.

const PAUSE_MILLISECONDS = 2000;
const LONGEST_PAUSE_MILLISECONDS = 10000;
let failures = 0;
let lastSeen = null;
let timer = null;
let isLooking = false;

const STATES = { loading: "loading", ready: "ready", degraded: "degraded", draining: "draining", failed: "failed",
  gone: "not reachable", locked: "key needed", connecting: "connecting" };

function showState(state) {
  const place = byId("state");
  if (place.dataset.state === state) return;
  place.dataset.state = state;
  place.textContent = STATES[state] || state;
  document.title = `stratad: ${STATES[state] || state}`;
}

function show(status) {
  showState(status.state);
  byId("observed").hidden = false;
  byId("observed").classList.remove("stale");
  draw("identity", [status.model, status.plan, status.version], () => [
    ["model", status.model],
    status.plan && ["plan", `${status.plan.policy}${status.plan.confidence ? `, ${status.plan.confidence}` : ""}`],
    ["version", status.version],
  ].filter(Boolean).map(([name, value]) => make("div", "", make("dt", "", name), make("dd", "", value))));
  remember(status);
  drawAlerts(status);
  drawFigures(status);
  drawMachine(status);
  drawPages(status);
  drawPool(status);
  drawSlots(status);
  drawReasons(status);
}

function drawAlerts(status) {
  const texts = {
    loading: "The model is being loaded; requests get 503 until then.",
    degraded: "It serves, but not as planned. The warnings below say why.",
    draining: "New requests are refused; running ones are finished.",
    failed: "The engine has failed and answers nothing any more. The daemon's log says why; restart it.",
  };
  const values = [status.state, status.state === "loading" ? [status.stage, status.loaded_ratio] : null];
  draw("alerts", values, () => {
    if (!texts[status.state]) return [];
    const box = make("div", `alert ${status.state === "failed" ? "bad" : status.state === "loading" ? "" : "warn"}`,
      make("p", "", texts[status.state]));
    if (status.state === "loading") {
      const progress = make("progress");
      progress.value = status.loaded_ratio;
      progress.setAttribute("aria-label", status.stage);
      box.append(make("p", "soft", `${status.stage}, ${Math.floor(100 * status.loaded_ratio)} %`), progress);
    }
    return [box];
  });
}

function showGone() {
  showState("gone");
  byId("observed").classList.add("stale");
  draw("alerts", ["gone", lastSeen], () => [make("div", "alert bad", make("p", "", lastSeen === null
    ? "The daemon does not answer. This page tries again by itself."
    : `The daemon has not answered since ${lastSeen}. What you see is from then; this page tries again by itself.`))]);
}

function askForKey() {
  showState("locked");
  draw("alerts", ["locked"], () => []);
  const form = byId("key-form");
  if (!form.hidden) return;
  form.hidden = false;
  byId("observed").hidden = true;
  // A key that was refused is of no use any more.
  sessionStorage.removeItem("stratad-api-key");
  showForget();
  byId("key").focus();
}

function showForget() {
  byId("forget").hidden = sessionStorage.getItem("stratad-api-key") === null;
}

/** The status document; null when a key is needed, undefined when the daemon does not answer. */
async function fetchStatus() {
  try {
    const response = await fetch("status", { headers: authorized(), cache: "no-store" });
    if (response.status === 401) return null;
    return response.ok ? await response.json() : undefined;
  } catch {
    return undefined;
  }
}

async function look() {
  clearTimeout(timer);
  if (isLooking) return;
  isLooking = true;
  const status = await fetchStatus();
  isLooking = false;
  failures = status === undefined ? failures + 1 : 0;
  // Nobody sees a hidden page; it looks again as soon as it is shown.
  if (status !== null && !document.hidden)
    timer = setTimeout(look, Math.min(LONGEST_PAUSE_MILLISECONDS, PAUSE_MILLISECONDS * (1 + failures)));
  if (status === null) askForKey();
  else if (status === undefined) showGone();
  else {
    lastSeen = new Date().toLocaleTimeString();
    byId("key-form").hidden = true;
    show(status);
  }
}

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("stratad-api-key", byId("key").value.trim());
  byId("key").value = "";
  byId("key-form").hidden = true;
  showForget();
  look();
});
byId("forget").addEventListener("click", () => {
  sessionStorage.removeItem("stratad-api-key");
  showForget();
  look();
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
showForget();
startChat();
look();
