// A small chat over /v1/chat/completions: streams, can be stopped, and shows how fast it went.

let turns = [];
let running = null;

function authorized(headers = {}) {
  const key = sessionStorage.getItem("stratad-api-key");
  return key === null ? headers : { ...headers, Authorization: `Bearer ${key}` };
}

function addMessage(role, text) {
  const box = make("div", `message ${role}`, text);
  const list = byId("messages");
  list.append(box);
  list.scrollTop = list.scrollHeight;
  return box;
}

async function ask(text) {
  const attempt = new AbortController();
  running = attempt;
  showRunning(true);
  turns.push({ role: "user", content: text });
  addMessage("user", text);
  const thought = make("span", "thought");
  const words = document.createTextNode("");
  const box = addMessage("assistant running", thought);
  box.append(words);
  const answer = { thought, words, tokens: 0, start: performance.now(), timings: null };
  try {
    await stream(attempt.signal, answer);
    showPace(answer, "");
  } catch (error) {
    if (error.name === "AbortError") showPace(answer, "stopped");
    else addMessage("problem", error.message);
  } finally {
    box.classList.remove("running");
    // A turn without an answer is taken back, or the next question would follow on two of the user's.
    if (words.data) turns.push({ role: "assistant", content: words.data });
    else { turns.pop(); if (!thought.textContent) box.remove(); }
    running = null;
    showRunning(false);
  }
}

async function stream(signal, answer) {
  const response = await fetch("v1/chat/completions", {
    method: "POST", signal, headers: authorized({ "Content-Type": "application/json" }),
    body: JSON.stringify({ messages: turns, stream: true, max_tokens: Number(byId("longest").value) }),
  });
  if (response.status === 401) askForKey();
  if (!response.ok) throw new Error(await problemOf(response));
  let text = "";
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error("The answer broke off.");
    text += value;
    const blocks = text.split("\n\n");
    text = blocks.pop();
    for (const block of blocks) if (takeBlock(block, answer)) return;
  }
}

/** Takes one event in; true for the last. */
function takeBlock(block, answer) {
  if (!block.startsWith("data: ")) return false;
  const content = block.slice(6);
  if (content === "[DONE]") return true;
  const chunk = JSON.parse(content);
  if (chunk.error) throw new Error(chunk.error.message);
  answer.timings = chunk.timings || answer.timings;
  const delta = chunk.choices && chunk.choices.length ? chunk.choices[0].delta : {};
  if (!delta.content && !delta.reasoning_content) return false;
  const list = byId("messages");
  const isAtEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40;
  if (delta.content) answer.words.data += delta.content;
  if (delta.reasoning_content) answer.thought.append(delta.reasoning_content);
  answer.tokens += 1;
  if (isAtEnd) list.scrollTop = list.scrollHeight;
  byId("pace").textContent = `${plural(answer.tokens, "piece")} so far`;
  return false;
}

async function problemOf(response) {
  const fallback = `The daemon answered ${response.status}.`;
  try {
    const { message, code } = (await response.json()).error;
    const wayOut = code === "context_length_exceeded" ? ". “New chat” starts over with an empty one." : "";
    return (message || fallback) + wayOut;
  } catch { return fallback; }
}

function showPace(answer, how) {
  const timings = answer.timings;
  const seconds = (performance.now() - answer.start) / 1000;
  const parts = timings
    ? [plural(timings.predicted_n, "token"), `${pace(timings.predicted_per_second)} tokens/s`,
      `prompt ${plural(timings.prompt_n, "token")} in ${Math.round(timings.prompt_ms)} ms`]
    : [plural(answer.tokens, "piece"), `${seconds.toFixed(1)} s`];
  byId("pace").textContent = [...parts, how].filter(Boolean).join(" · ");
}

function showRunning(isRunning) {
  byId("send").disabled = isRunning;
  byId("fresh").disabled = isRunning;
  const stop = byId("stop");
  // Focus would be lost with a button that is switched off under it.
  if (!isRunning && document.activeElement === stop) byId("question").focus();
  stop.disabled = !isRunning;
  byId("messages").setAttribute("aria-busy", String(isRunning));
}

function startChat() {
  const question = byId("question");
  byId("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = question.value.trim();
    if (!text || running) return;
    question.value = "";
    ask(text);
  });
  question.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    byId("ask").requestSubmit();
  });
  byId("stop").addEventListener("click", () => running && running.abort());
  byId("fresh").addEventListener("click", () => {
    turns = [];
    byId("messages").replaceChildren();
    byId("pace").textContent = "";
    question.focus();
  });
}
