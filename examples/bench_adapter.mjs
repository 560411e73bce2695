// An adapter of `trioagent bench` in another language, in one file:
//
//     trioagent bench run tool_async tool_fanout --adapter bare-trio \
//         --adapter node='node examples/bench_adapter.mjs'
//
// What it measures is an AbortController with tools that wait for its signal. See
// docs/bench-adapters.md for the protocol.
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

const now = () => Number(process.hrtime.bigint()); // CLOCK_MONOTONIC, in nanoseconds
let scene, sample, run, due;

// The framework under test: one turn, `scene.tools` calls, each until it is aborted.
async function agent(controller, stamps) {
  const tool = async () => {
    try {
      stamps.begun += 1;
      await sleep(3_600_000, undefined, { signal: controller.signal });
    } catch (error) {
      stamps.observed ??= now();
      throw error;
    } finally {
      stamps.cleaned = now();
      stamps.active -= 1;
    }
  };
  const calls = Array.from({ length: scene.tools }, tool);
  stamps.active = scene.tools;
  const ends = await Promise.allSettled(calls);
  return ends.some((end) => end.status === "rejected") ? "stopped" : "completed";
}

const methods = {
  versions: () => ({ versions: { node: process.versions.node } }),
  setup(command) {
    if (command.scene.body !== "block" || command.scene.source !== "thread")
      return { skipped: "this example knows tools that wait, and a stop from outside" };
    scene = command.scene;
    return {};
  },
  async start(command) {
    const controller = new AbortController();
    const stamps = { begun: 0, active: 0 };
    run = { controller, stamps };
    run.ended = agent(controller, stamps).then((status) => {
      run.status = status;
      stamps.returned = now();
    });
    while (stamps.begun < scene.tools) await sleep(0);
    stamps.ready = now();
    due = stamps.ready + command.delay_ns;
    return {};
  },
  stop() {
    run.controller.abort();
    return {};
  },
  async join() {
    while (now() < due) await sleep(Math.max(0, Math.floor((due - now()) / 1e6)));
    const issued = now();
    run.controller.abort();
    const { begun, active, ...stamps } = (await run.ended, run.stamps);
    const quiet = active === 0 ? Math.max(stamps.returned, stamps.cleaned) : null;
    sample = { due, issued, called: issued, ...stamps, quiet, status: run.status };
    return { sample: { ...sample, alive_tasks: active, true_status: run.status === "stopped" } };
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  let answer;
  try {
    answer = await methods[command.method](command);
  } catch (error) {
    answer = { problem: String(error) };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
}
