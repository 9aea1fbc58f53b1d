// BullMQ on Redis. Worker: node bullmq_peer.js worker. Asked as peer_client.py is: bulk N, or starts N.
"use strict";
const { createRequire } = require("module");
const { Queue, QueueEvents, Worker } = createRequire(process.env.PEER_MODULES + "/")("bullmq");

const url = new URL(process.env.PEER_REDIS);
const connection = { host: url.hostname, port: Number(url.port), maxRetriesPerRequest: null };
const NAME = "peer";
const CONCURRENCY = 64;
const WAITING = 4096; // Submissions without an answer, as on our WebSocket.
const POLL_MS = 20;
const IDLE_MS = 10;
const LIMIT_MS = 120000;
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function bulk(queue, number) {
  await queue.obliterate({ force: true });
  const before = process.cpuUsage();
  const began = performance.now();
  for (let first = 0; first < number; first += WAITING) {
    const adds = [];
    for (let at = first; at < Math.min(number, first + WAITING); at++) adds.push(queue.add("nothing", {}));
    await Promise.all(adds);
  }
  const submitted = performance.now();
  while ((await queue.getCompletedCount()) < number) {
    if (performance.now() - began > LIMIT_MS) throw new Error(`${number} results were not stored in ${LIMIT_MS} ms`);
    await sleep(POLL_MS);
  }
  const ended = performance.now();
  const used = process.cpuUsage(before);
  return {
    submit_s: (submitted - began) / 1000,
    total_s: (ended - began) / 1000,
    client_cpu_s: (used.user + used.system) / 1e6,
  };
}

async function starts(queue, number) {
  const events = new QueueEvents(NAME, { connection });
  await events.waitUntilReady();
  const waits = [];
  for (let at = 0; at < number; at++) {
    await sleep(IDLE_MS);
    const before = process.hrtime.bigint();
    const job = await queue.add("instant", {});
    const instant = BigInt(await job.waitUntilFinished(events, 30000));
    waits.push(Number(instant - before) / 1e6);
  }
  await events.close();
  return waits;
}

async function main() {
  const [word, number] = [process.argv[2], Number(process.argv[3])];
  if (word === "worker") {
    // The clock of hrtime is the one that all processes of a machine share. It is more than a number of JSON holds.
    const run = async (job) => (job.name === "instant" ? String(process.hrtime.bigint()) : null);
    const worker = new Worker(NAME, run, { connection, concurrency: CONCURRENCY });
    process.on("SIGTERM", () => worker.close().then(() => process.exit(0)));
    return;
  }
  const queue = new Queue(NAME, { connection });
  console.log(JSON.stringify(await (word === "bulk" ? bulk(queue, number) : starts(queue, number))));
  await queue.close();
}

main().catch((error) => {
  console.error(String(error));
  process.exit(1);
});
