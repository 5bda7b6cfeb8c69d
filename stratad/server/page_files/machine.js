// The machine: packages, nodes, cores and what they do, GPUs, and the arena's bytes on every node.

const ROLES = { worker: "worker of slice", server: "the server's", free: "not used", closed: "not in the cpuset" };

function drawMachine(status) {
  const planned = plannedBytes(status.plan);
  const found = status.placement ? status.placement.arena_bytes_per_node : {};
  draw("machine", [status.machine, planned, found], () => status.machine
    ? machineDrawing(status.machine, planned, found) : [make("p", "soft", "Known when there is a plan.")]);
}

/** Bytes of the arena that the plan puts on each node; null for a plan that places nothing. */
function plannedBytes(plan) {
  const sizes = {};
  for (const slice of plan ? plan.slices : [])
    for (const node of slice.nodes) sizes[node] = (sizes[node] || 0) + slice.size_bytes / slice.nodes.length;
  return Object.keys(sizes).length ? sizes : null;
}

function machineDrawing(machine, planned, found) {
  const packages = make("div", "packages", ...machine.packages.map(
    (one) => packageBox(one, machine.gpus, planned, found)));
  const lost = machine.gpus.filter((gpu) => gpu.node === null);
  return [packages, lost.length ? lostGpus(lost) : null, legend(machine)];
}

function packageBox(one, gpus, planned, found) {
  const title = one.package === null ? "Memory without CPUs" : `Package ${one.package}`;
  return make("section", "package", make("h3", "", title), make("div", "nodes", ...one.nodes.map(
    (node) => nodeBox(node, gpus.filter((gpu) => gpu.node === node.node),
      planned && (planned[node.node] || 0), found[node.node]))));
}

function nodeBox(node, gpus, planned, found) {
  const size = node.memory_total_bytes === null ? "memory unknown"
    : node.memory_total_bytes === 0 ? "no memory" : bytes(node.memory_total_bytes);
  const box = make("div", node.is_allowed ? "node" : "node closed",
    make("h4", "", `Node ${node.node}`, make("span", "", size)));
  if (node.cores.length) box.append(coreGrid(node));
  if (node.memory_total_bytes && (planned || found)) box.append(arenaOnNode(node, planned, found));
  if (gpus.length) box.append(make("div", "gpus", ...gpus.map(gpuChip)));
  return box;
}

function coreGrid(node) {
  const grid = make("div", "cores", ...node.cores.map(coreBox));
  grid.setAttribute("role", "img");
  grid.setAttribute("aria-label", `Node ${node.node}: ${plural(node.cores.length, "core")}, ${roleText(node)}`);
  return grid;
}

function coreBox(cpus) {
  const box = make("span", "core", ...cpus.map((cpu) => {
    const part = make("span", `cpu ${cpu.role}`);
    if (cpu.slice !== null) part.style.setProperty("--shade", shade(cpu.slice));
    return part;
  }));
  box.title = cpus.map((cpu) => `CPU ${cpu.cpu}: ${ROLES[cpu.role]}${cpu.slice === null ? "" : ` ${cpu.slice}`}`)
    .join("\n");
  return box;
}

/** What a node's CPUs do, in words: for those who do not see the drawing. */
function roleText(node) {
  const groups = new Map();
  for (const cpu of node.cores.flat()) {
    const name = cpu.slice === null ? ROLES[cpu.role] : `workers of slice ${cpu.slice}`;
    groups.set(name, [...(groups.get(name) || []), cpu.cpu]);
  }
  return [...groups].map(([name, ids]) => `CPUs ${ranges(ids)} ${name}`).join(", ");
}

function arenaOnNode(node, planned, found) {
  const shown = found === undefined ? planned : found;
  const isAsPlanned = found !== undefined && Math.abs(found - planned) < Math.max(2 ** 20, 0.005 * planned);
  const text = planned === null ? `${bytes(found)} of arena`
    : found === undefined ? `${bytes(planned)} of arena planned`
      : isAsPlanned ? `${bytes(found)} of arena, as planned`
        : `${bytes(found)} of arena, planned ${bytes(planned)}`;
  return make("div", "memory", bar([[shown / node.memory_total_bytes, "", "var(--soft)"]]), text);
}

function gpuChip(gpu) {
  return make("span", "gpu", make("b", "", "GPU"), ` ${gpu.address}`);
}

function lostGpus(gpus) {
  return make("div", "gpus unknown", "Attached to an unknown node:", ...gpus.map(gpuChip));
}

function legend(machine) {
  const cpus = machine.packages.flatMap((one) => one.nodes).flatMap((node) => node.cores).flat();
  const count = (role) => cpus.filter((cpu) => cpu.role === role).length;
  const slices = [...new Set(cpus.filter((cpu) => cpu.slice !== null).map((cpu) => cpu.slice))].sort((a, b) => a - b);
  const items = slices.map((slice) => [swatch(slice),
    `slice ${slice}: ${plural(cpus.filter((cpu) => cpu.slice === slice).length, "worker")}`]);
  for (const [role, text] of [["server", "server"], ["free", "not used"], ["closed", "not in the cpuset"]]) {
    if (!count(role)) continue;
    const box = make("span", `swatch cpu ${role}`);
    box.setAttribute("aria-hidden", "true");
    items.push([box, `${text}: ${plural(count(role), "CPU")}`]);
  }
  if (machine.packages.some((one) => one.nodes.some((node) => node.cores.some((core) => core.length > 1))))
    items.push(["A divided square is one core with its hardware threads."]);
  return make("ul", "legend", ...items.map((item) => make("li", "", ...item)));
}
